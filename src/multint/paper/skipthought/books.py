"""How are books read, wherever and however they are stored? As pieces of a few megabytes that are worked on one by one.

Books come as a folder of files, as an archive, or as one file; files may be compressed. Where pieces end depends on the content
alone, so that a preparation that was killed finds the same ones again.
"""

import hashlib
import json
import logging
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from multint.paper import obtain
from multint.paper.obtain import BROKEN, DataError, Stream, Where, one_line
from multint.publish import replacing

logger = logging.getLogger("multint")

Form = Literal["books", "sentences", "tokens"]
PIECE = 2 << 20  # bytes
TEXTS = (".txt", ".text", "")  # endings of files that are books


@dataclass(frozen=True)
class Books:
    """Books before they are prepared.

    Args:
        paths: of files.
        sha256: what tells these books from others.
        form: running text, one sentence a line, or one sentence a line whose tokens have spaces between them.
        lines: how many there must be; None where nobody knows.
        size, content: bytes and sum of all text, where they are known.
        mark: what a line begins with that stands before every book.
    """

    name: str
    paths: tuple[Path, ...]
    sha256: str
    form: Form = "books"
    stands_for: str | None = None
    own: bool = False
    lines: int | None = None
    size: int | None = None
    content: str | None = None
    mark: str = ""


class Piece(NamedTuple):
    """A part of the text. ``begins`` says that a book begins with it."""

    number: int
    begins: bool
    body: bytes


def own(path: Path, form: Form, data: Where | None = None) -> Books:
    """Books of the user's: a folder, an archive or a file."""
    if not path.exists():
        raise DataError(f"there are no books at {path}")
    files = _files(path)
    if not files:
        raise DataError(f"{path} holds no book: no file that ends in {', '.join(filter(None, TEXTS))}, compressed or not")
    return Books(path.name, tuple(files), _sum_of(files, data), form, own=True)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    inside = sorted(one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    books = [one for one in inside if _is_text(one.name) or one.name.endswith((*obtain.TARS, ".zip"))]
    if len(books) < len(inside):
        others = [one.name for one in inside if one not in set(books)]
        logger.warning("%s: %d files are no text and are left out: %s", path, len(others), ", ".join(others[:5]))
    return books


def _is_text(name: str) -> bool:
    for ending in obtain.PACKED:
        name = name.removesuffix(ending)
    return Path(name).suffix.lower() in TEXTS


# ---- pieces ----


def pieces(books: Books) -> Iterator[Piece]:
    """The text in order. A file that holds zero bytes is no text; it is left out with a warning."""
    number = 0
    for path in books.paths:
        try:
            for name, stream in _inside(path):
                begins = True
                for body in _cut(stream, books.form):
                    if begins and b"\0" in body[:4096]:
                        logger.warning("%s is no text and is left out", name)
                        break
                    yield Piece(number, begins, body)
                    number, begins = number + 1, False
        except BROKEN as error:
            raise DataError(f"{path} cannot be read ({one_line(error)}); get it again") from error


def _inside(path: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    """The books of a file, each with a name for messages and its content."""
    if path.name.endswith(obtain.TARS):
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                inside = tar.extractfile(member) if member.isreg() and _is_text(member.name) else None
                if inside is not None:
                    yield f"{path}: {member.name}", _chunks(inside)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in sorted(archive.infolist(), key=lambda one: one.filename):
                if not info.is_dir() and _is_text(info.filename):
                    with archive.open(info) as inside:
                        yield f"{path}: {info.filename}", _chunks(inside)
    else:
        yield str(path), obtain.chunks(path, path.stem if path.suffix in obtain.PACKED else None)


def _chunks(inside: Stream) -> Iterator[bytes]:
    while chunk := inside.read(obtain.CHUNK):
        yield chunk


def _cut(stream: Iterable[bytes], form: Form) -> Iterator[bytes]:
    """Pieces of at least PIECE bytes that end where a paragraph, or at least a line, ends."""
    left = bytearray()
    for chunk in stream:
        left += chunk
        while len(left) >= PIECE:
            end = left.rfind(b"\n\n", 0, PIECE) + 1 if form == "books" else 0
            end = end or left.rfind(b"\n", 0, PIECE) + 1
            if not end:  # a line longer than a piece
                end = left.find(b"\n", PIECE) + 1
                if not end:
                    break
            yield bytes(left[:end])
            del left[:end]
    if left:
        yield bytes(left)


# ---- text ----


class Text(NamedTuple):
    """A decoded piece. ``odd`` counts bytes that are not UTF-8; they are read as Windows-1252, as old e-texts are."""

    text: str
    odd: int


def decoded(body: bytes) -> Text:
    try:
        return Text(body.decode("utf-8").removeprefix("\ufeff"), 0)
    except UnicodeDecodeError:
        pass
    parts, odd, at = [], 0, 0
    while at < len(body):
        try:
            parts.append(body[at:].decode("utf-8"))
            break
        except UnicodeDecodeError as error:
            wrong = body[at + error.start : at + error.end]
            parts += [body[at : at + error.start].decode("utf-8"), wrong.decode("cp1252", "replace")]
            odd, at = odd + len(wrong), at + error.end
    return Text("".join(parts).removeprefix("\ufeff"), odd)


WRAPPED = 100  # characters that a line of text with line breaks inside paragraphs hardly ever has


def paragraphs(lines: list[str]) -> list[str]:
    """The paragraphs of running text. A line is one, unless the text is wrapped: then an empty line ends a paragraph."""
    full = [line for line in lines if line.strip()]
    long = sum(len(line) > WRAPPED for line in full)
    if len(full) == len(lines) or 100 * long > len(full):
        return full
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [" ".join(part) for part in found if part]


LINE = re.compile(r"\r\n|\r|\n")


# ---- sums ----


def _sum_of(files: list[Path], data: Where | None) -> str:
    """A sum of all content, in order. Sums of large files are kept, and used while size and time of a file stay the same."""
    folder = obtain.cache_folder(data) / "sums"
    place = folder / f"{hashlib.sha256(str(files[0].resolve().parent).encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(place.read_text())
    except (OSError, ValueError):
        known = {}
    now: dict[str, list[Any]] = {}
    for path in files:
        stat = path.stat()
        key, state = str(path.resolve()), [stat.st_size, stat.st_mtime_ns]
        before = known.get(key)
        now[key] = before if before and before[:2] == state else [*state, obtain.sha256_of(path)]
    if any(known.get(key) != value for key, value in now.items()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(place) as out:
                out.write(json.dumps(known | now).encode())
        except OSError as error:
            logger.info("sums of %s are not kept: %s", files[0].parent, one_line(error))
    return hashlib.sha256("".join(value[2] for value in now.values()).encode()).hexdigest()
