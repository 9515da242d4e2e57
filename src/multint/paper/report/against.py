"""Which runs fill which rows of the paper?"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from multint.paper.numbers import BY_RECIPE, PANELS, ROWS, VARIANTS, Panel, Row, printed, verdict
from multint.paper.records import Group, Records, Run, chosen, gather, read


@dataclass(frozen=True)
class Standing:
    """A row, the runs that fill it, and runs of it that do not: stand-in corpora, other settings."""

    row: Row
    group: Group | None
    beside: tuple[Group, ...]


@dataclass(frozen=True)
class View:
    """All that both formats show."""

    records: Records
    groups: tuple[Group, ...]  # but for the trials
    trials: tuple[Group, ...]
    standings: tuple[Standing, ...]
    warnings: tuple[str, ...]


def look(results: Path) -> View:
    """The records, gathered and set against the paper's rows."""
    records = read(results)
    gathered, repeated = gather(records.runs)
    known = whole(records.runs)
    groups, trials = (tuple(group for group in gathered if is_trial(group.one, known) == which) for which in (False, True))
    standings = tuple(_standing(row, groups) for row in ROWS)
    return View(records, groups, trials, standings, (*records.warnings, *repeated, *_disagreements(records.runs)))


def rows_of(run: Run) -> tuple[Row, ...]:
    """The rows a run repeats. On a stand-in or a variant a recipe is named after it: text8-74M-milstm repeats text8-milstm."""
    home = run.recipe
    if run.text:
        return ()  # whatever the file is called
    if run.stands_for:
        home = home.replace(run.corpus, run.stands_for)
    elif run.corpus in VARIANTS:
        home = home.replace(run.corpus, VARIANTS[run.corpus].named)
    return BY_RECIPE.get((run.recipe, run.metric)) or BY_RECIPE.get((home, run.metric), ())


def fills(panel: Panel, run: Run) -> bool:
    """Only the paper's corpus and split, by the recipe as it stands, fill a row; everything else stands beside it.

    The rate may have been chosen from a grid, as the paper did.
    """
    return run.stands_for is None and run.corpus == panel.corpus and run.split == panel.split and as_written(run)


def as_written(run: Run) -> bool:
    return all(str(change).startswith("schedule.lr=") for change in run.changed)


def changed(run: Run) -> str:
    """What was changed of a recipe, but for the rate, which each side may choose, and a form that its name says."""
    form = f"integration={'additive' if additive(run.recipe) is None else 'general'}"
    return ", ".join(sorted(str(c) for c in run.changed if str(c) != form and not str(c).startswith("schedule.lr=")))


def whole(runs: Iterable[Run]) -> set[str]:
    """The recipes that were run as they stand."""
    return {run.recipe for run in runs if not changed(run)}


def is_trial(run: Run, known: Container[str]) -> bool:
    """Whether something was changed of a recipe that was also run as it stands: such a run has a line among trials and no other."""
    return bool(changed(run)) and run.recipe in known


def _standing(row: Row, groups: Sequence[Group]) -> Standing:
    mine = [group for group in groups if row in rows_of(group.one)]
    pick = chosen([group for group in mine if fills(PANELS[row.panel], group.one)])
    return Standing(row, pick, tuple(group for group in mine if group is not pick))


def _disagreements(runs: Iterable[Run]) -> list[str]:
    """The table in numbers.py is what is shown; a record that says otherwise is named."""
    found = (
        f"{run.run}: says the paper has {run.paper}; its row in the paper says {printed(row)}"
        for run in runs
        for row in rows_of(run)
        if row.value is not None and run.paper is not None and fills(PANELS[row.panel], run) and run.paper != row.value
    )
    return list(dict.fromkeys(found))


def tally(standings: Iterable[Standing]) -> dict[str, int]:
    count = {"better": 0, "met": 0, "miss": 0, "not run": 0}
    for s in standings:
        if s.row.recipe and s.row.value is not None and not s.row.repeats:
            count[verdict(s.row, s.group.mean) if s.group else "not run"] += 1
    return count


def additive(recipe: str) -> str | None:
    """The recipe's additive twin by name, or None if it is not an MI recipe.

    A twin has no alpha and no betas: wherever these start, it is the same.

    >>> additive("exploratory/ptb-linmirnn"), additive("charlm/enwik8-milstm-a1-b0.5-drop"), additive("charlm/text8-lstm")
    ('exploratory/ptb-linrnn', 'charlm/enwik8-lstm-drop', None)
    """
    twin = re.sub(r"(?<=[-/])(lin)?mi(rnn|lstm|gru)(-a[\d.]+-b[\d.]+)?(?=-|$)", r"\1\2", recipe)
    return twin if twin != recipe else None


def picked(view: View, recipe: str) -> Group | None:
    """The runs of a recipe of §3.1 that fill its row."""
    mine = [group for group in view.groups if group.one.recipe == recipe and group.one.metric == "bpc"]
    return chosen([group for group in mine if fills(PANELS["ptb"], group.one)])
