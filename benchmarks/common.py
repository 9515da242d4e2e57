"""How is a measurement summed up and kept? One row of results/bench/ for each, the same columns for every benchmark."""

import csv
import statistics
from datetime import datetime, timezone

import torch

from multint.paper.runs import environment

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


def row(benchmark, shape, dtype, pairs, repeats, limit=None, unit="ms", scale=1e3):
    """Medians of (baseline, ours), and of ours / baseline pair by pair with its 10 % and 90 % points."""
    ratios = sorted(ours / base for base, ours in pairs)
    base, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    where = environment()
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "commit": where["commit"] + ("+" if where["dirty"] else ""),
        "device": where["device"],
        "torch": where["torch"],
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
    """Add rows to the device's file in the folder ``out``."""
    name = "cpu-2core" if device == "cpu" else torch.cuda.get_device_name().replace(" ", "-").lower()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
