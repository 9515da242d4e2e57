"""Which utterances do the discs of the Wall Street Journal corpus have, and what was said in them?

The recipe of Kaldi and Eesen: training is si284, development dev93, the test is eval92, all with the Sennheiser microphone. The
discs are those of the Linguistic Data Consortium's LDC93S6B (wsj0) and LDC94S13B (wsj1).
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from multint.paper.obtain import DataError, Where
from multint.paper.speech.listing import TEST, TRAIN, VALID, checked, fault, logger, same_count, some
from multint.paper.speech.utterances import SPACE, Speech, Units, Utterance

INDICES = {  # the lists of each split: disc and path
    TRAIN: (("13_34_1", "wsj1/doc/indices/si_tr_s.ndx"), ("11_13_1", "wsj0/doc/indices/train/tr_s_wv1.ndx")),
    VALID: (("13_34_1", "wsj1/doc/indices/h1_p0.ndx"),),
    TEST: (("11_13_1", "wsj0/doc/indices/test/nvp/si_et_20.ndx"),),
}
COUNTS = {TRAIN: 37_416, VALID: 503, TEST: 333}
LEFT_OUT = "wsj0/si_tr_s/401/"  # a speaker that si284 has not, though the index names it
COMPLETE = "complete the discs of LDC93S6B and LDC94S13B"

NOISE, SPOKEN_NOISE, UNKNOWN = "<NOISE>", "<SPOKEN_NOISE>", "<UNK>"
CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZs0123456789'-._(){}\";:,?!/&%#")  # of the words of cmudict 0.7a
DICTIONARY = "https://svn.code.sf.net/p/cmusphinx/code/trunk/cmudict (revision 11745, cmudict.0.7a)"


def load(folders: Sequence[Where], dictionary: Where, name: str = "wsj", anyway: bool = False) -> Speech:
    """The corpus of the discs below these folders, or of one folder that has wsj0 and wsj1 with the content of all discs.

    Words of training that the dictionary does not have become ``<UNK>``, as in Eesen; what is scored keeps its words.

    Args:
        dictionary: the file of cmudict 0.7a.
        anyway: go on where utterances are missing or the dictionary is another version.
    """
    discs = Discs([Path(folder) for folder in folders])
    known = words(Path(dictionary))
    units = units_of(known, anyway)
    listed = {split: [path for disc, index in indices for path in discs.listed(disc, index)] for split, indices in INDICES.items()}
    discs.complete(anyway)
    same_count(name, listed, COUNTS, COMPLETE, anyway)
    said = transcripts(discs.dots())
    splits = {split: _utterances(name, split, paths, said, anyway) for split, paths in listed.items()}
    splits[TRAIN] = _known(name, splits[TRAIN], {*known, NOISE, SPOKEN_NOISE})
    return checked(name, units, splits, anyway)


def _utterances(name: str, split: str, paths: Sequence[Path], said: Mapping[str, str], anyway: bool) -> list[Utterance]:
    """Utterances of audio files, by name. The name is the file's; its first three characters are the speaker."""
    found = sorted((path.stem.lower(), path) for path in paths)
    lacking = {one for one, _ in found if one not in said}
    if lacking:
        message = f"{name}: {split} utterances without a line in a .dot file, {len(lacking):,} of {len(found):,}: {some(lacking)}"
        fault(message, COMPLETE, anyway)
    return [Utterance(one, one[:3], (path,), normalised(said[one])) for one, path in found if one in said]


def _known(name: str, ones: Sequence[Utterance], known: set[str]) -> list[Utterance]:
    """Utterances with ``<UNK>`` in place of words that are not known."""
    strange = [word for one in ones for word in one.words if word not in known]
    total = sum(len(one.words) for one in ones)
    logger.info("%s: %d of %d words of train are not in the dictionary (%s)", name, len(strange), total, some(set(strange)))
    return [replace(one, words=tuple(word if word in known else UNKNOWN for word in one.words)) for one in ones]


# ---- the discs ----


class Discs:
    """The folders of the discs. Each is named after its disc, such as 11-13.1 or 13_34.1, at most three levels below the top."""

    def __init__(self, tops: Sequence[Path]) -> None:
        for top in tops:
            if not top.is_dir():
                raise DataError(f"{top}: there is no such folder; give the folders of LDC93S6B and LDC94S13B")
        self.joined = next((top for top in tops if (top / "wsj0" / "doc").is_dir() and (top / "wsj1" / "doc").is_dir()), None)
        self.folders = {} if self.joined else {disc: folder for top in tops for disc, folder in _discs(top, 3)}
        self.tops = tops
        self.missing: set[str] = set()

    def of(self, disc: str) -> Path:
        """The folder of a disc, or the one where it should be."""
        if self.joined:
            return self.joined
        if disc not in self.folders:
            self.missing.add(disc.replace("_", "-", 1).replace("_", "."))
        return self.folders.get(disc, self.tops[0] / disc)

    def complete(self, anyway: bool) -> None:
        """Refuse a corpus without discs that were asked for, or go on without their utterances."""
        if self.missing:
            fault(f"{', '.join(map(str, self.tops))}: no folders of the discs {some(self.missing)}", COMPLETE, anyway)

    def listed(self, disc: str, index: str) -> Iterator[Path]:
        """The audio files that an index names."""
        path = cased(self.of(disc) / index, index)
        try:
            lines = path.read_text(encoding="latin-1").splitlines()
        except FileNotFoundError:
            self.complete(False)
            raise DataError(f"{path}: there is no such list of utterances; {COMPLETE}") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith(";"):
                continue
            match = re.fullmatch(r"([0-9_]+):\s*(\S+)\s*", line)
            if match is None:
                raise DataError(f"{path}, line {number}: expected a disc and a file, got {line!r}; {COMPLETE}")
            file = match[2].lstrip("/")
            if not file.lower().startswith(LEFT_OUT):
                file += "" if file.lower().endswith(".wv1") else ".wv1"
                yield cased(self.of(match[1]) / file, file)

    def dots(self) -> Iterator[Path]:
        """The files of transcripts."""
        for top in [self.joined] if self.joined else dict.fromkeys(self.folders.values()):
            for folder, below, files in os.walk(top, followlinks=True):
                below.sort()
                yield from (Path(folder, file) for file in sorted(files) if file.lower().endswith(".dot"))


def _discs(top: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Folders that are named after a disc."""
    match = re.fullmatch(r"(\d+)[-_](\d+)[._](\d+)", top.name)
    if match:
        yield "_".join(match.groups()), top
    elif depth:
        for folder in sorted(top.iterdir()):
            if folder.is_dir():
                yield from _discs(folder, depth - 1)


def cased(path: Path, relative: str) -> Path:
    """A path on a disc. Copies of some discs have names in capital letters throughout."""
    if path.exists():
        return path
    top = Path(str(path)[: -len(relative)])
    return next((other for other in (top / relative.upper(), top / relative.lower()) if other.exists()), path)


# ---- what was said ----


def transcripts(dots: Iterable[Path]) -> dict[str, str]:
    """What was said in each utterance, as written down: lines of words and, in parentheses, the utterance."""
    found: dict[str, str] = {}
    differ = set()
    for path in dots:
        for number, line in enumerate(path.read_text(encoding="latin-1").splitlines(), start=1):
            if not line.strip():
                continue
            match = re.fullmatch(r"(.*)\((\w{8})\)\s*", line)
            if match is None:
                raise DataError(f"{path}, line {number}: expected words and (utterance), got {line!r}; {COMPLETE}")
            said, one = match[1].strip(), match[2].lower()
            if found.setdefault(one, said) != said:
                differ.add(one)
    if differ:
        logger.warning("utterances with two different transcripts, of which the first is taken: %s", some(differ))
    return found


def normalised(said: str) -> tuple[str, ...]:
    r"""The words of a transcript, as Kaldi and Eesen write them.

    Capital letters; no backslashes; ``[noise]`` is ``<NOISE>``, but a noise over words, ``.`` (a pause) and ``~`` (the utterance is
    cut off) are dropped; ``<word>``, which the reader took back, was said and is a word. Punctuation that is read aloud stays as it
    is written, and so do the marks of mispronounced, lengthened and partial words: the dictionary has none of these words.

    >>> normalised(r"[loud_breath] I\. B\. M\. <and> said [door_slam>] so .PERIOD --dash [cough/] ~")
    ('<NOISE>', 'I.', 'B.', 'M.', 'AND', 'SAID', 'SO', '.PERIOD', '-DASH')
    """
    words = (_word(word.upper().replace("\\", "")) for word in said.split())
    return tuple(word for word in words if word)


RENAMED = {"%PERCENT": "PERCENT", ".POINT": "POINT", "--DASH": "-DASH", ".": "", "~": ""}
OVER_WORDS = re.compile(r"\[<\w+\]|\[\w+>\]|.*\[\w+/\]|.*\[/\w+\]")  # of the word before, of the word after, from here, to here


def _word(word: str) -> str:
    if word in RENAMED:
        return RENAMED[word]
    if OVER_WORDS.fullmatch(word):
        return ""
    if re.search(r"\[\w+\]", word):
        return NOISE
    deleted = re.fullmatch(r"<([\w']+)>", word)
    return deleted[1] if deleted else word


# ---- the dictionary ----


class Difference(NamedTuple):
    """How the characters of a dictionary differ from those of cmudict 0.7a."""

    missing: frozenset[str]
    further: frozenset[str]

    def __str__(self) -> str:
        parts = (("it lacks", self.missing), ("it also has", self.further))
        return " and ".join(f"{what} {' '.join(sorted(characters))}" for what, characters in parts if characters)


def words(dictionary: Path) -> tuple[str, ...]:
    """The words of cmudict in its order, without their pronunciations."""
    try:
        text = dictionary.read_text(encoding="latin-1")
    except OSError:
        raise DataError(f"{dictionary}: the dictionary cmudict 0.7a is not there; get it from {DICTIONARY}") from None
    firsts = (line.split()[0] for line in text.splitlines() if line.strip() and ";;;" not in line)
    return tuple(dict.fromkeys(re.sub(r"(?<=.)\(\d+\)$", "", word) for word in firsts))


def units_of(known: Iterable[str], anyway: bool = False) -> Units:
    """Eesen's 59 units: the 55 characters of the dictionary's words, noises, the space and the unknown word."""
    characters = {character for word in known for character in word}
    if characters != CHARACTERS:
        difference = Difference(CHARACTERS - characters, frozenset(characters - CHARACTERS))
        message = f"wsj: the dictionary is not cmudict 0.7a: {difference}; so there are {len(characters) + 4} units and not 59"
        if not anyway:
            raise DataError(f"{message}; take the one of {DICTIONARY}")
        logger.warning("%s", message)
    return Units((NOISE, SPOKEN_NOISE, SPACE, UNKNOWN, *sorted(characters)), (NOISE, SPOKEN_NOISE), UNKNOWN)


UNITS = units_of(CHARACTERS)
