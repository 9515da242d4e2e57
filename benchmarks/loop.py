"""What does the training loop cost beyond the bare update?

Times an update inside ``engine.fit`` against layer + loss + clipping + optimiser written out, in one interleaved run on the same
batches, after checking that both end with the same weights: ``python benchmarks/loop.py`` adds rows to results/bench/.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import common
import torch
from torch.nn import functional as F

from multint.paper import engine, processes, session
from multint.paper.charlm.recipes import RECIPES
from multint.paper.charlm.task import CharTask, data
from multint.paper.experiment import Job, Team
from multint.paper.runs import Run


class Bare:
    """The update as a script would have it."""

    def __init__(self, job, device):
        torch.manual_seed(job.seed)
        self.task = CharTask(job, device)
        self.model = self.task.build().to(device)
        s = job.recipe.schedule
        self.clip = s.clip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=s.lr, betas=s.betas, eps=s.eps, foreach=True)
        self.batches, self.device, self.position = self.task.epoch(0, Team()), device, 0

    def updates(self, count):
        for _ in range(count):
            x, y = (part.to(self.device) for part in self.batches[self.position])
            self.position += 1
            self.optimizer.zero_grad()
            logits, _ = self.model(x)
            F.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()


class Looped:
    """The same through ``engine.fit``'s own loop, evaluation and checkpoints left out."""

    def __init__(self, job, fabric, folder, make=CharTask, epoch=0):
        run = Run(Path(folder), session.run_name(job), session.config(job))
        run.__enter__()
        own = make(job, fabric.device)
        batches = own.epoch(epoch, Team())
        own.epoch = lambda *_: batches  # planned once an epoch, not once a measurement
        self.fit = engine._Fit(own, job.recipe.schedule, run, fabric, engine.Silent(), 50, 1e9)
        self.fit.restore()

    def updates(self, count):
        fit = self.fit
        fit.schedule = replace(fit.schedule, updates=fit.p.update + count, evaluate_every=10**9)
        fit.evaluate = fit.save = lambda: None
        fit.p.done = ""
        fit.epoch()


def seconds(run, count, device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run.updates(count)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def measure(name, recipe, repeats, count, corpora, device):
    job = Job(f"charlm/{name}", recipe, 0, "fp32", data(recipe, corpora, {}))
    fabric = processes.make_fabric(device)
    with tempfile.TemporaryDirectory() as folder:
        bare, looped = Bare(job, fabric.device), Looped(job, fabric, folder)
        for run in (bare, looped):
            run.updates(5)
        for a, b in zip(bare.model.parameters(), looped.fit.module.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        pairs = [(seconds(bare, count, fabric.device), seconds(looped, count, fabric.device)) for _ in range(repeats)]
    shape = f"{recipe.cell} {recipe.integration} T={recipe.length} B={recipe.batch} H={recipe.hidden} V={len(job.data.symbols)}"
    return common.row("training loop / bare update", shape, "float32", pairs, f"{repeats}x{count} updates")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    demo = RECIPES["demo-milstm"]
    rows = [
        measure("demo", demo, given.repeats, 10, given.data, given.device),
        measure("small", replace(demo, hidden=64, length=20, batch=16), given.repeats, 60, given.data, given.device),
        measure("large", replace(RECIPES["demo-lstm"], hidden=256), given.repeats, 10, given.data, given.device),
    ]
    common.keep(rows, given.out, given.device)
    for row in rows:
        print(f"{row['shape']}: {row['baseline']} bare, {row['ours']} looped, ratio {row['ratio']} ({row['low']} to {row['high']})")


if __name__ == "__main__":
    main()
