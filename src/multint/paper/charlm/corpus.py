"""How does text become symbol numbers, cached on disk?

A corpus of ``corpora``, or any file of the user's, is written once as three arrays into a folder of the cache. ``Alphabet`` alone
turns text into numbers and back, so a trained model needs no corpus to write text.
"""

import codecs
import dataclasses
import hashlib
import io
import platform
import re
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint import __version__
from multint.paper import obtain, prepared
from multint.paper.charlm.corpora import CORPORA, PYTHON_DOCS, CharSource
from multint.paper.obtain import CHUNK, DataError, Where, one_line
from multint.publish import replacing

FORMAT = 2  # of the prepared cache; a cache of another format is prepared again
SPLITS = ("train", "valid", "test")
SHORTEST = 40  # symbols: below this a 90/5/5 cut leaves a part with nothing to predict

Tokens = NDArray[Any]


@dataclass(frozen=True)
class Alphabet:
    """The symbols of a model: ``symbols[i]`` is the character numbered i, or chr(byte) where symbols are bytes."""

    symbols: tuple[str, ...]
    as_bytes: bool = False

    def encode(self, text: str) -> NDArray[np.int64]:
        """Symbol numbers of a text. A character without a symbol is a DataError that names it."""
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        for place, character in enumerate(text):
            if not all(symbol in number for symbol in self._spelt(character)):
                known = repr("".join(self.symbols)) if len(self.symbols) <= 60 else f"{len(self.symbols)} others"
                raise DataError(f"there is no symbol for {character!r} (place {place} of the text); the model knows {known}")
        return np.array([number[symbol] for symbol in self._spelt(text)], dtype=np.int64)

    def decode(self, ids: Any) -> str:
        """Text of symbol numbers in an array, a tensor on any device or a list; bytes that are not UTF-8 show as U+FFFD."""
        numbers = ids.flatten().tolist() if hasattr(ids, "flatten") else ids
        text = "".join(self.symbols[i] for i in numbers)
        return text.encode("latin-1").decode("utf-8", "replace") if self.as_bytes else text

    def decoded(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of symbols as they arrive. Where symbols are bytes, a character follows its last byte."""
        if not self.as_bytes:
            yield from (self.symbols[i] for i in ids)
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(self.symbols[i].encode("latin-1"))
        yield decoder.decode(b"", final=True)

    def _spelt(self, text: str) -> str:
        return text.encode("utf-8", "surrogatepass").decode("latin-1") if self.as_bytes else text


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus, an ``experiment.Dataset``: three memory-mapped arrays of symbol numbers.

    ``sha256`` is of the content of its files, one after the other; ``own`` marks a file of the user's.
    """

    name: str
    symbols: tuple[str, ...]
    train: Tokens
    valid: Tokens
    test: Tokens
    sha256: str
    stands_for: str | None
    detail: str
    as_bytes: bool = False
    own: bool = False
    folder: Path | None = None

    @property
    def alphabet(self) -> Alphabet:
        return Alphabet(self.symbols, self.as_bytes)

    @property
    def form(self) -> str:
        """The user's choice between characters and bytes; a named corpus leaves none."""
        return "bytes" if self.own and self.as_bytes else ""

    def __str__(self) -> str:
        sizes = " / ".join(f"{len(part):,}" for part in (self.train, self.valid, self.test))
        stands = f" (stands for {self.stands_for})" if self.stands_for else ""
        unit = "bytes" if self.as_bytes else "characters"
        return f"{self.name}{stands}: {sizes} {unit}, {len(self.symbols)} symbols, sha256 {self.sha256}"


# ---- from a name or a path to a corpus ----


def prepare(name: Where, data: Where | None = None) -> Corpus:
    """A corpus by name, or the characters of any text file by path; prepared now if it is not in the cache. Downloads nothing."""
    return _ready(_raw(name, data), data)


def prepare_text(path: Where, data: Where | None = None, as_bytes: bool = False) -> Corpus:
    """Any file as a corpus, cut 90/5/5 in order: the characters of UTF-8 text, or bytes. May be compressed."""
    return _ready(_text(Path(path), as_bytes), data)


class Corpora:
    """The corpora of character models as an ``experiment.Shelf``."""

    def names(self) -> Sequence[str]:
        return tuple(CORPORA)

    def listing(self, data: Where | None = None) -> Sequence[str]:
        """One line for each corpus: whether it is here, its size, its licence, what it is."""
        return [_described(source, data) for source in CORPORA.values()]

    def get(self, name: Where, data: Where | None = None) -> Corpus:
        """As ``prepare``, but files that are missing are downloaded."""
        return _ready(_raw(name, data, download=True), data)

    def verify(self, name: Where, data: Where | None = None) -> Corpus:
        """As ``prepare``, but cached arrays are read completely and compared with their sums; altered ones are prepared again."""
        return _ready(_raw(name, data), data, check_sums=True)


SHELF = Corpora()


def _described(source: CharSource, data: Where | None) -> str:
    here = all(obtain.local(source, file, data) for file in source.files)
    state = "prepared" if prepared.there(source.name, data) else "here" if here else "absent"
    size = f"{sum(source.counts):,} symbols" if source.counts else "about 5,000,000 symbols"
    stands = f"stands for {source.stands_for}: " if source.stands_for else ""
    return f"{source.name:12} {state:9} {size:25} {stands}{source.detail}. {source.licence}."


@dataclass(frozen=True)
class Raw:
    """A corpus before it is prepared.

    ``key`` names its folder in the cache; ``parts`` opens the content of its one or three parts in order.
    """

    key: str
    source: CharSource
    parts: Callable[[], list[Iterator[bytes]]]
    own: bool = False


def _raw(name: Where, data: Where | None, download: bool = False) -> Raw:
    if isinstance(name, str) and name in CORPORA:
        return _python_docs() if CORPORA[name] is PYTHON_DOCS else _named(CORPORA[name], data, download)
    if Path(name).exists():
        return _text(Path(name))
    raise DataError(f"unknown corpus {str(name)!r}, and no such file: known are {', '.join(CORPORA)}")


def _named(source: CharSource, data: Where | None, download: bool) -> Raw:
    stand_ins = [other.name for other in CORPORA.values() if other.stands_for == source.name]

    def parts() -> list[Iterator[bytes]]:
        if download:
            obtain.fetch(source, data, stand_ins)
        copies = obtain.copies(source, data, stand_ins)
        return [obtain.verified(source, file, copy) for file, copy in zip(source.files, copies, strict=True)]

    return Raw(source.name, source, parts)


def _python_docs() -> Raw:
    text = python_docs()
    version = f"{platform.python_implementation()} {platform.python_version()}"
    source = dataclasses.replace(PYTHON_DOCS, detail=f"{PYTHON_DOCS.detail} of {version}")
    return Raw(f"{source.name}-{hashlib.sha256(text).hexdigest()[:16]}", source, lambda: [iter([text])])


def _text(path: Path, as_bytes: bool = False) -> Raw:
    try:
        facts = path.stat()
    except OSError as error:
        raise DataError(f"no such file: {path}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{path} is not a file")
    mark = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}|{as_bytes}"
    key = re.sub(r"[^\w.-]", "_", path.name)[:60] + "-" + hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    source = CharSource(path.name, "", (), "", "", f"the file {path.name}", as_bytes=as_bytes)
    return Raw(key, source, lambda: [obtain.chunks(path, path.stem)], own=True)


def python_docs() -> bytes:
    """The text inside Python itself: pydoc's help topics, then the top-level modules of the standard library by name."""
    try:
        from pydoc_data.topics import topics

        folder = Path(sysconfig.get_paths()["stdlib"])
        # generated modules with the build's own paths are not in stdlib_module_names
        modules = [path for path in sorted(folder.glob("*.py")) if path.stem in sys.stdlib_module_names]
        parts = [topics[topic].encode() for topic in sorted(topics)] + [path.read_bytes() for path in modules]
    except (ImportError, OSError) as error:
        raise DataError(f"python-docs: this Python has no documentation inside ({one_line(error)}); name another corpus") from error
    if not modules:
        raise DataError(f"python-docs: no modules in {folder}; name another corpus")
    return b"\n".join(parts)


# ---- the cache ----


def _ready(raw: Raw, data: Where | None, check_sums: bool = False) -> Corpus:
    """The cached arrays of a corpus. They are prepared if missing, and prepared again, with a warning, if damaged."""

    def reading(folder: Path, check: bool) -> Corpus:
        return read(folder, raw.own, check)

    return prepared.ready(raw.key, data, reading, lambda work: _write(work, raw), check_sums)


def read(folder: Path, own: bool = False, check_sums: bool = False) -> Corpus:
    """Prepared arrays as a corpus; DataError if they are damaged."""

    def corpus(note: Mapping[str, Any]) -> Corpus:
        facts: dict[str, Any] = {field: note[field] for field in ("name", "sha256", "stands_for", "detail", "as_bytes")}
        facts |= {split: prepared.mapped(folder / f"{split}.npy", note["arrays"][split], check_sums) for split in SPLITS}
        return Corpus(symbols=tuple(note["symbols"]), own=own, folder=folder, **facts)

    return prepared.described(folder, FORMAT, corpus)


# ---- preparing ----


def _write(work: Path, raw: Raw) -> dict[str, Any]:
    """Two passes over a verified copy of the raw content: which symbols occur, then their numbers."""
    source, spool, digest = raw.source, work / "raw", hashlib.sha256()
    sizes = [_copy(part, spool, digest, source.trim) for part in raw.parts()]
    if sum(sizes) == 0:
        raise DataError(f"{source.name} is empty")
    seen = np.zeros(0x110000, dtype=bool)
    total = 0
    for codes in _codes(spool, source):
        seen[codes] = True
        total += len(codes)
    counts = sizes if len(sizes) == len(SPLITS) else _cut(total, source)
    assert sum(counts) == total, "a corpus of three files must be ASCII or bytes"
    symbols = np.flatnonzero(seen)
    if len(symbols) > 0x10000:
        raise DataError(f"{source.name} has {len(symbols):,} different characters, more than 65,536; take it as bytes")
    dtype = np.dtype(np.uint8 if len(symbols) <= 0x100 else np.uint16)
    number = np.zeros(0x110000, dtype=dtype)
    number[symbols] = np.arange(len(symbols))
    arrays = _write_arrays(work, (number[codes] for codes in _codes(spool, source)), counts, dtype)
    spool.unlink()
    if source.counts:  # the files were verified, so only this code can be wrong
        assert (tuple(counts), len(symbols)) == (source.counts, source.symbols), (counts, len(symbols))
    return {
        "format": FORMAT,
        "name": source.name,
        "created_by": f"multint {__version__}",
        "detail": source.detail,
        "stands_for": source.stands_for,
        "as_bytes": source.as_bytes,
        "sha256": digest.hexdigest(),
        "symbols": [chr(code) for code in symbols],
        "arrays": arrays,
    }


def _copy(part: Iterable[bytes], spool: Path, digest: Any, trim: str | None) -> int:
    """Append the content of a part to the spool, with its lines trimmed as ``trim`` says; the number of bytes written."""

    def summed() -> Iterator[bytes]:
        for chunk in part:
            digest.update(chunk)
            yield chunk

    with spool.open("ab") as out:
        return sum(out.write(chunk) for chunk in (trimmed(summed(), trim) if trim else summed()))


def trimmed(part: Iterable[bytes], trim: str) -> Iterator[bytes]:
    """Lines without one leading space and, where ``trim`` is "both", without one trailing space."""
    rest = b""
    for chunk in part:
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        yield _trim(lines + newline, trim)
    yield _trim(rest, trim)


def _trim(lines: bytes, trim: str) -> bytes:
    lines = (b"\n" + lines).replace(b"\n ", b"\n")[1:]
    return lines.replace(b" \n", b"\n") if trim == "both" else lines


def _codes(spool: Path, source: CharSource) -> Iterator[NDArray[Any]]:
    """The bytes or code points of the spool, a piece at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with spool.open("rb") as stream:
        while True:
            chunk = stream.read(CHUNK)
            waiting = len(decoder.getstate()[0])
            if source.as_bytes or (chunk.isascii() and not waiting):
                yield np.frombuffer(chunk, dtype=np.uint8)
            else:
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    place = done - waiting + error.start
                    bad = error.object[error.start]
                    raise DataError(
                        f"{source.name} is not UTF-8 text: byte 0x{bad:02x} at offset {place:,}; take it as bytes instead"
                    ) from error
                yield np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
            done += len(chunk)
            if not chunk:
                return


def _cut(total: int, source: CharSource) -> list[int]:
    """Train, valid, test as 90/5/5 in order."""
    if total < SHORTEST:
        raise DataError(f"{source.name} has {total} symbols; at least {SHORTEST} are needed to cut it 90/5/5")
    return [total - 2 * (total // 20), total // 20, total // 20]


def _write_arrays(work: Path, pieces: Iterator[NDArray[Any]], counts: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Symbol numbers into one .npy file after another."""
    facts: dict[str, Any] = {}
    left = np.zeros(0, dtype)
    for split, count in zip(SPLITS, counts, strict=True):
        path, digest, header = work / f"{split}.npy", hashlib.sha256(), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": (count,)})
        with replacing(path) as out:
            out.write(header.getvalue())
            digest.update(header.getvalue())
            missing = count
            while missing:
                piece, left = left[:missing], left[missing:]
                out.write(piece.data)
                digest.update(piece.data)
                missing -= len(piece)
                if missing:
                    left = next(pieces)
        facts[split] = {"shape": [count], "dtype": dtype.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
    return facts
