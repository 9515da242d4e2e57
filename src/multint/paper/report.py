"""What did we get, beside what the paper got?

``build`` turns a results folder into one HTML page that needs nothing else to be read, and figures; ``markdown`` gives the same
tables for README and docs, ``refresh`` puts them between two markers. Everything is derived from the records: the same results give
the same bytes. Text from records is escaped in one place per format, where a table or the page's data is written.
"""

import base64
import hashlib
import html
import itertools
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
from multint.paper.numbers import (
    ALPHAS,
    APART,
    BETAS,
    BY_RECIPE,
    CLAIMS,
    FAR,
    GRADIENT,
    PANELS,
    PTB,
    ROWS,
    SCALES,
    STEPS,
    VARIANTS,
    Claim,
    Metric,
    Panel,
    Row,
    grid,
    metric,
    printed,
    verdict,
)
from multint.paper.records import Flow, Group, Measured, Point, Records, Run, chosen, differences, gather, read

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NONE = "—"
SIGNS = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss"}
EXPLORATORY = "§3.1 Exploratory experiments"
AVERAGES = {"mean_log": "mean of the log", "log_mean": "log of the mean"}  # which of the two the paper took, it does not say
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
class Finding:
    """What was measured of a claim: in words, whether it holds (None: something is lacking), and the seeds of each side."""

    text: str
    holds: bool | None = None
    seeds: tuple[int, ...] = ()


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
    parts += [_md_table(table) for table in paper_tables(view, brief) if table.rows]
    if not brief:
        parts.append(f"### {EXPLORATORY}\n\n{_md(_about_exploratory(view))}")
        parts += [_md_table(table, "####") for table in exploratory_tables(view) if table.rows]
        parts += [_md_table(table) for table in account_tables(view) if table.rows]
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
        ("runs sharing the device", lambda r: _raw(r.get("shared"), 0)),
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


def rows_of(run: Run) -> tuple[Row, ...]:
    """The rows a run repeats. On a stand-in or a variant a recipe is named after it: text8-74M-milstm repeats text8-milstm."""
    home = run.recipe
    if run.stands_for:
        home = home.replace(run.corpus, run.stands_for)
    elif run.corpus in VARIANTS:
        home = home.replace(run.corpus, VARIANTS[run.corpus].named)
    return BY_RECIPE.get((run.recipe, run.metric)) or BY_RECIPE.get((home, run.metric), ())


def _fills(panel: Panel, run: Run) -> bool:
    """Only the paper's corpus and split, by the recipe as it stands, fill a row; everything else stands beside it.

    The rate may have been chosen from a grid, as the paper did.
    """
    return run.stands_for is None and run.corpus == panel.corpus and run.split == panel.split and _as_written(run)


def _as_written(run: Run) -> bool:
    return all(change.startswith("schedule.lr=") for change in run.changed)


def _standing(row: Row, groups: Sequence[Group]) -> Standing:
    mine = [group for group in groups if row in rows_of(group.one)]
    pick = chosen([group for group in mine if _fills(PANELS[row.panel], group.one)])
    return Standing(row, pick, tuple(group for group in mine if group is not pick))


def _disagreements(runs: Iterable[Run]) -> list[str]:
    """The table in numbers.py is what is shown; a record that says otherwise is named."""
    found = (
        f"{run.run}: says the paper has {run.paper}; its row in the paper says {printed(row)}"
        for run in runs
        for row in rows_of(run)
        if row.value is not None and run.paper is not None and _fills(PANELS[row.panel], run) and run.paper != row.value
    )
    return list(dict.fromkeys(found))


def _tally(standings: Iterable[Standing]) -> dict[str, int]:
    count = {"better": 0, "met": 0, "miss": 0, "not run": 0}
    for s in standings:
        if s.row.recipe and s.row.value is not None and not s.row.repeats:
            count[verdict(s.row, s.group.mean) if s.group else "not run"] += 1
    return count


def additive(recipe: str) -> str | None:
    """The recipe's additive twin by name, or None if it is not an MI recipe.

    >>> additive("exploratory/ptb-linmirnn"), additive("charlm/text8-milstm-b1"), additive("charlm/text8-lstm")
    ('exploratory/ptb-linrnn', 'charlm/text8-lstm-b1', None)
    """
    twin = re.sub(r"(?<=[-/])(lin)?mi(rnn|lstm|gru)(?=-|$)", r"\1\2", recipe)
    return twin if twin != recipe else None


# --- tables ----------------------------------------------------------------------------------------------------------------------


def paper_tables(view: View, brief: bool = False) -> list[Table]:
    """Tables 1 and 2 panel by panel, MI beside its twins, and runs outside the paper; ``brief``: only what was run as written."""
    found = [_panel_table(view, panel, brief) for panel in PANELS]
    points = [_picked(view, grid(alpha, beta)) for alpha in ALPHAS for beta in BETAS]  # they have a table of their own
    of_rows = [group for group in view.groups if rows_of(group.one) and _as_written(group.one)]  # else one side may be a trial
    others = [group for group in view.groups if not rows_of(group.one) and not any(group is point for point in points)]
    note = (
        "The paper's claim is the difference on one corpus. Of several settings, each side has the one its validation result chose."
    )
    found.append(_twin_table("MI and its additive twin", note, of_rows, alone=False))
    found.append(_twin_table("Other runs", "Runs that belong to no row of the paper, twins side by side.", others, alone=True))
    return found


def account_tables(view: View) -> list[Table]:
    """What it cost, and every record."""
    return [_cost_table(view), _run_table(view.records.runs)]


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
    "Wall time",
    "Device time",
    "Note",
)


BRIEF_HEADER = ("Model", "Metric", "Paper", "Ours", "Gap", "Verdict", "Seeds", "Note")


def _panel_table(view: View, key: str, brief: bool) -> Table:
    panel = PANELS[key]
    rows: list[tuple[Cell, ...]] = []
    for s in view.standings:
        if s.row.panel != key:
            continue
        if s.row.over:
            rows += [row for row in _std_rows(s.row, view) if not brief or row[3].kind != "none"]
        elif (beside := _results(s) if brief else s.beside) or s.group or not brief:
            rows += [_row(s), *(_beside(s, group) for group in beside)]
    columns = [i for i, name in enumerate(ROW_HEADER) if not brief or name in BRIEF_HEADER]
    cut = tuple(tuple(row[i] for i in columns) for row in rows)
    runs = [run for run in view.records.runs if any(row.panel == key for row in rows_of(run))]
    cost = f" In all: {spent(runs)}. Times in rows are means of one run." if runs else ""
    note = f"{panel.place}. Corpus {panel.corpus}, {panel.split} split.{cost}"
    return Table(f"Table {panel.table}: {panel.title}", note, tuple(ROW_HEADER[i] for i in columns), cut)


def _row(s: Standing) -> tuple[Cell, ...]:
    row, how = s.row, metric(s.row.metric)
    head = Cell(row.model, "head" if s.group else "head idle")
    first = (head, Cell(_arrow(how), "unit"), Cell(printed(row), "number"))
    if row.cited:
        return (*first, Cell("cited", "none"), *[Cell(NONE, "none")] * 7, Cell(row.note, "note"))
    if s.group is None:
        return (*first, *_no_result("not run"), Cell(row.note, "note"))
    word = verdict(row, s.group.mean)
    gap = _gap(s.group.mean - row.value, how.digits + 1) if row.value is not None else NONE
    judged = Cell(SIGNS[word], word) if word else Cell("no number in the paper", "none")
    return (*first, Cell(ours(s.group), "number"), Cell(gap, "number"), judged, *_facts(s.group), Cell(row.note, "note"))


def _results(s: Standing) -> tuple[Group, ...]:
    """Of what stands beside a row, what is a result of its own: on each other corpus, the recipe as it stands."""
    corpora = dict.fromkeys(group.one.corpus for group in s.beside if group.one.corpus != PANELS[s.row.panel].corpus)
    picks = (chosen([g for g in s.beside if g.one.corpus == corpus and _as_written(g.one)]) for corpus in corpora)
    return tuple(pick for pick in picks if pick)


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
        why = f"corpus {run.corpus}, a stand-in for {run.stands_for}; not comparable with the paper's number"
        return "stand-in", "; ".join([why, *_changes(run)])
    if run.corpus in VARIANTS and VARIANTS[run.corpus].of == panel.corpus and run.split == panel.split:
        return VARIANTS[run.corpus].label, "; ".join([_about_variant(group), *_changes(run)])
    if run.corpus != panel.corpus:
        return "other corpus", f"corpus {run.corpus}, not {panel.corpus}"
    if run.split != panel.split:
        return "other split", f"split {run.split}, not {panel.split}"
    if not _as_written(run):
        return "changed", "; ".join(_changes(run))
    assert s.group is not None
    changed = differences([s.group.one.config, run.config])
    words = ", ".join(f"{key} {values[1]} (chosen: {values[0]})" for key, values in changed.items() if key != "seed")
    return "other setting", f"{words or 'configuration differs'}; not chosen by validation"


def _changes(run: Run) -> list[str]:
    return [f"the recipe with {', '.join(map(str, run.changed))}"] if run.changed else []


def _about_variant(group: Group) -> str:
    run, variant, how = group.one, VARIANTS[group.one.corpus], metric(group.one.metric)
    same = f"; ours over that: {group.mean / variant.factor:.{how.digits + 1}f}" if math.isfinite(group.mean) else ""
    return (
        f"corpus {run.corpus}, the other public spelling of the same text: for the same total bits its {how.label} is about "
        f"{variant.factor} times that on {variant.of}{same}"
    )


def _std_rows(row: Row, view: View) -> list[tuple[Cell, ...]]:
    """The spread over r_W: both conventions, because the paper's two numbers do not follow one. A variant has its own line."""
    mine = [s for s in view.standings if s.row.panel == row.panel and s.row.recipe in row.over]
    means = [s.group.mean for s in mine if s.group]
    head = Cell(row.model, "head" if len(means) == len(row.over) else "head idle")
    first = (head, Cell(metric(row.metric).label, "unit"), Cell(printed(row), "number"))
    if len(means) == len(row.over):
        rows = [(*first, *_no_result(stds(means), "see note", "number long"), Cell(row.note, "note"))]
    else:
        rows = [(*first, *_no_result(f"not run ({len(means)} of {len(row.over)})" if means else "not run"), Cell(row.note, "note"))]
    for corpus, variant in VARIANTS.items():
        picks = [chosen([g for g in s.beside if g.one.corpus == corpus and _as_written(g.one)]) for s in mine]
        others = [pick.mean for pick in picks if pick]
        if len(others) == len(row.over):
            head = Cell(f"↳ {row.model}, {variant.label}", "head beside")
            lead = (head, Cell(metric(row.metric).label, "unit"), Cell(NONE, "none"))
            rows.append((*lead, *_no_result(stds(others), variant.label, "number long"), Cell(f"corpus {corpus}", "note")))
    return rows


def _no_result(text: str, word: str = "not run", kind: str = "none") -> tuple[Cell, ...]:
    """From our number to the note, for a row that no runs of its own stand behind."""
    return (Cell(text, kind), Cell(NONE, "none"), Cell(word, "none"), *[Cell(NONE, "none")] * 5)


def _facts(group: Group) -> tuple[Cell, ...]:
    digits = metric(group.one.metric).digits + 1
    spread = f"{_raw(group.best, digits)} to {_raw(group.worst, digits)}" if len(group.runs) > 1 else NONE
    return (
        Cell(_seeds(group), "number"),
        Cell(spread, "number"),
        Cell(_each(group, "parameters", lambda x: _raw(x, 0)), "number"),
        Cell(duration(group.average("seconds")), "number"),
        Cell(duration(group.average("device_seconds")), "number"),
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
    before = [
        b.value - a.value
        for a in rows_of(plain.one)
        for b in rows_of(mi.one)
        if a.panel == b.panel and a.value is not None and b.value is not None and _fills(PANELS[a.panel], run)
    ]
    printed_gap = _gap(before[0], how.digits) if before else NONE
    return (*lead, Cell(_gap(gap, how.digits + 1), "number"), Cell(printed_gap, "number"), word, Cell(size, "number long"))


def _absent() -> tuple[Cell, Cell]:
    return Cell("not run", "none"), Cell(NONE, "none")


COST_HEADER = (
    "Recipe",
    "Corpus",
    "Runs",
    "Updates",
    "Parameters",
    "Time per run",
    "Device time per run",
    "Time in all",
    "Device time in all",
    "Characters/s",
    "Device",
    "Precision",
    "torch",
)


def _cost_table(view: View) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(group.one.recipe, "head"),
            Cell(_corpus(group.one.corpus, group.one.stands_for), "name"),
            Cell(str(len(group.runs)), "number"),
            Cell(_raw(group.average("updates"), 0), "number"),
            Cell(_each(group, "parameters", lambda x: _raw(x, 0)), "number"),
            *(Cell(duration(group.average(name)), "number") for name in ("seconds", "device_seconds")),
            *(Cell(duration(_total(group.runs, name)), "number") for name in ("seconds", "device_seconds")),
            Cell(_raw(group.average("chars_per_second"), 0), "number"),
            *(Cell("; ".join(group.different(name)) or NONE, "name") for name in ("device", "precision", "torch")),
        )
        for group in view.groups
    ]
    for label, runs in _families(view.records.runs).items():
        both = (Cell(duration(_total(runs, name)), "number") for name in ("seconds", "device_seconds"))
        lead = (Cell(f"{label} in all", "head"), Cell(", ".join(dict.fromkeys(run.corpus for run in runs)), "name"))
        rows.append((*lead, Cell(str(len(runs)), "number"), *[Cell(NONE, "none")] * 4, *both, *[Cell(NONE, "none")] * 4))
    note = (
        "Wall time of training and the share of it in which the run had the device (wall time over the runs that shared it), means "
        "over seeds. The last lines add up every record, also of a seed that was run again."
    )
    return Table("Hardware and cost", note, COST_HEADER, tuple(rows))


def _families(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by corpus, the spellings of one corpus together, under the paper's name for it where it has one."""
    names = {panel.corpus: panel.short for panel in PANELS.values() if panel.short}
    found: dict[str, list[Run]] = {}
    for run in runs:
        corpus = VARIANTS[run.corpus].of if run.corpus in VARIANTS and not run.stands_for else run.corpus
        found.setdefault(names.get(corpus, _corpus(corpus, run.stands_for)), []).append(run)
    return found


def _total(runs: Iterable[Run], name: str) -> float | None:
    found = [x for run in runs if (x := getattr(run, name)) is not None]
    return sum(found) if found else None


def spent(runs: Sequence[Run]) -> str:
    """How many runs, and the time they took."""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{count}, {duration(_total(runs, 'device_seconds'))} of device time ({duration(_total(runs, 'seconds'))} of wall time)"


def _run_table(runs: Sequence[Run]) -> Table:
    kinds = _protocols([{"protocols": run.protocols} for run in runs])
    header = ("Run", "Corpus", "Seed", "Result", *(f"State {kind}" for kind in kinds), "Validation")
    header += ("Parameters", "Updates", "Epochs", "Time", "Device time", "Sittings", "Device", "Commit", "Data")
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
                Cell(duration(run.device_seconds), "number"),
                Cell(str(len(run.history) or NONE), "number"),
                Cell(run.device or NONE, "name"),
                Cell((run.commit or NONE) + (" ⚠ uncommitted changes" if run.dirty else ""), "name"),
                Cell((run.data or NONE)[:19]),
            )
        )
    note = "Every record. State carried: along parallel streams, each from zero; state reset: it starts from zero at every segment."
    return Table("All runs", note, header, tuple(rows))


# --- section 3.1 -----------------------------------------------------------------------------------------------------------------


def exploratory_tables(view: View) -> list[Table]:
    """Section 3.1: its claims one by one, and the measurements behind them."""
    return [_claim_table(view), _norm_table(view), _measured_table(view.groups), _grid_table(view)]


def _about_exploratory(view: View) -> str:
    panel = PANELS["ptb"]
    runs = _families(view.records.runs).get(panel.short, [])
    cost = f"{panel.short} in all: {spent(runs)}." if runs else "Nothing has been run."
    return f"What the paper found on the characters of Penn Treebank, and what was measured here, on corpus {panel.corpus}. {cost}"


def _picked(view: View, recipe: str) -> Group | None:
    """The runs of a recipe of §3.1 that fill its row."""
    mine = [group for group in view.groups if group.one.recipe == recipe and group.one.metric == "bpc"]
    return chosen([group for group in mine if _fills(PANELS["ptb"], group.one)])


def _claim_table(view: View) -> Table:
    header = ("Where", "What the paper says", "What counts", "What we measured", "Verdict", "Seeds each")
    words = {True: Cell("✓ confirmed", "better"), False: Cell("✗ refuted", "miss"), None: Cell("not judged", "none")}
    rows = []
    for claim in CLAIMS:
        found = finding(view, claim)
        head = Cell(claim.place, "head idle" if found.holds is None else "head")
        said = (Cell(text, "note") for text in (claim.says, claim.counts, found.text))
        seeds = " to ".join(str(n) for n in sorted({min(found.seeds), max(found.seeds)})) if found.seeds else NONE
        rows.append((head, *said, words[found.holds], Cell(seeds, "number")))
    note = "Judged by the records alone, means over seeds. Where the paper gives no bound, ours stands under “What counts”."
    return Table("Claim by claim", note, header, tuple(rows))


def finding(view: View, claim: Claim) -> Finding:
    """What the records say about a claim."""
    groups = {name: _picked(view, PTB + name) for name in claim.needs}
    absent = [PTB + name for name, group in groups.items() if group is None]
    if absent:
        return Finding(f"not run: {', '.join(absent)}")
    return JUDGES[claim.key](view, [group for group in groups.values() if group is not None])


def _norms_grow(view: View, groups: Sequence[Group]) -> Finding:
    def holds(plain: list[float], mi: list[float]) -> bool:
        return all(b > a for a, b in zip(plain, mi, strict=True))

    return _norm_finding(view, [(group, _last) for group in groups], holds, "lin-RNN, lin-MI-RNN: ")


def _norms_flat(view: View, groups: Sequence[Group]) -> Finding:
    """Least and largest after every epoch but the first, which begins at the weights' scale."""
    sides = [(group, lambda column, pick=pick: pick(column[1:] or column)) for group in groups for pick in (min, max)]
    least, most = (math.log(GRADIENT) + sign * math.log(10) for sign in (-1, 1))

    def holds(low: list[float], high: list[float]) -> bool:
        return min(low) >= least and max(high) <= most

    return _norm_finding(view, sides, holds, "least, largest: ")


def _last(column: list[float]) -> float:
    return column[-1]


def _norm_finding(
    view: View, sides: Sequence[tuple[Group, Callable[[list[float]], float]]], holds: Callable[..., bool], lead: str
) -> Finding:
    """Of each side what is picked of its curves. The mean of the log decides; if the log of the mean differs, it is told."""
    found = {a: [[norm(view, group, f"{a}_dh{t}", pick) for t in STEPS[1:]] for group, pick in sides] for a in AVERAGES}
    main, other = found.values()
    if any(None in side for side in main):
        return Finding("the gradient norms were not measured")
    text = "; ".join(f"t = {t}: {', '.join(map(_log, values))}" for t, *values in zip(STEPS[1:], *main, strict=True))
    good = holds(*main)
    if not any(None in side for side in other) and holds(*other) != good:
        text += f"; by the log of the mean it would be {'refuted' if good else 'confirmed'}"
    return Finding(lead + text, good, tuple(len(_series_of(view, group, f"mean_log_dh{STEPS[1]}")) for group, _ in sides))


def _as_printed(_: View, groups: Sequence[Group]) -> Finding:
    (group,) = groups
    row = BY_RECIPE[group.one.recipe, group.one.metric][0]
    return Finding(f"{ours(group)} BPC", verdict(row, group.mean) in ("better", "met"), (len(group.runs),))


def _over_two(_: View, groups: Sequence[Group]) -> Finding:
    return Finding(f"{ours(groups[0])} BPC", groups[0].mean > 2, (len(groups[0].runs),))


def _saturated(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, _: high > 0.5)


def _unsaturated(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, _: high < 0.5)


def _around_zero(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, low: None if low is None else low > high)


def _share_finding(group: Group, holds: Callable[[float, float | None], bool | None]) -> Finding:
    """Judged by the shares of activations near ±1 and near 0; None where what is needed was not measured."""
    high, low = (_measured(group, name) for name in ("saturated", "near_zero"))
    good = None if high is None else holds(high, low)
    if high is None or good is None:
        return Finding("the activations were not measured")
    return Finding(_shares(high, low), good, (_seen(group),))


def _far_smaller(_: View, groups: Sequence[Group]) -> Finding:
    ends = [_flow(group, "end") for group in groups]
    sides = [(name, gate, wx, uh) for name, end in zip(("RNN", "MI-RNN"), ends, strict=True) for gate, wx, uh in end]
    if not all(ends):
        return Finding("the norms of the two flows were not measured")
    text = "; ".join(f"{name}: ‖Wx‖ {wx:.3g}, ‖Uh‖ {uh:.3g}, ratio {_ratio(wx, uh):.3g}" for name, _, wx, uh in sides)
    return Finding(text, all(_ratio(wx, uh) < FAR for _, _, wx, uh in sides), tuple(map(_seen, groups)))


def _improves(_: View, groups: Sequence[Group]) -> Finding:
    means = [group.mean for group in groups]
    return Finding(_over_scales(groups), all(b < a for a, b in itertools.pairwise(means)), _counts(groups))


def _spread(_: View, groups: Sequence[Group]) -> Finding:
    sides = [[group.mean for group in groups[: len(SCALES)]], [group.mean for group in groups[len(SCALES) :]]]
    text = "; ".join(
        f"{name}: std {stds(means)}, max − min {_raw(apart(means), 3)}"
        for name, means in zip(("RNN", "MI-RNN"), sides, strict=True)
    )
    sound = all(math.isfinite(apart(means)) for means in sides)
    return Finding(text, sound and statistics.pstdev(sides[1]) < FAR * statistics.pstdev(sides[0]), _counts(groups))


def _level(_: View, groups: Sequence[Group]) -> Finding:
    found = apart([group.mean for group in groups])
    return Finding(f"{_over_scales(groups)}; max − min {_raw(found, 3)}", round(found, 6) <= APART, _counts(groups))


def _every_scale(_: View, groups: Sequence[Group]) -> Finding:
    pairs = list(zip(SCALES, groups[: len(SCALES)], groups[len(SCALES) :], strict=True))
    text = "; ".join(f"r_W = {r}: RNN {_raw(plain.mean, 3)}, MI-RNN {_raw(mi.mean, 3)}" for r, plain, mi in pairs)
    return Finding(text, all(mi.mean < plain.mean for _, plain, mi in pairs), _counts(groups))


def _both_better(_: View, groups: Sequence[Group]) -> Finding:
    valid, test = [group.valid for group in groups], [group.mean for group in groups]
    text = "; ".join(f"Eq. {n}: {_raw(v, 3)}, {_raw(t, 3)}" for n, v, t in zip((1, 2, 4), valid, test, strict=True))
    known = [v for v in valid if v is not None]
    good = all(max(rest) < plain for plain, *rest in (known, test)) if len(known) == len(valid) else None
    return Finding(f"validation, test: {text}", good, _counts(groups))


def _faster(view: View, groups: Sequence[Group]) -> Finding:
    level = groups[0].valid
    if level is None:
        return Finding("no validation result of the vanilla RNN")
    curves = [[view.records.curves[run.run] for run in group.runs if run.run in view.records.curves] for group in groups[1:]]
    if not all(curves):
        return Finding("no curves")

    def epochs(level: float) -> list[float]:
        return [statistics.fmean(_reached(curve, level) for curve in side) for side in curves]

    def told(level: float) -> str:
        return ", ".join(f"Eq. {n} {'never' if math.isinf(x) else f'{x:.1f}'}" for n, x in zip((2, 4), epochs(level), strict=True))

    slow, fast = epochs(level)
    text = f"epochs to {level:.3f} validation BPC: {told(level)}; to 2: {told(2.0)}"
    return Finding(text, None if math.isinf(min(slow, fast)) else fast < slow, tuple(map(len, curves)))


JUDGES: Mapping[str, Callable[[View, Sequence[Group]], Finding]] = {
    "grow": _norms_grow,
    "flat": _norms_flat,
    "linear-mi": _as_printed,
    "linear": _over_two,
    "saturated": _saturated,
    "unsaturated": _unsaturated,
    "around-zero": _around_zero,
    "flows": _far_smaller,
    "improves": _improves,
    "spread": _spread,
    "level": _level,
    "every-scale": _every_scale,
    "both": _both_better,
    "faster": _faster,
    "result": _as_printed,
}


def _reached(points: Sequence[Point], level: float) -> float:
    """The first epoch whose validation result is at ``level`` or below."""
    return next((p.epoch for p in points if p.epoch is not None and p.valid is not None and p.valid <= level), math.inf)


def _series_of(view: View, group: Group, name: str) -> list[list[float]]:
    """A column of the curves over epochs, for each run that has it."""
    columns = ([p.extra[name] for p in view.records.curves.get(run.run, ()) if name in p.extra] for run in group.runs)
    return [column for column in columns if column]


def norm(view: View, group: Group, name: str, pick: Callable[[list[float]], float] = _last) -> float | None:
    """Mean over seeds of a column's last value, or of what ``pick`` takes of it."""
    found = [pick(column) for column in _series_of(view, group, name)]
    return sum(found) / len(found) if found else None


def _measured(group: Group, name: str) -> float | None:
    found = [x for run in group.runs if (x := getattr(run.measured, name)) is not None]
    return sum(found) / len(found) if found else None


def _flow(group: Group, when: str) -> list[tuple[str, float, float]]:
    """(gate, ‖Wx‖, ‖Uh‖), means over seeds; of runs with other gates than the first only the first counts."""
    found: list[tuple[tuple[str, ...], Flow]] = [
        (flows.gates, flow) for run in group.runs if (flows := run.measured.flows) and (flow := getattr(flows, when))
    ]
    same = [flow for gates, flow in found if gates == found[0][0]]
    means = [[sum(xs) / len(same) for xs in zip(*(getattr(flow, name) for flow in same), strict=True)] for name in ("wx", "uh")]
    return list(zip(found[0][0], *means, strict=True)) if found else []


def _seen(group: Group) -> int:
    """Runs of the group that something was measured in."""
    return sum(run.measured != Measured() for run in group.runs)


def _counts(groups: Iterable[Group]) -> tuple[int, ...]:
    return tuple(len(group.runs) for group in groups)


def _over_scales(groups: Sequence[Group]) -> str:
    return "; ".join(f"r_W = {r}: {_raw(group.mean, 3)}" for r, group in zip(SCALES, groups, strict=True))


def _norm_table(view: View) -> Table:
    header = ("Recipe", "t", *(f"{words}, {which}" for words in AVERAGES.values() for which in ("last epoch", "largest")), "Seeds")
    rows = []
    for group in view.groups:
        for t in STEPS:
            names = [f"{average}_dh{t}" for average in AVERAGES]
            found = [norm(view, group, name, *pick) for name in names for pick in ((), (max,))]
            if any(x is not None for x in found):
                seeds = max(len(_series_of(view, group, name)) for name in names)
                numbers = (Cell(NONE if x is None else _log(x), "number") for x in found)
                rows.append((Cell(_name(group), "head"), Cell(str(t), "number"), *numbers, Cell(str(seeds), "number")))
    note = (
        "Natural log of ‖∂C/∂h_t‖₂ after every epoch, in brackets the norm; C is the loss of the last character, t = 50. The paper "
        f"has about {GRADIENT:.0e} for lin-RNN, log {_log(math.log(GRADIENT)).split()[0]}. Largest: over the epochs."
    )
    return Table("Gradient norms, Figure 1a", note, header, tuple(rows))


def _measured_table(groups: Sequence[Group]) -> Table:
    header = ("Recipe", "Gate", "|h| > 0.9", "|h| < 0.1", "‖Wx‖ before", "‖Uh‖ before", "‖Wx‖ after", "‖Uh‖ after")
    rows = []
    for group in groups:
        start, end = ({gate: norms for gate, *norms in _flow(group, when)} for when in ("start", "end"))
        shares = [_measured(group, name) for name in ("saturated", "near_zero")]
        for gate in dict.fromkeys([*start, *end]) or ([NONE] if any(x is not None for x in shares) else []):
            norms = [*start.get(gate, [None, None]), *end.get(gate, [None, None])]
            ratio = f"{_ratio(*end[gate]):.3g}" if gate in end else NONE
            rows.append(
                (
                    Cell(_name(group), "head"),
                    Cell(gate, "name"),
                    *(Cell(NONE if x is None else f"{100 * x:.1f} %", "number") for x in shares),
                    *(Cell(NONE if x is None else f"{x:.3g}", "number") for x in norms),
                    Cell(ratio, "number"),
                    Cell(str(_seen(group)), "number"),
                )
            )
    note = (
        "Shares of all hidden activations over the validation set, and mean L2 norms of the two flows there, before training and "
        "with the best weights; means over seeds."
    )
    return Table("Activations and flows, Figure 1c and d", note, (*header, "‖Wx‖ / ‖Uh‖ after", "Seeds"), tuple(rows))


def _grid_table(view: View) -> Table:
    points = {(alpha, beta): _picked(view, grid(alpha, beta)) for beta in BETAS for alpha in ALPHAS}
    valid = {point: group.valid for point, group in points.items() if group and group.valid is not None}
    best = min(valid, key=lambda point: valid[point]) if len(valid) == len(points) else None
    rows = []
    for (alpha, beta), group in points.items():
        first = (Cell(f"{{{alpha}, {beta}, {beta}, 0}}", "head" if group else "head idle"), Cell(grid(alpha, beta), "name"))
        if group is None:
            rows.append((*first, Cell("not run", "none"), *[Cell(NONE, "none")] * 3))
            continue
        mark = Cell("✓ chosen", "better") if (alpha, beta) == best else Cell(NONE, "none")
        rows.append(
            (*first, Cell(_raw(group.valid, 3), "number"), Cell(ours(group), "number"), mark, Cell(_seeds(group), "number"))
        )
    note = (
        "Where MI-RNN's vectors start. The paper searched and does not print what it found. Once all points have been run, one is "
        "chosen by the mean validation result; the test result plays no part."
    )
    header = ("{α, β₁, β₂, b}", "Recipe", "Validation BPC ↓", "Test BPC ↓", "Chosen", "Seeds")
    return Table("Starting values of Eq. 4", note, header, tuple(rows))


def _figure_1(view: View) -> Callable[[str, bool], bytes] | None:
    """Draws Figure 1 in a given form, light or dark; None if there is nothing to draw."""
    linear = {"lin-RNN": _picked(view, PTB + "linrnn"), "lin-MI-RNN": _picked(view, PTB + "linmirnn")}
    norms = {label: _norm_lines(view, group) for label, group in linear.items()}
    named = {"vanilla RNN (Eq. 1)": "rnn", "MI-RNN-simple (Eq. 2)": "simple", "MI-RNN-general (Eq. 4)": "mirnn"}
    valid = {label: _valid_lines(view, label, _picked(view, PTB + name)) for label, name in named.items()}
    both = {"vanilla RNN": _activations(_picked(view, PTB + "rnn")), "MI-RNN": _activations(_picked(view, PTB + "mirnn"))}
    if not any([*norms.values(), *valid.values(), *both.values()]):
        return None
    level = figures.Mark("≈ 10⁻⁴\n(lin-RNN)", math.log(GRADIENT))
    rows = [BY_RECIPE[PTB + name, "bpc"][0] for name in ("mirnn", "rnn")]
    marks = [figures.Mark(printed(row), row.value) for row in rows if row.value is not None]
    return lambda form, dark: figures.figure_1(norms, valid, both, level, marks, form, dark)


def _norm_lines(view: View, group: Group | None) -> list[figures.Norm]:
    found = []
    for run in group.runs if group else ():
        for t in STEPS:
            points = [p for p in view.records.curves.get(run.run, ()) if p.epoch is not None and f"mean_log_dh{t}" in p.extra]
            if points:
                found.append(figures.Norm(t, [p.epoch or 0.0 for p in points], [p.extra[f"mean_log_dh{t}"] for p in points]))
    return found


def _valid_lines(view: View, label: str, group: Group | None) -> list[figures.Line]:
    curves = (view.records.curves.get(run.run, ()) for run in (group.runs if group else ()))
    kept = ([(p.epoch, p.valid) for p in points if p.epoch is not None and p.valid is not None] for points in curves)
    return [figures.Line(label, [x for x, _ in points], [y for _, y in points]) for points in kept if points]


def _activations(group: Group | None) -> figures.Activations | None:
    bars = [run.measured.histogram for run in group.runs if run.measured.histogram] if group else []
    if not group or not bars:
        return None
    shares = (_measured(group, name) for name in ("saturated", "near_zero"))
    return figures.Activations([bar.counts for bar in bars], [bar.reach for bar in bars], *shares)


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


def stds(means: Sequence[float]) -> str:
    """Both standard deviations.

    >>> stds([1.69, 1.65, 1.57, 1.54])
    '0.0602 (population), 0.0695 (sample)'
    """
    if not all(map(math.isfinite, means)):
        return "diverged"
    return f"{statistics.pstdev(means):.4f} (population), {statistics.stdev(means):.4f} (sample)"


def apart(values: Sequence[float]) -> float:
    """The largest minus the smallest; not a number if one of them is none."""
    return max(values) - min(values) if all(map(math.isfinite, values)) else math.nan


def _log(value: float) -> str:
    """A log norm and the norm.

    >>> _log(-9.21), _log(-math.inf)
    ('−9.21 (1.0e-04)', '−∞ (0)')
    """
    size = "0" if value == -math.inf else f"{math.exp(min(value, 700.0)):.1e}"
    return f"{value:.2f} ({size})".replace("-", "−", value < 0).replace("inf", "∞")


def _ratio(wx: float, uh: float) -> float:
    return wx / uh if uh > 0 else math.inf


def _shares(saturated: float, near_zero: float | None) -> str:
    return f"|h| > 0.9: {100 * saturated:.1f} %" + ("" if near_zero is None else f"; |h| < 0.1: {100 * near_zero:.1f} %")


def _name(group: Group) -> str:
    return ", ".join([group.one.recipe, *map(str, group.one.changed)])


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
        "Ours is the mean ± sample standard deviation over seeds; the gap is ours minus the paper's. BPC is with the state carried "
        "along the test text; the paper does not say how it read it, and with the state reset at every segment BPC is higher."
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


def _md_table(table: Table, level: str = "###") -> str:
    return f"{level} {_md(table.title)}\n\n{_md(table.note)}\n\n{_md_grid(table.header, table.rows)}"


# --- the page --------------------------------------------------------------------------------------------------------------------


def _page(view: View, charts: Sequence[Mapping[str, Any]], drawn: Mapping[str, bytes], warnings: Sequence[str]) -> str:
    template = (files("multint.paper") / "report.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    before, after = paper_tables(view), account_tables(view)
    titles = [*(t.title for t in before), EXPLORATORY, *(t.title for t in after)]
    parts = {
        # only the page's own script may run, whatever a record says
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "summary": html.escape(_summary(view)),
        "tiles": _tiles(_tally(view.standings)),
        "warnings": _warnings(warnings),
        "overview": _picture(drawn, "paper", "Ours against the paper", OVERVIEW),
        "contents": "".join(f'<li><a href="#{_slug(title)}">{html.escape(title)}</a></li>' for title in titles),
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


OVERVIEW = "Each row's number in the paper and ours; the same numbers stand in the tables below."
FIGURE_1 = "Gradient norms, validation curves and hidden activations; their numbers stand in the tables below."


def _exploratory(view: View, drawn: Mapping[str, bytes]) -> str:
    head = (
        f'<h2 id="{_slug(EXPLORATORY)}">{html.escape(EXPLORATORY)}</h2><p class="note">{html.escape(_about_exploratory(view))}</p>'
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
    slug = _slug(table.title)
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
        for row in rows_of(run):
            if row.value is not None and _fills(PANELS[row.panel], run):
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
    rows, first = _pairs(view.standings), _figure_1(view)
    try:
        if rows:
            drawn["paper-dark.svg"] = figures.pairs(rows, dark=True)
        if first:
            drawn["figure-1-dark.svg"] = first("svg", True)
        for form in ("svg", "png"):
            if rows:
                drawn[f"paper.{form}"] = figures.pairs(rows, form)
            if first:
                drawn[f"figure-1.{form}"] = first(form, False)
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
        if s.group is None or s.row.value is None or s.row.repeats or not math.isfinite(s.group.mean):
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
