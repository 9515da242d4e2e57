"""An experiment as a user writes it: is the sum of the numbers so far positive? A package may hold it; here it is one file.

A sequence comes in four pieces of several lengths. The state starts from a learned one and is carried from piece to piece. The best
checkpoint has the most hits on the validation data, and these hits are the result.
"""

import hashlib
from dataclasses import dataclass

import click
import torch
from torch import nn
from torch.nn import functional as F

from multint import MIRNN
from multint.paper import session
from multint.paper.experiment import Experiment, Loss, Metric, Recipe, Result, Schedule, Sum, Task
from multint.paper.report.markup import Cell, Table
from multint.paper.report.section import Section

HITS = Metric("hits", "right %", lower=False)
NATS = Metric("nats", "nats")
LENGTHS = (3, 5, 8)
PIECES = 4  # of a sequence


@dataclass(frozen=True)
class Tally(Recipe):
    hidden: int = 8
    batch: int = 4
    integration: str = "general"


class Numbers:
    """The data: random numbers, the same on every machine."""

    name, stands_for, own, form = "tally", None, False, ""

    @property
    def sha256(self):
        return hashlib.sha256(self.draw(0, 100, 4).numpy().tobytes()).hexdigest()

    def draw(self, seed, length, n):
        return torch.randn(length, n, 1, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    def __init__(self, hidden, integration):
        super().__init__()
        self.core = MIRNN(1, hidden, integration=integration, learn_state=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, state=None):
        h, state = self.core(x, state)
        return self.out(h[-1]), state


class Epoch:
    """Three sequences in four pieces each. The length of a piece depends on its position alone."""

    def __init__(self, data, first, n, team):
        self.data, self.first, self.n, self.team = data, first, n, team

    def __len__(self):
        return 3 * PIECES

    def piece(self, position):
        return self.data.draw(self.first + position, LENGTHS[position % len(LENGTHS)], self.n)

    def __getitem__(self, position):
        begin = position - position % PIECES
        total = sum(self.piece(earlier).sum((0, 2)) for earlier in range(begin, position + 1))
        each = self.n // self.team.world
        mine = slice(self.team.rank * each, (self.team.rank + 1) * each)
        return {"x": self.piece(position)[:, mine], "y": (total[mine] > 0).long()}


class TallyTask(Task):
    metrics = (HITS, NATS)
    select = "hits"
    loss_unit = "nats"
    work_unit = "sequences"

    def __init__(self, job, device):
        self.recipe, self.data, self.seed, self.device = job.recipe, job.data, job.seed, device

    def description(self):
        return {"hidden": self.recipe.hidden, "integration": self.recipe.integration}

    def build(self):
        return Model(**self.description())

    def epoch(self, number, team):
        return Epoch(self.data, 1000 * (self.seed + 1) + 100 * number, self.recipe.batch, team)

    def begins(self, position):
        return position % PIECES == 0

    def loss(self, model, batch, state):
        logits, state = model(batch["x"], state)
        value = F.cross_entropy(logits, batch["y"])
        return Loss(value, value.detach() * len(logits), len(logits)), state

    def work(self, batch):
        return batch["x"].shape[1]

    def scores(self, model, split, team):
        x = self.data.draw(7, 12, 64)[:, team.rank :: team.world].to(self.device)
        y = (x.sum((0, 2)) > 0).long()
        logits, _ = model(x)
        hits = 100.0 * (logits.argmax(1) == y).sum().item()
        return {"hits": Sum(hits, len(y)), "nats": Sum(F.cross_entropy(logits, y, reduction="sum").item(), len(y))}

    def results(self, model, team):
        scores = self.scores(model, "valid", team)
        return [Result(metric, team.mean(scores[metric.name]), "tally", "valid", n=64) for metric in self.metrics]


def sections(view):
    runs = [one for one in view.records.runs if one.recipe.startswith("tally/")]
    rows = tuple((Cell(one.run, "head"), Cell(f"{one.result('hits').value:.1f}", "number")) for one in runs)
    return [Section("Tallies", "Hits of every run.", tables=(Table("Tally runs", "", ("Run", "right %"), rows),))]


@click.command("tally", context_settings={"ignore_unknown_options": True})  # -3 is a number
@click.argument("run", type=click.Path())
@click.argument("numbers", nargs=-1, required=True, type=float)
def tally(run, numbers):
    """Is the sum of NUMBERS positive?"""
    logits, _ = session.load(run)(torch.tensor(numbers).view(-1, 1, 1))
    click.echo("positive" if logits[0].argmax() else "not positive")


SCHEDULE = Schedule(lr=0.02, epochs=4, evaluate_every=6)
EXPERIMENT = Experiment(
    name="tally",
    recipes={
        "mi": Tally(schedule=SCHEDULE, row="tally-mi", twin="tally/plain", scale="laptop", note="the sum of four pieces"),
        "plain": Tally(schedule=SCHEDULE, scale="laptop", integration="additive", note="its additive twin"),
    },
    prepare=lambda recipe, folder, given: Numbers(),
    task=TallyTask,
    model=lambda description: Model(**description),
    commands=(tally,),
    sections=sections,
)
