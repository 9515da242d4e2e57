"""Which files are in a folder or an archive, whichever of the two a user has?"""

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from multint.paper.obtain import BROKEN, TARS, DataError, one_line, sha256_of

ARCHIVES = (*TARS, ".zip")


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.endswith(ARCHIVES)


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names, with slashes, and contents of the wanted files. An archive is read as a stream; nothing of it is written anywhere."""
    if path.is_dir():
        for file in listed(path):
            if wanted(file):
                yield file, (path / file).read_bytes()
        return
    try:
        yield from _packed(path, wanted)
    except BROKEN as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); delete it and get it again") from error


def _packed(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir() and wanted(info.filename):
                    yield info.filename, archive.read(info)
        return
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            if member.isreg() and wanted(member.name):
                content = tar.extractfile(member)
                assert content is not None
                yield member.name, content.read()


def listed(folder: Path) -> list[str]:
    """The files of a folder and of those in it, sorted, with slashes."""
    found = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def fingerprint(path: Path) -> str:
    """Tells one state of a folder or an archive from another: by the names in the folder, or by the archive's bytes."""
    if path.is_dir():
        return hashlib.sha256("\n".join(listed(path)).encode()).hexdigest()
    return sha256_of(path)
