"""The report as one HTML page that needs nothing else to be read."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from multint.paper.report import against, claims, markup, tables
from multint.paper.report.against import View
from multint.paper.report.claims import EXPLORATORY, exploratory_tables
from multint.paper.report.markup import Cell, Table
from multint.paper.report.tables import account_tables, paper_tables


def html_page(view: View, charts: Sequence[Mapping[str, Any]], drawn: Mapping[str, bytes], warnings: Sequence[str]) -> str:
    template = (files("multint.paper.report") / "page.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    before, after = paper_tables(view), account_tables(view)
    titles = [*(t.title for t in before), EXPLORATORY, *(t.title for t in after)]
    parts = {
        # only the page's own script may run, whatever a record says
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "summary": html.escape(tables.summary(view)),
        "tiles": _tiles(against.tally(view.standings)),
        "warnings": _warnings(warnings),
        "overview": _picture(drawn, "paper", "Ours against the paper", OVERVIEW),
        "contents": "".join(f'<li><a href="#{markup.slug(title)}">{html.escape(title)}</a></li>' for title in titles),
        "tables": "".join(_html_table(t) for t in before),
        "exploratory": _exploratory(view, drawn),
        "costs": "".join(_html_table(t) for t in after),
        "charts": "".join(_chart_box(i, chart) for i, chart in enumerate(charts)) or "<p>No run has left a curve yet.</p>",
        "data": _script_json(charts),
    }
    return re.sub(r"@@(\w+)@@", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _tiles(tally: Mapping[str, int]) -> str:
    names = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss", "not run": "– not run"}
    return "".join(f'<li class="{markup.slug(key)}"><b>{tally[key]}</b> {name}</li>' for key, name in names.items())


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in warnings)
    return f'<section id="warnings" class="warnings"><h2>⚠ Warnings ({len(warnings)})</h2><ul>{items}</ul></section>'


OVERVIEW = "Each row's number in the paper and ours; the same numbers stand in the tables below."
FIGURE_1 = "Gradient norms, validation curves and hidden activations; their numbers stand in the tables below."


def _exploratory(view: View, drawn: Mapping[str, bytes]) -> str:
    head = (
        f'<h2 id="{markup.slug(EXPLORATORY)}">{html.escape(EXPLORATORY)}</h2><p class="note">{html.escape(claims.about(view))}</p>'
    )
    inside = "".join(_html_table(table, 3) for table in exploratory_tables(view))
    return head + _picture(drawn, "figure-1", "Figure 1", FIGURE_1, "wide ") + inside


def _picture(drawn: Mapping[str, bytes], name: str, label: str, alt: str, kind: str = "") -> str:
    if f"{name}.svg" not in drawn:
        return ""
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(drawn[one]).decode()}" for one in (f"{name}.svg", f"{name}-dark.svg")
    )
    return (
        f'<figure class="overview {kind}box" role="region" tabindex="0" aria-label="{label}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{alt}"></picture></figure>'
    )


def _html_table(table: Table, level: int = 2) -> str:
    slug = markup.slug(table.title)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    body = "".join(_html_row(row) for row in table.rows)
    inner = (
        f'<div class="box" role="region" tabindex="0" aria-labelledby="{slug}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        if table.rows
        else "<p>Nothing has been run.</p>"
    )
    head = f'<h{level} id="{slug}">{html.escape(table.title)}</h{level}>'
    return f'<section>{head}<p class="note">{html.escape(table.note)}</p>{inner}</section>'


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
