"""What did we get, beside what the paper got?

``build`` turns a results folder into one HTML page that needs nothing else to be read, and figures; ``markdown`` gives the same
tables for README and docs, ``refresh`` puts them between two markers. Everything is derived from the records: the same results give
the same bytes. Text from records is escaped in one place per format, where a table or the page's data is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multint.paper.numbers import metric
from multint.paper.records import differences
from multint.paper.report import against, claims, drawing, markup, spelling, tables
from multint.paper.report.against import look
from multint.paper.report.claims import EXPLORATORY, exploratory_tables
from multint.paper.report.markup import Cell
from multint.paper.report.page import html_page
from multint.paper.report.spelling import NONE, duration
from multint.paper.report.tables import account_tables, paper_tables

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


@dataclass(frozen=True)
class ReportResult:
    """What ``build`` wrote, and what it has to say about the records."""

    page: Path
    figures: tuple[Path, ...]
    warnings: tuple[str, ...]
    runs: int
    rows: Mapping[str, int]  # rows of the authors' own by verdict: better, met, miss, not run


def build(results: Path, out: Path) -> ReportResult:
    """Write the page ``out`` and ``figures/*.svg, *.png`` beside it from ``results/runs.jsonl`` and its curves."""
    page = out / "report.html" if out.is_dir() else out
    folder = page.parent / "figures"
    view = look(results)
    charts = drawing.charts(view)
    drawn, told = drawing.draw(view, charts)
    warnings = (*view.warnings, *told)
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in drawn.items():
        (folder / name).write_bytes(body)
    page.write_text(html_page(view, charts, drawn, warnings), encoding="utf-8", errors="replace")
    return ReportResult(
        page, tuple(folder / name for name in drawn), warnings, len(view.records.runs), against.tally(view.standings)
    )


def markdown(results: Path, brief: bool = False) -> str:
    """The tables as Markdown; ``brief`` leaves out rows that were not run, the costs and the list of runs."""
    view = look(results)
    parts = [tables.summary(view)]
    if view.warnings and not brief:
        parts.append("**Warnings**\n\n" + "\n".join(f"- {markup.md(text)}" for text in view.warnings))
    parts += [markup.md_table(table) for table in paper_tables(view, brief) if table.rows]
    if not brief:
        parts.append(f"### {EXPLORATORY}\n\n{markup.md(claims.about(view))}")
        parts += [markup.md_table(table, "####") for table in exploratory_tables(view) if table.rows]
        parts += [markup.md_table(table) for table in account_tables(view) if table.rows]
    return "\n\n".join(parts) + "\n"


def refreshed(text: str, body: str, name: str) -> str:
    """``text`` with ``body`` between the markers; ``name`` is the file's, for the error when a marker is missing."""
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise ValueError(f"{name} must contain the marker {marker} once, found it {text.count(marker)} times")
    head, _, rest = text.partition(BEGIN)
    if END not in rest:
        raise ValueError(f"{name} has the marker {END} before {BEGIN}; swap them")
    return f"{head}{BEGIN}\n\n{body.strip()}\n\n{END}{rest.partition(END)[2]}"


def refresh(path: Path, results: Path, brief: bool | None = None) -> bool:
    """Put the tables of ``results`` between the markers in ``path``, in brief if it is a README; True if the file changed."""
    old = path.read_text(encoding="utf-8")
    new = refreshed(old, markdown(results, path.name == "README.md" if brief is None else brief), path.name)
    if new != old:
        path.write_text(new, encoding="utf-8", errors="replace")
    return new != old


def compare(runs: list[dict[str, Any]]) -> str:
    """Records side by side as a Markdown table: results, size and cost, then the configuration entries that differ."""
    if not runs:
        raise ValueError("compare needs at least one run")
    shown: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("recipe", lambda r: str(r.get("recipe", NONE))),
        ("corpus", lambda r: spelling.corpus(str(r.get("corpus", NONE)), r.get("stands_for"))),
        ("seed", lambda r: str(r.get("seed", NONE))),
        (
            "result",
            lambda r: f"{spelling.raw(r.get('value'), 4)} {metric(str(r.get('metric', ''))).label} ({r.get('split', NONE)})",
        ),
        *(
            (f"… state {name}", lambda r, name=name: spelling.raw((r.get("protocols") or {}).get(name), 4))
            for name in spelling.protocols(runs)
        ),
        ("validation", lambda r: spelling.raw(r.get("valid"), 4)),
        ("paper", lambda r: spelling.raw(r.get("paper"), None)),
        ("parameters", lambda r: spelling.raw(r.get("parameters"), 0)),
        ("updates", lambda r: spelling.raw(r.get("updates"), 0)),
        ("epochs", lambda r: spelling.raw(r.get("epochs"), None)),
        ("time", lambda r: duration(r.get("seconds"))),
        ("runs sharing the device", lambda r: spelling.raw(r.get("shared"), 0)),
        ("characters per second", lambda r: spelling.raw(r.get("chars_per_second"), 0)),
        ("device", lambda r: str(r.get("device") or NONE)),
        ("precision", lambda r: str(r.get("precision") or NONE)),
        ("torch", lambda r: str(r.get("torch") or NONE)),
        ("commit", lambda r: str(r.get("commit") or NONE) + (", with uncommitted changes" if r.get("dirty") else "")),
    ]
    rows = [(Cell(name, "head"), *(Cell(show(run)) for run in runs)) for name, show in shown]
    changed = differences([run.get("config") or {} for run in runs])
    rows += [
        (Cell(f"config: {key}", "head"), *(Cell(value) for value in values)) for key, values in changed.items() if key != "seed"
    ]
    header = ("", *(str(run.get("run", NONE)) for run in runs))
    return markup.md_grid(header, rows) + "\n"
