"""Which characters are in which batch?

A batch is a pure function of (seed, epoch, position), so a run that was killed goes on exactly where it stopped, and a process
among many takes its columns without asking the others. ``Segments`` are shuffled and begin with a fresh state (§3.1, text8);
``Streams`` run through the corpus in order with the state carried (enwik8); ``evaluation_streams`` and ``evaluation_segments``
count every character once. All are index arithmetic: tokens may be a memory-mapped file or one tensor on a device.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multint.paper.charlm.corpus import Corpus, prepare, prepare_text
from multint.paper.obtain import DataError
from multint.shapes import Bool, Int

__all__ = [
    "Batches",
    "Corpus",
    "DataError",
    "Evaluation",
    "Segments",
    "Streams",
    "evaluation_segments",
    "evaluation_streams",
    "gather",
    "prepare",
    "prepare_text",
    "resident",
]

Tokens = NDArray[Any] | Tensor
Numbers = NDArray[np.int64]


def resident(tokens: NDArray[Any], device: torch.device | str) -> Tensor:
    """The whole array as one tensor on a device, a byte a symbol where there are at most 256 symbols."""
    whole = np.array(tokens)  # a map of a read-only file cannot be shared with torch
    return torch.from_numpy(whole if whole.dtype == np.uint8 else whole.astype(np.int32)).to(device)


def gather(tokens: Tokens, starts: Int[Tensor, " n"], length: int) -> Int[Tensor, "t n"]:
    """Runs of ``length`` tokens from each start, as columns; on a device nothing passes through the host if starts lie there."""
    if isinstance(tokens, Tensor):
        return tokens[torch.arange(length, device=tokens.device)[:, None] + starts.to(tokens.device)].long()
    return torch.from_numpy(tokens[np.arange(length)[:, None] + starts.numpy()].astype(np.int64))


def _beside(starts: Tensor, tokens: Tokens) -> Tensor:
    return starts.to(tokens.device) if isinstance(tokens, Tensor) else starts


@dataclass(frozen=True, eq=False)
class Batches(Sequence[tuple[Tensor, Tensor]]):
    """The batches of one epoch; ``batches[position]`` is (x, y), each [length, batch], y one character ahead of x."""

    tokens: Tokens
    starts: "Starts"
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[tuple[Tensor, Tensor]]: ...
    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        window = gather(self.tokens, self.starts[position], self.length + 1)
        return window[:-1], window[1:]


@dataclass(frozen=True, eq=False)
class Starts(Sequence[Tensor]):
    """Where the columns of every batch begin, worked out when asked for: a list would grow with the corpus."""

    positions: int
    batch: int
    columns: Numbers  # those of this process
    first: Callable[[Numbers], Numbers]  # the start of the k-th column of the epoch, for many k

    def __len__(self) -> int:
        return self.positions

    @overload
    def __getitem__(self, position: int) -> Tensor: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        position += self.positions * (position < 0)
        if not 0 <= position < self.positions:
            raise IndexError(f"position {position} is outside an epoch of {self.positions} batches")
        return torch.from_numpy(self.first(position * self.batch + self.columns))


TABLE = 2**20  # segments whose order is drawn and kept; the order of more is computed number by number


def permuted(numbers: Numbers, count: int, keys: NDArray[np.uint64]) -> Numbers:
    """Each number's place in an order of ``count``: a four-round Feistel network, walked until it stays inside."""
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    x, outside = numbers.astype(np.uint64), np.ones(len(numbers), dtype=bool)
    while outside.any():
        left, right = x[outside] >> half, x[outside] & mask
        for key in keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        x[outside] = (left << half) | right
        outside = x >= count
    return x.astype(np.int64)


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class _Plan:
    length: int
    batch: int
    rank: int = dataclasses.field(default=0, kw_only=True)
    world: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("length", "batch"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _starts(self, count: int, first: Callable[[Numbers], Numbers]) -> "Starts":
        """Where this process's columns begin: ``count`` in all, in batches of which the last, if incomplete, is dropped."""
        mine = self.batch // self.world
        columns = np.arange(self.rank * mine, (self.rank + 1) * mine, dtype=np.int64)
        return Starts(count // self.batch, self.batch, columns, first)

    def _shard(self, rank: int, world: int) -> dict[str, int]:
        if not 0 <= rank < world:
            raise DataError(f"rank {rank} is not one of {world} processes")
        if self.batch % world:
            raise DataError(f"a batch of {self.batch} cannot be shared evenly by {world} processes; make it a multiple of {world}")
        return {"rank": rank, "world": world}


@dataclass(frozen=True)
class Segments(_Plan):
    """Non-overlapping segments in a new order each epoch, each from the initial state.

    Every segment predicts ``length`` characters, so it reads length + 1; the last of these is the first of its neighbour. The grid
    of segments is moved each epoch by an offset in [0, length) (Cooijmans et al.); the number of batches is the same in all epochs.
    """

    seed: int = 0

    def plan(self, size: int, epoch: int) -> "Starts":
        """First characters of the segments of every batch."""
        count = self._count(size)
        # numpy keeps a bit generator's raw stream for ever, its shuffles may change: so order is by sorting raw draws
        draws = np.random.PCG64(np.random.SeedSequence((self.seed % 2**64, epoch))).random_raw(1 + min(count, TABLE))
        offset = int(draws[0] % np.uint64(min(self.length, size - count * self.length)))
        order = np.argsort(draws[1:], kind="stable").astype(np.int64) if count <= TABLE else None

        def first(numbers: Numbers) -> Numbers:
            places = order[numbers] if order is not None else permuted(numbers, count, draws[1:5])
            return offset + places * self.length

        return self._starts(count, first)

    def batches(self, tokens: Tokens, epoch: int) -> Batches:
        return Batches(tokens, self.plan(len(tokens), epoch), self.length)

    def begins(self, position: int) -> bool:
        """Whether the state is to be set to its start before this position: always."""
        return True

    def shard(self, rank: int, world: int) -> "Segments":
        """Process ``rank`` of ``world``'s columns of every batch."""
        return dataclasses.replace(self, **self._shard(rank, world))

    def _count(self, size: int) -> int:
        if size < self.length + 1:
            raise DataError(
                f"{size:,} characters are less than one sequence of {self.length} + 1; use shorter sequences or more text"
            )
        count = max(1, size // self.length - 1)  # one less than fit, to leave room for any offset
        if count < self.batch:
            raise DataError(
                f"{size:,} characters make {count} sequences of {self.length}, less than one batch of {self.batch}; "
                "use a smaller batch, shorter sequences or more text"
            )
        return count


@dataclass(frozen=True)
class Streams(_Plan):
    """The corpus cut into ``batch`` contiguous streams, read side by side in windows of ``length`` with the state carried.

    Args:
        renew: positions after which the state starts again; None: only with the epoch.
    """

    renew: int | None = None

    def plan(self, size: int, epoch: int = 0) -> "Starts":
        """First characters of the window of every stream, position by position; the same in all epochs."""
        each = (size - 1) // self.batch  # predicted characters of one stream
        if each < self.length:
            raise DataError(
                f"{size:,} characters in {self.batch} streams leave {max(each, 0):,} each, less than one window of {self.length}; "
                "use fewer streams, shorter windows or more text"
            )
        count = each // self.length * self.batch
        return self._starts(count, lambda numbers: numbers // self.batch * self.length + numbers % self.batch * each)

    def batches(self, tokens: Tokens, epoch: int = 0) -> Batches:
        return Batches(tokens, self.plan(len(tokens), epoch), self.length)

    def begins(self, position: int) -> bool:
        """Whether the state is to be set to its start before this position."""
        return position == 0 or (self.renew is not None and position % self.renew == 0)

    def shard(self, rank: int, world: int) -> "Streams":
        """Process ``rank`` of ``world``'s columns of every batch."""
        return dataclasses.replace(self, **self._shard(rank, world))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Columns to be read from a fresh state, in which every character but the very first is predicted exactly once.

    Columns may differ in length; ``rows`` marks what is padding. ``predicted`` is the number to divide the summed loss by.
    """

    tokens: Tokens
    starts: Int[Tensor, " n"]
    lengths: Int[Tensor, " n"]

    @property
    def steps(self) -> int:
        return int(self.lengths.max())

    @property
    def streams(self) -> int:
        return len(self.starts)

    @property
    def predicted(self) -> int:
        return int(self.lengths.sum())

    def rows(self, first: int, last: int) -> tuple[Int[Tensor, "t n"], Int[Tensor, "t n"], Bool[Tensor, "t n"]]:
        """x, y and which of them count, for steps first to last of every column."""
        steps = _beside(torch.arange(first, min(last, self.steps))[:, None], self.tokens)
        inside = (_beside(self.starts, self.tokens) + steps).clamp(max=len(self.tokens) - 2)
        window = gather(self.tokens, inside.flatten(), 2).unflatten(1, inside.shape)
        return window[0], window[1], steps < _beside(self.lengths, self.tokens)

    def windows(self, length: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The rows, ``length`` steps at a time."""
        for first in range(0, self.steps, length):
            yield self.rows(first, first + length)

    def columns(self, first: int, last: int) -> "Evaluation":
        """Columns first to last alone: a batch of segments, or one process's share."""
        return Evaluation(self.tokens, self.starts[first:last], self.lengths[first:last])


def evaluation_streams(tokens: Tokens, streams: int = 1) -> Evaluation:
    """State carried: ``streams`` contiguous columns as equal as can be, the first ones a character longer where need be."""
    total = _predictable(tokens)
    if not 1 <= streams <= total:
        raise DataError(f"{len(tokens):,} characters cannot be cut into {streams} streams")
    lengths = torch.full((streams,), total // streams)
    lengths[: total % streams] += 1
    return Evaluation(tokens, lengths.cumsum(0) - lengths, lengths)


def evaluation_segments(tokens: Tokens, length: int) -> Evaluation:
    """State reset every ``length`` characters: one column for each segment, the last perhaps shorter."""
    total = _predictable(tokens)
    if length < 1:
        raise DataError(f"length must be at least 1, got {length}")
    starts = torch.arange(0, total, length)
    return Evaluation(tokens, starts, (total - starts).clamp(max=length))


def _predictable(tokens: Tokens) -> int:
    if len(tokens) < 2:
        raise DataError(f"{len(tokens)} characters leave nothing to predict; at least 2 are needed")
    return len(tokens) - 1
