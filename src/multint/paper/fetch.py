"""Where is the data, and is it whole?

download → verify → unpack → prepared cache; each step is skipped when done. Whatever has a final name is complete: files are
written under a temporary name beside it, checked, flushed to disk and renamed. What goes wrong is one ``DataError`` of one line.
"""

import bz2
import codecs
import contextlib
import gzip
import hashlib
import json
import logging
import os
import platform
import posixpath
import re
import secrets
import shutil
import stat
import sys
import sysconfig
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from lzma import open as xz_open
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint import __version__
from multint.locks import locked
from multint.paper.sources import CORPORA, PYTHON_DOCS, Address, File, Source

logger = logging.getLogger("multint")

CHUNK = 1 << 20  # bytes held at a time
FORMAT = 1  # of the prepared cache; another number is prepared anew
SPLITS = ("train", "valid", "test")
SHORTEST = 40  # characters: below this a 90/5/5 cut leaves a part with nothing to predict
SWELL = 1000  # a compressed file that does not state its size may unpack to this many times its own
PACKED = (".xz", ".gz", ".bz2", ".zip")
TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
BROKEN = (OSError, EOFError, LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)

Where = str | os.PathLike[str]
Tokens = NDArray[Any]
Stream = Any  # what has read or write: the standard library's own kinds have no common type
Job = Callable[[], list[Iterator[bytes]]]  # opens the raw content of a corpus's parts, in order


class DataError(Exception):
    """Data is missing, damaged or too small; the message is one line that says which, where, and what to do."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus: three memory-mapped arrays of symbol numbers.

    ``symbols[i]`` is the character numbered i, or chr(byte) where symbols are bytes. ``sha256`` is of the raw files one after the
    other, ``stands_for`` the corpus of the paper this one takes the place of.
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
    folder: Path | None = None

    def __str__(self) -> str:
        sizes = " / ".join(f"{len(part):,}" for part in (self.train, self.valid, self.test))
        stands = f" (stands for {self.stands_for})" if self.stands_for else ""
        unit = "bytes" if self.as_bytes else "characters"
        return f"{self.name}{stands}: {sizes} {unit}, {len(self.symbols)} symbols, sha256 {self.sha256}"

    def decode(self, ids: Any) -> str:
        """Text of symbol numbers in an array, a tensor on any device or a list; bytes that are not UTF-8 show as U+FFFD."""
        numbers = ids.flatten().tolist() if hasattr(ids, "flatten") else ids
        text = "".join(self.symbols[i] for i in numbers)
        return text.encode("latin-1").decode("utf-8", "replace") if self.as_bytes else text

    def decoded(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of symbols as they come; of bytes, a character when it is whole."""
        if not self.as_bytes:
            yield from (self.symbols[i] for i in ids)
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(self.symbols[i].encode("latin-1"))
        yield decoder.decode(b"", final=True)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Symbol numbers of a text; a character the corpus does not have is a DataError that names it."""
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        for place, character in enumerate(text):
            if not all(symbol in number for symbol in self._spelt(character)):
                others = repr("".join(self.symbols)) if len(self.symbols) <= 60 else f"{len(self.symbols)} others"
                raise DataError(f"{self.name} has no symbol for {character!r} (place {place} of the text); it knows {others}")
        return np.array([number[symbol] for symbol in self._spelt(text)], dtype=np.int64)

    def _spelt(self, text: str) -> str:
        return text.encode("utf-8", "surrogatepass").decode("latin-1") if self.as_bytes else text


# ---------------------------------------------------------------------------------------------------------------- folders


def user_folder() -> Path:
    """The user's own folder for this library's data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multint"


def data_folder(data: Where | None = None) -> Path:
    """The folder of corpora: as given, else MULTINT_DATA, else the user's own."""
    return Path(data or os.environ.get("MULTINT_DATA") or user_folder()).expanduser()


def cache_folder(data: Where | None = None) -> Path:
    """Where prepared arrays are written: MULTINT_CACHE, else beside the data, else the user's own."""
    chosen = os.environ.get("MULTINT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    beside = data_folder(data) / "prepared"
    return beside if _writable(beside) else user_folder() / "prepared"


def _writable(folder: Path) -> bool:
    """Whether folder, which may be yet to be made, takes new files. Root may write anywhere, so a folder's own mode counts too."""
    there = next((f for f in (folder, *folder.absolute().parents) if f.exists()), None)
    return there is not None and there.is_dir() and bool(there.stat().st_mode & 0o222) and os.access(there, os.W_OK | os.X_OK)


def _shelves(data: Where | None) -> list[Path]:
    """Folders that may hold corpora: the data folder, then the user's own, where downloads go if the first is read-only."""
    return list(dict.fromkeys((data_folder(data), user_folder())))


# ------------------------------------------------------------------------------------------------------------ local copies


@dataclass(frozen=True)
class Copy:
    """A local copy of a File: where it lies, which member of an archive it is, and whether only its first bytes are meant."""

    path: Path
    member: str
    head: bool = False


def known(name: str) -> Source:
    """The source of a corpus, by name."""
    if name not in CORPORA:
        raise DataError(f"unknown corpus {name!r}: known are {', '.join(CORPORA)}; or give the path of a text file")
    return CORPORA[name]


def local(file: File, folder: str, data: Where | None = None) -> Copy | None:
    """The first local copy of a file: plain or compressed, in its corpus's folder or directly in the data folder."""
    return next((copy for copy in _possible(file, folder, data) if copy.path.is_file()), None)


def _possible(file: File, folder: str, data: Where | None) -> Iterator[Copy]:
    names = [(file.name, False), *((longer, True) for longer in file.head_of)]
    members = [(address.name, address.member) for address in file.addresses if address.member]
    for place in (place for shelf in _shelves(data) for place in (shelf / folder, shelf)):
        for name, head in names:
            yield from (Copy(place / (name + suffix), name, head) for suffix in ("", *PACKED))
        for archive, member in members:
            yield Copy(place / archive, member, bool(file.head_of))
            yield Copy(place / member, file.name, bool(file.head_of))  # unpacked by hand


def copies(name: str, data: Where | None = None) -> list[Copy]:
    """Local copies of all files of a corpus; DataError says what is missing, where it goes and what would fetch it."""
    source = known(name)
    found = [(file, local(file, source.folder, data)) for file in source.files]
    for file, copy in found:
        if copy is None:
            place = data_folder(data) / source.folder / file.name
            others = "".join(
                f", or take {other.name}, which stands for it" for other in CORPORA.values() if other.stands_for == name
            )
            packed = ", ".join(PACKED)
            raise DataError(f"{name}: no {file.name} at {place} (or with {packed}); fetch it: multint data get {name}{others}")
    return [copy for _, copy in found if copy]


# --------------------------------------------------------------------------------------------------------- unpack, verify


def chunks(path: Path, member: str | None = None, limit: int | None = None, head: bool = False) -> Iterator[bytes]:
    """The raw content of a file, unpacked as its name says, a piece at a time.

    An archive that names files outside its folder is refused, and so is content beyond ``limit`` bytes, unless only the ``head``
    of that size is asked for. Nothing is written under a name found in an archive.
    """
    packed = path.name.endswith((*PACKED, *TARS))
    if limit is None and packed:
        limit = SWELL * path.stat().st_size
    left = sys.maxsize if limit is None else limit
    try:
        with _opened(path, member or re.sub(r"\.\w+$", "", path.name), None if head else left) as stream:
            while left > 0 and (chunk := stream.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
            if not head and left == 0 and stream.read(1):
                raise _refused(path, f"unpacks past its stated {limit:,} bytes" if packed else f"is longer than {limit:,} bytes")
    except BROKEN as error:
        truncated = isinstance(error, EOFError) or "unexpected end" in str(error)
        fault = "is cut short" if truncated else f"cannot be read ({_line(error)})"
        raise DataError(f"{path} {fault}; delete it and get it again") from error


@contextlib.contextmanager
def _opened(path: Path, member: str, most: int | None) -> Iterator[Stream]:
    if path.name.endswith(TARS):
        with tarfile.open(path, "r|*") as tar:
            yield _tar_member(tar, path, member)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            info = _zip_member(archive, path, member)
            if most is not None and info.file_size > most:
                raise _refused(path, f"states {info.file_size:,} bytes for {info.filename}, more than {most:,}")
            with archive.open(info) as stream:
                yield stream
    else:
        unpack: dict[str, Callable[[Path], Any]] = {".xz": xz_open, ".gz": gzip.open, ".bz2": bz2.open}
        with unpack[path.suffix](path) if path.suffix in unpack else path.open("rb") as stream:
            yield stream


def _zip_member(archive: zipfile.ZipFile, path: Path, member: str) -> zipfile.ZipInfo:
    files = [info for info in archive.infolist() if _inside(info.filename, path) and not info.is_dir()]
    named = [info for info in files if posixpath.basename(info.filename) == posixpath.basename(member)]
    if len(named or files) != 1:
        raise DataError(f"{path} holds {len(files)} files and no single {member}")
    return (named or files)[0]


def _tar_member(tar: tarfile.TarFile, path: Path, member: str) -> Stream:
    for info in tar:
        if _inside(info.name, path) and info.isreg() and posixpath.normpath(info.name) == member:
            return tar.extractfile(info)
    raise DataError(f"{path} holds no {member}")


def _inside(name: str, path: Path) -> bool:
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise _refused(path, f"names a file outside its folder ({name})")
    return True


def _refused(path: Path, why: str) -> DataError:
    return DataError(f"{path} {why}: refused")


def verified(file: File, copy: Copy, name: str) -> Iterator[bytes]:
    """The content of a local copy; ends in a DataError if it was not the File's."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks(copy.path, copy.member, file.bytes, copy.head):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    again = f"delete it and run: multint data get {name}"
    if size == 0:
        raise DataError(f"{copy.path} is empty; {again}")
    if size != file.bytes:
        raise DataError(f"{copy.path} holds {size:,} bytes of {file.name}'s {file.bytes:,}; {again}")
    if digest.hexdigest() != file.sha256:
        raise DataError(f"{copy.path} is not {file.name}: expected sha256 {file.sha256}, got {digest.hexdigest()}; {again}")


# ---------------------------------------------------------------------------------------------------------------- download


def fetch(name: str, data: Where | None = None, progress: bool = True) -> list[Path]:
    """Download what a corpus lacks (an interrupted download is taken up where it stopped) and give the paths of its files."""
    source = known(name)
    for file in source.files:
        if local(file, source.folder, data) is None:
            _download_any(source, file, data, progress)
    return list(dict.fromkeys(copy.path for copy in copies(name, data)))


def _download_any(source: Source, file: File, data: Where | None, progress: bool) -> Path:
    """The file from the first of its addresses that answers."""
    shelf = next((s for s in _shelves(data) if _writable(s)), None)
    if shelf is None:
        raise DataError(f"{source.name}: {data_folder(data)} is read-only; give another data folder (--data or MULTINT_DATA)")
    faults = []
    for address in file.addresses:
        try:
            return download(address, file, shelf / source.folder, source.name, progress)
        except DataError as error:  # noqa: PERF203 - a handful of addresses
            faults.append(str(error))
    place = shelf / source.folder / file.addresses[0].name
    raise DataError(f"{source.name}: could not fetch {file.name} ({'; '.join(faults)}); get it yourself and put it at {place}")


def download(address: Address, file: File, folder: Path, name: str, progress: bool = True) -> Path:
    """One address to one verified file. What has arrived is kept as ``partial-NAME`` until it is whole and right."""
    final, part = folder / address.name, folder / f"partial-{address.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{address.name}.lock"):
            if not final.exists():
                resumed = part.exists() and part.stat().st_size > 0
                try:
                    _receive(address, part, progress)
                    _check(address, file, part, name)
                except DataError:
                    if part.exists() or not resumed:
                        raise
                    # what was there before may be what was wrong: once more from the beginning
                    _receive(address, part, progress)
                    _check(address, file, part, name)
                _publish(part, final)
    except OSError as error:
        raise DataError(f"{address.url}: {_line(error)}") from error
    return final


def _receive(address: Address, part: Path, progress: bool) -> None:
    """Append to ``part`` what is still to come; it stays if the line breaks and goes if it cannot be right."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("downloads need pooch: pip install 'multint[paper]'") from error
    with part.open("ab") as out:
        if address.bytes is not None and out.tell() > address.bytes:
            out.truncate(0)
        have = out.seek(0, os.SEEK_END)
        if have == address.bytes:
            return

        def answered(response: Any, *_: Any, **__: Any) -> None:
            if response.status_code == 200:  # all of it, though only the rest was asked for
                out.truncate(0)
                sink.have = 0

        sink = _Sink(out, address, have, progress and sys.stderr.isatty())
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            pooch.HTTPDownloader(chunk_size=1 << 16, headers=headers, hooks={"response": answered})(address.url, sink, None)
        except (OSError, ValueError) as error:  # requests' own errors are OSErrors
            impossible = getattr(getattr(error, "response", None), "status_code", None) == 416  # the range asked for
            if impossible or isinstance(error, _TooMuch) or out.tell() == 0:
                part.unlink()
            raise DataError(f"{address.url}: {_line(error)}") from error
        finally:
            if sink.show:
                sink.tell("\n")
        os.fsync(out.fileno())


class _TooMuch(ValueError):
    """More arrives than was announced."""


class _Sink:
    """Takes what arrives, shows how much, and refuses more than was announced."""

    def __init__(self, out: Stream, address: Address, have: int, show: bool) -> None:
        self.out, self.address, self.have, self.show, self.shown = out, address, have, show, 0.0

    def write(self, chunk: bytes) -> None:
        self.have += len(chunk)
        if self.address.bytes is not None and self.have > self.address.bytes:
            raise _TooMuch(f"sends more than the {self.address.bytes:,} bytes of {self.address.name}")
        self.out.write(chunk)
        if self.show and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            self.tell()

    def flush(self) -> None:
        self.out.flush()

    def tell(self, end: str = "") -> None:
        total = f" of {self.address.bytes / 1e6:.1f}" if self.address.bytes else ""
        print(f"\r{self.address.name}: {self.have / 1e6:.1f}{total} MB", end=end, file=sys.stderr, flush=True)


def _check(address: Address, file: File, part: Path, name: str) -> None:
    """Is a finished download what was announced? A wrong one is removed, a short one kept to be continued."""
    size = part.stat().st_size
    if address.bytes is not None and size < address.bytes:
        raise DataError(f"{address.url}: {size:,} of {address.bytes:,} bytes came; run again to continue")
    try:
        if address.sha256 is None:
            for _ in verified(file, Copy(part, address.member or file.name, bool(file.head_of)), name):
                pass
        elif (got := sha256_of(part)) != address.sha256:
            raise DataError(f"{address.url}: wrong content: expected sha256 {address.sha256}, got {got}")
    except DataError:
        part.unlink()
        raise


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _publish(temporary: Path, final: Path) -> None:
    """Give a finished file or folder its final name, in a way that survives a power cut."""
    os.replace(temporary, final)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _line(error: BaseException) -> str:
    """An error in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


# ----------------------------------------------------------------------------------------------------------------- prepare


def prepare(name: Where, data: Where | None = None, as_bytes: bool = False, download: bool = False) -> Corpus:
    """A corpus by name, or any text file by path, ready to be read; prepared now if it has not been.

    ``as_bytes`` is for files: named corpora say themselves what their symbols are. With ``download`` missing files are fetched.
    """
    return _prepare(name, data, as_bytes, download)


def prepare_text(path: Where, data: Where | None = None, as_bytes: bool = False) -> Corpus:
    """Any file as a corpus, cut 90/5/5 in order: the characters of UTF-8 text, or bytes. May be compressed."""
    return _ready(*_text(Path(path), as_bytes), data)


def verify(name: Where, data: Where | None = None, as_bytes: bool = False) -> Corpus:
    """As ``prepare``, but arrays prepared earlier are read through and compared with their sums; altered ones are made anew."""
    return _prepare(name, data, as_bytes, whole=True)


def listing(data: Where | None = None) -> list[str]:
    """One line for each corpus: whether it is here, its size, its licence, what it is."""
    lines = []
    for source in CORPORA.values():
        here = all(local(file, source.folder, data) for file in source.files)
        ready = any(
            (folder / source.name / "corpus.json").is_file() for folder in (cache_folder(data), data_folder(data) / "prepared")
        )
        state = "prepared" if ready else "here" if here else "absent"
        size = f"{sum(source.counts):,} symbols" if source.counts else "about 5,000,000 symbols"
        stands = f"stands for {source.stands_for}: " if source.stands_for else ""
        lines.append(f"{source.name:12} {state:9} {size:25} {stands}{source.detail}. {source.licence}.")
    return lines


def _prepare(name: Where, data: Where | None, as_bytes: bool, download: bool = False, whole: bool = False) -> Corpus:
    if isinstance(name, str) and name in CORPORA:
        return _ready(*_named(CORPORA[name], data, download), data, whole)
    if Path(name).exists():
        return _ready(*_text(Path(name), as_bytes), data, whole)
    raise DataError(f"unknown corpus {str(name)!r}, and no such file: known are {', '.join(CORPORA)}")


@dataclass(frozen=True)
class Origin:
    """What is known of a corpus before its symbols are counted."""

    name: str
    detail: str
    as_bytes: bool
    stands_for: str | None = None
    source: Source | None = None


def _named(source: Source, data: Where | None, download: bool) -> tuple[str, Job, Origin]:
    origin = Origin(source.name, source.detail, source.as_bytes, source.stands_for, source)
    if source is PYTHON_DOCS:
        text = python_docs()
        version = f"{platform.python_implementation()} {platform.python_version()}"
        origin = Origin(source.name, f"{source.detail} of {version}", source.as_bytes, source.stands_for, source)
        return f"{source.name}-{hashlib.sha256(text).hexdigest()[:16]}", lambda: [iter([text])], origin

    def job() -> list[Iterator[bytes]]:
        if download:
            fetch(source.name, data)
        found = zip(source.files, copies(source.name, data), strict=True)
        return [verified(file, copy, source.name) for file, copy in found]

    return source.name, job, origin


def _text(path: Path, as_bytes: bool) -> tuple[str, Job, Origin]:
    try:
        facts = path.stat()
    except OSError as error:
        raise DataError(f"no such file: {path}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{path} is not a file")
    mark = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}|{as_bytes}"
    key = re.sub(r"[^\w.-]", "_", path.name)[:60] + "-" + hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return key, lambda: [chunks(path)], Origin(path.name, f"the file {path.name}", as_bytes)


def python_docs() -> bytes:
    """The text inside Python itself: pydoc's help topics, then the top-level modules of the standard library by name."""
    try:
        from pydoc_data.topics import topics

        folder = Path(sysconfig.get_paths()["stdlib"])
        # generated modules with the build's own paths are not in stdlib_module_names
        modules = [path for path in sorted(folder.glob("*.py")) if path.stem in sys.stdlib_module_names]
        parts = [topics[topic].encode() for topic in sorted(topics)] + [path.read_bytes() for path in modules]
    except (ImportError, OSError) as error:
        raise DataError(f"python-docs: this Python has no documentation inside ({_line(error)}); name another corpus") from error
    if not modules:
        raise DataError(f"python-docs: no modules in {folder}; name another corpus")
    return b"\n".join(parts)


def _ready(key: str, job: Job, origin: Origin, data: Where | None, whole: bool = False) -> Corpus:
    """The prepared cache of a key: read if it is sound, made if it is not there, made anew with a message if it is damaged."""
    cache = cache_folder(data)
    for folder in dict.fromkeys((cache / key, data_folder(data) / "prepared" / key)):
        if (folder / "corpus.json").is_file():
            try:
                return read(folder, whole)
            except DataError as error:
                logger.warning("%s; preparing it anew", error)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{key}.lock") as alone:
            with contextlib.suppress(DataError):
                return read(cache / key, whole)  # another process was faster
            for left in cache.glob(f".{key}~*.partial") if alone else ():
                shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
            _build(cache, key, job, origin)
            return read(cache / key)
    except OSError as error:
        raise DataError(
            f"{origin.name}: cannot write the prepared arrays ({_line(error)}); set MULTINT_CACHE to another folder"
        ) from error


def read(folder: Path, whole: bool = False) -> Corpus:
    """A prepared corpus from its folder; DataError if a file has not the form and size, or if ``whole`` the sum, it was given."""
    try:
        note = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        if note["format"] != FORMAT:
            raise ValueError(f"format {note['format']}, now {FORMAT}")
        facts: dict[str, Any] = {field: note[field] for field in ("name", "sha256", "stands_for", "detail", "as_bytes")}
        facts |= {split: _mapped(folder / f"{split}.npy", note["arrays"][split], whole) for split in SPLITS}
        return Corpus(symbols=tuple(note["symbols"]), folder=folder, **facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is damaged ({_line(error)})") from error


def _sound(folder: Path) -> bool:
    with contextlib.suppress(DataError):
        read(folder, whole=True)
        return True
    return False


def _mapped(path: Path, facts: dict[str, Any], whole: bool) -> Tokens:
    size = path.stat().st_size
    if size != facts["bytes"]:
        raise ValueError(f"{path.name} has {size:,} bytes, not {facts['bytes']:,}")
    if whole and sha256_of(path) != facts["sha256"]:
        raise ValueError(f"{path.name} was altered")
    array: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.shape != (facts["length"],) or array.dtype.name != facts["dtype"]:
        raise ValueError(f"{path.name} is {array.dtype.name} {array.shape}, not {facts['dtype']} ({facts['length']},)")
    return array


def _build(cache: Path, key: str, job: Job, origin: Origin) -> None:
    """Write the arrays and, last, their description into a folder of their own, then give it its name."""
    final, work = cache / key, cache / f".{key}~{os.getpid()}-{secrets.token_hex(4)}.partial"
    old = work.with_name(work.name.replace(".partial", "-old.partial"))
    logger.info("%s: preparing in %s", origin.name, final)
    work.mkdir()
    try:
        note = _write(work, job, origin)
        _flush(work / "corpus.json", json.dumps(note, indent=1).encode())
        if _sound(final):  # without locks another process may have been faster
            return
        if final.exists():
            os.replace(final, old)  # open maps of it stay valid
        try:
            _publish(work, final)
        except OSError:
            if not _sound(final):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write(work: Path, job: Job, origin: Origin) -> dict[str, Any]:
    """Two passes over a verified copy of the raw content: which symbols there are, then their numbers."""
    spool = work / "raw"
    trim = origin.source.trim if origin.source else None
    digest = hashlib.sha256()
    sizes = [_copy(part, spool, digest, trim) for part in job()]
    if sum(sizes) == 0:
        raise DataError(f"{origin.name} is empty")
    seen = np.zeros(0x110000, dtype=bool)
    total = 0
    for codes in _codes(spool, origin):
        seen[codes] = True
        total += len(codes)
    counts = sizes if len(sizes) == len(SPLITS) else _cut(total, origin)
    assert sum(counts) == total, "a corpus of three files must be ASCII or bytes"
    symbols = np.flatnonzero(seen)
    if len(symbols) > 0x10000:
        raise DataError(f"{origin.name} has {len(symbols):,} different characters, more than 65,536; take it as bytes")
    dtype = np.dtype(np.uint8 if len(symbols) <= 0x100 else np.uint16)
    number = np.zeros(0x110000, dtype=dtype)
    number[symbols] = np.arange(len(symbols))
    pieces = (number[codes] for codes in _codes(spool, origin))
    arrays = _write_arrays(work, pieces, counts, dtype)
    spool.unlink()
    if origin.source and origin.source.counts:  # the files were the right ones, so only this code can be wrong
        assert (tuple(counts), len(symbols)) == (origin.source.counts, origin.source.symbols), (counts, len(symbols))
    return {
        "format": FORMAT,
        "name": origin.name,
        "created_by": f"multint {__version__}",
        "detail": origin.detail,
        "stands_for": origin.stands_for,
        "as_bytes": origin.as_bytes,
        "sha256": digest.hexdigest(),
        "symbols": [chr(code) for code in symbols],
        "arrays": arrays,
    }


def _copy(part: Iterable[bytes], spool: Path, digest: Any, trim: str | None) -> int:
    """Append a part's content to the spool, its lines trimmed if so asked; the bytes written."""

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


def _codes(spool: Path, origin: Origin) -> Iterator[NDArray[Any]]:
    """The bytes or code points of the spool, a piece at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with spool.open("rb") as stream:
        while True:
            chunk = stream.read(CHUNK)
            waiting = len(decoder.getstate()[0])
            if origin.as_bytes or (chunk.isascii() and not waiting):
                yield np.frombuffer(chunk, dtype=np.uint8)
            else:
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    place = done - waiting + error.start
                    bad = error.object[error.start]
                    raise DataError(
                        f"{origin.name} is not UTF-8 text: byte 0x{bad:02x} at offset {place:,}; take it as bytes instead"
                    ) from error
                yield np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
            done += len(chunk)
            if not chunk:
                return


def _cut(total: int, origin: Origin) -> list[int]:
    """Train, valid, test as 90/5/5 in order."""
    if total < SHORTEST:
        raise DataError(f"{origin.name} has {total} symbols; at least {SHORTEST} are needed to cut it 90/5/5")
    return [total - 2 * (total // 20), total // 20, total // 20]


def _write_arrays(work: Path, pieces: Iterator[NDArray[Any]], counts: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Symbol numbers into one .npy file after another."""
    facts: dict[str, Any] = {}
    left = np.zeros(0, dtype)
    for split, count in zip(SPLITS, counts, strict=True):
        path, digest = work / f"{split}.npy", hashlib.sha256()
        with path.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, {"descr": dtype.str, "fortran_order": False, "shape": (count,)})
            out.flush()
            digest.update(path.read_bytes())
            missing = count
            while missing:
                piece, left = left[:missing], left[missing:]
                out.write(piece.data)
                digest.update(piece.data)
                missing -= len(piece)
                if missing:
                    left = next(pieces)
            out.flush()
            os.fsync(out.fileno())
        facts[split] = {"length": count, "dtype": dtype.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
    return facts


def _flush(path: Path, content: bytes) -> None:
    with path.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
