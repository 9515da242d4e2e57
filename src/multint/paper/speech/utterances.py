"""What does a corpus of speech consist of? Utterances with their audio and words, and the units that words are spelled with.

Nothing here reads a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BLANK = 0  # the number of CTC's blank; units are numbered from 1
SPACE = "<SPACE>"


@dataclass(frozen=True)
class Utterance:
    """A piece of speech.

    Args:
        name: unique in its corpus.
        speaker: whose mean and variance normalise the features.
        audio: files that follow each other; usually one.
        words: as they are spelled in training and scoring.
        start, end: seconds of the audio that belong to the utterance; None is its end.
        channel: of a file with several; None mixes them.
    """

    name: str
    speaker: str
    audio: tuple[Path, ...]
    words: tuple[str, ...]
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


@dataclass(frozen=True)
class Units:
    """The units a model writes words with, one output each; output 0 is the blank.

    Args:
        symbols: in the order of their numbers: ``symbols[0]`` is unit 1. One is ``SPACE``, which stands between words.
        whole: words that are one unit and not spelled, such as ``<NOISE>``.
        unknown: the unit of a word that cannot be spelled; None where such a word is refused.
    """

    symbols: tuple[str, ...]
    whole: tuple[str, ...] = ()
    unknown: str | None = None

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def numbers(self) -> Mapping[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols, start=1)}

    def spelled(self, word: str) -> tuple[str, ...] | None:
        """The units of a word; None if it cannot be spelled."""
        if word in self.whole:
            return (word,)
        known = set(self.symbols) - set(self.whole) - {SPACE, self.unknown}
        if word and set(word) <= known:
            return tuple(word)
        return None if self.unknown is None else (self.unknown,)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Unit numbers of words with spaces between them. A word that cannot be spelled is a ValueError that names it."""
        numbers, found = self.numbers, []
        for place, word in enumerate(words):
            units = self.spelled(word)
            if units is None:
                odd = "".join(sorted(set(word) - set(self.symbols)))
                raise ValueError(f"the word {word!r} has characters without a unit ({odd!r}); units are {' '.join(self.symbols)}")
            found += ([numbers[SPACE]] if place else []) + [numbers[unit] for unit in units]
        return found

    def scored(self, words: Sequence[str]) -> tuple[str, ...]:
        """Words without noises and without the unit of what cannot be spelled, which error rates leave out on both sides."""
        return tuple(word for word in words if word not in self.whole and word != self.unknown)

    def words(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The words that unit numbers spell; blanks are left out."""
        names = [self.symbols[i - 1] for i in ids if i != BLANK]
        text = "".join(f" {name} " if name in self.whole or name == self.unknown else name.replace(SPACE, " ") for name in names)
        return tuple(text.split())


@dataclass(frozen=True)
class Speech:
    """A corpus before it is prepared.

    Args:
        splits: utterances of "train", "valid" and "test"; others may follow.
        sha256: of the listing of its utterances, with the sizes of audio files.
        stands_for: the corpus of the paper whose place it takes.
        own: data of the user's.
    """

    name: str
    units: Units
    splits: Mapping[str, Sequence[Utterance]]
    sha256: str
    stands_for: str | None = None
    own: bool = False
