"""How fast are the layers on this CPU, and how much memory do they hold, beside torch.nn's and beside our own plain loop?

Each line is a bar: ours / baseline in one interleaved run may be at most the line's limit. A line is measured only after its layer
agreed with the reference backend in the same process: ``python benchmarks/cpu.py`` adds rows to results/bench/.
"""

import argparse
import copy
import ctypes
import functools
import gc
import itertools
import multiprocessing
import operator
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import common
import torch
from common import KINDS, LAYERS, TORCH
from torch import Tensor, nn
from torch.nn import functional as F

import multint

SHAPES = {"middle": (100, 32, 512), "wide": (50, 16, 1024), "large": (100, 64, 700), "light": (50, 32, 256)}  # steps, batch, width
SMALL = {"middle": (7, 2, 16), "wide": (5, 2, 24), "large": (20, 16, 64), "light": (5, 3, 8)}
SYMBOLS = 50
AGREED = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative, by the norm of each tensor
AGREED_STEPS = 5


# ---- what is measured ----


@dataclass
class Side:
    """A module with its input, and ``g``, the gradient its outputs receive; without it there are no gradients at all."""

    layer: nn.Module
    inputs: tuple
    g: Tensor | None = None
    cast: bool = False  # under autocast

    def forward(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.cast):
            return self.layer(*self.inputs)

    def clear(self):
        for tensor in (*self.layer.parameters(), self.inputs[0]):
            tensor.grad = None

    def calls(self, count):
        if self.g is None:
            with torch.no_grad():
                for _ in range(count):
                    self.layer(*self.inputs)  # nothing around it: a single cell's call is short
            return
        for _ in range(count):
            self.clear()
            self.forward()[0].backward(self.g)


@dataclass
class Contest:
    ours: Side
    baselines: dict[str, Side]  # by what to add to the line's name; the fastest one counts
    dtype: str = "float32"


class Encoded(nn.Module):
    """What one writes for tokens without ours: one-hot vectors, then the layer."""

    def __init__(self, encode, layer):
        super().__init__()
        self.encode, self.layer = encode, layer

    def forward(self, tokens):
        return self.layer(self.encode(tokens))


def against_torch(kind, shape, train):
    t, n, h = shape
    ours, theirs = LAYERS[kind]
    x = torch.randn(t, n, h, requires_grad=train)
    g = torch.randn(t, n, h) if train else None
    return Contest(Side(ours(h, h, backend="auto").train(train), (x,), g), {"": Side(theirs(h, h).train(train), (x,), g)})


def against_one_hot(shape):
    t, n, h = shape
    tokens, g = torch.randint(SYMBOLS, (t, n)), torch.randn(t, n, h)
    lstm, table = nn.LSTM(SYMBOLS, h), torch.eye(SYMBOLS)
    encodings = {
        " by F.one_hot": lambda tokens: F.one_hot(tokens, SYMBOLS).float(),
        " by identity table": lambda tokens: F.embedding(tokens, table),
    }
    ours = Side(multint.MILSTM(SYMBOLS, h, backend="auto"), (tokens,), g)
    return Contest(ours, {name: Side(Encoded(encode, lstm), (tokens,), g) for name, encode in encodings.items()})


def against_reference(kind, shape):
    ours = against_torch(kind, shape, True).ours
    return Contest(ours, {"": Side(common.on_reference(ours.layer), ours.inputs, ours.g)})


def against_float32(kind, shape, cast):
    """The layer in bfloat16, by autocast or converted as a whole, beside itself in float32."""
    full = against_torch(kind, shape, True).ours
    x, g = full.inputs[0], full.g.bfloat16()
    if cast:
        return Contest(Side(full.layer, (x,), g, cast=True), {"": full}, "autocast bfloat16")
    half = x.detach().bfloat16().requires_grad_()
    return Contest(Side(copy.deepcopy(full.layer).bfloat16(), (half,), g), {"": full}, "bfloat16")


def against_torch_cell(shape):
    _, n, h = shape
    inputs = torch.randn(n, h), (torch.randn(n, h), torch.randn(n, h))
    ours, theirs = multint.MILSTMCell(h, h, backend="auto").eval(), nn.LSTMCell(h, h).eval()
    return Contest(Side(ours, inputs), {"": Side(theirs, inputs)})


@dataclass(frozen=True)
class Line:
    name: str
    shape: tuple[int, int, int]
    limit: float | None  # None: reported, with nothing promised
    build: Callable[[], Contest]
    kind: str = ""  # of LAYERS, where a profile or the memory needs it
    memory: str = ""  # "retained" or "peak", where bytes are counted instead of seconds
    fewer: bool = False  # a slow baseline: a third of the repeats, at least 5
    extra: str = ""

    def text(self, threads):
        t, n, h = self.shape
        return f"T={t} B={n} H={h} {self.extra}threads={threads}"


def lines(shapes, latency):
    """Every bar, in the order of the printed table."""
    bars, build = [], functools.partial

    def bar(name, shape, limit, contest, **more):
        bars.append(Line(name, shape, limit, contest, **more))

    for kind, where in itertools.product(KINDS, shapes):
        limit = 1.10 if (kind, where) == ("MILSTM", "light") else 1.05 if kind == "MIRNN" else 1.00
        shape = shapes[where]
        bar(f"training {kind} / {TORCH[kind]}", shape, limit, build(against_torch, kind, shape, True), kind=kind)
    for shape in shapes.values():
        extra = f"V={SYMBOLS} "
        bar("training MILSTM on tokens / nn.LSTM on one-hot", shape, 0.95, build(against_one_hot, shape), extra=extra)
    for kind, shape in itertools.product(KINDS, shapes.values()):
        bar(f"forward {kind} / {TORCH[kind]}", shape, 1.00, build(against_torch, kind, shape, False))
    for kind, shape in itertools.product(("MILSTM", "MIGRU", "MIRNN"), shapes.values()):
        bar(f"training {kind} / our reference loop", shape, 0.40, build(against_reference, kind, shape), fewer=True)
    bar("latency MILSTMCell / nn.LSTMCell", latency, 1.20, build(against_torch_cell, latency))
    for how, cast in (("bfloat16", False), ("autocast", True)):
        for shape in shapes.values():
            bar(f"training MILSTM {how} / float32", shape, 1.00, build(against_float32, "MILSTM", shape, cast))
        for kind in ("MIGRU", "MIRNN"):
            shape = shapes["middle"]
            bar(f"training {kind} {how} / float32", shape, None, build(against_float32, kind, shape, cast))
    for kind, memory in itertools.product(LAYERS, ("retained", "peak")):
        shape = shapes["large"]
        contest = build(against_torch, kind, shape, True)
        bar(f"memory {memory} {kind} / {TORCH[kind]}", shape, 1.25, contest, kind=kind, memory=memory)
    kind = "MILSTM(recompute)"
    bar(f"training {kind} / {TORCH[kind]}", shape, None, build(against_torch, kind, shape, True), kind=kind)
    return bars


# ---- agreement, and who runs ----


def tensors(side):
    """Outputs and last state by name and, where the side has gradients, those of the input and of every parameter."""
    leaves = {}
    if side.g is not None:
        leaves = dict(side.layer.named_parameters())
        if side.inputs[0].is_floating_point():
            leaves["input"] = side.inputs[0]
    with torch.set_grad_enabled(side.g is not None):
        return common.tensors(side.forward(), leaves)


def disagreement(ours):
    """Where our layer differs from the reference backend, in words, or None. A few steps at the same batch and width decide."""
    own = common.scattered(ours.layer)
    x = ours.inputs[0]
    begun = (x[:AGREED_STEPS].detach().requires_grad_(x.requires_grad),)
    inputs = ours.inputs if isinstance(own, multint.MILSTMCell) else begun
    got, want = (tensors(Side(layer, inputs, ours.g, ours.cast)) for layer in (own, common.on_reference(own)))
    bound = AGREED[torch.bfloat16 if ours.cast else next(own.parameters()).dtype]
    error, name = common.furthest(got, want)
    return f"{name} is off by {error:.1e}, more than {bound:.0e}" if error > bound else None


# ---- seconds and bytes ----


def seconds(side, count):
    began = time.perf_counter()
    side.calls(count)
    return (time.perf_counter() - began) / count


def timed(line, contest, given):
    """(name of the baseline, pairs of seconds, how often): the baseline with the smaller median counts."""
    sides = [*contest.baselines.values(), contest.ours]
    for side in sides:
        side.calls(2)
    least = 0.0 if given.small else 0.05  # seconds in one measurement
    count = max(1, round(least / min(seconds(side, 1) for side in sides)))
    repeats = min(given.repeats, max(5, given.repeats // 3)) if line.fewer else given.repeats
    rows = common.interleaved([functools.partial(seconds, side, count) for side in sides], repeats)
    best = min(range(len(sides) - 1), key=lambda index: statistics.median(row[index] for row in rows))
    return list(contest.baselines)[best], [(row[best], row[-1]) for row in rows], f"{repeats}x{count} calls"


def resident(field):
    """VmRSS, what is in memory now, or VmHWM, the most since the last reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024


def footprint(kind, ours, shape, threads):
    """Bytes held after a forward with its graph, and the most over a training step. Needs a process that did nothing before."""
    torch.set_num_threads(threads)
    contest = against_torch(kind, shape, True)
    side = contest.ours if ours else contest.baselines[""]
    side.calls(1)  # what is allocated once and for all is not the step's
    side.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    out = side.forward()
    retained = resident("VmRSS") - before
    out[0].backward(side.g)
    page = os.sysconf("SC_PAGE_SIZE")  # the resolution
    return {"retained": max(retained, page), "peak": max(resident("VmHWM") - before, page)}


@functools.cache  # one process answers both of a layer's lines
def footprint_alone(kind, ours, shape, threads, turn):
    # not multiprocessing.Pool, which starts a worker that dies over and over
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(footprint, kind, ours, shape, threads).result()


def weighed(line, given):
    turns = 1 if given.small else min(given.repeats, 3)
    pairs = [
        tuple(footprint_alone(line.kind, ours, line.shape, given.threads, turn)[line.memory] for ours in (False, True))
        for turn in range(turns)
    ]
    return "", pairs, f"{turns} processes each"


def measure(line, given):
    """A row of results, or in words why there is none."""
    torch.manual_seed(0)
    contest = line.build()
    trouble = disagreement(contest.ours)
    if trouble is not None:
        return f"disagrees: {trouble}"
    with common.watched() as ran:
        contest.ours.calls(1)
    where = "+".join(sorted(ran)) or "cpu"  # a cell may go to the operator without asking scan
    if where != "cpu" and not given.allow_reference:
        return f'refused: "auto" ran it on {where}, not on cpu'
    baseline, pairs, repeats = weighed(line, given) if line.memory else timed(line, contest, given)
    shape = line.text(given.threads) + ("" if where == "cpu" else f" backend={where}")
    units = {"unit": "MB", "scale": 1e-6} if line.memory else {}
    return common.row(line.name + baseline, shape, contest.dtype, pairs, repeats, line.limit, **units)


# ---- what is shown ----


def profile(line, given):
    """Print where a training step of ours goes: the product W x by itself, forward, backward, and the operators that take most."""
    torch.manual_seed(0)
    side = line.build().ours
    side.calls(2)
    spent = {"W x alone": [], "forward": [], "backward": []}
    for _ in range(given.repeats):
        side.clear()
        marks = [time.perf_counter()]
        F.linear(side.inputs[0], side.layer.weight_ih_l0)
        marks.append(time.perf_counter())
        out = side.forward()[0]
        marks.append(time.perf_counter())
        out.backward(side.g)
        marks.append(time.perf_counter())
        for times, a, b in zip(spent.values(), marks[:-1], marks[1:], strict=True):
            times.append(b - a)
    parts = ", ".join(f"{name} {statistics.median(times) * 1e3:.3f} ms" for name, times in spent.items())
    print(f"\n{line.name.partition(' / ')[0]} {line.text(given.threads)}: {parts} (medians of {given.repeats})")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        side.calls(given.repeats)
    own = operator.attrgetter("self_cpu_time_total")  # what an operator calls is not counted twice
    events = sorted(profiler.key_averages(), key=own, reverse=True)
    total = sum(map(own, events))
    for event in events[:12]:
        share, each, calls = own(event) / total, own(event) / given.repeats / 1e3, event.count / given.repeats
        print(f"  {share:6.1%} {each:10.3f} ms {calls:8.0f} calls  {event.key}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=re.compile, default="", metavar="REGEX", help="lines whose name and shape it is found in")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="tiny shapes: does the script run?")
    parser.add_argument("--allow-reference", action="store_true", help="measure whichever backend runs where the fused one cannot")
    parser.add_argument("--profile", action="store_true", help="print where the time of training steps goes; keeps nothing")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    reason = multint.backends()["cpu"]
    if reason is not None and not given.allow_reference:
        sys.exit(f'backend "cpu" cannot run here: {reason}; --allow-reference measures what "auto" takes instead')
    torch.set_num_threads(given.threads)
    which = "backend cpu" if reason is None else f"without backend cpu: {reason}"
    print(f"{given.threads} threads, torch {torch.__version__}, {which}")
    bars = lines(SMALL if given.small else SHAPES, (1, 1, 16) if given.small else (1, 1, 512))
    bars = [line for line in bars if given.only.search(f"{line.name} {line.text(given.threads)}")]
    if given.profile:
        for line in bars:
            if line.kind and not line.memory:
                profile(line, given)
        return
    titled = [(f"{line.name} {line.text(given.threads)}", line) for line in bars]
    common.go(titled, functools.partial(measure, given=given), given.out)


if __name__ == "__main__":
    main()
