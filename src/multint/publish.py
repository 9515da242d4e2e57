"""How does a file or folder get its name only once it is complete?

It is written under a temporary name in the same folder, synced to disk and renamed. A killed process leaves only temporary names.
"""

import contextlib
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def temporary(path: Path) -> Path:
    """A name beside ``path`` that no other thread or process uses."""
    return path.with_name(f".{path.name}~{os.getpid()}-{secrets.token_hex(4)}.part")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` once it is complete and on disk. On an error the old file stays and the new one is removed."""
    part = temporary(path)
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        publish(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def publish(part: Path, path: Path) -> None:
    """Rename a finished file or folder to ``path``; the name survives a power cut. Files in a folder must be on disk already."""
    _sync(part)
    os.replace(part, path)
    _sync(path.parent)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove what killed processes left in a folder, of one file or of all. Hold a lock: a running process would lose its work."""
    pattern = f".{glob.escape(name)}~*.part" if name else ".*.part"
    for left in folder.glob(pattern):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows can sync neither a folder nor a file opened for reading
        return
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if not path.is_dir():  # some network file systems cannot sync a folder
            raise
