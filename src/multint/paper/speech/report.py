"""Section 3.3 in the report: error rates with their intervals, and what multiplication changes on the same utterances."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from multint.paper.records import Group, label
from multint.paper.report import spelling
from multint.paper.report.against import View, twin
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Section
from multint.paper.speech.scoring import Interval, bootstrap, bootstrap_difference

PROTOCOLS = {
    "greedy": "the best unit of every step, no language model",
    "graph": "words through the graph T∘L∘G with a trigram",
}
KINDS = (("greedy", "characters", "CER %, greedy"), ("graph", "words", "WER %, graph"), ("greedy", "words", "WER %, greedy"))
EDITS = ("substitutions", "deletions", "insertions")
HEADER = ("Model", "Metric", "Rate", "95 % interval", *(name.capitalize() for name in EDITS), "MI − LSTM", "95 % interval", "Seeds")
NONE = Cell(spelling.NONE, "none")


def sections(view: View) -> list[Section]:
    mine = [group for group in view.groups if group.one.recipe.startswith("speech/") and counts(group, *KINDS[0][:2])]
    note = (
        "Bidirectional recognisers trained with CTC. WSJ needs a licence of the LDC. What was run on other speech is named so and "
        "is set beside no number of the paper."
    )
    return [Section("Speech recognition", note, "§3.3", tables=(rates(view, mine),) if mine else (), protocols=PROTOCOLS)]


def rates(view: View, groups: Sequence[Group]) -> Table:
    note = (
        "Errors on the test utterances, means over seeds. Intervals: utterances drawn again 10,000 times; those of a difference "
        "draw the same utterances for both models (Bisani and Ney 2004). A difference below zero is in favour of MI."
    )
    return Table("Recognition errors", note, HEADER, tuple(row for group in groups for row in _rows(view, group, groups)))


def _rows(view: View, group: Group, among: Sequence[Group]) -> Iterator[tuple[Cell, ...]]:
    plain = twin(view, group, among)
    for protocol, tokens, name in KINDS:
        mine = counts(group, protocol, tokens)
        if not mine:
            continue
        errors, lengths = together(mine)
        head = Cell(f"{label(group, among)}, {group.one.data.name}", "head")
        parts = [Cell(f"{100 * np.mean([one[kind] for one in mine]) / sum(lengths):.1f}", "number") for kind in EDITS]
        difference = _difference(mine, counts(plain, protocol, tokens) if plain else [])
        yield (
            head,
            Cell(name, "unit"),
            Cell(f"{100 * sum(errors) / sum(lengths):.2f}", "number"),
            Cell(_spelled(bootstrap(errors, lengths)), "number"),
            *parts,
            *difference,
            Cell(str(len(mine)), "number"),
        )


def counts(group: Group, protocol: str, tokens: str) -> list[Mapping[str, Any]]:
    """What each run of a group counted on the test utterances; none if one did not."""
    found = [run.measured.get("test", {}).get(protocol, {}).get(tokens) for run in group.runs]
    return [] if None in found else found


def together(mine: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, list[int]]:
    """Errors of every utterance, means over the runs, and their lengths."""
    return np.mean([one["errors"] for one in mine], 0), list(mine[0]["lengths"])


def _difference(mine: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]]) -> tuple[Cell, Cell]:
    if not plain or mine[0]["lengths"] != plain[0]["lengths"]:
        return NONE, NONE
    (one, lengths), (two, _) = together(mine), together(plain)
    gap = 100 * (sum(one) - sum(two)) / sum(lengths)
    return Cell(f"{gap:+.2f}", "number"), Cell(_spelled(bootstrap_difference(one, two, lengths), "+"), "number")


def _spelled(interval: Interval, sign: str = "") -> str:
    return f"{interval.low:{sign}.2f} to {interval.high:{sign}.2f}"
