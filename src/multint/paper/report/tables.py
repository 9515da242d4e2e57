"""Tables 1 and 2 beside our runs, MI beside its additive twin, trials, costs, and every record."""

import json
from collections.abc import Iterable, Mapping, Sequence

from multint.paper.experiment import Metric
from multint.paper.numbers import PANELS, ROWS, SECTIONS, Row, printed, printing
from multint.paper.record import Record, changed_settings, flat
from multint.paper.records import RATE, Group, Scores, changes, label, same_data, selected, settings
from multint.paper.report import against, spelling
from multint.paper.report.against import Outcome, Standing, View, as_written, outcome, protocols, standing, twin
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Section
from multint.paper.report.spelling import NONE, duration, ours, stds

SIGNS = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss"}
LEADS = {
    "ahead": Cell("✓ MI ahead", "better"),
    "behind": Cell("✗ MI behind", "miss"),
    "diverged": Cell("✗ diverged", "miss"),
    "level": Cell("= level", "none"),
}


# ---- the paper's panels ----


ROW_HEADER: tuple[str, ...] = (
    *("Model", "Metric", "Paper", "Ours", "Gap", "Verdict", "Other protocol", "Laptop size"),
    *("Seeds", "Best to worst", "Parameters", "Time (on the device)", "Note"),
)


def panel_tables(view: View, sections: Sequence[Section]) -> list[Table]:
    """Tables 1 and 2, panel by panel; a section may add rows that the paper does not have."""
    return [_panel_table(view, panel, [row for one in sections for row in one.rows if row.panel == panel]) for panel in PANELS]


def _panel_table(view: View, key: str, more: Sequence[Row]) -> Table:
    panel = PANELS[key]
    rows: list[tuple[Cell, ...]] = []
    for row in [*(row for row in ROWS if row.panel == key), *more]:
        s = standing(view, row)
        rows += [_row(view, s), *(_beside(view, s, group) for group in s.beside)]
    keys = {row.key for row in (*ROWS, *more) if row.panel == key and row.key}
    runs = [run for run in view.records.runs if run.row in keys and run.scale != "laptop"]
    cost = f" In all: {spent(runs)}. Times in rows are means of one run." if runs else ""
    note = f"{panel.place}; {panel.section} {SECTIONS[panel.section]}. Corpus {panel.corpus}, {panel.split} split.{cost}"
    return Table(f"Table {panel.table}: {panel.title}", note, ROW_HEADER, tuple(rows))


def _row(view: View, s: Standing) -> tuple[Cell, ...]:
    row, how, found = s.row, printing(s.row.metric), outcome(view, s.row)
    small = _laptop(view, s)
    ran = found is not None or small.kind != "none"
    first = (Cell(row.model, "head" if ran else "head idle"), Cell(how.arrow, "unit"), Cell(printed(row), "number"))
    if row.cited:
        return (*first, Cell("cited", "none"), *[Cell(NONE, "none")] * 8, Cell(row.note, "note"))
    note = Cell("; ".join(filter(None, (row.note, view.note(s.group) if s.group else "", _formula(view, row)))), "note")
    if found is None:
        text = f"not run ({_filled(view, row)} of {len(row.over)})" if row.over and _filled(view, row) else "not run"
        return (
            *first,
            Cell(text, "none"),
            Cell(NONE, "none"),
            Cell("not run", "none"),
            Cell(NONE, "none"),
            small,
            *[Cell(NONE, "none")] * 4,
            note,
        )
    gap = spelling.gap(found.value - row.value, row.digits + 1) if row.value is not None else NONE
    mine = (Cell(stds(_means(view, row)), "number long") if row.over else Cell(ours(_scores(s)), "number"), Cell(gap, "number"))
    facts = _facts(s.group, _scores(s)) if s.group else (Cell(str(found.seeds), "number"), *[Cell(NONE, "none")] * 3)
    return (*first, *mine, verdict_cell(found), _others(view, row), small, *facts, note)


def verdict_cell(found: Outcome | None) -> Cell:
    """A tick or a cross needs more than one seed."""
    if found is None:
        return Cell("not run", "none")
    if not found.word:
        return Cell("no number in the paper", "none")
    return Cell(f"{found.word} ({against.SINGLE})", "single") if found.seeds == 1 else Cell(SIGNS[found.word], found.word)


def _scores(s: Standing) -> Scores:
    found = s.group.of(s.row.metric, split=PANELS[s.row.panel].split) if s.group else None
    assert found is not None
    return found


def _others(view: View, row: Row) -> Cell:
    """The number by other protocols, each with its verdict."""
    found = {name: outcome(view, row, name) for name in protocols(view, row)}
    parts = [
        f"{name}: {one.value:.{row.digits + 1}f} {verdict_cell(one).text if one.word else ''}".strip()
        for name, one in found.items()
        if one
    ]
    return Cell("; ".join(parts) or NONE, "note" if parts else "none")


def _laptop(view: View, s: Standing) -> Cell:
    if s.row.over:
        means = _means(view, s.row, "laptop")
        return Cell(stds(means), "number long") if len(means) == len(s.row.over) else Cell(NONE, "none")
    found = s.laptop and s.laptop.of(s.row.metric)
    if not s.laptop or not found:
        return Cell(NONE, "none")
    count = len(found.values)
    return Cell(f"{ours(found)} ({count} seed{'s' if count > 1 else ''})", "number")


def _means(view: View, row: Row, scale: str = "paper") -> list[float]:
    """The means of the rows that a standard deviation is taken over, of those that were run."""
    groups = [view.picked(key, row.panel, scale) for key in row.over]
    return [found.mean for group in groups if group and (found := group.of(against.SPREAD))]


def _filled(view: View, row: Row) -> int:
    return len(_means(view, row))


def _formula(view: View, row: Row) -> str:
    return (
        f"judged by the {'population' if row.population else 'sample'} formula, which the printed number follows"
        if row.over
        else ""
    )


def _beside(view: View, s: Standing, group: Group) -> tuple[Cell, ...]:
    """A line under a row for runs that must not be read as filling it."""
    name, why = _why_beside(view, s, group)
    found = group.of(s.row.metric)
    assert found is not None
    lead = (Cell(f"↳ {s.row.model}, {name}", "head beside"), Cell(spelling.how(found.metric).arrow, "unit"), Cell(NONE, "none"))
    others = [(kind, group.of(s.row.metric, kind)) for kind in group.protocols(s.row.metric)[1:]]
    text = "; ".join(f"{kind}: {spelling.raw(one.mean, s.row.digits + 1)}" for kind, one in others if one)
    middle = (Cell(ours(found), "number"), Cell(NONE, "none"), Cell(name, "none"), Cell(text or NONE, "note"), Cell(NONE, "none"))
    return (*lead, *middle, *_facts(group, found), Cell(why, "note"))


def _why_beside(view: View, s: Standing, group: Group) -> tuple[str, str]:
    run, panel = group.one, PANELS[s.row.panel]
    changed = [f"the recipe with {', '.join(map(str, run.changed))}"] if run.changed else []
    note = view.note(group)
    more = [part for part in (note, *changed) if part]
    if run.data.stands_for is not None:
        why = note or f"a stand-in for {run.data.stands_for}"
        return "stand-in", "; ".join([f"corpus {run.data.name}: {why}", "not comparable with the paper's number", *changed])
    if run.data.name != panel.corpus:
        return "other corpus", "; ".join([f"corpus {run.data.name}, not {panel.corpus}", *more])
    if group.of(s.row.metric, split=panel.split) is None:
        return "other split", f"split {run.main.split}, not {panel.split}"
    if not as_written(run):
        return "changed", "; ".join(changed)
    if run.scale != "paper" or s.group is None:
        return "other size", "; ".join(["not of the paper's size", *more])
    differ = changed_settings([settings(s.group.one), settings(run)])
    words = ", ".join(f"{key} {values[1]} (selected: {values[0]})" for key, values in differ.items())
    return "other setting", f"{words or 'configuration differs'}; not selected by validation"


def _facts(group: Group, found: Scores) -> tuple[Cell, ...]:
    digits = spelling.how(found.metric).digits + 1
    spread = f"{spelling.raw(found.best, digits)} to {spelling.raw(found.worst, digits)}" if len(found.values) > 1 else NONE
    return (
        Cell(spelling.seeds(group), "number"),
        Cell(spread, "number"),
        Cell(spelling.each(group, "parameters", lambda x: spelling.raw(x, 0)), "number"),
        Cell(f"{duration(group.average('seconds'))} ({duration(group.average('device_seconds'))})", "number"),
    )


# ---- MI beside its additive twin ----


TWIN_HEADER: tuple[str, ...] = (
    *("Data", "Metric", "Additive", "Result", "MI", "Result", "MI − additive"),
    *("Paper's difference", "Verdict", "Other protocol", "Parameters"),
)


def twin_tables(view: View, sections: Sequence[Section]) -> list[Table]:
    """Rows of the paper at its size, at laptop size, and all other runs."""
    taken = {id(group) for one in sections for group in one.taken}
    rows = [group for group in view.groups if group.one.row and group.one.scale != "laptop"]
    small = [group for group in view.groups if group.one.row and group.one.scale == "laptop"]
    others = [group for group in view.groups if not group.one.row and id(group) not in taken]
    kinds = (
        ("MI and its additive twin", "The paper's claim is the difference on one corpus.", rows, rows, False),
        ("MI and its additive twin, laptop size", "The same models and protocols in small.", small, small, True),
        ("Other runs", "Runs that belong to no row of the paper, beside their twins.", others, view.groups, True),
    )
    return [_twin_table(view, *kind) for kind in kinds]


def _twin_table(view: View, title: str, note: str, groups: Sequence[Group], among: Sequence[Group], alone: bool) -> Table:
    """One line per MI recipe with its twin, and per change of both; with ``alone``, recipes without a twin get a line too.

    The lines are those of ``groups``, which may have their twins elsewhere ``among`` all.
    """
    best = list(_by_rate(among).values())
    pairs = [(group, twin(view, group, among)) for group, _ in best if group.one.twin]
    taken = {id(plain) for _, plain in pairs}
    options = {id(group): count for group, count in best}
    rows: list[tuple[Cell, ...]] = []
    for group, _ in best:
        if not any(group is mine for mine in groups):
            continue
        plain = next((plain for mi, plain in pairs if mi is group), None)
        if plain is not None:
            rows += _twin_rows(view, plain, group, options)
        elif alone and id(group) not in taken:
            rows += _twin_rows(view, None, group, options) if group.one.twin else _twin_rows(view, group, None, options)
    choice = (
        " Of several rates each side has the one that its validation score selected."
        if any(n > 1 for n in options.values())
        else ""
    )
    return Table(title, note + choice * bool(rows), TWIN_HEADER, tuple(rows))


def _by_rate(groups: Iterable[Group]) -> dict[tuple[str, ...], tuple[Group, int]]:
    """Groups that differ in the rate alone: the selected one, and how many there are."""
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        run = group.one
        own = {key: value for key, value in settings(run).items() if key != RATE} if run.data.own else {}
        key = ("" if run.data.own else run.recipe, *same_data(run), *changes(run), json.dumps(own, sort_keys=True))
        found.setdefault(key, []).append(group)
    return {key: (pick, len(same)) for key, same in found.items() if (pick := selected(same))}


def _twin_rows(view: View, plain: Group | None, mi: Group | None, options: Mapping[int, int]) -> list[tuple[Cell, ...]]:
    """A line per metric."""
    one = mi or plain
    assert one is not None
    metrics = one.metrics if plain is None or mi is None else [m for m in one.metrics if plain.of(m.name)]
    return [_twin_row(view, plain, mi, metric, options) for metric in metrics]


def _twin_row(view: View, plain: Group | None, mi: Group | None, metric: Metric, options: Mapping[int, int]) -> tuple[Cell, ...]:
    run = (mi or plain or Group(())).one
    how, none = spelling.how(metric), Cell(NONE, "none")
    where = "; with ".join(filter(None, (spelling.data(run.data), ", ".join(changes(run)))))
    sides = [cell for side in (plain, mi) for cell in _side(side, metric, options)]
    size = "; ".join(spelling.each(side, "parameters", lambda x: spelling.raw(x, 0)) for side in (plain, mi) if side)
    lead = (Cell(where, "head"), Cell(how.arrow, "unit"), *sides)
    a, b = (side.of(metric.name) if side else None for side in (plain, mi))
    if plain is None or mi is None or a is None or b is None:
        return (*lead, none, none, Cell("no twin run" if run.twin or plain else NONE, "none"), none, Cell(size, "number long"))
    gap = spelling.gap(b.mean - a.mean, how.digits + 1)
    printed_gap = _printed_gap(plain.one, mi.one, metric.name)
    others = [
        f"{name}: {spelling.gap(two.mean - one.mean, how.digits + 1)}, {lead_cell(one, two).text}"
        for name in mi.protocols(metric.name)[1:]
        if (one := plain.of(metric.name, name)) and (two := mi.of(metric.name, name))
    ]
    beside = (Cell(gap, "number"), Cell(printed_gap, "number"), lead_cell(a, b))
    return (*lead, *beside, Cell("; ".join(others) or NONE, "note" if others else "none"), Cell(size, "number long"))


def lead_cell(plain: Scores, mi: Scores) -> Cell:
    """Who is ahead; with one seed on a side there is no tick."""
    cell = LEADS[spelling.lead(mi, plain)]
    if min(len(plain.values), len(mi.values)) > 1:
        return cell
    return Cell(f"{cell.text.partition(' ')[2]} ({against.SINGLE})", "single" if cell.kind != "none" else "none")


def _side(group: Group | None, metric: Metric, options: Mapping[int, int]) -> tuple[Cell, Cell]:
    found = group.of(metric.name) if group else None
    if group is None or not found:
        return Cell("not run", "none"), Cell(NONE, "none")
    count = options.get(id(group), 1)
    rate = flat(group.one.config).get(RATE)
    return Cell(group.one.recipe + (f", {RATE}={rate} of {count}" if count > 1 else ""), "name"), Cell(ours(found), "number")


def _printed_gap(plain: Record, mi: Record, metric: str) -> str:
    """The paper's difference, where both runs fill its rows."""
    found = [
        b.value - a.value
        for a in ROWS
        for b in ROWS
        if (a.key, b.key, a.metric, b.metric, a.panel) == (plain.row, mi.row, metric, metric, b.panel)
        and a.value is not None
        and b.value is not None
        and against.fills(PANELS[a.panel], mi)
    ]
    return spelling.gap(found[0], printing(metric).digits) if found else NONE


# ---- trials, costs, records ----


def account_tables(view: View, sections: Sequence[Section]) -> list[Table]:
    """Settings that were tried, what it cost, and every record."""
    rows = [*ROWS, *(row for one in sections for row in one.rows)]
    return [_trial_table(view), _cost_table(view, rows), _run_table(view)]


def _trial_table(view: View) -> Table:
    """What was tried, recipe by recipe, the best on validation first."""
    plain = {
        (group.one.recipe, group.one.data.name): settings(group.one) for group in reversed(view.groups) if as_written(group.one)
    }
    header = ("Recipe", "Data", "Changed", "Metric", "Validation", "Result", "Seeds", "Updates", "Time", "Device time")
    rows = []
    for group in sorted((*view.trials, *_unselected(view)), key=lambda group: (group.one.recipe, group.loss)):
        run = group.one
        rows.append(
            (
                Cell(run.recipe, "head"),
                Cell(spelling.data(run.data), "name"),
                Cell(_tried(plain.get((run.recipe, run.data.name)), run), "note"),
                Cell(spelling.how(group.main.metric).arrow, "unit"),
                Cell(spelling.raw(group.valid, spelling.how(group.main.metric).digits + 1), "number"),
                Cell(ours(group.main), "number"),
                Cell(spelling.seeds(group), "number"),
                Cell(spelling.raw(group.average("updates"), 0), "number"),
                *(Cell(duration(group.average(name)), "number") for name in ("seconds", "device_seconds")),
            )
        )
    note = (
        "Recipes that were also run as they stand, or at another rate, here with the settings in which they differ from that run. "
        "Settings are selected by validation scores."
    )
    return Table("Trials", note, header, tuple(rows))


def _unselected(view: View) -> list[Group]:
    """Rates that validation did not select, of recipes that have no line under a row of the paper."""
    picks = {id(pick) for pick, _ in _by_rate(view.groups).values()}
    return [group for group in view.groups if id(group) not in picks and (not group.one.row or group.one.scale == "laptop")]


def _tried(plain: Mapping[str, str] | None, run: Record) -> str:
    """In what a trial differs from the recipe's run as it stands, whose recipe may have changed since; then the rate."""
    mine = settings(run)
    rate = [f"{RATE}={mine[RATE]}"] if RATE in mine else []
    differ = changed_settings([plain, mine]) if plain else {}
    others = [f"no {key}" if values[1] == NONE else f"{key}={values[1]}" for key, values in differ.items() if key != RATE]
    return ", ".join([*(others or changes(run)), *rate])


COST_HEADER: tuple[str, ...] = (
    *("Recipe", "Data", "Runs", "Updates", "Parameters", "Time per run", "of it scoring", "Device time per run"),
    *("Time in all", "Device time in all", "Throughput", "Device", "Precision", "torch"),
)


def _cost_table(view: View, rows_of_panels: Sequence[Row]) -> Table:
    groups = (*view.groups, *view.trials)
    none = Cell(NONE, "none")
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(label(group, groups), "head"),
            Cell(spelling.data(group.one.data), "name"),
            Cell(str(len(group.runs)), "number"),
            Cell(spelling.raw(group.average("updates"), 0), "number"),
            Cell(spelling.each(group, "parameters", lambda x: spelling.raw(x, 0)), "number"),
            *(Cell(duration(group.average(name)), "number") for name in ("seconds", "scoring_seconds", "device_seconds")),
            *(Cell(duration(_total(group.runs, name)), "number") for name in ("seconds", "device_seconds")),
            Cell(spelling.speed(group.runs), "number"),
            *(Cell("; ".join(group.different(name)) or NONE, "name") for name in ("device", "precision")),
            Cell("; ".join(dict.fromkeys(str(run.versions.get("torch", NONE)) for run in group.runs)), "name"),
        )
        for group in groups
    ]
    for family, runs in families(view.records.runs, rows_of_panels).items():
        both = (Cell(duration(_total(runs, name)), "number") for name in ("seconds", "device_seconds"))
        lead = (Cell(f"{family} in all", "head"), Cell(", ".join(dict.fromkeys(run.data.name for run in runs)), "name"))
        rows.append((*lead, Cell(str(len(runs)), "number"), *[none] * 5, *both, *[none] * 4))
    note = (
        "Wall time of training and of the final scores, without the compilation of kernels, and the share of it in which the "
        "run had the device (wall time over the runs that shared it), means over seeds. Where no time of scoring is given, the "
        "record is of before November 2026 and its time is that of training alone. The last lines add up every record, also of a "
        "seed that was run again."
    )
    return Table("Hardware and cost", note, COST_HEADER, tuple(rows))


def families(runs: Iterable[Record], rows: Sequence[Row]) -> dict[str, list[Record]]:
    """Runs by the panel they belong to, else by their data; those of laptop size apart."""
    by_key = {row.key: PANELS[row.panel].short for row in reversed(rows) if row.key and PANELS[row.panel].short}
    corpora = {panel.corpus: panel.short for panel in PANELS.values() if panel.short}
    found: dict[str, list[Record]] = {}
    for run in runs:
        name = by_key.get(run.row or "") or corpora.get(run.data.name) or spelling.data(run.data)
        found.setdefault(f"{name}, laptop size" if run.scale == "laptop" else name, []).append(run)
    return found


def _total(runs: Iterable[Record], name: str) -> float | None:
    found = [x for run in runs if (x := getattr(run, name)) is not None]
    return sum(found) if found else None


def spent(runs: Sequence[Record]) -> str:
    """How many runs, and the time they took."""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{count}, {duration(_total(runs, 'device_seconds'))} of device time ({duration(_total(runs, 'seconds'))} of wall time)"


def _run_table(view: View) -> Table:
    runs = view.records.runs
    kinds = spelling.protocols(runs)
    header = ("Run", "Data", "Changed", "Seed", "Result", *(kind.capitalize() for kind in kinds), "Validation")
    header += ("Parameters", "Updates", "Epochs", "Time", "Device time", "Sessions", "Device", "Commit", "Sum of the data")
    rows = []
    for run in runs:
        digits = spelling.how(run.main.metric).digits + 1
        by_kind = [run.result(run.main.metric.name, kind, run.main.split) for kind in kinds]
        rows.append(
            (
                Cell(run.run, "head"),
                Cell(spelling.data(run.data), "name"),
                Cell(", ".join(map(str, run.changed)) or NONE, "note"),
                Cell(NONE if run.seed is None else str(run.seed), "number"),
                Cell(spelling.result(run), "number"),
                *(Cell(spelling.raw(one and one.value, digits), "number") for one in by_kind),
                Cell(spelling.raw(run.valid, digits), "number"),
                Cell(spelling.raw(run.parameters, 0), "number"),
                Cell(spelling.raw(run.updates, 0), "number"),
                Cell(spelling.raw(run.epochs, None), "number"),
                Cell(duration(run.seconds), "number"),
                Cell(duration(run.device_seconds), "number"),
                Cell(str(len(run.history) or NONE), "number"),
                Cell(run.device or NONE, "name"),
                Cell((run.commit or NONE) + (" ⚠ uncommitted changes" if run.dirty else ""), "name"),
                Cell((run.data.sha256 or NONE)[:12]),
            )
        )
    return Table("All runs", "Every record.", header, tuple(rows))


def summary(view: View) -> str:
    """The paper's own numbers by verdict, MI apart from the additive baselines."""
    tally = against.tally(view)
    numbers = sum(sum(count.values()) for count in tally.values())
    if numbers == sum(count["not run"] for count in tally.values()):
        return f"Of the {numbers} numbers that the paper reports as its own, none has been run at its size."
    parts = []
    for count, words in zip(tally.values(), ("its MI models", "its additive baselines"), strict=True):
        total, run = sum(count.values()), sum(count.values()) - count["not run"]
        single = f", {count[against.SINGLE]} from one seed and not judged" if count[against.SINGLE] else ""
        parts.append(
            f"Of the {total} numbers that the paper reports for {words}, {run} {'has' if run == 1 else 'have'} been run at its "
            f"size: {count['better']} better, {count['met']} met at the printed precision, {count['miss']} missed{single}."
        )
    parts += [
        f"By the protocol “{name}” {good} of the {both} that are better or met stay so; the paper does not say which it used."
        for name, (good, both) in against.stays(view).items()
    ]
    parts.append("Ours is the mean ± sample standard deviation over seeds; the gap is ours minus the paper's.")
    return " ".join([*parts, "Laptop runs are smaller models: they never fill a row of the paper."])
