"""What does every backend receive and return?

Time always runs forward here: a layer that reads backwards flips its input first, within each row's length. Arithmetic is done in
the dtype of ``state`` or a wider one; ``wx`` and ``u`` may be stored narrower (autocast).
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional as F

from multint.cells import Cell, State
from multint.integration import Vectors
from multint.shapes import Bool, Float, Integer

PHI = ("tanh", "relu", "identity")


@runtime_checkable
class StepNorm(Protocol):
    """Normalises the values of one step. ``rows`` are those still inside their sequence (None: all), ``columns`` the gates."""

    def __call__(self, x: Tensor, t: int, rows: Tensor | None, columns: slice) -> Tensor: ...


@runtime_checkable
class Norms(Protocol):
    """Where a layer normalises: the flows Wx and Uh before they are integrated, their integral, the cell on its way to h."""

    wx: StepNorm | None
    uh: StepNorm | None
    total: StepNorm | None
    c: StepNorm | None
    timeless: bool  # does the same at every step


@dataclass(frozen=True)
class Problem:
    """One direction of one layer over one batch of sequences."""

    cell: Cell
    form: str  # a name of integration.FORMS
    # W x of every step; with tokens the table W^T they index; with x the matrix W, so that a backend may form W x piece by piece
    wx: Float[Tensor, "t n gh"] | Float[Tensor, "_ _"]
    u: Float[Tensor, "gh p"]
    vectors: Vectors  # each of size gh
    state: State  # before the first step: h (n, p), c (n, h)
    phi: str = "tanh"  # the RNN's nonlinearity, one of PHI
    tokens: Integer[Tensor, "t n"] | None = None
    x: Float[Tensor, "t n i"] | None = None
    bias_hn: Float[Tensor, " h"] | None = None  # added to U h inside the reset of gru_after
    weight_hr: Float[Tensor, "p h"] | None = None  # projects h
    lengths: Integer[Tensor, " n"] | None = None  # steps of each row; later ones leave its state alone
    resets: Bool[Tensor, "t n"] | None = None  # rows that begin anew from `restart` at step t
    restart: State | None = None  # h (1 or n, p), c (1 or n, h)
    hold: State | None = None  # zoneout: the share of the old h and c that is kept, (t or 1, n or 1, p or 1)
    drop: Float[Tensor, "n p"] | None = None  # recurrent dropout: scales h on its way into U, the same at every step
    norm: Norms | None = None
    training: bool = False  # the layer's mode: in training gradients will be asked for
    fresh: bool = False  # the state is zeros that nobody handed on: what multiplies them may be left out
    recompute: bool = False  # the backward pass forms W x and U z anew: they are not kept for it

    @property
    def steps(self) -> int:
        given = self.wx if self.x is None else self.x
        return (given if self.tokens is None else self.tokens).shape[0]

    def flow(self) -> Float[Tensor, "t n gh"]:
        """W x for every step; with tokens a row gather, since x is one-hot."""
        if self.x is not None:
            return F.linear(self.x, self.wx)
        return self.wx if self.tokens is None else F.embedding(self.tokens, self.wx)


class Result(NamedTuple):
    """Output h of every step, and the state after each row's last one."""

    outputs: Float[Tensor, "t n p"]
    state: State
