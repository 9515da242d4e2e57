"""How far is what was recognised from what was said? Edit distances over words and over characters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = Sequence[int] | NDArray[Any]


class Edits(NamedTuple):
    """How a hypothesis differs from a reference of ``length`` tokens."""

    substitutions: int
    deletions: int
    insertions: int
    length: int

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions


@dataclass(frozen=True)
class Pair:
    """A token of the reference beside one of the hypothesis; None where it is missing."""

    said: str | None
    heard: str | None


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """A shortest way from the reference to the hypothesis, in order. Among equal ones substitutions come before gaps."""
    table = _distances(reference, hypothesis)
    i, j = len(reference), len(hypothesis)
    pairs = []
    while i or j:
        here = table[i, j]
        if i and j and here == table[i - 1, j - 1] + (reference[i - 1] != hypothesis[j - 1]):
            i, j = i - 1, j - 1
            pairs.append(Pair(reference[i], hypothesis[j]))
        elif i and here == table[i - 1, j] + 1:
            i -= 1
            pairs.append(Pair(reference[i], None))
        else:
            j -= 1
            pairs.append(Pair(None, hypothesis[j]))
    return pairs[::-1]


def _distances(reference: Sequence[str], hypothesis: Sequence[str]) -> NDArray[Any]:
    """Edit distances of all pairs of beginnings, a row at a time."""
    numbers = {token: k for k, token in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    heard = np.array([numbers[token] for token in hypothesis], dtype=np.int64)
    steps = np.arange(len(heard) + 1)
    table = np.empty((len(reference) + 1, len(heard) + 1), dtype=np.int64)
    table[0] = steps
    for i, token in enumerate(reference, start=1):
        row = table[i - 1] + 1  # a deletion
        row[1:] = np.minimum(row[1:], table[i - 1, :-1] + (heard != numbers[token]))
        table[i] = np.minimum.accumulate(row - steps) + steps  # insertions
    return table


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    pairs = align(reference, hypothesis)
    deleted, inserted = sum(p.heard is None for p in pairs), sum(p.said is None for p in pairs)
    wrong = sum(p.said != p.heard for p in pairs) - deleted - inserted
    return Edits(wrong, deleted, inserted, len(reference))


def distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    return int(_distances(reference, hypothesis)[-1, -1])


def characters(words: Sequence[str]) -> str:
    """What a character error rate compares: words with one space between them."""
    return " ".join(words)


class Interval(NamedTuple):
    low: float
    high: float


def bootstrap(errors: Counts, lengths: Counts, draws: int = 10_000, seed: int = 0) -> Interval:
    """95 % interval of an error rate in percent when utterances are drawn again."""
    return _interval(_drawn(np.asarray(errors), np.asarray(lengths), draws, seed))


def bootstrap_difference(one: Counts, other: Counts, lengths: Counts, draws: int = 10_000, seed: int = 0) -> Interval:
    """95 % interval of the difference of two error rates in percent, drawn on the same utterances (Bisani and Ney 2004)."""
    return _interval(_drawn(np.asarray(one) - np.asarray(other), np.asarray(lengths), draws, seed))


def _drawn(errors: NDArray[Any], lengths: NDArray[Any], draws: int, seed: int) -> NDArray[Any]:
    picked = np.random.default_rng(seed).integers(len(errors), size=(draws, len(errors)))
    rates: NDArray[Any] = 100.0 * errors[picked].sum(1) / np.maximum(lengths[picked].sum(1), 1)
    return rates


def _interval(values: NDArray[Any]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))
