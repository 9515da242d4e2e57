"""Which utterances does a data folder of Kaldi describe?

``wav.scp`` names the recordings, ``segments`` (where it exists) cuts them into utterances, ``text`` has their words and ``utt2spk``
their speakers. The splits are sub-folders, or lists of utterances beside ``wav.scp``. Commands in ``wav.scp`` are not run: one that
decodes a single file is read as that file.
"""

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multint.paper.obtain import DataError, Where
from multint.paper.speech.listing import SPLITS, TEST, TRAIN, VALID, checked, fault, logger, some, units_of
from multint.paper.speech.utterances import Speech, Units, Utterance

NAMES = {TRAIN: ("train",), VALID: ("valid", "dev", "cv"), TEST: ("test", "eval")}  # of a split's folder or list
CARVED = 0.1  # share of training utterances that become a development split where there is none


class Recording(NamedTuple):
    """A line of wav.scp."""

    path: Path
    channel: int | None = None


def load(folder: Where, name: str | None = None, units: Units | None = None, anyway: bool = False, own: bool = False) -> Speech:
    """The corpus of a data folder.

    Args:
        units: None takes the letters of LibriSpeech if they spell all words, else all characters of the words.
        anyway: leave out utterances whose audio, words or speaker are missing, rather than refuse the folder.
        own: data of the user's.
    """
    folder = Path(folder)
    name = name or folder.resolve().name
    splits = _splits(folder, name, anyway)
    if not splits[VALID]:
        splits[TRAIN], splits[VALID] = carved(name, splits[TRAIN])
    words = (word for ones in splits.values() for one in ones for word in one.words)
    return checked(name, units or units_of(words), splits, anyway, own)


def _splits(folder: Path, name: str, anyway: bool) -> dict[str, Sequence[Utterance]]:
    listed: dict[str, Sequence[Utterance]]
    if (folder / "wav.scp").is_file():
        known = utterances(folder, name, anyway)
        lists = {split: _first(folder, split, ".list") for split in SPLITS}
        listed = {split: _listed(path, known, name, anyway) if path else [] for split, path in lists.items()}
        unlisted = len(known) - sum(map(len, listed.values()))
        if unlisted > 0:
            logger.warning("%s: utterances in no list: %d", name, unlisted)
    else:
        folders = {split: _first(folder, split, "/wav.scp") for split in SPLITS}
        listed = {split: [*utterances(path.parent, name, anyway).values()] if path else [] for split, path in folders.items()}
    absent = [split for split in (TRAIN, TEST) if not listed[split]]
    if absent:
        needs = "wav.scp with train.list and test.list beside it, or sub-folders train and test with wav.scp each"
        raise DataError(f"{folder} has no utterance of {' and '.join(absent)}; it needs {needs} (dev.list or dev is optional)")
    return listed


def _first(folder: Path, split: str, rest: str) -> Path | None:
    return next((path for name in NAMES[split] if (path := folder / f"{name}{rest}").is_file()), None)


def _listed(path: Path, known: Mapping[str, Utterance], name: str, anyway: bool) -> list[Utterance]:
    names = [line.split()[0] for line in _lines(path)]
    strange = {one for one in names if one not in known}
    if strange:
        message = f"{name}: {path} has utterances that are not in wav.scp and text: {some(strange)}"
        fault(message, "correct the list", anyway)
    return [known[one] for one in names if one in known]


# ---- one data folder ----


def utterances(folder: Path, name: str, anyway: bool = False) -> dict[str, Utterance]:
    """The utterances that a folder with ``wav.scp`` and ``text`` describes."""
    pieces = _pieces(folder)
    text = table(folder / "text")
    speakers = table(folder / "utt2spk") if (folder / "utt2spk").is_file() else {one: one for one in pieces}
    for what, where, lacking in (
        ("audio", "wav.scp or segments", text.keys() - pieces.keys()),
        ("transcript", "text", pieces.keys() - text.keys()),
        ("speaker", "utt2spk", (pieces.keys() & text.keys()) - {one for one, speaker in speakers.items() if speaker}),
    ):
        if lacking:
            message = f"{name}: utterances without {what} in {where} of {folder}: {some(lacking)}"
            fault(message, "complete the file", anyway)
    return {
        one: Utterance(one, speakers[one], (recording.path,), tuple(text[one].split()), start, end, recording.channel)
        for one, (recording, start, end) in pieces.items()
        if one in text and speakers.get(one)
    }


def _pieces(folder: Path) -> dict[str, tuple[Recording, float, float | None]]:
    """Recording, start and end of each utterance."""
    recordings = {one: recording(spec, folder, one) for one, spec in table(folder / "wav.scp").items()}
    path = folder / "segments"
    if not path.is_file():
        return {one: (found, 0.0, None) for one, found in recordings.items()}
    pieces = {}
    for one, fields in table(path).items():
        try:
            source, start, end = fields.split()[:3]
            first, last = float(start), float(end)
        except ValueError as error:
            raise DataError(f"{path}, {one}: expected a recording, a start and an end in seconds, got {fields!r}") from error
        if source not in recordings:
            raise DataError(f"{path}, {one}: the recording {source} is not in {folder / 'wav.scp'}; add it there")
        pieces[one] = (recordings[source], first, None if last == -1 else last)  # Kaldi writes -1 for the end of the recording
    return pieces


def table(path: Path) -> dict[str, str]:
    """A file of lines with a key and a value; a key that comes twice is refused."""
    found: dict[str, str] = {}
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key in found:
            raise DataError(f"{path}: {key} comes more than once; keep one of its lines")
        found[key] = value.strip()
    return found


def _lines(path: Path) -> Iterator[str]:
    """The lines that are not empty, with single spaces in place of white space."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; a data folder of Kaldi has wav.scp and text") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from error
    return (line for line in (" ".join(line.split()) for line in text.split("\n")) if line)


# ---- wav.scp ----


def recording(spec: str, folder: Path, name: str) -> Recording:
    """The audio file of a line of wav.scp: a path, or a command that decodes one file."""
    if not spec:
        raise DataError(f"{folder / 'wav.scp'}, {name}: no path; complete the line")
    found = _piped(spec[:-1].strip()) if spec.endswith("|") else Recording(Path(spec))
    if found is None:
        commands = "only sph2pipe, flac -d, sox and cat of one file are read, without running them"
        raise DataError(
            f"{folder / 'wav.scp'}, {name}: the command {spec!r} is not run; {commands}; convert the audio and name the files"
        )
    return Recording(_placed(found.path, folder), found.channel)


def _placed(path: Path, folder: Path) -> Path:
    """A relative path is relative to the data folder, or to the one above, or, as in Kaldi, to the working folder."""
    return next((place / path for place in (folder, folder.parent, Path()) if (place / path).is_file()), folder / path)


def _piped(command: str) -> Recording | None:
    """The file that a command decodes; None if it does anything else."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or set(command) & set("|;&<>$`*?()"):
        return None
    program, *rest = words
    read = {"cat": _cat, "flac": _flac, "sph2pipe": _sph2pipe, "sox": _sox}.get(Path(program).name)
    return read(rest) if read else None


def _cat(words: list[str]) -> Recording | None:
    return Recording(Path(words[0])) if len(words) == 1 and not words[0].startswith("-") else None


def _flac(words: list[str]) -> Recording | None:
    long = {"--decode": "d", "--stdout": "c", "--silent": "s"}
    options = [long.get(word, word.removeprefix("-")) for word in words if word.startswith("-")]
    plain = set("".join(options)) <= set("dcs") and "d" in "".join(options)
    return _cat([word for word in words if not word.startswith("-")]) if plain else None


def _sph2pipe(words: list[str]) -> Recording | None:
    """-f gives the format and -p and -u the coding of the output; -c picks a channel. Cuts (-t, -s) are refused."""
    channel, files, rest = None, [], iter(words)
    for word in rest:
        if word == "-f":
            next(rest, None)
        elif word == "-c":
            number = next(rest, "")
            if number not in ("1", "2"):
                return None
            channel = int(number) - 1
        elif word not in ("-p", "-u", "-a"):
            files.append(word)
    found = _cat(files)
    return found and Recording(found.path, channel)


def _sox(words: list[str]) -> Recording | None:
    """One file to standard output. Rate, format and number of channels of the output do not matter here; effects do."""
    values = {"-r", "--rate", "-c", "--channels", "-b", "--bits", "-e", "--encoding", "-t", "--type"}
    bare, rest = [], iter(words)
    for word in rest:
        if word in values:
            next(rest, None)
        elif word not in ("-G", "-q", "-R", "-D") and not word.startswith("-V"):
            bare.append(word)
    match bare:
        case [path, "-"]:
            return _cat([path])
        case [path, "-", "remix", number] if number.isdigit() and int(number) > 0:
            return Recording(Path(path), int(number) - 1)
    return None


# ---- a development split ----


def carved(name: str, train: Sequence[Utterance], share: float = CARVED) -> tuple[list[Utterance], list[Utterance]]:
    """Training without the utterances of some speakers, and these: a development split of that share, twice as much at most.

    The speakers come in the order of the sha256 of their names, so the same ones are taken everywhere. Where a single speaker has
    too much, utterances are taken in that order.
    """
    by_speaker = Counter(one.speaker for one in train)
    taken = _taken(by_speaker, share * len(train))
    if taken:
        kept, valid = _divided(train, [one.speaker in taken for one in train])
    else:
        taken = _taken(Counter(one.name for one in train), share * len(train))
        kept, valid = _divided(train, [one.name in taken for one in train])
    speakers = {one.speaker for one in valid}
    logger.info(
        "%s: no development split is given; it takes %d utterances of train, spoken by %s", name, len(valid), some(speakers)
    )
    return kept, valid


def _taken(sizes: Mapping[str, int], wanted: float) -> set[str]:
    taken: set[str] = set()
    count = 0
    for one in sorted(sizes, key=lambda one: hashlib.sha256(one.encode()).hexdigest()):
        if count < wanted and count + sizes[one] <= max(2 * wanted, 1):
            taken.add(one)
            count += sizes[one]
    return taken if count < sum(sizes.values()) else set()


def _divided(ones: Sequence[Utterance], out: Sequence[bool]) -> tuple[list[Utterance], list[Utterance]]:
    pairs = [*zip(ones, out, strict=True)]
    return [one for one, away in pairs if not away], [one for one, away in pairs if away]
