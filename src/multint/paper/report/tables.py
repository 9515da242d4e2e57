"""Tables 1 and 2 beside our runs, twins side by side, and what it all cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multint.paper.numbers import ALPHAS, BETAS, PANELS, VARIANTS, Row, grid, metric, printed, verdict
from multint.paper.records import SAID, Group, Run, chosen, differences, flat, same_data, settings
from multint.paper.report import against, spelling
from multint.paper.report.against import Standing, View, additive, rows_of
from multint.paper.report.markup import Cell, Table
from multint.paper.report.spelling import NONE, duration, ours, stds

STARTS = ("start.alpha", "start.beta1", "start.beta2")  # of vectors that an additive twin does not have
SIGNS = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss"}


def paper_tables(view: View, brief: bool = False) -> list[Table]:
    """Tables 1 and 2 panel by panel, MI beside its twins, runs outside the paper, trials; ``brief``: what was run as written."""
    found = [_panel_table(view, panel, brief) for panel in PANELS]
    points = [against.picked(view, grid(alpha, beta)) for alpha in ALPHAS for beta in BETAS]  # they have a table of their own
    of_rows = [group for group in view.groups if rows_of(group.one)]
    others = [group for group in view.groups if not rows_of(group.one) and not any(group is point for point in points)]
    note = (
        "The paper's claim is the difference on one corpus. Of several settings, each side has the one its validation result chose."
    )
    found.append(_twin_table("MI and its additive twin", note, of_rows, of_rows, alone=False))
    note = "Runs that belong to no row of the paper, beside their twins."
    found.append(_twin_table("Other runs", note, others, view.groups, alone=True))
    return found if brief else [*found, _trial_table(view)]


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
    "Time (on the device)",
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
    cost = f" In all: {spent(runs)}." + ("" if brief else " Times in rows are means of one run.") if runs else ""
    note = f"{panel.place}. Corpus {panel.corpus}, {panel.split} split.{cost}"
    return Table(f"Table {panel.table}: {panel.title}", note, tuple(ROW_HEADER[i] for i in columns), cut)


def _row(s: Standing) -> tuple[Cell, ...]:
    row, how = s.row, metric(s.row.metric)
    head = Cell(row.model, "head" if s.group else "head idle")
    first = (head, Cell(spelling.arrow(how), "unit"), Cell(printed(row), "number"))
    if row.cited:
        return (*first, Cell("cited", "none"), *[Cell(NONE, "none")] * 6, Cell(row.note, "note"))
    if s.group is None:
        return (*first, *_no_result("not run"), Cell(row.note, "note"))
    word = verdict(row, s.group.mean)
    gap = spelling.gap(s.group.mean - row.value, how.digits + 1) if row.value is not None else NONE
    judged = Cell(SIGNS[word], word) if word else Cell("no number in the paper", "none")
    return (*first, Cell(ours(s.group), "number"), Cell(gap, "number"), judged, *_facts(s.group), Cell(row.note, "note"))


def _results(s: Standing) -> tuple[Group, ...]:
    """Of what stands beside a row, what is a result of its own: on each other corpus, the recipe as it stands."""
    corpora = dict.fromkeys(group.one.corpus for group in s.beside if group.one.corpus != PANELS[s.row.panel].corpus)
    return tuple(pick for corpus in corpora if (pick := _on(corpus, s)))


def _on(corpus: str, s: Standing) -> Group | None:
    """Of what stands beside a row, the recipe as it stands on another corpus."""
    return chosen([group for group in s.beside if group.one.corpus == corpus and against.as_written(group.one)])


def _beside(s: Standing, group: Group) -> tuple[Cell, ...]:
    """A line under a row for runs that must not be read as filling it."""
    label, why = _why_beside(s, group)
    how = metric(group.one.metric)
    lead = (
        Cell(f"↳ {s.row.model}, {label}", "head beside"),
        Cell(spelling.arrow(how), "unit"),
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
    if not against.as_written(run):
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
        others = [pick.mean for s in mine if (pick := _on(corpus, s))]
        if len(others) == len(row.over):
            head = Cell(f"↳ {row.model}, {variant.label}", "head beside")
            lead = (head, Cell(metric(row.metric).label, "unit"), Cell(NONE, "none"))
            rows.append((*lead, *_no_result(stds(others), variant.label, "number long"), Cell(f"corpus {corpus}", "note")))
    return rows


def _no_result(text: str, word: str = "not run", kind: str = "none") -> tuple[Cell, ...]:
    """From our number to the note, for a row that no runs of its own stand behind."""
    return (Cell(text, kind), Cell(NONE, "none"), Cell(word, "none"), *[Cell(NONE, "none")] * 4)


def _facts(group: Group) -> tuple[Cell, ...]:
    digits = metric(group.one.metric).digits + 1
    spread = f"{spelling.raw(group.best, digits)} to {spelling.raw(group.worst, digits)}" if len(group.runs) > 1 else NONE
    return (
        Cell(spelling.seeds(group), "number"),
        Cell(spread, "number"),
        Cell(spelling.each(group, "parameters", lambda x: spelling.raw(x, 0)), "number"),
        Cell(f"{duration(group.average('seconds'))} ({duration(group.average('device_seconds'))})", "number"),
    )


def _twin_table(title: str, note: str, groups: Sequence[Group], among: Sequence[Group], alone: bool) -> Table:
    """One line per MI recipe with its twin, and per change of both; with ``alone``, recipes without a twin get a line too.

    The lines are those of ``groups``, which may have their twins elsewhere ``among`` all.
    """
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
    for group in among:
        run = group.one
        words = against.changed(run)
        words = words if additive(run.recipe) else _without_start(words)
        same = (*same_data(run), run.metric, run.split, words, _setting(run))
        picks.setdefault((run.recipe, *same), []).append(group)
    best = {key: pick for key, settings in picks.items() if (pick := chosen(settings))}
    twins = {key: (str(additive(key[0])), *key[1:-2], _without_start(key[-2]), key[-1]) for key in best if additive(key[0])}
    taken = {twin for twin in twins.values() if twin in best}
    rows = []
    for key, group in best.items():
        if not any(group is mine for mine in groups):
            continue
        if key in twins and twins[key] in best:
            rows.append(_twin_row(best[twins[key]], group))
        elif alone and key not in taken:
            rows.append(_twin_row(None, group) if key in twins else _twin_row(group, None))
    return Table(title, note, header, tuple(rows))


def _without_start(changed: str) -> str:
    """What a twin has of changes: it has no alpha and no betas to start elsewhere."""
    return ", ".join(change for change in changed.split(", ") if change.partition("=")[0] not in STARTS)


def _setting(run: Run) -> str:
    """What twins on a user's text share, whose recipes do not say it: all but the form, its starting values and the rate."""
    return settings(run.config, but=("seed", "integration", *STARTS, "schedule.lr")) if run.text else ""


def _twin_row(plain: Group | None, mi: Group | None) -> tuple[Cell, ...]:
    run = (mi or plain or Group(())).one
    how = metric(run.metric)
    sides = [
        part
        for side in (plain, mi)
        for part in ((Cell(side.one.recipe, "name"), Cell(ours(side), "number")) if side else _absent())
    ]
    where = "; with ".join(filter(None, (spelling.corpus(run.corpus, run.stands_for), against.changed(run))))
    lead = (Cell(where, "head"), Cell(spelling.arrow(how), "unit"), *sides)
    size = "; ".join(spelling.each(side, "parameters", lambda x: spelling.raw(x, 0)) for side in (plain, mi) if side)
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
        if a.panel == b.panel and a.value is not None and b.value is not None and against.fills(PANELS[a.panel], run)
    ]
    printed_gap = spelling.gap(before[0], how.digits) if before else NONE
    return (*lead, Cell(spelling.gap(gap, how.digits + 1), "number"), Cell(printed_gap, "number"), word, Cell(size, "number long"))


def _absent() -> tuple[Cell, Cell]:
    return Cell("not run", "none"), Cell(NONE, "none")


def _trial_table(view: View) -> Table:
    """What was tried, recipe by recipe, the best on validation first."""
    whole = {group.one.recipe: group.one.config for group in reversed(view.groups) if not against.changed(group.one)}
    header = ("Recipe", "Corpus", "Changed", "Metric", "Validation", "Test", "Seeds", "Updates", "Time", "Device time")
    rows = []
    for group in sorted(view.trials, key=_by_validation):
        run, how = group.one, metric(group.one.metric)
        rows.append(
            (
                Cell(run.recipe, "head"),
                Cell(spelling.corpus(run.corpus, run.stands_for), "name"),
                Cell(_tried(whole.get(run.recipe, run.config), run), "note"),
                Cell(spelling.arrow(how), "unit"),
                Cell(spelling.raw(group.valid, how.digits + 1), "number"),
                Cell(ours(group), "number"),
                Cell(spelling.seeds(group), "number"),
                Cell(spelling.raw(group.average("updates"), 0), "number"),
                *(Cell(duration(group.average(name)), "number") for name in ("seconds", "device_seconds")),
            )
        )
    note = (
        "Recipes that were run as they stand, here with something else, named as it differs from that run: rates, and other "
        "settings before they were chosen. "
        "Choices are made by validation results. No row, no twin and no chart has a trial."
    )
    return Table("Trials", note, header, tuple(rows))


def _tried(whole: Mapping[str, Any], run: Run) -> str:
    """In what a trial differs from the recipe's run as it stands, which may have been written anew since; then the rate."""
    rate = {key: value for key, value in flat(run.config).items() if key == "schedule.lr"}
    others = {key: values[1] for key, values in differences([whole, run.config]).items() if key not in ("seed", *rate, *SAID)}
    if not others:
        return ", ".join(map(str, run.changed))
    return ", ".join(f"no {key}" if value == NONE else f"{key}={value}" for key, value in (others | rate).items())


def _by_validation(group: Group) -> tuple[str, float]:
    valid = math.inf if group.valid is None else group.valid
    return group.one.recipe, valid if metric(group.one.metric).lower else -valid


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
            Cell(spelling.corpus(group.one.corpus, group.one.stands_for), "name"),
            Cell(str(len(group.runs)), "number"),
            Cell(spelling.raw(group.average("updates"), 0), "number"),
            Cell(spelling.each(group, "parameters", lambda x: spelling.raw(x, 0)), "number"),
            *(Cell(duration(group.average(name)), "number") for name in ("seconds", "device_seconds")),
            *(Cell(duration(_total(group.runs, name)), "number") for name in ("seconds", "device_seconds")),
            Cell(spelling.raw(group.average("chars_per_second"), 0), "number"),
            *(Cell("; ".join(group.different(name)) or NONE, "name") for name in ("device", "precision", "torch")),
        )
        for group in (*view.groups, *view.trials)
    ]
    for label, runs in families(view.records.runs).items():
        both = (Cell(duration(_total(runs, name)), "number") for name in ("seconds", "device_seconds"))
        lead = (Cell(f"{label} in all", "head"), Cell(", ".join(dict.fromkeys(run.corpus for run in runs)), "name"))
        rows.append((*lead, Cell(str(len(runs)), "number"), *[Cell(NONE, "none")] * 4, *both, *[Cell(NONE, "none")] * 4))
    note = (
        "Wall time of training and the share of it in which the run had the device (wall time over the runs that shared it), means "
        "over seeds. The last lines add up every record, also of a seed that was run again."
    )
    return Table("Hardware and cost", note, COST_HEADER, tuple(rows))


def families(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by corpus, the spellings of one corpus together, under the paper's name for it where it has one."""
    names = {panel.corpus: panel.short for panel in PANELS.values() if panel.short}
    found: dict[str, list[Run]] = {}
    for run in runs:
        corpus = VARIANTS[run.corpus].of if run.corpus in VARIANTS and not run.stands_for else run.corpus
        found.setdefault(names.get(corpus, spelling.corpus(corpus, run.stands_for)), []).append(run)
    return found


def _total(runs: Iterable[Run], name: str) -> float | None:
    found = [x for run in runs if (x := getattr(run, name)) is not None]
    return sum(found) if found else None


def spent(runs: Sequence[Run]) -> str:
    """How many runs, and the time they took."""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{count}, {duration(_total(runs, 'device_seconds'))} of device time ({duration(_total(runs, 'seconds'))} of wall time)"


def _run_table(runs: Sequence[Run]) -> Table:
    kinds = spelling.protocols([{"protocols": run.protocols} for run in runs])
    header = ("Run", "Corpus", "Seed", "Result", *(f"State {kind}" for kind in kinds), "Validation")
    header += ("Parameters", "Updates", "Epochs", "Time", "Device time", "Sittings", "Device", "Commit", "Data")
    rows = []
    for run in runs:
        digits = metric(run.metric).digits + 1
        rows.append(
            (
                Cell(run.run, "head"),
                Cell(spelling.corpus(run.corpus, run.stands_for), "name"),
                Cell(NONE if run.seed is None else str(run.seed), "number"),
                Cell(f"{spelling.raw(run.value, digits)} {metric(run.metric).label} ({run.split})", "number"),
                *(Cell(spelling.raw(run.protocols.get(kind), digits), "number") for kind in kinds),
                Cell(spelling.raw(run.valid, digits), "number"),
                Cell(spelling.raw(run.parameters, 0), "number"),
                Cell(spelling.raw(run.updates, 0), "number"),
                Cell(spelling.raw(run.epochs, None), "number"),
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


def summary(view: View) -> str:
    tally = against.tally(view.standings)
    run = sum(tally.values()) - tally["not run"]
    return (
        f"Of the {sum(tally.values())} numbers the paper reports as its own, {run} {'has' if run == 1 else 'have'} been run here: "
        f"{tally['better']} better, {tally['met']} met at the printed precision, {tally['miss']} missed. "
        "Ours is the mean ± sample standard deviation over seeds; the gap is ours minus the paper's. BPC is with the state carried "
        "along the test text; the paper does not say how it read it, and with the state reset at every segment BPC is higher."
    )
