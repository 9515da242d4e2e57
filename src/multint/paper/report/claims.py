"""The paper's claims, section by section: those of experiments, and for panels without one that MI is ahead of its additive row."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from multint.paper import figures
from multint.paper.numbers import PANELS, PICTURES, ROWS, SECTIONS, Row, printed, printing
from multint.paper.numbers import Picture as PaperPicture
from multint.paper.records import Scores
from multint.paper.report import spelling
from multint.paper.report.against import View
from multint.paper.report.markup import EMPTY, Cell, Table
from multint.paper.report.section import Claim, Finding, Judge, Picture, Section, judged


def sections(view: View) -> list[Section]:
    """The sections of §3 in order, then those of experiments beside the paper."""
    given = [section for one in view.experiments.values() if one.sections for section in one.sections(view)]
    of_paper = [_completed(view, number, [one for one in given if one.number == number]) for number in SECTIONS]
    return [*of_paper, *(one for one in given if one.number not in SECTIONS)]


def _completed(view: View, number: str, given: Sequence[Section]) -> Section:
    """A section of the paper: what experiments give, and the general claims and empty frames for the rest."""

    def every(field: str) -> tuple[Any, ...]:
        return tuple(part for one in given for part in getattr(one, field))

    covered, there = every("panels"), {picture.name for picture in every("pictures")}
    panels = [key for key, panel in PANELS.items() if panel.section == number and key not in covered]
    frames = [_frame(one) for one in PICTURES if one.section == number and one.name not in there]
    return Section(
        f"{number} {SECTIONS[number]}",
        " ".join(one.note for one in given if one.note) or "Nothing has been run.",
        number,
        claims=(*every("claims"), *(claim for panel in panels for claim in panel_claims(view, panel))),
        pictures=(*every("pictures"), *frames),
        protocols={name: text for one in given for name, text in one.protocols.items()},
        **{field: every(field) for field in ("tables", "rows", "taken", "warnings")},
    )


def _frame(one: PaperPicture) -> Picture:
    """A figure of the paper that was not run."""
    return Picture(one.name, one.title, f"{one.caption} Not run.", partial(figures.empty, one.title, one.x, one.y), wide=False)


# ---- the general claim ----


def panel_claims(view: View, panel: str) -> list[Claim]:
    """One for each MI row of a panel that has an additive row there."""
    rows = {row.key: row for row in ROWS if row.panel == panel and row.key and not row.cited}
    return [ahead(view, row, rows[row.twin]) for row in rows.values() if row.twin in rows]


def ahead(view: View, mi: Row, plain: Row, says: str = "") -> Claim:
    """The claim that an MI row is ahead of its additive row, on every metric of the panel."""
    metrics = [row.metric for row in ROWS if row.panel == mi.panel and row.key == mi.key] or [mi.metric]
    before = {row.metric: row for row in ROWS if row.panel == mi.panel and row.key == plain.key}
    after = {row.metric: row for row in ROWS if row.panel == mi.panel and row.key == mi.key}
    both = [f"{printing(m).label} {printed(after[m])} against {printed(before[m])}" for m in metrics if m in before and m in after]
    panel = PANELS[mi.panel]
    words = says or f"{mi.model} is ahead of {plain.model}" + (f": {', '.join(both)}." if both else ".")
    keys = [key for key in (mi.key, plain.key) if key]

    def finding(scale: str) -> Finding:
        found = [judged(view, mi.panel, keys, scale, metric, lead_of(mi.model, plain.model), stand_in=True) for metric in metrics]
        return found[0] if len(found) == 1 else _together(found, metrics)

    counts = f"better {', '.join(printing(m).label for m in metrics)}, by more than the spread over seeds"
    return Claim(f"{panel.place}", words, counts, finding("paper"), finding("laptop"))


def lead_of(mi: str, plain: str) -> Judge:
    """Judges whether the first of two sides is ahead, by more than the spread over seeds."""

    def judge(sides: Sequence[Scores]) -> Finding:
        one, two = sides
        text = f"{mi} {spelling.ours(one)}, {plain} {spelling.ours(two)}"
        return Finding(text, spelling.lead(one, two) == "ahead", (len(one.values), len(two.values)))

    return judge


def _together(found: Sequence[Finding], metrics: Sequence[str]) -> Finding:
    """One finding of several metrics: all have to hold."""
    if any(one.holds is None for one in found):
        return next(one for one in found if one.holds is None)
    text = "; ".join(f"{printing(metric).label}: {one.text}" for metric, one in zip(metrics, found, strict=True))
    return Finding(text, all(one.holds for one in found), tuple(n for one in found for n in one.seeds))


# ---- tables ----

NOT_COMPARED = Finding("not compared: the claim is on the paper's size")


def overview(sections: Sequence[Section]) -> Table:
    """Every claim with its verdict at both sizes."""
    rows = []
    for section in sections:
        for claim in section.claims:
            verdicts = (claim.paper.verdict, claim.laptop.verdict if claim.laptop else EMPTY)
            idle = " idle" if all(cell.kind == "none" for cell in verdicts) else ""
            placed = section.number and section.number in claim.place
            where = claim.place if placed else f"{section.number or section.title}, {claim.place}"
            rows.append((Cell(claim.says, f"head claim{idle}"), *verdicts, Cell(where, "name")))
    terms = "; ".join(f"{name}: {text}" for section in sections for name, text in section.protocols.items())
    note = (
        "Judged by the records alone, means over seeds; a tick or a cross needs more than one seed. Where a test result can be "
        f"taken by several protocols, each has its verdict{f' ({terms})' if terms else ''}. Laptop size: the same models in small."
    )
    return Table("Claim by claim", note, ("Claim", "Paper's size", "Laptop size", "Where"), tuple(rows))


def details(section: Section) -> Table:
    """The claims of a section with what counts and what was measured."""
    header = (
        "Where",
        "What the paper says",
        "What counts",
        "Measured, paper's size",
        "Verdict",
        "Measured, laptop size",
        "Verdict",
    )
    rows = []
    for claim in section.claims:
        laptop = claim.laptop or NOT_COMPARED
        idle = " idle" if claim.paper.holds is None and laptop.holds is None else ""
        paper, small = ((Cell(one.text, "note"), one.verdict) for one in (claim.paper, laptop))
        rows.append((Cell(claim.place, f"head{idle}"), Cell(claim.says, "note"), Cell(claim.counts, "note"), *paper, *small))
    note = "Where the paper gives no bound, ours stands under “What counts”."
    return Table(f"Claims of {section.title}", note, header, tuple(rows))
