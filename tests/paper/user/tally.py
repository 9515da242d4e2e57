"""An experiment of a user's own: is the sum of a sequence of numbers positive? A package may hold it; here it is one file.

Sequences of three lengths, a state carried over three batches from a learned start, two metrics of opposite direction, and the
validation data for the result.
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


@dataclass(frozen=True)
class Tally(Recipe):
    hidden: int = 8
    batch: int = 4
    integration: str = "general"


@dataclass(frozen=True)
class Numbers:
    """Made up, the same for everybody."""

    name: str = "tally"
    stands_for: str | None = None
    own: bool = False
    form: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.draw(0, 7, 4)[0].numpy().tobytes()).hexdigest()

    def draw(self, seed, length, n):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(length, n, 1, generator=generator)
        return x, (x.sum((0, 2)) > 0).long()


class Model(nn.Module):
    def __init__(self, hidden, integration):
        super().__init__()
        self.core = MIRNN(1, hidden, integration=integration, learn_state=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, state=None):
        h, state = self.core(x, state)
        return self.out(h[-1]), state


class Epoch:
    """Twelve batches; how long one is depends on its position alone."""

    def __init__(self, data, seed, epoch, n, team):
        self.data, self.first, self.n, self.team = data, 1000 * seed + 100 * epoch, n, team

    def __len__(self):
        return 12

    def __getitem__(self, position):
        x, y = self.data.draw(self.first + position, LENGTHS[position % len(LENGTHS)], self.n)
        mine = slice(self.team.rank * self.n // self.team.world, (self.team.rank + 1) * self.n // self.team.world)
        return {"x": x[:, mine], "y": y[mine]}


class TallyTask(Task):
    metrics = (HITS, NATS)
    select = "hits"
    loss_unit = "nats"
    work_unit = "sequences"

    def __init__(self, job, device):
        self.recipe, self.data, self.seed, self.device = job.recipe, job.data, job.seed, device

    def build(self):
        return Model(self.recipe.hidden, self.recipe.integration)

    def description(self):
        return {"hidden": self.recipe.hidden, "integration": self.recipe.integration}

    def epoch(self, number, team):
        return Epoch(self.data, self.seed, number, self.recipe.batch, team)

    def begins(self, position):
        return position % 3 == 0

    def loss(self, model, batch, state):
        logits, state = model(batch["x"], state)
        value = F.cross_entropy(logits, batch["y"])
        return Loss(value, value.detach() * len(logits), len(logits)), state

    def work(self, batch):
        return batch["x"].shape[1]

    def scores(self, model, split, team):
        if team.rank:  # little enough for one process
            return {"hits": Sum(0.0, 0), "nats": Sum(0.0, 0)}
        x, y = (part.to(self.device) for part in self.data.draw(99 if split == "valid" else 98, 6, 64))
        with torch.no_grad():
            logits, _ = model(x)
        right = (logits.argmax(1) == y).sum().item()
        return {"hits": Sum(100.0 * right, len(y)), "nats": Sum(F.cross_entropy(logits, y, reduction="sum").item(), len(y))}

    def after_training(self, model):
        with torch.no_grad():
            model.out.bias.add_(0.0)

    def results(self, model, team):
        scores = self.scores(model, "valid", team)
        return [Result(metric, team.mean(scores[metric.name]), "tally", "valid", 64) for metric in self.metrics]


def sections(view):
    runs = [one for one in view.records.runs if one.recipe.startswith("tally/")]
    rows = tuple((Cell(one.run, "head"), Cell(f"{one.result('hits').value:.1f}", "number")) for one in runs)
    return [Section("Tallies", "What tally runs reached.", tables=(Table("Tally runs", "", ("Run", "right %"), rows),))]


@click.command("tally")
@click.argument("run", type=click.Path())
@click.argument("numbers", nargs=-1, type=float)
def tally(run, numbers):
    """Is the sum of NUMBERS positive?"""
    logits, _ = session.load(run)(torch.tensor(numbers).view(-1, 1, 1))
    click.echo("positive" if logits[0].argmax() else "not positive")


SMALL = Tally(schedule=Schedule(lr=0.02, epochs=4, evaluate_every=6), twin="tally/plain")
EXPERIMENT = Experiment(
    name="tally",
    recipes={
        "mi": SMALL,
        "plain": Tally(schedule=Schedule(lr=0.02, epochs=4, evaluate_every=6), integration="additive"),
    },
    prepare=lambda recipe, folder, given: Numbers(),
    task=TallyTask,
    model=lambda description: Model(**description),
    commands=(tally,),
    sections=sections,
)
