"""How are numbers, seeds and names written?"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from multint.paper.experiment import Metric
from multint.paper.numbers import Printed, printing
from multint.paper.record import Data, Record
from multint.paper.records import Group, Scores
from multint.paper.report.markup import NONE as NONE


def how(metric: Metric) -> Printed:
    return printing(metric.name, metric.unit, metric.lower)


def ours(found: Scores) -> str:
    """Mean ± sample standard deviation over seeds, one decimal more than the paper prints."""
    bad = sum(not math.isfinite(value) for value in found.values)
    if bad:
        return f"diverged ({bad} of {len(found.values)})"
    digits = how(found.metric).digits + 1
    return f"{found.mean:.{digits}f}" + (f" ± {found.std:.{digits}f}" if found.std is not None else "")


def lead(mi: Scores, plain: Scores) -> str:
    """``ahead``, ``behind`` or ``level``: a difference inside the spread over seeds is no lead."""
    gap = mi.mean - plain.mean
    if not math.isfinite(gap):
        return "diverged"
    spread = max(side.std or 0.0 for side in (plain, mi))
    if abs(gap) < max(spread, 10 ** -(how(mi.metric).digits + 1) / 2):
        return "level"
    return "ahead" if (gap < 0) == mi.metric.lower else "behind"


def duration(seconds: Any) -> str:
    """Seconds in the unit that suits them.

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


def raw(value: Any, digits: int | None) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NONE
    if not math.isfinite(value):
        return "diverged"
    return f"{value:g}" if digits is None else f"{value:,.{digits}f}"


def gap(gap: float, digits: int) -> str:
    return f"{gap:+.{digits}f}".replace("-", "−") if math.isfinite(gap) else NONE


def seeds(group: Group) -> str:
    seeds = ", ".join(str(run.seed) for run in group.runs if run.seed is not None)
    return f"{len(group.runs)} ({seeds})" if seeds else str(len(group.runs))


def seed_count(counts: Collection[int]) -> str:
    """How many seeds the sides of a comparison have."""
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{least} to {most} seeds" if least != most else f"{least} seed{'' if least == 1 else 's'}"


def each(group: Group, name: str, show: Callable[[Any], str]) -> str:
    found = dict.fromkeys(value for run in group.runs if (value := getattr(run, name)) is not None)
    return "; ".join(show(value) for value in found) or NONE


def data(data: Data) -> str:
    name = f"{data.name} (stand-in for {data.stands_for})" if data.stands_for else data.name
    return f"{name}, {data.form}" if data.form else name


def result(run: Record) -> str:
    """The main result with what it is."""
    one = run.main
    where = ", ".join(filter(None, (one.dataset if one.dataset != run.data.name else "", one.split)))
    return f"{raw(one.value, how(one.metric).digits + 1)} {how(one.metric).label} ({where})"


def validation(run: Record) -> str:
    if run.selected_by is None:
        return NONE
    return f"{raw(run.selected_by.value, how(run.selected_by.metric).digits + 1)} {how(run.selected_by.metric).label}"


def speed(runs: Iterable[Record]) -> str:
    """Mean work per second, in each unit."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.throughput:
            found.setdefault(run.throughput.unit, []).append(run.throughput.value)
    return "; ".join(f"{raw(statistics.fmean(values), 0)} {unit}/s" for unit, values in found.items()) or NONE


def protocols(runs: Iterable[Record]) -> list[str]:
    """The protocols that main metrics were taken by, without those of a single one."""
    found = dict.fromkeys(one.protocol for run in runs for one in run.results if one.metric.name == run.main.metric.name)
    return [name for name in found if name]
