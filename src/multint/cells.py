"""What does one step compute from its gates? (Appendix A)

The only place where gate equations are written. A step is plain Python over abstract operations: ``pre(gate, source)`` is the
paper's building block for one gate, whose second flow comes from ``source``, and ``m`` supplies the nonlinearities. The same lines
run on tensors, print as LaTeX (scan/generate.py) and can be differentiated as symbols, which is how kernels are to be made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class State(NamedTuple):
    """What a cell hands from step to step: h, and c for the LSTM."""

    h: Any
    c: Any = None


@runtime_checkable
class Pre(Protocol):
    """The building block of one gate; ``after`` scales the flow U z once it is formed (PyTorch's reset)."""

    def __call__(self, gate: str, source: Any, after: Any = None) -> Any: ...


@runtime_checkable
class Maths(Protocol):
    """Nonlinearities of a step. ``settle`` and ``project`` are the identity unless the layer normalises c or projects h."""

    def phi(self, x: Any) -> Any: ...
    def sigmoid(self, x: Any) -> Any: ...
    def tanh(self, x: Any) -> Any: ...
    def settle(self, c: Any) -> Any: ...
    def project(self, h: Any) -> Any: ...


def rnn(pre: Pre, s: State, m: Maths) -> State:
    """§2.2: the vanilla RNN around the block."""
    return State(h=m.phi(pre("h", s.h)))


def lstm(pre: Pre, s: State, m: Maths) -> State:
    """Appendix A.1, no peepholes. The block input z is what PyTorch calls g."""
    i = m.sigmoid(pre("i", s.h))
    f = m.sigmoid(pre("f", s.h))
    z = m.tanh(pre("z", s.h))
    o = m.sigmoid(pre("o", s.h))
    c = i * z + f * s.c
    return State(h=m.project(o * m.tanh(m.settle(c))), c=c)


def gru(pre: Pre, s: State, m: Maths) -> State:
    """Appendix A.2, its last line corrected (docs/errata.md). The reset gate acts before U; PyTorch's GRU applies it after."""
    r = m.sigmoid(pre("r", s.h))
    z = m.sigmoid(pre("z", s.h))
    n = m.tanh(pre("n", r * s.h))
    return State(h=(1 - z) * s.h + z * n)


def gru_after(pre: Pre, s: State, m: Maths) -> State:
    """Appendix A.2 with the reset applied after U, as in PyTorch and the skip-thought code; z keeps the paper's polarity."""
    r = m.sigmoid(pre("r", s.h))
    z = m.sigmoid(pre("z", s.h))
    n = m.tanh(pre("n", s.h, after=r))
    return State(h=(1 - z) * s.h + z * n)


@dataclass(frozen=True)
class Cell:
    """A step with what a backend must know of it."""

    name: str
    gates: tuple[str, ...]  # in the order their rows are stored, which is PyTorch's
    shared: int  # how many leading gates take h_{t-1} itself as source, so that one product U h serves them
    joint: int  # how many of these are integrated as they are, without a reset after U
    carries: tuple[str, ...]  # the parts of State it uses
    step: Callable[[Pre, State, Maths], State]

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.name,)  # a copied or pickled layer keeps the one cell there is


RNN = Cell("rnn", ("h",), 1, 1, ("h",), rnn)
LSTM = Cell("lstm", ("i", "f", "z", "o"), 4, 4, ("h", "c"), lstm)
GRU = Cell("gru", ("r", "z", "n"), 2, 2, ("h",), gru)
GRU_AFTER = Cell("gru_after", ("r", "z", "n"), 3, 2, ("h",), gru_after)


def named(name: str) -> Cell:
    return CELLS[name]


CELLS = {cell.name: cell for cell in (RNN, LSTM, GRU, GRU_AFTER)}
