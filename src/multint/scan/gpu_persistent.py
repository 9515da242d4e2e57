"""How does a whole MI-LSTM sequence run as one kernel, on a Hopper GPU?

Engine of the GPU backend for bfloat16 and up to 1024 units; csrc/persistent.cu says how its kernels work. Here: which of them takes
a problem, with how many thread blocks, and the products before and after the time loop. Arrays over steps have units padded to
multiples of 64 and a unit's four gates side by side, (t, n, 4 hp); weights and gradients have the caller's order.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from multint.scan import nvrtc
from multint.scan.contract import Problem
from multint.scan.gpu_engine import Gradients, Inputs, Outputs, padded, table_gradient
from multint.shapes import Float

CSRC = Path(__file__).with_name("csrc")
HEADERS = {"cells.h": "cells.h", "lanes.h": "device_lanes.h"}  # by the name they are included by
OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--diag-suppress=177")  # 177: no kernel uses every helper
CAPABILITY = (9, 0)
THREADS = 256

CHUNK = 64  # units in one tile of h
MOST_UNITS = 1024  # U's part of a thread block is in its registers
CLUSTER_UNITS = 320  # up to here U fits one cluster
CLUSTER_ROWS = 8  # of the batch, to a cluster
COLUMNS = (8, 16, 32, 64)  # rows of the batch to a group of blocks, as wgmma takes them
MOST_SLICES = 4  # of the batch, one after the other: with more, products over all rows at once are faster
GPC_BLOCKS = 16  # blocks of clusters that fit a cluster's part of the GPU, at one on each multiprocessor
UNCLUSTERED = 12  # multiprocessors that clusters of four leave unused


# ------------------------------------------------------------------------------------------------------------------- fits


def missing() -> str | None:
    """Why this machine cannot run it, whatever the problem."""
    return _missing()


missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks when it traces, and does not look inside


@functools.cache
def _missing() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    reasons = [other_kind(k) for k in range(torch.cuda.device_count())]
    if None not in reasons:
        return reasons[0]
    try:
        nvrtc.compiler()
        nvrtc.driver()
    except nvrtc.Unavailable as reason:
        return str(reason)
    return None


def other_kind(device: int) -> str | None:
    """Why a device cannot run it."""
    return _other_kind(device)


other_kind._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _other_kind(device: int) -> str | None:
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) == CAPABILITY:
        return None
    return f"needs a GPU of compute capability 9.0 (Hopper), this is {torch.cuda.get_device_name(device)} with {major}.{minor}"


def why_not(p: Problem) -> str | None:
    """Why it cannot run this problem. Looks at cell, shapes, dtypes and which inputs there are, never at values."""
    n, h = p.state.h.shape
    if p.cell.name != "lstm":
        return f"the persistent kernels are for the cell 'lstm', not {p.cell.name!r}"
    if p.u.dtype != torch.bfloat16:
        return f"the persistent kernels store bfloat16, not {p.u.dtype}"
    if p.resets is not None:
        return "the persistent kernels know no resets"
    if h > MOST_UNITS:
        return f"the persistent kernels hold U in registers, which have room for {MOST_UNITS} units, not {h}"
    if p.u.device.type != "cuda":
        return f"its tensors are on {p.u.device}, not on a GPU"
    return missing() or other_kind(p.u.device.index) or _crowded(n, h, multiprocessors(p.u.device.index))


def _crowded(n: int, h: int, sms: int) -> str | None:
    """Why the GPU is too small for so many rows or units. One question about n alone: torch.compile guards its answer."""
    needs = padded_width(h) // 16
    most = sms // needs * COLUMNS[-1]  # rows to a slice
    if most == 0:
        return f"the persistent kernels need {needs} multiprocessors for {h} units, this GPU has {sms}"
    if h > CLUSTER_UNITS and n > MOST_SLICES * most:
        return f"the persistent kernels would take {n} rows of {h} units in {-(-n // most)} slices, more than {MOST_SLICES}"
    return None


def padded_width(h: int) -> int:
    """Units the kernels are compiled for: whole tiles of h."""
    return -(-h // CHUNK) * CHUNK


def multiprocessors(device: int) -> int:
    """How many thread blocks of this size run at once."""
    return _multiprocessors(device)


multiprocessors._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _multiprocessors(device: int) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@dataclass(frozen=True)
class Plan:
    """The batch in slices of ``rows`` rows, one launch each; in a launch one group of hp / 16 blocks for every ``columns`` rows."""

    columns: int
    rows: int
    slices: int = 1

    @property
    def groups(self) -> int:
        return -(-self.rows // self.columns)


def grid_plan(n: int, hp: int, sms: int) -> Plan | None:
    """All blocks of a launch wait for each other, so each must have its multiprocessor; None where not even one group fits.

    Few columns to a group are fast, and clusters of four are for the backward pass, so what leaves room for them comes first.
    """
    parts = hp // 16
    for limit in (sms - UNCLUSTERED, sms):
        for columns in COLUMNS:
            plan = Plan(columns, n)
            if plan.groups * parts <= limit:
                return plan
    most = sms // parts * COLUMNS[-1]
    if most == 0:
        return None
    slices = -(-n // most)
    one = grid_plan(-(-n // slices), hp, sms)
    return one and replace(one, slices=slices)


def in_clusters(n: int, hp: int, sms: int) -> bool:
    """Whether the cluster kernels take it: small U, and few enough rows that at most two clusters come one after the other."""
    if hp > CLUSTER_UNITS:
        return False
    at_once = max(1, sms // GPC_BLOCKS) * (GPC_BLOCKS // (hp // 32))
    plan = grid_plan(n, hp, sms)
    return -(-n // CLUSTER_ROWS) <= 2 * at_once or plan is None or plan.slices > MOST_SLICES


# ---------------------------------------------------------------------------------------------------------------- kernels

_SIZES = [(name, ctypes.c_int) for name in ("steps", "batch", "width", "first", "end")]


def _pointers(*names: str) -> list[tuple[str, type[ctypes.c_void_p]]]:
    return [(name, ctypes.c_void_p) for name in names]


class _Forward(ctypes.Structure):  # as in persistent.cu, like the next two
    _fields_ = [
        *_pointers(
            "flow", "tokens", "u", "vectors", "h", "c", "lengths", "outputs", "uz", "cs", "last_h", "last_c", "exchange", "flags"
        ),
        *_SIZES,
    ]


class _Backward(ctypes.Structure):
    _fields_ = [
        *_pointers("flow", "tokens", "u", "vectors", "lengths", "uz", "cs", "d_outputs", "d_last_h", "d_last_c", "d_uz", "d_gates"),
        *_pointers("d_h", "d_c", "exchange", "flags", "partial", "quad_flags"),
        *_SIZES,
    ]


class _Finish(ctypes.Structure):
    _fields_ = [
        *_pointers("flow", "tokens", "vectors", "uz", "d_gates", "sums"),
        ("rows", ctypes.c_longlong),
        ("width", ctypes.c_int),
        ("padded", ctypes.c_int),
    ]


class _Turn(ctypes.Structure):
    _fields_ = [*_pointers("u", "turned"), ("width", ctypes.c_int)]


@functools.cache
def source(kind: str, **defines: int) -> nvrtc.Source:
    """One kernel of persistent.cu: "GRID_FORWARD", "GRID_BACKWARD", "CLUSTER_FORWARD", "CLUSTER_BACKWARD", "FINISH" or "TURN"."""
    headers = tuple((name, (CSRC / file).read_text()) for name, file in HEADERS.items())
    options = (*OPTIONS, f"-D{kind}", *(f"-D{name}={value}" for name, value in defines.items()))
    return nvrtc.Source("persistent.cu", (CSRC / "persistent.cu").read_text(), headers, options)


def shared_bytes(kind: str, hp: int, columns: int = CLUSTER_ROWS) -> int:
    """Dynamic shared memory, as each kernel divides it, and what it may lose by aligning it."""
    chunks, tile = hp // CHUNK, columns * 128
    eights = columns // 8
    return (
        1024
        + {
            "GRID_FORWARD": chunks * tile + 2 * max(1, eights // 2) * 128 * 16 + columns * 32 + 8 * chunks,
            "GRID_BACKWARD": chunks * tile + 2 * 8 * columns * 16 * 4 + 64 * 16 + 8 * chunks,
            "CLUSTER_FORWARD": 2 * chunks * tile + 2 * CLUSTER_ROWS * 32 * 2 + 16,
            "CLUSTER_BACKWARD": 2 * 4 * chunks * tile + 2 * tile + 2 * 32 * 9 * 4 + 16,
        }[kind]
    )


@functools.cache
def _cluster_kernel(kind: str, device: int, hp: int) -> nvrtc.Kernel:
    shared = shared_bytes(kind, hp)
    return nvrtc.load(source(kind, HP=hp), kind.lower(), device, threads=THREADS, shared=shared, cluster=hp // 32)


@functools.cache
def _grid_kernel(kind: str, device: int, hp: int, columns: int, blocks: int) -> tuple[nvrtc.Kernel, bool]:
    """The kernel, and whether it needs memory for partial sums: where the backward pass cannot have clusters of four."""
    shared = shared_bytes(kind, hp, columns)
    size = {"HP": hp, "COLUMNS": columns}
    load = functools.partial(nvrtc.load, function=kind.lower(), device=device, threads=THREADS, shared=shared, cooperative=True)
    if kind == "GRID_FORWARD":
        return load(source(kind, **size), cluster=2), False
    if blocks <= multiprocessors(device) - UNCLUSTERED:
        kernel = load(source(kind, **size, QUADS=1), cluster=4)
        if 4 * kernel.clusters_at_once((blocks, 1)) >= blocks:
            return kernel, False
    return load(source(kind, **size, QUADS=0)), True


@functools.cache
def _finish_kernel(device: int) -> nvrtc.Kernel:
    return nvrtc.load(source("FINISH"), "finish", device, threads=THREADS)


@functools.cache
def _turn_kernel(device: int) -> nvrtc.Kernel:
    return nvrtc.load(source("TURN"), "turn", device, threads=THREADS)


def _turned(u: Float[Tensor, "gh h"]) -> Float[Tensor, "h h 4"]:
    """U^T, a unit's gates side by side: as the backward pass reads it."""
    h = u.shape[1]
    turned, squares = u.new_empty((h, h, 4)), -(-h // 32)
    stream = torch.cuda.current_stream(u.device).cuda_stream
    _turn_kernel(u.device.index).launch((squares, squares), _Turn(u.data_ptr(), turned.data_ptr(), h), stream)
    return turned


def _launch(kind: str, given: _Forward | _Backward, n: int, hp: int, like: Tensor) -> None:
    """Run one pass over all rows of the batch, with the memory its blocks talk through."""
    if n == 0:
        return  # an empty batch
    device, sms = like.device.index, multiprocessors(like.device.index)
    stream = torch.cuda.current_stream(like.device).cuda_stream
    given.batch = n
    if in_clusters(n, hp, sms):
        given.first, given.end = 0, n
        blocks = -(-n // CLUSTER_ROWS) * (hp // 32)
        _cluster_kernel(f"CLUSTER_{kind}", device, hp).launch((blocks, 1), given, stream)
        return
    plan = grid_plan(n, hp, sms)
    assert plan is not None, "why_not refuses it"
    blocks = plan.groups * (hp // 16)
    kernel, sums = _grid_kernel(f"GRID_{kind}", device, hp, plan.columns, blocks)
    # A launch after another may use its exchange again, but counts its flags from zero. Nothing here outlives the call: calls on
    # several streams, or replays of a captured one, never meet.
    chunks = plan.groups * (hp // CHUNK) if kind == "FORWARD" else blocks
    flags = like.new_zeros((plan.slices, 2 if sums else 1, chunks, 32), dtype=torch.int32)
    exchange = like.new_empty((2, chunks, plan.columns, CHUNK), dtype=torch.bfloat16)
    given.exchange = exchange.data_ptr()
    if sums:
        partial = like.new_empty((2, blocks, 8, plan.columns * 16), dtype=torch.float32)
        assert isinstance(given, _Backward)
        given.partial = partial.data_ptr()
    for slice_ in range(plan.slices):
        given.first, given.end = slice_ * plan.rows, min(n, (slice_ + 1) * plan.rows)
        given.flags = flags[slice_, 0].data_ptr()
        if isinstance(given, _Backward):
            given.quad_flags = flags[slice_, -1].data_ptr()
        kernel.launch((-(-(given.end - given.first) // plan.columns) * (hp // 16), 1), given, stream)


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


# ------------------------------------------------------------------------------------------------------------------ order


def gates_last(x: Tensor, hp: int, dim: int) -> Tensor:
    """(gate, unit) along an axis becomes (unit, gate), with zeros for units up to ``hp``."""
    words, h = _words(x, dim), x.shape[dim] // 4
    turned: Tensor = words.unflatten(dim, (4, h)).transpose(dim, dim + 1)
    if h != hp:
        out = words.new_zeros((*words.shape[:dim], hp, 4, *words.shape[dim + 1 :]))
        out.narrow(dim, 0, h).copy_(turned)
        turned = out
    return turned.flatten(dim, dim + 1).view(x.dtype)


def gates_first(x: Tensor, h: int, dim: int) -> Tensor:
    """The inverse of ``gates_last``, without its zeros."""
    split: Tensor = _words(x, dim).unflatten(dim, (-1, 4))
    return split.narrow(dim, 0, h).transpose(dim, dim + 1).flatten(dim, dim + 1).view(x.dtype)


def _words(x: Tensor, dim: int) -> Tensor:
    """x as words of 8 bytes, if rows are moved whole: torch copies one element at a time."""
    each = 8 // x.element_size()
    whole = dim < x.dim() - 1 and x.is_contiguous() and x.shape[-1] % each == 0 and x.storage_offset() % each == 0
    return x.view(torch.int64) if whole else x


def _eights(x: Tensor) -> Tensor:
    """Features padded to a multiple of 8, without which products are slow."""
    return padded(x, -(-x.shape[-1] // 8) * 8)


def _weight(p: Inputs, hp: int) -> Float[Tensor, "ghp i8"]:
    return gates_last(_eights(p.wx), hp, 0)


def _flow(p: Inputs, hp: int) -> tuple[Tensor, Tensor | None]:
    """What the kernels read W x from: W x itself, (t, n, 4 hp), or with tokens the table, (symbols, 4 hp); and W in their order."""
    if p.x is None:
        return gates_last(p.wx, hp, p.wx.dim() - 1), None
    (t, n, _), weight = p.x.shape, _weight(p, hp)
    return torch.mm(_eights(p.x).flatten(0, 1), weight.t()).view(t, n, 4 * hp), weight


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


# --------------------------------------------------------------------------------------------------------------- passes


def kept(p: Inputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """U h of every step, c before every step; W x, unless the table is at hand; and with x, W in the kernels' order."""
    t, (n, h) = p.steps, p.h.shape
    hp = padded_width(h)
    found: list[tuple[tuple[int, ...], torch.dtype]] = [((t, n, 4 * hp), torch.bfloat16), ((t, n, hp), torch.float32)]
    if p.tokens is None:
        found.append(((t, n, 4 * hp), torch.bfloat16))
    if p.x is not None:
        found.append(((4 * hp, -(-p.x.shape[2] // 8) * 8), torch.bfloat16))
    return found


def forward(p: Inputs, keep: bool) -> Outputs:
    t, (n, h) = p.steps, p.h.shape
    hp = padded_width(h)
    assert p.c is not None, "an LSTM has a c"
    (flow, weight), tokens, lengths = _flow(p, hp), _contiguous(p.tokens), _contiguous(p.lengths)
    u, vectors, h0, c0 = p.u.contiguous(), p.vectors.contiguous(), p.h.contiguous(), p.c.contiguous()
    outputs, last_h, last_c = u.new_empty((t, n, h)), torch.empty_like(h0), torch.empty_like(c0)
    uz = u.new_empty((t, n, 4 * hp)) if keep else None
    cs = h0.new_empty((t, n, hp)) if keep else None
    given = _Forward(
        *map(_at, (flow, tokens, u, vectors, h0, c0, lengths, outputs, uz, cs, last_h, last_c)), None, None, t, n, h
    )  # fmt: skip
    _launch("FORWARD", given, n, hp, u)
    if uz is None or cs is None:
        return Outputs(outputs, last_h, last_c, ())
    rest = (flow if tokens is None else None, weight)
    return Outputs(outputs, last_h, last_c, (uz, cs, *(made for made in rest if made is not None)))


def backward(
    p: Inputs, kept: Sequence[Tensor], outputs: Tensor, grads: Sequence[Tensor | None], wanted: frozenset[str]
) -> Gradients:
    t, (n, h) = p.steps, p.h.shape
    hp = padded_width(h)
    uz, cs, *rest = kept
    tokens, u, vectors, lengths = _contiguous(p.tokens), p.u.contiguous(), p.vectors.contiguous(), _contiguous(p.lengths)
    weight = None if p.x is None else rest[-1]
    flow = rest[0] if tokens is None else _flow(p, hp)[0]
    d_outputs = torch.zeros_like(outputs) if grads[0] is None else grads[0].contiguous()
    d_last_h, d_last_c = (_contiguous(grad) for grad in grads[1:])
    d_uz, d_gates = torch.empty_like(uz), torch.empty_like(uz)
    d_h, d_c = p.h.new_empty(p.h.shape), p.h.new_empty(p.h.shape)
    turned = _turned(u)
    given = _Backward(
        *map(_at, (flow, tokens, turned, vectors, lengths, uz, cs, d_outputs, d_last_h, d_last_c, d_uz, d_gates, d_h, d_c)),
        *(None,) * 4, t, n, h,
    )  # fmt: skip
    _launch("BACKWARD", given, n, hp, u)
    d_x, d_wx, d_vectors = _input_gradients(p, flow, weight, tokens, vectors, uz, d_gates, wanted)
    if "h" in wanted:
        d_h += torch.mm(gates_first(d_uz[0], h, 1), u, out_dtype=torch.float32)
    return Gradients(
        x=d_x,
        wx=d_wx,
        u=_recurrent_gradient(p, outputs, d_uz) if "u" in wanted else None,
        vectors=d_vectors,
        h=d_h if "h" in wanted else None,
        c=d_c if "c" in wanted else None,
    )


def _recurrent_gradient(p: Inputs, outputs: Float[Tensor, "t n h"], d_uz: Float[Tensor, "t n ghp"]) -> Float[Tensor, "gh h"]:
    """dU: at each step d_uz times the h before it."""
    h = p.h.shape[1]
    total = torch.mm(d_uz[1:].flatten(0, 1).t(), _eights(outputs[:-1]).flatten(0, 1))  # zeros, if there is one step
    if not p.fresh:
        total.addmm_(d_uz[0].t(), _eights(p.h.to(d_uz.dtype)))
    return gates_first(total[:, :h], h, 0)


def _input_gradients(
    p: Inputs,
    flow: Tensor,
    weight: Tensor | None,
    tokens: Tensor | None,
    vectors: Tensor,
    uz: Tensor,
    d_gates: Tensor,
    wanted: frozenset[str],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, wx and the vectors. Turns ``d_gates`` into the gradient of W x."""
    if not wanted & {"x", "wx", "vectors"}:
        return None, None, None
    t, (n, h), hp = p.steps, p.h.shape, uz.shape[2] // 4
    sums = _finish(flow, tokens, vectors, uz, d_gates, h)
    d_flow = d_gates
    d_vectors = gates_first(sums.sum(0), h, 1) if "vectors" in wanted else None
    d_x = d_wx = None
    if p.x is not None and weight is not None and "x" in wanted:
        d_x = torch.mm(d_flow.view(t * n, 4 * hp), weight).view(t, n, -1)[..., : p.x.shape[2]].contiguous()
    if "wx" in wanted:
        if tokens is not None:
            d_wx = gates_first(table_gradient(tokens, d_flow, p.wx.shape[0]), h, 1)
        elif p.x is None:
            d_wx = gates_first(d_flow, h, 2)
        else:
            d_wx = gates_first(torch.mm(d_flow.view(t * n, 4 * hp).t(), _eights(p.x).flatten(0, 1))[:, : p.x.shape[2]], h, 0)
    return d_x, d_wx, d_vectors


def _finish(
    flow: Tensor, tokens: Tensor | None, vectors: Tensor, uz: Tensor, d_gates: Tensor, h: int
) -> Float[Tensor, "blocks 4 ghp"]:
    """Turn ``d_gates`` into the gradient of W x, in place; returns those of the vectors, in as many parts as there were blocks."""
    t, n, columns = uz.shape
    across = -(-columns // 256)
    # three blocks to a multiprocessor, unless rows are fewer than their warps
    down = max(1, min(-(-3 * multiprocessors(uz.device.index) // across), t * n // 16))
    sums = torch.empty((down, 4, columns), dtype=torch.float32, device=uz.device)
    given = _Finish(*map(_at, (flow, tokens, vectors, uz, d_gates, sums)), t * n, h, columns // 4)
    if t * n == 0:
        return sums.zero_()
    stream = torch.cuda.current_stream(uz.device).cuda_stream
    _finish_kernel(uz.device.index).launch((across, down), given, stream)
    return sums
