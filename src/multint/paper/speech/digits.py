"""Which strings of digits are made from single recordings?

The Free Spoken Digit Dataset has 50 recordings of each digit by six speakers. Two to five recordings of one speaker, one after the
other, are an utterance. Recordings 0 to 4 are the test ones, as the dataset says; 5 to 9 are development ones here, and strings for
training use the others only.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multint.paper.obtain import DataError, Where
from multint.paper.speech import kaldi
from multint.paper.speech.listing import TEST, TRAIN, VALID, checked, logger
from multint.paper.speech.utterances import SPACE, Speech, Units, Utterance

WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
UNITS = Units((SPACE, *sorted(set("".join(WORDS)))))
INDICES = {TEST: range(5), VALID: range(5, 10), TRAIN: range(10, 50)}  # of a digit's recordings by a speaker
STRINGS = {TRAIN: 1200, VALID: 150, TEST: 150}
LENGTHS = range(2, 6)


class Digit(NamedTuple):
    """One recording."""

    speaker: str
    digit: int
    take: int
    path: Path


def load(
    folder: Where, strings: Mapping[str, int] = STRINGS, seed: int = 0, name: str = "fsdd-strings", anyway: bool = False
) -> Speech:
    """Strings of digits, the same for the same seed.

    Within a split every recording of a speaker is used once before one is used again. More strings begin with those of fewer.
    """
    digits = recordings(Path(folder))
    splits = {split: made(split, [d for d in digits if d.take in INDICES[split]], n, seed) for split, n in strings.items()}
    return checked(name, UNITS, splits, anyway)


def recordings(folder: Path) -> list[Digit]:
    """All recordings: of a data folder of Kaldi, or of the dataset as it is published (recordings/DIGIT_SPEAKER_INDEX.wav)."""
    if (folder / "wav.scp").is_file():
        files = {name: kaldi.recording(spec, folder, name).path for name, spec in kaldi.table(folder / "wav.scp").items()}
        form = r"(?P<speaker>\w+)-(?P<digit>\d)-(?P<index>\d+)"
    else:
        files = {path.stem: path for path in sorted((folder / "recordings").glob("*.wav"))}
        form = r"(?P<digit>\d)_(?P<speaker>\w+)_(?P<index>\d+)"
    found = []
    for name, path in files.items():
        match = re.fullmatch(form, name)
        if match is None:
            logger.warning("%s: %s is not named after a speaker, a digit and a number; left out", folder, name)
        else:
            found.append(Digit(match["speaker"], int(match["digit"]), int(match["index"]), path))
    if not found:
        raise DataError(f"{folder} has no recordings of digits; it needs wav.scp, or recordings/0_george_0.wav and so on")
    return found


def made(split: str, digits: Sequence[Digit], strings: int, seed: int) -> list[Utterance]:
    """Strings of a split, as many of each speaker as of any other, or one more."""
    speakers = sorted({digit.speaker for digit in digits})
    ones = [_strings(split, speaker, [d for d in digits if d.speaker == speaker], seed) for speaker in speakers]
    return [*itertools.islice(itertools.chain.from_iterable(zip(*ones, strict=True)), strings)]


def _strings(split: str, speaker: str, digits: Sequence[Digit], seed: int) -> Iterator[Utterance]:
    """Endless strings of a speaker. Draws are sha256 sums, which are the same in every version of every library."""

    def draw(*what: object) -> int:
        return int(hashlib.sha256(" ".join(map(str, (seed, split, speaker, *what))).encode()).hexdigest(), 16)

    def queue() -> Iterator[Digit]:
        for again in itertools.count():
            yield from sorted(digits, key=lambda d: draw("order", again, d.digit, d.take))

    left = queue()
    for k in itertools.count():
        joined = [*itertools.islice(left, LENGTHS[draw("length", k) % len(LENGTHS)])]
        words = tuple(WORDS[d.digit] for d in joined)
        yield Utterance(f"{speaker}-{split}-{k:04d}", speaker, tuple(d.path for d in joined), words)
