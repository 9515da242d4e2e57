"""How are numbers, seeds and names written?"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from multint.paper.numbers import Metric, metric
from multint.paper.records import Group

NONE = "—"


def ours(group: Group) -> str:
    """Mean ± sample standard deviation over seeds, one decimal more than the paper prints."""
    bad = sum(not math.isfinite(value) for value in group.values)
    if bad:
        return f"diverged ({bad} of {len(group.runs)})"
    digits = metric(group.one.metric).digits + 1
    return f"{group.mean:.{digits}f}" + (f" ± {group.std:.{digits}f}" if group.std is not None else "")


def duration(seconds: Any) -> str:
    """Seconds in the unit a reader would use.

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


def apart(values: Sequence[float]) -> float:
    """The largest minus the smallest; not a number if one of them is none."""
    return max(values) - min(values) if all(map(math.isfinite, values)) else math.nan


def log(value: float) -> str:
    """A log norm and the norm.

    >>> log(-9.21), log(-math.inf)
    ('−9.21 (1.0e-04)', '−∞ (0)')
    """
    size = "0" if value == -math.inf else f"{math.exp(min(value, 700.0)):.1e}"
    return f"{value:.2f} ({size})".replace("-", "−", value < 0).replace("inf", "∞")


def ratio(wx: float, uh: float) -> float:
    return wx / uh if uh > 0 else math.inf


def shares(saturated: float, near_zero: float | None) -> str:
    return f"|h| > 0.9: {100 * saturated:.1f} %" + ("" if near_zero is None else f"; |h| < 0.1: {100 * near_zero:.1f} %")


def name(group: Group) -> str:
    return ", ".join([group.one.recipe, *map(str, group.one.changed)])


def raw(value: Any, digits: int | None) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NONE
    if not math.isfinite(value):
        return "diverged"
    return f"{value:g}" if digits is None else f"{value:,.{digits}f}"


def gap(gap: float, digits: int) -> str:
    return f"{gap:+.{digits}f}".replace("-", "−") if math.isfinite(gap) else NONE


def arrow(how: Metric) -> str:
    return f"{how.label} {'↓' if how.lower else '↑'}"


def seeds(group: Group) -> str:
    seeds = ", ".join(str(run.seed) for run in group.runs if run.seed is not None)
    return f"{len(group.runs)} ({seeds})" if seeds else str(len(group.runs))


def each(group: Group, name: str, show: Callable[[Any], str]) -> str:
    found = dict.fromkeys(value for run in group.runs if (value := getattr(run, name)) is not None)
    return "; ".join(show(value) for value in found) or NONE


def corpus(corpus: str, stands_for: Any) -> str:
    return f"{corpus} (stand-in for {stands_for})" if stands_for else corpus


def protocols(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.get("protocols") or {}))
