"""How is an n-gram language model estimated from a text? Interpolated modified Kneser-Ney smoothing, as KenLM's lmplz does it.

Chen and Goodman (1999) give the smoothing, Heafield, Pouzyrevsky, Clark and Koehn (2013) its computation. With c(g) how often the
n-gram g stands in the text:

- the adjusted count a(g) is c(g) for the highest order and for n-grams that begin with ``<s>``; for others it is the number of
  different words in front of g;
- each order has discounts D1, D2, D3 (for a(g) of 1, 2, and 3 or more) from its numbers n_k of n-grams with a(g) = k:
  Dk = k - (k + 1) Y n_(k+1) / n_k, Y = n_1 / (n_1 + 2 n_2). Where one of n_1, n_2, n_3 is 0, or a discount is not between 0 and k,
  that order takes the discounts 0.5, 1 and 1.5, and says so;
- p(w | h) = (a(hw) - D) / sum of a(h.) + b(h) p(w | h without its first word); b(h) is what the discounts took away;
- below 1-grams stands the same probability for each word, ``<unk>`` and ``</s>`` included, ``<s>`` not;
- pruning leaves out n-grams with c(g) up to a threshold; what they had goes to b(h).

Words outside the vocabulary become ``<unk>`` and are counted as that word. lmplz refuses such a text; on others the models are the
same.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from multint.paper.obtain import DataError
from multint.paper.speech.arpa import END, START, Floats, Grams, Ints, Model
from multint.paper.speech.sentences import UNKNOWN

SPECIAL = (UNKNOWN, START, END)
UNK, BOS, EOS = range(3)
FALLBACK = (0.5, 1.0, 1.5)  # lmplz's own, with its option --discount_fallback
HIGHEST = 5
SENTENCES = 1 << 14  # read at a time
TOKENS = 1 << 22  # counted at a time
LEAST = -99.0  # stands for the logarithm of zero

Say = Callable[[str], None]
Discounts = tuple[float, float, float]


def quiet(_: str) -> None:
    """Says nothing."""


def estimate(
    sentences: Iterable[str],
    order: int = 3,
    words: Sequence[str] | None = None,
    most: int | None = None,
    at_least: int = 1,
    prune: Sequence[int] = (),
    say: Say = quiet,
) -> Model:
    """The model of a text, a sentence an item, words separated by white space. The text is read once.

    Args:
        order: words in the longest n-grams, 1 to 5.
        words: the vocabulary. Without it: words that stand in the text ``at_least`` times, of them the ``most`` frequent.
        prune: for each order, n-grams that stand in the text so many times or fewer are left out; the last value is for all further
            orders. Like lmplz's ``--prune 0 0 1``, values do not decrease. The first is 0, because the vocabulary limits 1-grams.
        say: receives a line now and then.
    """
    thresholds = _thresholds(order, prune)
    with TemporaryFile() as file:
        text = _Text.of(sentences, file)
        total, different = int(text.counts.sum()) - text.sentences, len(text.names) - len(SPECIAL)
        say(f"{total:,} words in {text.sentences:,} sentences, {different:,} different")
        numbers, vocabulary = _vocabulary(text, words, most, at_least)
        outside = int(text.counts[numbers == UNK].sum())
        say(f"{len(vocabulary) - len(SPECIAL):,} words in the vocabulary; {outside:,} words of the text become {UNKNOWN}")
        counts = _count(text, numbers, order, len(vocabulary))
    levels = _levels(counts, order, len(vocabulary))
    del counts
    discounts = [_discounts(n, level.adjusted, say) for n, level in enumerate(levels, start=1)]
    model = _model(vocabulary, levels, discounts, thresholds)
    say(str(model))
    return model


def _thresholds(order: int, prune: Sequence[int]) -> list[int]:
    if not 1 <= order <= HIGHEST:
        raise ValueError(f"n-grams have 1 to {HIGHEST} words, not {order}")
    values = [*prune, *[prune[-1] if prune else 0] * order][:order]
    if len(prune) > order or values[0] != 0 or values != sorted(values):
        rule = f"at most {order} values that do not decrease, the first 0 (limit the vocabulary instead)"
        raise ValueError(f"cannot prune by {' '.join(map(str, prune))}: give {rule}")
    return values


# ---- the text ----


@dataclass(frozen=True, eq=False)
class _Text:
    """Sentences as numbers of words, in a file. Words are numbered as they are first seen; ``counts`` says how often."""

    file: IO[bytes]
    names: tuple[str, ...]
    counts: Ints

    @property
    def sentences(self) -> int:
        return int(self.counts[EOS])

    @classmethod
    def of(cls, sentences: Iterable[str], file: IO[bytes]) -> "_Text":
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        number = numbers.__getitem__  # a new word gets the next number
        for name in SPECIAL:
            number(name)
        counts = np.zeros(0, np.int64)
        rest, total = iter(sentences), 0
        while batch := list(islice(rest, SENTENCES)):
            tokens = [token for sentence in batch for token in (*sentence.split(), END)]
            ids = np.fromiter(map(number, tokens), np.int32, len(tokens))
            here = np.bincount(ids, minlength=len(numbers))
            here[: len(counts)] += counts
            counts, total = here, total + len(batch)
            file.write(ids.tobytes())
        if not total:
            raise DataError("no sentence to estimate a language model from: the text is empty")
        if counts[BOS] or counts[EOS] != total:
            raise DataError(f"{START} or {END} stands in the text; both are set around each sentence here, so leave them out")
        return cls(file, tuple(numbers), counts)

    def parts(self) -> Iterator[NDArray[np.int32]]:
        """All numbers, whole sentences at a time."""
        self.file.seek(0)
        rest = np.zeros(0, np.int32)
        while data := self.file.read(4 * TOKENS):
            ids = np.concatenate([rest, np.frombuffer(data, np.int32)])
            ends = np.flatnonzero(ids == EOS)
            cut = int(ends[-1]) + 1 if len(ends) else 0
            rest = ids[cut:]
            if cut:
                yield ids[:cut]


def _vocabulary(text: _Text, words: Sequence[str] | None, most: int | None, at_least: int) -> tuple[Ints, tuple[str, ...]]:
    """The number in the model of each word of the text, and the model's words."""
    seen = {name: number for number, name in enumerate(text.names)}
    if words is None:
        often = [name for name in text.names[len(SPECIAL) :] if text.counts[seen[name]] >= at_least]
        words = sorted(often, key=lambda name: (-text.counts[seen[name]], name))[:most]
    vocabulary = tuple(dict.fromkeys([*SPECIAL, *words]))
    if len(vocabulary) == len(SPECIAL):
        raise DataError(f"no word in the vocabulary: the text has {len(seen) - len(SPECIAL):,} different words")
    if odd := next((word for word in vocabulary if word.split() != [word]), None):
        raise DataError(f"{odd!r} in the vocabulary is not one word")
    numbers = np.full(len(text.names), UNK, np.int64)
    for number, word in enumerate(vocabulary):
        if word in seen:
            numbers[seen[word]] = number
    return numbers, vocabulary


# ---- counts of the longest n-grams ----


@dataclass(frozen=True, eq=False)
class _Counts:
    """How often each n-gram of the highest order stands in a text that has order - 1 times <s> in front of each sentence.

    The n-grams are sorted by their last word, then the one before, and so on: those with a common ending are neighbours. Several
    words share one 63-bit number; ``columns`` has as many such numbers as are needed.
    """

    order: int
    bits: int  # of a word
    columns: tuple[Ints, ...]
    counts: Ints

    @property
    def together(self) -> int:
        """Words in one number."""
        return 63 // self.bits

    @classmethod
    def of(cls, order: int, bits: int, ids: Ints) -> "_Counts":
        """Of whole sentences."""
        at = np.arange(len(ids))
        first = np.concatenate([[0], at[1:] * (ids[:-1] == EOS)])
        since = at - np.maximum.accumulate(first)  # words of the same sentence in front
        columns = [np.zeros(len(ids), np.int64) for _ in range(-(-order // (63 // bits)))]
        for back in range(order):
            word = np.full(len(ids), BOS, np.int64)
            here = np.flatnonzero(since >= back)
            word[here] = ids[here - back]
            column = columns[back // (63 // bits)]
            column <<= bits
            column |= word
        return cls(order, bits, tuple(columns), np.ones(len(ids), np.int64)).summed()

    def summed(self) -> "_Counts":
        """Sorted, equal n-grams as one."""
        order = np.argsort(self.columns[0], kind="stable") if len(self.columns) == 1 else np.lexsort(self.columns[::-1])
        columns = [column[order] for column in self.columns]
        new = np.ones(len(order), bool)
        new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        starts = np.flatnonzero(new)
        counts = np.add.reduceat(self.counts[order], starts)
        return _Counts(self.order, self.bits, tuple(column[starts] for column in columns), counts)

    def with_(self, other: "_Counts") -> "_Counts":
        columns = tuple(np.concatenate(both) for both in zip(self.columns, other.columns, strict=True))
        return _Counts(self.order, self.bits, columns, np.concatenate([self.counts, other.counts])).summed()

    def word(self, back: int) -> NDArray[np.int32]:
        """The word so many places in front of the last."""
        column, place = divmod(back, self.together)
        below = min(self.order - column * self.together, self.together) - 1 - place  # words of this number that follow
        return ((self.columns[column] >> (below * self.bits)) & ((1 << self.bits) - 1)).astype(np.int32)


def _count(text: _Text, numbers: Ints, order: int, vocabulary: int) -> _Counts:
    runs: list[_Counts] = []
    for part in text.parts():
        runs.append(_Counts.of(order, (vocabulary - 1).bit_length(), numbers[part]))
        # merging neighbours of like size reads each n-gram a few times only
        while len(runs) > 1 and len(runs[-2].counts) < 2 * len(runs[-1].counts):
            runs.append(runs.pop().with_(runs.pop()))
    while len(runs) > 1:
        runs.append(runs.pop().with_(runs.pop()))
    return runs[0]


# ---- all orders ----


@dataclass(frozen=True, eq=False)
class _Level:
    """The n-grams of one order, sorted by their last word, then the one before, and so on.

    Args:
        first, last: words.
        ending: number of the n-gram without its first word, in the order below.
        context: number of the n-gram without its last word, in the order below.
        real, adjusted: counts.
    """

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    ending: NDArray[np.int32]
    context: NDArray[np.int32]
    real: NDArray[np.int32]
    adjusted: NDArray[np.int32]


def _levels(counts: _Counts, order: int, vocabulary: int) -> list[_Level]:
    words = np.arange(vocabulary, dtype=np.int32)
    none = np.zeros(0, np.int32)
    real = np.bincount(counts.word(0), counts.counts, vocabulary).astype(np.int32)
    levels = [_Level(words, words, none, none, real, real)]
    group = counts.word(0)  # number of the n-gram that ends each of the longest n-grams
    new = np.zeros(len(group), bool)
    new[0] = True
    new[1:] = group[1:] != group[:-1]
    inside = np.ones(len(group), bool)  # no <s> among all words but the first
    for n in range(2, order + 1):
        word = counts.word(n - 1)
        new[1:] |= word[1:] != word[:-1]
        starts = np.flatnonzero(new)
        real = np.add.reduceat(counts.counts, starts).astype(np.int32)
        there = inside[starts]
        starts, real = starts[there], real[there]
        below, ending = levels[-1], group[starts]
        first, context = word[starts], _contexts(levels, ending, word[starts], vocabulary)
        levels.append(_Level(first, below.last[ending], ending, context, real, real))
        group = (np.cumsum(new & inside) - 1).astype(np.int32)
        inside &= word != BOS
    return [*map(_adjusted, levels, levels[1:]), levels[-1]]


def _contexts(levels: Sequence[_Level], ending: NDArray[np.int32], first: NDArray[np.int32], vocabulary: int) -> NDArray[np.int32]:
    """Numbers of the n-grams without their last words, in the highest of the levels."""
    if len(levels) == 1:
        return first
    # the context without its first word is the context of the ending
    keys = levels[-1].ending * np.int64(vocabulary) + levels[-1].first
    return np.searchsorted(keys, levels[-1].context[ending] * np.int64(vocabulary) + first).astype(np.int32)


def _adjusted(level: _Level, above: _Level) -> _Level:
    different = np.bincount(above.ending, minlength=len(level.first)).astype(np.int32)
    return replace(level, adjusted=np.where(level.first == BOS, level.real, different))


# ---- probabilities ----


def _discounts(n: int, adjusted: NDArray[np.int32], say: Say) -> Discounts:
    """What is taken from n-grams with an adjusted count of 1, 2, and 3 or more."""
    n1, n2, n3, n4 = (float(x) for x in np.bincount(np.minimum(adjusted, 5), minlength=6)[1:5])
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 <= d <= k for k, d in enumerate(found, start=1)):
            say(f"discounts of {n}-grams: " + " ".join(f"{d:.4f}" for d in found))
            return found
    seen = f"{n1:.0f}, {n2:.0f}, {n3:.0f} and {n4:.0f} of them have a count of 1, 2, 3 and 4"
    say(f"discounts of {n}-grams: {' '.join(map(str, FALLBACK))}, not estimated: the text is too small or unnatural ({seen})")
    return FALLBACK


def _model(
    vocabulary: tuple[str, ...], levels: Sequence[_Level], discounts: Sequence[Discounts], thresholds: Sequence[int]
) -> Model:
    probs: list[Floats] = []
    backoffs: list[Floats] = []
    for level, discount, threshold in zip(levels, discounts, thresholds, strict=True):
        adjusted = level.adjusted.astype(np.float64)
        taken = np.array([0.0, *discount])[np.minimum(level.adjusted, 3)]
        if not probs:
            rest = taken.sum() / (len(vocabulary) - 1)
            probs.append((adjusted - taken + rest) / adjusted.sum())
            continue
        taken = np.where(level.real > threshold, taken, adjusted)
        below = len(probs[-1])
        total = np.bincount(level.context, adjusted, below)
        weight = np.divide(np.bincount(level.context, taken, below), total, out=np.ones(below), where=total > 0)
        probs.append((adjusted - taken) / total[level.context] + weight[level.context] * probs[-1][level.ending])
        backoffs.append(weight)
    probs[0][BOS] = 1.0  # never predicted; lmplz writes so too
    backoffs.append(np.ones(len(probs[-1])))
    return Model(vocabulary, tuple(_grams(levels, probs, backoffs, thresholds, len(vocabulary))))


def _grams(
    levels: Sequence[_Level], probs: Sequence[Floats], backoffs: Sequence[Floats], thresholds: Sequence[int], vocabulary: int
) -> Iterator[Grams]:
    """The n-grams that are not pruned, in the order of a Model."""
    rank = np.zeros(0, np.int64)  # where the n-grams of the order below stand in the model
    for n, (level, prob, backoff, threshold) in enumerate(zip(levels, probs, backoffs, thresholds, strict=True), start=1):
        kept = np.flatnonzero(level.real > threshold) if n > 1 else np.arange(vocabulary)
        keys = rank[level.context[kept]] * vocabulary + level.last[kept] if n > 1 else kept
        order = np.argsort(keys)
        kept = kept[order]
        yield Grams(keys[order], _log10(prob[kept]), _log10(backoff[kept]))
        rank = np.full(len(level.first), -1, np.int64)
        rank[kept] = np.arange(len(kept))


def _log10(values: Floats) -> Floats:
    return np.minimum(np.log10(np.maximum(values, 10**LEAST)), 0.0)
