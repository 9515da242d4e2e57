"""Small experiments for the tests of the training loop: everything an ``experiment.Task`` may use, and nothing of the paper."""

import os
import signal
from typing import NamedTuple

import torch
from torch import nn

from multint.paper import engine, processes
from multint.paper.experiment import Loss, Metric, Schedule, Sum, Task
from multint.paper.runs import Run

ERROR = Metric("error", "points")
SHORT = Schedule(lr=0.01, updates=60, evaluate_every=20)


def share(rows, team):
    """One process's part of the rows."""
    each = len(rows) // team.world
    return rows[team.rank * each : (team.rank + 1) * each]


# ---- a carried state ----


class Walker(nn.Module):
    """A recurrent model whose state is a nested tree."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.cell, self.out, self.dropout = nn.GRUCell(3, 5), nn.Linear(5, 1), nn.Dropout(dropout)

    def forward(self, x, state=None):
        state = state or {"layers": (x.new_zeros(1, x.shape[1], 5), [x.new_zeros(1, x.shape[1])]), "kind": "gru"}
        h, (steps,) = state["layers"]
        outputs, h = [], h[0]
        for row in x:
            h = self.cell(row, h)
            outputs.append(self.out(self.dropout(h)))
        return torch.stack(outputs), {"layers": (h[None], [steps + len(x)]), "kind": "gru"}


class Carried(Task):
    """The sum of what was seen so far, the state carried for ``every`` batches."""

    metrics, select = (ERROR,), "error"
    loss_unit, work_unit, observed = "points", "steps", ("bias",)

    def __init__(self, every=7, dropout=0.0, batch=4, seed=0):
        self.every, self.dropout, self.batch, self.seed = every, dropout, batch, seed

    def build(self):
        return Walker(self.dropout)

    def epoch(self, number, team):
        draw = torch.Generator().manual_seed(1000 * self.seed + number)
        rows = [torch.randn(6, self.batch, 3, generator=draw) for _ in range(25)]
        return [{"x": share(x.transpose(0, 1), team).transpose(0, 1).contiguous()} for x in rows]

    def begins(self, position):
        return position % self.every == 0

    def loss(self, model, batch, state):
        x = batch["x"]
        y, state = model(x, state)
        error = (y[..., 0] - x.sum(-1).cumsum(0)).pow(2)
        return Loss(error.mean(), error.sum(), error.numel()), state

    def work(self, batch):
        return batch["x"][..., 0].numel()

    def product_rows(self, world):
        return {self.batch // world}

    def scores(self, model, split, team):
        x = share(torch.randn(8, 10, 3, generator=torch.Generator().manual_seed(5)), team).transpose(0, 1)
        x = x.to(next(model.parameters()).device)
        y, _ = model(x)
        error = (y[..., 0] - x.sum(-1).cumsum(0)).pow(2)
        return {"error": Sum(float(error.double().sum()), error.numel())}

    def observe(self, model):
        return {"bias": float(model.out.bias.detach())}


# ---- batches of several lengths, a learned initial state, two metrics ----


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.core, self.out = nn.RNN(2, 6), nn.Linear(6, 3)
        self.h0 = nn.Parameter(0.1 * torch.randn(6))

    def forward(self, x, state=None):
        h = self.h0.expand(1, x.shape[1], -1).contiguous() if state is None else state
        y, h = self.core(x, h)
        return self.out(y[-1]), h


class Example(NamedTuple):
    x: torch.Tensor
    label: torch.Tensor


class Lengths(Task):
    """Which of three directions a path of 1 to 4 steps took. The best checkpoint has the highest accuracy."""

    metrics = (Metric("nll", "nats"), Metric("accuracy", "%", lower=False))
    select, loss_unit, work_unit = "accuracy", "nats", "steps"
    lengths = (1, 2, 3, 4)

    def __init__(self, carry=False, endless=False, batch=4, seed=0):
        self.carry, self.endless, self.batch, self.seed = carry, endless, batch, seed

    def build(self):
        return Reader()

    def epoch(self, number, team):
        whole = [self.example(number, position, team) for position in range(20)]
        return Endless(self, number, team) if self.endless else whole

    def example(self, number, position, team):
        draw = torch.Generator().manual_seed(100_000 * self.seed + 1000 * number + position)
        steps = self.lengths[int(torch.randint(len(self.lengths), (), generator=draw))]
        label = torch.randint(3, (self.batch,), generator=draw)
        x = torch.randn(self.batch, steps, 2, generator=draw) + torch.stack([label.cos(), label.sin()], -1)[:, None]
        return Example(share(x, team).transpose(0, 1).contiguous(), share(label, team))

    def begins(self, position):
        return not self.carry or position % 3 == 0

    def loss(self, model, batch, state):
        logits, state = model(batch.x, state)
        value = nn.functional.cross_entropy(logits, batch.label)
        return Loss(value, value * len(batch.label), torch.tensor(len(batch.label), device=value.device)), state

    def work(self, batch):
        return batch.x.shape[0] * batch.x.shape[1]

    def scores(self, model, split, team):
        device = next(model.parameters()).device
        nll, right = Sum(0.0, 0), Sum(0.0, 0)
        for position in range(8):
            x, label = (part.to(device) for part in self.example(10**6, position, team))
            logits, _ = model(x)
            nll.total += float(nn.functional.cross_entropy(logits, label, reduction="sum").double())
            right.total += 100.0 * float((logits.argmax(-1) == label).sum())
            nll.count, right.count = nll.count + len(label), right.count + len(label)
        return {"nll": nll, "accuracy": right}


class Endless:
    """Batches without an end."""

    def __init__(self, task, number, team):
        self.task, self.number, self.team = task, number, team

    def __getitem__(self, position):
        return self.task.example(self.number, position, self.team)


# ---- scores written in advance ----


class Scripted(Task):
    """A task whose validation scores are given."""

    metrics, select, observed = (ERROR,), "error", ("seen",)

    def __init__(self, scores, metric=ERROR):
        self.given, self.metrics = iter(scores), (metric,)

    def build(self):
        self.seen, self.model = [], nn.Linear(1, 1)
        return self.model

    def epoch(self, number, team):
        return [(torch.ones(2, 1),)] * 3

    def loss(self, model, batch, state):
        value = model(batch[0]).pow(2).mean()
        return Loss(value, value, 1), None

    def product_rows(self, world):
        return {2}

    def scores(self, model, split, team):
        self.seen.append(self.model.weight.detach().clone())
        return {"error": Sum(next(self.given), 1)}

    def observe(self, model):
        return {"seen": 7.5}


# ---- training ----


class Kept(engine.Silent):
    """A watcher that keeps what it is shown."""

    def __init__(self):
        self.calls = []

    def start(self, task, progress):
        self.calls.append(("start", task))

    def update(self, progress, loss, speed, left):
        self.calls.append(("update", loss, speed, left))

    def evaluated(self, progress, scores):
        self.calls.append(("evaluated", scores))

    def say(self, line):
        self.calls.append(("say", line))


def stopping(task, after, number=signal.SIGTERM):
    """The task, with a signal to stop during that update of the session."""
    real, calls = task.work, iter(range(1, 10**6))

    def work(batch):
        if next(calls) == after:
            os.kill(os.getpid(), number)
        return real(batch)

    task.work = work
    return task


def fit(task, root, schedule=SHORT, watcher=None, device="cpu", **settings):
    """Train in a run folder of its own; the progress and the model."""
    with Run(root, "toy", {"task": type(task).__name__}) as run:
        return engine.fit(task, schedule, run, processes.make_fabric(device), watcher, **settings)
