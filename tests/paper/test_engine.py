"""The training loop: exact continuation, the paper's rule, metrics, several processes, and what ends a run early."""

import csv
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy import SHORT, Carried, Kept, Lengths, Scripted, fit, stopping

from multint.paper import engine, processes
from multint.paper.experiment import Metric, Schedule, Sum, Task, Team, tensors
from multint.paper.runs import Run, RunError, Stopped

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def final(root, update=60):
    return load_file(root / "toy" / "checkpoints" / f"{update:09d}.safetensors")


def curve(root):
    with (root / "toy" / "curve.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def log(root):
    return (root / "toy" / "log.txt").read_text()


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


# ---- continuing ----

KINDS = {
    "carried": lambda: Carried(dropout=0.3),
    "every batch alone": lambda: Carried(every=1),
    "lengths": lambda: Lengths(),
    "lengths carried": lambda: Lengths(carry=True),
    "endless": lambda: Lengths(carry=True, endless=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linear", [False, True])
def test_stopped_after_every_kind_of_update_and_continued_the_weights_are_the_same_to_the_bit(tmp_path, kind, linear):
    schedule = dataclasses.replace(SHORT, linear=linear, halve_after=1)
    straight, torn = tmp_path / "straight", tmp_path / "torn"
    fit(KINDS[kind](), straight, schedule)
    for after in (1, 1, 5, 9, 6, 21):  # in the middle of a carried state, at its restart, at the end of an epoch
        with pytest.raises(Stopped):
            fit(stopping(KINDS[kind](), after), torn, schedule, save_every=1e9)
    progress, _ = fit(KINDS[kind](), torn, schedule)
    assert [session["from"] for session in progress.history] == [0, 1, 2, 7, 16, 22, 43]
    assert_equal(final(torn), final(straight))
    assert curve(torn) == curve(straight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run_at_a_checkpoint(tmp_path, number):
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(Stopped, match="stopped at update 27; the same command continues it"):
        fit(stopping(Carried(), 27, number), tmp_path, save_every=1e9)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert final(tmp_path, 27)
    assert "stopped at update 27" in log(tmp_path)


def test_a_run_trained_to_its_end_is_not_trained_again(tmp_path):
    progress, model = fit(Carried(), tmp_path)
    again, other = fit(stopping(Carried(), 1), tmp_path)
    assert again.update == progress.update and again.best == progress.best
    assert_equal(other.state_dict(), model.state_dict())


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Memory:
    slots: torch.Tensor
    used: int
    note: str = ""


X = torch.arange(6.0).reshape(2, 3)
TREES = {
    "none": None,
    "tensor": X,
    "tuple": (X, X + 1),
    "dict": {"h": X, "c": X + 1},
    "integer keys": {1: X, 2: None},
    "nested": [{"a": (X, [X + 1, {"b": X + 2}])}, (X + 3,), [], {}],
    "other leaves": (X, 3, 0.1, "text", None, True),
    "named tuple": {"pair": Pair(X, X + 1)},
    "dataclass": (Memory(X, 2, "here"), OrderedDict(b=X, a=X + 1)),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_any_tree_comes_back_from_a_checkpoint(tree):
    form = json.loads(json.dumps(engine.outline(tree)))
    back = engine.rebuilt(form, iter([part.clone() for part in tensors(tree)]))
    assert type(back) is type(tree) and repr(back) == repr(tree)


def test_a_state_that_json_cannot_describe_is_refused():
    with pytest.raises(RunError, match="a state may hold tensors, numbers and text in .*, got set"):
        engine.outline((X, {1, 2}))
    for name in ("builtins:print", "subprocess:Popen"):
        with pytest.raises((RunError, TypeError)):
            engine.rebuilt([name, []], iter([]))


def test_a_state_is_in_the_checkpoint_only_if_the_next_batch_needs_it(tmp_path):
    for after, there in ((6, True), (1, False)):
        with pytest.raises(Stopped):
            fit(stopping(Carried(every=7), after), tmp_path)
        assert any(name.startswith("state.") for name in final(tmp_path, 6 if there else 7)) == there


class Counting(torch.optim.SGD):
    """An optimiser that keeps a number and a tensor for each parameter."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"], state["sum"] = state.get("count", 0) + 1, state.get("sum", 0) + p.grad
                    p.data -= group["lr"] / state["count"] * state["sum"]


class TwoRates(Carried):
    """An optimiser of its own, with a lower rate for the output layer."""

    def optimizer(self, parameters, schedule, **how):
        groups = [{"params": parameters[:-2]}, {"params": parameters[-2:], "lr": how["lr"] / 10}]
        self.made = Counting(groups, lr=how["lr"])
        return self.made


def test_an_optimiser_of_the_task_is_continued_to_the_bit(tmp_path):
    fit(TwoRates(), tmp_path / "straight")
    with pytest.raises(Stopped):
        fit(stopping(TwoRates(), 33), tmp_path / "torn")
    fit(TwoRates(), tmp_path / "torn")
    assert_equal(final(tmp_path / "torn"), final(tmp_path / "straight"))
    assert {name.split(".")[-1] for name in final(tmp_path / "torn") if name.startswith("optimizer.")} == {"sum"}


def test_the_rates_of_an_optimiser_keep_their_ratio(tmp_path):
    task = TwoRates()
    progress, _ = fit(task, tmp_path, dataclasses.replace(SHORT, linear=True))
    slow = [group["lr"] for group in task.made.param_groups]
    assert slow == pytest.approx([progress.lr, progress.lr / 10]) and progress.lr < SHORT.lr


def test_tied_weights_are_kept(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

    class Tying(Scripted):
        def build(self):
            self.seen, self.model = [], nn.Linear(1, 1)
            self.model.twice = nn.Linear(1, 1)
            self.model.twice.weight = self.model.weight
            return self.model

    _, model = fit(Tying([2.0, 1.0]), tmp_path, Schedule(epochs=2))
    assert model.twice.weight is model.weight
    saved = final(tmp_path, 6)
    assert torch.equal(saved["model.twice.weight"], saved["model.weight"])


# ---- what the loop measures ----


def test_the_curve_has_all_metrics_and_what_is_observed(tmp_path):
    watcher = Kept()
    progress, _ = fit(Lengths(), tmp_path, watcher=watcher)
    rows = curve(tmp_path)
    assert list(rows[0]) == ["update", "epoch", "lr", "train", "valid", "grad_norm", "nll"]
    assert [row["update"] for row in rows] == ["20", "40", "60"]
    shown = [call[1] for call in watcher.calls if call[0] == "evaluated"]
    assert [set(scores) for scores in shown] == [{"nll", "accuracy"}] * 3
    for row, scores in zip(rows, shown, strict=True):
        assert float(row["valid"]) == pytest.approx(scores["accuracy"]) and float(row["nll"]) == pytest.approx(scores["nll"], 1e-5)
    assert progress.best == max(scores["accuracy"] for scores in shown)
    fit(Carried(), tmp_path / "other")
    assert list(curve(tmp_path / "other")[0])[-1] == "bias"


def test_the_training_loss_is_the_sum_of_totals_over_the_sum_of_counts(tmp_path):
    class Noted(Carried):
        def loss(self, model, batch, state):
            loss, state = super().loss(model, batch, state)
            weight = 1 + len(parts) % 3
            parts.append((weight * float(loss.total.detach()), weight * loss.count))
            return loss._replace(total=weight * loss.total, count=weight * loss.count), state

    parts = []
    fit(Noted(), tmp_path)
    for k, row in enumerate(curve(tmp_path)):
        totals, counts = zip(*parts[20 * k : 20 * k + 20], strict=True)
        assert float(row["train"]) == pytest.approx(sum(totals) / sum(counts), rel=1e-4)


def test_the_watcher_is_started_with_the_task_and_sees_no_internal_notes(tmp_path):
    watcher, task = Kept(), Carried()
    fit(task, tmp_path, watcher=watcher, log_every=10)
    kinds = [call[0] for call in watcher.calls]
    assert watcher.calls[0] == ("start", task) and kinds.count("start") == 1
    assert kinds.count("update") == 6 and kinds.count("evaluated") == 3 and "say" not in kinds
    assert all(math.isfinite(loss) and speed > 0 for kind, loss, speed, _ in (c for c in watcher.calls if c[0] == "update"))
    assert "no CUDA graph: CUDA graphs need a CUDA device, this is cpu" in log(tmp_path) and "session on" in log(tmp_path)


def test_throughput_leaves_out_the_first_updates_of_a_session_evaluations_and_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "Clock", lambda: lambda: clock[0])
    clock = [0.0]
    real = Carried.loss, Carried.scores, Run.save_last

    def taking(seconds, f):
        def longer(*args):
            clock[0] += seconds
            return f(*args)

        return longer

    monkeypatch.setattr(Carried, "loss", taking(1.0, real[0]))
    monkeypatch.setattr(Carried, "scores", taking(100.0, real[1]))
    monkeypatch.setattr(Run, "save_last", taking(1000.0, real[2]))
    with pytest.raises(Stopped):
        fit(stopping(Carried(), 33), tmp_path, log_every=10, save_every=3.0)
    progress, _ = fit(Carried(), tmp_path, log_every=10)
    first, second = 33 - 10, 60 - 40  # a session's updates without those until its first report
    assert progress.work_seconds == pytest.approx(first + second)
    assert progress.work == 24 * (first + second)
    assert progress.seconds > 1000


@pytest.mark.parametrize("lower", [True, False])
def test_the_best_is_what_its_metric_calls_better(tmp_path, lower):
    metric = Metric("error", "points", lower)
    task = Scripted([3.0, 1.0, 5.0, 2.0], metric)
    progress, model = fit(task, tmp_path, Schedule(epochs=4, halve_after=None))
    assert progress.best == (1.0 if lower else 5.0) and progress.best_update == (6 if lower else 9)
    assert torch.equal(model.weight, task.seen[1 if lower else 2])
    assert progress.since_best == (2 if lower else 1)


def test_a_metric_to_select_by_must_be_there(tmp_path):
    task = Lengths()
    task.select = "acuracy"
    with pytest.raises(RunError, match="selects by 'acuracy'; its metrics are nll, accuracy"):
        fit(task, tmp_path)


def test_training_learns_something(tmp_path):
    progress, _ = fit(Lengths(), tmp_path, Schedule(lr=0.02, updates=300, evaluate_every=100))
    assert progress.best > 60, "of 100, where a guess gives 33"
    assert float(curve(tmp_path)[-1]["train"]) < 0.9 < math.log(3)


# ---- initial states ----


def test_a_learned_initial_state_has_a_gradient_at_every_restart(tmp_path):
    class Watched(Lengths):
        def optimizer(self, parameters, schedule, **how):
            self.made = super().optimizer(parameters, schedule, **how)
            step = self.made.step
            self.made.step = lambda *args: (seen.append(parameters[0].grad is not None), step(*args))
            return self.made

    seen = []
    fit(Watched(carry=True), tmp_path)
    assert seen == [position % 20 % 3 == 0 for position in range(60)]


def test_an_initial_state_may_depend_on_the_batch(tmp_path):
    class Starts(Carried):
        def initial_state(self, batch):
            starts.append(batch["x"])
            return {"layers": (batch["x"][:1, :, :1].expand(1, 4, 5), [torch.ones(1, 4)]), "kind": "gru"}

        def loss(self, model, batch, state):
            seen.append(state["layers"][0])
            return super().loss(model, batch, state)

    starts, seen = [], []
    fit(Starts(every=5), tmp_path)
    assert len(starts) == 12
    for k, x in enumerate(starts):
        assert torch.equal(seen[5 * k][0, :, 0], x[0, :, 0])


def test_an_initial_state_that_needs_a_gradient_is_refused(tmp_path):
    class Leaking(Lengths):
        def build(self):
            self.model = super().build()
            return self.model

        def initial_state(self, batch):
            return self.model.h0.expand(1, 4, 6)

    with pytest.raises(RunError, match="a tensor that needs a gradient; return None for the model's own initial state"):
        fit(Leaking(), tmp_path)


# ---- what ends a run early, and loses nothing ----


def test_a_loss_that_is_not_a_number_is_named_and_checkpoints_stay(tmp_path):
    class Poisoned(Carried):
        def loss(self, model, batch, state):
            loss, state = super().loss(model, batch, state)
            return (loss._replace(value=loss.value * math.nan) if next(calls) == 35 else loss), state

    calls = iter(range(10_000))
    with pytest.raises(RunError, match="the loss became nan before update 40"):
        fit(Poisoned(), tmp_path)
    assert [p.stem for p in (tmp_path / "toy").rglob("*.safetensors") if p.stem.isdigit()] == ["000000020"]
    for value in final(tmp_path, 20).values():
        assert not value.is_floating_point() or value.isfinite().all()


def test_an_endless_epoch_needs_a_number_of_updates(tmp_path):
    with pytest.raises(RunError, match=r"an epoch without end needs schedule\.updates"):
        fit(Lengths(endless=True), tmp_path / "a", Schedule())
    progress, _ = fit(Lengths(endless=True), tmp_path / "b", Schedule(lr=1.0, updates=45, linear=True))
    assert progress.done == "45 updates" and progress.epoch == 0 and progress.rows == 1
    assert progress.lr == pytest.approx(1 - 40 / 45)


def test_an_epoch_without_a_batch_is_an_error(tmp_path):
    class Empty(Carried):
        def epoch(self, number, team):
            return []

    with pytest.raises(RunError, match="the training set is too small: an epoch has no batch"):
        fit(Empty(), tmp_path)


# ---- the schedule ----


def rates(tmp_path, scores, schedule):
    progress, _ = fit(Scripted(scores), tmp_path, schedule)
    return progress, [float(row["lr"]) for row in curve(tmp_path)]


def test_the_rate_is_halved_after_two_evaluations_without_a_lower_score(tmp_path):
    scores = [5.0, 4.0, 4.0, 4.5, 4.2, 3.0, 3.1]
    progress, seen = rates(tmp_path, scores, Schedule(lr=1.0, epochs=7))
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5], "halved after the two stale ones at 4.0 and 4.5"
    assert progress.best == 3.0 and progress.best_update == 18 and progress.done == "7 epochs"


def test_the_best_weights_are_kept_though_no_checkpoint_was_due(tmp_path, monkeypatch):
    monkeypatch.setattr(engine._Fit, "late", lambda self, due: False)
    task = Scripted([3.0, 1.0, 2.0, 2.0])
    progress, model = fit(task, tmp_path, Schedule(lr=0.1, epochs=4))
    assert progress.best_update == 6 and not torch.equal(task.seen[1], task.seen[3])
    assert torch.equal(model.weight, task.seen[1])
    assert [row["seen"] for row in curve(tmp_path)] == ["7.5"] * 4


def test_a_kill_between_the_best_weights_and_the_checkpoint_leaves_a_score_that_is_theirs(tmp_path):
    """Continued from the older checkpoint, a machine that rounds differently may not reach that best again."""
    scores = [3.0, 2.0, 2.5, 2.6]
    fit(Scripted(scores), tmp_path, Schedule(epochs=4))
    with Run(tmp_path, "toy", {"task": "Scripted"}) as run:
        best, then = run.load(run.checkpoints / "best.safetensors")
        run.save("best", best, dataclasses.replace(then, best=1.5, best_update=99))
    progress, _ = fit(Scripted([]), tmp_path, Schedule(epochs=4))
    assert (progress.best, progress.best_update) == (1.5, 99)


@pytest.mark.parametrize("lower", [True, False])
def test_a_score_that_is_not_a_number_is_never_the_best(tmp_path, lower):
    metric = Metric("error", "points", lower)
    bad = [float("nan"), float("inf"), float("-inf")]
    progress, _ = fit(Scripted([*bad, 3.0, 3.0], metric), tmp_path / "a", Schedule(epochs=5))
    assert progress.best == 3.0 and progress.best_update == 12
    with pytest.raises(RunError, match="no evaluation gave a number"):
        fit(Scripted(bad, metric), tmp_path / "b", Schedule(epochs=3))


def test_a_linear_rate_ends_at_zero_and_is_never_halved(tmp_path, monkeypatch):
    monkeypatch.setattr(engine._Fit, "LOWER_EVERY", 1)
    progress, seen = rates(tmp_path, [3.0] * 7, Schedule(lr=1.0, epochs=7, linear=True))
    assert seen == pytest.approx([1 - (3 * k + 2) / 21 for k in range(7)]), "three updates an epoch, noted after the last"
    assert progress.done == "7 epochs"


@pytest.mark.parametrize(
    "schedule, why",
    [
        (Schedule(epochs=2), "2 epochs"),
        (Schedule(updates=4), "4 updates"),
        (Schedule(stop_after=3, halve_after=None), "no new best in 3 evaluations"),
        (Schedule(lr=1e-3, min_lr=4e-4), "the rate fell below 0.0004"),
    ],
)
def test_training_ends_for_the_reason_it_states(tmp_path, schedule, why):
    progress, _ = rates(tmp_path, [3.0] * 50, schedule)
    assert progress.done == why


def test_a_run_that_ends_between_evaluations_is_evaluated_once_more(tmp_path):
    progress, _ = rates(tmp_path, [3.0] * 3, Schedule(epochs=2, evaluate_every=4))
    assert progress.done == "2 epochs" and progress.rows == 2, "after update 4 and after the last, 6"


# ---- several processes ----

FITS = """
import sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from pathlib import Path
sys.path.insert(0, {tests!r})
import toy
from multint.paper import engine, processes
from multint.paper.runs import Run, Stopped
kind, root, devices = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
fabric = processes.make_fabric("cpu", devices)
run = Run(root, "toy", {{"kind": kind}})
if fabric.global_rank == 0:
    run.__enter__()
fabric.barrier()
task = {{"carried": toy.Carried, "lengths": lambda: toy.Lengths(carry=True)}}[kind]()
updates = int(sys.argv[4]) if len(sys.argv) > 4 else 60
if updates < 60:  # lost at that update
    engine._Fit.decide = lambda self: sys.exit(3) if self.p.update == updates else None
engine.fit(task, toy.SHORT, run, fabric, save_every=1e9 if updates == 60 else 0.0, log_every=1)
"""


def fitted(tmp_path, kind, root, processes_, *more):
    script = tmp_path / "fit.py"
    script.write_text(FITS.format(tests=str(Path(__file__).parent)))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes_}"] if processes_ > 1 else []
    words = [sys.executable, *launcher, str(script), kind, str(root), str(processes_), *map(str, more)]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)


@pytest.mark.parametrize("kind", ["carried", "lengths"])
def test_two_processes_equal_one_at_equal_global_batch(tmp_path, kind):
    one, two, changed = tmp_path / "one", tmp_path / "two", tmp_path / "changed"
    for root, count in ((one, 1), (two, 2)):
        done = fitted(tmp_path, kind, root, count)
        assert done.returncode == 0, done.stderr[-3000:]
    assert fitted(tmp_path, kind, changed, 2, 34).returncode != 0, "lost in the middle, its state joined in a checkpoint"
    assert fitted(tmp_path, kind, changed, 1).returncode == 0, "and continued by one"
    for root in (two, changed):
        ours, theirs = final(root), final(one)
        assert {name for name in ours if name != "rng"} == {name for name in theirs if name != "rng"}
        for name, value in theirs.items():
            if name != "rng":
                torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        for x, y in zip(curve(root), curve(one), strict=True):
            for column in ("train", "valid"):
                assert float(x[column]) == pytest.approx(float(y[column]), abs=1e-3)


def test_a_process_that_joins_a_run_keeps_its_own_generator():
    """Or two would draw the same dropout."""
    saved, own = torch.arange(6).reshape(2, 3), torch.tensor([7, 8, 9])
    rows = [engine._Fit.row(SimpleNamespace(rank=rank), saved, own).tolist() for rank in range(3)]
    assert rows == [[0, 1, 2], [3, 4, 5], [7, 8, 9]]


class Four:
    """A Fabric that gathers a part of four processes."""

    def __init__(self, parts):
        self.parts = parts

    def all_gather(self, part):
        return torch.stack(self.parts)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_states_are_joined_along_the_dimension_the_task_names_and_split_again(dim):
    parts = [torch.randn(2, 4, 6) for _ in range(4)]
    task = SimpleNamespace(state_dim=dim)
    fits = [SimpleNamespace(world=4, rank=k, task=task, fabric=Four(parts), to_device=lambda x: x) for k in range(4)]
    joined = engine._Fit.joined(fits[0], parts[0])
    assert joined.shape[dim] == 4 * parts[0].shape[dim]
    for one, part in zip(fits, parts, strict=True):
        assert torch.equal(engine._Fit.shared(one, joined), part)
    with pytest.raises(RunError, match=rf"a state of shape \(3,\) has no dimension {dim or 1}"):
        engine._Fit.joined(SimpleNamespace(world=4, task=SimpleNamespace(state_dim=dim or 1)), torch.zeros(3))


def test_a_team_adds_up_over_its_processes():
    fabric = SimpleNamespace(
        global_rank=1, world_size=2, device="cpu", all_reduce=lambda x, reduce_op: x + torch.tensor([4.0, 3.0])
    )
    team = processes.team(fabric)
    assert isinstance(team, Team) and (team.rank, team.world) == (1, 2)
    assert team.mean(Sum(6.0, 2)) == 2.0
    assert math.isnan(processes.team(processes.make_fabric("cpu")).mean(Sum(0.0, 0)))


def test_the_protocol_has_defaults_for_all_but_the_essential():
    class Least(Task):
        metrics, select = (Metric("error", ""),), "error"
        epoch, build, loss, scores = (getattr(Scripted, name) for name in ("epoch", "build", "loss", "scores"))

        def __init__(self):
            self.given = iter([1.0, 2.0])

    assert Least().begins(3) and Least().initial_state(None) is None and Least().product_rows(1) == set()
