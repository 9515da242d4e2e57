"""The runs that were just made: what do they show?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multint.paper.record import Record
from multint.paper.records import Group, Scores, gather, label, same_data
from multint.paper.report import spelling
from multint.paper.report.markup import Column, Table, tabulated
from multint.paper.report.spelling import ours
from multint.paper.report.tables import facts


@dataclass(frozen=True)
class Focus:
    """Runs to show first, by name; a sample of each, and what they mean, if there is more to say than ``meaning`` does."""

    runs: Sequence[str]
    samples: Mapping[str, str] = field(default_factory=dict)
    sentence: str = ""


def groups(runs: Sequence[Record], names: Sequence[str]) -> list[Group]:
    """The named runs, gathered, in the order of the names."""
    found, _ = gather([run for run in runs if run.run in set(names)])
    return sorted(found, key=lambda group: min(names.index(run.run) for run in group.runs))


def meaning(groups: Sequence[Group]) -> str:
    """One sentence: who is ahead of its twin, by how much, and on how many seeds."""
    parts = []
    for mi in groups:
        plain = next((one for one in groups if one.one.recipe == mi.one.twin and same_data(one.one) == same_data(mi.one)), None)
        found = plain and plain.of(mi.main.metric.name)
        if plain and found:
            parts.append(_pair(label(mi, groups), label(plain, groups), mi.main, found))
    if not parts:
        parts = [f"{label(group, groups)}: {ours(group.main)} {spelling.how(group.main.metric).label}" for group in groups]
    count = spelling.seed_count([len(group.runs) for group in groups])
    return f"{'; '.join(parts)} ({count} each)." if parts else "Nothing has been run."


def _pair(mi: str, plain: str, one: Scores, two: Scores) -> str:
    how, lead = spelling.how(one.metric), spelling.lead(one, two)
    numbers = f"{ours(one)} against {ours(two)} {how.label}"
    by = f"by {abs(one.mean - two.mean):.{how.digits + 1}f}"
    words = {"ahead": f"is ahead of {plain} {by}", "behind": f"is behind {plain} {by}", "level": f"and {plain} are level"}
    return f"{mi} {words.get(lead, f'or {plain} diverged')}: {numbers}"


def table(groups: Sequence[Group]) -> Table:
    """One line per group of runs."""

    def others(group: Group) -> str:
        metric = group.main.metric.name
        return "; ".join(f"{name}: {ours(found)}" for name in group.protocols(metric)[1:] if (found := group.of(metric, name)))

    columns = [
        Column("Model", "head", lambda group: label(group, groups)),
        *facts("Metric", "Result"),
        Column("Other protocol", "note", others),
        *facts("Validation", "Seeds", "Parameters", "Updates", "Time", "Throughput"),
    ]
    return tabulated("What they got", "Results on test data, with the weights that were best on validation data.", columns, groups)
