"""Which word vectors do the books themselves give, without any training? Counts of neighbours, reduced to a few numbers a word.

Positive pointwise mutual information of words within a few places of each other, and its first singular vectors (Bullinaria and
Levy 2007). Their averages are the baseline that saw the same books as the encoders.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from multint.paper.skipthought.corpus import Corpus
from multint.paper.skipthought.vectors import Vector

WORDS, AROUND, SIZE = 8000, 4, 300  # the most frequent words, places on each side, numbers of a vector
PART = 1 << 22  # tokens at a time


def vectors(corpus: Corpus, words: int = WORDS, around: int = AROUND, size: int = SIZE) -> dict[str, Vector]:
    """A vector for each of the most frequent words."""
    words = min(words, len(corpus.words))
    information = _information(neighbours(corpus, words, around))
    torch.manual_seed(0)  # of the random start
    u, s, _ = torch.svd_lowrank(information, min(size, words), niter=4)
    found = (u * s.sqrt()).numpy()
    return dict(zip(corpus.words, found, strict=False))


def neighbours(corpus: Corpus, words: int, around: int) -> NDArray[np.float32]:
    """How often each word stands near each other one in a sentence, the nearer the more."""
    counts = np.zeros(words * words, np.float32)
    for first in range(0, len(corpus.starts) - 1, PART // 16):
        starts = corpus.starts[first : first + PART // 16 + 1]
        tokens = corpus.tokens[starts[0] : starts[-1]].astype(np.int64)
        sentence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        for apart in range(1, around + 1):
            a, b = tokens[:-apart], tokens[apart:]
            together = (sentence[:-apart] == sentence[apart:]) & (a < words) & (b < words)
            counts += np.bincount(a[together] * words + b[together], minlength=words * words) * ((around + 1 - apart) / around)
    square = counts.reshape(words, words)
    found: NDArray[np.float32] = square + square.T
    return found


def _information(counts: NDArray[np.float32]) -> torch.Tensor:
    """max(0, log of how much more often two words are neighbours than by chance)."""
    found = torch.from_numpy(counts)
    each = found.sum(1)
    often = each.pow(0.75)  # a rare neighbour says less than its count suggests
    expected = torch.outer(each, often / often.sum())
    return torch.where(found > 0, (found / expected.clamp_min(1e-12)).clamp_min(1e-12).log().clamp_min(0), 0.0)
