"""What do the engines of the GPU backend receive, return and share?

An engine is a module with ``missing``, ``why_not``, ``kept``, ``forward`` and ``backward`` in the forms that stand here. It gets
tensors of one CUDA device and returns new ones; autograd, torch.compile and the choice between engines are gpu.py's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from multint.scan.contract import Problem
from multint.shapes import Bool, Float, Integer

MOST_ONE_HOT = (
    1024  # symbols up to which the gradient of a table is a product with one-hot rows: faster than sorting the tokens, and exact
)


@dataclass(frozen=True)
class Inputs:
    """One direction of one layer. Sizes: t steps, n rows, h units, gh = gates times units.

    ``wx`` is W with x, the table W^T with tokens, and else W x of every step. ``u``, ``wx`` and ``x`` share the dtype of storage
    (float32, bfloat16, float16); vectors and states are float32.
    """

    cell: str  # a name of cells.CELLS
    phi: str  # a name of contract.PHI
    wx: Float[Tensor, "t n gh"] | Float[Tensor, "_ _"]
    tokens: Integer[Tensor, "t n"] | None  # int64
    x: Float[Tensor, "t n i"] | None
    u: Float[Tensor, "gh h"]
    vectors: Float[Tensor, "4 gh"]  # alpha, beta1, beta2, b of Eq. 4
    bias_hn: Float[Tensor, " h"] | None
    h: Float[Tensor, "n h"]
    c: Float[Tensor, "n h"] | None
    lengths: Integer[Tensor, " n"] | None  # int64
    resets: Bool[Tensor, "t n"] | None
    restart_h: Float[Tensor, "n h"] | None
    restart_c: Float[Tensor, "n h"] | None
    fresh: bool = False  # h and c are zeros: what multiplies them may be left out
    recompute: bool = False  # W x and U z are not kept, but formed anew

    @property
    def steps(self) -> int:
        given = self.wx if self.x is None else self.x
        return (given if self.tokens is None else self.tokens).shape[0]


@dataclass(frozen=True)
class Outputs:
    """What the forward pass gives: outputs in the dtype of ``u``, the last states in float32, and what the backward pass needs."""

    outputs: Float[Tensor, "t n h"]
    h: Float[Tensor, "n h"]
    c: Float[Tensor, "n h"] | None
    kept: tuple[Tensor, ...]  # shapes and dtypes as ``kept`` of the engine says; empty without a gradient to come


@dataclass(frozen=True)
class Gradients:
    """Gradients of the inputs of these names, in their dtypes; None where there is no such input or it was not wanted."""

    x: Tensor | None = None
    wx: Tensor | None = None
    u: Tensor | None = None
    vectors: Tensor | None = None
    bias_hn: Tensor | None = None
    h: Tensor | None = None
    c: Tensor | None = None
    restart_h: Tensor | None = None
    restart_c: Tensor | None = None


@runtime_checkable
class Engine(Protocol):
    """The functions of an engine's module."""

    def missing(self) -> str | None:
        """Why this machine cannot run it, whatever the problem."""

    def why_not(self, p: Problem) -> str | None:
        """Why it cannot run this problem. Looks at cell, shapes, dtypes and which inputs there are, never at values."""

    def kept(self, p: Inputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor of ``Outputs.kept`` for a problem with a gradient to come."""

    def reads_outputs(self, p: Inputs) -> bool:
        """Whether the backward pass reads the outputs as they were returned."""

    def forward(self, p: Inputs, keep: bool) -> Outputs: ...

    def backward(
        self, p: Inputs, kept: Sequence[Tensor], outputs: Tensor | None, grads: Sequence[Tensor | None], wanted: frozenset[str]
    ) -> Gradients:
        """``grads`` are those of outputs, last h and last c, None for zero; ``wanted`` are names of fields of ``Gradients``.

        ``outputs`` are there if ``reads_outputs``.
        """


def table_gradient(tokens: Integer[Tensor, "t n"], d_flow: Float[Tensor, "t n gh"], symbols: int) -> Float[Tensor, "v gh"]:
    """Gradient of the table W^T that tokens index: the rows of d_flow summed by symbol, in the same order every time."""
    rows, flat = tokens.reshape(-1), d_flow.reshape(-1, d_flow.shape[-1])
    if symbols > MOST_ONE_HOT:
        found: Tensor = torch.ops.aten.embedding_dense_backward(flat, rows, symbols, -1, False)
        return found
    width = -(-symbols // 8) * 8  # aligned, as fast products want it
    hot = flat.new_zeros((rows.shape[0], width)).scatter_(1, rows.unsqueeze(1), 1)
    return (hot.t() @ flat)[:symbols]


def cut(x: Tensor, size: int, dim: int = -1) -> Tensor:
    """The first ``size`` along an axis; x itself if that is all, since even a view takes its time of a call."""
    return x if x.shape[dim] == size else x.narrow(dim, 0, size)


def padded(x: Tensor, size: int, dim: int = -1) -> Tensor:
    """x with zeros behind its values up to ``size`` along an axis."""
    missing = size - x.shape[dim]
    if missing == 0:
        return x
    axis = dim % x.dim()
    return F.pad(x, (*(0, 0) * (x.dim() - 1 - axis), 0, missing))
