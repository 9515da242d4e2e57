"""Which label sequence is most probable without a graph? Prefix beam search (Graves and Jaitly 2014, Hannun et al. 2014).

A sequence is as probable as all its paths together. Of each kept prefix the search knows the probability of the paths that end in a
blank, and of those that end in its last label. With a beam that keeps all prefixes the result is exact.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multint.paper.speech.utterances import BLANK

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Labels:
    """A label sequence, blanks removed, and the natural logarithm of its probability; pruned paths are missing in it."""

    ids: tuple[int, ...]
    log_prob: float


@dataclass
class _Prefixes:
    """All prefixes met so far; number 0 is the empty one."""

    parents: list[int] = field(default_factory=lambda: [-1])
    labels: list[int] = field(default_factory=lambda: [BLANK])
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def longer(self, prefix: int, label: int) -> int:
        number = self.numbers.setdefault((prefix, label), len(self.labels))
        if number == len(self.labels):
            self.parents.append(prefix)
            self.labels.append(label)
        return number

    def ids(self, prefix: int) -> tuple[int, ...]:
        found = []
        while prefix:
            found.append(self.labels[prefix])
            prefix = self.parents[prefix]
        return tuple(found[::-1])


def search(posteriors: ArrayLike, beam: int = 16, n: int = 1) -> list[Labels]:
    """The n most probable label sequences, or fewer, best first.

    Args:
        posteriors: (t, k), natural logarithms of probabilities; column 0 is the blank.
        beam: prefixes kept from one frame to the next.
    """
    values = np.asarray(posteriors, np.float64)
    if values.ndim != 2 or values.shape[1] < 1 or np.isnan(values).any() or (values == np.inf).any():
        raise ValueError(f"a beam search needs log-probabilities (t, k) without NaN and +inf, got shape {values.shape}")
    if not 1 <= n <= beam:
        raise ValueError(f"cannot list {n} sequences from a beam of {beam}: n is 1 to the beam")
    prefixes = _Prefixes()
    kept = np.zeros(1, np.int64)
    blank, label = np.zeros(1), np.full(1, -np.inf)  # log-probabilities of the paths that end in a blank, and in the last label
    for row in values:
        kept, blank, label = _step(prefixes, kept, blank, label, row, beam)
    total = np.logaddexp(blank, label)
    return [Labels(prefixes.ids(int(kept[k])), float(total[k])) for k in np.argsort(-total, kind="stable")[:n]]


def _step(prefixes: _Prefixes, kept: Ints, blank: Floats, label: Floats, row: Floats, beam: int) -> tuple[Ints, Floats, Floats]:
    """One frame: prefixes stay as they are, or get one label longer."""
    total = np.logaddexp(blank, label)
    numbers = kept.tolist()
    last = np.array([prefixes.labels[k] for k in numbers])
    same = np.where(last == BLANK, -np.inf, label + row[last])  # the last label goes on
    longer = total[:, None] + row
    longer[:, BLANK] = -np.inf
    repeated = np.flatnonzero(last != BLANK)
    longer[repeated, last[repeated]] = blank[repeated] + row[last[repeated]]  # a label follows itself after a blank only
    places = {number: place for place, number in enumerate(numbers)}
    for place, number in enumerate(numbers):
        parent = places.get(prefixes.parents[number])
        if parent is not None:  # its paths come from the shorter prefix as well
            same[place] = np.logaddexp(same[place], longer[parent, last[place]])
            longer[parent, last[place]] = -np.inf
    stay = total + row[BLANK]
    score = np.concatenate([np.logaddexp(stay, same), longer.ravel()])
    best = np.argsort(-score, kind="stable")[:beam]
    best = best[score[best] > -np.inf] if score[best[0]] > -np.inf else best[:1]
    old, new = best[best < len(kept)], best[best >= len(kept)] - len(kept)
    parents, labels = np.divmod(new, len(row))
    added = [prefixes.longer(numbers[p], k) for p, k in zip(parents.tolist(), labels.tolist(), strict=True)]
    return (
        np.concatenate([kept[old], np.array(added, np.int64)]),
        np.concatenate([stay[old], np.full(len(new), -np.inf)]),
        np.concatenate([same[old], longer.ravel()[new]]),
    )
