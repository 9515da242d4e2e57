"""Which sentences does a batch hold, and in which order do batches come?

Every batch has sentences of one length, and lengths take turns, as in the authors' code: until the rare lengths are used up,
training sees all lengths equally often. A batch is found from its position alone, without a list of all sentences in memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multint.paper.experiment import Team
from multint.paper.skipthought.corpus import LIMIT, Corpus
from multint.paper.skipthought.softmax import NOTHING
from multint.shapes import Int

EOS, UNKNOWN, SPECIAL = 0, 1, 2  # numbers of the end and of words outside the vocabulary; words follow


class Target(NamedTuple):
    """A sentence that a decoder writes.

    Args:
        words: with the end after each sentence, and padding.
        at: places in the flattened ``words`` whose word is predicted.
        wanted: the word at each place; NOTHING where it does not count.
    """

    words: Int[Tensor, "t n"]
    at: Int[Tensor, " m"]
    wanted: Int[Tensor, " m"]


class Batch(NamedTuple):
    """Sentences of one length with the end after them, and their neighbours. ``last`` is the step of the end."""

    x: Int[Tensor, "s n"]
    last: Int[Tensor, ""]
    after: Target
    before: Target


# ---- order ----


class Turns:
    """An epoch: which length has a turn at a position, and which of its batches that is."""

    def __init__(self, of_length: Sequence[int], size: int, seed: int, epoch: int) -> None:
        there = [length for length, count in enumerate(of_length) if count]
        self.lengths = np.random.default_rng([seed, epoch]).permutation(there)
        self.batches = np.array([-(-of_length[length] // size) for length in self.lengths], np.int64)
        turns = np.bincount(self.batches)[::-1].cumsum()[::-1][1:]  # lengths that have a turn in each round
        self.ends = turns.cumsum()

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"an epoch has {len(self)} batches, asked for number {position}")
        which = int(np.searchsorted(self.ends, position, "right"))
        before = int(self.ends[which - 1]) if which else 0
        return int(self.lengths[self.batches > which][position - before]), which


def scattered(places: NDArray[np.int64], count: int, key: Sequence[int]) -> NDArray[np.int64]:
    """Where a pseudo-random permutation of ``count`` numbers puts some of them: four rounds of a Feistel network.

    A number that lands outside is sent on until it is inside, which keeps it a permutation.
    """
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.default_rng(list(key)).integers(0, 1 << 63, 4, dtype=np.uint64)
    found = places.astype(np.uint64)
    outside = np.ones(len(found), bool)
    while outside.any():
        left, right = found[outside] >> np.uint64(half), found[outside] & mask
        for one in keys:
            mixed = (right + one) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        found[outside] = (left << np.uint64(half)) | right
        outside = found >= np.uint64(count)
    return found.astype(np.int64)


# ---- batches ----


class Batches:
    """One epoch of a corpus; each process takes its part of every batch.

    Args:
        vocabulary: numbers of words, the end and the unknown word included.
        fixed: pad targets to one size, and sentences to an even one if ``even``, so that few shapes occur.
    """

    def __init__(
        self, corpus: Corpus, vocabulary: int, size: int, seed: int, epoch: int, team: Team, fixed: bool = False, even: bool = False
    ) -> None:
        self.corpus, self.vocabulary, self.size, self.team = corpus, vocabulary, size, team
        self.seed, self.number, self.fixed, self.even = seed, epoch, fixed, even
        self.firsts = np.cumsum([0, *corpus.of_length])
        self.turns = Turns(corpus.of_length, size, seed, epoch)

    def __len__(self) -> int:
        return len(self.turns)

    def __getitem__(self, position: int) -> Batch:
        mine = self.sentences(position)[self.team.rank :: self.team.world]
        parts = [self.rows(mine + shift) for shift in (0, 1, -1)]
        length = len(parts[0][0])
        steps = length + 1 + (self.even and (length + 1) % 2)
        x = padded(parts[0], steps)
        return Batch(x, torch.tensor(length), *(target(rows, self.fixed) for rows in parts[1:]))

    def sentences(self, position: int) -> NDArray[np.int64]:
        """Numbers of the sentences in the middle, of all processes."""
        length, which = self.turns[position]
        count = self.corpus.of_length[length]
        places = np.arange(which * self.size, min((which + 1) * self.size, count))
        order = scattered(places, count, (self.seed, self.number, length))
        found: NDArray[np.int64] = self.corpus.middles[self.firsts[length] + order].astype(np.int64)
        return found

    def rows(self, sentences: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The words of sentences as numbers of the vocabulary."""
        found = []
        for first, last in zip(self.corpus.starts[sentences], self.corpus.starts[sentences + 1], strict=True):
            ranks = self.corpus.tokens[first:last].astype(np.int64)
            found.append(np.where(ranks < self.vocabulary - SPECIAL, ranks + SPECIAL, UNKNOWN))
        return found


def padded(rows: Sequence[NDArray[np.int64]], steps: int) -> Int[Tensor, "t n"]:
    """Sentences side by side, EOS after their words."""
    found = np.full((steps, len(rows)), EOS, np.int64)
    for column, row in enumerate(rows):
        found[: len(row), column] = row
    return torch.from_numpy(found)


def target(rows: Sequence[NDArray[np.int64]], fixed: bool) -> Target:
    """What a decoder writes: every word of a sentence, then the end. With ``fixed`` the padding is kept, and does not count."""
    lengths = np.array([len(row) for row in rows])
    words = padded(rows, LIMIT if fixed else int(lengths.max()) + 1)
    counts = torch.from_numpy(np.arange(len(words))[:, None] <= lengths)
    if fixed:
        return Target(words, torch.arange(words.numel()), torch.where(counts, words, NOTHING).flatten())
    at = counts.flatten().nonzero()[:, 0]
    return Target(words, at, words.flatten()[at])
