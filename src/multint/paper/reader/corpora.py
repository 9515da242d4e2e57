"""Which corpora does the reader read, where do they come from, and what must they look like?

A folder or an archive of the user's with ``.question`` files is a corpus too.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from multint.paper import obtain
from multint.paper.obtain import DataError, Where, data_folder, user_folder
from multint.paper.reader import babi, cloze, files, highlights, questions
from multint.paper.reader.questions import Malformed, Question
from multint.paper.sources import Address, File, Source

PAPERS = "cnn"  # the corpus of the paper
SPLITS = ("train", "valid", "test")
FOLDERS = {"training": "train", "validation": "valid", "test": "test"}  # of a corpus of .question files
ELSEWHERE = "the file is in none of the folders training, validation and test"


class Item(NamedTuple):
    """A question of a split, or the fault for which there is none. Its name orders the split."""

    split: str
    name: str
    what: Question | str


@dataclass(frozen=True)
class Found:
    """A corpus before it is prepared.

    Args:
        fingerprint: tells one state of its files from another.
        items: reads them all.
        counts: questions there must be of a split; empty where any number will do.
        here: whether its files are; if not, it can only be used if it is prepared.
    """

    name: str
    fingerprint: str
    items: Callable[[], Iterator[Item]]
    stands_for: str | None = None
    own: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    here: bool = True


@dataclass(frozen=True, kw_only=True)
class ReaderSource(Source):
    """A corpus of questions.

    Args:
        addresses: pages from which a person gets it.
        find: the corpus where its files are in a folder of data; None where they are not.
    """

    addresses: tuple[str, ...]
    find: Callable[["ReaderSource", Where | None], Found | None]


def load(name: Where, data: Where | None = None) -> Found:
    """A corpus by name, or one of ``.question`` files by path. Downloads nothing."""
    source = CORPORA.get(str(name))
    if source is None:
        return own(Path(name))
    found = source.find(source, data)
    if found is None:
        others = [other for other in CORPORA.values() if other.stands_for == source.name and here(other, data)]
        instead = f", or take {' or '.join(other.name for other in others)}, which stands for it" if others else ""
        place = data_folder(data) / source.folder
        raise DataError(f"{source.name} is not in {place}; obtain it ({source.obtain}: {', '.join(source.addresses)}){instead}")
    return found


def here(source: ReaderSource, data: Where | None = None) -> bool:
    """Whether the files of a corpus are here."""
    found = source.find(source, data)
    return found is not None and found.here


def own(path: Path) -> Found:
    """The user's questions."""
    if not path.is_dir() and not files.is_archive(path):
        known = ", ".join(CORPORA)
        raise DataError(f"no corpus {str(path)!r}, and no such folder or archive of .question files; corpora are {known}")
    return Found(path.name, files.fingerprint(path), lambda: question_files(path), own=True)


# ---- how each is read ----


def question_files(path: Path) -> Iterator[Item]:
    """The ``.question`` files below a folder or in an archive, each in a folder training, validation or test."""
    for name, content in files.members(path, lambda name: name.endswith(".question")):
        parts = name.split("/")
        split = next((FOLDERS[part] for part in reversed(parts[:-1]) if part in FOLDERS), None)
        yield Item(split or "train", parts[-1], _read(content) if split else ELSEWHERE)


def _read(content: bytes) -> Question | str:
    try:
        return questions.read(content.decode("utf-8"))
    except UnicodeDecodeError:
        return "the file is not UTF-8"
    except Malformed as error:
        return str(error)


def named(pairs: Iterable[tuple[str, Question]]) -> Iterator[Item]:
    """Items of questions that come from no file of their own; each has the name of the file that it would be."""
    for split, one in pairs:
        yield Item(split, file_name(one), one)


def file_name(one: Question) -> str:
    return hashlib.sha1(questions.written(one).encode()).hexdigest() + ".question"


def _tops(source: Source, data: Where | None) -> Iterator[Path]:
    """Folders in which a source may be: its own one in the folder of data or in the user's, then that folder itself."""
    for top in dict.fromkeys((data_folder(data), user_folder())):
        yield from (top / source.folder, top)


def _cnn(source: ReaderSource, data: Where | None) -> Found | None:
    for top in _tops(source, data):
        for place in (top / "questions", top / "cnn" / "questions", *(top / f"cnn{suffix}" for suffix in files.ARCHIVES)):
            if place.is_dir() or files.is_archive(place):
                return Found(source.name, files.fingerprint(place), lambda place=place: question_files(place), counts=CNN_COUNTS)  # type: ignore[misc]
    return None


def _made(
    source: ReaderSource, data: Where | None, questions_of: Callable[[Iterator[bytes]], Iterable[tuple[str, Question]]]
) -> Found:
    """Questions that are made from a known file. Once they are prepared, the file is not needed."""
    (file,) = source.files
    made = hashlib.sha256(f"{file.sha256} {cloze.EDITION}".encode()).hexdigest()

    def items() -> Iterator[Item]:
        (copy,) = obtain.copies(source, data)
        yield from named(questions_of(obtain.verified(source, file, copy)))

    here = obtain.local(source, file, data) is not None
    return Found(source.name, made, items, source.stands_for, here=here)


def _wikicloze(source: ReaderSource, data: Where | None) -> Found:
    return _made(source, data, cloze.questions)


def _highlights(source: ReaderSource, data: Where | None) -> Found:
    def asked(content: Iterator[bytes]) -> Iterator[tuple[str, Question]]:
        return (("test", one) for one in highlights.questions(b"".join(content).decode("utf-8")))

    return _made(source, data, asked)


def _babi(source: ReaderSource, data: Where | None) -> Found | None:
    task = int(source.name.removeprefix("babi-"))
    for top in _tops(source, data):
        if top.name != source.folder or not top.is_dir():
            continue
        for place in (top, *sorted(path for path in top.iterdir() if files.is_archive(path))):
            texts = {babi.FILE.fullmatch(n)[2]: c.decode() for n, c in files.members(place, babi.wanted(task))}  # type: ignore[index]
            if set(texts) == {"train", "test"}:
                made = hashlib.sha256("".join(texts[kind] for kind in sorted(texts)).encode()).hexdigest()
                return Found(source.name, made, lambda texts=texts: named(babi.questions(texts)))  # type: ignore[misc]
    return None


CNN_COUNTS = MappingProxyType({"train": 380_298, "valid": 3_924, "test": 3_198})
ENWIK8 = File(
    "enwik8",
    100_000_000,
    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    (
        Address(
            "http://mattmahoney.net/dc/enwik8.zip",
            36_445_475,
            "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            member="enwik8",
        ),
    ),
)
HIGHLIGHTS = "cnn-highlights"

CORPORA: Mapping[str, ReaderSource] = MappingProxyType(
    {
        source.name: source
        for source in (
            ReaderSource(
                name=PAPERS,
                folder="cnn",
                files=(),
                licence="articles of CNN; the questions are for research",
                obtain="cnn.tgz with the folder cnn/questions, put there as it is or unpacked",
                addresses=("https://cs.nyu.edu/~kcho/DMQA/", "https://github.com/google-deepmind/rc-data"),
                detail="the questions of Hermann et al. (2015) about articles of CNN",
                find=_cnn,
            ),
            ReaderSource(
                name="wikicloze",
                folder="enwik8",
                files=(ENWIK8,),
                licence="Wikipedia text of 2006, GFDL",
                obtain="enwik8.zip from Matt Mahoney's page of text data",
                addresses=("http://mattmahoney.net/dc/textdata.html",),
                detail="sentences of Wikipedia with an entity missing, and the rest of their article; made from enwik8",
                stands_for=PAPERS,
                find=_wikicloze,
            ),
            ReaderSource(
                name=HIGHLIGHTS,
                folder="cnn",
                files=(
                    File(
                        "cnndm_v3_validation_first1000.csv",
                        4_090_016,
                        "fa0a78975e902c7e5bd59506bc5508f848add73bff87fef68670e934a742de67",
                    ),
                ),
                licence="articles of CNN, for research",
                obtain="the first 1,000 rows of validation of the CNN and Daily Mail corpus, version 3.0.0, as a table",
                addresses=("https://huggingface.co/datasets/cnn_dailymail",),
                detail="highlights of 1,000 articles as questions: a test from another domain than Wikipedia",
                find=_highlights,
            ),
            ReaderSource(
                name="babi-1",
                folder="babi",
                files=(),
                licence="CC BY 3.0",
                obtain="tasks_1-20_v1-2.tar.gz, put there as it is or unpacked",
                addresses=("https://research.facebook.com/downloads/babi/",),
                detail="task 1 of bAbI, 10,000 training questions: the quick check",
                find=_babi,
            ),
        )
    }
)
