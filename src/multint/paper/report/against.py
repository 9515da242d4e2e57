"""Which runs fill which rows of the paper, and which run is the additive twin of which?"""

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multint.paper import experiments
from multint.paper.experiment import Experiment, Recipe
from multint.paper.numbers import PANELS, ROWS, Panel, Row, verdict
from multint.paper.overrides import RecipeError, rebuilt
from multint.paper.record import Record
from multint.paper.records import RATE, Group, Records, Scores, changes, gather, read, same_data, selected, settings

SINGLE = "1 seed"
SPREAD = "bpc"  # what the rows of standard deviations are the spread of


@dataclass(frozen=True)
class Standing:
    """A row, the runs that fill it, the runs of it at laptop size, and other runs of it: stand-in corpora, other settings."""

    row: Row
    group: Group | None
    laptop: Group | None
    beside: tuple[Group, ...]

    @property
    def scores(self) -> Scores | None:
        """The results of the runs that fill the row."""
        return self.group.of(self.row.metric, split=PANELS[self.row.panel].split) if self.group else None


@dataclass(frozen=True)
class Outcome:
    """Our number for a row of the paper, its verdict, and how many seeds it is the mean of."""

    value: float
    word: str
    seeds: int

    @property
    def counted(self) -> str:
        """What the row counts as: one seed gives no verdict."""
        return SINGLE if self.seeds == 1 else self.word


@dataclass(frozen=True)
class View:
    """All that both formats show. ``groups`` leaves out the trials."""

    records: Records
    groups: tuple[Group, ...]
    trials: tuple[Group, ...]
    recipes: Mapping[str, Recipe]
    experiments: Mapping[str, Experiment]
    warnings: tuple[str, ...]

    def picked(self, key: str, panel: str, scale: str = "paper", stand_in: bool = False) -> Group | None:
        """The runs that fill a row at the paper's size, or on a stand-in for its corpus, or that repeat it at laptop size."""
        corpus = PANELS[panel].corpus

        def right(run: Record) -> bool:
            if scale == "paper" and not stand_in:
                return fills(PANELS[panel], run)
            return run.scale == scale and as_written(run) and (scale != "paper" or run.data.stands_for == corpus)

        return selected([group for group in self.groups if group.one.row == key and right(group.one)])

    def note(self, group: Group) -> str:
        """What the recipe says of itself."""
        recipe = self.recipes.get(group.one.recipe)
        return recipe.note if recipe else ""


def look(results: Path) -> View:
    """The records, gathered, with the experiments and their recipes; one that cannot be imported is named in a warning."""
    loaded: dict[str, Experiment] = {}
    missing = []
    for name in experiments.names():
        try:
            loaded[name] = experiments.load(name)
        except RecipeError as error:  # noqa: PERF203 - a handful of experiments
            missing.append(str(error))
    recipes = dict(named for one in loaded.values() for named in one.named())
    records = read(results, recipes)
    gathered, repeated = gather(records.runs)
    written = {(run.recipe, run.data.name) for run in records.runs if as_written(run)}

    def is_trial(run: Record) -> bool:
        """Whether the recipe was changed, and was also run as it stands: such a run has a line among trials and no other."""
        return not as_written(run) and (run.recipe, run.data.name) in written

    groups, trials = (tuple(group for group in gathered if is_trial(group.one) == which) for which in (False, True))
    return View(records, groups, trials, recipes, loaded, (*records.warnings, *repeated, *missing))


# ---- rows ----


def standing(view: View, row: Row) -> Standing:
    mine = [group for group in view.groups if row.key and group.one.row == row.key and group.of(row.metric)]
    large = [group for group in mine if group.one.scale != "laptop"]
    panel = PANELS[row.panel]
    pick = selected([group for group in large if fills(panel, group.one) and group.of(row.metric, split=panel.split)])
    laptop = view.picked(row.key, row.panel, "laptop") if row.key else None
    return Standing(row, pick, laptop, tuple(group for group in large if group is not pick))


def fills(panel: Panel, run: Record) -> bool:
    """Only the paper's size and corpus, by the recipe as it stands, fill a row; all else stands beside it.

    The rate may have been selected from a grid, as the paper did.
    """
    return run.scale == "paper" and run.data.stands_for is None and run.data.name == panel.corpus and as_written(run)


def as_written(run: Record) -> bool:
    return not changes(run) and not run.data.own


# ---- verdicts ----


def outcome(view: View, row: Row, protocol: str | None = None) -> Outcome | None:
    """Our number for a row and its verdict; None if it was not run, or not by this protocol."""
    groups = [view.picked(key, row.panel) for key in row.over] if row.over else [standing(view, row).group]
    metric = SPREAD if row.over else row.metric
    found = [group and group.of(metric, protocol, PANELS[row.panel].split) for group in groups]
    sides = [one for one in found if one]
    if len(sides) < len(groups):
        return None
    value = spread([one.mean for one in sides], row.population) if row.over else sides[0].mean
    return Outcome(value, verdict(row, value), min(len(one.values) for one in sides))


def spread(means: Sequence[float], population: bool) -> float:
    """Standard deviation by one of the two formulas."""
    if not all(map(math.isfinite, means)):
        return math.nan
    return statistics.pstdev(means) if population else statistics.stdev(means)


def counted() -> list[Row]:
    """The numbers that the paper reports as its own, each once."""
    return [row for row in ROWS if (row.key or row.over) and row.value is not None and not row.repeats]


def tally(view: View) -> dict[str, dict[str, int]]:
    """The paper's own numbers by verdict, those of MI apart from additive baselines; one seed gives no verdict."""
    count = {side: dict.fromkeys(("better", "met", "miss", SINGLE, "not run"), 0) for side in ("MI", "additive")}
    for row in counted():
        found = outcome(view, row)
        count["MI" if row.twin else "additive"][found.counted if found else "not run"] += 1
    return count


def stays(view: View) -> dict[str, tuple[int, int]]:
    """Of the rows that are better or met by the main protocol: how many are by each other protocol, and of how many."""
    count: dict[str, tuple[int, int]] = {}
    for row in counted():
        found = outcome(view, row)
        if found and found.counted in ("better", "met"):
            for protocol in protocols(view, row):
                other = outcome(view, row, protocol)
                good, both = count.get(protocol, (0, 0))
                count[protocol] = good + bool(other and other.word in ("better", "met")), both + 1
    return count


def protocols(view: View, row: Row) -> list[str]:
    """The other protocols that the runs of a row were scored by."""
    group = view.picked(row.over[0], row.panel) if row.over else standing(view, row).group
    return group.protocols(SPREAD if row.over else row.metric)[1:] if group else []


# ---- twins ----


def twin(view: View, group: Group, among: Sequence[Group]) -> Group | None:
    """The runs of the additive recipe that a group is compared with: the same data, and the same changes of the recipe."""
    run = group.one
    mine = [one for one in among if one.one.recipe == run.twin and same_data(one.one) == same_data(run)]
    return selected([one for one in mine if _alike(run, one.one, idle(view, one.one))])


def _alike(mi: Record, plain: Record, idle: Container[str]) -> bool:
    """Whether both sides were changed in the same way, apart from the rate and from settings that do nothing on the additive side.

    Recipes for the user's data are not listed, so there settings are compared: they may differ in the form of integration alone.
    """
    if not mi.data.own:
        return _without(changes(mi), idle) == _without(changes(plain), idle)
    one, two = settings(mi), settings(plain)
    return len([key for key in one | two if one.get(key) != two.get(key) and key != RATE and key not in idle]) == 1


def _without(changed: Sequence[str], idle: Container[str]) -> list[str]:
    return [change for change in changed if change.partition("=")[0] not in idle]


def idle(view: View, run: Record) -> set[str]:
    """Settings that do nothing in a run."""
    try:
        experiment = view.experiments.get(run.recipe.partition("/")[0])
        base = view.recipes.get(run.recipe) or (experiment and experiment.own)
        return set(rebuilt(base, run.config).idle()) if base else set()
    except (TypeError, ValueError, AttributeError):
        return set()
