"""How is any task trained? The one training loop, on Lightning Fabric.

A task defines its batches, loss and scores (``experiment.Task``); ``fit`` does the rest: truncated back-propagation with a carried
or an initial state, clipping, evaluation, the paper's halving rule, early stopping, checkpoints, and on CUDA each update as one
graph. Batch order depends on (seed, epoch, position) alone, so a run continued from a checkpoint ends with the same weights.
"""

import functools
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from multint.paper import capture, products
from multint.paper.experiment import Batch, Loss, Schedule, State, Task, mapped, tensors
from multint.paper.processes import bare, team
from multint.paper.runs import COLUMNS, Clock, Progress, Run, RunError, Stopped, environment, handling, write_json


@runtime_checkable
class Watcher(Protocol):
    """Shows a run while it trains. Units are those of the task it starts with."""

    def start(self, task: Task, progress: Progress) -> None: ...
    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None: ...
    def evaluated(self, progress: Progress, scores: dict[str, float]) -> None: ...
    def say(self, line: str) -> None: ...


class Silent:
    """A watcher that shows nothing."""

    def start(self, task: Task, progress: Progress) -> None: ...
    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None: ...
    def evaluated(self, progress: Progress, scores: dict[str, float]) -> None: ...
    def say(self, line: str) -> None: ...


@contextmanager
def signals(world: int) -> Iterator[list[int]]:
    """The signals to stop (SIGTERM, Ctrl-C) that arrived inside.

    The second one ends the process at once. With several processes the first does, since they must not stop at different updates.
    """
    received: list[int] = []

    def receive(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, before[number])

    with handling(() if world > 1 else (signal.SIGTERM, signal.SIGINT), receive) as before:
        yield received


# ---- one update ----


class Done(NamedTuple):
    """What an update leaves: its loss, the norm of the gradient before clipping, and the new state."""

    loss: Loss
    norm: Tensor
    state: State


class Update:
    """One update of the weights, operation by operation."""

    def __init__(self, fabric: Any, task: Task, model: nn.Module, optimizer: Any, clip: float | None) -> None:
        self.fabric, self.task, self.model, self.optimizer, self.clip = fabric, task, model, optimizer, clip

    def __call__(self, batch: Batch, state: State) -> Done:
        self.optimizer.zero_grad()
        loss, state = self.task.loss(self.model, batch, state)
        self.fabric.backward(loss.value)
        if self.clip is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        else:
            norm = self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return Done(mapped(Tensor.detach, loss), norm, mapped(own, state))


def own(part: Tensor) -> Tensor:
    """A state in memory of its own: kernels round by layout and alignment, so a state must have those that a restored one has."""
    part = part.detach()
    return part if part.is_contiguous() and part.storage_offset() == 0 else part.clone(memory_format=torch.contiguous_format)


class Prepared(NamedTuple):
    """A model with its optimiser and the update that trains it. ``scales`` are the rates of its groups over the schedule's."""

    model: nn.Module
    module: nn.Module  # the model without wrappers
    optimizer: torch.optim.Optimizer
    step: Any
    captured: bool
    scales: list[float]


def prepare(task: Task, schedule: Schedule, fabric: Any, note: Callable[[str], None] = lambda line: None) -> Prepared:
    """A new model, ready to be trained: on one CUDA device each update is a CUDA graph."""
    reason = capture.why_not(fabric)
    note("each update is one CUDA graph" if reason is None else f"no CUDA graph: {reason}")
    captured = reason is None
    torch.manual_seed(task.seed)
    model = task.build()
    rate = torch.tensor(schedule.lr, device=fabric.device) if captured else schedule.lr  # a graph reads it from there
    how = {"capturable": captured, "fused": captured, "foreach": not captured}
    optimizer = task.optimizer(list(model.parameters()), schedule, lr=rate, **how)
    scales = [float(group["lr"]) / float(rate) for group in optimizer.param_groups]
    wrapped_model, wrapped = fabric.setup(model, optimizer)
    torch.manual_seed(task.seed + 1 + fabric.global_rank)  # dropout differs between processes
    update = Update(fabric, task, wrapped_model, wrapped, schedule.clip)
    step = capture.Captured(update, task.capture_key, capture.CudaRecorder(), note) if captured else update
    return Prepared(wrapped_model, bare(wrapped_model), optimizer, step, captured, scales)


class Pending:
    """Losses that were not read from the device yet: reading waits for it, so it happens rarely."""

    def __init__(self, device: torch.device, since: float) -> None:
        self.sums = [torch.zeros((), device=device, dtype=torch.float64) for _ in range(3)]  # value, total, count
        self.updates, self.work, self.since = 0, 0, since

    def add(self, loss: Loss, work: int) -> None:
        for place, part in enumerate(loss):
            self.sums[place] += part
        self.updates += 1
        self.work += work


# ---- the loop ----


def fit(
    task: Task,
    schedule: Schedule,
    run: Run,
    fabric: Any,
    watcher: Watcher | None = None,
    *,
    log_every: int = 50,
    save_every: float = 60.0,
) -> tuple[Progress, nn.Module]:
    """Train ``task`` until its schedule ends, from the run's last good checkpoint if it has one. Returns the progress and the model
    with the weights of its best evaluation.

    Checkpoints are written every ``save_every`` seconds, at the end, and at evaluations while that takes a twentieth of the time or
    less. When they are written changes no weight.
    """
    return _Fit(task, schedule, run, fabric, watcher or Silent(), log_every, save_every).run()


class _Fit:
    """The state of one call of ``fit``."""

    SPARSELY = 20  # times as long as a checkpoint takes must lie between two of them
    LOWER_EVERY = 10  # updates, with a linear rate

    def __init__(
        self, task: Task, schedule: Schedule, run: Run, fabric: Any, watcher: Watcher, log_every: int, save_every: float
    ) -> None:
        self.task, self.schedule, self.folder, self.fabric, self.watcher = task, schedule, run, fabric, watcher
        self.log_every, self.save_every = log_every, save_every
        self.team = team(fabric)
        self.rank, self.world = self.team.rank, self.team.world
        metrics = {metric.name: metric for metric in task.metrics}
        if task.select not in metrics:
            raise RunError(f"the task selects by {task.select!r}; its metrics are {', '.join(metrics)}")
        self.metric = metrics.pop(task.select)
        self.others = tuple(metrics)
        self.p = Progress(lr=schedule.lr)
        self.clock = Clock()
        prepared = prepare(task, schedule, fabric, self.note)
        self.model, self.module, self.optimizer, self.step, self.captured, self.scales = prepared
        self.state: State = None
        self.pending = Pending(fabric.device, self.clock())
        self.timed = False  # whether kernels are compiled, so that throughput counts
        self.board: Any = None
        self.norm = torch.zeros(())
        self.stop: list[int] = []  # signals to stop
        self.best: dict[str, Tensor] = {}  # weights of the best evaluation, until they are written
        self.counted = self.saved_at = 0.0  # on the clock: what Progress.seconds includes, and the last checkpoint
        self.saving = 0.0  # seconds the last checkpoint took

    # -- checkpoints --

    def checkpoint(self) -> dict[str, Tensor]:
        """Everything that the next update depends on and ``Progress`` does not hold; the same on every process."""
        out = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        self.p.optimizer = {}
        for i, values in self.optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    out[f"optimizer.{i}.{key}"] = value
                elif value is None or isinstance(value, (int, float)):
                    self.p.optimizer[f"{i}.{key}"] = value
                else:
                    raise RunError(f"the optimiser's {key} is a {type(value).__name__}; checkpoints take tensors and numbers")
        state = None if self.task.begins(self.p.position) else self.state
        self.p.state = outline(state)
        out |= {f"state.{i}": self.joined(part) for i, part in enumerate(tensors(state))}
        out["rng"] = self.rows(torch.get_rng_state())
        if self.fabric.device.type == "cuda":
            out["rng.cuda"] = self.rows(torch.cuda.get_rng_state())
        return out

    def rows(self, generator: Tensor) -> Tensor:
        """A generator's state on every process, a row each."""
        mine = generator.unsqueeze(0)
        return mine if self.world == 1 else self.fabric.all_gather(mine).reshape(self.world, -1)

    def row(self, generators: Tensor, now: Tensor) -> Tensor:
        """This process's row, a copy, since torch reads from the start of the storage. A new process keeps the state it has."""
        return generators[self.rank].clone() if self.rank < len(generators) else now

    def joined(self, part: Tensor) -> Tensor:
        """A state of all processes, side by side."""
        if self.world == 1:
            return part
        if part.dim() <= self.task.state_dim:
            raise RunError(f"a state of shape {tuple(part.shape)} has no dimension {self.task.state_dim}, which processes share")
        return torch.cat(list(self.fabric.all_gather(part)), dim=self.task.state_dim)

    def shared(self, part: Tensor) -> Tensor:
        """This process's part of a joined state."""
        mine = part if self.world == 1 else part.chunk(self.world, dim=self.task.state_dim)[self.rank]
        return self.to_device(own(mine))  # type: ignore[no-any-return]

    def save(self) -> None:
        self.collect()
        self.p.seconds += self.clock() - self.counted
        self.counted = self.clock()
        self.p.history[-1] |= {"to": self.p.update, "seconds": round(self.counted, 1)}
        checkpoint = self.checkpoint()
        if self.rank == 0:
            if self.best:  # first: a checkpoint must not name a best that is not there
                self.folder.save("best", self.best, self.p)
            self.folder.save_last(checkpoint, self.p)
        self.best = {}
        self.saved_at = self.pending.since = self.clock()
        self.saving = self.saved_at - self.counted

    def restore(self) -> None:
        loaded = self.folder.load_last()
        if loaded is not None:
            saved, self.p = loaded
            self.module.load_state_dict(under("model.", saved))
            self.restore_optimizer(saved)
            states = under("state.", saved)
            self.state = rebuilt(self.p.state, (self.shared(states[str(i)]) for i in range(len(states))))
            torch.set_rng_state(self.row(saved["rng"], torch.get_rng_state()))
            if self.fabric.device.type == "cuda" and "rng.cuda" in saved:
                torch.cuda.set_rng_state(self.row(saved["rng.cuda"], torch.cuda.get_rng_state()))
            self.set_rate(self.p.lr)
        where = environment()
        if self.rank == 0:
            self.folder.columns = (*COLUMNS, *self.others, *self.task.observed)
            self.folder.cut_curve(self.p.rows)
            write_json(self.folder.folder / "environment.json", where)
            self.board = self.folder.board(self.p.update)
        self.note(f"session on {where['device']}, torch {where['torch']}, commit {where['commit']}")
        self.watcher.start(self.task, self.p)
        if loaded is not None:
            self.say(f"continuing at update {self.p.update} of epoch {self.p.epoch}")
        session = {key: where[key] for key in ("device", "commit", "shared")}
        self.p.history.append({"from": self.p.update, "to": self.p.update, **session})
        self.counted = self.saved_at = self.pending.since = self.clock()

    def restore_optimizer(self, saved: Mapping[str, Tensor]) -> None:
        state = self.optimizer.state
        for i, parameter in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            values: dict[str, Any] = dict(under(f"optimizer.{i}.", saved))
            for key, value in values.items():  # Adam's count of steps is on the device for graphs alone
                values[key] = value.to(parameter.device) if key != "step" or self.captured else value
            values |= under(f"{i}.", self.p.optimizer)
            if values:
                state[parameter] = values

    def say(self, line: str) -> None:
        """A line for the watcher and the run's log."""
        self.watcher.say(line)
        self.note(line)

    def note(self, line: str) -> None:
        """A line for the run's log."""
        if self.rank == 0:
            self.folder.log(line)

    def set_rate(self, lr: float) -> None:
        self.p.lr = lr
        for group, scale in zip(self.optimizer.param_groups, self.scales, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * scale)
            else:
                group["lr"] = lr * scale

    # -- training --

    def run(self) -> tuple[Progress, nn.Module]:
        self.restore()
        if self.fabric.device.type == "cuda":  # needed before scoring too
            self.check_products()
        with signals(self.world) as self.stop:
            while not self.p.done:
                self.epoch()
        self.note(f"ended: {self.p.done}")
        self.fabric.barrier()
        if self.board is not None:
            self.board.close()
        if self.p.best is None:
            raise RunError("no evaluation gave a number; try a smaller rate (--set schedule.lr=...) in another --runs folder")
        best, then = self.folder.load_best(self.p.best_update)
        if then.best_update != self.p.best_update:  # killed between the two files, then rounded differently
            self.note(f"the best weights are those of update {then.best_update}")
            self.p.best, self.p.best_update = then.best, then.best_update
        self.module.load_state_dict(under("model.", best))
        return self.p, self.model

    def check_products(self) -> None:
        """A share of a GPU may multiply wrongly without an error; if it does on one process, all end."""
        with self.fabric.autocast():
            wrong = products.fault(self.module, self.task.product_rows(self.world), self.fabric.device)
        faults = torch.tensor(float(wrong is not None), device=self.fabric.device)
        if self.world > 1:
            faults = self.fabric.all_reduce(faults, reduce_op="sum")
        if faults:
            what = wrong or f"of {self.world} processes {int(faults)} have a device that cannot multiply; they say more"
            raise RunError(f"{what}; nothing was trained in this session")

    def length(self, batches: Any) -> tuple[int | None, int]:
        """Batches of an epoch (None: without end), and updates after which training ends at the latest."""
        length = len(batches) if isinstance(batches, Sized) else None
        if length == 0:
            raise RunError("the training set is too small: an epoch has no batch")
        try:
            return length, self.schedule.most(length)
        except ValueError as error:
            raise RunError(str(error)) from error

    def epoch(self) -> None:
        """Train from the current position to the end of the epoch, or of the run."""
        p, s, task = self.p, self.schedule, self.task
        batches = task.epoch(p.epoch, self.team)
        length, most = self.length(batches)
        self.model.train()
        while not p.done:
            if s.linear and p.update % self.LOWER_EVERY == 0:
                self.set_rate(s.lr * (1 - p.update / most))
            self.update(batches[p.position])
            last = p.position == length
            every = p.update % s.evaluate_every == 0 if s.evaluate_every else last
            if last:
                p.epoch, p.position = p.epoch + 1, 0
            due = every or p.update == s.updates or p.epoch == s.epochs  # a run never ends without an evaluation
            if p.update % self.log_every == 0 or due:
                self.report(most)
            if due:
                self.evaluate()
            self.decide()
            if p.done or self.stop or self.late(due):
                self.save()
            if self.stop and not p.done:
                self.note(f"stopped at update {p.update}")
                raise Stopped(f"{self.folder.name} stopped at update {p.update}; the same command continues it")
            if last:
                return

    def update(self, batch: Batch) -> None:
        work = self.task.work(batch)
        batch = self.to_device(batch)
        if self.task.begins(self.p.position):
            self.state = self.to_device(self.task.initial_state(batch))
            if any(part.requires_grad for part in tensors(self.state)):
                raise RunError("initial_state gave a tensor that needs a gradient; return None for the model's own initial state")
        loss, self.norm, self.state = self.step(batch, self.state)
        self.pending.add(loss, work)
        self.p.update, self.p.position = self.p.update + 1, self.p.position + 1

    def to_device(self, tree: Any) -> Any:
        return mapped(lambda part: part.to(self.fabric.device, non_blocking=True), tree)

    def late(self, due: bool) -> bool:
        """Is it time for a checkpoint? Clocks differ, so of several processes the first decides, at logged updates."""
        most = min(self.save_every, self.SPARSELY * self.saving) if due else self.save_every
        now = self.clock() - self.saved_at > most
        if self.world == 1:
            return now
        if not due and self.p.update % self.log_every:
            return False
        return bool(self.fabric.broadcast(now))

    def report(self, most: int) -> None:
        """Read the losses from the device and show them."""
        updates = self.pending.updates
        loss, speed, spent = self.collect()
        self.timed = True
        if updates:
            self.watcher.update(self.p, loss, speed, (most - self.p.update) * spent / updates)

    def collect(self) -> tuple[float, float, float]:
        """Add up the last updates over all processes: their mean loss, work per second, and seconds."""
        pending = self.pending
        sums = torch.stack([*pending.sums, torch.full_like(pending.sums[0], pending.work)])
        if self.world > 1:
            sums = self.fabric.all_reduce(sums, reduce_op="sum")
        value, total, count, work = sums.tolist()  # waits for the device, so that the time is what the updates took
        spent = self.clock() - pending.since
        for part in (value, total):
            if not math.isfinite(part):
                raise RunError(
                    f"the loss became {part} before update {self.p.update}; the run's checkpoints are intact: "
                    "try a smaller rate (--set schedule.lr=...) or clipping in another --runs folder"
                )
        self.p.train_sum += total
        self.p.train_count += count
        if self.timed:
            self.p.work += work
            self.p.work_seconds += spent
        self.pending = Pending(self.fabric.device, self.clock())
        return total / count if count else 0.0, work / max(spent, 1e-9), spent

    @torch.no_grad()
    def scores(self) -> dict[str, float]:
        """The validation scores, by metric."""
        self.model.eval()
        sums = self.task.scores(self.model, "valid", self.team)
        return {metric.name: self.team.mean(sums[metric.name]) for metric in self.task.metrics}

    def evaluate(self) -> None:
        p, scores = self.p, self.scores()
        valid, train = scores[self.task.select], p.train_sum / p.train_count if p.train_count else math.nan
        p.train_sum = p.train_count = 0.0
        seconds = p.seconds + self.clock() - self.counted
        row = {"update": p.update, "epoch": p.epoch, "seconds": round(seconds, 2), "lr": p.lr}
        values = {"train": train, "valid": valid, "grad_norm": float(self.norm)} | {name: scores[name] for name in self.others}
        row |= {name: float(f"{value:.6g}") for name, value in values.items()}
        if math.isfinite(valid) and (p.best is None or self.metric.better(valid, p.best)):
            p.best, p.best_update, p.stale, p.since_best = valid, p.update, 0, 0
            self.best = {f"model.{k}": v.clone() for k, v in self.module.state_dict().items()}
        else:
            p.stale, p.since_best = p.stale + 1, p.since_best + 1
        if not self.schedule.linear and self.schedule.halve_after is not None and p.stale >= self.schedule.halve_after:
            p.stale = 0
            self.set_rate(p.lr / 2)
        if self.rank == 0:
            self.folder.add_row(row | self.task.observe(self.module))
            p.rows += 1
            for name in ("lr", *values) if self.board is not None else ():
                self.board.add_scalar(name, row[name], p.update)
        said = ", ".join(f"{metric.name} {scores[metric.name]:.4f} {metric.unit}" for metric in self.task.metrics)
        self.note(f"update {p.update}, epoch {p.epoch}: train {train:.4f} {self.task.loss_unit}, valid {said}, rate {p.lr:g}")
        self.watcher.evaluated(p, scores)
        self.model.train()
        self.pending.since = self.clock()

    def decide(self) -> None:
        """Is training over?"""
        p, s = self.p, self.schedule
        if s.updates is not None and p.update >= s.updates:
            p.done = f"{s.updates} updates"
        elif p.epoch >= s.epochs:
            p.done = f"{s.epochs} epochs"
        elif s.stop_after is not None and p.since_best >= s.stop_after:
            p.done = f"no new best in {s.stop_after} evaluations"
        elif p.lr < s.min_lr and not s.linear:
            p.done = f"the rate fell below {s.min_lr}"


# ---- trees in checkpoints ----


def under(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def outline(tree: Any) -> Any:
    """A tree as JSON, without its tensors. ``rebuilt`` puts tensors back."""
    if isinstance(tree, Tensor):
        return ["tensor"]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    kind = type(tree)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(tree, Mapping):
        return [name, [[key, outline(part)] for key, part in tree.items()]]
    if isinstance(tree, (tuple, list)):
        return [name, [outline(part) for part in tree]]
    if is_dataclass(tree):
        return [name, [[one.name, outline(getattr(tree, one.name))] for one in fields(tree)]]
    raise RunError(f"a state may hold tensors, numbers and text in tuples, lists, dicts and dataclasses, got {kind.__name__}")


def rebuilt(form: Any, parts: Iterator[Tensor]) -> Any:
    """The tree of an outline, with its tensors in order."""
    if not isinstance(form, list):
        return form
    if form == ["tensor"]:
        return next(parts)
    name, content = form
    module, _, path = name.partition(":")
    kind: Any = functools.reduce(getattr, path.split("."), sys.modules[module])  # loads nothing: the task is built already
    if issubclass(kind, (tuple, list)):
        values = [rebuilt(one, parts) for one in content]
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    if issubclass(kind, Mapping) or is_dataclass(kind):
        named = {key: rebuilt(one, parts) for key, one in content}
        return kind(named) if issubclass(kind, Mapping) else kind(**named)
    raise RunError(f"a state cannot be a {name}")
