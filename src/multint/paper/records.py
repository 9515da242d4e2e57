"""What did the runs leave behind?

Reads ``results/runs.jsonl`` and the curves beside it, and gathers runs that differ in nothing but the seed. A record that cannot be
read is named in the warnings; it never stops the others from being read.
"""

import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from multint.paper.numbers import metric

RECORDS = "runs.jsonl"
MOST_BINS = 10_000  # of a histogram; more is no histogram
SAID = ("cite", "note", "paper")  # entries of a configuration that no run depends on


@dataclass(frozen=True)
class Histogram:
    """How many hidden activations fell into each of the equal bins from -reach to reach."""

    reach: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """Mean L2 norms of the two flows, W x and U h, one number per gate."""

    wx: tuple[float, ...]
    uh: tuple[float, ...]


@dataclass(frozen=True)
class Flows:
    """The two flows before training and after it."""

    gates: tuple[str, ...]
    start: Flow | None = None
    end: Flow | None = None


@dataclass(frozen=True)
class Measured:
    """What was seen inside the model, with its best weights on the validation set; what was not measured is None.

    Args:
        saturated: share of activations with |h| > 0.9.
        near_zero: share of activations with |h| < 0.1.
    """

    histogram: Histogram | None = None
    saturated: float | None = None
    near_zero: float | None = None
    flows: Flows | None = None


@dataclass(frozen=True)
class Run:
    """One line of ``runs.jsonl``: a finished run and the number it is judged by."""

    run: str
    recipe: str
    corpus: str
    metric: str
    split: str
    value: float
    stands_for: str | None = None
    protocols: Mapping[str, float] = field(default_factory=dict)
    valid: float | None = None
    paper: float | None = None
    seed: int | None = None
    commit: str | None = None
    dirty: bool = False
    data: str | None = None
    device: str | None = None
    python: str | None = None
    torch: str | None = None
    precision: str | None = None
    parameters: int | None = None
    updates: int | None = None
    epochs: float | None = None
    ended: str | None = None
    changed: Sequence[str] = ()
    text: bool = False  # a text of the user's, whatever it is called
    as_bytes: bool = False  # read so, not as characters
    seconds: float | None = None
    chars_per_second: float | None = None
    shared: int = 1  # runs on the device at the time, this one among them
    measured: Measured = Measured()
    curve: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Any] = ()

    @property
    def device_seconds(self) -> float | None:
        """The run's share of the time its device was taken, sitting by sitting where they are known.

        An estimate: whoever ends later has the device to share with fewer.
        """
        if self.seconds is None:
            return None
        sittings: list[tuple[Any, Any]] = [(s.get("seconds"), s.get("shared")) for s in self.history if isinstance(s, Mapping)]
        if not sittings or not all(_is_number(x) and 0 < x < math.inf for sitting in sittings for x in sitting):
            return self.seconds / self.shared
        return float(self.seconds * sum(seconds / shared for seconds, shared in sittings) / sum(seconds for seconds, _ in sittings))


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
class Group:
    """Runs of one recipe with one setting on one corpus: they differ in the seed."""

    runs: tuple[Run, ...]

    @property
    def one(self) -> Run:
        """Any of the runs, for what they share."""
        return self.runs[0]

    @property
    def values(self) -> list[float]:
        return [run.value for run in self.runs]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.runs) > 1 and math.isfinite(self.mean) else None

    @property
    def best(self) -> float:
        return min(self.values) if metric(self.one.metric).lower else max(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if metric(self.one.metric).lower else min(self.values)

    @property
    def valid(self) -> float | None:
        """Mean validation result, which settings are chosen by; None unless every run has one."""
        found = [run.valid for run in self.runs if run.valid is not None and math.isfinite(run.valid)]
        return sum(found) / len(found) if len(found) == len(self.runs) else None

    def average(self, name: str) -> float | None:
        """Mean of a numeric field over the runs that have it."""
        found = [float(x) for run in self.runs if (x := getattr(run, name)) is not None]
        return sum(found) / len(found) if found else None

    def different(self, name: str) -> list[str]:
        """The different values of a field, in order of appearance."""
        return list(dict.fromkeys(str(x) for run in self.runs if (x := getattr(run, name)) is not None))


@dataclass(frozen=True)
class Records:
    """Everything read from a results folder. ``curves`` is by run name."""

    runs: tuple[Run, ...]
    curves: Mapping[str, tuple[Point, ...]]
    warnings: tuple[str, ...]


def read(results: Path) -> Records:
    """The records under ``results``; what could not be read is told in ``warnings``."""
    runs, warnings = _read_runs(results / RECORDS)
    curves: dict[str, tuple[Point, ...]] = {}
    for run in runs:
        if run.curve is not None and run.run not in curves:
            points, told = _read_curve(results, run)
            warnings += told
            if points:
                curves[run.run] = points
    return Records(tuple(runs), curves, tuple(warnings))


def gather(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Runs that share all but the seed, in order of recipe and seed; of a seed run twice, the later."""
    found: dict[tuple[str, ...], dict[Any, Run]] = {}
    warnings = []
    for place, run in enumerate(runs):
        key = (run.recipe, *same_data(run), run.metric, run.split, settings(run.config, but=("seed",)))
        seeds = found.setdefault(key, {})
        seed = ("unseeded", place) if run.seed is None else run.seed
        if seed in seeds:
            warnings.append(
                f"{seeds[seed].run}: seed {run.seed} was run again with the same setting; only the later, {run.run}, counts"
            )
        seeds[seed] = run
    ordered = (sorted(seeds.values(), key=lambda run: -1 if run.seed is None else run.seed) for seeds in found.values())
    return sorted((Group(tuple(runs)) for runs in ordered), key=lambda group: group.runs[0].recipe), warnings


def same_data(run: Run) -> tuple[str, ...]:
    """What two runs must share to be compared: the symbols they saw, and the precision they were trained in."""
    return run.corpus, str(run.stands_for), str(run.data), str(run.as_bytes), str(run.precision)


def settings(config: Mapping[str, Any], but: Sequence[str] = ()) -> str:
    """A configuration in one spelling, without what is only said about it and without some settings."""
    kept = {key: value for key, value in flat(config).items() if key not in (*SAID, *but)}
    return json.dumps(kept, sort_keys=True)


def chosen(groups: Sequence[Group]) -> Group | None:
    """Of the settings run with most seeds the one with the best mean validation result; the test result plays no part in it.

    A grid is walked with one seed and its best point repeated with more: a lucky single run must not displace those.
    """

    def rank(group: Group) -> tuple[int, bool, float]:
        valid = group.valid
        sign = 1 if metric(group.one.metric).lower else -1
        return (-len(group.runs), valid is None, sign * valid if valid is not None else 0.0)

    return min(groups, key=rank, default=None)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration with nested names joined by dots.

    >>> flat({"hidden": 8, "schedule": {"lr": 0.001}})
    {'hidden': '8', 'schedule.lr': '0.001'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The entries that are not the same in all configurations; "—" where one lacks the entry.

    >>> differences([{"lr": 0.1, "hidden": 8}, {"lr": 0.2, "hidden": 8}])
    {'lr': ['0.1', '0.2']}
    """
    flats = [flat(config) for config in configs]
    rows = {key: [one.get(key, "—") for one in flats] for key in dict.fromkeys(key for one in flats for key in one)}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


# --- reading ---------------------------------------------------------------------------------------------------------------------

_TEXT = {
    "ended",
    "python",
    "run",
    "recipe",
    "corpus",
    "metric",
    "split",
    "stands_for",
    "commit",
    "data",
    "device",
    "torch",
    "precision",
    "curve",
}
_COUNTS = {"seed", "parameters", "updates"}
_NUMBERS = {"value", "valid", "paper", "epochs", "seconds", "chars_per_second"}
_POINT = ("update", "epoch", "seconds", "train", "valid")
_REQUIRED = ("run", "recipe", "corpus", "metric", "split", "value")
_KNOWN = {f.name for f in fields(Run)}


def _read_runs(path: Path) -> tuple[list[Run], list[str]]:
    if not path.exists():
        return [], [f"{path.name}: not there yet; nothing has been run"]
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")  # not splitlines: a name may hold other line breaks
    runs: list[Run] = []
    warnings: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            torn = number == len(lines)
            warnings.append(f"{where}: {'torn, the last line has no end' if torn else 'not JSON'} ({error}); left out")
            continue
        run, told = _parse(record, where)
        warnings += told
        if run is not None:
            runs.append(run)
    return runs, warnings


def _parse(record: Any, where: str) -> tuple[Run | None, list[str]]:
    if not isinstance(record, dict):
        return None, [f"{where}: expected an object, got {type(record).__name__}; left out"]
    name = record.get("run")
    where = f"{where} ({name})" if isinstance(name, str) else where
    unknown = sorted(set(record) - _KNOWN)
    warnings = [f"{where}: unknown field{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; ignored"] if unknown else []
    values: dict[str, Any] = {}
    for key in sorted(_KNOWN & set(record)):
        if record[key] is None:
            continue
        if key == "measured":
            values[key], told = _measured(record[key], where)
            warnings += told
            continue
        value = _typed(key, record[key])
        if value is None:
            warnings.append(f"{where}: cannot read {key} = {_short(record[key])}; ignored")
        else:
            values[key] = value
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        return None, [*warnings, f"{where}: no {', '.join(missing)}; left out"]
    return Run(**values), warnings


def _typed(key: str, value: Any) -> Any:
    """``value`` as the field's type, or None if it cannot be."""
    number = _is_number(value)
    if key in _TEXT:
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None  # JSON may hold half a character
    if key in _NUMBERS:
        return _float(value) if number else None
    if key in _COUNTS:
        return int(value) if number and abs(value) < 1e18 else None
    if key == "shared":
        return int(value) if number and 1 <= value < 1e18 else None
    if key in ("dirty", "text", "as_bytes"):
        return value if isinstance(value, bool) else None
    if key in ("history", "changed"):
        return tuple(value) if isinstance(value, list) else None
    if key == "protocols":
        sound = isinstance(value, dict) and all(isinstance(x, (int, float)) for x in value.values())
        return {k: _float(x) for k, x in value.items()} if sound else None
    return value if isinstance(value, dict) else None  # config


def _measured(record: Any, where: str) -> tuple[Measured, list[str]]:
    """The parts that can be read; the others are named."""
    if not isinstance(record, dict):
        return Measured(), [f"{where}: cannot read measured = {_short(record)}; ignored"]
    parts = {"histogram": _histogram, "saturated": _share, "near_zero": _share, "flows": _flows}
    values: dict[str, Any] = {}
    told = []
    for key, part in sorted(record.items()):
        value = parts[key](part) if key in parts and part is not None else None
        if value is not None:
            values[key] = value
        elif part is not None:
            told.append(f"{where}: cannot read measured.{_short(key)[1:-1]} = {_short(part)}; ignored")
    return Measured(**values), told


def _histogram(value: Any) -> Histogram | None:
    if not isinstance(value, dict):
        return None
    reach: Any = value.get("reach")
    counts = value.get("counts")
    if not _is_number(reach) or not 0 < reach < 1e9 or not isinstance(counts, list) or not 0 < len(counts) <= MOST_BINS:
        return None
    sound = all(_is_number(count) and 0 <= count < 1e18 for count in counts)
    return Histogram(float(reach), tuple(map(int, counts))) if sound and any(counts) else None


def _share(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 <= value <= 1 else None


def _flows(value: Any) -> Flows | None:
    gates = value.get("gates") if isinstance(value, dict) else None
    if not isinstance(gates, list) or not gates or not all(isinstance(gate, str) for gate in gates):
        return None
    ends = {key: _flow(value[key], len(gates)) for key in ("start", "end") if value.get(key) is not None}
    names = tuple(gate.encode("utf-8", "replace").decode() for gate in gates)
    return None if not ends or None in ends.values() else Flows(names, **ends)


def _flow(value: Any, gates: int) -> Flow | None:
    norms: list[Any] = [value.get(key) for key in ("wx", "uh")] if isinstance(value, dict) else []
    sound = len(norms) == 2 and all(
        isinstance(one, list) and len(one) == gates and all(_is_number(x) and 0 <= x < 1e18 for x in one) for one in norms
    )
    return Flow(*(tuple(map(float, one)) for one in norms)) if sound else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _short(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _read_curve(results: Path, run: Run) -> tuple[tuple[Point, ...], list[str]]:
    assert run.curve is not None
    path = (results / run.curve).resolve()
    if not path.is_relative_to(results.resolve()):
        return (), [f"{run.run}: its curve {run.curve} lies outside the results folder; not read"]
    if not path.is_file():
        return (), [f"{run.run}: its curve {run.curve} is missing"]
    points: dict[float, Point] = {}  # a resumed run repeats updates; the later line is what happened
    bad: dict[str, list[int]] = {}  # numbers of lines by what of them could not be read
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.DictReader(lines)
        names = reader.fieldnames or ()
        if "update" not in names:
            return (), [f"{run.curve}: no column named update; not read"]
        others = [name for name in names if name not in _POINT]
        for number, line in enumerate(reader, start=2):
            point = _point(line)
            if point is None:
                bad.setdefault("cannot be read; left out", []).append(number)
                continue
            extra, unread = _extra(line, others)
            for name in unread:
                bad.setdefault(f"cannot read {_short(name)[1:-1]}; ignored", []).append(number)
            points[point.update] = replace(point, extra=extra)
    more = {what: f" and {len(found) - 1} more" if len(found) > 1 else "" for what, found in bad.items()}
    told = [f"{run.curve} line {found[0]}{more[what]}: {what}" for what, found in bad.items()]
    return tuple(points[update] for update in sorted(points)), told


def _point(line: Mapping[str | None, Any]) -> Point | None:
    try:
        update, epoch, seconds, train, valid = (_cell(line.get(name)) for name in _POINT)
    except ValueError:
        return None
    return None if update is None else Point(update, epoch, seconds, train, valid)


def _extra(line: Mapping[str | None, Any], names: Iterable[str]) -> tuple[dict[str, float], list[str]]:
    """The other columns of a line that hold a number, and the names of those that hold something else."""
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


def _cell(text: str | None) -> float | None:
    value = float(text) if text else None
    return value if value is not None and math.isfinite(value) else None
