"""What does an update of a recogniser cost beyond its layers and the CTC loss?

Times updates inside ``engine.fit`` (features, batching, weight noise, clipping, Adam and Python included) against the forward and
backward pass of the model and the CTC loss on the same batches, ready in memory: ``python benchmarks/speech.py`` adds rows to
results/bench/. The utterances are random numbers with the lengths of the corpus, so no audio is needed.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import common
import numpy as np
import torch
from loop import Looped, seconds
from torch.nn import functional as F

from multint.paper import processes
from multint.paper.experiment import Job, Team
from multint.paper.speech.corpus import Corpus, Split
from multint.paper.speech.features import MEL
from multint.paper.speech.listing import LETTERS
from multint.paper.speech.recipes import RECIPES
from multint.paper.speech.task import SpeechTask
from multint.paper.speech.utterances import BLANK
from multint.paper.speech.wsj import UNITS

LIMIT = 1.11  # at most a tenth of an update is neither layers nor loss
LENGTHS = {"laptop-wsj": (1260, 190), "minilibri": (1260, 190), "wsj": (780, 110)}  # mean frames and characters of an utterance


def corpus(recipe, frames, labels, utterances=64):
    """Random utterances of about these lengths."""
    generator = np.random.default_rng(0)
    units = UNITS if recipe.corpus == "wsj" else LETTERS
    lengths = (frames * generator.uniform(0.6, 1.4, utterances)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    spelled = tuple(tuple(int(i) for i in generator.integers(1, len(units) + 1, int(labels * n / frames))) for n in lengths)
    names = tuple(f"u{k}" for k in range(utterances))
    values = generator.standard_normal((int(starts[-1]), MEL)).astype(np.float16)
    split = Split(names, names, ((),) * utterances, spelled, starts, values)
    return Corpus(recipe.corpus, "random", None, units, {"train": split, "valid": split, "test": split}, own=True)


class Bare:
    """Layers and loss alone, on batches that are ready."""

    def __init__(self, job, fabric, count):
        self.fabric, task = fabric, SpeechTask(job, fabric.device)
        torch.manual_seed(job.seed)
        self.model = fabric.setup(task.build())
        every = task.epoch(1, Team())
        self.batches = [every[k] for k in range(count)]

    def updates(self, count):
        for one in self.batches[:count]:
            self.model.zero_grad()
            log_probs = self.model(one.x, one.lengths)
            total = F.ctc_loss(log_probs, one.labels, one.lengths, one.counts, blank=BLANK, reduction="sum")
            self.fabric.backward(total / one.labels.numel())


def measure(name, repeats, count):
    recipe = RECIPES[name]
    frames, labels = LENGTHS[name.rpartition("-")[0]]
    needed = count * recipe.utterances * 2
    job = Job(f"speech/{name}", recipe, 0, "bf16", corpus(recipe, frames, labels, needed))
    fabric = processes.make_fabric("cpu", precision="bf16")
    with tempfile.TemporaryDirectory() as folder:
        bare, looped = Bare(job, fabric, count), Looped(job, fabric, folder, SpeechTask, epoch=1)
        pairs = []
        for repeat in range(repeats + 1):
            looped.fit.p.position = 0  # the same batches as the bare side
            both = seconds(bare, count, fabric.device), seconds(looped, count, fabric.device)
            pairs += [both] if repeat else []  # the first warms up
    steps = sum(int(one.lengths.sum()) for one in bare.batches) // count
    shape = f"{recipe.layers}x{recipe.hidden} {recipe.integration}, {steps} steps of {recipe.form.size}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: peak memory {peak:.1f} GiB, {recipe.stack * steps / np.median([ours for _, ours in pairs]):,.0f} frames/s")
    return common.row("update / layers and CTC", shape, "bfloat16", pairs, f"{repeats}x{count} updates", LIMIT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--recipes", nargs="+", default=["laptop-wsj-lstm", "laptop-wsj-milstm", "minilibri-milstm", "wsj-milstm"])
    given = parser.parse_args()
    began = time.perf_counter()
    common.go([(name, name) for name in given.recipes], lambda name: measure(name, given.repeats, given.updates), given.out)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
