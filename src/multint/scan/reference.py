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
    gates, size = p.cell.gates, wx.shape[-1] // len(p.cell.gates)
    wx = normalised(p, "wx", wx.to(state.h.dtype), t, rows, slice(0, len(gates) * size))

    def uz(source: Tensor, columns: slice) -> Tensor:
        dropped = source if p.drop is None else source * p.drop
        return normalised(p, "uh", F.linear(dropped.to(p.u.dtype), p.u[columns]).to(source.dtype), t, rows, columns)

    def block(uz: Tensor, columns: slice) -> Tensor:
        v = p.vectors.cut(columns)
        if p.norm is None or p.norm.total is None:
            return combine(p.form, wx[..., columns], uz, v)
        # b stays outside: a batch norm would subtract it again
        total = p.norm.total(combine(p.form, wx[..., columns], uz, v._replace(b=None)), t, rows, columns)
        return total if v.b is None else total + v.b

    shared = slice(0, p.cell.shared * size)
    uh = uz(state.h, shared)
    together = block(uh, shared)

    def pre(gate: str, source: Tensor, after: Tensor | None = None) -> Tensor:
        k = gates.index(gate)
        columns = slice(k * size, (k + 1) * size)
        if source is not state.h:
            return block(uz(source, columns), columns)
        if after is None:
            return together[..., columns]
        inner = uh[..., columns]
        return block(after * (inner if p.bias_hn is None else inner + p.bias_hn), columns)

    def settle(c: Tensor) -> Tensor:
        return normalised(p, "c", c, t, rows, slice(0, size))

    def project(h: Tensor) -> Tensor:
        return h if p.weight_hr is None else F.linear(h.to(p.weight_hr.dtype), p.weight_hr).to(h.dtype)

    return p.cell.step(pre, state, TensorMaths(NONLINEARITIES[p.phi], settle, project))


def normalised(p: Problem, place: str, x: Tensor, t: int, rows: Tensor | None, columns: slice) -> Tensor:
    norm = None if p.norm is None else getattr(p.norm, place)
    return x if norm is None else norm(x, t, rows, columns)


def identity(x: Tensor) -> Tensor:
    return x


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "identity": identity}


@dataclass(frozen=True)
class TensorMaths:
    """cells.Maths on tensors."""

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
