"""What do the results look like?

Learning curves, ours against the paper, an empty frame, and what experiments draw theirs with. matplotlib is imported only when a
figure is drawn. Figures take plain numbers and return the picture's bytes; the same numbers give the same SVG, so committed figures
change only when results do.
"""

import io
import math
from collections.abc import Sequence
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
    """A row of the paper with our number beside it; ``low`` and ``high`` span the seeds, ``text`` is the verdict with its sign."""

    label: str
    metric: str
    paper: float
    ours: float
    low: float
    high: float
    text: str
    miss: bool


def curves(title: str, unit: str, lines: Sequence[Line], marks: Sequence[Mark] = (), form: str = "svg") -> bytes:
    """Validation result over updates, one line per run, the paper's test results as dashed levels."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes = figure.add_subplot()
        labels = list(dict.fromkeys(line.label for line in lines))
        for line in lines:
            place = labels.index(line.label)
            how: dict[str, Any] = {
                "color": PALETTE[place % len(PALETTE)],
                "linestyle": STROKES[place // len(PALETTE) % len(STROKES)],
            }
            first = next(other for other in lines if other.label == line.label) is line
            named = line.label.replace("_", " _", 1) if first and line.label.startswith("_") else line.label if first else "_"
            axes.plot(line.x, line.y, label=named, linewidth=1.6, marker="o" if len(line.x) < 30 else None, markersize=3, **how)
        limits = span([line.y for line in lines], [mark.value for mark in marks])
        draw_levels(axes, marks, limits)
        axes.set(title=title, xlabel="updates", ylabel=f"validation {unit}", ylim=limits)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        plain(axes)
        if labels:  # inside it would cover the lines
            ncols = 1 if any(len(label) > LONG for label in labels) else min(3, len(labels))
            figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=ncols)
        return rendered(figure, form)


def pairs(rows: Sequence[Pair], form: str = "svg", dark: bool = False) -> bytes:
    """Ours (filled, a bar from the best seed to the worst) against the paper (hollow), one axis per metric, verdicts beside."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(row.metric for row in rows))
    counts = [sum(row.metric == metric for row in rows) for metric in metrics]
    with style():
        figure = Figure(figsize=(8, 1.0 + 0.32 * len(rows) + 0.7 * len(metrics)), layout="constrained")
        figure.set_facecolor(GROUND[dark])
        for place, metric in enumerate(metrics):
            axes = figure.add_subplot(figure.add_gridspec(len(metrics), 1, height_ratios=[n + 1 for n in counts])[place])
            _compare(axes, [row for row in rows if row.metric == metric], dark, legend=place == 0)
        return rendered(figure, form)


def empty(title: str, x: str, y: str, form: str = "svg", dark: bool = False) -> bytes:
    """The frame of a figure that was not run."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(6.4, 3.0), layout="constrained")
        figure.set_facecolor(GROUND[dark])
        axes = figure.add_subplot()
        frame(axes, title, x, y, dark)
        not_run(axes, dark)
        return rendered(figure, form)


def frame(axes: "Axes", title: str, x: str, y: str, dark: bool, pad: float = 8.0) -> None:
    axes.set_title(title, fontsize=10.5, pad=pad)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    plain(axes, dark)


def drawable(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """The curve with gaps where a number is missing or too large to draw."""
    points = [(a, b) if abs(a) <= LARGEST and abs(b) <= LARGEST else (math.nan, math.nan) for a, b in zip(x, y, strict=True)]
    return [a for a, _ in points], [b for _, b in points]


def not_run(axes: "Axes", dark: bool) -> None:
    axes.set(xticks=[], yticks=[])
    axes.annotate("not run", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=12, color=PALE[dark])


def draw_levels(axes: "Axes", marks: Sequence[Mark], limits: tuple[float, float], dark: bool = False) -> None:
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
        colour = palette[6] if row.miss else palette[0]
        axes.plot([row.paper, row.ours], [y, y], color=colour, linewidth=1, alpha=0.6)
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=4, alpha=0.5, solid_capstyle="butt")
        axes.plot([row.paper], [y], "D", markerfacecolor="none", markeredgecolor=ink, markersize=7)
        axes.plot([row.ours], [y], "o", color=colour, markersize=6)
        # the text carries the verdict; the colour only repeats it
        axes.annotate(row.text, (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=rows[0].metric)
    axes.margins(x=0.08)
    plain(axes, dark)
    if legend:
        axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=ink, label="paper")
        axes.plot([], [], "o", color=ink, label="ours (mean; bar: best to worst seed)")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False, labelcolor=ink)


def plain(axes: "Axes", dark: bool = False) -> None:
    axes.set_facecolor(GROUND[dark])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=INK[dark], labelsize=8)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK[dark])
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK[dark])


def style() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    # ids in the SVG are random without a salt; a dollar sign in a name is no formula
    return rc_context({"svg.hashsalt": "multint", "text.parse_math": False})


def rendered(figure: "Figure", form: str) -> bytes:
    if form not in ("svg", "png"):
        raise ValueError(f"a figure is svg or png, got {form!r}")
    # else the file would carry the date or matplotlib's version
    blank: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=144, metadata=blank)
    return out.getvalue()
