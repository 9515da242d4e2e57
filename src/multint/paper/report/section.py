"""What does an experiment add to the report? Its claims, tables, pictures and rows beside the paper's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from multint.paper.numbers import Row
from multint.paper.records import Group, Scores, same_data
from multint.paper.report import spelling
from multint.paper.report.against import View
from multint.paper.report.markup import Cell, Table


@dataclass(frozen=True)
class Finding:
    """What the records say of a claim.

    Args:
        holds: None if something is lacking.
        seeds: the number of seeds of each side.
        others: whether it holds by each other protocol.
        stand_in: the corpus it was judged on in place of the paper's.
    """

    text: str
    holds: bool | None = None
    seeds: tuple[int, ...] = ()
    others: Mapping[str, bool | None] = field(default_factory=dict)
    stand_in: str = ""

    @property
    def verdict(self) -> Cell:
        """A tick or a cross needs more than one seed on each side."""
        if self.holds is None:
            return Cell("not run" if self.text.startswith("not run") else "not judged", "none")
        count = spelling.seed_count(self.seeds)
        same = [name for name, holds in self.others.items() if holds == self.holds]
        differ = [f"; {name}: {_word(holds)}" for name, holds in self.others.items() if holds is not None and holds != self.holds]
        more = "".join([f", on {self.stand_in}" * bool(self.stand_in), f", {', '.join(same)} too" * bool(same), *differ])
        if min(self.seeds, default=0) < 2:
            return Cell(f"{count}: {'holds' if self.holds else 'does not hold'}{more}", "single")
        sign, kind = ("✓", "better") if self.holds else ("✗", "miss")
        return Cell(f"{sign} {_word(self.holds)} ({count}){more}", kind)


def _word(holds: bool | None) -> str:
    return "confirmed" if holds else "refuted"


@dataclass(frozen=True)
class Claim:
    """Something the paper says.

    Args:
        counts: what has to be seen for the claim to be confirmed.
        laptop: None for a claim that cannot be judged at another size.
    """

    place: str
    says: str
    counts: str
    paper: Finding
    laptop: Finding | None


@dataclass(frozen=True)
class Picture:
    """A figure: ``draw`` takes its form, svg or png, and whether it is dark."""

    name: str
    title: str
    caption: str
    draw: Callable[[str, bool], bytes]
    wide: bool = True


@dataclass(frozen=True)
class Section:
    """An experiment's part of the report.

    Args:
        number: of the paper's section, as in ``numbers.SECTIONS``, which has the title then; "" for one the paper does not have.
        panels: panels of the paper's tables that the claims cover; others get the general claim.
        rows: rows beside the paper's, with no number in it.
        protocols: what the names of protocols mean.
        taken: groups that have a line of their own in the tables here, and none among other runs.
    """

    title: str
    note: str = ""
    number: str = ""
    panels: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    rows: tuple[Row, ...] = ()
    protocols: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[Group, ...] = ()
    warnings: tuple[str, ...] = ()


Judge = Callable[[Sequence[Scores]], Finding]


def judged(view: View, panel: str, keys: Sequence[str], scale: str, metric: str, judge: Judge, stand_in: bool = False) -> Finding:
    """A claim on the results of some rows, by the main protocol and by each other.

    With ``stand_in`` runs on a stand-in for the corpus are judged where the paper's corpus was not run.
    """
    groups = [view.picked(key, panel, scale) for key in keys]
    instead = ""
    if stand_in and scale == "paper" and None in groups:
        others = [view.picked(key, panel, scale, stand_in=True) for key in keys]
        if None not in others:
            groups = others
            instead = others[0].one.data.name if others[0] else ""
    absent = [key for key, group in zip(keys, groups, strict=True) if group is None]
    if absent:
        return Finding(f"not run: {', '.join(absent)}")
    found = [group for group in groups if group]
    if len({same_data(group.one) for group in found}) > 1:
        return Finding("the runs are on different data, or in different precisions")
    return replace(by_protocol(found, metric, judge), stand_in=instead)


def by_protocol(groups: Sequence[Group], metric: str, judge: Judge) -> Finding:
    """The finding by the main protocol, with whether it holds by the others that all groups have."""
    found = {}
    for protocol in dict.fromkeys(name for group in groups for name in group.protocols(metric)):
        sides = [side for group in groups if (side := group.of(metric, protocol))]
        if len(sides) == len(groups):
            found[protocol] = judge(sides)
    if not found:
        return Finding(f"no result for {metric}")
    (_, main), *others = found.items()
    return Finding(main.text, main.holds, main.seeds, {name: one.holds for name, one in others})
