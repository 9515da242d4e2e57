"""How does a whole sequence of an MI layer run as one kernel, on a Hopper GPU?

Engine of the GPU backend for bfloat16 or float16 and up to 1024 units; csrc/persistent.cu says how its kernels work. Here: which
of them takes a problem, with how many thread blocks, and the products before and after the time loop. Arrays over steps have units
padded to hp, complete tiles of the kernels, and are made of quartets (``Shape``); weights and gradients have the caller's order.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from multint.cells import CELLS
from multint.scan import nvrtc
from multint.scan.contract import Problem
from multint.scan.gpu_engine import Gradients, Inputs, Outputs, cut, padded, table_gradient
from multint.shapes import Float

CSRC = Path(__file__).with_name("csrc")
HEADERS = {"cells.h": "cells.h", "lanes.h": "device_lanes.h"}  # by the name they are included by
OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--diag-suppress=177")  # 177: no kernel uses every helper
STORAGE = {torch.bfloat16: "bf16", torch.float16: "f16"}  # what the kernels store, and PTX's names of it
CAPABILITY = (9, 0)
THREADS = 256

CHUNK = 64  # units in one tile of h
MOST_UNITS = 1024  # U's part of a thread block is in its registers
CLUSTER_ROWS = 8  # of the batch, to a cluster
WIDEST = 64  # with so many columns a thread block puts aside in shared memory what else is in registers
GPC_BLOCKS = 16  # blocks of clusters that fit a cluster's part of the GPU, at one on each multiprocessor
UNCLUSTERED = 12  # multiprocessors that clusters of four leave unused


@dataclass(frozen=True)
class Limits:
    """What registers, and what was measured, allow a cell."""

    cluster: int  # units up to which U fits one cluster
    columns: tuple[int, ...]  # rows of the batch to a group of blocks, as wgmma takes them
    slices: int = 4  # of the batch, one after the other: with more, products over all rows at once are faster


LIMITS = {
    "lstm": Limits(320, (8, 16, 32, WIDEST)),
    "gru": Limits(320, (8, 16, 32), slices=1),  # each step has two stages
    "gru_after": Limits(320, (8, 16, 32, WIDEST)),
    "rnn": Limits(384, (8, 16, 32)),
}


@dataclass(frozen=True)
class Shape:
    """What the kernels are compiled for: the cell, and its units padded to whole tiles.

    A quartet is four values side by side: the gates of a unit, three of a GRU's and an empty slot, or four units of an RNN.
    """

    cell: str
    h: int

    @property
    def gates(self) -> int:
        return len(CELLS[self.cell].gates)

    @property
    def limits(self) -> Limits:
        return LIMITS[self.cell]

    @property
    def hp(self) -> int:
        """An RNN's blocks have whole tiles, and come in pairs."""
        whole = 2 * CHUNK if self.gates == 1 else CHUNK
        return -(-self.h // whole) * whole

    @property
    def stages(self) -> int:
        """Products with U in a step, one after the other."""
        return 1 if CELLS[self.cell].shared == self.gates else 2

    @property
    def quartets(self) -> int:
        return self.hp // 4 if self.gates == 1 else self.hp

    @property
    def parts(self) -> int:
        """Thread blocks that share U, when h goes through L2."""
        return self.quartets // 16

    @property
    def cluster(self) -> int:
        """Thread blocks that share U, when h stays in a cluster."""
        return self.quartets // 32

    @property
    def shares(self) -> bool:
        """Whether blocks share sums of the backward pass, for which clusters of four are best."""
        return self.gates > 1

    def room(self, sms: int) -> int:
        """Multiprocessors there are for it. In two stages sums through L2 have not been tried: what clusters leave is not used."""
        return sms if self.stages == 1 else max(0, sms - UNCLUSTERED)

    def rows(self, sms: int) -> int:
        """Of the batch, at most, to a slice."""
        return self.room(sms) // self.parts * self.limits.columns[-1]


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
    if p.u.dtype not in STORAGE:
        return f"the persistent kernels store bfloat16 or float16, not {p.u.dtype}"
    if p.resets is not None:
        return "the persistent kernels know no resets"
    if h > MOST_UNITS:
        return f"the persistent kernels hold U in registers, which have room for {MOST_UNITS} units, not {h}"
    if p.u.device.type != "cuda":
        return f"its tensors are on {p.u.device}, not on a GPU"
    return missing() or other_kind(p.u.device.index) or _crowded(n, Shape(p.cell.name, h), multiprocessors(p.u.device.index))


def _crowded(n: int, shape: Shape, sms: int) -> str | None:
    """Why the GPU is too small for so many rows or units. Few questions about n: torch.compile guards their answers."""
    most, allowed = shape.rows(sms), shape.limits.slices
    if most == 0:
        needed = shape.parts + (0 if shape.stages == 1 else UNCLUSTERED)
        return f"the persistent kernels need {needed} multiprocessors for {shape.h} units, this GPU has {sms}"
    waves = shape.hp <= shape.limits.cluster and (shape.stages == 1 or _few_waves(n, shape, sms))  # of clusters, to serve n rows
    if n > allowed * most and not waves:
        if torch.compiler.is_compiling():
            return "too many rows for the persistent kernels"  # a number in it would be one the graph is made for
        return f"the persistent kernels would take {n} rows of {shape.h} units in {-(-n // most)} slices, more than {allowed}"
    return None


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
    """The batch in slices of ``rows`` rows, one launch each; in a launch one group of blocks for every ``columns`` rows."""

    columns: int
    rows: int
    slices: int = 1

    @property
    def groups(self) -> int:
        return -(-self.rows // self.columns)


@functools.lru_cache(maxsize=1024)  # asked at every call
def grid_plan(n: int, shape: Shape, sms: int) -> Plan | None:
    """All blocks of a launch wait for each other, so each must have its multiprocessor; None where not even one group fits.

    Few columns to a group are fast, and so are clusters of four in the backward pass: what leaves room for them comes first.
    """
    for limit in (sms - UNCLUSTERED, shape.room(sms)) if shape.shares else (sms,):
        for columns in shape.limits.columns:
            plan = Plan(columns, n)
            if plan.groups * shape.parts <= limit:
                return plan
    if shape.rows(sms) == 0:
        return None
    slices = -(-n // shape.rows(sms))
    one = grid_plan(-(-n // slices), shape, sms)
    return one and replace(one, slices=slices)


@functools.lru_cache(maxsize=1024)
def in_clusters(n: int, shape: Shape, sms: int) -> bool:
    """Whether the cluster kernels take it: small U, and few rows, or so many that they would make too many slices."""
    if shape.hp > shape.limits.cluster:
        return False
    plan = grid_plan(n, shape, sms)
    return _few_waves(n, shape, sms) or plan is None or plan.slices > shape.limits.slices


def _few_waves(n: int, shape: Shape, sms: int) -> bool:
    """Whether at most two clusters come one after the other."""
    at_once = max(1, sms // GPC_BLOCKS) * (GPC_BLOCKS // shape.cluster)
    return -(-n // CLUSTER_ROWS) <= 2 * at_once


# ---------------------------------------------------------------------------------------------------------------- kernels

_SIZES = [(name, ctypes.c_int) for name in ("steps", "batch", "width", "first", "end")]


def _pointers(*names: str) -> list[tuple[str, type[ctypes.c_void_p]]]:
    return [(name, ctypes.c_void_p) for name in names]


class _Forward(ctypes.Structure):  # as in persistent.cu, like the next
    _fields_ = [
        *_pointers("flow", "tokens", "u", "vectors", "bias_hn", "h", "c", "lengths", "outputs", "operands", "uz", "cs"),
        *_pointers("last_h", "last_c", "exchange", "flags"),
        *_SIZES,
    ]


class _Backward(ctypes.Structure):
    _fields_ = [
        *_pointers("flow", "tokens", "u", "vectors", "bias_hn", "lengths", "uz", "cs", "outputs", "h"),
        *_pointers(
            "d_outputs", "d_last_h", "d_last_c", "d_uz", "d_wx", "sums", "d_h", "d_c", "exchange", "flags", "partial", "owner_flags"
        ),
        *_SIZES,
    ]


class _Turn(ctypes.Structure):
    _fields_ = [*_pointers("u", "turned"), ("width", ctypes.c_int)]


@functools.cache
def source(kind: str, cell: str, dtype: torch.dtype, phi: str = "tanh", **defines: int) -> nvrtc.Source:
    """One kernel of persistent.cu: "GRID_FORWARD", "GRID_BACKWARD", "CLUSTER_FORWARD", "CLUSTER_BACKWARD" or "TURN"."""
    headers = tuple((name, (CSRC / file).read_text()) for name, file in HEADERS.items())
    named = {"CELL": cell, "PHI": phi.capitalize(), "STORAGE": STORAGE[dtype], **defines}  # as cells.h, lanes.h and PTX call them
    options = (*OPTIONS, f"-D{kind}", *(f"-D{name}={value}" for name, value in named.items()))
    return nvrtc.Source("persistent.cu", (CSRC / "persistent.cu").read_text(), headers, options)


def shared_bytes(kind: str, shape: Shape, columns: int = CLUSTER_ROWS, quads: bool = False) -> int:
    """Dynamic shared memory, as each kernel divides it, and what it may lose by aligning it."""
    chunks, tile, units = shape.hp // CHUNK, columns * 128, shape.hp // shape.quartets
    workers = min(THREADS, 16 * columns)
    # of the backward pass through L2: tiles of a block's share, partial sums, gradients of vectors, flows of the step
    share = chunks // 2 if shape.shares and not quads and chunks % 2 == 0 else chunks
    partial = 2 * 8 * columns * 16 if quads else 0 if shape.shares else 2 * columns * 68
    totals, seen = (4 * workers, 0) if columns < WIDEST else (8 * workers, 4 * workers)
    product = 2 * CLUSTER_ROWS * 36 if shape.shares else CLUSTER_ROWS * 132
    return (
        1024
        + {
            "GRID_FORWARD": chunks * tile + 2 * max(1, columns // 16) * 128 * 16 + columns * 32 * units + 8 * chunks,
            "GRID_BACKWARD": share * tile + partial * 4 + 64 * 16 + (totals + seen) * 16 + 8 * share,
            "CLUSTER_FORWARD": 2 * chunks * tile + 2 * CLUSTER_ROWS * 32 * units * 2 + 16,
            "CLUSTER_BACKWARD": 2 * shape.quartets // 16 * tile + 2 * tile + product * 4 + 16,
        }[kind]
    )


@functools.cache
def _cluster_kernel(kind: str, device: int, shape: Shape, dtype: torch.dtype, phi: str) -> nvrtc.Kernel:
    program = source(kind, shape.cell, dtype, phi, HP=shape.hp)
    shared = shared_bytes(kind, shape)
    return nvrtc.load(program, kind.lower(), device, threads=THREADS, shared=shared, cluster=shape.cluster)


@functools.cache
def _grid_kernel(
    kind: str, device: int, shape: Shape, dtype: torch.dtype, phi: str, columns: int, blocks: int
) -> tuple[nvrtc.Kernel, bool]:
    """The kernel, and whether it needs memory for partial sums: where the backward pass cannot have clusters of four."""
    program = functools.partial(source, kind, shape.cell, dtype, phi, HP=shape.hp, COLUMNS=columns)

    def load(program: nvrtc.Source, cluster: int, quads: bool = False) -> nvrtc.Kernel:
        shared = shared_bytes(kind, shape, columns, quads)
        return nvrtc.load(program, kind.lower(), device, threads=THREADS, shared=shared, cluster=cluster, cooperative=True)

    if kind == "GRID_FORWARD":
        return load(program(), 2), False
    if shape.shares and columns < WIDEST and blocks <= multiprocessors(device) - UNCLUSTERED:
        kernel = load(program(QUADS=1), 4, quads=True)
        if 4 * kernel.clusters_at_once((blocks, 1)) >= blocks:
            return kernel, False
    return load(program(QUADS=0), 1), shape.shares


@functools.cache
def _turn_kernel(device: int, cell: str) -> nvrtc.Kernel:
    program = source("TURN", cell, torch.bfloat16)  # for float16 too: it moves bits
    return nvrtc.load(program, "turn", device, threads=THREADS)


def _turned(u: Float[Tensor, "gh h"], shape: Shape) -> Float[Tensor, "h k"]:
    """U^T as the backward pass reads it, in the order of quartets: (h, h, 4), of an RNN (h, hp)."""
    h = shape.h
    if shape.gates == 1:
        return padded(u, shape.hp, 0).t().contiguous()
    turned, squares = u.new_empty((h, 4 * h)), -(-h // 32)
    stream = torch.cuda.current_stream(u.device).cuda_stream
    _turn_kernel(u.device.index, shape.cell).launch((squares, squares), _Turn(u.data_ptr(), turned.data_ptr(), h), stream)
    return turned


def groups_of_rows(n: int, shape: Shape, sms: int) -> int:
    """Into how many groups, each with blocks of its own, a pass divides the batch; the last slice may have fewer than its share."""
    if in_clusters(n, shape, sms):
        return -(-n // CLUSTER_ROWS)
    plan = grid_plan(n, shape, sms)
    return 0 if plan is None else plan.slices * plan.groups


def _launch(kind: str, given: _Forward | _Backward, n: int, shape: Shape, phi: str, like: Tensor) -> None:
    """Run one pass over all rows of the batch, with the memory its blocks talk through; ``like`` has the dtype of storage."""
    if n == 0:
        return  # an empty batch
    device, sms = like.device.index, multiprocessors(like.device.index)
    stream = torch.cuda.current_stream(like.device).cuda_stream
    given.batch = n
    padded_shape = Shape(shape.cell, shape.hp)  # one kernel for all that are padded to it
    if in_clusters(n, shape, sms):
        given.first, given.end = 0, n
        blocks = -(-n // CLUSTER_ROWS) * shape.cluster
        _cluster_kernel(f"CLUSTER_{kind}", device, padded_shape, like.dtype, phi).launch((blocks, 1), given, stream)
        return
    plan = grid_plan(n, shape, sms)
    assert plan is not None, "why_not refuses it"
    blocks = plan.groups * shape.parts
    kernel, sums = _grid_kernel(f"GRID_{kind}", device, padded_shape, like.dtype, phi, plan.columns, blocks)
    # A launch after another may use its exchange again, but counts its flags from zero. Nothing here outlives the call: calls on
    # several streams, or replays of a captured one, never meet.
    chunks = plan.groups * (shape.hp // CHUNK) if kind == "FORWARD" else blocks
    kinds = 2 if sums else 1
    flags = like.new_zeros((plan.slices, kinds, chunks, 32), dtype=torch.int32)
    flag_bytes = chunks * 32 * flags.element_size()  # of one slice and kind
    exchange = like.new_empty((2, chunks, plan.columns, CHUNK))
    given.exchange = exchange.data_ptr()
    if sums:
        partial = like.new_empty((2, blocks, 8, plan.columns * 16), dtype=torch.float32)
        assert isinstance(given, _Backward)
        given.partial = partial.data_ptr()
    for slice_ in range(plan.slices):
        given.first, given.end = slice_ * plan.rows, min(n, (slice_ + 1) * plan.rows)
        given.flags = flags.data_ptr() + slice_ * kinds * flag_bytes
        if isinstance(given, _Backward):
            given.owner_flags = flags.data_ptr() + (slice_ * kinds + kinds - 1) * flag_bytes
        groups = -(-(given.end - given.first) // plan.columns)
        kernel.launch((groups * shape.parts, 1), given, stream)
        if isinstance(given, _Backward):
            given.sums += groups * 4 * 4 * shape.quartets * 4  # behind the floats of this one's groups


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


# ------------------------------------------------------------------------------------------------------------------ order


def quartets(x: Tensor, shape: Shape, dim: int) -> Tensor:
    """(gate, unit) along an axis in the order of quartets, with zeros for empty slots and for units up to hp."""
    if shape.gates == 1:
        return padded(x, shape.hp, dim)
    words = _words(x, dim)
    turned: Tensor = words.unflatten(dim, (shape.gates, shape.h)).transpose(dim, dim + 1)
    if (shape.h, shape.gates) != (shape.hp, 4):
        out = words.new_zeros((*words.shape[:dim], shape.hp, 4, *words.shape[dim + 1 :]))
        out.narrow(dim, 0, shape.h).narrow(dim + 1, 0, shape.gates).copy_(turned)
        turned = out
    return turned.flatten(dim, dim + 1).view(x.dtype)


def gates_first(x: Tensor, shape: Shape, dim: int) -> Tensor:
    """The inverse of ``quartets``, without its zeros."""
    if shape.gates == 1:
        return cut(x, shape.h, dim).contiguous()
    split = cut(cut(_words(x, dim).unflatten(dim, (-1, 4)), shape.h, dim), shape.gates, dim + 1)
    gates: Tensor = split.transpose(dim, dim + 1).flatten(dim, dim + 1)
    return (gates if gates.dtype == x.dtype else gates.view(x.dtype)).contiguous()


def _words(x: Tensor, dim: int) -> Tensor:
    """x as words of 8 bytes, if rows are moved whole: torch copies one element at a time."""
    each = 8 // x.element_size()
    whole = dim < x.dim() - 1 and x.is_contiguous() and x.shape[-1] % each == 0 and x.storage_offset() % each == 0
    return x.view(torch.int64) if whole else x


def _eights(x: Tensor) -> Tensor:
    """Features padded to a multiple of 8, without which products are slow."""
    return padded(x, -(-x.shape[-1] // 8) * 8)


def _weight(p: Inputs, shape: Shape) -> Float[Tensor, "ghp i8"]:
    return quartets(_eights(p.wx), shape, 0)


def _flow(p: Inputs, shape: Shape) -> tuple[Tensor, Tensor | None]:
    """What the kernels read W x from, in quartets: W x itself, (t, n, ...), or with tokens the table, (symbols, ...); and so W."""
    if p.x is None:
        flow = quartets(p.wx, shape, p.wx.dim() - 1).contiguous()
        return flow if flow.data_ptr() % 8 == 0 else flow.clone(), None  # an RNN's may be the caller's own, at any address
    (t, n, _), weight = p.x.shape, _weight(p, shape)
    return torch.mm(_eights(p.x).flatten(0, 1), weight.t()).view(t, n, -1), weight


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


# --------------------------------------------------------------------------------------------------------------- passes


def kept(p: Inputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """What forward made and backward needs: U h of every step; an LSTM's c before it; a GRU's r h; and ``_made``."""
    shape = Shape(p.cell, p.h.shape[1])
    t, n, columns = p.steps, p.h.shape[0], 4 * shape.quartets
    found: list[tuple[int, ...]] = [] if p.recompute else [(t, n, columns)]
    if p.c is not None:
        found.append((t, n, shape.hp))
    if shape.stages > 1:
        found.append((t, n, shape.h))
    flow, weight = _made(p, shape)
    if flow:
        found.append((t, n, columns))
    if weight and p.x is not None:
        found.append((columns, -(-p.x.shape[2] // 8) * 8))
    return [(size, p.u.dtype) for size in found]


def _made(p: Inputs, shape: Shape) -> tuple[bool, bool]:
    """Whether W x and W in the order of quartets are kept: not where they are at hand, or are what the caller gave."""
    if p.recompute:
        return False, False
    if shape.gates == 1:
        return p.x is not None, False
    return p.tokens is None, p.x is not None


def reads_outputs(p: Inputs) -> bool:
    return True


def forward(p: Inputs, keep: bool) -> Outputs:
    t, (n, h) = p.steps, p.h.shape
    shape = Shape(p.cell, h)
    (flow, weight), tokens, lengths = _flow(p, shape), _contiguous(p.tokens), _contiguous(p.lengths)
    u, vectors, bias_hn = p.u.contiguous(), p.vectors.contiguous(), _contiguous(p.bias_hn)
    h0, c0 = p.h.contiguous(), _contiguous(p.c)
    outputs, last_h, last_c = u.new_empty((t, n, h)), torch.empty_like(h0), None if c0 is None else torch.empty_like(c0)
    uz = u.new_empty((t, n, 4 * shape.quartets)) if keep else None
    cs = u.new_empty((t, n, shape.hp)) if keep and c0 is not None else None
    operands = torch.empty_like(outputs) if keep and shape.stages > 1 else None
    read = (flow, tokens, u, vectors, bias_hn, h0, c0, lengths)
    given = _Forward(*map(_at, (*read, outputs, operands, uz, cs, last_h, last_c)), None, None, t, n, h)
    _launch("FORWARD", given, n, shape, p.phi, u)
    if uz is None:
        return Outputs(outputs, last_h, last_c, ())
    made = (tensor if needed else None for tensor, needed in zip((flow, weight), _made(p, shape), strict=True))
    found = (None if p.recompute else uz, cs, operands, *made)
    return Outputs(outputs, last_h, last_c, tuple(x for x in found if x is not None))


def backward(
    p: Inputs, kept: Sequence[Tensor], outputs: Tensor | None, grads: Sequence[Tensor | None], wanted: frozenset[str]
) -> Gradients:
    assert outputs is not None
    t, (n, h) = p.steps, p.h.shape
    shape = Shape(p.cell, h)
    rest, (flow_kept, weight_kept) = list(kept), _made(p, shape)
    uz = None if p.recompute else rest.pop(0)
    cs = None if p.c is None else rest.pop(0)
    operands = rest.pop(0) if shape.stages > 1 else None
    if flow_kept:
        flow, weight = rest.pop(0), None if p.x is None else rest.pop(0) if weight_kept else _weight(p, shape)
    else:
        flow, weight = _flow(p, shape)
    if uz is None:
        uz = _uz(p, shape, outputs, operands)
    tokens, u, vectors, lengths = _contiguous(p.tokens), p.u.contiguous(), p.vectors.contiguous(), _contiguous(p.lengths)
    bias_hn = _contiguous(p.bias_hn)
    d_outputs = torch.zeros_like(outputs) if grads[0] is None else grads[0].contiguous()
    d_last_h, d_last_c = (_contiguous(grad) for grad in grads[1:])
    d_uz, d_flow = torch.empty_like(uz), torch.empty_like(uz)
    d_h, d_c = p.h.new_empty(p.h.shape), p.h.new_empty(p.h.shape)
    turned = _turned(u, shape)
    h0, outputs = p.h.contiguous(), outputs.contiguous()
    sums = p.h.new_zeros((groups_of_rows(n, shape, multiprocessors(u.device.index)), 4, 4 * shape.quartets))
    read = (flow, tokens, turned, vectors, bias_hn, lengths, uz, cs, outputs, h0, d_outputs, d_last_h, d_last_c)
    given = _Backward(*map(_at, (*read, d_uz, d_flow, sums, d_h, d_c)), *(None,) * 4, t, n, h)
    _launch("BACKWARD", given, n, shape, p.phi, u)
    d_x, d_wx = _input_gradients(p, shape, weight, tokens, d_flow, wanted)
    if "h" in wanted:
        through = CELLS[p.cell].shared * h  # rows of U that are multiplied by h itself
        d_h += torch.mm(gates_first(d_uz[0], shape, 1)[:, :through], u[:through], out_dtype=torch.float32)
    return Gradients(
        x=d_x,
        wx=d_wx,
        u=_recurrent_gradient(p, shape, outputs, operands, d_uz) if "u" in wanted else None,
        vectors=gates_first(sums.sum(0), shape, 1) if "vectors" in wanted else None,
        bias_hn=d_c.sum(0) if "bias_hn" in wanted else None,  # of a GRU that is what it has
        h=d_h if "h" in wanted else None,
        c=d_c if "c" in wanted else None,
    )


def _uz(
    p: Inputs, shape: Shape, outputs: Float[Tensor, "t n h"], operands: Float[Tensor, "t n h"] | None
) -> Float[Tensor, "t n ghp"]:
    """U h of every step once more, in quartets: one product over all steps and rows, and for a GRU's gate n one with r h."""
    t, n, h = outputs.shape
    u = quartets(_eights(p.u), shape, 0).t()
    uz = outputs.new_empty((t, n, u.shape[1]))
    torch.mm(_eights(outputs[:-1]).flatten(0, 1), u, out=uz[1:].flatten(0, 1))
    if p.fresh:
        uz[0].zero_()
    else:
        torch.mm(_eights(p.h.to(uz.dtype)), u, out=uz[0])
    if operands is not None:
        own = torch.mm(operands.flatten(0, 1), p.u[2 * h :].t())
        uz.unflatten(2, (-1, 4))[:, :, :h, 2].copy_(own.view(t, n, h))
    return uz


def _recurrent_gradient(
    p: Inputs,
    shape: Shape,
    outputs: Float[Tensor, "t n h"],
    operands: Float[Tensor, "t n h"] | None,
    d_uz: Float[Tensor, "t n ghp"],
) -> Float[Tensor, "gh h"]:
    """dU: at each step d_uz times the h before it, or for a GRU's gate n times r h."""
    total = torch.mm(d_uz[1:].flatten(0, 1).t(), _eights(outputs[:-1]).flatten(0, 1))  # zeros, if there is one step
    if not p.fresh:
        total.addmm_(d_uz[0].t(), _eights(p.h.to(d_uz.dtype)))
    found = gates_first(cut(total, shape.h), shape, 0)
    if operands is not None:
        d_n = d_uz.unflatten(2, (-1, 4))[..., 2].flatten(0, 1)[:, : shape.h]
        found[2 * shape.h :] = torch.mm(d_n.t().contiguous(), operands.flatten(0, 1))
    return found


def _input_gradients(
    p: Inputs, shape: Shape, weight: Tensor | None, tokens: Tensor | None, d_flow: Tensor, wanted: frozenset[str]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and wx, from that of W x."""
    t, n = p.steps, p.h.shape[0]
    d_x = d_wx = None
    if p.x is not None and weight is not None and "x" in wanted:
        d_x = cut(torch.mm(d_flow.flatten(0, 1), weight).view(t, n, -1), p.x.shape[2]).contiguous()
    if "wx" in wanted:
        if tokens is not None:
            d_wx = gates_first(table_gradient(tokens, d_flow, p.wx.shape[0]), shape, 1)
        elif p.x is None:
            d_wx = gates_first(d_flow, shape, 2)
        else:
            d_wx = gates_first(cut(torch.mm(d_flow.flatten(0, 1).t(), _eights(p.x).flatten(0, 1)), p.x.shape[2]), shape, 0)
    return d_x, d_wx
