"""Where is the prepared form of a corpus, and when is it made again?

A prepared corpus is a folder of the cache with a description, ``corpus.json``. It is written under a temporary name and published,
so a folder that has its name is complete. Damaged ones are made again.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from multint.locks import locked
from multint.paper.obtain import DataError, Where, cache_folder, data_folder, one_line, sha256_of
from multint.publish import publish, remove_leftovers, replacing, temporary

logger = logging.getLogger("multint")

NOTE = "corpus.json"
T = TypeVar("T")
Read = Callable[[Path, bool], T]  # of a folder, with or without comparing its sums; DataError if it is damaged
Write = Callable[[Path], Mapping[str, Any]]  # into a folder; returns the description


def folders(data: Where | None) -> list[Path]:
    """Folders of prepared corpora: where they are written, then beside the data."""
    return list(dict.fromkeys((cache_folder(data), data_folder(data) / "prepared")))


def there(name: str, data: Where | None) -> bool:
    """Is a corpus of this name prepared?"""
    return any((folder / name / NOTE).is_file() for folder in folders(data))


def ready(name: str, data: Where | None, read: Read[T], write: Write, check_sums: bool = False) -> T:
    """The prepared corpus of this name. It is prepared if missing, and prepared again, with a warning, if damaged."""
    for folder in folders(data):
        if (folder / name / NOTE).is_file():
            try:
                return read(folder / name, check_sums)
            except DataError as error:
                logger.warning("%s; preparing it again", error)
    cache = cache_folder(data)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{name}.lock") as alone:
            with contextlib.suppress(DataError):
                return read(cache / name, check_sums)  # another process was faster
            if alone:
                remove_leftovers(cache, name)
            _build(cache / name, read, write)
            return read(cache / name, False)
    except OSError as error:
        way_out = "set MULTINT_CACHE to another folder"
        raise DataError(f"{name}: cannot write the prepared arrays ({one_line(error)}); {way_out}") from error


def described(folder: Path, expected: int, make: Callable[[Mapping[str, Any]], T]) -> T:
    """What ``make`` forms of a folder's description, which has the expected format; DataError if anything is damaged."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if note["format"] != expected:
            raise ValueError(f"format {note['format']}, now {expected}")
        return make(note)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is damaged ({one_line(error)})") from error


def mapped(path: Path, facts: Mapping[str, Any], check_sums: bool) -> NDArray[Any]:
    """An array as its facts describe it, read when it is used; ValueError if it is another one."""
    size = path.stat().st_size
    if size != facts["bytes"]:
        raise ValueError(f"{path.name} has {size:,} bytes, not {facts['bytes']:,}")
    if check_sums and sha256_of(path) != facts["sha256"]:
        raise ValueError(f"{path.name} was altered")
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if list(array.shape) != facts["shape"] or array.dtype.name != facts["dtype"]:
        raise ValueError(f"{path.name} is {array.dtype.name} {list(array.shape)}, not {facts['dtype']} {facts['shape']}")
    return array


def saved(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array; its facts for ``mapped``."""
    with replacing(path) as out:
        np.save(out, array, allow_pickle=False)
    return facts(path, array)


def facts(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    """What ``mapped`` compares a written array with."""
    return {"shape": list(array.shape), "dtype": array.dtype.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _build(final: Path, read: Read[Any], write: Write) -> None:
    """Write the data and, last, their description into a temporary folder, then publish it."""

    def sound() -> bool:
        with contextlib.suppress(DataError):
            read(final, True)
            return True
        return False

    work, old = temporary(final), temporary(final)
    damaged = final.exists()
    logger.info("preparing %s", final)
    work.mkdir()
    try:
        note = write(work)
        with replacing(work / NOTE) as out:
            out.write(json.dumps(note, indent=1).encode())
        if sound():  # without locks another process may have been faster
            return
        if damaged and final.exists():  # one that appeared meanwhile is read by the process that made it
            os.replace(final, old)  # arrays that are open stay valid
        try:
            publish(work, final)
        except OSError:
            if not sound():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
