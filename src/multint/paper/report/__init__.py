"""What did we get, beside what the paper got?

``build`` turns a results folder into one HTML page that needs nothing else to be read, and figures; ``markdown`` gives the same
tables for README and docs, ``refresh`` puts them between two markers. Everything is derived from the records: the same results give
the same bytes. Text from records is escaped in one place per format, where a table or the page's data is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multint.paper.record import Record, changed_settings
from multint.paper.records import Group, settings
from multint.paper.report import against, claims, drawing, markup, spelling, tables
from multint.paper.report.against import look
from multint.paper.report.focus import Focus
from multint.paper.report.markup import NONE, Cell
from multint.paper.report.page import html_page
from multint.paper.report.spelling import raw

__all__ = ["BEGIN", "END", "Focus", "ReportResult", "build", "compare", "markdown", "refresh", "refreshed"]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


@dataclass(frozen=True)
class ReportResult:
    """What ``build`` wrote, and what it has to say about the records."""

    page: Path
    figures: tuple[Path, ...]
    warnings: tuple[str, ...]
    runs: int
    rows: Mapping[str, Mapping[str, int]]  # the authors' own rows, MI and additive, by verdict


def build(results: Path, out: Path, focus: Focus | Sequence[str] = ()) -> ReportResult:
    """Write the page ``out`` and ``figures/*.svg, *.png`` beside it from ``results/runs.jsonl`` and its curves.

    With ``focus`` the page starts with those runs; without it, with the paper's claims.
    """
    page = out / "report.html" if out.is_dir() else out
    folder = page.parent / "figures"
    view = look(results)
    sections = claims.sections(view)
    charts = drawing.charts(view)
    drawn, without = drawing.draw(view, charts, sections)
    warnings = (*view.warnings, *(text for one in sections for text in one.warnings), *without)
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in drawn.items():
        (folder / name).write_bytes(body)
    shown = focus if isinstance(focus, Focus) else Focus(focus)
    page.write_text(html_page(view, sections, charts, drawn, warnings, shown), encoding="utf-8", errors="replace")
    return ReportResult(page, tuple(folder / name for name in drawn), warnings, len(view.records.runs), against.tally(view))


def markdown(results: Path, brief: bool = False) -> str:
    """The tables as Markdown; ``brief``: the claims with their verdicts, and no other table."""
    view = look(results)
    sections = claims.sections(view)
    parts = [tables.summary(view), markup.md_table(claims.overview(sections))]
    if brief:
        return "\n\n".join(parts) + "\n"
    warnings = (*view.warnings, *(text for one in sections for text in one.warnings))
    if warnings:
        parts.append("**Warnings**\n\n" + "\n".join(f"- {markup.md(text)}" for text in warnings))
    parts += [markup.md_table(table) for table in tables.panel_tables(view, sections)]
    parts += [markup.md_table(table) for table in tables.twin_tables(view) if table.rows]
    for section in sections:
        parts.append(f"### {markup.md(section.title)}\n\n{markup.md(section.note)}")
        parts += [markup.md_table(table, "####") for table in (claims.details(section), *section.tables) if table.rows]
    parts += [markup.md_table(table) for table in tables.account_tables(view, sections) if table.rows]
    return "\n\n".join(parts) + "\n"


def refreshed(text: str, body: str, name: str) -> str:
    """``text`` with ``body`` between the markers; ``name`` is the file's, for the error when a marker is missing."""
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise ValueError(f"{name} must contain the marker {marker} once, it is there {text.count(marker)} times")
    head, _, rest = text.partition(BEGIN)
    if END not in rest:
        raise ValueError(f"{name} has the marker {END} before {BEGIN}; swap them")
    return f"{head}{BEGIN}\n\n{body.strip()}\n\n{END}{rest.partition(END)[2]}"


def refresh(path: Path, results: Path) -> bool:
    """Put the tables of ``results`` between the markers in ``path``, in brief if it is a README; True if the file changed."""
    old = path.read_text(encoding="utf-8")
    new = refreshed(old, markdown(results, brief=path.name == "README.md"), path.name)
    if new != old:
        path.write_text(new, encoding="utf-8", errors="replace")
    return new != old


def compare(runs: Sequence[Record]) -> str:
    """Records side by side as a Markdown table: results, size and cost, then the settings that differ."""
    if not runs:
        raise ValueError("compare needs at least one run")
    results = [_results(run) for run in runs]

    def facts(*titles: str) -> dict[str, list[str]]:
        return {title.lower(): [tables.FACTS[title].text(Group((run,))) for run in runs] for title in titles}

    rows = {
        "recipe": [run.recipe for run in runs],
        **facts("Data"),
        "seed": [NONE if run.seed is None else str(run.seed) for run in runs],
        **{name: [one.get(name, NONE) for one in results] for name in dict.fromkeys(name for one in results for name in one)},
        "validation": [spelling.validation(run) for run in runs],
        **facts("Parameters", "Updates", "Epochs", "Time", "of it scoring"),
        "runs sharing the device": [raw(run.shared, 0) for run in runs],
        **facts("Throughput", "Device", "Precision", "torch"),
        "commit": [(run.commit or NONE) + (", with uncommitted changes" if run.dirty else "") for run in runs],
    }
    rows |= {f"setting: {key}": values for key, values in changed_settings([settings(run) for run in runs]).items()}
    cells = [(Cell(name, "head"), *map(Cell, values)) for name, values in rows.items()]
    return markup.md_grid(("", *(run.run for run in runs)), cells) + "\n"


def _results(run: Record) -> dict[str, str]:
    """The results of a run by what they are."""
    several = len({(one.dataset, one.split) for one in run.results}) > 1
    return {
        ", ".join(filter(None, (f"{one.metric.unit} {one.split}", one.dataset if several else "", one.protocol))): raw(one.value, 4)
        for one in run.results
    }
