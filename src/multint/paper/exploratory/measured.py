"""What was seen inside a model, read from its record: histogram and shares of activations, and norms of the two flows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multint.paper.record import Record
from multint.paper.records import Group

MOST_BINS = 10_000  # of a histogram; more is no histogram
MOST = 1e18  # of a count or a norm


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
    """With the best weights on the validation set; what was not measured is None.

    Args:
        saturated: share of activations with |h| > 0.9.
        near_zero: share of activations with |h| < 0.1.
    """

    histogram: Histogram | None = None
    saturated: float | None = None
    near_zero: float | None = None
    flows: Flows | None = None


def read(run: Record) -> tuple[Measured, list[str]]:
    """The parts that can be read; the others are named."""
    parts = {"histogram": _histogram, "saturated": _share, "near_zero": _share, "flows": _flows}
    values: dict[str, Any] = {}
    warnings = []
    for key, part in sorted(run.measured.items()):
        value = parts[key](part) if key in parts and part is not None else None
        if value is not None:
            values[key] = value
        elif part is not None:
            warnings.append(f"{run.run}: cannot read measured.{repr(key[:60])[1:-1]} = {repr(part)[:60]}; ignored")
    return Measured(**values), warnings


def of(run: Record) -> Measured:
    return read(run)[0]


def mean(group: Group, name: str) -> float | None:
    """Mean of a share over the runs that have it."""
    found = [x for run in group.runs if (x := getattr(of(run), name)) is not None]
    return sum(found) / len(found) if found else None


def flow(group: Group, when: str) -> list[tuple[str, float, float]]:
    """(gate, ‖Wx‖, ‖Uh‖), means over seeds; of runs with other gates than the first only the first counts."""
    found: list[tuple[tuple[str, ...], Flow]] = [
        (flows.gates, one) for run in group.runs if (flows := of(run).flows) and (one := getattr(flows, when))
    ]
    same = [one for gates, one in found if gates == found[0][0]]
    means = [[sum(xs) / len(same) for xs in zip(*(getattr(one, name) for one in same), strict=True)] for name in ("wx", "uh")]
    return list(zip(found[0][0], *means, strict=True)) if found else []


def seen(group: Group) -> int:
    """Runs of the group that something was measured in."""
    return sum(of(run) != Measured() for run in group.runs)


def _histogram(value: Any) -> Histogram | None:
    if not isinstance(value, Mapping):
        return None
    reach: Any = value.get("reach")
    counts = value.get("counts")
    if not _is_number(reach) or not 0 < reach < 1e9 or not isinstance(counts, Sequence) or not 0 < len(counts) <= MOST_BINS:
        return None
    sound = all(_is_number(count) and 0 <= count < MOST for count in counts)
    return Histogram(float(reach), tuple(map(int, counts))) if sound and any(counts) else None


def _share(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 <= value <= 1 else None


def _flows(value: Any) -> Flows | None:
    gates = value.get("gates") if isinstance(value, Mapping) else None
    if not isinstance(gates, list) or not gates or not all(isinstance(gate, str) for gate in gates):
        return None
    ends = {key: _flow(value[key], len(gates)) for key in ("start", "end") if value.get(key) is not None}
    names = tuple(gate.encode("utf-8", "replace").decode() for gate in gates)
    return None if not ends or None in ends.values() else Flows(names, **ends)


def _flow(value: Any, gates: int) -> Flow | None:
    norms: list[Any] = [value.get(key) for key in ("wx", "uh")] if isinstance(value, Mapping) else []
    sound = len(norms) == 2 and all(
        isinstance(one, list) and len(one) == gates and all(_is_number(x) and 0 <= x < MOST for x in one) for one in norms
    )
    return Flow(*(tuple(map(float, one)) for one in norms)) if sound else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
