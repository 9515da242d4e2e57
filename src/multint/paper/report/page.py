"""The report as one HTML page that needs nothing else to be read."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from multint.paper.report import against, claims, drawing, focus, markup, tables
from multint.paper.report.against import View
from multint.paper.report.focus import Focus
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Section

OVERVIEW = "Each row's number in the paper and ours; the same numbers stand in the tables below."


def html_page(
    view: View,
    sections: Sequence[Section],
    charts: Sequence[Mapping[str, Any]],
    drawn: Mapping[str, bytes],
    warnings: Sequence[str],
    shown: Focus,
) -> str:
    """The page. ``drawn`` are the figures by file name; ``shown`` are the runs that it starts with."""
    template = (files("multint.paper.report") / "page.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    mine = focus.groups(view.records.runs, shown.runs)
    own = drawing.charts(view, mine)
    overview, after = claims.overview(sections), tables.account_tables(view, sections)
    panels = [*tables.panel_tables(view, sections), *tables.twin_tables(view)]
    titles = [*(t.title for t in (overview, *panels)), *(one.title for one in sections), *(t.title for t in after)]
    boxes = [_chart_box(i, chart) for i, chart in enumerate((*own, *charts))]
    parts = {
        # only the page's own script may run, whatever a record says
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "focus": _focus(shown, mine, boxes[: len(own)]),
        "heading": ("h2" if mine else "h1"),
        "summary": html.escape(tables.summary(view)),
        "tiles": _tiles(against.tally(view)),
        "claims": (_folded if mine else _html_table)(overview),
        "warnings": _warnings(warnings),
        "overview": _picture(drawn, "paper", "Ours against the paper", OVERVIEW),
        "contents": "".join(f'<li><a href="#{markup.slug(title)}">{html.escape(title)}</a></li>' for title in titles),
        "tables": "".join(map(_folded, panels)),
        "sections": "".join(_section(one, drawn, fold=bool(mine)) for one in sections),
        "costs": "".join(_html_table(t) for t in after),
        "charts": "".join(boxes[len(own) :]) or "<p>No run has left a curve yet.</p>",
        "data": _script_json([*own, *charts]),
    }
    return re.sub(r"@@(\w+)@@", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _focus(what: Focus, groups: Sequence[Any], charts: Sequence[str]) -> str:
    """The first screen of somebody who has just trained: what it means, the curves, the table, the samples."""
    if not groups:
        return ""
    sentence = what.sentence or focus.meaning(groups)
    samples = "".join(
        f"<figure><figcaption>{html.escape(run)} writes</figcaption><pre>{html.escape(text)}</pre></figure>"
        for run, text in what.samples.items()
    )
    return (
        f'<section id="your-runs" class="focus"><h1>Your runs</h1><p class="lead">{html.escape(sentence)}</p>{"".join(charts)}'
        f'{_html_table(focus.table(groups))}<div class="samples">{samples}</div></section>'
    )


def _tiles(tally: Mapping[str, Mapping[str, int]]) -> str:
    names = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss", against.SINGLE: "from 1 seed", "not run": "not run"}
    sides = {"MI": "MI rows", "additive": "Additive baselines"}
    return "".join(
        f'<div><span>{sides[side]}</span><ul class="tiles" aria-label="{sides[side]} of the paper by verdict">'
        + "".join(f'<li class="{markup.slug(key)}"><b>{count[key]}</b> {name}</li>' for key, name in names.items())
        + "</ul></div>"
        for side, count in tally.items()
    )


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in warnings)
    return f'<section id="warnings" class="warnings"><h2>⚠ Warnings ({len(warnings)})</h2><ul>{items}</ul></section>'


def _section(section: Section, drawn: Mapping[str, bytes], fold: bool) -> str:
    """A section with its figures and tables; with ``fold``, one line if nothing of it was run."""
    title, slug = html.escape(section.title), markup.slug(section.title)
    details = claims.details(section)
    pictures = "".join(
        _picture(drawn, one.name, one.title, one.caption, "wide " if one.wide else "", True) for one in section.pictures
    )
    below = "".join(_html_table(table, 3) for table in (details, *section.tables) if table.rows)
    inside = f'<p class="note">{html.escape(section.note)}</p>{pictures}{below}'
    if fold and all(_idle(row) for row in details.rows):
        return f'<details><summary id="{slug}"><b>{title}</b>: nothing run</summary>{inside}</details>'
    return f'<section><h2 id="{slug}">{title}</h2>{inside}</section>'


def _idle(row: Sequence[Cell]) -> bool:
    """Whether nothing of ours is in a row."""
    return "idle" in row[0].kind or any(cell.text == "cited" for cell in row)


def _picture(drawn: Mapping[str, bytes], name: str, label: str, alt: str, kind: str = "", caption: bool = False) -> str:
    if f"{name}.svg" not in drawn:
        return ""
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(drawn[one]).decode()}" for one in (f"{name}.svg", f"{name}-dark.svg")
    )
    words = f'<figcaption class="note">{html.escape(f"{label}. {alt}")}</figcaption>' if caption else ""
    return (
        f'<figure class="overview {kind}box" role="region" tabindex="0" aria-label="{html.escape(label)}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{html.escape(alt)}"></picture>{words}</figure>'
    )


def _folded(table: Table) -> str:
    """A table, or one line if nothing of it was run."""
    if not all(_idle(row) for row in table.rows):
        return _html_table(table)
    slug, count = markup.slug(table.title), f"{len(table.rows)} rows, " if table.rows else ""
    return (
        f'<details><summary id="{slug}"><b>{html.escape(table.title)}</b>: {count}nothing run</summary>'
        f'<p class="note">{html.escape(table.note)}</p>{_grid(table)}</details>'
    )


def _html_table(table: Table, level: int = 2) -> str:
    head = f'<h{level} id="{markup.slug(table.title)}">{html.escape(table.title)}</h{level}>'
    return f'<section>{head}<p class="note">{html.escape(table.note)}</p>{_grid(table)}</section>'


def _grid(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    body = "".join(_html_row(row) for row in table.rows)
    return (
        f'<div class="box" role="region" tabindex="0" aria-labelledby="{markup.slug(table.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        if table.rows
        else "<p>Nothing has been run.</p>"
    )


def _html_row(row: Sequence[Cell]) -> str:
    idle = "idle" if "idle" in row[0].kind else ""
    cells = []
    for cell in row:
        kind, text = html.escape(cell.kind), html.escape(cell.text)
        if cell.kind.startswith("head"):
            breakable = text.replace("+", "+<wbr>").replace("/", "/<wbr>")
            cells.append(f'<th scope="row" class="{kind}">{breakable}</th>')
        else:
            cells.append(f'<td class="{kind}">{text}</td>')
    return f'<tr class="{idle}">{"".join(cells)}</tr>'


def _chart_box(number: int, chart: Mapping[str, Any]) -> str:
    title = html.escape(str(chart["title"]))
    levels = "; ".join(f"{mark['text']} {mark['label']}" for mark in chart["marks"])
    note = f'<p class="note">Dashed: the paper\'s test results. {html.escape(levels)}.</p>' if levels else ""
    return f'<section class="chart" data-chart="{number}" aria-label="{title}"><h3>{title}</h3>{note}</section>'
