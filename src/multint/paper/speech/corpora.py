"""Which corpora do the recognisers hear, where do they come from, and what must they look like?

A folder of the user's in the form of Kaldi is a corpus too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from multint.paper.obtain import DataError, Where, data_folder, user_folder
from multint.paper.sources import Source
from multint.paper.speech import digits, kaldi, librispeech, wsj
from multint.paper.speech.listing import LETTERS, TEST, TRAIN, VALID, Splits, checked, same_count
from multint.paper.speech.utterances import Speech, Units, Utterance

PAPERS = "wsj"  # the corpus of the paper


@dataclass(frozen=True, kw_only=True)
class SpeechSource(Source):
    """A corpus of speech. It is a folder of many files, so no single one is listed; what is known are the numbers of utterances.

    Args:
        addresses: pages from which a person gets it.
        read: its utterances from its folder; goes on with less if the second argument says so.
        counts: utterances of train, valid and test.
        units: of its transcripts.
    """

    addresses: tuple[str, ...]
    read: Callable[[Path, bool], Speech]
    counts: Mapping[str, int]
    units: Units
    files: tuple[()] = ()


def load(name: Where, data: Where | None = None, anyway: bool = False) -> Speech:
    """A corpus by name, or a data folder of Kaldi by path. Downloads nothing.

    Args:
        data: the folder of corpora; None takes MULTINT_DATA or the user's own.
        anyway: go on although utterances are missing; the log says which.
    """
    source = CORPORA.get(str(name))
    if source is None:
        if Path(name).is_dir():
            return kaldi.load(name, anyway=anyway, own=True)
        raise DataError(f"unknown corpus {str(name)!r}, and no such folder: known are {', '.join(CORPORA)}")
    folder = found(source, data)
    if folder is None:
        others = [other.name for other in CORPORA.values() if other.stands_for == source.name and found(other, data)]
        instead = f", or take {' or '.join(others)}, which stands for it" if others else ""
        place = data_folder(data) / source.folder
        raise DataError(f"{source.name}: no folder {place}; obtain it yourself ({how_to_obtain(source)}) and put it there{instead}")
    speech = source.read(folder, anyway)
    same_count(source.name, speech.splits, source.counts, f"complete {folder} ({how_to_obtain(source)})", anyway)
    return replace(speech, stands_for=source.stands_for)


def units(name: str) -> Units | None:
    """The units of a corpus by name; None where its transcripts must be read to know them."""
    source = CORPORA.get(name)
    return source.units if source else None


def found(source: Source, data: Where | None = None) -> Path | None:
    """The folder of a corpus, in the data folder or the user's own."""
    return next((top / source.folder for top in (data_folder(data), user_folder()) if (top / source.folder).is_dir()), None)


def how_to_obtain(source: SpeechSource) -> str:
    return f"{source.obtain}: {', '.join(source.addresses)}"


# ---- how each is read ----


MINI_PART = "train-clean-5"
MINI_SPEAKERS = {VALID: ("1867", "1898", "3242", "5789"), TEST: ("118", "2416", "3664", "6272")}


def _mini(folder: Path, anyway: bool) -> Speech:
    """From a data folder of Kaldi, or from LibriSpeech's own layout, divided by the same speakers."""
    name = "mini-librispeech"
    if librispeech.part_folder(folder, MINI_PART) is None:
        return kaldi.load(folder, name, LETTERS, anyway)
    ones = librispeech.utterances(folder, MINI_PART)
    return checked(name, LETTERS, by_speaker(ones, MINI_SPEAKERS), anyway)


def by_speaker(ones: list[Utterance], speakers: Mapping[str, tuple[str, ...]]) -> Splits:
    """Splits of the utterances of some speakers; those of all others are train."""
    others = {speaker for some in speakers.values() for speaker in some}
    splits = {split: [one for one in ones if one.speaker in some] for split, some in speakers.items()}
    return {TRAIN: [one for one in ones if one.speaker not in others], **splits}


def _wsj(folder: Path, anyway: bool) -> Speech:
    names = [path for pattern in ("cmudict*0.7a", "cmudict/cmudict*0.7a", "cmudict*") for path in sorted(folder.glob(pattern))]
    dictionary = next((path for path in names if path.is_file()), folder / "cmudict.0.7a")
    return wsj.load([folder], dictionary, anyway=anyway)


def _of(train: int, valid: int, test: int) -> Mapping[str, int]:
    return MappingProxyType({TRAIN: train, VALID: valid, TEST: test})


CC_BY = "CC BY 4.0: LibriSpeech (c) 2014 by Vassil Panayotov"

CORPORA: Mapping[str, SpeechSource] = MappingProxyType(
    {
        source.name: source
        for source in (
            SpeechSource(
                name="fsdd-strings",
                folder="speech-fsdd",
                licence="CC BY-SA 4.0",
                obtain="a clone of the Free Spoken Digit Dataset, with its folder recordings",
                addresses=("https://github.com/Jakobovski/free-spoken-digit-dataset",),
                detail="strings of 2 to 5 digits, each made of single recordings of one speaker",
                stands_for=PAPERS,
                read=lambda folder, anyway: digits.load(folder, anyway=anyway),
                counts=MappingProxyType(digits.STRINGS),
                units=digits.UNITS,
            ),
            SpeechSource(
                name="mini-librispeech",
                folder="speech-minilibrispeech",
                licence=CC_BY,
                obtain="train-clean-5.tar.gz, unpacked there",
                addresses=("https://www.openslr.org/31/",),
                detail="5.3 hours of read books by 28 speakers; our own split by speaker and book",
                stands_for=PAPERS,
                read=_mini,
                counts=_of(1101, 179, 239),
                units=LETTERS,
            ),
            SpeechSource(
                name="speechocean762",
                folder="speech-speechocean762",
                licence="free for commercial and non-commercial use, according to its authors",
                obtain="its adults, as a data folder of Kaldi with train.list and test.list",
                addresses=("https://www.openslr.org/101/", "https://github.com/jimbozhang/speechocean762"),
                detail="3.2 hours of sentences read by 128 adults whose first language is Mandarin",
                stands_for=PAPERS,
                read=lambda folder, anyway: kaldi.load(folder, "speechocean762", LETTERS, anyway),
                counts=_of(1200, 140, 1220),
                units=LETTERS,
            ),
            SpeechSource(
                name="librispeech-100",
                folder="librispeech",
                licence=CC_BY,
                obtain="train-clean-100.tar.gz, dev-clean.tar.gz and test-clean.tar.gz, unpacked there",
                addresses=("https://www.openslr.org/12/",),
                detail="100 hours of read books by 251 speakers; the official parts of clean speech",
                stands_for=PAPERS,
                read=lambda folder, anyway: librispeech.load(folder, anyway=anyway),
                counts=_of(28_539, 2703, 2620),
                units=LETTERS,
            ),
            SpeechSource(
                name=PAPERS,
                folder="wsj",
                licence="licensed to members and customers of the Linguistic Data Consortium",
                obtain="the discs of LDC93S6B and LDC94S13B in folders named 11-1.1 to 13-34.1, and beside them cmudict.0.7a",
                addresses=(
                    "https://catalog.ldc.upenn.edu/LDC93S6B",
                    "https://catalog.ldc.upenn.edu/LDC94S13B",
                    wsj.DICTIONARY,
                ),
                detail="81 hours of read newspaper: si284, dev93 and eval92",
                read=_wsj,
                counts=MappingProxyType(wsj.COUNTS),
                units=wsj.UNITS,
            ),
        )
    }
)
