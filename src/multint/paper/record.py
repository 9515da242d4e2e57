"""What does a finished run leave behind? One line of ``results/runs.jsonl``, which this file alone writes and reads.

``Record`` is the schema. A line of an older version is upgraded when it is read, so no other file knows that there was one. A line
that cannot be read is named in a warning; it never stops the others from being read.
"""

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from multint.paper.experiment import SAID, Metric, Recipe, Result

VERSION = 2
RECORDS = "runs.jsonl"
LONGEST = 1e18  # whole numbers beyond it are no counts


@dataclass(frozen=True)
class Data:
    """What a run was trained on: ``experiment.Dataset``, without its content."""

    name: str
    sha256: str | None = None
    stands_for: str | None = None
    own: bool = False
    form: str = ""


@dataclass(frozen=True)
class Throughput:
    """Work per second of training, without the updates in which kernels are compiled."""

    value: float
    unit: str


@dataclass(frozen=True)
class Selected:
    """The validation score of the weights that were kept."""

    metric: Metric
    value: float


@dataclass(frozen=True)
class Record:
    """A finished run.

    Args:
        row, twin, scale: as the recipe says them.
        changed: overrides that differ from the recipe, spelled out.
        seconds: wall time of training and of the final scores, over all sessions; without the compilation of the CPU loop.
        scoring_seconds: the part of it that the final scores took.
        shared: runs on the device at the time, this one among them.
        results: of one metric the first counts, the others are other protocols.
        measured: what the experiment says beside its results.
        config: the recipe's settings.
        history: the sessions of the run.
    """

    run: str
    recipe: str
    data: Data
    results: tuple[Result, ...]
    version: int = VERSION
    row: str | None = None
    twin: str | None = None
    scale: str = ""
    seed: int | None = None
    precision: str | None = None
    changed: tuple[str, ...] = ()
    commit: str | None = None
    dirty: bool = False
    device: str | None = None
    shared: int = 1
    versions: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    updates: int | None = None
    epochs: int | None = None
    ended: str | None = None
    seconds: float | None = None
    scoring_seconds: float | None = None
    throughput: Throughput | None = None
    selected_by: Selected | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Any, ...] = ()
    curve: str | None = None

    def result(
        self, metric: str, protocol: str | None = None, split: str | None = None, dataset: str | None = None
    ) -> Result | None:
        """The first result of a metric, of one protocol, split or dataset if named."""
        wanted = {"protocol": protocol, "split": split, "dataset": dataset}
        of_metric = (one for one in self.results if one.metric.name == metric)
        return next((one for one in of_metric if all(want in (None, getattr(one, name)) for name, want in wanted.items())), None)

    @property
    def main(self) -> Result:
        """The result that stands for the run where there is room for one."""
        return self.results[0]

    @property
    def valid(self) -> float | None:
        return None if self.selected_by is None else self.selected_by.value

    @property
    def device_seconds(self) -> float | None:
        """The run's share of the time its device was taken, session by session where they are known.

        An estimate: the run that ends last shares the device with fewer.
        """
        if self.seconds is None:
            return None
        parts: list[tuple[Any, Any]] = [(s.get("seconds"), s.get("shared")) for s in self.history if isinstance(s, Mapping)]
        if not parts or not all(_is_number(x) and 0 < x < math.inf for part in parts for x in part):
            return self.seconds / max(self.shared, 1)
        return float(self.seconds * sum(seconds / shared for seconds, shared in parts) / sum(seconds for seconds, _ in parts))


# ---- writing ----


def line(record: Record) -> str:
    """The record as one line of JSON."""
    return json.dumps(asdict(record), default=str)


# ---- reading ----


def parse(value: Any, where: str, recipes: Mapping[str, Recipe] | None = None) -> tuple[Record | None, list[str]]:
    """A record from JSON, and what could not be read of it.

    ``recipes`` complete lines of version 1, which did not name row and twin.
    """
    if not isinstance(value, dict):
        return None, [f"{where}: expected an object, got {type(value).__name__}; left out"]
    name = value.get("run")
    where = f"{where} ({name})" if isinstance(name, str) else where
    version = value.get("version", 1)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        return None, [f"{where}: version {_short(version)}, this program reads up to {VERSION}; update multint; left out"]
    if version == 1:
        value = _from_version_1(value, recipes or {})
    warnings: list[str] = []
    record = _decode(Record, value, "", where, warnings)
    if record is not None and not record.results:
        warnings.append(f"{where}: no results; left out")
        record = None
    return record, warnings


def read(results: Path, recipes: Mapping[str, Recipe] | None = None) -> tuple[list[Record], list[str]]:
    """The records of a results folder, and warnings."""
    path = results / RECORDS
    if not path.exists():
        return [], [f"{RECORDS}: not there yet; nothing has been run"]
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # not splitlines: a name may hold other line breaks
    records: list[Record] = []
    warnings: list[str] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        where = f"{RECORDS} line {number}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            torn = number == len(lines)
            warnings.append(f"{where}: {'torn, the last line has no end' if torn else 'not JSON'} ({error}); left out")
            continue
        record, faults = parse(value, where, recipes)
        warnings += faults
        if record is not None:
            records.append(record)
    return records, warnings


def _from_version_1(old: dict[str, Any], recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Lines written until November 2026, all of character models: one metric on one split, protocols by name."""
    gone = {"corpus", "stands_for", "metric", "split", "value", "protocols", "valid", "paper", "data", "python", "torch", "text"}
    gone |= {"as_bytes", "chars_per_second"}
    new = {key: value for key, value in old.items() if key not in gone and value is not None} | {"version": VERSION}
    own = old.get("text") is True
    form = "bytes" if old.get("as_bytes") is True else ""
    new["data"] = {"name": old.get("corpus"), "stands_for": old.get("stands_for"), "own": own, "form": form}
    if isinstance(old.get("data"), str):
        new["data"]["sha256"] = old["data"].removeprefix("sha256:")
    name = old.get("metric")
    metric = {"name": name, "unit": "BPC" if name == "bpc" else name, "lower": True}
    shared = {"metric": metric, "dataset": old.get("corpus"), "split": old.get("split"), "n": 0}
    named = old.get("protocols") or {"": old.get("value")}
    if isinstance(named, dict):
        first = [key for key, value in named.items() if value == old.get("value")][:1]
        order = [*first, *(key for key in named if key not in first)]
        new["results"] = [{**shared, "protocol": key, "value": named[key]} for key in order]
    if old.get("valid") is not None:
        new["selected_by"] = {"metric": metric, "value": old["valid"]}
    if old.get("chars_per_second") is not None:
        new["throughput"] = {"value": old["chars_per_second"], "unit": "characters"}
    new["versions"] = {key: old[key] for key in ("python", "torch") if old.get(key) is not None}
    if isinstance(old.get("config"), dict):
        new["config"] = _config_of_version_1(old["config"], own)
    return new | _named_by_recipe(old, own, recipes)


def _config_of_version_1(old: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """The settings, with those that old lines left out where they did nothing."""
    new = {"dropout": 0.0} | {key: value for key, value in old.items() if key not in (*SAID, "paper")}
    if isinstance(new.get("schedule"), dict):
        new["schedule"] = {"linear": False} | new["schedule"]
    if own:
        new.pop("corpus", None)
    return new


def _named_by_recipe(old: Mapping[str, Any], own: bool, recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Row, twin and scale of a version 1 line, which did not say them."""
    name, config = old.get("recipe"), old.get("config")
    if own and isinstance(name, str) and isinstance(config, dict):
        cell = config.get("cell")
        mi = config.get("integration") != "additive" and name.endswith(f"mi{cell}")
        return {"twin": f"{name.removesuffix(f'mi{cell}')}{cell}"} if mi else {}
    recipe = recipes.get(str(name))
    return {} if recipe is None else {"row": recipe.row, "twin": recipe.twin, "scale": recipe.scale}


# ---- values of a type, from JSON ----


_hints = cache(get_type_hints)


class _Unreadable(ValueError):
    pass


def _decode(kind: type, value: Mapping[str, Any], prefix: str, where: str, warnings: list[str]) -> Any:
    """An instance of a dataclass; None, with a warning, if something it cannot do without is missing. Other faults are ignored."""
    known = {one.name: one for one in fields(kind)}
    unknown = sorted(f"{prefix}{key}" for key in set(value) - set(known))
    if unknown:
        warnings.append(f"{where}: unknown field{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; ignored")
    found: dict[str, Any] = {}
    for key, hint in _hints(kind).items():
        if value.get(key) is None:
            continue
        try:
            found[key] = _typed(hint, value[key], f"{prefix}{key}.", where, warnings)
        except _Unreadable:
            warnings.append(f"{where}: cannot read {prefix}{key} = {_short(value[key])}; ignored")
    needed = [key for key, one in known.items() if one.default is MISSING and one.default_factory is MISSING]
    missing = [f"{prefix}{key}" for key in needed if key not in found]
    if missing:
        warnings.append(f"{where}: no {', '.join(missing)}; left out")
        return None
    return kind(**found)


def _typed(hint: Any, value: Any, prefix: str, where: str, warnings: list[str]) -> Any:
    """``value`` as the annotated type; _Unreadable if it is not one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (hint,) = (one for one in arguments if one is not type(None))
        return _typed(hint, value, prefix, where, warnings)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        part = _decode(hint, value, prefix, where, warnings)
        if part is not None:
            return part
    elif origin is tuple and isinstance(value, list):
        return tuple(_typed(arguments[0], one, f"{prefix}{place}.", where, warnings) for place, one in enumerate(value))
    elif hint is Any or (origin is Mapping and isinstance(value, dict)):
        return value
    elif hint is str and isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON may hold half a character
    elif hint is bool and isinstance(value, bool):
        return value
    elif hint is float and _is_number(value):
        return _float(value)
    elif hint is int and _is_number(value) and abs(value) < LONGEST:
        return int(value)
    raise _Unreadable


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe as JSON, without what is only said about it: two runs with equal ones are one run."""
    return json.loads(json.dumps({key: value for key, value in asdict(recipe).items() if key not in SAID}))  # type: ignore[no-any-return]


def changed_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings that are not the same in all configurations; "—" where one lacks the setting.

    >>> changed_settings([{"lr": 0.1, "hidden": 8}, {"lr": 0.2, "hidden": 8}])
    {'lr': ['0.1', '0.2']}
    """
    flats = [flat(config) for config in configs]
    rows = {key: [one.get(key, "—") for one in flats] for key in dict.fromkeys(key for one in flats for key in one)}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


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
