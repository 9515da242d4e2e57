"""Which sentences does a text have, in the spelling of transcripts: capital letters and apostrophes?

The rules are simple ones. A sentence ends at ``.``, ``!`` or ``?`` before white space, except after a known abbreviation or an
initial, and at the end of its paragraph. Accents are dropped. Hyphens and dashes separate words. An apostrophe stays between
letters. A word with a digit has no spelling in letters: it becomes ``<unk>``.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from multint.paper.obtain import DataError, chunks

UNKNOWN = "<unk>"
BOOK = "=== "  # opens a book: the rest of the line is its id

_ABBREVIATIONS = (
    r"Mr|Mrs|Ms|Messrs|Dr|Prof|Rev|Hon|Esq|Jr|Sr|St|Mt|Capt|Col|Gen|Lieut|Lt|Maj|Sergt|Sgt|Gov|Sen|Rep|Mme|Mlle|Mons|No|Nos|Vol|Fig"
    r"|Ch|Chap|vol|no|p|pp|ed|cf|viz|vs|etc|e\.g|i\.e"
)
_END = re.compile(r"""[.!?]+["')\]]*\s+""")
_SHORT = re.compile(rf"\b(?:{_ABBREVIATIONS}|[A-Z])\Z")  # in front of a point that ends no sentence
_WORD = re.compile(r"[A-Z]+(?:'[A-Z]+)*")
_WORD_OR_NUMBER = re.compile(r"[A-Z]*\d(?:[A-Z\d]|[.,:/](?=\d))*|[A-Z]+(?:'[A-Z]+)*")
_LETTERS = str.maketrans({"’": "'", "‘": "'", "′": "'", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ß": "ss", "ł": "l", "Ł": "L"})


def spelled(text: str) -> str:
    """Text in capital letters with one space between words.

    >>> spelled("\\"Well-a-day!\\" cried Zoë, 'it's 3rd-rate.'")
    "WELL A DAY CRIED ZOE IT'S <unk> RATE"
    """
    if not text.isascii():
        apart = unicodedata.normalize("NFKD", text.translate(_LETTERS))
        text = "".join(c for c in apart if not unicodedata.combining(c))
    text = text.upper()
    if not re.search(r"\d", text):
        return " ".join(_WORD.findall(text))
    return " ".join(UNKNOWN if re.search(r"\d", word) else word for word in _WORD_OR_NUMBER.findall(text))


def split(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph, spelled; those without a word are left out."""
    begin = 0
    for end in _END.finditer(paragraph):
        if paragraph[end.start()] == "." and _SHORT.search(paragraph, max(begin, end.start() - 8), end.start()):
            continue
        if sentence := spelled(paragraph[begin : end.end()]):
            yield sentence
        begin = end.end()
    if sentence := spelled(paragraph[begin:]):
        yield sentence


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be compressed (.xz, .gz, .bz2, .zip)."""
    rest = b""
    number = 0
    for chunk in chunks(path, path.stem):
        *whole, rest = (rest + chunk).split(b"\n")
        for number, line in enumerate(whole, start=number + 1):  # noqa: B020 - counts on through the chunks
            yield _decoded(line, path, number)
    if rest:
        yield _decoded(rest, path, number + 1)


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert it, or leave that line out") from error


def prepared(paths: Iterable[Path]) -> Iterator[str]:
    """Sentences of files that have one a line, as they are; empty lines are no sentences."""
    return (line for path in paths for line in lines(path) if line.strip())


def books(paths: Sequence[Path], leave_out: Collection[str] = ()) -> Iterator[str]:
    """Sentences of running text, a paragraph a line. A line ``=== id`` opens a book; books in ``leave_out`` are left out.

    An id that no file has is a DataError, once all files are read: a book that should be left out may be there under another name.
    """
    missing = set(leave_out)
    for path in paths:
        wanted = True
        for line in lines(path):
            if line.startswith(BOOK):
                book = line.removeprefix(BOOK).strip()
                wanted = book not in leave_out
                missing.discard(book)
            elif wanted:
                yield from split(line)
    if missing:
        files = ", ".join(path.name for path in paths)
        raise DataError(f"no book {', '.join(sorted(missing))} in {files}: its line would be {BOOK}{min(missing)}")
