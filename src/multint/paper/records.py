"""Which records belong together?

Reads the records of a results folder with the curves beside them, gathers runs that differ in the seed alone, and selects among
settings by validation. What cannot be read of a curve is named in a warning.
"""

import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multint.paper import record
from multint.paper.experiment import SAID, Metric, Recipe
from multint.paper.record import Record, flat

RATE = "schedule.lr"  # the setting that every recipe may search


@dataclass(frozen=True)
class Point:
    """One line of a curve; what was not measured there is None. ``extra``: its other columns; -inf is the log of nothing."""

    update: float
    epoch: float | None
    seconds: float | None
    train: float | None
    valid: float | None
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """One result of a group: a value for every run that has it."""

    metric: Metric
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else None

    @property
    def best(self) -> float:
        return min(self.values) if self.metric.lower else max(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.metric.lower else min(self.values)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with one setting on the same data: they differ in the seed."""

    runs: tuple[Record, ...]

    @property
    def one(self) -> Record:
        """Any of the runs, for what they share."""
        return self.runs[0]

    @property
    def main(self) -> Scores:
        """The result that stands for the runs where there is room for one."""
        main = self.one.main
        return self.of(main.metric.name, main.protocol, main.split, main.dataset) or Scores(main.metric, (main.value,))

    def of(self, metric: str, protocol: str | None = None, split: str | None = None, dataset: str | None = None) -> Scores | None:
        """The first result of a metric, of one protocol, split or dataset if named; None if no run has it."""
        found = [one for run in self.runs if (one := run.result(metric, protocol, split, dataset))]
        return Scores(found[0].metric, tuple(one.value for one in found)) if found else None

    def protocols(self, metric: str) -> list[str]:
        """The protocols a metric was taken by, the main one first."""
        return list(dict.fromkeys(one.protocol for run in self.runs for one in run.results if one.metric.name == metric))

    @property
    def metrics(self) -> list[Metric]:
        return list({one.metric.name: one.metric for run in self.runs for one in run.results}.values())

    @property
    def valid(self) -> float | None:
        """Mean validation score, which settings are selected by; None unless every run has one."""
        found = [run.valid for run in self.runs if run.valid is not None and math.isfinite(run.valid)]
        return sum(found) / len(found) if len(found) == len(self.runs) else None

    @property
    def loss(self) -> float:
        """The validation score turned so that lower is better; inf where there is none."""
        if self.valid is None or self.one.selected_by is None:
            return math.inf
        return self.valid if self.one.selected_by.metric.lower else -self.valid

    def average(self, name: str) -> float | None:
        """Mean of a numeric field over the runs that have it."""
        found = [float(x) for run in self.runs if (x := getattr(run, name)) is not None]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class Records:
    """Everything read from a results folder. ``curves`` is by run name."""

    runs: tuple[Record, ...]
    curves: Mapping[str, tuple[Point, ...]]
    warnings: tuple[str, ...]


def read(results: Path, recipes: Mapping[str, Recipe] | None = None) -> Records:
    """The records under ``results`` and their curves; ``warnings`` name what could not be read."""
    runs, warnings = record.read(results, recipes)
    curves: dict[str, tuple[Point, ...]] = {}
    for run in runs:
        if run.curve is not None and run.run not in curves:
            points, faults = _read_curve(results, run.run, run.curve)
            warnings += faults
            if points:
                curves[run.run] = points
    return Records(tuple(runs), curves, tuple(warnings))


# --- grouping --------------------------------------------------------------------------------------------------------------------


def gather(runs: Iterable[Record]) -> tuple[list[Group], list[str]]:
    """Runs that share all but the seed, in order of recipe and seed; of a seed run twice, the later."""
    found: dict[tuple[str, ...], dict[Any, Record]] = {}
    repeated: list[str] = []
    for place, run in enumerate(runs):
        recipe = "" if run.data.own else run.recipe  # whose name on the user's data may hold the name of a file
        key = (recipe, *same_data(run), run.main.metric.name, run.main.split, json.dumps(settings(run), sort_keys=True))
        seeds = found.setdefault(key, {})
        seed = ("unseeded", place) if run.seed is None else run.seed
        if seed in seeds:
            repeated.append(seeds[seed].run)
        seeds[seed] = run
    many = "one run was" if len(repeated) == 1 else f"{len(repeated)} runs were"
    warnings = (
        [f"{many} repeated with the same seed and setting; only the later counts, not {', '.join(repeated)}"] if repeated else []
    )
    ordered = (sorted(seeds.values(), key=lambda run: -1 if run.seed is None else run.seed) for seeds in found.values())
    return sorted((Group(tuple(runs)) for runs in ordered), key=lambda group: group.one.recipe), warnings


def same_data(run: Record) -> tuple[str, ...]:
    """What two runs must share to be compared: the data they saw, and the precision they were trained in.

    The user's own data is known by its content alone: a file may be moved, renamed and copied.
    """
    where = () if run.data.own and run.data.sha256 else (run.data.name, str(run.data.stands_for))
    return (*where, str(run.data.own), str(run.data.sha256), run.data.form, str(run.precision))


def settings(run: Record) -> dict[str, str]:
    """A run's settings, without its seed, what is only said about it, and names of the user's files."""
    own = {key for key, value in run.config.items() if run.data.own and value == run.data.name}
    return {key: value for key, value in flat(run.config).items() if key not in {"seed", *SAID, *own}}


def selected(groups: Sequence[Group]) -> Group | None:
    """Of the settings run with most seeds the one with the best mean validation score; test results play no part in it.

    A grid is run with one seed and its best point repeated with more: a lucky single run must not displace those.
    """
    return min(groups, key=lambda group: (-len(group.runs), group.valid is None, group.loss), default=None)


def changes(run: Record) -> list[str]:
    """What was changed of a recipe, without the rate, which each side may select."""
    return sorted(change for change in map(str, run.changed) if not change.startswith(f"{RATE}="))


def label(group: Group, among: Iterable[Group] = ()) -> str:
    """The recipe, what was changed of it, and the settings in which it differs from other groups of that recipe on that data."""
    mine = [one for one in among if one.one.recipe == group.one.recipe and same_data(one.one) == same_data(group.one)]
    others, own = [settings(one.one) for one in mine if one is not group], settings(group.one)
    known = {change.partition("=")[0] for change in changes(group.one)}
    keys = [key for key in own if key not in known and any(one.get(key) != own[key] for one in others)]
    words = [*changes(group.one), *(f"{key}={own[key]}" for key in keys)]
    return "; with ".join(filter(None, (group.one.recipe, ", ".join(words))))


# --- curves ----------------------------------------------------------------------------------------------------------------------

_POINT = ("update", "epoch", "seconds", "train", "valid")


def _read_curve(results: Path, run: str, curve: str) -> tuple[tuple[Point, ...], list[str]]:
    path = (results / curve).resolve()
    if not path.is_relative_to(results.resolve()):
        return (), [f"{run}: its curve {curve} lies outside the results folder; not read"]
    if not path.is_file():
        return (), [f"{run}: its curve {curve} is missing"]
    points: dict[float, Point] = {}  # a resumed run repeats updates; the later line is what happened
    bad: dict[str, list[int]] = {}  # numbers of lines by what of them could not be read
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        rows = csv.DictReader(lines)
        names = list(rows.fieldnames or ())
        if "update" not in names:
            return (), [f"{curve}: no column named update; not read"]
        for number, line in enumerate(rows, start=2):
            values, unread = _numbers(line, names)
            known = [x if math.isfinite(x := values.pop(name, math.nan)) else None for name in _POINT]
            update, epoch, seconds, train, valid = known
            if update is None or not set(_POINT).isdisjoint(unread):
                bad.setdefault("cannot be read; left out", []).append(number)
                continue
            for name in unread:
                bad.setdefault(f"cannot read {repr(name[:60])[1:-1]}; ignored", []).append(number)
            points[update] = Point(update, epoch, seconds, train, valid, values)
    more = {what: f" and {len(found) - 1} more" if len(found) > 1 else "" for what, found in bad.items()}
    faults = [f"{curve} line {found[0]}{more[what]}: {what}" for what, found in bad.items()]
    return tuple(points[update] for update in sorted(points)), faults


def _numbers(line: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, float], list[str]]:
    """The columns of a line that hold a number, and the names of those that hold something else."""
    found: dict[str, float] = {}
    unread = []
    for name in names:
        try:
            value = float(line.get(name) or "nan")
        except ValueError:
            unread.append(name)
            continue
        if math.isfinite(value) or value == -math.inf:
            found[name] = value
    return found, unread
