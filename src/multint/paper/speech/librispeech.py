"""Which utterances do the parts of LibriSpeech have, as they are unpacked?

``LibriSpeech/PART/SPEAKER/CHAPTER/`` has a flac file for each utterance and one file ``SPEAKER-CHAPTER.trans.txt`` with all words.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from multint.paper.obtain import DataError, Where
from multint.paper.speech.listing import LETTERS, TEST, TRAIN, VALID, checked
from multint.paper.speech.utterances import Speech, Utterance

CLEAN_100 = {TRAIN: ("train-clean-100",), VALID: ("dev-clean",), TEST: ("test-clean",)}


def load(
    folder: Where, parts: Mapping[str, Sequence[str]] = CLEAN_100, name: str = "librispeech-100", anyway: bool = False
) -> Speech:
    """The corpus of these parts for each split. ``folder`` is LibriSpeech's or contains it."""
    splits = {split: [one for part in names for one in utterances(Path(folder), part)] for split, names in parts.items()}
    return checked(name, LETTERS, splits, anyway)


def utterances(folder: Path, part: str) -> list[Utterance]:
    """The utterances of a part, in the order of their names."""
    found = part_folder(folder, part)
    if found is None:
        raise DataError(f"no part {part} of LibriSpeech at {folder / 'LibriSpeech' / part}; unpack {part}.tar.gz in {folder}")
    return [one for path in sorted(found.glob("*/*/*.trans.txt")) for one in _chapter(path)]


def part_folder(folder: Path, part: str) -> Path | None:
    return next((place for place in (folder / "LibriSpeech" / part, folder / part) if place.is_dir()), None)


def _chapter(path: Path) -> list[Utterance]:
    speaker = path.parent.parent.name
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, *words = line.split() or [""]
        if name:
            found.append(Utterance(name, speaker, (path.parent / f"{name}.flac",), tuple(words)))
    return found
