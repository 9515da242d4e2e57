"""How fast are the layers on this GPU, and how much memory do they hold, beside cuDNN's and beside our own plain loop?

Each line is a bar: ours / baseline in one interleaved run may be at most the line's limit. A line is measured only after its layer
agreed with the reference in float64 on the same device: ``python benchmarks/gpu.py`` adds rows to results/bench/. Where nothing can
be installed, ``PYTHONPATH=src python3 benchmarks/gpu.py`` needs torch, numpy and Triton alone.
"""

import argparse
import gc
import importlib.util
import itertools
import operator
import random
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import common
import torch
from common import KINDS, LAYERS, TORCH
from torch import Tensor, nn
from torch.autograd import DeviceType

import multint
from multint.paper import engine
from multint.paper.capture import Captured, CudaRecorder
from multint.paper.charlm import recipes
from multint.paper.charlm.task import SYMBOLS, CharTask, build
from multint.paper.experiment import Task, mapped
from multint.paper.exploratory import recipes as exploratory
from multint.scan import gpu_steps

AGREED_STEPS = 6
MOST = 10  # eager calls in one measurement
LONG_ENOUGH = 0.02  # seconds in one measurement of eager calls
SETTLE = 40  # updates after the timed ones: an RNN's loss may rise for some before it falls
SAME = 1e-2  # how far a replay may be from the call it repeats, which may add up in another order


# ---- shapes and lines ----


@dataclass(frozen=True)
class Shape:
    t: int
    n: int
    i: int
    h: int
    layers: int = 1
    both: bool = False  # directions

    def __str__(self):
        more = (f" layers={self.layers}" if self.layers > 1 else "") + (" bidirectional" if self.both else "")
        return f"T={self.t} B={self.n} I={self.i} H={self.h}{more}"

    def small(self):
        return replace(self, t=AGREED_STEPS + 1, n=8, i=-(-self.i // 16), h=-(-self.h // 16))


def square(t, n, h):
    return Shape(t, n, h, h)


MIDDLE, WIDE = square(100, 128, 1024), square(100, 128, 2048)
NARROW_INPUT, SKIP_THOUGHT = Shape(50, 100, 64, 2048), Shape(30, 64, 620, 2400)
DEEP = Shape(1000, 16, 240, 320, 4, True)
SMALL, THIN, LONG = square(100, 64, 704), square(500, 32, 240), square(1000, 16, 1024)
CAPTURED = {  # the limit of MILSTM / nn.LSTM where both are captured
    SMALL: 0.60,
    MIDDLE: 0.72,
    THIN: 0.35,
    DEEP: 0.35,
    NARROW_INPUT: 0.95,
    WIDE: 0.95,
    square(100, 256, 2048): 1.00,
    SKIP_THOUGHT: 1.00,
    square(100, 64, 700): 1.00,  # from here on widths that are no multiple of 64
    square(100, 64, 1000): 1.00,
    square(100, 64, 513): 1.00,
}
EAGER = 0.85
OTHERS = {"MIRNN": 0.95, "MIGRU(reset_after)": 1.00, "MIGRU": 1.25}
LOOP = 0.10
AS_TORCH = "float32 as torch has it"
PRECISIONS = {"float32 TF32": True, "float32": False}  # is TF32 allowed? Other dtypes leave torch's settings alone
FLOAT32 = {  # the limits of MILSTM / nn.LSTM eager in float32 as torch has it: training and inference
    square(100, 64, 1024): (0.75, 0.75),
    square(35, 20, 1500): (0.90, 1.00),
    square(64, 128, 256): (0.90, 1.00),
    square(35, 20, 650): (0.90, 1.00),
}
OTHERS_FLOAT32 = (1.00, 1.00)
MORE = [  # reported in bfloat16 without limits
    ("MILSTM", square(70, 96, 896)),
    ("MILSTM", square(40, 48, 1536)),
    ("MILSTM", square(35, 20, 650)),
    ("MILSTM", square(200, 24, 384)),
    ("MILSTM", square(64, 512, 512)),
    ("MILSTM", Shape(300, 16, 512, 512, 3, True)),
    ("MIGRU", square(70, 96, 896)),
]
BESIDE_JAX = [square(100, 64, 704), square(35, 20, 650), square(150, 64, 240), square(500, 32, 240)]
DRAWN = {"t": (11, 256), "n": (1, 256), "h": (32, 2048)}  # the smallest and largest size of a drawn shape
ITERATIONS = {  # milliseconds a whole training iteration may take
    "PTB MI-RNN-2048": (replace(exploratory.MIRNN, batch=100), 1.5),
    "enwik8 MI-LSTM-2048": (replace(recipes.ENWIK8_MILSTM, batch=128), 5.9),
    "text8 MI-LSTM-1024": (replace(recipes.TEXT8_MILSTM, batch=128, length=100), 2.3),
}


@dataclass(frozen=True)
class Line:
    name: str
    shape: Shape
    limit: float | None  # None: reported, with nothing promised
    build: Callable[[str], "Contest"]  # on a device
    weigh: Callable  # (line, contest, given) to pairs of (baseline, ours), and how often
    dtype: str = "bfloat16"
    tf32: bool | None = None  # None: as torch has it
    most: int | None = None  # repeats, where the baseline is slow
    captured: bool = False
    memory: bool = False
    needs: str | None = None  # a module without which the line is skipped

    @property
    def title(self):
        return f"{self.name} {self.shape} {self.dtype}"

    @property
    def bound(self):
        """Largest relative error of outputs and gradients against float64, by the norm of each, under torch's present settings."""
        if self.dtype.startswith("float32") and torch.backends.cudnn.rnn.fp32_precision != "tf32":
            return 1e-5
        few = 2 if self.shape.h < 128 or self.shape.n < 8 else 1  # few units or rows leave little to average
        return 5e-3 * few


def drawn(seed, count=4):
    """Shapes that nobody selected, the same ones for the same seed."""
    draw = random.Random(seed)
    return [square(*(draw.randint(*ends) for ends in DRAWN.values())) for _ in range(count)]


def lines(small, seed=0, slow=False):
    """Every line, in the order of the printed table; ``slow`` adds those whose baseline takes many seconds a call."""
    bars = []
    at = Shape.small if small else (lambda shape: shape)

    def beside_torch(kind, shape, limit, dtype="bfloat16", captured=False, inference=False, note=""):
        shape, weigh = at(shape), by_events if captured else by_clock
        contest = partial(against_torch, kind, shape, dtype.split()[0], inference=inference)
        name = f"{'inference' if inference else 'training'} {kind} / {TORCH[kind]} {'captured' if captured else 'eager'}"
        name += ("" if dtype == "bfloat16" else f", {dtype}") + note
        bars.append(Line(name, shape, limit, contest, weigh, dtype, PRECISIONS.get(dtype), captured=captured))

    for shape, limit in CAPTURED.items():
        beside_torch("MILSTM", shape, limit, captured=True)
    for shape in CAPTURED:
        beside_torch("MILSTM", shape, EAGER)
    for (kind, limit), shape in itertools.product(OTHERS.items(), (MIDDLE, SKIP_THOUGHT)):
        beside_torch(kind, shape, limit, captured=True)
    for kind, shape in itertools.product(OTHERS, (SMALL, THIN)):
        beside_torch(kind, shape, None, captured=True)
    for kind, shape in itertools.product(OTHERS, (MIDDLE, SKIP_THOUGHT)):
        beside_torch(kind, shape, EAGER)
    for name, (recipe, most) in ITERATIONS.items():
        v, recipe = SYMBOLS[recipe.corpus], smaller(recipe) if small else recipe
        shape = Shape(recipe.length, recipe.batch, v, recipe.hidden)
        for adam, limit in (("fused", 1.00), ("foreach", None)):  # fused is what engine.fit takes
            contest = partial(against_bar, recipe, adam, most / 1e3)
            title = f"iteration {name}, {adam} Adam / a bar of {most} ms"
            bars.append(Line(title, shape, limit, contest, by_events, "autocast bfloat16", tf32=True))
    lean = "MILSTM(recompute)"
    for name, kind, shape in itertools.product(("retained", "peak"), ("MILSTM", lean), map(at, (MIDDLE, WIDE))):
        limit = 1.25 if name == "retained" else None
        contest = partial(against_torch, kind, shape, "bfloat16")
        weigh = partial(by_bytes, which=name)
        bars.append(Line(f"memory {name} {kind} / {TORCH[kind]}", shape, limit, contest, weigh, memory=True))
    for shape in (MIDDLE, WIDE):
        beside_torch(lean, shape, None, captured=True)
    for shape, dtype in itertools.product((MIDDLE, NARROW_INPUT), ("float16", *PRECISIONS)):
        beside_torch("MILSTM", shape, None, dtype, captured=True)
    for kind, (shape, limits) in itertools.product(KINDS, FLOAT32.items()):
        training, inference = limits if kind == "MILSTM" else OTHERS_FLOAT32
        beside_torch(kind, shape, training, AS_TORCH)
        beside_torch(kind, shape, inference, AS_TORCH, inference=True)
    beside_torch("MIRNN", square(64, 128, 256), None, AS_TORCH, captured=True)
    for shape, dtype, inference in itertools.product(FLOAT32, PRECISIONS, (False, True)):
        beside_torch("MILSTM", shape, None, dtype, inference=inference)
    for kind, shape in MORE:
        beside_torch(kind, shape, None)
        beside_torch(kind, shape, None, captured=True)
        beside_torch(kind, shape, None, inference=True)
    for dtype, captured, inference in itertools.product(("float16", "bfloat16"), (True, False), (False, True)):
        beside_torch("MILSTM", LONG, 1.00 if dtype == "float16" else None, dtype, captured, inference)
    for shape, dtype in zip(drawn(seed), itertools.cycle(("bfloat16", AS_TORCH)), strict=False):
        for inference in (False, True):
            beside_torch("MILSTM", shape, None, dtype, inference=inference, note=", drawn")
    for shape in map(at, BESIDE_JAX):
        contest = partial(against_jax, shape)
        bars.append(Line("training MILSTM eager / JAX's scan of it", shape, None, contest, by_clock, needs="jax"))
    for shape in CAPTURED:
        if shape is not DEEP or slow:
            contest = partial(against_reference, at(shape))
            repeats = 1 if shape is DEEP else 3
            bars.append(Line("training MILSTM eager / our reference loop eager", at(shape), LOOP, contest, by_clock, most=repeats))
    return bars


# ---- what is measured ----


@dataclass
class Side:
    """A layer with its input, and ``g``, the gradient its outputs receive."""

    layer: nn.Module
    x: Tensor
    g: Tensor
    cast: bool = False  # under autocast
    inference: bool = False  # a step is a forward without gradients

    @cached_property
    def leaves(self):
        """What gets a gradient, by name."""
        if self.inference:
            return {}
        own = dict(self.layer.named_parameters())
        return own | ({"input": self.x} if self.x.is_floating_point() else {})

    @cached_property
    def wanted(self):
        return tuple(self.leaves.values())  # found once: a step's host time is the layer's alone

    def forward(self):
        with torch.set_grad_enabled(not self.inference), torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.cast):
            return self.layer(self.x)

    def step(self):
        if self.inference:
            return self.forward()[:1]
        # new gradients each time, none added up: what a capture can repeat
        return torch.autograd.grad(self.forward()[0], self.wanted, self.g)


@dataclass
class Contest:
    ours: Side
    baseline: Any  # what has a ``step``: a Side, or JAX's; or seconds, where a bar stands in for the other side
    update: Callable | None = None  # a whole iteration around our layer, which is then what is timed


def against_torch(kind, shape, dtype, device, inference=False):
    ours, theirs = LAYERS[kind]
    where, width = {"device": device, "dtype": getattr(torch, dtype)}, shape.h * (1 + shape.both)
    x = torch.randn(shape.t, shape.n, shape.i, **where, requires_grad=not inference)
    g = torch.randn(shape.t, shape.n, width, **where)
    # converted as users do it, which is not the same to cuDNN as being made so
    made = [make(shape.i, shape.h, shape.layers, bidirectional=shape.both, device=device).to(x.dtype) for make in (ours, theirs)]
    return Contest(*(Side(layer.train(not inference), x, g, inference=inference) for layer in made))


def against_reference(shape, device):
    ours = against_torch("MILSTM", shape, "bfloat16", device).ours
    return Contest(ours, replace(ours, layer=common.on_reference(ours.layer)))


def against_jax(shape, device):
    from jax_scan import Scan

    ours = against_torch("MILSTM", shape, "bfloat16", device).ours
    return Contest(ours, Scan(ours))


def against_bar(recipe, adam, seconds, device):
    v = SYMBOLS[recipe.corpus]
    # far from uniform, so that a model learns something at once
    stream = (v * torch.rand(recipe.length + 1, recipe.batch, device=device) ** 3).long()
    update = Update(recipe, adam, (stream[:-1], stream[1:]))
    g = torch.randn(recipe.length, recipe.batch, recipe.hidden, device=device, dtype=torch.bfloat16)
    return Contest(Side(update.model.model.core, stream[:-1], g, cast=True), seconds, update)


def smaller(recipe):
    return replace(recipe, length=AGREED_STEPS + 1, batch=8, hidden=recipe.hidden // 16)


# ---- a training iteration as a recipe's run has it ----


class Mixed(nn.Module):
    """A model as Fabric wraps it for bf16: autocast around the call, float32 out of it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, state=None):
        with torch.autocast(tokens.device.type, torch.bfloat16):
            logits, state = self.model(tokens, state)
        return logits.float(), mapped(Tensor.float, state)


class Plain:
    """What an update asks of Fabric, on one device: Lightning is not everywhere."""

    def backward(self, loss):
        loss.backward()

    def clip_gradients(self, model, optimizer, max_norm, error_if_nonfinite):
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)


class Loss(Task):
    """The part of a task that an update needs; it needs no corpus."""

    loss = CharTask.loss


class Update:
    """engine.fit's update, state carried, over and over on one batch: tokens in, new weights out, one CUDA graph."""

    def __init__(self, recipe, adam, batch):
        device, cuda = batch[0].device, batch[0].is_cuda
        self.model = Mixed(build(recipe, SYMBOLS[recipe.corpus]).to(device))
        rate = torch.tensor(recipe.schedule.lr, device=device) if cuda else recipe.schedule.lr
        optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, capturable=cuda, **{adam: True})
        task = Loss()
        eager = engine.Update(Plain(), task, self.model, optimizer, recipe.schedule.clip)
        self.step = Captured(eager, task.capture_key, CudaRecorder(), print) if cuda else eager
        self.batch, self.state = batch, None

    def __call__(self):
        (self.loss, *_), _, self.state = self.step(self.batch, self.state)


# ---- agreement, and who runs ----


def disagreement(side):
    """(error, name) of what differs most from the reference in float64. A few steps at the same batch and width decide."""
    own = common.scattered(side.layer)
    if side.cast:  # weights that the cast leaves alone, so that both sides have the same
        with torch.no_grad():
            for p in own.parameters():
                p.copy_(p.bfloat16())
    x = side.x[:AGREED_STEPS].detach()
    real, judge = x.is_floating_point(), common.on_reference(own).double()
    sides = replace(side, layer=own, x=x), replace(side, layer=judge, x=x.double() if real else x, cast=False)
    for each in sides:
        each.x.requires_grad_(real)
    return common.furthest(*(common.tensors(each.forward(), each.leaves) for each in sides))


@contextmanager
def tf32(allowed):
    """Allow or forbid TF32 in float32 products, in matmuls and in cuDNN's RNNs alike; None leaves torch's settings alone."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.rnn) if allowed is not None else ()
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


# ---- seconds and bytes ----


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def capture(step):
    """Replays one call, captured in a CUDA graph after a few on the side stream that a capture needs warmed up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(Captured.WARM):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step()
    expected = step()
    for result in replayed:
        result.fill_(torch.nan)  # work that escaped the capture would leave it
    graph.replay()
    error, index = common.furthest(*(dict(enumerate(results)) for results in (replayed, expected)))
    if error > SAME:
        raise RuntimeError(f"result {index} of a replay is off by {error:.1e} from the call it repeats")
    return graph.replay


def calls(line, contest):
    """What is timed: the baseline's call, unless a bar stands for it, and ours, both warmed up."""
    if contest.update is not None:
        for _ in range(Captured.WARM + 2):  # the first has no state yet; the last is the capture
            contest.update()
        return [contest.update]
    steps = [contest.baseline.step, contest.ours.step]
    if line.captured and contest.ours.x.is_cuda:
        steps = [capture(step) for step in steps]
    for step in steps:
        step()
    synchronize()
    return steps


def event_seconds(call):
    """On the device, from the beginning of a call to its end."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    call()
    ended.record()
    synchronize()
    return began.elapsed_time(ended) / 1e3


def clock_seconds(call, count):
    """By the clock on the wall, the host's part included."""
    synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - began) / count


def repeated(line, given):
    return given.repeats if line.most is None else min(given.repeats, line.most)


def by_events(line, contest, given):
    cuda = contest.ours.x.is_cuda
    seconds = event_seconds if cuda else partial(clock_seconds, count=1)
    timers = [partial(seconds, call) for call in calls(line, contest)]
    before = contest.update and float(contest.update.loss)
    rows = common.interleaved(timers, repeated(line, given))
    often = f"{len(rows)} {'replays' if cuda else 'calls'}"
    if contest.update is None:
        return rows, often
    for _ in range(SETTLE):
        contest.update()
    after = float(contest.update.loss)
    if not after < before:
        raise RuntimeError(f"on one batch over and over the loss went from {before:.4f} to {after:.4f}")
    return [(contest.baseline, ours) for (ours,) in rows], often


def by_clock(line, contest, given):
    steps = calls(line, contest)
    # the slower side decides; a single slow call is long enough, and is not made once more to find that out
    count = 1 if line.most else max(1, min(MOST, round(LONG_ENOUGH / max(clock_seconds(step, 1) for step in steps))))
    rows = common.interleaved([partial(clock_seconds, step, count) for step in steps], repeated(line, given))
    return rows, f"{len(rows)}x{count} calls"


def by_bytes(line, contest, given, which):
    return [tuple(footprint(side)[which] for side in (contest.baseline, contest.ours))], "1 step each"


def footprint(side):
    """Bytes allocated after a forward for its backward, outputs included, and the most over a training step."""
    if not side.x.is_cuda:
        return {"retained": 1, "peak": 1}  # only CUDA's allocator counts; the line is there to run
    side.step()  # what is allocated once and for all is not the step's
    clear()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = side.forward()
    held = torch.cuda.memory_allocated() - before
    torch.autograd.grad(out[0], side.wanted, side.g)
    synchronize()
    return {"retained": held, "peak": torch.cuda.max_memory_allocated() - before}


def clear():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# ---- a line ----


def measure(line, given):
    """A row of results, or in words why there is none."""
    if line.needs and importlib.util.find_spec(line.needs) is None:
        return common.Skipped(f"skipped: {line.needs} is not installed")
    torch.manual_seed(0)
    try:
        with tf32(line.tf32):
            return row(line, given)
    except Exception as error:  # a line that breaks must not cost the others: time on such a machine is short
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    finally:
        clear()


def row(line, given):
    contest = line.build(given.device)
    with common.watched() as checked:
        error, name = disagreement(contest.ours)
    if not error <= line.bound:
        return f"disagrees: {name} is off by {error:.1e}, more than {line.bound:.0e}"
    print(f"agrees to {error:.1e} ({name}); ", end="", flush=True)
    with common.watched() as ran:
        contest.ours.step()
    where = "+".join(sorted(ran))
    if not all(each.startswith("gpu") for each in ran) and not given.allow_reference:
        return f'refused: "auto" ran it on {where}, not on gpu'
    if not ran <= checked:
        return f"refused: it runs on {where}, its first {AGREED_STEPS} steps alone on {'+'.join(sorted(checked))}"
    pairs, repeats = line.weigh(line, contest, given)
    units = {"unit": "MB", "scale": 1e-6} if line.memory else {}
    shape = f"{line.shape} backend={where}"
    return common.row(line.name, shape, line.dtype, pairs, repeats, line.limit, device=given.device, **units)


# ---- where time goes ----


def profile(line, given, tile=None):
    """Print the kernels that take most, of the baseline and of ours, as the line runs them; with a tile, of ours alone."""
    torch.manual_seed(0)
    with tf32(line.tf32), tiled(tile):
        contest = line.build(given.device)
        steps = calls(line, contest)
        named = list(zip(("baseline", "ours")[-len(steps) :], steps, strict=True))
        for name, step in named if tile is None else named[-1:]:
            print(f"\n{line.title}: {name}{'' if tile is None else ', {} rows by {} units, {} warps'.format(*tile)}")
            kernels(step, line.most or 5, contest.ours.x.is_cuda)
    del contest, steps, named, step
    clear()


@contextmanager
def tiled(tile):
    """With this tile in the pointwise kernels of "steps": rows, units, warps; None: as the engine has it."""
    before = gpu_steps._tile
    if tile is not None:
        gpu_steps._tile = lambda h: tile
    try:
        yield
    finally:
        gpu_steps._tile = before


def a_tile(text):
    found = tuple(map(int, text.split("x")))
    if len(found) != 3 or any(size < 1 or size & (size - 1) for size in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no tile: rows, units and warps, each a power of two, as in 4x64x4")
    return found


def a_part(text):
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part: write 1/2 for the first half of the lines, 2/2 for the second")
    return int(k), int(n)


def part(bars, k, n):
    """The k-th of n runs of lines, k from 1; the n parts together are all lines."""
    return bars[len(bars) * (k - 1) // n : len(bars) * k // n]


def kernels(step, count, cuda):
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * cuda
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(count):
            step()
        synchronize()
    own = operator.attrgetter("self_device_time_total" if cuda else "self_cpu_time_total")
    kind = DeviceType.CUDA if cuda else DeviceType.CPU  # an operator's row repeats the time of its kernels
    events = sorted((event for event in profiler.key_averages() if event.device_type == kind), key=own, reverse=True)
    total = sum(map(own, events)) or 1
    print(f"  {total / count / 1e3:.3f} ms in {sum(event.count for event in events) / count:.0f} kernels a call")
    for event in events[:25]:
        share, each, often = own(event) / total, own(event) / event.count, event.count / count
        print(f"  {share:6.1%} {each * often / 1e3:9.3f} ms {often:6.0f} x {each:8.2f} us  {event.key:.120}")


def main():
    today = datetime.now(timezone.utc)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=re.compile, default="", metavar="REGEX", help="lines whose title matches")
    parser.add_argument("--part", type=a_part, default=(1, 1), metavar="K/N", help="the K-th of N parts of the lines: N short runs")
    parser.add_argument("--slow", action="store_true", help="also the line whose reference loop takes twelve seconds a step")
    parser.add_argument("--seed", type=int, default=int(f"{today:%Y%m%d}"), help="of the drawn shapes; default: today's date")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="tiny shapes: does the script run? Kept only where --out says")
    parser.add_argument("--allow-reference", action="store_true", help="measure whichever backend runs where the fused one cannot")
    parser.add_argument("--profile", nargs="?", const="", metavar="REGEX", help="print the kernels of these lines; keeps nothing")
    parser.add_argument("--tiles", nargs="+", type=a_tile, default=[None], metavar="RxUxW", help="with --profile: each of these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu, with --small: nothing is captured")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.tiles != [None] and given.profile is None:
        parser.error("--tiles goes with --profile: no line is recorded with a tile that the engine does not have")
    if given.device == "cpu" and not given.small:
        parser.error("--device cpu says nothing of speed: use it with --small, or benchmarks/cpu.py")
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device is here; --small --device cpu --allow-reference sees whether the script runs")
    reason = multint.backends().get("gpu", "there is no such backend")
    if reason is not None and not given.allow_reference:
        sys.exit(f'backend "gpu" cannot run here: {reason}; --allow-reference measures what "auto" takes instead')
    out = given.out or (None if given.small else Path("results/bench"))
    name = torch.cuda.get_device_name() if given.device == "cuda" else "plain calls on the CPU"
    print(f"{name}, torch {common.versions()}, " + ("backend gpu" if reason is None else f"without backend gpu: {reason}"))
    print(f"shapes drawn with --seed {given.seed}: " + "; ".join(map(str, drawn(given.seed))))
    bars = [line for line in lines(given.small, given.seed, given.slow) if given.only.search(line.title)]
    bars = part(bars, *given.part)
    if given.profile is not None:
        for line, tile in itertools.product(bars, given.tiles):
            if not line.memory and not line.needs and re.search(given.profile, line.title):
                profile(line, given, tile)
        return
    began = time.monotonic()
    try:
        common.go([(line.title, line) for line in bars], partial(measure, given=given), out, given.device)
    finally:
        print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
