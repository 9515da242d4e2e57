"""How is a cell carried along on any GPU?

Step by step: a product with U by the vendor's library, then one generated pointwise kernel (gpu_cells.py). What a step does is a
list of actions that a loop in C++ walks through (walk.py), so that Python costs nothing per step.

The backward product has few columns and many terms: it is cut along the terms into parts, which run side by side and are added by
the pointwise kernel that needs their sum.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from multint.cells import CELLS
from multint.scan import walk
from multint.scan.contract import PHI, Problem
from multint.scan.cublas import multiply
from multint.scan.gpu_engine import Gradients, Inputs, Outputs, cut, padded, table_gradient
from multint.scan.walk import Launch, Product

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALIGNED = 16  # bytes: products over other widths run at half the speed or less
OLDEST = (8, 0)  # compute capability
MOST_VALUES = 1 << 28  # of h: a product may be cut into eight parts


@functools.cache  # asked for at every step of a call's way, and Triton looks once too
def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing() -> str | None:
    """Why this machine cannot run it; None if it can."""
    return _missing()


missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks when it traces, and does not look inside


@functools.cache
def _missing() -> str | None:
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        return "Triton is not installed; torch's CUDA wheels bring it, else install triton 3.6 or newer"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    reasons = [too_old(k) for k in range(torch.cuda.device_count())]
    return None if None in reasons else reasons[0]


def too_old(device: int | None) -> str | None:
    """Why a device cannot run it; None, the CPU, can where Triton interprets."""
    return _too_old(device)


too_old._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _too_old(device: int | None) -> str | None:
    if interpreted():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) >= OLDEST:
        return None
    return f"it needs compute capability 8.0 or newer, {torch.cuda.get_device_name(device)} has {major}.{minor}"


def why_not(p: Problem) -> str | None:
    if p.u.dtype not in DTYPES:
        return f"it computes in float32, bfloat16 and float16, not in {p.u.dtype}"
    if p.state.h.numel() >= MOST_VALUES:
        return f"its kernels count the values of a step in 32 bits, which are enough for {MOST_VALUES - 1} of h; divide the batch"
    return missing() or too_old(p.u.device.index)


@functools.cache
def _kernels() -> ModuleType:
    from multint.scan import gpu_cells

    return gpu_cells


# ---- sizes ----


def _width(size: int, dtype: torch.dtype) -> int:
    """The aligned width of ``size`` values of a dtype."""
    each = ALIGNED // dtype.itemsize
    return -(-size // each) * each


def _gates(x: Tensor, h: int, width: int) -> Tensor:
    """The gates' blocks of h values along the last axis, each with zeros behind it up to a width."""
    return x if h == width else padded(x.unflatten(-1, (-1, h)), width).flatten(-2)


def _cropped(x: Tensor, h: int, width: int) -> Tensor:
    """The inverse of ``_gates``."""
    return x if h == width else cut(x.unflatten(-1, (-1, width)), h).flatten(-2).contiguous()


def _blocks(x: Tensor, h: int, width: int, columns: int) -> Tensor:
    """A matrix whose rows are the gates' blocks of h, with zeros behind each block and each row. Two kernels and no more."""
    if h == width and x.shape[1] == columns:
        return x.contiguous()
    out = x.new_zeros((x.shape[0] // h, width, columns))
    cut(cut(out, h, 1), x.shape[1]).copy_(x.unflatten(0, (-1, h)))
    return out.flatten(0, 1)


def _cropped_blocks(x: Tensor, h: int, width: int, columns: int) -> Tensor:
    """The inverse of ``_blocks``."""
    if (h, columns) == (width, x.shape[1]):
        return x
    return cut(cut(x.unflatten(0, (-1, width)), h, 1), columns).reshape(-1, columns)


def _aligned(p: Inputs, u: Tensor | None = None, wx: Tensor | None = None) -> Inputs:
    """The problem with zero units added up to the aligned width: they stay zero, and so do their gradients.

    ``u`` and ``wx`` are what an earlier call made of these.
    """
    h = p.u.shape[1]
    width = _width(h, p.u.dtype)
    if u is None:
        u = _blocks(p.u, h, width, width)
    if wx is None:
        wx = _gates(p.wx, h, width) if p.x is None else _blocks(p.wx, h, width, _width(p.wx.shape[1], p.wx.dtype))
    if h == width:
        return replace(p, u=u, wx=wx)

    def states(x: Tensor | None) -> Tensor | None:
        return None if x is None else padded(x, width)

    state_h = p.h.new_zeros((p.h.shape[0], width)) if p.fresh else padded(p.h, width)
    return replace(
        p,
        wx=wx,
        u=u,
        vectors=_gates(p.vectors, h, width),
        bias_hn=states(p.bias_hn),
        h=state_h,
        c=state_h if p.fresh and p.c is not None else states(p.c),
        restart_h=states(p.restart_h),
        restart_c=states(p.restart_c),
    )


def kept(p: Inputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return list(_kept(p).values())


def _kept(p: Inputs) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What the backward pass needs of the forward pass, by name."""
    dtype = p.u.dtype
    t, n, h = p.steps, p.h.shape[0], _width(p.u.shape[1], dtype)
    gh, features = h * len(CELLS[p.cell].gates), 0 if p.x is None else _width(p.x.shape[2], dtype)
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    if not p.recompute:
        found["uz"] = ((t, n, gh), dtype)
        if p.x is not None:
            found["flow"] = ((t, n, gh), dtype)
        # with the units and features that were added
        if h != p.u.shape[1]:
            found["outputs"] = ((t, n, h), dtype)
            found["u"] = ((gh, h), dtype)
        if p.x is not None and features != p.x.shape[2]:
            found["x"] = ((t * n, features), dtype)
        if p.x is not None and (h, features) != (p.u.shape[1], p.x.shape[2]):
            found["wx"] = ((gh, features), dtype)
    if p.c is not None:
        found["states_c"] = ((t, n, h), dtype)  # before each step
    if p.cell == "gru":
        found["operands"] = ((t, n, h), dtype)  # what goes into a second product
    if p.resets is not None:
        found["before"] = ((t, n, h), dtype)  # what goes into the first, if not the outputs before
    return found


def reads_outputs(p: Inputs) -> bool:
    return "outputs" not in _kept(p)


# ---- the passes ----


def _flow(p: Inputs) -> tuple[Tensor, Tensor | None]:
    """W x of every step, or with tokens the table; and x, if it is given, as rows of an aligned number of features."""
    if p.x is None:
        return p.wx.contiguous(), None
    x = padded(p.x.flatten(0, 1), p.wx.shape[1])
    return multiply(x, p.wx.t()).view(p.steps, p.h.shape[0], p.wx.shape[0]), x


def _flags(p: Inputs) -> dict[str, Any]:
    return {
        "H": p.u.shape[1],
        "PHI": PHI.index(p.phi),
        "TOKENS": p.tokens is not None,
        "LENGTHS": p.lengths is not None,
        "RESETS": p.resets is not None,
    }


def _or(x: Tensor | None, nothing: Tensor) -> Tensor:
    """A kernel's argument: what is not there is never read."""
    return nothing if x is None else x.contiguous()


def _bias(p: Inputs) -> Tensor:
    """What is added to U h inside the reset, which the kernels of that cell always do."""
    if p.bias_hn is None:
        return p.vectors.new_zeros(p.u.shape[1]) if p.cell == "gru_after" else p.vectors
    return p.bias_hn.contiguous()


def _launch(kernel: Any, arguments: tuple[Any, ...], flags: dict[str, Any], tile: tuple[int, int, int]) -> Launch:
    rows, units, warps = tile
    grid = (-(-arguments[0] // rows), -(-flags["H"] // units))
    return Launch(kernel, grid, arguments, {**flags, "ROWS": rows, "UNITS": units}, warps)


def forward(p: Inputs, keep: bool) -> Outputs:
    size, names, p = p.u.shape[1], _kept(p), _aligned(p)
    cell, h, n, t = CELLS[p.cell], p.u.shape[1], p.h.shape[0], p.steps
    (flow, x), resets = _flow(p), None if p.resets is None else p.resets.contiguous().view(torch.uint8)
    outputs = p.u.new_empty((t, n, h))
    uz = p.u.new_empty((t if keep else 1, n, p.u.shape[0]))
    state_h = _begun(p.h) if _beside(p) else p.h.new_empty((n, h))
    state_c = states_c = operands = before = None
    if p.c is not None:
        state_c = _begun(p.c)
        states_c = p.u.new_empty((t, n, h)) if keep else None
    if cell.shared < len(cell.gates):
        operands = p.u.new_empty((t if keep else 1, n, h))
    first = p.h
    if p.resets is not None:
        assert p.restart_h is not None
        before = p.u.new_empty((t, n, h))
        first = torch.where(p.resets[0].unsqueeze(1), p.restart_h, p.h)
        before[0] = first
    nothing = p.vectors
    arguments = [flow, _or(p.tokens, nothing), p.vectors.contiguous(), _bias(p), _or(p.lengths, nothing)]
    arguments += [_or(resets, nothing), _or(p.restart_h, nothing), _or(p.restart_c, nothing), state_h]
    arguments += [_or(state_c, nothing), _or(states_c, nothing), outputs, _or(before, nothing), _or(operands, nothing)]

    def launch(stage: str, parts: Tensor | None) -> Launch:
        flags = {**_flags(p), "KEEP": keep, "PARTS": 1 if parts is None else parts.shape[0]}
        kernel = getattr(_kernels(), f"{stage}_forward")
        return _launch(kernel, (n, t - 1, _or(parts, nothing), uz, *arguments), flags, _tile(h))

    shared = cell.shared * h
    split = _forward_parts(p.cell, h)
    parts = [None if s == 1 else p.u.new_empty((s, n, rows)) for s, rows in zip(split, (shared, h), strict=True)]
    source, shift = (outputs, -1) if before is None else (before, 0)
    u, now = p.u.t(), uz if keep else uz[0]
    one = Product(source, cut(u, shared), cut(now, shared) if parts[0] is None else parts[0], shift, split[0], later=True)
    begin = None if p.fresh and before is None else replace(one, a=first.to(p.u.dtype), shift=0, later=False)
    if operands is None:
        actions: list[Product | Launch] = [one, launch(p.cell, parts[0])]
    else:
        z, two = operands if keep else operands[0], now[..., shared:] if parts[1] is None else parts[1]
        second = Product(z, u[:, shared:], two, 0, split[1])
        actions = [one, launch(f"{p.cell}_operand", parts[0]), second, launch(p.cell, parts[1])]
    if begin is not None:
        begin.run(0)
    else:
        one.out[0 if parts[0] is None and keep else ...].zero_()  # U times nothing
    walk.walk(actions, range(t))
    last_c = None if state_c is None else _own(state_c, size)
    made = {"uz": uz, "flow": flow, "states_c": states_c, "operands": operands, "before": before, "outputs": outputs}
    made |= {"u": p.u, "x": x, "wx": p.wx}
    saved = tuple(made[name] for name in names) if keep else ()
    return Outputs(_own(outputs, size), _own(state_h, size), last_c, saved)  # type: ignore[arg-type]  # those of names are there


def _own(x: Tensor, size: int) -> Tensor:
    """Without the added units, in memory of its own."""
    return x if x.shape[-1] == size else x[..., :size].clone(memory_format=torch.contiguous_format)


def backward(
    p: Inputs, kept: Sequence[Tensor], outputs: Tensor | None, grads: Sequence[Tensor | None], wanted: frozenset[str]
) -> Gradients:
    made, size = dict(zip(_kept(p), kept, strict=True)), p.u.shape[1]
    p = _aligned(p, made.get("u"), made.get("wx"))
    cell, h, n, t = CELLS[p.cell], p.u.shape[1], p.h.shape[0], p.steps
    states_c, operands, before = (made.get(name) for name in ("states_c", "operands", "before"))
    outputs = made["outputs"] if outputs is None else padded(outputs, h)
    flow, x = (made["flow"], made.get("x")) if "flow" in made else _flow(p)
    uz = made["uz"] if "uz" in made else _uz(p, outputs, operands, before)
    resets = None if p.resets is None else p.resets.contiguous().view(torch.uint8)
    d_outputs = torch.zeros_like(outputs) if grads[0] is None else padded(grads[0], h).contiguous()
    d_state_h, d_state_c = _carried(p, grads[1:])
    d_restart = [None if x is None else x.new_zeros(x.shape) for x in (p.restart_h, p.restart_c)]
    d_uz, d_shift = torch.empty_like(uz), torch.empty_like(uz)
    flows = torch.empty_like(outputs) if p.cell == "gru_after" else None
    nothing = p.vectors
    arguments = [d_outputs, uz, flow, _or(p.tokens, nothing), p.vectors.contiguous(), _bias(p)]
    arguments += [_or(p.lengths, nothing), _or(resets, nothing), p.h.contiguous(), outputs]
    arguments += [_or(before, nothing), _or(states_c, nothing), d_state_h, _or(d_state_c, nothing)]
    arguments += [*(_or(x, nothing) for x in d_restart), d_uz, d_shift, _or(flows, nothing)]
    direct = _beside(p)

    def launch(stage: str, parts: Tensor) -> Launch:
        flags = {**_flags(p), "DIRECT": direct, "PARTS": parts.shape[0]}
        kernel = getattr(_kernels(), f"{stage}_backward")
        return _launch(kernel, (n, t - 1, parts, *arguments), flags, _tile(h))

    shared = cell.shared * h
    split = _backward_parts(p.cell, n, h)
    parts = [p.u.new_empty((s, n, h)) for s in split]
    whole = Product(cut(d_uz, shared), cut(p.u, shared, 0), parts[0] if split[0] > 1 else parts[0][0], 1, split[0], later=True)
    actions: list[Product | Launch] = [whole, launch(p.cell, parts[0])]
    if shared < p.u.shape[0]:
        out = parts[1] if split[1] > 1 else parts[1][0]
        second = Product(d_uz[..., shared:], p.u[shared:], out, 0, split[1])
        actions += [second, launch(f"{p.cell}_operand", parts[1])]
    walk.walk(actions, range(t - 1, -1, -1))

    found: dict[str, Tensor] = {}
    if wanted & {"h", "restart_h"}:
        d_h = multiply(cut(d_uz[0], shared), cut(p.u, shared, 0)).float()
        found |= _first("h", d_h + d_state_h if direct else d_h, p.resets, d_restart[0])
    if d_state_c is not None:
        found |= _first("c", d_state_c, p.resets, d_restart[1])
    if "u" in wanted:
        found["u"] = _cropped_blocks(_d_u(p, d_uz, outputs, operands, before), size, h, size)
    if wanted & {"x", "wx", "vectors"}:
        d_wx, d_vectors = _finish(p, d_shift, uz, flow, flows)
        found |= {"vectors": _cropped(d_vectors, size, h)} | _sources(p, x, d_wx, wanted, size)
    if p.bias_hn is not None:  # it is added to U h, so their gradients are one
        found["bias_hn"] = d_uz[..., -h:].sum((0, 1), dtype=torch.float32)
    states = ("h", "c", "restart_h", "restart_c", "bias_hn")
    return Gradients(**{k: _own(v, size) if k in states else v for k, v in found.items() if k in wanted})


def _beside(p: Inputs) -> bool:
    """Whether part of h, and of its gradient, goes from step to step beside U."""
    return p.cell in ("gru", "gru_after") or p.lengths is not None


def _begun(x: Tensor) -> Tensor:
    """A state in memory that the steps may change."""
    return x.clone(memory_format=torch.contiguous_format)


def _carried(p: Inputs, grads: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Gradients of the last h and c, in memory that the steps may change; zero where none came, all filled at once."""
    given = grads[: 1 if p.c is None else 2]
    zeros = iter(p.h.new_zeros((given.count(None), *p.h.shape)).unbind())
    # the first zeros go to c, whose gradient is handed on as it is
    *d_c, d_h = (next(zeros) if grad is None else _begun(padded(grad, p.h.shape[1])) for grad in reversed(given))
    return d_h, d_c[0] if d_c else None


def _finish(p: Inputs, d_shift: Tensor, uz: Tensor, flow: Tensor, flows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of W x, in the memory of d_shift, and of the four vectors."""
    from multint.scan.gpu_finish import finish

    gh, h, rows = p.u.shape[0], p.u.shape[1], d_shift.shape[0] * d_shift.shape[1]
    each = max(16, 1 << (rows // 64).bit_length())  # a power of two, so that few kernels are compiled; 32 to 64 programs
    programs = -(-rows // each)
    sums = p.h.new_empty((programs, 4, gh))
    parts = [(0, gh, uz, gh)] if flows is None else [(0, gh - h, uz, gh), (gh - h, h, flows, h)]
    actions = []
    for first, columns, given, width in parts:
        flags = {"EACH": each, "GH": gh, "FIRST": first, "COLUMNS": columns, "FLOW_ROW": width, "TOKENS": p.tokens is not None}
        arguments = (rows, d_shift, given, flow, _or(p.tokens, p.vectors), p.vectors.contiguous(), sums)
        actions.append(Launch(finish, (-(-columns // 128), programs), arguments, {**flags, "BR": 16, "BC": 128}, warps=8))
    walk.walk(actions, range(1))
    return d_shift, sums.sum(0)


def _first(part: str, d: Tensor, resets: Tensor | None, d_restart: Tensor | None) -> dict[str, Tensor]:
    """What reaches the state before the first step, or what that step restarted from."""
    if resets is None or d_restart is None:
        return {part: d}
    anew = resets[0].unsqueeze(1)
    return {part: d.masked_fill(anew, 0), f"restart_{part}": d_restart + d.masked_fill(~anew, 0)}


def _uz(p: Inputs, outputs: Tensor, operands: Tensor | None, before: Tensor | None) -> Tensor:
    """U z of every step once more: a product over all steps and rows for each source that U is multiplied by."""
    n, shared = p.h.shape[0], CELLS[p.cell].shared * p.u.shape[1]
    uz = p.u.new_empty((p.steps * n, p.u.shape[0]))
    first, u = cut(uz, shared), cut(p.u, shared, 0).t()
    if before is not None:
        multiply(before.flatten(0, 1), u, first)
    else:
        multiply(outputs[:-1].flatten(0, 1), u, first[n:])
        if p.fresh:
            first[:n].zero_()
        else:
            multiply(p.h.to(p.u.dtype), u, first[:n])
    if operands is not None:
        multiply(operands.flatten(0, 1), p.u[shared:].t(), uz[:, shared:])
    return uz.view(p.steps, n, -1)


def _d_u(p: Inputs, d_uz: Tensor, outputs: Tensor, operands: Tensor | None, before: Tensor | None) -> Tensor:
    """The gradient of U: a product over all steps and rows for each source that it is multiplied by."""
    d_u, shared = torch.empty_like(p.u), CELLS[p.cell].shared * p.u.shape[1]
    first, d_first = cut(d_u, shared, 0), cut(d_uz, shared)
    if before is not None:
        multiply(d_first.flatten(0, 1).t(), before.flatten(0, 1), first)
    else:
        multiply(d_first[1:].flatten(0, 1).t(), outputs[:-1].flatten(0, 1), first)
        if not p.fresh:
            multiply(d_first[0].t(), p.h.to(p.u.dtype), first, add=True)
    if operands is not None:
        multiply(d_uz[..., shared:].flatten(0, 1).t(), operands.flatten(0, 1), d_u[shared:])
    return d_u


def _sources(p: Inputs, x: Tensor | None, d_wx: Tensor, wanted: frozenset[str], size: int) -> dict[str, Tensor]:
    """Gradients of x and of W, or of the table, or of the flows."""
    found, h = {}, p.u.shape[1]
    if p.x is not None:
        flat, i = d_wx.flatten(0, 1), p.x.shape[2]
        if "x" in wanted:
            found["x"] = cut(multiply(flat, p.wx), i).reshape(p.x.shape).contiguous()
        if "wx" in wanted:
            rows = padded(p.x.flatten(0, 1), p.wx.shape[1]) if x is None else x
            found["wx"] = _cropped_blocks(multiply(flat.t(), rows), size, h, i)
    elif "wx" in wanted:
        found["wx"] = _cropped(d_wx if p.tokens is None else table_gradient(p.tokens, d_wx, p.wx.shape[0]), size, h)
    return found


# ---- what was measured on an H200 to be fast ----


def _forward_parts(cell: str, h: int) -> tuple[int, int]:
    """Into how many parts the products of a forward step are cut, along their terms."""
    return (_most_parts(h, 2 if h <= 1024 else 1), _most_parts(h, 4)) if cell == "gru" else (1, 1)


def _backward_parts(cell: str, n: int, h: int) -> tuple[int, int]:
    terms = CELLS[cell].shared * h
    if terms < 3000:
        parts = 4
    elif terms <= 4096:
        parts = 8
    else:
        parts = 2 if terms > 9000 else 8 if n <= 112 else 4
    return _most_parts(terms, parts), _most_parts(h, 4)


def _most_parts(terms: int, parts: int) -> int:
    """At most so many parts, each of an aligned number of terms, in every dtype."""
    while terms % (parts * ALIGNED // 2) and parts > 1:
        parts //= 2
    return parts


def _tile(h: int) -> tuple[int, int, int]:
    """Rows and units of a program, and its warps: 256 values of each gate."""
    if interpreted():
        return 4, 16, 4
    units = max(16, min(256, 1 << (h - 1).bit_length()))
    return 256 // units, units, 4
