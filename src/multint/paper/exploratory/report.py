"""Section 3.1 in the report: are the paper's claims confirmed by the records? And the measurements behind them."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from multint.paper import figures
from multint.paper.exploratory import measured
from multint.paper.exploratory.figure_1 import Activations, Figure1, Norm
from multint.paper.exploratory.recipes import ALPHAS, BETAS, SCALES, grid_point, scaled
from multint.paper.exploratory.task import STEPS
from multint.paper.numbers import BY_KEY, Row, printed, verdict
from multint.paper.records import Group, Point, Scores, selected
from multint.paper.report import spelling
from multint.paper.report.against import View, as_written, standing
from multint.paper.report.claims import ahead
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Claim, Finding, Judge, Picture, Section, judged
from multint.paper.report.spelling import NONE, ours, stds

PANEL = "ptb"  # of the paper, whose corpus all rows share
GRADIENT = 1e-4  # where the norms of lin-RNN stay, §3.1
FAR = 0.5  # "a lot smaller", "much more robust": less than this much of the other; the paper gives no bound
APART = 0.02  # "almost no effect": the printed BPCs of MI-RNN are this far apart
AVERAGES = {"mean_log": "mean of the log", "log_mean": "log of the mean"}  # the paper does not say which it took
OTHER, FACTOR = "ptb-b", 1.0085  # the other public spelling of the corpus, and its BPC over that of ptb-a for the same total bits
NOT_IN_PAPER = "not in the paper; "

ROWS = (
    Row("ptb", "linear RNN", "bpc", None, key="ptb-linrnn", note="§3.1 says “over 2”; no number is printed"),
    Row(
        "ptb",
        "MI-RNN-simple",
        "bpc",
        None,
        key="ptb-simple",
        twin="ptb-rnn",
        note="Eq. 2; a curve in Fig. 1b, no number is printed",
    ),
    Row("ptb", "LSTM", "bpc", None, key="ptb-lstm", note=NOT_IN_PAPER + "the twin of MI-LSTM"),
    Row("ptb", "MI-LSTM", "bpc", None, key="ptb-milstm", twin="ptb-lstm", note=NOT_IN_PAPER + "a gated relative of MI-RNN"),
)


def sections(view: View) -> list[Section]:
    points = {point: _point(view, *point) for point in itertools.product(ALPHAS, BETAS)}
    mine = [run for run in view.records.runs if run.recipe.startswith("exploratory/")]
    tables = (_norm_table(view), _measured_table(view), _grid_table(points), _other_table(view))
    drawn = [(scale, _figure_1(view, scale)) for scale in ("paper", "laptop")]
    pictures = [
        Picture(
            "figure-1" if scale == "paper" else f"figure-1-{scale}",
            "Figure 1" if scale == "paper" else "Figure 1, laptop size",
            "Gradient norms, validation curves and hidden activations; their numbers stand in the tables below.",
            what.draw,
        )
        for scale, what in drawn
        if scale == "paper" or not what.empty
    ]
    return [
        Section(
            "Exploratory experiments",
            "What multiplication does to gradients, activations and scales, on the characters of Penn Treebank (corpus ptb-a).",
            "§3.1",
            panels=("scale", "ptb"),
            claims=tuple(_claims(view)),
            tables=tuple(table for table in tables if table.rows),
            pictures=tuple(pictures),
            rows=ROWS,
            taken=tuple(group for group in points.values() if group),
            warnings=tuple(text for run in mine for text in measured.read(run)[1]),
        )
    ]


# ---- claims ----


@dataclass(frozen=True)
class Said:
    """A claim with its judge, which takes the runs of the rows it needs. Without ``laptop`` it is about the paper's size alone."""

    place: str
    says: str
    counts: str
    needs: tuple[str, ...]
    judge: Callable[[View, Sequence[Group]], Finding] | None = None
    results: Judge | None = None  # in place of ``judge``, for a claim on test results, which every protocol has
    laptop: bool = True


def _claims(view: View) -> list[Claim]:
    found = [
        Claim(
            said.place,
            said.says,
            said.counts,
            _finding(view, said, "paper"),
            _finding(view, said, "laptop") if said.laptop else None,
        )
        for said in SAID
    ]
    own = {row.key: row for row in ROWS}
    return [*found, ahead(view, own["ptb-milstm"], own["ptb-lstm"], "Not in the paper: MI-LSTM is ahead of its additive LSTM.")]


def _finding(view: View, said: Said, scale: str) -> Finding:
    if said.results:
        return judged(view, PANEL, said.needs, scale, "bpc", said.results)
    groups = [view.picked(key, PANEL, scale) for key in said.needs]
    absent = [key for key, group in zip(said.needs, groups, strict=True) if group is None]
    if absent or said.judge is None:
        return Finding(f"not run: {', '.join(absent)}")
    return said.judge(view, [group for group in groups if group])


def _norms_grow(view: View, groups: Sequence[Group]) -> Finding:
    def holds(plain: list[float], mi: list[float]) -> bool:
        return all(b > a for a, b in zip(plain, mi, strict=True))

    return _norm_finding(view, [(group, _last) for group in groups], holds, "lin-RNN, lin-MI-RNN: ")


def _norms_flat(view: View, groups: Sequence[Group]) -> Finding:
    """Least and largest after every epoch but the first, which starts at the weights' scale."""
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
    """Of each side what is picked of its curves. The mean of the log decides; if the log of the mean differs, the text says so."""
    found = {a: [[_norm(view, group, f"{a}_dh{t}", pick) for t in STEPS[1:]] for group, pick in sides] for a in AVERAGES}
    main, other = found.values()
    if any(None in side for side in main):
        return Finding("the gradient norms were not measured")
    text = "; ".join(f"t = {t}: {', '.join(map(_log, values))}" for t, *values in zip(STEPS[1:], *main, strict=True))
    good = holds(*main)
    if not any(None in side for side in other) and holds(*other) != good:
        text += f"; by the log of the mean it would be {'refuted' if good else 'confirmed'}"
    return Finding(lead + text, good, tuple(len(_columns(view, group, f"mean_log_dh{STEPS[1]}")) for group, _ in sides))


def _as_printed(key: str, sides: Sequence[Scores]) -> Finding:
    (one,) = sides
    return Finding(f"{ours(one)} BPC", verdict(BY_KEY[key, "bpc"][0], one.mean) in ("better", "met"), _seeds(sides))


def _over_two(sides: Sequence[Scores]) -> Finding:
    return Finding(f"{ours(sides[0])} BPC", sides[0].mean > 2, _seeds(sides))


def _shares(holds: Callable[[float, float | None], bool | None], _: View, groups: Sequence[Group]) -> Finding:
    """Judged by the shares of activations near ±1 and near 0; None where what is needed was not measured."""
    high, low = (measured.mean(groups[0], name) for name in ("saturated", "near_zero"))
    good = None if high is None else holds(high, low)
    if high is None or good is None:
        return Finding("the activations were not measured")
    text = f"|h| > 0.9: {100 * high:.1f} %" + ("" if low is None else f"; |h| < 0.1: {100 * low:.1f} %")
    return Finding(text, good, (measured.seen(groups[0]),))


def _far_smaller(_: View, groups: Sequence[Group]) -> Finding:
    ends = [measured.flow(group, "end") for group in groups]
    sides = [(name, gate, wx, uh) for name, end in zip(("RNN", "MI-RNN"), ends, strict=True) for gate, wx, uh in end]
    if not all(ends):
        return Finding("the norms of the two flows were not measured")
    text = "; ".join(f"{name}: ‖Wx‖ {wx:.3g}, ‖Uh‖ {uh:.3g}, ratio {_ratio(wx, uh):.3g}" for name, _, wx, uh in sides)
    return Finding(text, all(_ratio(wx, uh) < FAR for _, _, wx, uh in sides), tuple(map(measured.seen, groups)))


def _improves(sides: Sequence[Scores]) -> Finding:
    means = [side.mean for side in sides]
    return Finding(_over_scales(sides), all(b < a for a, b in itertools.pairwise(means)), _seeds(sides))


def _spread(sides: Sequence[Scores]) -> Finding:
    both = [[side.mean for side in sides[: len(SCALES)]], [side.mean for side in sides[len(SCALES) :]]]
    text = "; ".join(
        f"{name}: std {stds(means)}, max − min {spelling.raw(_apart(means), 3)}"
        for name, means in zip(("RNN", "MI-RNN"), both, strict=True)
    )
    sound = all(math.isfinite(_apart(means)) for means in both)
    return Finding(text, sound and statistics.pstdev(both[1]) < FAR * statistics.pstdev(both[0]), _seeds(sides))


def _level(sides: Sequence[Scores]) -> Finding:
    found = _apart([side.mean for side in sides])
    return Finding(f"{_over_scales(sides)}; max − min {spelling.raw(found, 3)}", round(found, 6) <= APART, _seeds(sides))


def _every_scale(sides: Sequence[Scores]) -> Finding:
    pairs = list(zip(SCALES, sides[: len(SCALES)], sides[len(SCALES) :], strict=True))
    text = "; ".join(f"r_W = {r}: RNN {spelling.raw(plain.mean, 3)}, MI-RNN {spelling.raw(mi.mean, 3)}" for r, plain, mi in pairs)
    return Finding(text, all(mi.mean < plain.mean for _, plain, mi in pairs), _seeds(sides))


def _both_better(_: View, groups: Sequence[Group]) -> Finding:
    valid, test = [group.valid for group in groups], [found.mean for group in groups if (found := group.of("bpc"))]
    if len(test) < len(groups):
        return Finding("no test BPC")
    text = "; ".join(f"Eq. {n}: {spelling.raw(v, 3)}, {spelling.raw(t, 3)}" for n, v, t in zip((1, 2, 4), valid, test, strict=True))
    known = [v for v in valid if v is not None]
    good = all(max(rest) < plain for plain, *rest in (known, test)) if len(known) == len(valid) else None
    return Finding(f"validation, test: {text}", good, tuple(len(group.runs) for group in groups))


def _faster(view: View, groups: Sequence[Group]) -> Finding:
    level = groups[0].valid
    if level is None:
        return Finding("no validation result of the vanilla RNN")
    curves = [[view.records.curves[run.run] for run in group.runs if run.run in view.records.curves] for group in groups[1:]]
    if not all(curves):
        return Finding("no curves")

    def epochs(level: float) -> list[float]:
        return [statistics.fmean(_reached(curve, level) for curve in side) for side in curves]

    def words(level: float) -> str:
        return ", ".join(f"Eq. {n} {'never' if math.isinf(x) else f'{x:.1f}'}" for n, x in zip((2, 4), epochs(level), strict=True))

    slow, fast = epochs(level)
    text = f"epochs to {level:.3f} validation BPC: {words(level)}; to 2: {words(2.0)}"
    return Finding(text, None if math.isinf(min(slow, fast)) else fast < slow, tuple(map(len, curves)))


SAID = (
    Said(
        "Fig. 1a",
        "The gradient norms of lin-MI-RNN increase rapidly and soon exceed those of lin-RNN by a large margin.",
        "higher after the last epoch at t = 1, 5 and 10",
        ("ptb-linrnn", "ptb-linmirnn"),
        _norms_grow,
    ),
    Said(
        "Fig. 1a",
        "The gradient norms of lin-RNN stay close to zero (≈ 10⁻⁴) and their changes over time are almost negligible.",
        "within a factor of ten of 10⁻⁴ after every epoch but the first, at t = 1, 5 and 10",
        ("ptb-linrnn",),
        _norms_flat,
    ),
    Said(
        "§3.1.1",
        "lin-MI-RNN has a test BPC of 1.48.",
        "1.48 or lower at the printed precision",
        ("ptb-linmirnn",),
        results=partial(_as_printed, "ptb-linmirnn"),
        laptop=False,
    ),
    Said("§3.1.1", "lin-RNN performs rather poorly: a test BPC of over 2.", "above 2", ("ptb-linrnn",), results=_over_two),
    Said(
        "Fig. 1c",
        "Most activations of the vanilla RNN are saturated, with values around ±1.",
        "|h| > 0.9 for more than half of them",
        ("ptb-rnn",),
        partial(_shares, lambda high, _: high > 0.5),
    ),
    Said(
        "Fig. 1d",
        "Most activations of MI-RNN are not saturated ...",
        "|h| > 0.9 for less than half of them",
        ("ptb-mirnn",),
        partial(_shares, lambda high, _: high < 0.5),
    ),
    Said(
        "Fig. 1d",
        "... with values around 0.",
        "more of them with |h| < 0.1 than with |h| > 0.9",
        ("ptb-mirnn",),
        partial(_shares, lambda high, low: None if low is None else low > high),
    ),
    Said(
        "§3.1.2",
        "After training, W x is a lot smaller than U h in magnitude, in both models.",
        "‖Wx‖ less than half of ‖Uh‖ in both",
        ("ptb-rnn", "ptb-mirnn"),
        _far_smaller,
    ),
    Said(
        "Table 1, §3.1.2",
        "The vanilla RNN improves as the scale of W grows.",
        "test BPC falls at every step",
        scaled("ptb-rnn"),
        results=_improves,
    ),
    Said(
        "Table 1, §3.1.2",
        "MI-RNN is much more robust to the scale of W: std 0.008 against 0.06.",
        "std over the four scales less than half of the RNN's",
        scaled("ptb-rnn") + scaled("ptb-mirnn"),
        results=_spread,
    ),
    Said(
        "Table 1, §3.1.2",
        "The scale of W has almost no effect on the final performance of MI-RNN.",
        "the four test BPCs at most 0.02 apart, as the printed ones",
        scaled("ptb-mirnn"),
        results=_level,
    ),
    Said(
        "Table 1",
        "MI-RNN is ahead of the RNN at every scale of W.",
        "lower test BPC at all four",
        scaled("ptb-rnn") + scaled("ptb-mirnn"),
        results=_every_scale,
    ),
    Said(
        "Fig. 1b, §3.1.3",
        "MI-RNN-simple (Eq. 2) and MI-RNN-general (Eq. 4) are both much better than the vanilla RNN (Eq. 1).",
        "lower validation and test BPC, both of them",
        ("ptb-rnn", "ptb-simple", "ptb-mirnn"),
        _both_better,
    ),
    Said(
        "Fig. 1b, §3.1.3",
        "MI-RNN-general converges faster than MI-RNN-simple.",
        "needs fewer epochs for the best validation BPC of the vanilla RNN; epochs to 2 BPC stand beside",
        ("ptb-rnn", "ptb-simple", "ptb-mirnn"),
        _faster,
    ),
    Said(
        "Table 1, §3.1.3",
        "MI-RNN-general has a test BPC of 1.39.",
        "1.39 or lower at the printed precision, from {2, .5, .5, 0}",
        ("ptb-mirnn",),
        results=partial(_as_printed, "ptb-mirnn"),
        laptop=False,
    ),
)


def _seeds(sides: Sequence[Scores]) -> tuple[int, ...]:
    return tuple(len(side.values) for side in sides)


def _over_scales(sides: Sequence[Scores]) -> str:
    return "; ".join(f"r_W = {r}: {spelling.raw(side.mean, 3)}" for r, side in zip(SCALES, sides, strict=True))


def _apart(values: Sequence[float]) -> float:
    """The largest minus the smallest; NaN if one of them is not finite."""
    return max(values) - min(values) if all(map(math.isfinite, values)) else math.nan


def _ratio(wx: float, uh: float) -> float:
    return wx / uh if uh > 0 else math.inf


def _log(value: float) -> str:
    """A log norm and the norm.

    >>> _log(-9.21), _log(-math.inf)
    ('−9.21 (1.0e-04)', '−∞ (0)')
    """
    size = "0" if value == -math.inf else f"{math.exp(min(value, 700.0)):.1e}"
    return f"{value:.2f} ({size})".replace("-", "−", value < 0).replace("inf", "∞")


def _reached(points: Sequence[Point], level: float) -> float:
    """The first epoch whose validation result is at ``level`` or below."""
    return next((p.epoch for p in points if p.epoch is not None and p.valid is not None and p.valid <= level), math.inf)


def _columns(view: View, group: Group, name: str) -> list[list[float]]:
    """A column of the curves over epochs, for each run that has it."""
    columns = ([p.extra[name] for p in view.records.curves.get(run.run, ()) if name in p.extra] for run in group.runs)
    return [column for column in columns if column]


def _norm(view: View, group: Group, name: str, pick: Callable[[list[float]], float] = _last) -> float | None:
    """Mean over seeds of a column's last value, or of what ``pick`` takes of it."""
    found = [pick(column) for column in _columns(view, group, name)]
    return sum(found) / len(found) if found else None


# ---- tables ----


def _mine(view: View) -> Iterable[Group]:
    return (group for group in view.groups if group.one.recipe.startswith("exploratory/"))


def _name(group: Group) -> str:
    return ", ".join([group.one.recipe, *map(str, group.one.changed)])


def _norm_table(view: View) -> Table:
    header = ("Recipe", "Average", *(f"t = {t}" for t in STEPS), "Seeds")
    rows = []
    for group in _mine(view):
        for average, words in AVERAGES.items():
            names = [f"{average}_dh{t}" for t in STEPS]
            found = [_norm(view, group, name) for name in names]
            if any(x is not None for x in found):
                seeds = max(len(_columns(view, group, name)) for name in names)
                numbers = (Cell(NONE if x is None else _log(x), "number") for x in found)
                rows.append((Cell(_name(group), "head"), Cell(words, "name"), *numbers, Cell(str(seeds), "number")))
    note = (
        "Natural log of ‖∂C/∂h_t‖₂ after the last epoch, in brackets the norm; C is the loss of the last character, t = 50. The "
        f"paper has about {GRADIENT:.0e} for lin-RNN, log {_log(math.log(GRADIENT)).split()[0]}."
    )
    return Table("Gradient norms, Figure 1a", note, header, tuple(rows))


def _measured_table(view: View) -> Table:
    header = ("Recipe", "Gate", "|h| > 0.9", "|h| < 0.1", "‖Wx‖ before", "‖Uh‖ before", "‖Wx‖ after", "‖Uh‖ after")
    rows = []
    for group in _mine(view):
        start, end = ({gate: norms for gate, *norms in measured.flow(group, when)} for when in ("start", "end"))
        shares = [measured.mean(group, name) for name in ("saturated", "near_zero")]
        for gate in dict.fromkeys([*start, *end]) or ([NONE] if any(x is not None for x in shares) else []):
            norms = [*start.get(gate, [None, None]), *end.get(gate, [None, None])]
            ratio = f"{_ratio(*end[gate]):.3g}" if gate in end else NONE
            rows.append(
                (
                    Cell(_name(group), "head"),
                    Cell(gate, "name"),
                    *(Cell(NONE if x is None else f"{100 * x:.1f} %", "number") for x in shares),
                    *(Cell(NONE if x is None else f"{x:.3g}", "number") for x in norms),
                    Cell(ratio, "number"),
                    Cell(str(measured.seen(group)), "number"),
                )
            )
    note = (
        "Shares of all hidden activations over the validation set, and mean L2 norms of the two flows there, before training and "
        "with the best weights; means over seeds."
    )
    return Table("Activations and flows, Figure 1c and d", note, (*header, "‖Wx‖ / ‖Uh‖ after", "Seeds"), tuple(rows))


def _point(view: View, alpha: str, beta: str) -> Group | None:
    """The runs that start from one point of the grid."""
    name = f"exploratory/{grid_point(alpha, beta)}"
    return selected([group for group in view.groups if group.one.recipe == name and as_written(group.one)])


def _grid_table(points: Mapping[tuple[str, str], Group | None]) -> Table:
    valid = {point: group.valid for point, group in points.items() if group and group.valid is not None}
    best = min(valid, key=lambda point: valid[point]) if len(valid) == len(points) else None
    rows = []
    for (alpha, beta), group in points.items():
        head = f"{{{alpha}, {beta}, {beta}, 0}}"
        first = (Cell(head, "head" if group else "head idle"), Cell(f"exploratory/{grid_point(alpha, beta)}", "name"))
        if group is None:
            rows.append((*first, Cell("not run", "none"), *[Cell(NONE, "none")] * 3))
            continue
        mark = Cell("✓ selected", "better") if (alpha, beta) == best else Cell(NONE, "none")
        numbers = (Cell(spelling.raw(group.valid, 3), "number"), Cell(ours(group.main), "number"))
        rows.append((*first, *numbers, mark, Cell(spelling.seeds(group), "number")))
    note = (
        "Where MI-RNN's vectors start. The paper searched and does not print the outcome. Once all points have been run, one is "
        "selected by the mean validation result; the test result plays no part."
    )
    header = ("{α, β₁, β₂, b}", "Recipe", "Validation BPC ↓", "Test BPC ↓", "Selected", "Seeds")
    return Table("Starting values of Eq. 4", note, header, tuple(rows))


def _other_table(view: View) -> Table:
    """The rows on the other spelling of the corpus, with the spread over the scales of W."""
    named = [*(row for rows in BY_KEY.values() for row in rows if row.panel == "scale" or not row.repeats), *ROWS]
    found: dict[str, tuple[Row, Group]] = {}
    for row in named:
        on_b = [group for group in standing(view, row).beside if group.one.data.name == OTHER and as_written(group.one)]
        pick = selected(on_b)
        if row.key and pick:
            found[row.key] = (row, pick)
    rows: list[tuple[Cell, ...]] = []
    for row, group in found.values():
        ratio = f"{group.main.mean / FACTOR:.3f}" if math.isfinite(group.main.mean) else NONE
        cells = (Cell(printed(row), "number"), Cell(ours(group.main), "number"), Cell(ratio, "number"))
        rows.append((Cell(row.model, "head"), *cells, Cell(spelling.seeds(group), "number")))
    for name, keys in (("RNN, all four", scaled("ptb-rnn")), ("MI-RNN, all four", scaled("ptb-mirnn"))):
        if all(key in found for key in keys):
            text = f"std {stds([found[key][1].main.mean for key in keys])}"
            rows.append((Cell(name, "head"), Cell(NONE, "none"), Cell(text, "number long"), *[Cell(NONE, "none")] * 2))
    note = f"Corpus {OTHER}: for the same total bits its BPC is about {FACTOR} times that on ptb-a, the corpus of the paper's rows."
    header = ("Model", "Paper (ptb-a)", f"Ours on {OTHER}", f"Ours over {FACTOR}", "Seeds")
    return Table("The other spelling of the corpus", note, header, tuple(rows))


# ---- Figure 1 ----


def _figure_1(view: View, scale: str) -> Figure1:
    picked = {key: view.picked(f"ptb-{key}", PANEL, scale) for key in ("rnn", "simple", "mirnn", "linrnn", "linmirnn")}
    names = {"vanilla RNN (Eq. 1)": "rnn", "MI-RNN-simple (Eq. 2)": "simple", "MI-RNN-general (Eq. 4)": "mirnn"}
    rows = [BY_KEY[f"ptb-{name}", "bpc"][0] for name in ("mirnn", "rnn")] if scale == "paper" else []
    return Figure1(
        {"lin-RNN": _norm_lines(view, picked["linrnn"]), "lin-MI-RNN": _norm_lines(view, picked["linmirnn"])},
        {label: _valid_lines(view, label, picked[key]) for label, key in names.items()},
        {"vanilla RNN": _activations(picked["rnn"]), "MI-RNN": _activations(picked["mirnn"])},
        figures.Mark("≈ 10⁻⁴\n(lin-RNN)", math.log(GRADIENT)),
        [figures.Mark(printed(row), row.value) for row in rows if row.value is not None],
    )


def _norm_lines(view: View, group: Group | None) -> list[Norm]:
    found = []
    for run in group.runs if group else ():
        for t in STEPS:
            points = [p for p in view.records.curves.get(run.run, ()) if p.epoch is not None and f"mean_log_dh{t}" in p.extra]
            if points:
                found.append(Norm(t, [p.epoch or 0.0 for p in points], [p.extra[f"mean_log_dh{t}"] for p in points]))
    return found


def _valid_lines(view: View, label: str, group: Group | None) -> list[figures.Line]:
    curves = (view.records.curves.get(run.run, ()) for run in (group.runs if group else ()))
    kept = ([(p.epoch, p.valid) for p in points if p.epoch is not None and p.valid is not None] for points in curves)
    return [figures.Line(label, [x for x, _ in points], [y for _, y in points]) for points in kept if points]


def _activations(group: Group | None) -> Activations | None:
    bars = [bar for run in group.runs if (bar := measured.of(run).histogram)] if group else []
    if not group or not bars:
        return None
    return Activations(
        [bar.counts for bar in bars],
        [bar.reach for bar in bars],
        measured.mean(group, "saturated"),
        measured.mean(group, "near_zero"),
    )
