"""How is a cell carried along a sequence, in the obvious way?

An eager loop that runs cells.py on tensors: slow, any device and dtype, differentiable as often as one likes. It judges every
other backend.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from multint.cells import State
from multint.integration import combine
from multint.scan.contract import Problem, Result


def why_not(problem: Problem) -> str | None:
    return None


def run(problem: Problem) -> Result:
    p, wx = problem, problem.flow()

    def one(t: int, state: State, rows: Tensor | None) -> State:
        return step(p, t, wx[t], state, rows)

    return walk(wx.shape[0], one, p.state, lengths=p.lengths, resets=p.resets, restart=p.restart, hold=p.hold)


def walk(
    steps: int,
    step: Callable[[int, State, Tensor | None], State],
    state: State,
    *,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    restart: State | None = None,
    hold: State | None = None,
) -> Result:
    """The time loop: ``step(t, state, rows)`` gives the next state; the rest of the contract is done around it."""
    outputs = []
    for t in range(steps):
        if resets is not None:
            assert restart is not None
            state = choose(resets[t], restart, state)
        rows = None if lengths is None else t < lengths
        new = step(t, state, rows)
        if hold is not None:
            new = mix(at_step(hold, t), state, new)
        state = new if rows is None else choose(rows, new, state)
        outputs.append(state.h)
    return Result(torch.stack(outputs), state)


def step(p: Problem, t: int, wx: Tensor, state: State, rows: Tensor | None) -> State:
    """The cell's equations on tensors."""
    now = Step(p, t, wx, state, rows)
    return p.cell.step(now.pre, state, now)


def identity(x: Tensor) -> Tensor:
    return x


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "identity": identity}


class Step:
    """What the cell asks for at one step, on tensors: cells.Pre as ``pre``, and cells.Maths."""

    sigmoid = staticmethod(torch.sigmoid)
    tanh = staticmethod(torch.tanh)

    def __init__(self, p: Problem, t: int, wx: Tensor, state: State, rows: Tensor | None) -> None:
        self.p, self.t, self.rows, self.h = p, t, rows, state.h
        self.phi = NONLINEARITIES[p.phi]
        self.size = wx.shape[-1] // len(p.cell.gates)
        self.wx = self.normalised("wx", wx.to(state.h.dtype), slice(0, wx.shape[-1]))
        self.uh = self.uz(state.h, slice(0, p.cell.shared * self.size))
        joint = slice(0, p.cell.joint * self.size)
        self.together = self.block(self.uh[..., joint], joint)

    def normalised(self, place: str, x: Tensor, columns: slice) -> Tensor:
        norm = None if self.p.norm is None else getattr(self.p.norm, place)
        return x if norm is None else norm(x, self.t, self.rows, columns)

    def uz(self, source: Tensor, columns: slice) -> Tensor:
        """The recurrent flow of some gates."""
        p = self.p
        dropped = source if p.drop is None else source * p.drop
        return self.normalised("uh", F.linear(dropped.to(p.u.dtype), p.u[columns]).to(source.dtype), columns)

    def block(self, uz: Tensor, columns: slice) -> Tensor:
        """The two flows integrated."""
        p, wx, v = self.p, self.wx[..., columns], self.p.vectors.cut(columns)
        if p.norm is None or p.norm.total is None:
            return combine(p.form, wx, uz, v)
        # b stays outside: a batch norm would subtract it again
        total = self.normalised("total", combine(p.form, wx, uz, v._replace(b=None)), columns)
        return total if v.b is None else total + v.b

    def pre(self, gate: str, source: Tensor, after: Tensor | None = None) -> Tensor:
        k = self.p.cell.gates.index(gate)
        columns = slice(k * self.size, (k + 1) * self.size)
        if source is not self.h:
            return self.block(self.uz(source, columns), columns)
        if after is None:
            return self.together[..., columns]
        inner = self.uh[..., columns]
        return self.block(after * (inner if self.p.bias_hn is None else inner + self.p.bias_hn), columns)

    def settle(self, c: Tensor) -> Tensor:
        return self.normalised("c", c, slice(0, self.size))

    def project(self, h: Tensor) -> Tensor:
        w = self.p.weight_hr
        return h if w is None else F.linear(h.to(w.dtype), w).to(h.dtype)


@dataclass(frozen=True)
class TensorMaths:
    """cells.Maths on tensors, for steps that form their gates in another way (related.py)."""

    phi: Callable[[Tensor], Tensor]
    settle: Callable[[Tensor], Tensor] = identity
    project: Callable[[Tensor], Tensor] = identity
    sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid
    tanh: Callable[[Tensor], Tensor] = torch.tanh


def choose(rows: Tensor, yes: State, no: State) -> State:
    """``yes`` in the given rows, ``no`` in the others."""
    return State(*(None if b is None else torch.where(rows.unsqueeze(-1), a, b) for a, b in zip(yes, no, strict=True)))


def mix(share: State, old: State, new: State) -> State:
    """Zoneout: keep a share of the old state."""
    return State(*(n if k is None else k * o + (1 - k) * n for k, o, n in zip(share, old, new, strict=True)))


def at_step(parts: State, t: int) -> State:
    return State(*(None if part is None else part[min(t, part.shape[0] - 1)] for part in parts))
