"""The report as one HTML page that needs nothing else to be read: ``page.html``, filled in."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from multint.paper.report import against, claims, drawing, focus, markup, tables
from multint.paper.report.against import View
from multint.paper.report.focus import Focus
from multint.paper.report.markup import Cell
from multint.paper.report.section import Section


def html_page(
    view: View,
    sections: Sequence[Section],
    charts: Sequence[Mapping[str, Any]],
    drawn: Mapping[str, bytes],
    warnings: Sequence[str],
    shown: Focus,
) -> str:
    """The page. ``drawn`` are the figures by file name; ``shown`` are the runs that it starts with."""
    import jinja2  # torch needs it too

    template = (files("multint.paper.report") / "page.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    mine = focus.groups(view.records.runs, shown.runs)
    own = drawing.charts(view, mine)
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    page.filters["slug"], page.tests["idle"] = markup.slug, _idle
    return page.from_string(template).render(
        # only the page's own script may run, whatever a record says
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        mine=mine,
        sentence=shown.sentence or focus.meaning(mine),
        results=focus.table(mine),
        samples=shown.samples,
        summary=tables.summary(view),
        tally=against.tally(view),
        single=against.SINGLE,
        overview=claims.overview(sections),
        warnings=warnings,
        panels=[*tables.panel_tables(view, sections), *tables.twin_tables(view)],
        sections=list(sections),
        details=claims.details,
        accounts=tables.account_tables(view, sections),
        own_charts=own,
        charts=charts,
        images={name.removesuffix(".svg"): _address(body) for name, body in drawn.items() if name.endswith(".svg")},
        data=_script_json([*own, *charts]),
    )


def _idle(rows: Sequence[Sequence[Cell]]) -> bool:
    """Whether nothing of ours is in a table's rows."""
    return all("idle" in row[0].kind or any(cell.text == "cited" for cell in row) for row in rows)


def _address(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
