"""Section 3.4 in the report: Figure 2a, how soon MI reaches the best of its baseline, and all encoders beside each other."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from multint.paper import figures
from multint.paper.records import Group, Point, label
from multint.paper.report import spelling
from multint.paper.report.against import View, twin
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Claim, Finding, Picture, Section
from multint.paper.skipthought import figure_2a
from multint.paper.skipthought.transfer import SURFACE

HALF = 2 / 3  # "about twice the number of updates"; the paper gives no bound
MSE = "test_mse"  # the column of a curve
COLUMNS = (
    ("r", ""),
    ("rho", ""),
    ("mse", ""),
    ("acc", ""),
    ("f1", ""),
    ("f1", SURFACE),
    *((one, "") for one in ("mr", "cr", "subj", "mpqa")),
)
PROTOCOLS = {SURFACE: "MSRP with six surface features beside the vectors, which the paper's table is without"}
NONE = Cell(spelling.NONE, "none")


def sections(view: View) -> list[Section]:
    mine = [group for group in view.groups if group.one.recipe.startswith("skipthought/")]
    trained = [group for group in mine if group.one.updates]
    others = [group for group in mine if not group.one.updates]
    note = (
        "Sentence encoders trained on books. BookCorpus is no longer given away; what was trained on other books is named so "
        "and is set beside no number of the paper."
    )
    pictures = [one for scale in ("paper", "laptop") if (one := _picture(view, scale))]
    tables = [_all(mine), _pace(view, trained)]
    return [
        Section(
            "Skip-thought vectors",
            note,
            "§3.4",
            claims=(_faster(view),),
            tables=tuple(table for table in tables if table.rows),
            pictures=tuple(pictures),
            protocols=PROTOCOLS if mine else {},
            taken=tuple(others),
        )
    ]


# ---- curves ----


@dataclass(frozen=True)
class Pace:
    """The best SICK MSE of a baseline's run, and when the run of MI with the same seed had it; None if never."""

    level: float
    plain: Point
    mi: Point | None


def curve(view: View, run: str) -> list[Point]:
    return [point for point in view.records.curves.get(run, ()) if MSE in point.extra]


def paces(view: View, mi: Group, plain: Group) -> list[Pace]:
    """Seed by seed, where both have a curve."""
    by_seed = {run.seed: curve(view, run.run) for run in plain.runs}
    found = []
    for run in mi.runs:
        theirs, ours = by_seed.get(run.seed) or [], curve(view, run.run)
        if theirs and ours:
            best = min(theirs, key=lambda point: point.extra[MSE])
            level = best.extra[MSE]
            found.append(Pace(level, best, next((point for point in ours if point.extra[MSE] <= level), None)))
    return found


def _faster(view: View) -> Claim:
    def finding(scale: str) -> Finding:
        groups = [_picked(view, key, scale) for key in ("mi-uni-skip", "uni-skip")]
        mi, plain = groups
        if mi is None or plain is None:
            return Finding(
                "not run: " + ", ".join(k for k, g in zip(("mi-uni-skip", "uni-skip"), groups, strict=True) if g is None)
            )
        found = paces(view, mi, plain)
        if not found:
            return Finding("no curves")
        stand_in = mi.one.data.name if scale == "paper" and mi.one.data.stands_for else ""
        return Finding(_words(found), _holds(found), (len(found),), stand_in=stand_in)

    return Claim(
        "Fig. 2a",
        "At about 125,000 updates MI-uni-skip exceeds the best performance of the baseline, which takes about twice as many.",
        "reaches the baseline's lowest SICK test MSE in at most two thirds of its updates, mean over seeds",
        finding("paper"),
        finding("laptop"),
    )


def _picked(view: View, key: str, scale: str) -> Group | None:
    found = view.picked(key, "sick", scale)
    return found or (view.picked(key, "sick", scale, stand_in=True) if scale == "paper" else None)


def _share(found: Sequence[Pace]) -> float | None:
    """Updates of MI over updates of the baseline, mean over seeds; None if one run of MI never gets there."""
    parts = [one.mi.update / one.plain.update for one in found if one.mi]
    return statistics.fmean(parts) if len(parts) == len(found) else None


def _holds(found: Sequence[Pace]) -> bool:
    share = _share(found)
    return share is not None and share <= HALF


def _words(found: Sequence[Pace]) -> str:
    parts = [
        f"MSE {one.level:.4f}: baseline {one.plain.update:,.0f} updates, MI {f'{one.mi.update:,.0f}' if one.mi else 'never'}"
        for one in found
    ]
    return "; ".join(parts)


def _pace(view: View, groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        plain = twin(view, group, groups)
        found = paces(view, group, plain) if plain else []
        if not found:
            continue
        share = _share(found)
        seconds = [(one.mi.seconds, one.plain.seconds) for one in found if one.mi and one.mi.seconds and one.plain.seconds]
        in_time = statistics.fmean(a / b for a, b in seconds) if len(seconds) == len(found) else None
        reached = [one.mi for one in found if one.mi]
        rows.append(
            (
                Cell(f"{label(group)}, {group.one.data.name}", "head"),
                Cell(f"{statistics.fmean(one.level for one in found):.4f}", "number"),
                Cell(f"{statistics.fmean(one.plain.update for one in found):,.0f}", "number"),
                Cell(
                    f"{statistics.fmean(p.update for p in reached):,.0f}" if len(reached) == len(found) else "not by all", "number"
                ),
                NONE if share is None else Cell(f"{share:.2f}", "number"),
                NONE if in_time is None else Cell(f"{in_time:.2f}", "number"),
                Cell(str(len(found)), "number"),
            )
        )
    note = (
        "The lowest SICK test MSE on the baseline's curve, and when MI with the same seed first has it; means over seeds. The "
        "paper: about half of the updates. A ratio in seconds compares runs that shared the machine in the same way alone."
    )
    header = ("MI", "Baseline's best MSE", "Its updates", "Updates of MI", "Ratio", "Ratio in seconds", "Seeds")
    return Table("Updates to the baseline's best, Figure 2a", note, header, tuple(rows))


def _picture(view: View, scale: str) -> Picture | None:
    groups = {name: _picked(view, key, scale) for name, key in (("uni-skip", "uni-skip"), ("MI-uni-skip", "mi-uni-skip"))}
    lines = {name: _lines(view, name, group) for name, group in groups.items() if group}
    if not any(lines.values()):
        return None
    plain = [min(line.y) for line in lines.get("uni-skip", [])]
    laptop = ", laptop size" if scale == "laptop" else ""
    where = next(group.one.data.name for group in groups.values() if group)
    title = f"Figure 2a{laptop}: SICK while training on {where}"
    draw = partial(figure_2a.draw, title, lines, statistics.fmean(plain) if plain else None)
    caption = "MSE on SICK's test pairs at every evaluation, by a softmax over the grades trained on its training pairs."
    return Picture("figure-2a" if scale == "paper" else "figure-2a-laptop", f"Figure 2a{laptop}", caption, draw, wide=False)


def _lines(view: View, name: str, group: Group) -> list[figures.Line]:
    found = [curve(view, run.run) for run in group.runs]
    return [figures.Line(name, [p.update for p in points], [p.extra[MSE] for p in points]) for points in found if points]


# ---- all encoders ----


def _all(groups: Sequence[Group]) -> Table:
    """Every encoder that was scored, those without training first."""
    rows = []
    for group in sorted(groups, key=lambda group: (bool(group.one.updates), group.one.recipe)):
        cells = []
        for name, protocol in COLUMNS:
            found = group.of(name, protocol)
            cells.append(Cell(spelling.ours(found), "number") if found else NONE)
        books = group.one.data.name if group.one.updates else spelling.NONE
        unknown = group.one.measured.get("unknown", {}).get("books")
        rows.append(
            (
                Cell(label(group, groups), "head"),
                Cell(books, "name"),
                Cell(f"{100 * unknown:.1f}", "number") if isinstance(unknown, float) else NONE,
                *cells,
                Cell(str(len(group.runs)), "number"),
            )
        )
    names = ("r", "ρ", "MSE", "Acc", "F1", "F1 with surface features", "MR", "CR", "SUBJ", "MPQA")
    note = (
        "SICK: r, ρ, MSE; MSRP: accuracy and F1; accuracies of four sets with two classes. Bags of words and averages of word "
        "vectors know no order of words; what an encoder has beyond them is what training it added."
    )
    return Table("Sentence encoders", note, ("Encoder", "Books", "Unknown words %", *names, "Seeds"), tuple(rows))
