"""How is the paper's Figure 2a drawn? SICK's test MSE over updates, one line a run, and the level that the baseline reaches."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multint.paper.figures import DARK_PALETTE, GROUND, INK, PALE, PALETTE, Line, frame, rendered, span, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(title: str, lines: Mapping[str, Sequence[Line]], level: float | None, form: str = "svg", dark: bool = False) -> bytes:
    """The runs of each model in one colour; ``level`` is the best that the baseline has, mean over seeds."""
    with style():
        return rendered(_draw(title, lines, level, dark), form)


def _draw(title: str, lines: Mapping[str, Sequence[Line]], level: float | None, dark: bool) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    figure.set_facecolor(GROUND[dark])
    axes = figure.add_subplot()
    frame(axes, title, "updates", "MSE on SICK, test pairs", dark)
    palette = DARK_PALETTE if dark else PALETTE
    for colour, (label, runs) in zip(palette, lines.items(), strict=False):
        for place, line in enumerate(runs):
            count = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
            axes.plot(line.x, line.y, color=colour, linewidth=1.2, label=f"{label}, {count}" if place == 0 else "_")
    if level is not None:
        axes.axhline(level, color=PALE[dark], linestyle=(0, (6, 3)), linewidth=1, label="the best of the baseline, mean")
    axes.set_ylim(*span([line.y for runs in lines.values() for line in runs], [] if level is None else [level]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK[dark])
    return figure
