"""What do the benchmarks share? Agreement before a line is timed, timing in turns, and how a measurement is shown and kept:
one row of results/bench/ for each, the same columns for every benchmark.
"""

import copy
import csv
import functools
import math
import statistics
import sys
from contextlib import contextmanager
from datetime import datetime, timezone

import torch
from torch import nn

import multint
from multint.paper.runs import environment
from multint.scan import BACKENDS

LAYERS = {
    "MILSTM": (multint.MILSTM, nn.LSTM),
    "MIGRU": (multint.MIGRU, nn.GRU),
    "MIGRU(reset_after)": (functools.partial(multint.MIGRU, reset_after=True), nn.GRU),
    "MIRNN": (multint.MIRNN, nn.RNN),
    "MILSTM(recompute)": (functools.partial(multint.MILSTM, recompute=True), nn.LSTM),
}
KINDS = [kind for kind in LAYERS if "recompute" not in kind]  # which have limits of time
TORCH = {kind: f"nn.{theirs.__name__}" for kind, (_, theirs) in LAYERS.items()}
COLUMNS = [
    "date",
    "commit",
    "device",
    "torch",
    "benchmark",
    "shape",
    "dtype",
    "baseline",
    "ours",
    "ratio",
    "low",
    "high",
    "repeats",
    "limit",
]


# ---- agreement, and who runs ----


def on_reference(layer):
    twin = copy.deepcopy(layer)
    twin.backend = "reference"
    return twin


def scattered(layer):
    """A copy whose vectors differ from each other: all ones and zeros would hide an exchange of two of them."""
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for vector in (p for p in twin.parameters() if p.dim() == 1):
            vector.add_(0.1 * torch.randn_like(vector))
    return twin


def tensors(out, leaves):
    """Outputs and last state by name, and the gradients of ``leaves``, if there are any, for the same draw at every call."""
    outs = [part for group in out for part in (group if isinstance(group, tuple) else (group,))]
    found = {f"output {k}": part for k, part in enumerate(outs)}
    if leaves:
        draw = torch.Generator().manual_seed(1)
        # of few digits, so that every dtype receives the same numbers
        received = [torch.randn(part.shape, generator=draw).bfloat16().to(part) for part in outs]
        grads = torch.autograd.grad(outs, list(leaves.values()), received)
        found |= {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return found


def furthest(got, want):
    """(relative error by the norm, name) of the tensor that differs most; one that is not a number is infinitely far."""

    def error(name):
        expected = want[name].double()
        off = ((got[name].double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()
        return math.inf if math.isnan(off) else off

    return max((error(name), name) for name in want)


@contextmanager
def watched():
    """The names of the backends that run inside, as in "gpu:steps" where one has engines: "auto" may take another one for a
    particular problem.
    """
    ran, runs = set(), {name: module.run for name, module in BACKENDS.items()}

    def noting(name):
        engine_for = getattr(BACKENDS[name], "engine_for", None)

        def run(problem):
            ran.add(name if engine_for is None else f"{name}:{engine_for(problem)}")
            return runs[name](problem)

        return run

    for name, module in BACKENDS.items():
        module.run = noting(name)
    try:
        yield ran
    finally:
        for name, module in BACKENDS.items():
            module.run = runs[name]


# ---- seconds ----


def interleaved(timers, repeats):
    """Seconds of each timer, a row for each repeat; every other one goes backwards, so that no side is always first."""
    rows = []
    for k in range(repeats):
        row = {}
        for index in range(len(timers)) if k % 2 == 0 else reversed(range(len(timers))):
            row[index] = timers[index]()
        rows.append([row[index] for index in range(len(timers))])
    return rows


# ---- what is kept ----


def versions():
    """Of everything that decides how fast a GPU line is."""
    try:
        import triton

        ours = f"triton {triton.__version__}"
    except ImportError:
        ours = "no triton"
    return f"{torch.__version__} cudnn {torch.backends.cudnn.version()} {ours}"


def row(benchmark, shape, dtype, pairs, repeats, limit=None, unit="ms", scale=1e3, device="cpu"):
    """Medians of (baseline, ours), and of ours / baseline pair by pair with its 10 % and 90 % points."""
    ratios = sorted(ours / base for base, ours in pairs)
    base, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    where = environment()
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "commit": where["commit"] + ("+" if where["dirty"] else ""),
        "device": where["device"],
        "torch": where["torch"] if device == "cpu" else versions(),
        "benchmark": benchmark,
        "shape": shape,
        "dtype": dtype,
        "baseline": f"{base * scale:.3f} {unit}",
        "ours": f"{ours * scale:.3f} {unit}",
        "ratio": f"{statistics.median(ratios):.3f}",
        "low": f"{ratios[len(ratios) // 10]:.3f}",
        "high": f"{ratios[-1 - len(ratios) // 10]:.3f}",
        "repeats": repeats,
        "limit": "" if limit is None else f"{limit:.2f}",
    }


def keep(rows, out, device="cpu"):
    """Add rows to the device's file in the folder ``out``: h200.csv for an NVIDIA H200."""
    name = "cpu-2core" if device == "cpu" else torch.cuda.get_device_name().split()[-1].lower()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


# ---- what is shown ----


def verdict(row):
    if not row["limit"]:
        return ""
    return "met" if float(row["ratio"]) <= float(row["limit"]) else "missed"


def table(rows):
    head = ("what", "shape", "baseline", "ours", "ratio", "10 % to 90 %", "limit", "")
    cells = [
        (r["benchmark"], r["shape"], r["baseline"], r["ours"], r["ratio"], f"{r['low']} to {r['high']}", r["limit"], verdict(r))
        for r in rows
    ]
    widths = [max(len(line[k]) for line in (head, *cells)) for k in range(len(head))]
    padded = (zip(line, widths, strict=True) for line in (head, *cells))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


class Skipped(str):
    """Why a line was not measured, where that is no failure."""


def go(bars, measure, out, device="cpu"):
    """Measure ``bars``, pairs of a title and a line; ``measure`` gives a row, or in words why there is none. A line without a row
    makes the exit status 1, unless it was ``Skipped``. Without ``out`` nothing is kept.
    """
    rows, without, failed = [], [], False
    for title, line in bars:
        result = measure(line)
        if isinstance(result, str):
            failed |= not isinstance(result, Skipped)
            without.append(f"{title} {result}")
            print(without[-1], flush=True)
            continue
        if out is not None:
            keep([result], out, device)  # at once: a long run that is broken off has still measured these
        rows.append(result)
        print(f"{result['benchmark']} {result['shape']}: {result['ratio']} {verdict(result)}", flush=True)
    print("", table(rows), *without, sep="\n")
    if failed:
        sys.exit(1)
