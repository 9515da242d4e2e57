"""How is the paper's Figure 1 drawn? From plain numbers, with the helpers of ``figures``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multint.paper.figures import (
    DARK_PALETTE,
    GROUND,
    INK,
    PALETTE,
    Line,
    Mark,
    draw_levels,
    drawable,
    frame,
    not_run,
    rendered,
    span,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = 0, 1, 2  # places in the palettes; lin-RNN is blue and lin-MI-RNN orange in the paper
STROKES: dict[int, Any] = {0: (0, (1, 1)), 1: "-", 5: (0, (5, 2)), 10: (0, (7, 2, 1, 2))}  # of ∂C/∂h_t by t


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

    @property
    def shares(self) -> list[list[float]]:
        """Per cent of the activations per bin, for each run."""
        return [[100 * count / sum(counts) for count in counts] for counts in self.counts]


@dataclass(frozen=True)
class Figure1:
    """What Figure 1 shows.

    Args:
        norms: by model, the additive one first; ``level`` is the log norm the paper has for that one.
        valid: by model: Eq. 1, Eq. 2, Eq. 4; ``marks`` are the paper's test results.
        activations: of the two models; None where they were not measured.
    """

    norms: Mapping[str, Sequence[Norm]]
    valid: Mapping[str, Sequence[Line]]
    activations: Mapping[str, Activations | None]
    level: Mark
    marks: Sequence[Mark] = ()

    @property
    def empty(self) -> bool:
        return not any([*self.norms.values(), *self.valid.values(), *self.activations.values()])

    def draw(self, form: str = "svg", dark: bool = False) -> bytes:
        """The paper's arrangement: (a) gradient norms, (b) validation results, (c, d) hidden activations."""
        with style():
            return rendered(_draw(self, dark), form)


def _draw(what: Figure1, dark: bool) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 8.2), layout="constrained")
    figure.set_facecolor(GROUND[dark])
    figure.get_layout_engine().set(hspace=0.06, wspace=0.05, h_pad=0.09, w_pad=0.06)  # type: ignore[union-attr, call-arg]
    axes = list(figure.subplots(2, 2).flat)
    _draw_norms(axes[0], what, dark)
    _draw_valid(axes[1], what, dark)
    known = [one for one in what.activations.values() if one and one.counts]
    top = 1.05 * max((share for one in known for run in one.shares for share in run), default=1.0)  # the same in c and d
    for place, (label, found) in enumerate(what.activations.items()):
        title = f"({'cd'[place]}) Hidden activations of the {label}"
        _draw_activations(axes[2 + place], title, found, (BLUE, ORANGE)[place], top, dark)
    return figure


def _draw_norms(axes: "Axes", what: Figure1, dark: bool) -> None:
    palette, colours = DARK_PALETTE if dark else PALETTE, (BLUE, ORANGE)
    frame(axes, "(a) Gradient of the last character's loss", "epochs", "mean of ln ‖∂C/∂h_t‖₂, C at t = 50", dark)
    shown = {label: [(norm, *drawable(norm.x, norm.y)) for norm in found] for label, found in what.norms.items()}
    heights = [y for found in shown.values() for _, _, ys in found for y in ys if math.isfinite(y)]
    if not heights:
        not_run(axes, dark)
        return
    seeds = {
        label: max((sum(one.t == norm.t for one in found) for norm in found), default=0) for label, found in what.norms.items()
    }
    for colour, found in zip(colours, shown.values(), strict=True):
        for norm, x, y in found:
            axes.plot(
                x, y, color=palette[colour], linestyle=STROKES.get(norm.t, "--"), linewidth=1.1 if max(seeds.values()) > 1 else 1.6
            )
    low, high = min(*heights, what.level.value), max(*heights, what.level.value)
    margin = 0.05 * (high - low) or 1.0
    limits = low - margin, high + margin
    draw_levels(axes, [what.level], limits, dark)
    axes.set_ylim(*limits)
    _label_models(axes, seeds, colours, dark)
    for t in (t for t in STROKES if any(norm.t == t for found in what.norms.values() for norm in found)):
        axes.plot([], [], color=INK[dark], linestyle=STROKES[t], linewidth=1.4, label=f"t = {t}")
    _legend(axes, dark, ncols=3)


def _draw_valid(axes: "Axes", what: Figure1, dark: bool) -> None:
    palette, colours = DARK_PALETTE if dark else PALETTE, (BLUE, GREEN, ORANGE)
    dashed = "; dashed: the paper's test results" if what.marks else ""
    frame(axes, f"(b) Validation curves{dashed}", "epochs", "validation BPC", dark)
    shown = {label: [drawable(line.x, line.y) for line in found] for label, found in what.valid.items()}
    heights = [kept for found in shown.values() for _, ys in found if (kept := [y for y in ys if math.isfinite(y)])]
    if not heights:
        not_run(axes, dark)
        return
    for colour, found in zip(colours, shown.values(), strict=True):
        for x, y in found:
            axes.plot(x, y, color=palette[colour], linewidth=1.0 if len(found) > 1 else 1.6)
    limits = span(heights, [mark.value for mark in what.marks])
    draw_levels(axes, what.marks, limits, dark)
    axes.set_ylim(*limits)
    _label_models(axes, {label: len(found) for label, found in what.valid.items()}, colours, dark)
    _legend(axes, dark, ncols=1)


def _draw_activations(axes: "Axes", title: str, found: Activations | None, colour: int, top: float, dark: bool) -> None:
    frame(axes, title, "activation h, all steps of the validation set", "share of activations per bin, %", dark, pad=20.0)
    if found is None or not found.counts:
        not_run(axes, dark)
        return
    ink, seeds = (DARK_PALETTE if dark else PALETTE)[colour], len(found.counts)
    for shares, reach in zip(found.shares, found.reach, strict=True):
        edges = [reach * (2 * i / len(shares) - 1) for i in range(len(shares) + 1)]
        axes.stairs(shares, edges, fill=True, color=ink, alpha=0.4 / seeds, linewidth=0)
        axes.stairs(shares, edges, color=ink, linewidth=0.8 if seeds > 1 else 1.2)
    axes.set_xlim(-1.03 * max(found.reach), 1.03 * max(found.reach))
    axes.set_ylim(0, top)
    both = ((found.saturated, "|h| > 0.9"), (found.near_zero, "|h| < 0.1"))
    words = [f"{which}: {100 * share:.1f} %" for share, which in both if share is not None]
    words.append(f"{seeds} seeds" if seeds > 1 else "1 seed")
    where: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
    axes.annotate("    ".join(words), (0.5, 1.0), fontsize=9, color=INK[dark], **where)


def _label_models(axes: "Axes", seeds: Mapping[str, int], colours: Sequence[int], dark: bool) -> None:
    """One entry in the legend for each model, whatever the number of its runs."""
    palette = DARK_PALETTE if dark else PALETTE
    for (label, count), colour in zip(seeds.items(), colours, strict=True):
        more = ": not run" if count == 0 else f", {count} seeds" if count > 1 else ", 1 seed"
        axes.plot([], [], color=palette[colour], linewidth=2.4, label=label + more)


def _legend(axes: "Axes", dark: bool, ncols: int) -> None:
    """Below the panel, where it covers no curve."""
    where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
    axes.legend(fontsize=8, frameon=False, ncols=ncols, labelcolor=INK[dark], handlelength=2.6, columnspacing=1.2, **where)
