"""How is any task trained? The one training loop, on Lightning Fabric.

A task says what a batch, a loss and a score are; ``fit`` does the rest: truncated back-propagation with carried or fresh state,
clipping, Adam, evaluation, the paper's halving rule, early stopping, checkpoints, and on CUDA the whole iteration as one captured
graph. Batch order is a function of (seed, epoch, position) alone, so a run continued from a checkpoint ends with the same weights.
"""

import atexit
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from multint.paper import products
from multint.paper.runs import COLUMNS, Clock, Progress, Run, RunError, Stopped, environment, handling, write_json

State = Any  # a tensor, a tuple of tensors, or None


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    ``halve_after`` is the paper's rule: halve the rate when the validation score has not fallen for that many evaluations.
    ``linear`` lets the rate fall in a straight line to zero at the last update instead.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = 1.0
    epochs: int = 50
    updates: int | None = None  # at most, whatever the epoch
    evaluate_every: int | None = None  # updates; None: after every epoch
    halve_after: int | None = 2
    linear: bool = False
    stop_after: int | None = 10  # evaluations without a new best
    min_lr: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "clip", "epochs", "updates", "evaluate_every", "halve_after", "stop_after"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than zero, got {value}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")

    def most(self, per_epoch: int) -> int:
        """Updates after which training ends at the latest."""
        return min(self.epochs * per_epoch, self.updates or self.epochs * per_epoch)


@runtime_checkable
class Batches(Protocol):
    """One epoch of batches, in an order that depends on (seed, epoch) alone."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: int, /) -> tuple[Tensor, ...]: ...


@runtime_checkable
class Task(Protocol):
    """What one experiment says of itself."""

    seed: int
    unit: str  # of losses and scores as shown, e.g. BPC
    observed: tuple[str, ...]  # names of what ``observe`` gives: further columns of the curve

    def build(self) -> nn.Module: ...
    def epoch(self, number: int, rank: int, world: int) -> Batches: ...
    def begins(self, position: int) -> bool: ...  # does the carried state begin anew at this batch?
    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], state: State) -> tuple[Tensor, State]: ...
    def shown(self, loss: float) -> float: ...
    def size(self, batch: tuple[Tensor, ...]) -> int: ...  # characters, frames: what speed counts
    def rows(self, world: int) -> set[int]: ...  # that its products have on each process, in training and in scoring
    def score(self, model: nn.Module, split: str, rank: int, world: int) -> "Sum": ...
    def observe(self, model: nn.Module) -> dict[str, float]: ...  # at every evaluation, beside the score


@dataclass
class Sum:
    """A loss summed over ``count`` predictions, to be added up over processes."""

    total: float
    count: int


@runtime_checkable
class Watcher(Protocol):
    """Sees a run go by: a progress bar, a line now and then, nothing."""

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None: ...
    def evaluated(self, progress: Progress, valid: float) -> None: ...
    def say(self, line: str) -> None: ...


class Silent:
    """A watcher that looks away."""

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None: ...
    def evaluated(self, progress: Progress, valid: float) -> None: ...
    def say(self, line: str) -> None: ...


def check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("no CUDA device is here: use --device cpu or auto")


def make_fabric(device: str = "auto", devices: int | str = 1, nodes: int = 1, precision: str = "fp32") -> Any:
    """A launched Fabric: device, precision and processes. Under torchrun it takes the processes that are there."""
    from lightning.fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # its advice on precision is ours to give
    if precision == "bf16":
        torch.set_float32_matmul_precision("high")
    precisions: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed"}
    if precision not in precisions:
        raise RunError(f"unknown precision {precision!r}: use fp32 or bf16")
    check_device(device)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_torchelastic_launched() and world > 1:
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        nodes = world // int(devices)
        _join(device)
    strategy = "ddp" if int(devices) * nodes > 1 else "auto"
    fabric = Fabric(accelerator=device, devices=devices, num_nodes=nodes, precision=precisions[precision], strategy=strategy)
    fabric.launch()
    return fabric


def _join(device: str) -> None:
    """Form the process group ourselves: after a lost worker torchrun's restarted processes would read the dead ones' addresses."""
    from torch import distributed as dist

    if dist.is_initialized():
        return
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = torch._C._distributed_c10d.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    backend = "gloo" if device == "cpu" or not torch.cuda.is_available() else "nccl"
    dist.init_process_group(
        backend,
        store=torch._C._distributed_c10d.PrefixStore(f"try{attempt}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    atexit.register(dist.destroy_process_group)  # as Fabric does for groups of its own: gloo's threads must end before Python


def bare(model: nn.Module) -> nn.Module:
    """The model itself, without Fabric's and DDP's wrapping."""
    inner: Any = model
    while hasattr(inner, "_forward_module") or isinstance(inner, nn.parallel.DistributedDataParallel):
        inner = inner._forward_module if hasattr(inner, "_forward_module") else inner.module
    return inner  # type: ignore[no-any-return]


@contextmanager
def heard(world: int) -> Iterator[list[int]]:
    """Signals that ask to end (SIGTERM, Ctrl-C), collected while a run goes on.

    The second one ends it at once, and so does the first among several processes, which must not part.
    """
    asked: list[int] = []

    def listen(number: int, _: Any) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    with handling(() if world > 1 else (signal.SIGTERM, signal.SIGINT), listen) as before:
        yield asked


# ---- states ----


def mapped(f: Callable[[Tensor], Tensor], state: State) -> State:
    """A state with f applied to each of its tensors."""
    if state is None:
        return None
    return f(state) if isinstance(state, Tensor) else tuple(f(part) for part in state)


def parts(state: State) -> list[Tensor]:
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else list(state)


class Pending:
    """Losses not yet read off the device: reading waits for it, so it is done now and then."""

    def __init__(self, device: torch.device, since: float) -> None:
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.count, self.size, self.since = 0, 0, since

    def add(self, loss: Tensor, size: int) -> None:
        self.total += loss
        self.count += 1
        self.size += size


# ---- one update ----


class Eager:
    """An update as torch runs it, operation by operation."""

    def __init__(self, fabric: Any, task: Task, model: nn.Module, optimizer: Any, schedule: Schedule) -> None:
        self.fabric, self.task, self.model, self.optimizer, self.schedule = fabric, task, model, optimizer, schedule

    def __call__(self, batch: tuple[Tensor, ...], state: State) -> tuple[Tensor, Tensor, State]:
        self.optimizer.zero_grad()
        loss, state = self.task.loss(self.model, batch, state)
        self.fabric.backward(loss)
        if self.schedule.clip is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        else:
            norm = self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.schedule.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return loss.detach(), norm, mapped(Tensor.detach, state)


def why_not_capture(fabric: Any) -> str | None:
    """Why the iteration cannot be one CUDA graph."""
    if fabric.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, this is {fabric.device.type}"
    if fabric.world_size > 1:
        return "gradients are exchanged between processes"
    return None


class Captured:
    """The whole iteration, from tokens to new weights, as one CUDA graph: a replay costs one launch.

    The first updates run eagerly on the side stream a capture needs warmed up; they count as any others.
    """

    WARM = 3

    def __init__(self, eager: Eager) -> None:
        self.eager, self.done = eager, 0
        self.graph: Any = None
        self.stream = torch.cuda.Stream()

    def __call__(self, batch: tuple[Tensor, ...], state: State) -> tuple[Tensor, Tensor, State]:
        if self.done < self.WARM or state is None:
            return self._warm(batch, state)
        if self.graph is None:
            self._capture(batch, state)
        for static, new in zip([*self.batch, *parts(self.state)], [*batch, *parts(state)], strict=True):
            if static is not new:
                static.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.loss, self.norm, self.state

    def _warm(self, batch: tuple[Tensor, ...], state: State) -> tuple[Tensor, Tensor, State]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            out = self.eager(batch, state)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.done += state is not None
        return out

    def _capture(self, batch: tuple[Tensor, ...], state: State) -> None:
        self.batch = tuple(x.clone() for x in batch)
        self.state = mapped(torch.clone, state)
        self.eager.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss, self.norm, new = self.eager(self.batch, self.state)
            for static, part in zip(parts(self.state), parts(new), strict=True):
                static.copy_(part)


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
    """Train ``task`` until its schedule ends, from the run's last good checkpoint if it has one; returns where it ended and the
    model with the weights of its best evaluation.

    Checkpoints are written every ``save_every`` seconds, at the end, and at evaluations while that takes a twentieth of the time or
    less; when they are written changes no weight.
    """
    return _Fit(task, schedule, run, fabric, watcher or Silent(), log_every, save_every).run()


class _Fit:
    """The state of one call of ``fit``."""

    SPARSELY = 20  # times as long as a checkpoint takes must lie between two of them
    LOWER_EVERY = 10  # updates, a rate that falls in a straight line

    def __init__(
        self, task: Task, schedule: Schedule, run: Run, fabric: Any, watcher: Watcher, log_every: int, save_every: float
    ) -> None:
        self.task, self.schedule, self.folder, self.fabric, self.watcher = task, schedule, run, fabric, watcher
        self.log_every, self.save_every = log_every, save_every
        self.rank, self.world = fabric.global_rank, fabric.world_size
        torch.manual_seed(task.seed)
        model = task.build()
        reason = why_not_capture(fabric)
        self.p = Progress(lr=schedule.lr)
        self.rate = torch.tensor(schedule.lr, device=fabric.device) if reason is None else None
        optimizer = torch.optim.Adam(
            model.parameters(),
            lr=schedule.lr if self.rate is None else self.rate,
            betas=schedule.betas,
            eps=schedule.eps,
            capturable=reason is None,
            fused=reason is None,
            foreach=reason is not None,
        )
        self.model, self.optimizer = fabric.setup(model, optimizer)
        torch.manual_seed(task.seed + 1 + self.rank)  # what dropout draws from differs between processes
        eager = Eager(fabric, task, self.model, self.optimizer, schedule)
        self.step: Any = eager if reason else Captured(eager)
        watcher.say("the training iteration is one CUDA graph" if reason is None else f"no CUDA graph: {reason}")
        self.state: State = None
        self.clock = Clock()
        self.pending = Pending(fabric.device, self.clock())
        self.board: Any = None
        self.norm = torch.zeros(())
        self.asked: list[int] = []  # signals to end
        self.best: dict[str, Tensor] = {}  # weights of the best evaluation, until they are written
        self.counted = self.saved_at = 0.0  # on the clock: what Progress.seconds knows of, and the last checkpoint
        self.saving = 0.0  # seconds the last checkpoint took

    # -- checkpoints --

    def tensors(self) -> dict[str, Tensor]:
        """Everything but ``Progress`` that the next update depends on; the same on every process."""
        out = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        for i, parameter in enumerate(self.module.parameters()):
            for key, value in self.adam.state.get(parameter, {}).items():
                out[f"adam.{i}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        for i, part in enumerate(parts(self.state)):
            out[f"state.{i}"] = self._joined(part)
        out["rng"] = self._rows(torch.get_rng_state())
        if self.fabric.device.type == "cuda":
            out["rng.cuda"] = self._rows(torch.cuda.get_rng_state())
        return out

    def _rows(self, generator: Tensor) -> Tensor:
        """A generator's state on every process, a row each."""
        mine = generator.unsqueeze(0)
        return mine if self.world == 1 else self.fabric.all_gather(mine).reshape(self.world, -1)

    def _row(self, generators: Tensor, now: Tensor) -> Tensor:
        """This process's, a copy, since torch reads from the start of the storage; a process that is new keeps what it has."""
        return generators[self.rank].clone() if self.rank < len(generators) else now

    def _joined(self, part: Tensor) -> Tensor:
        """A carried state (layers, n, h) of all processes, side by side in n."""
        return part if self.world == 1 else torch.cat(list(self.fabric.all_gather(part)), dim=1)

    @property
    def module(self) -> nn.Module:
        return bare(self.model)

    @property
    def adam(self) -> torch.optim.Optimizer:
        inner: torch.optim.Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return inner

    def save(self) -> None:
        self.collect()
        self.p.seconds += self.clock() - self.counted
        self.counted = self.clock()
        self.p.history[-1] |= {"to": self.p.update, "seconds": round(self.counted, 1)}
        tensors = self.tensors()
        if self.rank == 0:
            if self.best:  # first: a checkpoint must not know of a best that is not there
                self.folder.save("best", self.best, self.p)
            self.folder.save_last(tensors, self.p)
        self.best = {}
        self.saved_at = self.clock()
        self.saving = self.saved_at - self.counted

    def restore(self) -> None:
        loaded = self.folder.load_last()
        if loaded is not None:
            tensors, self.p = loaded
            self.module.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
            self._restore_adam(tensors)
            states = [tensors[k].to(self.fabric.device) for k in sorted(k for k in tensors if k.startswith("state."))]
            n = states[0].shape[1] // self.world if states else 0
            states = [part[:, self.rank * n : (self.rank + 1) * n].contiguous() for part in states]
            self.state = None if not states else states[0] if len(states) == 1 else tuple(states)
            torch.set_rng_state(self._row(tensors["rng"], torch.get_rng_state()))
            if self.fabric.device.type == "cuda" and "rng.cuda" in tensors:
                torch.cuda.set_rng_state(self._row(tensors["rng.cuda"], torch.cuda.get_rng_state()))
            self.set_rate(self.p.lr)
            self.say(f"continuing at update {self.p.update} of epoch {self.p.epoch}")
        where = environment()
        if self.rank == 0:
            self.folder.columns = (*COLUMNS, *self.task.observed)
            self.folder.cut_curve(self.p.rows)
            write_json(self.folder.folder / "environment.json", where)
            self.note(f"sitting on {where['device']}, torch {where['torch']}, commit {where['commit']}")
            self.board = self.folder.board(self.p.update)
        said = {key: where[key] for key in ("device", "commit", "shared")}
        self.p.history.append({"from": self.p.update, "to": self.p.update, **said})
        self.counted = self.saved_at = self.clock()

    def _restore_adam(self, tensors: Mapping[str, Tensor]) -> None:
        for i, parameter in enumerate(self.module.parameters()):
            prefix = f"adam.{i}."
            state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if state:
                here = self.fabric.device if self.rate is not None else None
                self.adam.state[parameter] = {
                    k: v.to(parameter.device) if v.dim() else v.to(here or v.device) for k, v in state.items()
                }

    def say(self, line: str) -> None:
        """Tell the watcher, and the run's log."""
        self.watcher.say(line)
        self.note(line)

    def note(self, line: str) -> None:
        if self.rank == 0:
            self.folder.log(line)

    def set_rate(self, lr: float) -> None:
        self.p.lr = lr
        for group in self.adam.param_groups:
            if self.rate is None:
                group["lr"] = lr
            else:
                group["lr"].fill_(lr)

    # -- going --

    def run(self) -> tuple[Progress, nn.Module]:
        self.restore()
        if self.fabric.device.type == "cuda":  # also if only a score is left to be taken
            self.try_products()
        with heard(self.world) as self.asked:
            while not self.p.done:
                self.epoch()
        self.note(f"ended: {self.p.done}")
        self.fabric.barrier()
        if self.board is not None:
            self.board.close()
        if self.p.best is None:
            raise RunError("no evaluation gave a number; try a smaller rate (--set schedule.lr=...) in another --runs folder")
        best, then = self.folder.load_best(self.p.best_update)
        if then.best_update != self.p.best_update:  # killed between two files, and not gone the same way again
            self.say(f"the best weights are those of update {then.best_update}")
            self.p.best, self.p.best_update = then.best, then.best_update
        self.module.load_state_dict({k.removeprefix("model."): v for k, v in best.items()})
        return self.p, self.model

    def try_products(self) -> None:
        """A GPU's share may multiply wrongly and say nothing; if one process has such, all end."""
        with self.fabric.autocast():
            wrong = products.fault(self.module, self.task.rows(self.world), self.fabric.device)
        faults = torch.tensor(float(wrong is not None), device=self.fabric.device)
        if self.world > 1:
            faults = self.fabric.all_reduce(faults, reduce_op="sum")
        if faults:
            what = wrong or f"of {self.world} processes {int(faults)} have a device that cannot multiply; they say more"
            raise RunError(f"{what}; nothing was done in this sitting")

    def epoch(self) -> None:
        """Train from the current position to the end of the epoch, or of the run."""
        p, s = self.p, self.schedule
        batches = self.task.epoch(p.epoch, self.rank, self.world)
        self.model.train()
        while not p.done and p.position < len(batches):
            if s.linear and p.update % self.LOWER_EVERY == 0:
                self.set_rate(s.lr * (1 - p.update / s.most(len(batches))))
            batch = self.fabric.to_device(batches[p.position])
            if self.task.begins(p.position):
                self.state = mapped(torch.zeros_like, self.state)
            loss, self.norm, self.state = self.step(batch, self.state)
            self.pending.add(loss, self.task.size(batch) * self.world)
            p.update, p.position = p.update + 1, p.position + 1
            last = p.position == len(batches)
            every = p.update % s.evaluate_every == 0 if s.evaluate_every else last
            if last:
                p.epoch, p.position = p.epoch + 1, 0
            due = every or p.update == s.updates or p.epoch == s.epochs  # a run never ends without an evaluation
            if p.update % self.log_every == 0 or due:
                self.report(len(batches))
            if due:
                self.evaluate()
                self.pending.since = self.clock()
            self.decide()
            if p.done or self.asked or self.late(due):
                self.save()
            if self.asked and not p.done:
                self.note(f"stopped at update {p.update}")
                raise Stopped(f"{self.folder.name} stopped at update {p.update}; the same command continues it")
            if last:
                return

    def late(self, due: bool) -> bool:
        """Is it time for a checkpoint? Clocks differ, so among several processes the first decides, now and then."""
        most = min(self.save_every, self.SPARSELY * self.saving) if due else self.save_every
        now = self.clock() - self.saved_at > most
        if self.world == 1:
            return now
        if not due and self.p.update % self.log_every:
            return False
        return bool(self.fabric.broadcast(now))

    def report(self, per_epoch: int) -> None:
        """Read the losses off the device and tell the watcher."""
        since, count, size = self.pending.since, self.pending.count, self.pending.size
        mean = self.collect()  # waits for the device, so that the time is what the updates took
        spent = self.clock() - since
        left = self.schedule.most(per_epoch) - self.p.update
        if count:
            self.watcher.update(self.p, self.task.shown(mean), size / spent, left * spent / count)

    def collect(self) -> float:
        """Add up the losses of the last updates and return their mean; one that is not a number ends the run."""
        total, count = self.pending.total, self.pending.count
        if self.world > 1:
            total = self.fabric.all_reduce(total, reduce_op="mean")
        value = float(total)
        if not math.isfinite(value):
            raise RunError(
                f"the loss became {value} before update {self.p.update}; the run's checkpoints are whole: "
                "try a smaller rate (--set schedule.lr=...) or clipping in another --runs folder"
            )
        self.p.train_sum += value
        self.p.train_count += count
        self.pending = Pending(self.fabric.device, self.clock())
        return value / max(1, count)

    def evaluate(self) -> None:
        p = self.p
        valid = self.task.shown(score(self.task, self.model, "valid", self.fabric))
        train = self.task.shown(p.train_sum / max(1, p.train_count))
        p.train_sum, p.train_count = 0.0, 0
        seconds = p.seconds + self.clock() - self.counted
        row = {"update": p.update, "epoch": p.epoch, "seconds": round(seconds, 2), "lr": p.lr}
        row |= {"train": round(train, 5), "valid": round(valid, 5), "grad_norm": round(float(self.norm), 4)}
        if math.isfinite(valid) and (p.best is None or valid < p.best):
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
            for name in ("train", "valid", "lr", "grad_norm") if self.board is not None else ():
                self.board.add_scalar(name, row[name], p.update)
        self.note(f"update {p.update}, epoch {p.epoch}: train {train:.4f}, valid {valid:.4f} {self.task.unit}, rate {p.lr:g}")
        self.watcher.evaluated(p, valid)
        self.model.train()

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


@torch.no_grad()
def score(task: Task, model: nn.Module, split: str, fabric: Any) -> float:
    """Mean loss of a split, its streams shared out among the processes."""
    model.eval()
    return mean(task.score(model, split, fabric.global_rank, fabric.world_size), fabric)


def mean(part: Sum, fabric: Any) -> float:
    """The mean of a sum over all processes."""
    both = torch.tensor([part.total, part.count], dtype=torch.float64)
    if fabric.world_size > 1:
        both = fabric.all_reduce(both, reduce_op="sum")
    return (both[0] / both[1]).item()
