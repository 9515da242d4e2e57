"""Is a corpus of speech complete and consistent, and which one is it?

What would spoil a result is refused: audio that is missing, an utterance that is there twice, a word that the units cannot spell, a
recording in two splits. ``anyway`` goes on without the utterances concerned and says so in the log.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from pathlib import Path

from multint.paper.obtain import DataError
from multint.paper.speech.utterances import SPACE, Speech, Units, Utterance

logger = logging.getLogger("multint")

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")
LETTERS = Units((SPACE, "'", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))  # of LibriSpeech's transcripts
SHOWN = 5  # names in a message

Splits = Mapping[str, Sequence[Utterance]]


def some(names: Collection[str]) -> str:
    """The first few names, and how many more there are."""
    first = ", ".join(sorted(names)[:SHOWN])
    return first if len(names) <= SHOWN else f"{first} and {len(names) - SHOWN:,} more"


def fault(message: str, way_out: str, anyway: bool = False) -> None:
    """Refuse a corpus, or go on and say so."""
    if not anyway:
        raise DataError(f"{message}; {way_out}")
    logger.warning("%s; left out", message)


def units_of(words: Iterable[str]) -> Units:
    """The letters of LibriSpeech where they spell all words, else the characters of the words."""
    found = {character for word in words for character in word}
    return LETTERS if found <= set(LETTERS.symbols) else Units((SPACE, *sorted(found)))


def checked(name: str, units: Units, splits: Splits, anyway: bool = False, own: bool = False) -> Speech:
    """A corpus of what can be used.

    An utterance without words is left out of training, because there is nothing to learn from it. Elsewhere it stays, and every
    word that a model hears in it is an error.
    """
    _unique(name, splits)
    sizes = _sizes(splits)
    usable = {split: _usable(name, split, ones, units, sizes, anyway) for split, ones in splits.items()}
    _apart(name, usable)
    for split, ones in usable.items():
        if not ones:
            raise DataError(f"{name}: no utterance of {split} is left; see the list of files of that split")
    return Speech(name, units, usable, digest(usable, sizes), own=own)


def _unique(name: str, splits: Splits) -> None:
    twice = {one for one, times in Counter(one.name for ones in splits.values() for one in ones).items() if times > 1}
    if twice:
        raise DataError(f"{name}: utterances that are there more than once: {some(twice)}; keep one of each")


def _apart(name: str, splits: Splits) -> None:
    """No recording of training may be scored."""
    trained = {_piece(one, path) for one in splits.get(TRAIN, ()) for path in one.audio}
    for split, ones in splits.items():
        both = {one.name for one in ones if split != TRAIN and any(_piece(one, path) in trained for path in one.audio)}
        if both:
            raise DataError(f"{name}: {split} has utterances with audio of train: {some(both)}; take them out of one")


def _piece(one: Utterance, path: Path) -> tuple[Path, float, float | None, int | None]:
    return path, one.start, one.end, one.channel


def _sizes(splits: Splits) -> dict[Path, int]:
    """Bytes of each audio file that exists."""
    paths = dict.fromkeys(path for ones in splits.values() for one in ones for path in one.audio)
    return {path: path.stat().st_size for path in paths if path.is_file()}


def _usable(
    name: str, split: str, ones: Sequence[Utterance], units: Units, sizes: Mapping[Path, int], anyway: bool
) -> tuple[Utterance, ...]:
    silent = {one.name: one for one in ones if not one.audio or any(path not in sizes for path in one.audio)}
    if silent:
        missing = [path for one in silent.values() for path in one.audio if path not in sizes]
        where = f" (there is no {min(missing)})" if missing else ""
        message = f"{name}: {split} utterances without audio, {len(silent):,} of {len(ones):,}: {some(silent)}{where}"
        fault(message, "complete the data", anyway)
    words = {word for word in {word for one in ones for word in one.words} if units.spelled(word) is None}
    odd = {one.name for one in ones if not words.isdisjoint(one.words)}
    if odd:
        strange = " ".join(sorted({character for word in words for character in word} - set(units.symbols)))
        message = f"{name}: {split} utterances with characters that no unit stands for ({strange}): {some(odd)}"
        fault(message, "correct their words", anyway)
    empty = {one.name for one in ones if not one.words and split == TRAIN}
    if empty:
        logger.warning("%s: train utterances without words, left out: %s", name, some(empty))
    return tuple(one for one in ones if one.name not in silent.keys() | odd | empty)


def digest(splits: Splits, sizes: Mapping[Path, int]) -> str:
    """sha256 of the listing: names, speakers, words, and names and sizes of audio files, but not what is in them.

    To read all audio of a large corpus takes minutes. The folder of the corpus does not count, so it may be moved.
    """
    found = hashlib.sha256()
    for split, ones in splits.items():
        for one in ones:
            files = [f"{path.name} {sizes[path]}" for path in one.audio]
            fields = (split, one.name, one.speaker, " ".join(one.words), *files, one.start, one.end, one.channel)
            found.update(("\t".join(map(str, fields)) + "\n").encode())
    return found.hexdigest()


def same_count(name: str, splits: Mapping[str, Sized], counts: Mapping[str, int], way_out: str, anyway: bool = False) -> None:
    """Refuse a corpus that has another number of utterances than is known of it."""
    pairs = ((split, len(splits.get(split, ())), n) for split, n in counts.items())
    wrong = [f"{split} has {has:,} utterances, not {n:,}" for split, has, n in pairs if has != n]
    if wrong and not anyway:
        raise DataError(f"{name}: {', '.join(wrong)}; {way_out}")
    if wrong:
        logger.warning("%s: %s", name, ", ".join(wrong))
