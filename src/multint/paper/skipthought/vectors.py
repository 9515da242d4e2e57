"""Which words have a vector in a file of word vectors? The text form of GloVe, and the text and binary forms of word2vec.

A file may hold millions of words; it is read once from start to end, and only the wanted ones are kept.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multint.paper import obtain
from multint.paper.obtain import DataError

Vector = NDArray[np.float32]


def read(path: Path, wanted: Callable[[str], bool] = lambda word: True) -> dict[str, Vector]:
    """The vectors of the wanted words; of a word that is there twice, the first."""
    if not path.is_file():
        raise DataError(f"there is no file of word vectors {path}")
    source = _Bytes(obtain.chunks(path, path.stem if path.suffix in obtain.PACKED else None))
    found: dict[str, Vector] = {}
    for word, vector in _entries(source, path):
        if word not in found and wanted(word):
            found[word] = vector()
    sizes = {len(vector) for vector in found.values()}
    if len(sizes) > 1:
        raise DataError(f"{path} has word vectors of {', '.join(map(str, sorted(sizes)))} numbers; all must be of one length")
    return found


class _Bytes:
    """A stream of pieces that is read by lines or by sizes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.left, self.at = pieces, b"", 0

    def _more(self) -> bool:
        piece = next(self.pieces, b"")
        self.left, self.at = self.left[self.at :] + piece, 0
        return bool(piece)

    def until(self, end: bytes) -> bytes:
        """Up to a byte, which is dropped; what is left at the end of the file."""
        while (place := self.left.find(end, self.at)) < 0:
            if not self._more():
                place = len(self.left)
                break
        found, self.at = self.left[self.at : place], min(place + 1, len(self.left))
        return found

    def exactly(self, size: int) -> bytes:
        while len(self.left) - self.at < size and self._more():
            pass
        found = self.left[self.at : self.at + size]
        self.at += len(found)
        return found

    def peek(self, size: int) -> bytes:
        while len(self.left) - self.at < size and self._more():
            pass
        return self.left[self.at : self.at + size]

    @property
    def ended(self) -> bool:
        return not self.peek(1)


def _entries(source: _Bytes, path: Path) -> Iterator[tuple[str, Callable[[], Vector]]]:
    first = source.until(b"\n")
    numbers = first.split()
    if len(numbers) == 2 and all(part.isdigit() for part in numbers):  # word2vec begins with the numbers of words and features
        count, size = map(int, numbers)
        if _is_text(source.peek(20 * size), size):
            yield from _lines(source, path, 2)
        else:
            yield from _binary(source, count, size, path)
    else:
        yield _line(first, path, 1)
        yield from _lines(source, path, 2)


def _is_text(sample: bytes, size: int) -> bool:
    try:
        [float(part) for part in sample.split(b"\n")[0].split(b" ")[1 : min(size, 4)]]
        return True
    except ValueError:
        return False


def _lines(source: _Bytes, path: Path, number: int) -> Iterator[tuple[str, Callable[[], Vector]]]:
    while not source.ended:
        line = source.until(b"\n").strip()
        if line:
            yield _line(line, path, number)
        number += 1


def _line(line: bytes, path: Path, number: int) -> tuple[str, Callable[[], Vector]]:
    word, _, rest = line.partition(b" ")

    def vector() -> Vector:
        try:
            return np.array(rest.split(), np.float32)
        except ValueError as error:
            raise DataError(f"{path} line {number}: expected a word and numbers, got {line[:60]!r}") from error

    return word.decode("utf-8", "replace"), vector


def _binary(source: _Bytes, count: int, size: int, path: Path) -> Iterator[tuple[str, Callable[[], Vector]]]:
    for k in range(count):
        word = source.until(b" ").lstrip(b"\n").decode("utf-8", "replace")
        body = source.exactly(4 * size)
        if len(body) != 4 * size:
            raise DataError(f"{path} ends in word {k + 1:,} of {count:,}; get it again")
        yield word, lambda body=body: np.frombuffer(body, "<f4").copy()  # type: ignore[misc]
