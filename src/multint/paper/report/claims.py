"""Section 3.1: are the paper's claims borne out by the records? And the measurements behind them."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from multint.paper.numbers import (
    ALPHAS,
    APART,
    BETAS,
    BY_RECIPE,
    CLAIMS,
    FAR,
    GRADIENT,
    PANELS,
    PTB,
    SCALES,
    STEPS,
    Claim,
    grid,
    verdict,
)
from multint.paper.records import Flow, Group, Measured, Point
from multint.paper.report import against, spelling, tables
from multint.paper.report.against import View
from multint.paper.report.markup import Cell, Table
from multint.paper.report.spelling import NONE, apart, ours, stds
from multint.paper.report.tables import spent

EXPLORATORY = "§3.1 Exploratory experiments"
AVERAGES = {"mean_log": "mean of the log", "log_mean": "log of the mean"}  # which of the two the paper took, it does not say


@dataclass(frozen=True)
class Finding:
    """What was measured of a claim: in words, whether it holds (None: something is lacking), and the seeds of each side."""

    text: str
    holds: bool | None = None
    seeds: tuple[int, ...] = ()


def exploratory_tables(view: View) -> list[Table]:
    """Section 3.1: its claims one by one, and the measurements behind them."""
    return [_claim_table(view), _norm_table(view), _measured_table(view.groups), _grid_table(view)]


def about(view: View) -> str:
    panel = PANELS["ptb"]
    runs = tables.families(view.records.runs).get(panel.short, [])
    cost = f"{panel.short} in all: {spent(runs)}." if runs else "Nothing has been run."
    return f"What the paper found on the characters of Penn Treebank, and what was measured here, on corpus {panel.corpus}. {cost}"


def _claim_table(view: View) -> Table:
    header = ("Where", "What the paper says", "What counts", "What we measured", "Verdict", "Seeds each")
    words = {True: Cell("✓ confirmed", "better"), False: Cell("✗ refuted", "miss"), None: Cell("not judged", "none")}
    rows = []
    for claim in CLAIMS:
        found = finding(view, claim)
        head = Cell(claim.place, "head idle" if found.holds is None else "head")
        said = (Cell(text, "note") for text in (claim.says, claim.counts, found.text))
        seeds = " to ".join(str(n) for n in sorted({min(found.seeds), max(found.seeds)})) if found.seeds else NONE
        rows.append((head, *said, words[found.holds], Cell(seeds, "number")))
    note = "Judged by the records alone, means over seeds. Where the paper gives no bound, ours stands under “What counts”."
    return Table("Claim by claim", note, header, tuple(rows))


def finding(view: View, claim: Claim) -> Finding:
    """What the records say about a claim."""
    groups = {name: against.picked(view, PTB + name) for name in claim.needs}
    absent = [PTB + name for name, group in groups.items() if group is None]
    if absent:
        return Finding(f"not run: {', '.join(absent)}")
    return JUDGES[claim.key](view, [group for group in groups.values() if group is not None])


def _norms_grow(view: View, groups: Sequence[Group]) -> Finding:
    def holds(plain: list[float], mi: list[float]) -> bool:
        return all(b > a for a, b in zip(plain, mi, strict=True))

    return _norm_finding(view, [(group, _last) for group in groups], holds, "lin-RNN, lin-MI-RNN: ")


def _norms_flat(view: View, groups: Sequence[Group]) -> Finding:
    """Least and largest after every epoch but the first, which begins at the weights' scale."""
    sides = [(group, lambda column, pick=pick: pick(column[1:] or column)) for group in groups for pick in (min, max)]
    least, most = (math.log(GRADIENT) + sign * math.log(10) for sign in (-1, 1))

    def holds(low: list[float], high: list[float]) -> bool:
        return min(low) >= least and max(high) <= most

    return _norm_finding(view, sides, holds, "least, largest: ")


def _last(column: list[float]) -> float:
    return column[-1]


def _norm_finding(
    view: View, sides: Sequence[tuple[Group, Callable[[list[float]], float]]], holds: Callable[..., bool], lead: str
) -> Finding:
    """Of each side what is picked of its curves. The mean of the log decides; if the log of the mean differs, it is told."""
    found = {a: [[norm(view, group, f"{a}_dh{t}", pick) for t in STEPS[1:]] for group, pick in sides] for a in AVERAGES}
    main, other = found.values()
    if any(None in side for side in main):
        return Finding("the gradient norms were not measured")
    text = "; ".join(f"t = {t}: {', '.join(map(spelling.log, values))}" for t, *values in zip(STEPS[1:], *main, strict=True))
    good = holds(*main)
    if not any(None in side for side in other) and holds(*other) != good:
        text += f"; by the log of the mean it would be {'refuted' if good else 'confirmed'}"
    return Finding(lead + text, good, tuple(len(_series_of(view, group, f"mean_log_dh{STEPS[1]}")) for group, _ in sides))


def _as_printed(_: View, groups: Sequence[Group]) -> Finding:
    (group,) = groups
    row = BY_RECIPE[group.one.recipe, group.one.metric][0]
    return Finding(f"{ours(group)} BPC", verdict(row, group.mean) in ("better", "met"), (len(group.runs),))


def _over_two(_: View, groups: Sequence[Group]) -> Finding:
    return Finding(f"{ours(groups[0])} BPC", groups[0].mean > 2, (len(groups[0].runs),))


def _saturated(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, _: high > 0.5)


def _unsaturated(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, _: high < 0.5)


def _around_zero(_: View, groups: Sequence[Group]) -> Finding:
    return _share_finding(groups[0], lambda high, low: None if low is None else low > high)


def _share_finding(group: Group, holds: Callable[[float, float | None], bool | None]) -> Finding:
    """Judged by the shares of activations near ±1 and near 0; None where what is needed was not measured."""
    high, low = (measured(group, name) for name in ("saturated", "near_zero"))
    good = None if high is None else holds(high, low)
    if high is None or good is None:
        return Finding("the activations were not measured")
    return Finding(spelling.shares(high, low), good, (_seen(group),))


def _far_smaller(_: View, groups: Sequence[Group]) -> Finding:
    ends = [_flow(group, "end") for group in groups]
    sides = [(name, gate, wx, uh) for name, end in zip(("RNN", "MI-RNN"), ends, strict=True) for gate, wx, uh in end]
    if not all(ends):
        return Finding("the norms of the two flows were not measured")
    text = "; ".join(f"{name}: ‖Wx‖ {wx:.3g}, ‖Uh‖ {uh:.3g}, ratio {spelling.ratio(wx, uh):.3g}" for name, _, wx, uh in sides)
    return Finding(text, all(spelling.ratio(wx, uh) < FAR for _, _, wx, uh in sides), tuple(map(_seen, groups)))


def _improves(_: View, groups: Sequence[Group]) -> Finding:
    means = [group.mean for group in groups]
    return Finding(_over_scales(groups), all(b < a for a, b in itertools.pairwise(means)), _counts(groups))


def _spread(_: View, groups: Sequence[Group]) -> Finding:
    sides = [[group.mean for group in groups[: len(SCALES)]], [group.mean for group in groups[len(SCALES) :]]]
    text = "; ".join(
        f"{name}: std {stds(means)}, max − min {spelling.raw(apart(means), 3)}"
        for name, means in zip(("RNN", "MI-RNN"), sides, strict=True)
    )
    sound = all(math.isfinite(apart(means)) for means in sides)
    return Finding(text, sound and statistics.pstdev(sides[1]) < FAR * statistics.pstdev(sides[0]), _counts(groups))


def _level(_: View, groups: Sequence[Group]) -> Finding:
    found = apart([group.mean for group in groups])
    return Finding(f"{_over_scales(groups)}; max − min {spelling.raw(found, 3)}", round(found, 6) <= APART, _counts(groups))


def _every_scale(_: View, groups: Sequence[Group]) -> Finding:
    pairs = list(zip(SCALES, groups[: len(SCALES)], groups[len(SCALES) :], strict=True))
    text = "; ".join(f"r_W = {r}: RNN {spelling.raw(plain.mean, 3)}, MI-RNN {spelling.raw(mi.mean, 3)}" for r, plain, mi in pairs)
    return Finding(text, all(mi.mean < plain.mean for _, plain, mi in pairs), _counts(groups))


def _both_better(_: View, groups: Sequence[Group]) -> Finding:
    valid, test = [group.valid for group in groups], [group.mean for group in groups]
    text = "; ".join(f"Eq. {n}: {spelling.raw(v, 3)}, {spelling.raw(t, 3)}" for n, v, t in zip((1, 2, 4), valid, test, strict=True))
    known = [v for v in valid if v is not None]
    good = all(max(rest) < plain for plain, *rest in (known, test)) if len(known) == len(valid) else None
    return Finding(f"validation, test: {text}", good, _counts(groups))


def _faster(view: View, groups: Sequence[Group]) -> Finding:
    level = groups[0].valid
    if level is None:
        return Finding("no validation result of the vanilla RNN")
    curves = [[view.records.curves[run.run] for run in group.runs if run.run in view.records.curves] for group in groups[1:]]
    if not all(curves):
        return Finding("no curves")

    def epochs(level: float) -> list[float]:
        return [statistics.fmean(_reached(curve, level) for curve in side) for side in curves]

    def told(level: float) -> str:
        return ", ".join(f"Eq. {n} {'never' if math.isinf(x) else f'{x:.1f}'}" for n, x in zip((2, 4), epochs(level), strict=True))

    slow, fast = epochs(level)
    text = f"epochs to {level:.3f} validation BPC: {told(level)}; to 2: {told(2.0)}"
    return Finding(text, None if math.isinf(min(slow, fast)) else fast < slow, tuple(map(len, curves)))


JUDGES: Mapping[str, Callable[[View, Sequence[Group]], Finding]] = {
    "grow": _norms_grow,
    "flat": _norms_flat,
    "linear-mi": _as_printed,
    "linear": _over_two,
    "saturated": _saturated,
    "unsaturated": _unsaturated,
    "around-zero": _around_zero,
    "flows": _far_smaller,
    "improves": _improves,
    "spread": _spread,
    "level": _level,
    "every-scale": _every_scale,
    "both": _both_better,
    "faster": _faster,
    "result": _as_printed,
}


def _reached(points: Sequence[Point], level: float) -> float:
    """The first epoch whose validation result is at ``level`` or below."""
    return next((p.epoch for p in points if p.epoch is not None and p.valid is not None and p.valid <= level), math.inf)


def _series_of(view: View, group: Group, name: str) -> list[list[float]]:
    """A column of the curves over epochs, for each run that has it."""
    columns = ([p.extra[name] for p in view.records.curves.get(run.run, ()) if name in p.extra] for run in group.runs)
    return [column for column in columns if column]


def norm(view: View, group: Group, name: str, pick: Callable[[list[float]], float] = _last) -> float | None:
    """Mean over seeds of a column's last value, or of what ``pick`` takes of it."""
    found = [pick(column) for column in _series_of(view, group, name)]
    return sum(found) / len(found) if found else None


def measured(group: Group, name: str) -> float | None:
    found = [x for run in group.runs if (x := getattr(run.measured, name)) is not None]
    return sum(found) / len(found) if found else None


def _flow(group: Group, when: str) -> list[tuple[str, float, float]]:
    """(gate, ‖Wx‖, ‖Uh‖), means over seeds; of runs with other gates than the first only the first counts."""
    found: list[tuple[tuple[str, ...], Flow]] = [
        (flows.gates, flow) for run in group.runs if (flows := run.measured.flows) and (flow := getattr(flows, when))
    ]
    same = [flow for gates, flow in found if gates == found[0][0]]
    means = [[sum(xs) / len(same) for xs in zip(*(getattr(flow, name) for flow in same), strict=True)] for name in ("wx", "uh")]
    return list(zip(found[0][0], *means, strict=True)) if found else []


def _seen(group: Group) -> int:
    """Runs of the group that something was measured in."""
    return sum(run.measured != Measured() for run in group.runs)


def _counts(groups: Iterable[Group]) -> tuple[int, ...]:
    return tuple(len(group.runs) for group in groups)


def _over_scales(groups: Sequence[Group]) -> str:
    return "; ".join(f"r_W = {r}: {spelling.raw(group.mean, 3)}" for r, group in zip(SCALES, groups, strict=True))


def _norm_table(view: View) -> Table:
    header = ("Recipe", "Average", *(f"t = {t}" for t in STEPS), "Seeds")
    rows = []
    for group in view.groups:
        for average, words in AVERAGES.items():
            names = [f"{average}_dh{t}" for t in STEPS]
            found = [norm(view, group, name) for name in names]
            if any(x is not None for x in found):
                seeds = max(len(_series_of(view, group, name)) for name in names)
                numbers = (Cell(NONE if x is None else spelling.log(x), "number") for x in found)
                rows.append((Cell(spelling.name(group), "head"), Cell(words, "name"), *numbers, Cell(str(seeds), "number")))
    note = (
        "Natural log of ‖∂C/∂h_t‖₂ after the last epoch, in brackets the norm; C is the loss of the last character, t = 50. The "
        f"paper has about {GRADIENT:.0e} for lin-RNN, log {spelling.log(math.log(GRADIENT)).split()[0]}."
    )
    return Table("Gradient norms, Figure 1a", note, header, tuple(rows))


def _measured_table(groups: Sequence[Group]) -> Table:
    header = ("Recipe", "Gate", "|h| > 0.9", "|h| < 0.1", "‖Wx‖ before", "‖Uh‖ before", "‖Wx‖ after", "‖Uh‖ after")
    rows = []
    for group in groups:
        start, end = ({gate: norms for gate, *norms in _flow(group, when)} for when in ("start", "end"))
        shares = [measured(group, name) for name in ("saturated", "near_zero")]
        for gate in dict.fromkeys([*start, *end]) or ([NONE] if any(x is not None for x in shares) else []):
            norms = [*start.get(gate, [None, None]), *end.get(gate, [None, None])]
            ratio = f"{spelling.ratio(*end[gate]):.3g}" if gate in end else NONE
            rows.append(
                (
                    Cell(spelling.name(group), "head"),
                    Cell(gate, "name"),
                    *(Cell(NONE if x is None else f"{100 * x:.1f} %", "number") for x in shares),
                    *(Cell(NONE if x is None else f"{x:.3g}", "number") for x in norms),
                    Cell(ratio, "number"),
                    Cell(str(_seen(group)), "number"),
                )
            )
    note = (
        "Shares of all hidden activations over the validation set, and mean L2 norms of the two flows there, before training and "
        "with the best weights; means over seeds."
    )
    return Table("Activations and flows, Figure 1c and d", note, (*header, "‖Wx‖ / ‖Uh‖ after", "Seeds"), tuple(rows))


def _grid_table(view: View) -> Table:
    points = {(alpha, beta): against.picked(view, grid(alpha, beta)) for beta in BETAS for alpha in ALPHAS}
    valid = {point: group.valid for point, group in points.items() if group and group.valid is not None}
    best = min(valid, key=lambda point: valid[point]) if len(valid) == len(points) else None
    rows = []
    for (alpha, beta), group in points.items():
        first = (Cell(f"{{{alpha}, {beta}, {beta}, 0}}", "head" if group else "head idle"), Cell(grid(alpha, beta), "name"))
        if group is None:
            rows.append((*first, Cell("not run", "none"), *[Cell(NONE, "none")] * 3))
            continue
        mark = Cell("✓ chosen", "better") if (alpha, beta) == best else Cell(NONE, "none")
        rows.append(
            (
                *first,
                Cell(spelling.raw(group.valid, 3), "number"),
                Cell(ours(group), "number"),
                mark,
                Cell(spelling.seeds(group), "number"),
            )
        )
    note = (
        "Where MI-RNN's vectors start. The paper searched and does not print what it found. Once all points have been run, one is "
        "chosen by the mean validation result; the test result plays no part."
    )
    header = ("{α, β₁, β₂, b}", "Recipe", "Validation BPC ↓", "Test BPC ↓", "Chosen", "Seeds")
    return Table("Starting values of Eq. 4", note, header, tuple(rows))
