"""How does one process at a time do something, among all that share a folder?"""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of this name; False where the system or its files have none. It ends with its holder, however that ends."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with path.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError:  # some network file systems
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has the file open too
