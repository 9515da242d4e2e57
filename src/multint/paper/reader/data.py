"""Which questions does a batch hold, how long is it, and which entity has which number?

Questions are put into few groups of similar length, and every batch of a group has the shape of its longest question: little
padding, and on a GPU few graphs. A batch depends on (seed, epoch, position) alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from multint.paper.experiment import Team
from multint.paper.obtain import DataError
from multint.paper.reader.corpus import Split
from multint.paper.reader.vocabulary import FIRST, NIL, Vocabulary
from multint.shapes import Int

Numbers = NDArray[np.int64]
DOCUMENTS, QUESTIONS = 8, 2  # groups by the length of the document, and in each by that of the question: 16 shapes


class Batch(NamedTuple):
    """Questions side by side; answers are numbers of the vocabulary."""

    document: Int[torch.Tensor, "t n"]
    question: Int[torch.Tensor, "s n"]
    answer: Int[torch.Tensor, " n"]


@dataclass(frozen=True, eq=False)
class Reading:
    """A split as a model reads it.

    Args:
        table: the number in the model's vocabulary for each one in the corpus's.
        longest: tokens of a document; the others are cut off.
    """

    split: Split
    entities: int
    table: Numbers
    longest: int

    @classmethod
    def of(cls, split: Split, whole: Vocabulary, vocabulary: Vocabulary, longest: int) -> "Reading":
        return cls(split, vocabulary.entities, whole.into(vocabulary), longest)

    @cached_property
    def lengths(self) -> Numbers:
        return np.minimum(self.split.lengths, self.longest)

    @cached_property
    def question_lengths(self) -> Numbers:
        return np.minimum(self.split.question_lengths, self.longest)

    def batch(self, picked: Numbers, shape: tuple[int, int] | None = None, order: Numbers | None = None) -> Batch:
        """The questions of these numbers; with an order, @entity0 becomes order[0], and so on."""
        t, s = shape or (int(self.lengths[picked].max()), int(self.question_lengths[picked].max()))
        document, question = np.full((t, len(picked)), NIL), np.full((s, len(picked)), NIL)
        for k, i in enumerate(picked.tolist()):
            document[: self.lengths[i], k] = self.split.document(i)[: self.longest]
            question[: self.question_lengths[i], k] = self.split.question(i)[: self.longest]
        table = self.table
        if order is not None:
            table = table.copy()
            table[FIRST : FIRST + self.entities] = FIRST + order
        parts = (document, question, self.split.answers[picked])
        return Batch(*(torch.from_numpy(table[part]) for part in parts))


@dataclass(frozen=True)
class Group:
    """Questions of similar length, and the shape of their batches."""

    picked: Numbers
    shape: tuple[int, int]


def groups(lengths: Numbers, question_lengths: Numbers, least: int) -> list[Group]:
    """Questions by the lengths of their documents, and in each group by their own; each group has so many at least."""
    found = []
    for picked in _cut(np.arange(len(lengths)), lengths, DOCUMENTS, least):
        parts = _cut(picked, question_lengths, QUESTIONS, least)
        found += [Group(part, (int(lengths[part].max()), int(question_lengths[part].max()))) for part in parts]
    return found


def _cut(picked: Numbers, lengths: Numbers, most: int, least: int) -> list[Numbers]:
    """At most so many groups of similar length, with the least padding there can be."""
    sizes, counts = np.unique(lengths[picked], return_counts=True)
    ends = edges(sizes, counts, most, least)
    if not ends:
        return []
    place = np.searchsorted(np.array(ends), lengths[picked])
    return [picked[place == k] for k in range(len(ends))]


def edges(sizes: Numbers, counts: Numbers, most: int, least: int) -> list[int]:
    """The longest of each of at most ``most`` groups, so that all lengths rounded up to them have the smallest sum.

    Every group has at least ``least`` members; if there are fewer in all, there is no group.

    >>> edges(np.array([1, 2, 9, 10]), np.array([5, 5, 5, 5]), 2, 1)
    [2, 10]
    """
    before = np.concatenate([[0], np.cumsum(counts)])
    members = before[None, 1:] - before[:-1, None]  # of a group from length i to length j
    tokens = np.where(members >= max(least, 1), members * sizes[None, :], np.inf)
    best, starts = [tokens[0]], [np.zeros(len(sizes), np.int64)]  # of so many groups up to length j; where the last one begins
    for _ in range(1, min(most, len(sizes))):
        total = np.concatenate([[np.inf], best[-1][:-1]])[:, None] + tokens
        starts.append(total.argmin(0))
        best.append(total.min(0))
    count = int(np.argmin([one[-1] for one in best]))
    if not np.isfinite(best[count][-1]):
        return []
    found, j = [], len(sizes) - 1
    for k in range(count, -1, -1):
        found.append(int(sizes[j]))
        j = int(starts[k][j]) - 1
    return found[::-1]


@dataclass(frozen=True)
class Plan:
    """How the training questions are drawn: every epoch in a new order, in batches from one group each.

    Args:
        batch: questions in a batch of all processes together. What is left of a group is not drawn in that epoch.
        permute: give the entities new numbers in every batch.
    """

    reading: Reading
    batch: int
    seed: int
    permute: bool = True

    @cached_property
    def groups(self) -> list[Group]:
        found = groups(self.reading.lengths, self.reading.question_lengths, self.batch)
        if not found:
            there = len(self.reading.split)
            raise DataError(f"{there} training questions are less than one batch of {self.batch}; use a smaller batch")
        return found

    def epoch(self, number: int, team: Team) -> "Batches":
        if self.batch % team.world:
            raise DataError(f"a batch of {self.batch} cannot be shared evenly by {team.world} processes")
        generator = np.random.default_rng([self.seed, number])
        drawn: list[tuple[Numbers, tuple[int, int]]] = []
        for group in self.groups:
            order = generator.permutation(group.picked)
            drawn += [(order[k : k + self.batch], group.shape) for k in range(0, len(order) - self.batch + 1, self.batch)]
        return Batches(self, number, [drawn[k] for k in generator.permutation(len(drawn))], team)


@dataclass(frozen=True, eq=False)
class Batches:
    """One epoch; each process has its part of every batch."""

    plan: Plan
    number: int
    drawn: list[tuple[Numbers, tuple[int, int]]]
    team: Team

    def __len__(self) -> int:
        return len(self.drawn)

    def __getitem__(self, position: int) -> Batch:
        picked, shape = self.drawn[position]
        order = None
        if self.plan.permute:
            generator = np.random.default_rng([self.plan.seed, self.number, position])
            order = generator.permutation(self.plan.reading.entities)
        return self.plan.reading.batch(picked[self.team.rank :: self.team.world], shape, order)


def in_turn(reading: Reading, batch: int) -> list[Numbers]:
    """All questions once, by length, in batches of nearly equal size: statistics of a few questions would be no statistics."""
    order = np.lexsort((reading.question_lengths, reading.lengths))
    return [part for part in np.array_split(order, -(-len(order) // batch)) if len(part)]
