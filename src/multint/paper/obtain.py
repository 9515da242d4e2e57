"""How do the files of a corpus get here, and are they the right ones?

A file without a local copy is downloaded, checked and published. Content is unpacked and verified as it is read. Every failure is a
``DataError`` of one line.
"""

import bz2
import contextlib
import gzip
import hashlib
import os
import posixpath
import re
import sys
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

from multint.locks import locked
from multint.paper.sources import Address, File, Source
from multint.publish import publish

CHUNK = 1 << 20  # bytes in memory at a time
SWELL = 1000  # a compressed file that does not state its size may unpack to this many times its own
PACKED = (".xz", ".gz", ".bz2", ".zip")
TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
BROKEN = (OSError, EOFError, LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)

Where = str | os.PathLike[str]
Stream = Any  # has read or write: the streams of the standard library have no common type


class DataError(Exception):
    """Data is missing, damaged or too small; the message is one line that says which, where, and what to do."""


# ---- folders ----


def user_folder() -> Path:
    """The user's own folder for this library's data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multint"


def data_folder(data: Where | None = None) -> Path:
    """The folder of corpora: as given, else MULTINT_DATA, else the user's own."""
    return Path(data or os.environ.get("MULTINT_DATA") or user_folder()).expanduser()


def cache_folder(data: Where | None = None) -> Path:
    """Where prepared data is written: MULTINT_CACHE, else beside the data, else in the user's own folder."""
    given = os.environ.get("MULTINT_CACHE")
    if given:
        return Path(given).expanduser()
    beside = data_folder(data) / "prepared"
    return beside if _writable(beside) else user_folder() / "prepared"


def _writable(folder: Path) -> bool:
    """Whether a folder, which may not exist yet, takes new files. Root may write anywhere, so the folder's mode counts too."""
    there = next((f for f in (folder, *folder.absolute().parents) if f.exists()), None)
    return there is not None and there.is_dir() and bool(there.stat().st_mode & 0o222) and os.access(there, os.W_OK | os.X_OK)


def _data_folders(data: Where | None) -> list[Path]:
    """Folders that may contain corpora: the data folder, then the user's own, where downloads go if the first is read-only."""
    return list(dict.fromkeys((data_folder(data), user_folder())))


# ---- local copies ----


@dataclass(frozen=True)
class Copy:
    """A local copy of a File.

    ``member`` is the File's name inside a packed file or an archive, and None where it is not packed. ``head`` marks a longer file
    that begins with the File.
    """

    path: Path
    member: str | None = None
    head: bool = False


def local(source: Source, file: File, data: Where | None = None) -> Copy | None:
    """The first local copy of a file: plain or compressed, in its corpus's folder or directly in the data folder."""
    return next((copy for copy in _possible(source, file, data) if copy.path.is_file()), None)


def _possible(source: Source, file: File, data: Where | None) -> Iterator[Copy]:
    names = [(file.name, False), *((longer, True) for longer in file.head_of)]
    for place in (place for top in _data_folders(data) for place in (top / source.folder, top)):
        for name, head in names:
            yield Copy(place / name, None, head)
            yield from (Copy(place / (name + suffix), name, head) for suffix in PACKED)
        for address in file.addresses:
            yield _served(file, address, place / address.name)
            if address.member:
                yield Copy(place / address.member, None, bool(file.head_of))  # unpacked by hand


def _served(file: File, address: Address, path: Path) -> Copy:
    """What an address serves, as a copy of the file."""
    return Copy(path, address.member or (None if address.name == file.name else file.name), bool(file.head_of))


def copies(source: Source, data: Where | None = None, stand_ins: Sequence[str] = ()) -> list[Copy]:
    """Local copies of all files. The error about a missing one offers the corpora in ``stand_ins`` in place of this one."""
    return [_present(source, file, data, stand_ins) for file in source.files]


def _present(source: Source, file: File, data: Where | None, stand_ins: Sequence[str]) -> Copy:
    copy = local(source, file, data)
    if copy is None:
        place = f"{data_folder(data) / source.folder / file.name} (or with {', '.join(PACKED)})"
        way_out = f"fetch it: multint data get {source.name}"
        if not file.addresses:
            way_out = f"it cannot be downloaded, so obtain it yourself ({source.obtain}) and put it there"
        others = "".join(f", or take {name}, which stands for it" for name in stand_ins)
        raise DataError(f"{source.name}: no {file.name} at {place}; {way_out}{others}")
    return copy


# ---- unpack and verify ----


def chunks(path: Path, member: str | None = None, limit: int | None = None, head: bool = False) -> Iterator[bytes]:
    """The content of a file a piece at a time, as it is or, where ``member`` is given, unpacked as the file's name says.

    An archive that names files outside its folder is refused. So is content beyond ``limit`` bytes, unless only a ``head`` of that
    size is wanted. Nothing is written under a name that an archive contains.
    """
    packed = member is not None and path.name.endswith((*PACKED, *TARS))
    if limit is None and packed:
        limit = SWELL * path.stat().st_size
    left = sys.maxsize if limit is None else limit
    try:
        with _opened(path, member if packed else None, None if head else left) as stream:
            while left > 0 and (chunk := stream.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
            if not head and left == 0 and stream.read(1):
                raise _refused(path, f"unpacks past its stated {limit:,} bytes" if packed else f"is longer than {limit:,} bytes")
    except BROKEN as error:
        truncated = isinstance(error, EOFError) or "unexpected end" in str(error)
        fault = "is cut short" if truncated else f"cannot be read ({one_line(error)})"
        raise DataError(f"{path} {fault}; delete it and get it again") from error


@contextlib.contextmanager
def _opened(path: Path, member: str | None, most: int | None) -> Iterator[Stream]:
    if member is None:
        with path.open("rb") as stream:
            yield stream
    elif path.name.endswith(TARS):
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
        with unpack[path.suffix](path) as stream:
            yield stream


def _zip_member(archive: zipfile.ZipFile, path: Path, member: str) -> zipfile.ZipInfo:
    """The member of that path, else the only one of that name, else the only one."""
    files = [info for info in archive.infolist() if _inside(info.filename, path) and not info.is_dir()]
    exact = [info for info in files if info.filename == member]
    same_name = [info for info in files if posixpath.basename(info.filename) == posixpath.basename(member)]
    fitting = exact or same_name or files
    if len(fitting) != 1:
        raise DataError(f"{path} holds {len(files)} files and no single {member}")
    return fitting[0]


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


def verified(source: Source, file: File, copy: Copy) -> Iterator[bytes]:
    """The content of a local copy. If it is not the File's content, a DataError follows the last piece."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks(copy.path, copy.member, file.bytes, copy.head):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    again = f"delete it and run: multint data get {source.name}" if file.addresses else f"put the right one there: {source.obtain}"
    if size == 0:
        raise DataError(f"{copy.path} is empty; {again}")
    if size != file.bytes:
        raise DataError(f"{copy.path} holds {size:,} bytes of {file.name}'s {file.bytes:,}; {again}")
    if digest.hexdigest() != file.sha256:
        raise DataError(f"{copy.path} is not {file.name}: expected sha256 {file.sha256}, got {digest.hexdigest()}; {again}")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# ---- download ----


def fetch(source: Source, data: Where | None = None, stand_ins: Sequence[str] = ()) -> list[Path]:
    """Download the missing files of a corpus, continuing downloads that were interrupted; the paths of all its files."""
    for file in source.files:
        if file.addresses and local(source, file, data) is None:
            _download(source, file, data)
    return list(dict.fromkeys(copy.path for copy in copies(source, data, stand_ins)))


def _download(source: Source, file: File, data: Where | None) -> None:
    """Take the file from the first of its addresses that serves it."""
    top = next((folder for folder in _data_folders(data) if _writable(folder)), None)
    if top is None:
        raise DataError(f"{source.name}: {data_folder(data)} is read-only; give another data folder (--data or MULTINT_DATA)")
    faults = []
    for address in file.addresses:
        try:
            return _download_from(address, source, file, top / source.folder)
        except DataError as error:  # noqa: PERF203 - a handful of addresses
            faults.append(str(error))
    place = top / source.folder / file.addresses[0].name
    raise DataError(f"{source.name}: could not fetch {file.name} ({'; '.join(faults)}); get it yourself and put it at {place}")


def _download_from(address: Address, source: Source, file: File, folder: Path) -> None:
    """Download and check one file. Until it is complete and right, it is kept as ``partial-NAME``."""
    final, part = folder / address.name, folder / f"partial-{address.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{address.name}.lock"):
            if final.exists():
                return
            resumed = part.exists() and part.stat().st_size > 0
            try:
                _receive(address, part)
                _check(address, source, file, part)
            except DataError:
                if part.exists() or not resumed:
                    raise
                # the part that was there before may have been wrong: once more from the beginning
                _receive(address, part)
                _check(address, source, file, part)
            publish(part, final)
    except OSError as error:
        raise DataError(f"{address.url}: {one_line(error)}") from error


def _receive(address: Address, part: Path) -> None:
    """Append the missing bytes to ``part``. It stays if the connection breaks and is removed if it cannot be right."""
    try:
        import requests
    except ImportError as error:
        raise DataError("downloads need requests: pip install 'multint[paper]'") from error
    with part.open("ab") as out:
        if address.bytes is not None and out.tell() > address.bytes:
            out.truncate(0)
        have = out.seek(0, os.SEEK_END)
        if have == address.bytes:
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with requests.get(address.url, headers=headers, stream=True, timeout=30) as response:
                response.raise_for_status()
                if response.status_code == 200:  # all of it, though only the rest was requested
                    have = out.truncate(0)
                _append(response.iter_content(1 << 16), out, address, have, sys.stderr.isatty())
        except (OSError, ValueError) as error:  # requests' own errors are OSErrors
            impossible = getattr(getattr(error, "response", None), "status_code", None) == 416  # the requested range
            if impossible or isinstance(error, _TooMuch) or out.tell() == 0:
                part.unlink()
            raise DataError(f"{address.url}: {one_line(error)}") from error


class _TooMuch(ValueError):
    """More arrives than was announced."""


def _append(arriving: Iterable[bytes], out: Stream, address: Address, have: int, show: bool) -> None:
    """Write what arrives, show how much that is, and refuse more than was announced."""

    def tell(end: str = "") -> None:
        total = f" of {address.bytes / 1e6:.1f}" if address.bytes else ""
        print(f"\r{address.name}: {have / 1e6:.1f}{total} MB", end=end, file=sys.stderr, flush=True)

    shown = 0.0
    try:
        for chunk in arriving:
            have += len(chunk)
            if address.bytes is not None and have > address.bytes:
                raise _TooMuch(f"sends more than the {address.bytes:,} bytes of {address.name}")
            out.write(chunk)
            if show and time.monotonic() - shown > 0.2:
                shown = time.monotonic()
                tell()
    finally:
        if show:
            tell("\n")


def _check(address: Address, source: Source, file: File, part: Path) -> None:
    """Is a finished download what was announced? A wrong one is removed, a short one kept to be continued."""
    size = part.stat().st_size
    if address.bytes is not None and size < address.bytes:
        raise DataError(f"{address.url}: {size:,} of {address.bytes:,} bytes came; run again to continue")
    try:
        if address.sha256 is None:
            for _ in verified(source, file, _served(file, address, part)):
                pass
        elif (got := sha256_of(part)) != address.sha256:
            raise DataError(f"{address.url}: wrong content: expected sha256 {address.sha256}, got {got}")
    except DataError:
        part.unlink()
        raise


def one_line(error: BaseException) -> str:
    """An error in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
