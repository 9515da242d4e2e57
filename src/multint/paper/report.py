"""What did we get, beside what the paper got?

``build`` turns a results folder into one HTML page that needs nothing else to be read, and figures; ``markdown`` gives the same
tables for README and docs, ``refresh`` puts them between two markers. Everything is derived from the records: the same results give
the same bytes. Text from records is escaped in one place per format, where a table or the page's data is written.
"""

import base64
import hashlib
import html
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from multint.paper import figures
from multint.paper.numbers import BY_RECIPE, PANELS, ROWS, Metric, Row, metric, printed, verdict
from multint.paper.records import Group, Point, Records, Run, chosen, differences, gather, read

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NONE = "—"
SIGNS = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss"}
TRAIN_POINTS = 200  # of a training curve kept for the page, as means; validation points are kept as they are


@dataclass(frozen=True)
class ReportResult:
    """What ``build`` wrote, and what it has to say about the records."""

    page: Path
    figures: tuple[Path, ...]
    warnings: tuple[str, ...]
    runs: int
    rows: Mapping[str, int]  # rows of the authors' own by verdict: better, met, miss, not run


@dataclass(frozen=True)
class Standing:
    """A row, the runs that fill it, and runs of it that do not: stand-in corpora, other settings."""

    row: Row
    group: Group | None
    beside: tuple[Group, ...]


@dataclass(frozen=True)
class Cell:
    """Text of a cell and what it is: head (idle: nothing was run), unit, number, name, note, better, met, miss or none."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table for either format. ``note`` stands under the title; rows begin with their heading."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class View:
    """All that both formats show."""

    records: Records
    groups: tuple[Group, ...]
    standings: tuple[Standing, ...]
    warnings: tuple[str, ...]


# --- the public functions --------------------------------------------------------------------------------------------------------


def build(results: Path, out: Path) -> ReportResult:
    """Write the page ``out`` and ``figures/*.svg, *.png`` beside it from ``results/runs.jsonl`` and its curves."""
    page = out / "report.html" if out.is_dir() else out
    folder = page.parent / "figures"
    view = look(results)
    charts = _charts(view)
    drawn, told = _draw(view, charts)
    warnings = (*view.warnings, *told)
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in drawn.items():
        (folder / name).write_bytes(body)
    page.write_text(_page(view, charts, drawn, warnings), encoding="utf-8", errors="replace")
    return ReportResult(page, tuple(folder / name for name in drawn), warnings, len(view.records.runs), _tally(view.standings))


def markdown(results: Path, brief: bool = False) -> str:
    """The tables as Markdown; ``brief`` leaves out rows that were not run, the costs and the list of runs."""
    view = look(results)
    parts = [_summary(view)]
    if view.warnings and not brief:
        parts.append("**Warnings**\n\n" + "\n".join(f"- {_md(text)}" for text in view.warnings))
    parts += [_md_table(table) for table in tables(view, brief) if table.rows]
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
        ("corpus", lambda r: _corpus(str(r.get("corpus", NONE)), r.get("stands_for"))),
        ("seed", lambda r: str(r.get("seed", NONE))),
        ("result", lambda r: f"{_raw(r.get('value'), 4)} {metric(str(r.get('metric', ''))).label} ({r.get('split', NONE)})"),
        *((f"… state {name}", lambda r, name=name: _raw((r.get("protocols") or {}).get(name), 4)) for name in _protocols(runs)),
        ("validation", lambda r: _raw(r.get("valid"), 4)),
        ("paper", lambda r: _raw(r.get("paper"), None)),
        ("parameters", lambda r: _raw(r.get("parameters"), 0)),
        ("updates", lambda r: _raw(r.get("updates"), 0)),
        ("epochs", lambda r: _raw(r.get("epochs"), None)),
        ("time", lambda r: duration(r.get("seconds"))),
        ("characters per second", lambda r: _raw(r.get("chars_per_second"), 0)),
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
    return _md_grid(header, rows) + "\n"


def look(results: Path) -> View:
    """The records, gathered and set against the paper's rows."""
    records = read(results)
    groups, repeated = gather(records.runs)
    standings = tuple(_standing(row, groups) for row in ROWS)
    return View(records, tuple(groups), standings, (*records.warnings, *repeated, *_disagreements(records.runs)))


# --- runs against rows -----------------------------------------------------------------------------------------------------------


def row_of(run: Run) -> Row | None:
    """The row a run repeats. A recipe on a stand-in is named after it: text8-74M-milstm repeats text8-milstm."""
    home = run.recipe.replace(run.corpus, run.stands_for) if run.stands_for else run.recipe
    return BY_RECIPE.get((run.recipe, run.metric)) or BY_RECIPE.get((home, run.metric))


def _fills(row: Row, run: Run) -> bool:
    """Only the paper's corpus and split, by the recipe as it stands, fill a row; everything else stands beside it.

    The rate may have been chosen from a grid, as the paper did.
    """
    panel = PANELS[row.panel]
    return run.stands_for is None and run.corpus == panel.corpus and run.split == panel.split and _as_written(run)


def _as_written(run: Run) -> bool:
    return all(change.startswith("schedule.lr=") for change in run.changed)


def _standing(row: Row, groups: Sequence[Group]) -> Standing:
    mine = [group for group in groups if row.recipe and row_of(group.one) is row]
    pick = chosen([group for group in mine if _fills(row, group.one)])
    return Standing(row, pick, tuple(group for group in mine if group is not pick))


def _disagreements(runs: Iterable[Run]) -> list[str]:
    """The table in numbers.py is what is shown; a record that says otherwise is named."""
    found = []
    for run in runs:
        row = row_of(run)
        if row is not None and row.value is not None and run.paper is not None and _fills(row, run) and run.paper != row.value:
            found.append(f"{run.run}: says the paper has {run.paper}; its row in the paper says {printed(row)}")
    return found


def _tally(standings: Iterable[Standing]) -> dict[str, int]:
    count = {"better": 0, "met": 0, "miss": 0, "not run": 0}
    for s in standings:
        if s.row.recipe and s.row.value is not None and not s.row.repeats:
            count[verdict(s.row, s.group.mean) if s.group else "not run"] += 1
    return count


def additive(recipe: str) -> str | None:
    """The recipe's additive twin by name, or None if it is not an MI recipe.

    >>> additive("charlm/ptb-linmirnn"), additive("charlm/text8-milstm-b1"), additive("charlm/text8-lstm")
    ('charlm/ptb-linrnn', 'charlm/text8-lstm-b1', None)
    """
    twin = re.sub(r"(?<=[-/])(lin)?mi(rnn|lstm|gru)(?=-|$)", r"\1\2", recipe)
    return twin if twin != recipe else None


# --- tables ----------------------------------------------------------------------------------------------------------------------


def tables(view: View, brief: bool = False) -> list[Table]:
    """All tables of the report; ``brief``: only rows that were run, and neither cost nor the list of runs."""
    found = [_panel_table(view, panel, brief) for panel in PANELS]
    of_rows = [group for group in view.groups if row_of(group.one)]
    others = [group for group in view.groups if not row_of(group.one)]
    note = (
        "The paper's claim is the difference on one corpus. Of several settings, each side has the one its validation result chose."
    )
    found.append(_twin_table("MI and its additive twin", note, of_rows, alone=False))
    found.append(_twin_table("Other runs", "Runs that belong to no row of the paper, twins side by side.", others, alone=True))
    return found if brief else [*found, _cost_table(view.groups), _run_table(view.records.runs)]


ROW_HEADER = (
    "Model",
    "Metric",
    "Paper",
    "Ours",
    "Gap",
    "Verdict",
    "Seeds",
    "Best to worst",
    "Parameters",
    "Time per run",
    "Note",
)


BRIEF_HEADER = ("Model", "Metric", "Paper", "Ours", "Gap", "Verdict", "Seeds", "Note")


def _panel_table(view: View, key: str, brief: bool) -> Table:
    panel = PANELS[key]
    rows: list[tuple[Cell, ...]] = []
    for s in view.standings:
        if s.row.panel != key:
            continue
        body = _std_row(s.row, view) if s.row.over else _row(s)
        if not brief or s.group or s.beside or (s.row.over and body[3].kind != "none"):
            rows += [body, *(_beside(s, group) for group in s.beside)]
    columns = [i for i, name in enumerate(ROW_HEADER) if not brief or name in BRIEF_HEADER]
    cut = tuple(tuple(row[i] for i in columns) for row in rows)
    note = f"{panel.place}. Corpus {panel.corpus}, {panel.split} split."
    return Table(f"Table {panel.table}: {panel.title}", note, tuple(ROW_HEADER[i] for i in columns), cut)


def _row(s: Standing) -> tuple[Cell, ...]:
    row, how = s.row, metric(s.row.metric)
    head = Cell(row.model, "head" if s.group else "head idle")
    first = (head, Cell(_arrow(how), "unit"), Cell(printed(row), "number"))
    if row.cited:
        return (*first, Cell("cited", "none"), *[Cell(NONE, "none")] * 6, Cell(row.note, "note"))
    if s.group is None:
        return (
            *first,
            Cell("not run", "none"),
            Cell(NONE, "none"),
            Cell("not run", "none"),
            *[Cell(NONE, "none")] * 4,
            Cell(row.note, "note"),
        )
    word = verdict(row, s.group.mean)
    gap = _gap(s.group.mean - row.value, how.digits + 1) if row.value is not None else NONE
    judged = Cell(SIGNS[word], word) if word else Cell("no number in the paper", "none")
    return (*first, Cell(ours(s.group), "number"), Cell(gap, "number"), judged, *_facts(s.group), Cell(row.note, "note"))


def _beside(s: Standing, group: Group) -> tuple[Cell, ...]:
    """A line under a row for runs that must not be read as filling it."""
    label, why = _why_beside(s, group)
    how = metric(group.one.metric)
    lead = (
        Cell(f"↳ {s.row.model}, {label}", "head beside"),
        Cell(_arrow(how), "unit"),
        Cell(NONE, "none"),
        Cell(ours(group), "number"),
    )
    return (*lead, Cell(NONE, "none"), Cell(label, "none"), *_facts(group), Cell(why, "note"))


def _why_beside(s: Standing, group: Group) -> tuple[str, str]:
    run, panel = group.one, PANELS[s.row.panel]
    if run.stands_for is not None:
        return "stand-in", f"corpus {run.corpus}, a stand-in for {run.stands_for}; not comparable with the paper's number"
    if run.corpus != panel.corpus:
        return "other corpus", f"corpus {run.corpus}, not {panel.corpus}"
    if run.split != panel.split:
        return "other split", f"split {run.split}, not {panel.split}"
    if not _as_written(run):
        return "changed", f"the recipe with {', '.join(run.changed)}"
    assert s.group is not None
    changed = differences([s.group.one.config, run.config])
    words = ", ".join(f"{key} {values[1]} (chosen: {values[0]})" for key, values in changed.items() if key != "seed")
    return "other setting", f"{words or 'configuration differs'}; not chosen by validation"


def _std_row(row: Row, view: View) -> tuple[Cell, ...]:
    """The spread over r_W: both conventions, because the paper's two numbers do not follow one."""
    means = [s.group.mean for s in view.standings if s.row.recipe in row.over and s.group]
    head = Cell(row.model, "head" if len(means) == len(row.over) else "head idle")
    first = (head, Cell(metric(row.metric).label, "unit"), Cell(printed(row), "number"))
    if len(means) < len(row.over):
        some = f"not run ({len(means)} of {len(row.over)})" if means else "not run"
        return (
            *first,
            Cell(some, "none"),
            Cell(NONE, "none"),
            Cell("not run", "none"),
            *[Cell(NONE, "none")] * 4,
            Cell(row.note, "note"),
        )
    both = (
        f"{statistics.pstdev(means):.4f} (population), {statistics.stdev(means):.4f} (sample)"
        if all(map(math.isfinite, means))
        else "diverged"
    )
    return (
        *first,
        Cell(both, "number long"),
        Cell(NONE, "none"),
        Cell("see note", "none"),
        *[Cell(NONE, "none")] * 4,
        Cell(row.note, "note"),
    )


def _facts(group: Group) -> tuple[Cell, ...]:
    digits = metric(group.one.metric).digits + 1
    spread = f"{_raw(group.best, digits)} to {_raw(group.worst, digits)}" if len(group.runs) > 1 else NONE
    return (
        Cell(_seeds(group), "number"),
        Cell(spread, "number"),
        Cell(_each(group, "parameters", lambda x: _raw(x, 0)), "number"),
        Cell(duration(group.average("seconds")), "number"),
    )


def _twin_table(title: str, note: str, groups: Sequence[Group], alone: bool) -> Table:
    """One line per MI recipe with its twin; with ``alone``, recipes without a twin get a line too."""
    header = (
        "Corpus",
        "Metric",
        "Additive",
        "Result",
        "MI",
        "Result",
        "MI − additive",
        "Paper's difference",
        "Verdict",
        "Parameters",
    )
    picks: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        run = group.one
        picks.setdefault((run.recipe, run.corpus, str(run.stands_for), run.metric, run.split), []).append(group)
    best = {key: pick for key, settings in picks.items() if (pick := chosen(settings))}
    twins = {key: (str(additive(key[0])), *key[1:]) for key in best if additive(key[0])}
    taken = {twin for twin in twins.values() if twin in best}
    rows = []
    for key, group in best.items():
        if key in twins and twins[key] in best:
            rows.append(_twin_row(best[twins[key]], group))
        elif alone and key not in taken:
            rows.append(_twin_row(None, group) if key in twins else _twin_row(group, None))
    return Table(title, note, header, tuple(rows))


def _twin_row(plain: Group | None, mi: Group | None) -> tuple[Cell, ...]:
    run = (mi or plain or Group(())).one
    how = metric(run.metric)
    sides = [
        part
        for side in (plain, mi)
        for part in ((Cell(side.one.recipe, "name"), Cell(ours(side), "number")) if side else _absent())
    ]
    lead = (Cell(_corpus(run.corpus, run.stands_for), "head"), Cell(_arrow(how), "unit"), *sides)
    size = "; ".join(_each(side, "parameters", lambda x: _raw(x, 0)) for side in (plain, mi) if side)
    if plain is None or mi is None:
        return (*lead, Cell(NONE, "none"), Cell(NONE, "none"), Cell("no twin run", "none"), Cell(size, "number long"))
    gap = mi.mean - plain.mean
    spread = max(side.std or 0.0 for side in (plain, mi))  # a difference inside the spread over seeds is none
    flat = abs(gap) < max(spread, 10 ** -(how.digits + 1) / 2)
    word = (
        Cell("= level", "none") if flat else Cell("✓ MI ahead", "better") if (gap < 0) == how.lower else Cell("✗ MI behind", "miss")
    )
    if not math.isfinite(gap):
        word = Cell("✗ diverged", "miss")
    before = [row_of(side.one) for side in (plain, mi)]
    printed_gap = NONE
    if all(row is not None and row.value is not None and _fills(row, run) for row in before):
        printed_gap = _gap(before[1].value - before[0].value, how.digits)  # type: ignore[union-attr, operator]
    return (*lead, Cell(_gap(gap, how.digits + 1), "number"), Cell(printed_gap, "number"), word, Cell(size, "number long"))


def _absent() -> tuple[Cell, Cell]:
    return Cell("not run", "none"), Cell(NONE, "none")


def _cost_table(groups: Sequence[Group]) -> Table:
    header = (
        "Recipe",
        "Corpus",
        "Runs",
        "Updates",
        "Parameters",
        "Time per run",
        "Time in all",
        "Characters/s",
        "Device",
        "Precision",
        "torch",
    )
    rows = []
    for group in groups:
        total = group.average("seconds")
        rows.append(
            (
                Cell(group.one.recipe, "head"),
                Cell(_corpus(group.one.corpus, group.one.stands_for), "name"),
                Cell(str(len(group.runs)), "number"),
                Cell(_raw(group.average("updates"), 0), "number"),
                Cell(_each(group, "parameters", lambda x: _raw(x, 0)), "number"),
                Cell(duration(total), "number"),
                Cell(duration(total * len(group.runs) if total is not None else None), "number"),
                Cell(_raw(group.average("chars_per_second"), 0), "number"),
                *(Cell("; ".join(group.shared(name)) or NONE, "name") for name in ("device", "precision", "torch")),
            )
        )
    return Table("Hardware and cost", "Wall time of training, means over seeds.", header, tuple(rows))


def _run_table(runs: Sequence[Run]) -> Table:
    kinds = _protocols([{"protocols": run.protocols} for run in runs])
    header = ("Run", "Corpus", "Seed", "Result", *(f"State {kind}" for kind in kinds), "Validation")
    header += ("Parameters", "Updates", "Epochs", "Time", "Sittings", "Device", "Commit", "Data")
    rows = []
    for run in runs:
        digits = metric(run.metric).digits + 1
        rows.append(
            (
                Cell(run.run, "head"),
                Cell(_corpus(run.corpus, run.stands_for), "name"),
                Cell(NONE if run.seed is None else str(run.seed), "number"),
                Cell(f"{_raw(run.value, digits)} {metric(run.metric).label} ({run.split})", "number"),
                *(Cell(_raw(run.protocols.get(kind), digits), "number") for kind in kinds),
                Cell(_raw(run.valid, digits), "number"),
                Cell(_raw(run.parameters, 0), "number"),
                Cell(_raw(run.updates, 0), "number"),
                Cell(_raw(run.epochs, None), "number"),
                Cell(duration(run.seconds), "number"),
                Cell(str(len(run.history) or NONE), "number"),
                Cell(run.device or NONE, "name"),
                Cell((run.commit or NONE) + (" ⚠ uncommitted changes" if run.dirty else ""), "name"),
                Cell((run.data or NONE)[:19]),
            )
        )
    note = "Every record. State carried: along parallel streams, each from zero; state reset: it starts from zero at every segment."
    return Table("All runs", note, header, tuple(rows))


# --- words for numbers -----------------------------------------------------------------------------------------------------------


def ours(group: Group) -> str:
    """Mean ± sample standard deviation over seeds, one decimal more than the paper prints."""
    bad = sum(not math.isfinite(value) for value in group.values)
    if bad:
        return f"diverged ({bad} of {len(group.runs)})"
    digits = metric(group.one.metric).digits + 1
    return f"{group.mean:.{digits}f}" + (f" ± {group.std:.{digits}f}" if group.std is not None else "")


def duration(seconds: Any) -> str:
    """Seconds in the unit a reader would use.

    >>> duration(61.2), duration(754), duration(15000), duration(None)
    ('61 s', '12.6 min', '4.2 h', '—')
    """
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        return NONE
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _raw(value: Any, digits: int | None) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NONE
    if not math.isfinite(value):
        return "diverged"
    return f"{value:g}" if digits is None else f"{value:,.{digits}f}"


def _gap(gap: float, digits: int) -> str:
    return f"{gap:+.{digits}f}".replace("-", "−") if math.isfinite(gap) else NONE


def _arrow(how: Metric) -> str:
    return f"{how.label} {'↓' if how.lower else '↑'}"


def _seeds(group: Group) -> str:
    seeds = ", ".join(str(run.seed) for run in group.runs if run.seed is not None)
    return f"{len(group.runs)} ({seeds})" if seeds else str(len(group.runs))


def _each(group: Group, name: str, show: Callable[[Any], str]) -> str:
    found = dict.fromkeys(value for run in group.runs if (value := getattr(run, name)) is not None)
    return "; ".join(show(value) for value in found) or NONE


def _corpus(corpus: str, stands_for: Any) -> str:
    return f"{corpus} (stand-in for {stands_for})" if stands_for else corpus


def _protocols(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.get("protocols") or {}))


def _summary(view: View) -> str:
    tally = _tally(view.standings)
    run = sum(tally.values()) - tally["not run"]
    return (
        f"Of the {sum(tally.values())} numbers the paper reports as its own, {run} {'has' if run == 1 else 'have'} been run here: "
        f"{tally['better']} better, {tally['met']} met at the printed precision, {tally['miss']} missed. "
        "Ours is the mean ± sample standard deviation over seeds; the gap is ours minus the paper's."
    )


# --- Markdown --------------------------------------------------------------------------------------------------------------------


def _md(text: str) -> str:
    """Text that Markdown shows as it is, inside a table too."""
    safe = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", safe)


def _md_grid(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    rows = list(rows)
    align = ["--:" if all(row[i].kind.startswith(("number", "none")) for row in rows) else "---" for i in range(len(header))]
    lines = [[_md(text) for text in header], align, *([_md(cell.text) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _md_table(table: Table) -> str:
    return f"### {_md(table.title)}\n\n{_md(table.note)}\n\n{_md_grid(table.header, table.rows)}"


# --- the page --------------------------------------------------------------------------------------------------------------------


def _page(view: View, charts: Sequence[Mapping[str, Any]], drawn: Mapping[str, bytes], warnings: Sequence[str]) -> str:
    template = (files("multint.paper") / "report.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    found = tables(view)
    parts = {
        # only the page's own script may run, whatever a record says
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "summary": html.escape(_summary(view)),
        "tiles": _tiles(_tally(view.standings)),
        "warnings": _warnings(warnings),
        "overview": _overview(drawn),
        "contents": "".join(f'<li><a href="#{_slug(t.title)}">{html.escape(t.title)}</a></li>' for t in found),
        "tables": "".join(_html_table(t) for t in found[:-2]),
        "costs": "".join(_html_table(t) for t in found[-2:]),
        "charts": "".join(_chart_box(i, chart) for i, chart in enumerate(charts)) or "<p>No run has left a curve yet.</p>",
        "data": _script_json(charts),
    }
    return re.sub(r"@@(\w+)@@", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _tiles(tally: Mapping[str, int]) -> str:
    names = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss", "not run": "– not run"}
    return "".join(f'<li class="{_slug(key)}"><b>{tally[key]}</b> {name}</li>' for key, name in names.items())


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in warnings)
    return f'<section id="warnings" class="warnings"><h2>⚠ Warnings ({len(warnings)})</h2><ul>{items}</ul></section>'


def _overview(drawn: Mapping[str, bytes]) -> str:
    if "paper.svg" not in drawn:
        return ""
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(drawn[name]).decode()}" for name in ("paper.svg", "paper-dark.svg")
    )
    alt = "Each row's number in the paper and ours; the same numbers stand in the tables below."
    return (
        f'<figure class="overview box" role="region" tabindex="0" aria-label="Ours against the paper"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{alt}"></picture></figure>'
    )


def _html_table(table: Table) -> str:
    slug = _slug(table.title)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    body = "".join(_html_row(row) for row in table.rows)
    inner = (
        f'<div class="box" role="region" tabindex="0" aria-labelledby="{slug}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        if table.rows
        else "<p>Nothing has been run.</p>"
    )
    return f'<section><h2 id="{slug}">{html.escape(table.title)}</h2><p class="note">{html.escape(table.note)}</p>{inner}</section>'


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


# --- curves ----------------------------------------------------------------------------------------------------------------------


def _charts(view: View) -> list[dict[str, Any]]:
    """One chart per corpus and metric, as the page's script and the figures take it."""
    charts: dict[tuple[str, str], dict[str, Any]] = {}
    for run in view.records.runs:
        points = view.records.curves.get(run.run, ())
        if not any(p.valid is not None or p.train is not None for p in points):
            continue
        unit = metric(run.metric).label
        corpus = _corpus(run.corpus, run.stands_for)
        chart = charts.setdefault(
            (corpus, unit), {"title": f"{corpus}: {unit} over training", "name": corpus, "unit": unit, "groups": {}, "marks": {}}
        )
        chart["groups"].setdefault(run.recipe, []).append({"run": run.run, "seed": run.seed, **_series(points)})
        row = row_of(run)
        if row is not None and row.value is not None and _fills(row, run):
            chart["marks"].setdefault((row.value, printed(row)), []).append(row.model)
    for chart in charts.values():
        chart["groups"] = [{"recipe": recipe, "runs": runs} for recipe, runs in chart["groups"].items()]
        levels = sorted(chart["marks"].items())
        chart["marks"] = [
            {"value": value, "text": text, "label": ", ".join(dict.fromkeys(models))} for (value, text), models in levels
        ]
    return list(charts.values())


def _series(points: Sequence[Point]) -> dict[str, list[list[float | None]]]:
    """[update, epoch, seconds, result] of validation as measured, of training averaged down to a few hundred points."""
    valid = [[p.update, p.epoch, p.seconds, p.valid] for p in points if p.valid is not None]
    train = [p for p in points if p.train is not None]
    size = max(1, -(-len(train) // TRAIN_POINTS))
    bins = [train[i : i + size] for i in range(0, len(train), size)]
    means = [[b[-1].update, b[-1].epoch, b[-1].seconds, round(sum(p.train or 0.0 for p in b) / len(b), 5)] for b in bins]
    return {"valid": valid, "train": means}


def _draw(view: View, charts: Sequence[Mapping[str, Any]]) -> tuple[dict[str, bytes], list[str]]:
    """The figures by file name; without matplotlib none, and a warning says so."""
    drawn: dict[str, bytes] = {}
    rows = _pairs(view.standings)
    try:
        if rows:
            drawn["paper-dark.svg"] = figures.pairs(rows, dark=True)
        for form in ("svg", "png"):
            if rows:
                drawn[f"paper.{form}"] = figures.pairs(rows, form)
            for chart in charts:
                lines, marks = _lines(chart)
                if lines:
                    drawn[f"curves-{_slug(chart['name'])}-{_slug(chart['unit'])}.{form}"] = figures.curves(
                        chart["title"], chart["unit"], lines, marks, form
                    )
    except ModuleNotFoundError as error:
        return {}, [f"figures left out: {error.name} is not installed; pip install 'multint[paper]'"]
    return drawn, []


def _pairs(standings: Iterable[Standing]) -> list[figures.Pair]:
    found = []
    for s in standings:
        if s.group is None or s.row.value is None or not math.isfinite(s.group.mean):
            continue
        label = f"{PANELS[s.row.panel].short} {s.row.model}".strip()
        values = s.group.values
        word = verdict(s.row, s.group.mean)
        found.append(figures.Pair(label, metric(s.row.metric).label, s.row.value, s.group.mean, min(values), max(values), word))
    return found


def _lines(chart: Mapping[str, Any]) -> tuple[list[figures.Line], list[figures.Mark]]:
    lines = [
        figures.Line(group["recipe"], [p[0] for p in run["valid"]], [p[3] for p in run["valid"]])
        for group in chart["groups"]
        for run in group["runs"]
        if run["valid"]
    ]
    return lines, [figures.Mark(mark["text"], mark["value"]) for mark in chart["marks"]]
