"""How do books become arrays of words, of which a batch is read without the rest?

Pieces of text are split into sentences and tokens by several processes, each into a file of its own, so a preparation that is
killed goes on where it was. Then words are numbered by how often they occur, and the pieces become four arrays on disk. No step
holds more than one piece, the list of words, and a few bytes for each sentence.
"""

import collections
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint.paper import obtain, prepared
from multint.paper.obtain import DataError, Where
from multint.paper.skipthought import books as reading
from multint.paper.skipthought import corpora, text
from multint.paper.skipthought.books import LINE, Books, Piece, decoded, paragraphs
from multint.publish import remove_leftovers, replacing

logger = logging.getLogger("multint")

FORMAT = 1  # of prepared arrays
LIMIT = 30  # tokens that a sentence of a triple has fewer of, as in the authors' code
RARE = 0xFFFF  # the number of words beyond those that 16 bits hold
WORDS = "words.tsv"


@dataclass(frozen=True)
class Counts:
    """What was read. A sentence over the limit, as one with no token, stands in no triple."""

    pieces: int = 0
    bytes: int = 0
    books: int = 0
    odd_bytes: int = 0  # not UTF-8
    lines: int = 0
    empty_lines: int = 0
    sentences: int = 0
    long_sentences: int = 0
    tokens: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    def __str__(self) -> str:
        return (
            f"{self.sentences:,} sentences of {self.books:,} books, {self.tokens:,} tokens; {self.long_sentences:,} sentences have "
            f"{LIMIT} tokens or more; {self.empty_lines:,} empty lines, {self.odd_bytes:,} bytes that are not UTF-8"
        )


@dataclass(frozen=True, eq=False)
class Corpus:
    """Prepared books, an ``experiment.Dataset``.

    Args:
        words: by how often they occur, the most frequent first.
        seen: how often each does.
        tokens: places in ``words`` of all tokens, sentence by sentence; RARE beyond them. Sentences over the limit have none.
        starts: where each sentence begins in ``tokens``, and where the last one ends.
        middles: numbers of the sentences that have one before and one after them in the same book, all three within the limit; by
            length, then in order.
        of_length: how many of ``middles`` have each length.
    """

    name: str
    sha256: str
    stands_for: str | None
    own: bool
    form: str
    counts: Counts
    words: tuple[str, ...]
    seen: NDArray[np.int64]
    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]
    middles: NDArray[np.uint32]
    of_length: tuple[int, ...]

    def __str__(self) -> str:
        stands = f" (stands for {self.stands_for})" if self.stands_for else ""
        return f"{self.name}{stands}: {self.counts}; {len(self.middles):,} triples, {len(self.words):,} words, sha256 {self.sha256}"

    def unknown(self, size: int) -> float:
        """The share of tokens that a vocabulary of the ``size`` most frequent words does not know."""
        return 1.0 - float(self.seen[:size].sum()) / max(self.counts.tokens, 1)


# ---- the cache ----


def prepare(books: Books, data: Where | None = None, check_sums: bool = False) -> Corpus:
    """A corpus from the cache, or prepared now."""
    name = f"books-{books.name}-{hashlib.sha256((books.sha256 + books.form).encode()).hexdigest()[:16]}"

    def read(folder: Path, check: bool) -> Corpus:
        return prepared.described(folder, FORMAT, lambda note: _read(folder, note, books, check))

    def write(work: Path) -> Mapping[str, Any]:
        lacking = corpora.absent(books.name, data) if not books.own else ""
        if lacking:
            raise DataError(lacking)
        parts = obtain.cache_folder(data) / f"{name}-parts"
        note = _Preparation(books, parts).write(work)
        shutil.rmtree(parts, ignore_errors=True)
        return note

    return prepared.ready(name, data, read, write, check_sums)


def _read(folder: Path, note: Mapping[str, Any], books: Books, check: bool) -> Corpus:
    arrays = {key: prepared.mapped(folder / f"{key}.npy", facts, check) for key, facts in note["arrays"].items()}
    content = (folder / WORDS).read_bytes()
    if hashlib.sha256(content).hexdigest() != note["words"]:
        raise ValueError(f"{WORDS} was altered")
    rows = [line.rpartition("\t") for line in content.decode().splitlines()]
    counts = Counts(**note["counts"])
    sums = " ".join([note["words"], *(facts["sha256"] for facts in note["arrays"].values())])
    return Corpus(
        books.name,
        hashlib.sha256(sums.encode()).hexdigest(),
        books.stands_for,
        books.own,
        "" if books.form == "books" else books.form,
        counts,
        tuple(word for word, _, _ in rows),
        np.array([int(count) for _, _, count in rows], np.int64),
        **arrays,
        of_length=tuple(note["of_length"]),
    )


# ---- one piece ----


def work_on(piece: Piece, form: str, mark: str, path: Path) -> Counts:
    """Split a piece into sentences and tokens, and write them to a file that is complete once it has its name."""
    body, odd = decoded(piece.body)
    lines = LINE.split(body.removesuffix("\n"))
    place: dict[str, int] = {}
    tokens: list[int] = []
    lengths: list[int] = []
    begins: list[int] = [0] if piece.begins else []  # numbers of the sentences that begin a book
    seen: Counter[str] = Counter()
    for begun, part in _books_of(lines, mark):
        if begun:
            begins.append(len(lengths))
        for sentence in _sentences(part, form, lambda: begins.append(len(lengths))):
            seen.update(sentence)
            lengths.append(min(len(sentence), LIMIT))
            if len(sentence) < LIMIT:
                tokens += [place.setdefault(token, len(place)) for token in sentence]
    for word in seen:
        place.setdefault(word, len(place))
    marks = sum(bool(mark) and line.startswith(mark) for line in lines)
    counts = Counts(
        1,
        len(piece.body),
        marks or int(piece.begins),
        odd,
        len(lines),
        sum(not line.strip() for line in lines),
        len(lengths),
        sum(length == LIMIT for length in lengths),
        sum(seen.values()),
    )
    with replacing(path) as out:
        np.savez(
            out,
            tokens=np.array(tokens, np.min_scalar_type(max(len(place) - 1, 0))),
            lengths=np.array(lengths, np.uint8),
            begins=np.unique(np.array(begins, np.int64)),
            words=np.frombuffer("\n".join(place).encode(), np.uint8),
            seen=np.array([seen[word] for word in place], np.int64),
            counts=np.frombuffer(json.dumps(asdict(counts)).encode(), np.uint8),
        )
    return counts


def _books_of(lines: Sequence[str], mark: str) -> Iterator[tuple[bool, list[str]]]:
    """Lines between the marks of books, and whether a mark stood before them."""
    begun = False
    part: list[str] = []
    for line in lines:
        if mark and line.startswith(mark):
            yield begun, part
            begun, part = True, []
        else:
            part.append(line)
    yield begun, part


def _sentences(lines: list[str], form: str, ended: Callable[[], None]) -> Iterator[list[str]]:
    """The sentences of lines as tokens in lower case. An empty line between sentences ends a book."""
    if form == "books":
        for paragraph in paragraphs(lines):
            for sentence in text.sentences(paragraph):
                yield [token.lower() for token in text.tokens(sentence)]
        return
    for line in lines:
        if not line.strip():
            ended()
        elif form == "tokens":
            yield line.lower().split()
        else:
            yield [token.lower() for token in text.tokens(line)]


@dataclass
class _Part:
    """What was written of a piece."""

    tokens: NDArray[Any]
    lengths: NDArray[np.uint8]
    begins: NDArray[np.int64]
    words: list[str]
    seen: NDArray[np.int64]
    counts: Counts

    @classmethod
    def read(cls, path: Path) -> "_Part":
        with np.load(path, allow_pickle=False) as found:
            words = found["words"].tobytes().decode()
            counts = Counts(**json.loads(found["counts"].tobytes()))
            return cls(
                found["tokens"], found["lengths"], found["begins"], words.split("\n") if words else [], found["seen"], counts
            )


# ---- all pieces ----


class _Preparation:
    """From books to arrays. Finished pieces are kept in ``parts`` until all is done."""

    def __init__(self, books: Books, parts: Path) -> None:
        self.books, self.parts = books, parts
        by = "" if books.form == "tokens" else text.versions()
        self.about = {"format": FORMAT, "sha256": books.sha256, "form": books.form, "limit": LIMIT, "by": by}

    def write(self, work: Path) -> dict[str, Any]:
        self.take_over()
        paths, counts = self.split()
        if self.books.lines is not None and counts.lines != self.books.lines:
            raise DataError(f"{self.books.name} has {counts.lines:,} lines, not {self.books.lines:,}; get it again")
        if counts.sentences < 3:
            raise DataError(f"{self.books.name} holds {counts.sentences} sentences; a triple needs three")
        rank, note = self.number(paths, work)
        arrays, of_length = self.assemble(paths, rank, counts, work)
        logger.info("%s: %s", self.books.name, counts)
        return {**self.about, "name": self.books.name, "counts": asdict(counts), **note, "arrays": arrays, "of_length": of_length}

    def take_over(self) -> None:
        """Keep the finished pieces of an earlier preparation of the same books by the same rules."""
        note = self.parts / "about.json"
        try:
            same = json.loads(note.read_text()) == self.about
        except (OSError, ValueError):
            same = False
        if not same:
            shutil.rmtree(self.parts, ignore_errors=True)
            self.parts.mkdir(parents=True)
            with replacing(note) as out:
                out.write(json.dumps(self.about).encode())
        remove_leftovers(self.parts)

    def split(self) -> tuple[list[Path], Counts]:
        """Split all pieces that are not done yet, on all cores; the files of all."""
        shown = _Progress(self.books)
        digest = hashlib.sha256()
        paths: list[Path] = []
        waiting: collections.deque[tuple[Path, Future[Counts]]] = collections.deque()
        pool: ProcessPoolExecutor | None = None
        workers = os.cpu_count() or 1
        try:
            for piece in reading.pieces(self.books):
                digest.update(piece.body)
                path = self.parts / f"{piece.number:06d}.npz"
                paths.append(path)
                if path.exists():
                    shown.step(_Part.read(path).counts, again=True)
                elif workers == 1 or (piece.number == 0 and len(piece.body) < reading.PIECE // 2):  # little text
                    shown.step(work_on(piece, self.books.form, self.books.mark, path))
                else:
                    pool = pool or ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)
                    waiting.append((path, pool.submit(work_on, piece, self.books.form, self.books.mark, path)))
                while len(waiting) > 2 * workers:
                    shown.step(waiting.popleft()[1].result())
            for _, one in waiting:
                shown.step(one.result())
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
            shown.end()
        if self.books.content is not None and digest.hexdigest() != self.books.content:
            raise DataError(f"{self.books.paths[0]} is not {self.books.name}: expected sha256 {self.books.content}; get it again")
        return paths, shown.counts

    def number(self, paths: Sequence[Path], work: Path) -> tuple[dict[str, int], dict[str, Any]]:
        """Words by how often they occur, as a file and as numbers."""
        seen: dict[str, int] = {}
        for path in paths:
            part = _Part.read(path)
            for word, count in zip(part.words, part.seen.tolist(), strict=True):
                seen[word] = seen.get(word, 0) + count
        order = sorted(seen, key=lambda word: (-seen[word], word))[:RARE]
        content = "".join(f"{word}\t{seen[word]}\n" for word in order).encode()
        with replacing(work / WORDS) as out:
            out.write(content)
        note = {"words": hashlib.sha256(content).hexdigest(), "different_words": len(seen)}
        return {word: number for number, word in enumerate(order)}, note

    def assemble(
        self, paths: Sequence[Path], rank: Mapping[str, int], counts: Counts, work: Path
    ) -> tuple[dict[str, Any], list[int]]:
        lengths = np.empty(counts.sentences, np.uint8)
        begins = np.zeros(counts.sentences + 1, bool)
        at, facts = 0, {}
        with _Growing(work / "tokens.npy", np.uint16) as tokens, _Growing(work / "starts.npy", np.int64) as starts:
            starts.add(np.zeros(1, np.int64))
            for path in paths:
                part = _Part.read(path)
                ranks = np.fromiter((rank.get(word, RARE) for word in part.words), np.uint16, len(part.words))
                starts.add(tokens.length + np.cumsum(np.where(part.lengths == LIMIT, 0, part.lengths), dtype=np.int64))
                tokens.add(ranks[part.tokens])
                lengths[at : at + len(part.lengths)] = part.lengths
                begins[at + part.begins] = True
                at += len(part.lengths)
        facts = {"tokens": tokens.facts(), "starts": starts.facts()}
        middles, of_length = triples(lengths, begins[: counts.sentences])
        return {**facts, "middles": prepared.saved(work / "middles.npy", middles)}, of_length


def triples(lengths: NDArray[np.uint8], begins: NDArray[np.bool_]) -> tuple[NDArray[np.uint32], list[int]]:
    """Sentences with a neighbour on both sides, by length; and how many have each length."""
    fits = (lengths > 0) & (lengths < LIMIT)
    middle = np.zeros(len(lengths), bool)
    middle[1:-1] = fits[1:-1] & fits[:-2] & fits[2:] & ~begins[1:-1] & ~begins[2:]
    parts = [np.flatnonzero(middle & (lengths == length)).astype(np.uint32) for length in range(LIMIT)]
    return np.concatenate(parts), [len(part) for part in parts]


class _Growing:
    """An array on disk to whose end parts are added; its header is written last, when its length is known."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype, self.length = path, np.dtype(dtype), 0

    def __enter__(self) -> "_Growing":
        self.file = self.path.open("w+b")
        self._header()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.seek(0)
        self._header()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def _header(self) -> None:
        about = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, about)  # padded, so that it has one size for any length

    def add(self, part: NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(part, self.dtype).data)
        self.length += len(part)

    def facts(self) -> dict[str, Any]:
        return prepared.facts(self.path, np.load(self.path, mmap_mode="r"))


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Progress:
    """A line on a terminal while books are read, and now and then one in the log."""

    SHOWN, LOGGED = 0.2, 60.0  # seconds between two

    def __init__(self, books: Books) -> None:
        self.books, self.counts, self.fresh = books, Counts(), 0  # sentences of this session
        self.began = self.shown = self.logged = time.monotonic()
        self.live = sys.stderr.isatty()
        logger.info("%s: splitting text into sentences and tokens", books.name)

    def step(self, counts: Counts, again: bool = False) -> None:
        self.counts += counts
        self.fresh += 0 if again else counts.sentences
        now = time.monotonic()
        if self.live and now - self.shown > self.SHOWN:
            self.shown = now
            print(f"\r{self.line()}", end="  ", file=sys.stderr, flush=True)
        elif not self.live and now - self.logged > self.LOGGED:
            self.logged = now
            logger.info("%s", self.line())

    def line(self) -> str:
        spent = max(time.monotonic() - self.began, 1e-9)
        size = f" of {self.books.size / 1e6:,.0f}" if self.books.size else ""
        left = ""
        if self.books.size and self.fresh:
            left = f", {(self.books.size - self.counts.bytes) / self.counts.bytes * spent / 60:.0f} min left"
        speed = f"{self.fresh / spent:,.0f} sentences/s"
        return f"{self.books.name}: {self.counts.bytes / 1e6:,.0f}{size} MB, {self.counts.sentences:,} sentences, {speed}{left}"

    def end(self) -> None:
        if self.live:
            print(f"\r{self.line()}  ", file=sys.stderr, flush=True)
