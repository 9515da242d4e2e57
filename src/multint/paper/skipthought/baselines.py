"""How far does an encoder get that knows no order of words? Bags of words, and averages of word vectors."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from multint.paper.skipthought.labelled import Data
from multint.paper.skipthought.vectors import Vector
from multint.shapes import Float

MOST = 4000  # words of a bag


class BagOfWords:
    """A ``transfer.Encode``: how often every word occurs in a text.

    The words are those that occur at least twice in the task, the most frequent ones. No label is used.
    """

    def __init__(self, data: Data, most: int = MOST) -> None:
        self.data, self.most = data, most

    def __call__(self, texts: Sequence[str], task: str) -> Float[Tensor, "n d"]:
        tokens = self.data.tokens(task)
        bags = [Counter(token.lower() for token in tokens(text)) for text in texts]
        seen: Counter[str] = Counter()
        for bag in bags:
            seen.update(bag)
        words = sorted((word for word, count in seen.items() if count > 1), key=lambda word: (-seen[word], word))[: self.most]
        place = {word: k for k, word in enumerate(words)}
        found = torch.zeros(len(texts), max(len(words), 1))
        for row, bag in enumerate(bags):
            for word, count in bag.items():
                if word in place:
                    found[row, place[word]] = count
        return found


class Averages:
    """A ``transfer.Encode``: the mean of the vectors of a text's words. ``unknown`` counts the tokens that have none, by task."""

    def __init__(self, data: Data, vectors: Mapping[str, Vector]) -> None:
        self.data, self.vectors = data, vectors
        self.unknown: dict[str, tuple[int, int]] = {}

    def __call__(self, texts: Sequence[str], task: str) -> Float[Tensor, "n d"]:
        tokens = self.data.tokens(task)
        found = np.zeros((len(texts), len(next(iter(self.vectors.values())))), np.float32)
        unknown = total = 0
        for row, text in enumerate(texts):
            mine = tokens(text)
            known = [vector for token in mine if (vector := self.vector(token)) is not None]
            if known:
                found[row] = np.mean(known, 0)
            unknown, total = unknown + len(mine) - len(known), total + len(mine)
        self.unknown[task] = (unknown, total)
        return torch.from_numpy(found)

    def vector(self, token: str) -> Vector | None:
        """As the token is written, else in lower case."""
        found = self.vectors.get(token)
        return self.vectors.get(token.lower()) if found is None else found


def words_of(data: Data, tasks: Sequence[str]) -> Callable[[str], bool]:
    """Whether a word occurs in these tasks, as written or in lower case."""
    tokens = {token for task in tasks for text in data.texts(task) for token in data.tokens(task)(text)}
    both = tokens | {token.lower() for token in tokens}
    return both.__contains__
