"""Tables 1 and 2 beside our runs, MI beside its additive twin, trials, costs, and every record."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from multint.paper.experiment import Metric
from multint.paper.numbers import BY_KEY, PANELS, ROWS, SECTIONS, Row, printed, printing
from multint.paper.record import Record, changed_settings, flat
from multint.paper.records import RATE, Group, Scores, changes, label, same_data, selected, settings
from multint.paper.report import against, spelling
from multint.paper.report.against import Outcome, Standing, View, as_written, outcome, protocols, standing, twin
from multint.paper.report.markup import EMPTY, NONE, Cell, Column, Table, filled, tabulated
from multint.paper.report.section import Section
from multint.paper.report.spelling import duration, ours, raw, stds

SIGNS = {"better": "✓ better", "met": "✓ met", "miss": "✗ miss"}
LEADS = {
    "ahead": Cell("✓ MI ahead", "better"),
    "behind": Cell("✗ MI behind", "miss"),
    "diverged": Cell("✗ diverged", "miss"),
    "level": Cell("= level", "none"),
}
FACTS = {  # what several tables say of a group of runs
    column.title: column
    for column in (
        Column("Data", "name", lambda group: spelling.data(group.one.data)),
        Column("Metric", "unit", lambda group: spelling.how(group.main.metric).arrow),
        Column("Validation", "number", lambda group: raw(group.valid, spelling.how(group.main.metric).digits + 1)),
        Column("Result", "number", lambda group: ours(group.main)),
        Column("Seeds", "number", spelling.seeds),
        Column("Parameters", "number", lambda group: spelling.each(group, "parameters", lambda x: raw(x, 0))),
        Column("Updates", "number", lambda group: raw(group.average("updates"), 0)),
        Column("Epochs", "number", lambda group: raw(group.average("epochs"), None)),
        Column("Time", "number", lambda group: duration(group.average("seconds"))),
        Column("of it scoring", "number", lambda group: duration(group.average("scoring_seconds"))),
        Column("Device time", "number", lambda group: duration(group.average("device_seconds"))),
        Column("Throughput", "number", lambda group: spelling.speed(group.runs)),
        Column("Device", "name", lambda group: spelling.each(group, "device", str)),
        Column("Precision", "name", lambda group: spelling.each(group, "precision", str)),
        Column("torch", "name", lambda group: "; ".join(dict.fromkeys(str(run.versions.get("torch", NONE)) for run in group.runs))),
    )
}


def facts(*titles: str) -> list[Column]:
    return [FACTS[title] for title in titles]


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
        return (*first, Cell("cited", "none"), *[EMPTY] * 8, Cell(row.note, "note"))
    formula = f"judged by the {'population' if row.population else 'sample'} formula, which the printed number follows"
    notes = (row.note, view.note(s.group) if s.group else "", formula if row.over else "")
    note = Cell("; ".join(filter(None, notes)), "note")
    if found is None:
        ready = len(_means(view, row))
        text = f"not run ({ready} of {len(row.over)})" if ready else "not run"
        return (*first, Cell(text, "none"), EMPTY, verdict_cell(None), EMPTY, small, *[EMPTY] * 4, note)
    gap = spelling.gap(found.value - row.value, row.digits + 1) if row.value is not None else NONE
    scores = s.scores
    mine = Cell(ours(scores), "number") if scores else Cell(stds(_means(view, row)), "number long")
    more = _facts(s.group, scores) if s.group and scores else (Cell(str(found.seeds), "number"), *[EMPTY] * 3)
    return (*first, mine, Cell(gap, "number"), verdict_cell(found), _others(view, row), small, *more, note)


def verdict_cell(found: Outcome | None) -> Cell:
    """A tick or a cross needs more than one seed."""
    if found is None:
        return Cell("not run", "none")
    if not found.word:
        return Cell("no number in the paper", "none")
    return Cell(f"{found.word} ({against.SINGLE})", "single") if found.seeds == 1 else Cell(SIGNS[found.word], found.word)


def _others(view: View, row: Row) -> Cell:
    """The number by other protocols, each with its verdict."""
    found = {name: outcome(view, row, name) for name in protocols(view, row)}
    parts = [
        f"{name}: {one.value:.{row.digits + 1}f} {verdict_cell(one).text if one.word else ''}".strip()
        for name, one in found.items()
        if one
    ]
    return filled("; ".join(parts), "note")


def _laptop(view: View, s: Standing) -> Cell:
    if s.row.over:
        means = _means(view, s.row, "laptop")
        return Cell(stds(means), "number long") if len(means) == len(s.row.over) else EMPTY
    found = s.laptop and s.laptop.of(s.row.metric)
    return Cell(f"{ours(found)} ({spelling.seed_count([len(found.values)])})", "number") if found else EMPTY


def _means(view: View, row: Row, scale: str = "paper") -> list[float]:
    """The means of the rows that a standard deviation is taken over, of those that were run."""
    groups = [view.picked(key, row.panel, scale) for key in row.over]
    return [found.mean for group in groups if group and (found := group.of(against.SPREAD))]


def _beside(view: View, s: Standing, group: Group) -> tuple[Cell, ...]:
    """A line under a row for runs that must not be read as filling it."""
    name, why = _why_beside(view, s, group)
    found = group.of(s.row.metric)
    assert found is not None
    lead = (Cell(f"↳ {s.row.model}, {name}", "head beside"), Cell(spelling.how(found.metric).arrow, "unit"), EMPTY)
    others = [(kind, group.of(s.row.metric, kind)) for kind in group.protocols(s.row.metric)[1:]]
    text = "; ".join(f"{kind}: {raw(one.mean, s.row.digits + 1)}" for kind, one in others if one)
    middle = (Cell(ours(found), "number"), EMPTY, Cell(name, "none"), Cell(text or NONE, "note"), EMPTY)
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
    spread = f"{raw(found.best, digits)} to {raw(found.worst, digits)}" if len(found.values) > 1 else NONE
    seeds, parameters, time, on_device = (FACTS[name].text(group) for name in ("Seeds", "Parameters", "Time", "Device time"))
    return tuple(Cell(text, "number") for text in (seeds, spread, parameters, f"{time} ({on_device})"))


# ---- MI beside its additive twin ----


TWIN_HEADER: tuple[str, ...] = (
    *("Data", "Metric", "Additive", "Result", "MI", "Result", "MI − additive"),
    *("Paper's difference", "Verdict", "Other protocol", "Parameters"),
)


def twin_tables(view: View) -> list[Table]:
    """Rows of the paper, at its size and at laptop size."""
    rows = [group for group in view.groups if group.one.row and group.one.scale != "laptop"]
    small = [group for group in view.groups if group.one.row and group.one.scale == "laptop"]
    title, note = "MI and its additive twin", "The paper's claim is the difference on one corpus."
    return [
        _twin_table(view, title, note, rows, rows, alone=False),
        _twin_table(view, f"{title}, laptop size", "The same models and protocols in small.", small, small),
    ]


def _other_table(view: View, sections: Sequence[Section]) -> Table:
    taken = {id(group) for one in sections for group in one.taken}
    others = [group for group in view.groups if not group.one.row and id(group) not in taken]
    return _twin_table(view, "Other runs", "Runs that belong to no row of the paper, beside their twins.", others, view.groups)


def _twin_table(view: View, title: str, note: str, groups: Sequence[Group], among: Sequence[Group], alone: bool = True) -> Table:
    """One line per MI recipe with its twin, and per change of both; with ``alone``, recipes without a twin get a line too.

    The lines are those of ``groups``, which may have their twins elsewhere ``among`` all.
    """
    best = list(_by_rate(among).values())
    options = {id(group): count for group, count in best}
    plains = {id(group): twin(view, group, among) for group, _ in best if group.one.twin}
    mine, taken = set(map(id, groups)), set(map(id, plains.values()))
    rows: list[tuple[Cell, ...]] = []
    for group in (group for group, _ in best if id(group) in mine):
        plain = plains.get(id(group))
        if plain or (alone and id(group) not in taken):
            rows += _twin_rows(plain, group, options) if group.one.twin else _twin_rows(group, None, options)
    if rows and any(count > 1 for count in options.values()):
        note += " Of several rates each side has the one that its validation score selected."
    return Table(title, note, TWIN_HEADER, tuple(rows))


def _by_rate(groups: Iterable[Group]) -> dict[tuple[str, ...], tuple[Group, int]]:
    """Groups that differ in the rate alone: the selected one, and how many there are."""
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        run = group.one
        own = {key: value for key, value in settings(run).items() if key != RATE} if run.data.own else {}
        key = ("" if run.data.own else run.recipe, *same_data(run), *changes(run), json.dumps(own, sort_keys=True))
        found.setdefault(key, []).append(group)
    return {key: (pick, len(same)) for key, same in found.items() if (pick := selected(same))}


def _twin_rows(plain: Group | None, mi: Group | None, options: Mapping[int, int]) -> list[tuple[Cell, ...]]:
    """A line per metric."""
    sides = [side for side in (plain, mi) if side]
    metrics = [metric for metric in sides[-1].metrics if all(side.of(metric.name) for side in sides)]
    run = sides[-1].one
    where = Cell("; with ".join(filter(None, (spelling.data(run.data), ", ".join(changes(run))))), "head")
    size = Cell("; ".join(FACTS["Parameters"].text(side) for side in sides), "number long")
    rows = []
    for metric in metrics:
        results = [cell for side in (plain, mi) for cell in _side(side, metric, options)]
        if plain and mi:
            beside = _difference(plain, mi, metric)
        else:
            beside = (EMPTY, EMPTY, Cell("no twin run" if run.twin or plain else NONE, "none"), EMPTY)
        rows.append((where, Cell(spelling.how(metric).arrow, "unit"), *results, *beside, size))
    return rows


def _difference(plain: Group, mi: Group, metric: Metric) -> tuple[Cell, ...]:
    """The difference of two sides by the main protocol, the paper's, who is ahead, and the same by other protocols."""
    digits, printed_gap = spelling.how(metric).digits + 1, _printed_gap(plain.one, mi.one, metric.name)
    names = (None, *mi.protocols(metric.name)[1:])
    both = {name: (a, b) for name in names if (a := plain.of(metric.name, name)) and (b := mi.of(metric.name, name))}
    gaps = {name: spelling.gap(b.mean - a.mean, digits) for name, (a, b) in both.items()}
    leads = {name: lead_cell(*sides) for name, sides in both.items()}
    others = [f"{name}: {gaps[name]}, {leads[name].text}" for name in both if name is not None]
    return (Cell(gaps[None], "number"), Cell(printed_gap, "number"), leads[None], filled("; ".join(others), "note"))


def lead_cell(plain: Scores, mi: Scores) -> Cell:
    """Who is ahead; with one seed on a side there is no tick."""
    cell = LEADS[spelling.lead(mi, plain)]
    if min(len(plain.values), len(mi.values)) > 1:
        return cell
    return Cell(f"{cell.text.partition(' ')[2]} ({against.SINGLE})", "single" if cell.kind != "none" else "none")


def _side(group: Group | None, metric: Metric, options: Mapping[int, int]) -> tuple[Cell, Cell]:
    found = group.of(metric.name) if group else None
    if group is None or not found:
        return Cell("not run", "none"), EMPTY
    count = options.get(id(group), 1)
    rate = flat(group.one.config).get(RATE)
    return Cell(group.one.recipe + (f", {RATE}={rate} of {count}" if count > 1 else ""), "name"), Cell(ours(found), "number")


def _printed_gap(plain: Record, mi: Record, metric: str) -> str:
    """The paper's difference, where both runs fill its rows."""
    before, after = (BY_KEY.get((run.row or "", metric), ()) for run in (plain, mi))
    both = [(a, b) for a in before for b in after if a.panel == b.panel and against.fills(PANELS[a.panel], mi)]
    found = [b.value - a.value for a, b in both if a.value is not None and b.value is not None]
    return spelling.gap(found[0], printing(metric).digits) if found else NONE


# ---- trials, costs, records ----


def account_tables(view: View, sections: Sequence[Section]) -> list[Table]:
    """Runs beside the paper, settings that were tried, what it cost, and every record."""
    rows = [*ROWS, *(row for one in sections for row in one.rows)]
    return [_other_table(view, sections), _trial_table(view), _cost_table(view, rows), _run_table(view)]


def _trial_table(view: View) -> Table:
    """What was tried, recipe by recipe, the best on validation first."""
    plain = {
        (group.one.recipe, group.one.data.name): settings(group.one) for group in reversed(view.groups) if as_written(group.one)
    }
    columns = [
        Column("Recipe", "head", lambda group: group.one.recipe),
        *facts("Data"),
        Column("Changed", "note", lambda group: _tried(plain.get((group.one.recipe, group.one.data.name)), group.one)),
        *facts("Metric", "Validation", "Result", "Seeds", "Updates", "Time", "Device time"),
    ]
    note = (
        "Recipes that were also run as they stand, or at another rate, here with the settings in which they differ from that run. "
        "Settings are selected by validation scores."
    )
    groups = sorted((*view.trials, *_unselected(view)), key=lambda group: (group.one.recipe, group.loss))
    return tabulated("Trials", note, columns, groups)


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


def _cost_table(view: View, rows_of_panels: Sequence[Row]) -> Table:
    groups = (*view.groups, *view.trials)
    time, device_time = facts("Time", "Device time")
    columns = [
        Column("Recipe", "head", lambda group: label(group, groups)),
        *facts("Data"),
        Column("Runs", "number", lambda group: str(len(group.runs))),
        *facts("Updates", "Parameters"),
        time._replace(title="Time per run"),
        *facts("of it scoring"),
        device_time._replace(title="Device time per run"),
        Column("Time in all", "number", lambda group: duration(_total(group.runs, "seconds"))),
        Column("Device time in all", "number", lambda group: duration(_total(group.runs, "device_seconds"))),
        *facts("Throughput", "Device", "Precision", "torch"),
    ]
    note = (
        "Wall time of training and of the final scores, without the compilation of kernels, and the share of it in which the "
        "run had the device (wall time over the runs that shared it), means over seeds. Where no time of scoring is given, the "
        "record is of before November 2026 and its time is that of training alone. The last lines add up every record, also of a "
        "seed that was run again."
    )
    table = tabulated("Hardware and cost", note, columns, groups)
    sums = []
    for family, runs in families(view.records.runs, rows_of_panels).items():
        both = (Cell(duration(_total(runs, name)), "number") for name in ("seconds", "device_seconds"))
        lead = (Cell(f"{family} in all", "head"), Cell(", ".join(dict.fromkeys(run.data.name for run in runs)), "name"))
        sums.append((*lead, Cell(str(len(runs)), "number"), *[EMPTY] * 5, *both, *[EMPTY] * 4))
    return replace(table, rows=(*table.rows, *sums))


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
    def digits(run: Record) -> int:
        return spelling.how(run.main.metric).digits + 1

    def by(protocol: str) -> Column:
        def text(run: Record) -> str:
            one = run.result(run.main.metric.name, protocol, run.main.split)
            return raw(one and one.value, digits(run))

        return Column(protocol.capitalize(), "number", text)

    def fact(title: str) -> Column:
        return FACTS[title]._replace(text=lambda run: FACTS[title].text(Group((run,))))

    columns = [
        Column("Run", "head", lambda run: run.run),
        fact("Data"),
        Column("Changed", "note", lambda run: ", ".join(map(str, run.changed)) or NONE),
        Column("Seed", "number", lambda run: NONE if run.seed is None else str(run.seed)),
        Column("Result", "number", spelling.result),
        *map(by, spelling.protocols(view.records.runs)),
        Column("Validation", "number", lambda run: raw(run.valid, digits(run))),
        *map(fact, ("Parameters", "Updates", "Epochs", "Time", "Device time")),
        Column("Sessions", "number", lambda run: str(len(run.history) or NONE)),
        fact("Device"),
        Column("Commit", "name", lambda run: (run.commit or NONE) + (" ⚠ uncommitted changes" if run.dirty else "")),
        Column("Sum of the data", "", lambda run: (run.data.sha256 or NONE)[:12]),
    ]
    return tabulated("All runs", "Every record.", columns, view.records.runs)


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
