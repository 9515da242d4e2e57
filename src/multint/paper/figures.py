"""What do the results look like?

Three figures drawn with matplotlib, which is imported only when one is asked for: learning curves, ours against the paper, and the
paper's Figure 1. They are given plain numbers and return the picture's bytes; the same numbers give the same SVG, so that committed
figures change only when results do.
"""

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#00805e", "#a3478a", "#7a6400", "#4a4ad0", "#b3002d", "#4d6a78")
DARK_PALETTE = ("#5cb8f0", "#ff9340", "#3fd0a4", "#ec94d2", "#e0c040", "#a5a5ff", "#ff7a95", "#a9c2cf")
LONG = 40  # characters of a label
STROKES = ("-", "--", ":", "-.")
INK, GROUND = ("#1b1f24", "#e6e8eb"), ("#ffffff", "#15181c")  # light, dark
PALE = ("#40464d", "#b9c0c8")
BLUE, ORANGE, GREEN = 0, 1, 2  # places in the palettes; lin-RNN is blue and lin-MI-RNN orange in the paper
BACK = {1: "-", 5: "--", 10: ":", 0: "-"}  # strokes for ∂C/∂h_t by t; t = 0 is thin
LARGEST = 1e6  # a number beyond it is not drawn


@dataclass(frozen=True)
class Line:
    """A curve: lines with one label share a colour and an entry in the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A level to draw across, the paper's number, as it is printed."""

    label: str
    value: float


@dataclass(frozen=True)
class Pair:
    """A row of the paper with our number beside it; ``low`` and ``high`` span the seeds, ``word`` is the verdict."""

    label: str
    metric: str
    paper: float
    ours: float
    low: float
    high: float
    word: str


@dataclass(frozen=True)
class Norm:
    """Log norm of ∂C/∂h_t over epochs, of one run."""

    t: int
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Activations:
    """Hidden activations of a model: for each run the counts of equal bins from -reach to reach; two shares, means over runs."""

    counts: Sequence[Sequence[int]]
    reach: Sequence[float]
    saturated: float | None
    near_zero: float | None


def curves(title: str, unit: str, lines: Sequence[Line], marks: Sequence[Mark] = (), form: str = "svg") -> bytes:
    """Validation result over updates, one line per run, the paper's test results as dashed levels."""
    with _style():
        return _bytes(_draw_curves(title, unit, lines, marks), form)


def pairs(rows: Sequence[Pair], form: str = "svg", dark: bool = False) -> bytes:
    """Ours (filled, a bar from the best seed to the worst) against the paper (hollow), one axis per metric, verdicts beside."""
    with _style():
        return _bytes(_draw_pairs(rows, dark), form)


def figure_1(
    norms: Mapping[str, Sequence[Norm]],
    valid: Mapping[str, Sequence[Line]],
    activations: Mapping[str, Activations | None],
    level: Mark,
    marks: Sequence[Mark] = (),
    form: str = "svg",
    dark: bool = False,
) -> bytes:
    """The paper's Figure 1 in its arrangement: (a) gradient norms, (b) validation results, (c, d) hidden activations.

    Args:
        norms: by model, the additive one first; ``level`` is the log norm the paper has for that one.
        valid: by model: Eq. 1, Eq. 2, Eq. 4; ``marks`` are the paper's test results.
        activations: of the two models; None where they were not measured.
    """
    with _style():
        return _bytes(_draw_figure_1(norms, valid, activations, level, marks, dark), form)


def _draw_curves(title: str, unit: str, lines: Sequence[Line], marks: Sequence[Mark]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    labels = list(dict.fromkeys(line.label for line in lines))
    for line in lines:
        place = labels.index(line.label)
        style: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "linestyle": STROKES[place // len(PALETTE) % len(STROKES)]}
        first = next(other for other in lines if other.label == line.label) is line
        named = line.label.replace("_", " _", 1) if first and line.label.startswith("_") else line.label if first else "_"
        axes.plot(line.x, line.y, label=named, linewidth=1.6, marker="o" if len(line.x) < 30 else None, markersize=3, **style)
    limits = span([line.y for line in lines], [mark.value for mark in marks])
    _levels(axes, marks, limits)
    axes.set(title=title, xlabel="updates", ylabel=f"validation {unit}", ylim=limits)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _plain(axes)
    if any(len(label) > LONG for label in labels):
        figure.legend(loc="outside lower left", fontsize=8, frameon=False)  # inside it would lie on the lines
    elif labels:
        axes.legend(fontsize=8, frameon=False, ncols=2 if len(labels) > 8 else 1)
    return figure


def _draw_pairs(rows: Sequence[Pair], dark: bool) -> "Figure":
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(row.metric for row in rows))
    counts = [sum(row.metric == metric for row in rows) for metric in metrics]
    figure = Figure(figsize=(8, 1.0 + 0.32 * len(rows) + 0.7 * len(metrics)), layout="constrained")
    figure.set_facecolor(GROUND[dark])
    for place, metric in enumerate(metrics):
        axes = figure.add_subplot(figure.add_gridspec(len(metrics), 1, height_ratios=[n + 1 for n in counts])[place])
        _compare(axes, [row for row in rows if row.metric == metric], dark, legend=place == 0)
    return figure


def _draw_figure_1(
    norms: Mapping[str, Sequence[Norm]],
    valid: Mapping[str, Sequence[Line]],
    activations: Mapping[str, Activations | None],
    level: Mark,
    marks: Sequence[Mark],
    dark: bool,
) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7.2), layout="constrained")
    figure.set_facecolor(GROUND[dark])
    figure.get_layout_engine().set(hspace=0.06, wspace=0.05, h_pad=0.09, w_pad=0.06)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(2, 2).flat
    _draw_norms(axes[0], norms, level, dark)
    _draw_valid(axes[1], valid, marks, dark)
    for place, (label, found) in enumerate(activations.items()):
        _draw_activations(axes[2 + place], f"({'cd'[place]}) Hidden activations of the {label}", found, (BLUE, ORANGE)[place], dark)
    return figure


def _draw_norms(axes: "Axes", norms: Mapping[str, Sequence[Norm]], level: Mark, dark: bool) -> None:
    palette, colours = DARK_PALETTE if dark else PALETTE, (BLUE, ORANGE)
    _frame(axes, "(a) Gradient of the last character's loss", "epochs", "mean of ln ‖∂C/∂h_t‖₂, C at t = 50", dark)
    shown = {label: [(norm, *_drawable(norm.x, norm.y)) for norm in found] for label, found in norms.items()}
    heights = [y for found in shown.values() for _, _, ys in found for y in ys if math.isfinite(y)]
    if not heights:
        _not_run(axes, dark)
        return
    seeds = {label: max((sum(one.t == norm.t for one in found) for norm in found), default=0) for label, found in norms.items()}
    for colour, found in zip(colours, shown.values(), strict=True):
        for norm, x, y in found:
            width = 0.6 if norm.t == 0 else 1.1 if max(seeds.values()) > 1 else 1.7
            axes.plot(x, y, color=palette[colour], linestyle=BACK.get(norm.t, "-."), linewidth=width)
    low, high = min(*heights, level.value), max(*heights, level.value)
    margin = 0.05 * (high - low) or 1.0
    limits = low - margin, high + margin
    _levels(axes, [level], limits, dark)
    axes.set_ylim(*limits)
    _named(axes, seeds, colours, dark)
    for t in (t for t in BACK if any(norm.t == t for found in norms.values() for norm in found)):
        axes.plot([], [], color=INK[dark], linestyle=BACK[t], linewidth=0.6 if t == 0 else 1.4, label=f"t = {t}")
    _legend(axes, dark, ncols=3)


def _draw_valid(axes: "Axes", valid: Mapping[str, Sequence[Line]], marks: Sequence[Mark], dark: bool) -> None:
    palette, colours = DARK_PALETTE if dark else PALETTE, (BLUE, GREEN, ORANGE)
    _frame(axes, "(b) Validation curves; dashed: the paper's test results", "epochs", "validation BPC", dark)
    shown = {label: [_drawable(line.x, line.y) for line in found] for label, found in valid.items()}
    heights = [kept for found in shown.values() for _, ys in found if (kept := [y for y in ys if math.isfinite(y)])]
    if not heights:
        _not_run(axes, dark)
        return
    for colour, found in zip(colours, shown.values(), strict=True):
        for x, y in found:
            axes.plot(x, y, color=palette[colour], linewidth=1.0 if len(found) > 1 else 1.6)
    limits = span(heights, [mark.value for mark in marks])
    _levels(axes, marks, limits, dark)
    axes.set_ylim(*limits)
    _named(axes, {label: len(found) for label, found in valid.items()}, colours, dark)
    _legend(axes, dark)


def _draw_activations(axes: "Axes", title: str, found: Activations | None, colour: int, dark: bool) -> None:
    _frame(axes, title, "activation h, all steps of the validation set", "share of activations per bin, %", dark)
    if found is None or not found.counts:
        _not_run(axes, dark)
        return
    ink, seeds = (DARK_PALETTE if dark else PALETTE)[colour], len(found.counts)
    for counts, reach in zip(found.counts, found.reach, strict=True):
        edges = [reach * (2 * i / len(counts) - 1) for i in range(len(counts) + 1)]
        shares = [100 * count / sum(counts) for count in counts]
        axes.stairs(shares, edges, fill=True, color=ink, alpha=0.4 / seeds, linewidth=0)
        axes.stairs(shares, edges, color=ink, linewidth=0.8 if seeds > 1 else 1.2)
    axes.set_xlim(-1.03 * max(found.reach), 1.03 * max(found.reach))
    axes.set_ylim(bottom=0)
    both = ((found.saturated, "|h| > 0.9"), (found.near_zero, "|h| < 0.1"))
    told = [f"{which}: {100 * share:.1f} %" for share, which in both if share is not None]
    told.append(f"{seeds} seeds" if seeds > 1 else "1 seed")
    where: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
    axes.annotate("    ".join(told), (0.5, 1.0), fontsize=9, color=INK[dark], **where)


def _frame(axes: "Axes", title: str, x: str, y: str, dark: bool) -> None:
    axes.set_title(title, fontsize=10.5, pad=20 if title.startswith(("(c)", "(d)")) else 8)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    _plain(axes, dark)


def _drawable(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """The curve with gaps where a number is none or is beyond all measure."""
    points = [(a, b) if abs(a) <= LARGEST and abs(b) <= LARGEST else (math.nan, math.nan) for a, b in zip(x, y, strict=True)]
    return [a for a, _ in points], [b for _, b in points]


def _named(axes: "Axes", seeds: Mapping[str, int], colours: Sequence[int], dark: bool) -> None:
    """One entry in the legend for each model, however many runs it has."""
    palette = DARK_PALETTE if dark else PALETTE
    for (label, count), colour in zip(seeds.items(), colours, strict=True):
        more = ": not run" if count == 0 else f", {count} seeds" if count > 1 else ""
        axes.plot([], [], color=palette[colour], linewidth=2.4, label=label + more)


def _legend(axes: "Axes", dark: bool, ncols: int = 1) -> None:
    axes.legend(fontsize=8, frameon=False, ncols=ncols, labelcolor=INK[dark], handlelength=1.8, columnspacing=1.2)


def _not_run(axes: "Axes", dark: bool) -> None:
    axes.set(xticks=[], yticks=[])
    axes.annotate("not run", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=12, color=PALE[dark])


def _levels(axes: "Axes", marks: Sequence[Mark], limits: tuple[float, float], dark: bool = False) -> None:
    """The paper's numbers across the picture, written beside it."""
    for mark in marks:
        axes.axhline(mark.value, color=PALE[dark], linestyle=(0, (6, 3)), linewidth=1)
    for label, level in near(marks, 0.035 * (limits[1] - limits[0])):
        axes.annotate(label, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=PALE[dark])


def span(series: Sequence[Sequence[float]], levels: Sequence[float] = ()) -> tuple[float, float]:
    """Limits of the vertical axis: the steep first tenth of each curve may leave the picture.

    >>> low, high = span([[8.0, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.5, 1.5, 1.5]], [1.4])
    >>> low < 1.4 and 2.0 < high < 3.0
    True
    """
    kept = [y for ys in series for y in ys[-(-len(ys) // 10) if len(ys) > 1 else 0 :]] + list(levels)
    if not kept:
        return 0.0, 1.0
    margin = 0.06 * (max(kept) - min(kept)) or 0.05
    return min(kept) - margin, max(kept) + margin


def near(marks: Sequence[Mark], apart: float) -> list[tuple[str, float]]:
    """Labels for levels and where to write them; levels closer than ``apart`` share one.

    >>> near([Mark("1.40", 1.40), Mark("1.39", 1.39), Mark("1.54", 1.54)], 0.02)
    [('paper 1.39 to 1.40', 1.395), ('paper 1.54', 1.54)]
    """
    clusters: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: mark.value):
        if clusters and mark.value - clusters[-1][-1].value < apart:
            clusters[-1].append(mark)
        else:
            clusters.append([mark])
    return [(" to ".join([f"paper {c[0].label}", c[-1].label][: len(c)]), (c[0].value + c[-1].value) / 2) for c in clusters]


def _compare(axes: "Axes", rows: Sequence[Pair], dark: bool, legend: bool) -> None:
    ink = INK[dark]
    palette = DARK_PALETTE if dark else PALETTE
    for y, row in enumerate(rows):
        colour = palette[6] if row.word == "miss" else palette[0]
        axes.plot([row.paper, row.ours], [y, y], color=colour, linewidth=1, alpha=0.6)
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=4, alpha=0.5, solid_capstyle="butt")
        axes.plot([row.paper], [y], "D", markerfacecolor="none", markeredgecolor=ink, markersize=7)
        axes.plot([row.ours], [y], "o", color=colour, markersize=6)
        # the sign and the word carry the verdict; the colour only repeats it
        sign = "✗" if row.word == "miss" else "✓"
        axes.annotate(f"{sign} {row.word}", (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=rows[0].metric)
    axes.margins(x=0.08)
    _plain(axes, dark)
    if legend:
        axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=ink, label="paper")
        axes.plot([], [], "o", color=ink, label="ours (mean; bar: best to worst seed)")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False, labelcolor=ink)


def _plain(axes: "Axes", dark: bool = False) -> None:
    axes.set_facecolor(GROUND[dark])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=INK[dark], labelsize=8)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK[dark])
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK[dark])


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    # ids in the SVG are random without a salt; a dollar sign in a name is no formula
    return rc_context({"svg.hashsalt": "multint", "text.parse_math": False})


def _bytes(figure: "Figure", form: str) -> bytes:
    if form not in ("svg", "png"):
        raise ValueError(f"a figure is svg or png, got {form!r}")
    # else the file would carry the date or matplotlib's version
    blank: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=144, metadata=blank)
    return out.getvalue()
