"""What is in a back-off language model, how is it read and written as an ARPA file, and how well does it predict a text?

An n-gram is its context, the (n-1)-gram of all words except the last, and its last word. Each order is a sorted array of such
pairs, so the n-grams of many sentences are looked up together.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multint.paper.obtain import DataError
from multint.paper.speech.sentences import UNKNOWN, lines
from multint.publish import replacing

START, END = "<s>", "</s>"
TOGETHER = 1 << 17  # n-grams written at a time
SENTENCES = 1 << 13  # scored at a time

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams of one order, sorted.

    Args:
        keys: number of the context among the n-grams of the order below, times the number of words, plus that of the last word.
        prob: log10 of the probability of the last word.
        backoff: log10 of the weight of shorter contexts where this n-gram, as a context, has no n-gram with the next word.
    """

    keys: Ints
    prob: Floats
    backoff: Floats

    def find(self, contexts: Ints, words: Ints, vocabulary: int) -> Ints:
        """Numbers of n-grams; -1 for those that do not exist, or whose context or word is -1."""
        if not len(self.keys):
            return np.full(np.shape(contexts), -1, np.int64)
        wanted = contexts * vocabulary + words
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((contexts >= 0) & (words >= 0) & (self.keys[at] == wanted), at, -1)


@dataclass(frozen=True, eq=False)
class Model:
    """A back-off language model: ``orders[n - 1]`` has the n-grams. Word w is the 1-gram with the number w."""

    words: tuple[str, ...]
    orders: tuple[Grams, ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @property
    def unknown(self) -> int:
        """The number of the word that stands for all others; -1 if there is none."""
        return self.numbers.get(UNKNOWN, self.numbers.get(UNKNOWN.upper(), -1))

    def __str__(self) -> str:
        return " + ".join(f"{len(grams.keys):,} {n}-grams" for n, grams in enumerate(self.orders, start=1))

    def log10(self, tokens: Ints) -> Floats:
        """log10 p of each token after the tokens before it, in sentences that follow each other, each with its <s> and </s>.

        It is 0 for <s>, and -inf for a word that the model cannot predict.
        """
        found = self._found(tokens)
        # the longest n-gram that is known gives the probability, each longer context that is known the weight of backing off
        score = np.full(len(tokens), -np.inf)
        for n, (grams, at) in enumerate(zip(self.orders, found, strict=True), start=1):
            if n > 1:
                context = np.concatenate([[-1], found[n - 2][:-1]])
                backoff = self.orders[n - 2].backoff
                score += np.where(context >= 0, backoff[np.maximum(context, 0)], 0.0)
            score = np.where(at >= 0, grams.prob[np.maximum(at, 0)], score)
        return np.where(tokens == self.numbers.get(START, -2), 0.0, score)

    def _found(self, tokens: Ints) -> list[Ints]:
        """For each order the number of the n-gram that ends at each token, or -1."""
        found = [tokens]
        for grams in self.orders[1:]:
            before = np.concatenate([[-1], found[-1][:-1]])
            found.append(grams.find(before, tokens, len(self.words)))
        return found

    def ids(self, words: Iterable[str]) -> Ints:
        """Numbers of words; other words have the number of <unk>, or -1."""
        unknown, numbers = self.unknown, self.numbers
        return np.array([numbers.get(word, unknown) for word in words], dtype=np.int64)


# ---- perplexity ----


@dataclass(frozen=True)
class Fit:
    """How well a model predicts a text.

    Args:
        sentences, words: of the text.
        unknown: words that the model does not list.
        log10: of the probability of all listed words and ends of sentences.
        log10_unknown: of the other words, each scored as <unk>; -inf if there are such words and the model has no <unk>.
    """

    sentences: int
    words: int
    unknown: int
    log10: float
    log10_unknown: float

    @property
    def perplexity(self) -> float:
        """Of listed words and ends of sentences; words that are not listed are left out, but stay in the contexts as <unk>."""
        return _perplexity(self.log10, self.words - self.unknown + self.sentences)

    @property
    def perplexity_of_all(self) -> float:
        """Of all words, those that are not listed scored as <unk>, and ends of sentences."""
        return _perplexity(self.log10 + self.log10_unknown, self.words + self.sentences)


def _perplexity(log10: float, tokens: int) -> float:
    """10 to the power of what a token costs; inf where that is too large for a float, or nothing was scored."""
    return math.inf if not tokens or log10 / tokens < -308 else 10.0 ** (-log10 / tokens)


def fit(model: Model, sentences: Iterable[str]) -> Fit:
    """Score a text, a sentence an item."""
    count = words = unknown = 0
    total = total_unknown = 0.0
    rest = iter(sentences)
    while batch := list(islice(rest, SENTENCES)):
        tokens = [token for sentence in batch for token in (START, *sentence.split(), END)]
        scores = model.log10(model.ids(tokens))
        starts = np.array([token == START for token in tokens])
        strange = np.array([token not in model.numbers for token in tokens]) & ~starts
        count += len(batch)
        words += len(tokens) - 2 * len(batch)
        unknown += int(strange.sum())
        total += float(scores[~strange & ~starts].sum())
        total_unknown += float(scores[strange].sum())
    return Fit(count, words, unknown, total, total_unknown)


# ---- ARPA files ----


def write(model: Model, path: Path) -> None:
    """Write an ARPA file; a file that has its name is complete."""
    with replacing(path) as out:
        counts = "\n".join(f"ngram {n}={len(grams.keys)}" for n, grams in enumerate(model.orders, start=1))
        out.write(f"\\data\\\n{counts}\n".encode())
        for n in range(1, len(model.orders) + 1):
            out.write(f"\n\\{n}-grams:\n".encode())
            for text in _texts(model, n):
                out.write(text.encode())
        out.write(b"\n\\end\\\n")


def _texts(model: Model, n: int) -> Iterator[str]:
    grams = model.orders[n - 1]
    highest = n == len(model.orders)
    form = "%.7f\t" + " ".join(["%s"] * n) + ("\n" if highest else "\t%.7f\n")
    for first in range(0, len(grams.keys), TOGETHER):
        part = slice(first, first + TOGETHER)
        columns = [map(model.words.__getitem__, ids.tolist()) for ids in _word_ids(model, n, part)]
        backoffs = [] if highest else [(grams.backoff[part] + 0.0).tolist()]  # + 0.0 makes -0.0 a zero
        yield "".join(map(form.__mod__, zip((grams.prob[part] + 0.0).tolist(), *columns, *backoffs, strict=True)))


def _word_ids(model: Model, n: int, part: slice) -> list[Ints]:
    """The words of some n-grams, one array a position."""
    ids: list[Ints] = []
    at = np.arange(len(model.orders[n - 1].keys), dtype=np.int64)[part]
    for grams in model.orders[n - 1 : 0 : -1]:
        at, last = np.divmod(grams.keys[at], len(model.words))
        ids.insert(0, last)
    return [at, *ids]


def read(path: Path) -> Model:
    """The model of an ARPA file, which may be compressed. A damaged one is a DataError."""
    file = _Lines(path)
    words: tuple[str, ...] = ()
    orders: list[Grams] = []
    for n, size in enumerate(file.sizes(), start=1):
        file.expect(f"\\{n}-grams:")
        if n == 1:
            words, prob, backoff = file.words(size)
            orders.append(Grams(np.arange(size, dtype=np.int64), prob, backoff))
        else:
            orders.append(_sorted(path, len(words), orders, *file.grams(n, size, {word: w for w, word in enumerate(words)})))
    file.expect("\\end\\")
    return Model(words, tuple(orders))


def _sorted(path: Path, vocabulary: int, below: Sequence[Grams], table: Ints, prob: Floats, backoff: Floats) -> Grams:
    context = table[:, 0]
    for m, grams in enumerate(below[1:], start=1):
        context = grams.find(context, table[:, m], vocabulary)
    n = table.shape[1]
    if (lost := int((context < 0).sum())) > 0:
        raise DataError(f"{path}: {lost:,} of its {n}-grams have a context that is no {n - 1}-gram; a back-off model lists both")
    keys = context * vocabulary + table[:, -1]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        raise DataError(f"{path}: it lists one of its {n}-grams twice")
    return Grams(keys, prob[order], backoff[order])


class _Lines:
    """The lines of an ARPA file that are not empty."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.rest = ((number, line.strip()) for number, line in enumerate(lines(path), start=1) if line.strip())
        self.next = next(self.rest, None)

    def take(self) -> str:
        if self.next is None:
            raise self.wrong("it ends")
        self.number, line = self.next
        self.next = next(self.rest, None)
        return line

    def wrong(self, what: str) -> DataError:
        return DataError(f"{self.path}, line {self.number}: {what}; this is no complete ARPA file, get or make it again")

    def expect(self, mark: str) -> None:
        if (line := self.take()) != mark:
            raise self.wrong(f"expected {mark}, got {line!r}")

    def sizes(self) -> list[int]:
        """Numbers of n-grams of each order; text in front of them is skipped."""
        while self.take() != "\\data\\":
            pass
        sizes: list[int] = []
        while self.next is not None and not self.next[1].startswith("\\"):
            name, _, size = (line := self.take()).partition("=")
            if name.split() != ["ngram", str(len(sizes) + 1)] or not size.strip().isdecimal():
                raise self.wrong(f"expected ngram {len(sizes) + 1}=COUNT, got {line!r}")
            sizes.append(int(size))
        return sizes

    def rows(self, n: int, size: int) -> Iterator[tuple[float, list[str], float]]:
        """log10 of the probability, the words, and log10 of the back-off weight of each n-gram."""
        for _ in range(size):
            value, *gram = self.take().split()
            try:
                backoff = float(gram.pop()) if len(gram) > n else 0.0
                if len(gram) != n:
                    raise ValueError(f"not {n} words")
                yield float(value), gram, backoff
            except ValueError as error:
                raise self.wrong(f"no {n}-gram with its numbers ({error})") from error

    def words(self, size: int) -> tuple[tuple[str, ...], Floats, Floats]:
        rows = list(self.rows(1, size))
        words = tuple(gram[0] for _, gram, _ in rows)
        if len(set(words)) < size:
            raise self.wrong("two 1-grams have the same word")
        return words, np.array([p for p, _, _ in rows]), np.array([b for _, _, b in rows])

    def grams(self, n: int, size: int, numbers: dict[str, int]) -> tuple[Ints, Floats, Floats]:
        """Numbers of the words (size, n), log10 of probabilities and of back-off weights."""
        table, prob, backoff = np.zeros((size, n), np.int64), np.zeros(size), np.zeros(size)
        for row, (value, gram, weight) in enumerate(self.rows(n, size)):
            try:
                table[row] = [numbers[word] for word in gram]
            except KeyError as error:
                raise self.wrong(f"{error} is no 1-gram") from error
            prob[row], backoff[row] = value, weight
        return table, prob, backoff
