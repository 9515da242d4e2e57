"""Which number does a token have?

Four special ones come first, then the entities, then the words, the frequent ones before the rare. So a smaller vocabulary is the
beginning of a larger one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint.paper.reader.questions import PLACEHOLDER, number

NIL, UNKNOWN, NUMBER, MISSING = range(4)  # padding, a rare word, a rare number, the placeholder
FIRST = 4  # number of @entity0
NUMERIC = re.compile(r"[\d.,:]*\d[\d.,:]*(?:st|nd|rd|th|s)?")


@dataclass(frozen=True)
class Vocabulary:
    """Args:
    entities: how many there are.
    words: the most frequent first.
    """

    entities: int
    words: tuple[str, ...]

    def __len__(self) -> int:
        return FIRST + self.entities + len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, start=FIRST + self.entities)}

    def encode(self, tokens: Iterable[str]) -> NDArray[np.int32]:
        """Numbers of tokens. An entity beyond those there are is an unknown word."""
        return np.array([self._number(token) for token in tokens], dtype=np.int32)

    def _number(self, token: str) -> int:
        entity = number(token)
        if entity is not None:
            return FIRST + entity if entity < self.entities else UNKNOWN
        if token == PLACEHOLDER:
            return MISSING
        return self.numbers.get(token, NUMBER if NUMERIC.fullmatch(token) else UNKNOWN)

    def cut(self, most: int | None) -> "Vocabulary":
        """The vocabulary with the most frequent words alone."""
        return self if most is None or most >= len(self.words) else Vocabulary(self.entities, self.words[:most])

    def into(self, smaller: "Vocabulary") -> NDArray[np.int64]:
        """For each number here the one in a vocabulary that this was cut to."""
        table = np.arange(len(self), dtype=np.int64)
        for i in range(len(smaller), len(self)):
            table[i] = NUMBER if NUMERIC.fullmatch(self.words[i - FIRST - self.entities]) else UNKNOWN
        return table

    def tokens(self, numbers: NDArray[Any]) -> list[str]:
        """What numbers stand for, to be shown."""
        special = ("", "<unknown>", "<number>", PLACEHOLDER)
        return [special[i] if i < FIRST else self._spelled(i - FIRST) for i in numbers.tolist()]

    def _spelled(self, i: int) -> str:
        return f"@entity{i}" if i < self.entities else self.words[i - self.entities]


def ordered(counts: Sequence[tuple[str, int]], least: int) -> tuple[str, ...]:
    """Words that occur so often, the most frequent first, equal ones by the alphabet."""
    return tuple(word for word, count in sorted(counts, key=lambda item: (-item[1], item[0])) if count >= least)
