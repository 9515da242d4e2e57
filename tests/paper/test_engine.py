"""The training loop: exact continuation, the paper's rule, several processes, and what ends a run early."""

import csv
import dataclasses
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from multint.paper import engine, runs
from multint.paper.charlm import task
from multint.paper.engine import Schedule, Sum
from multint.paper.runs import Progress, Run, RunError, Stopped, read_json

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

TINY = ["hidden=8", "batch=4", "length=10", "evaluation_streams=4", "schedule.updates=60", "schedule.evaluate_every=20"]


def job(text, *changes, seed=0):
    return task.job("charlm", seed, [*TINY, *changes], text, False, None, "fp32")


def train(text, root, *changes, seed=0, **settings):
    return task.train(job(text, *changes, seed=seed), root / "runs", root / "results", device="cpu", **settings)


def final(runs):
    """Everything in the last checkpoint of the one run in a folder."""
    (path,) = runs.rglob("000000060.safetensors")
    return load_file(path)


def curve(root):
    (path,) = (root / "runs").rglob("curve.csv")
    with path.open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def in_a_child(action, kill_after=None):
    """Run ``action`` in a forked process, killed without warning after some seconds; returns whether it ended by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


@pytest.mark.parametrize("options", [["carry=false", "schedule.linear=true"], ["carry=true", "reset_every=7", "dropout=0.3"]])
def test_killed_at_twenty_random_moments_and_continued_the_weights_are_the_same_to_the_bit(text, tmp_path, options):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    began = time.perf_counter()
    train(text, whole, *options, save_every=0.0)
    length = time.perf_counter() - began
    moments = random.Random(1)
    kills = 0
    while kills < 20:
        # late enough to get somewhere, early enough to be killed: a run that ends by itself is begun anew
        if in_a_child(lambda: train(text, torn, *options, save_every=0.0), moments.uniform(0.0, 0.3) * length):
            for path in sorted(torn.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        kills += 1
    train(text, torn, *options, save_every=0.0)
    ours, theirs = final(torn / "runs"), final(whole / "runs")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert curve(torn) == curve(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_a_run_stops_at_a_checkpoint_and_goes_on_from_it(text, tmp_path, monkeypatch, number):
    train(text, tmp_path / "whole")
    real, calls = task.CharTask.loss, iter(range(1, 1000))

    def asked(self, model, batch, state):
        if next(calls) == 27:
            os.kill(os.getpid(), number)
        return real(self, model, batch, state)

    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        patch.setattr(task.CharTask, "loss", asked)
        with pytest.raises(Stopped, match="stopped at update 27; the same command continues it"):
            train(text, tmp_path / "torn", save_every=1e9)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert [*(tmp_path / "torn" / "runs").rglob("000000027.safetensors")]
    record = train(text, tmp_path / "torn")
    assert [sitting["from"] for sitting in record["history"]] == [0, 27]
    ours, theirs = final(tmp_path / "torn" / "runs"), final(tmp_path / "whole" / "runs")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_finished_run_is_looked_at_not_trained_again(text, tmp_path):
    record = train(text, tmp_path)
    before = (tmp_path / "results" / "runs.jsonl").read_text()
    assert train(text, tmp_path) == record
    assert (tmp_path / "results" / "runs.jsonl").read_text() == before
    assert len(before.splitlines()) == 1


def test_a_kill_while_the_record_is_written_gives_one_record(text, tmp_path):
    record = train(text, tmp_path)
    lines = tmp_path / "results" / "runs.jsonl"
    before = lines.read_text()
    (written,) = (tmp_path / "runs").rglob("record.json")
    pending = written.with_suffix(".pending")
    assert not pending.exists()
    for left in (before, "", before[:50]):  # appended, not yet, and torn
        for folder in (tmp_path / "results", tmp_path / "elsewhere"):
            pending.write_text(json.dumps({"record": record, "results": [str(folder)]}))
            written.unlink()
            lines.write_text(left)
            assert train(text, tmp_path) == record, "not that of another sitting"
            assert not pending.exists()
            if left != before or folder.name == "results":
                assert lines.read_text().splitlines()[-1:] == before.splitlines() and lines.read_text().count(before) == 1
    pending.write_text(json.dumps({"record": record, "results": [str(tmp_path / "results")]}))
    written.unlink()
    with Run(tmp_path / "runs", record["run"], read_json(written.with_name("config.json"))) as run:
        run.settle(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists(), "it is in the results named first"


def test_the_record_says_what_was_run(text, tmp_path):
    record = train(text, tmp_path, seed=3)
    (line,) = (tmp_path / "results" / "runs.jsonl").read_text().splitlines()
    stored = json.loads(line)
    assert stored["value"] == record["value"] == record["protocols"]["carried"]
    assert stored["seed"] == 3 and stored["updates"] == 60 and stored["ended"] == "60 updates"
    assert stored["data"].startswith("sha256:") and stored["commit"] and stored["seconds"] > 0
    assert (tmp_path / "results" / stored["curve"]).read_text().startswith("update,epoch,seconds,lr,train,valid,grad_norm\n")
    assert [row["update"] for row in curve(tmp_path)] == ["20", "40", "60"]
    assert stored["parameters"] == sum(v.numel() for k, v in final(tmp_path / "runs").items() if k.startswith("model."))


def test_the_folder_holds_config_environment_log_and_tensorboard(text, tmp_path):
    train(text, tmp_path)
    (folder,) = {p.parent for p in (tmp_path / "runs").rglob("config.json")}
    assert json.loads((folder / "environment.json").read_text())["torch"] == torch.__version__
    assert json.loads((folder / "config.json").read_text())["settings"]["hidden"] == 8
    if importlib.util.find_spec("tensorboard"):
        assert list((folder / "tensorboard").glob("events.*"))


def test_training_learns_something(text, tmp_path):
    record = train(text, tmp_path, "schedule.updates=300", "hidden=32", "schedule.evaluate_every=100", "schedule.lr=0.01")
    assert record["value"] < 0.8 * float(torch.tensor(17.0).log2()), "below four fifths of a uniform guess"


# ---- damaged and foreign checkpoints ----


def stopped(text, root, monkeypatch):
    """A run folder with two checkpoints, left in the middle."""
    monkeypatch.setattr(engine._Fit, "decide", lambda self: setattr(self.p, "done", "stopped" if self.p.update == 25 else ""))
    inner = engine._Fit.run
    monkeypatch.setattr(engine._Fit, "run", lambda self: inner(self) and (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(text, root, save_every=0.0)
    monkeypatch.undo()
    names = sorted(p for p in (root / "runs").rglob("*.safetensors") if p.stem.isdigit())
    assert [p.stem for p in names] == ["000000024", "000000025"]
    return names


def test_a_torn_checkpoint_is_named_and_the_one_before_is_used(text, tmp_path, monkeypatch, capfd):
    _, newer = stopped(text, tmp_path, monkeypatch)
    newer.write_bytes(newer.read_bytes()[:-100])
    train(text, tmp_path)
    err = capfd.readouterr().err
    assert f"refused {newer}: it is torn" in err
    whole = tmp_path / "whole"
    train(text, whole)
    continued, straight = (final(tmp_path / "runs"), final(whole / "runs"))
    assert all(torch.equal(value, straight[name]) for name, value in continued.items())


def test_an_altered_and_a_foreign_checkpoint_are_refused(text, tmp_path, monkeypatch):
    older, newer = stopped(text, tmp_path, monkeypatch)
    config = job(text).config
    run = Run(tmp_path / "runs", job(text).run, config)
    body = bytearray(newer.read_bytes())
    body[-1] ^= 1
    newer.write_bytes(bytes(body))
    with pytest.raises(RunError, match="its contents were altered"):
        run.load(newer)
    other = Run(tmp_path / "runs", job(text, seed=1).run, job(text, seed=1).config)
    with pytest.raises(RunError, match="it belongs to charlm/corpus-milstm-s0"):
        other.load(older)


# ---- what ends a run early, and loses nothing ----


def test_a_loss_that_is_not_a_number_is_named_and_checkpoints_stay(text, tmp_path, monkeypatch):
    real = task.CharTask.loss
    calls = iter(range(10_000))

    def poisoned(self, model, batch, state):
        loss, state = real(self, model, batch, state)
        return (loss * float("nan") if next(calls) == 35 else loss), state

    monkeypatch.setattr(task.CharTask, "loss", poisoned)
    with pytest.raises(RunError, match="the loss became nan before update"):
        train(text, tmp_path)
    assert [p.stem for p in (tmp_path / "runs").rglob("*.safetensors") if p.stem.isdigit()] == ["000000020"]
    for value in load_file(next((tmp_path / "runs").rglob("000000020.safetensors"))).values():
        assert not value.is_floating_point() or value.isfinite().all()


def test_a_full_disk_is_named_and_the_last_good_checkpoint_stays(text, tmp_path):
    run = Run(tmp_path / "runs", "charlm/x", {"a": 1})
    with run:
        run.save_last({"w": torch.ones(10)}, Progress(update=1))
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(RunError, match="cannot write .*: File too large; the last good checkpoint is 000000001"):
                run.save_last({"w": torch.ones(100_000)}, Progress(update=2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [p.name for p in run.checkpoints.iterdir()] == ["000000001.safetensors"], "nothing half-written"
        tensors, progress = run.load_last()
        assert progress.update == 1 and torch.equal(tensors["w"], torch.ones(10))


def test_two_processes_never_write_one_folder(tmp_path):
    with (
        Run(tmp_path, "r", {"a": 1}),
        pytest.raises(RunError, match=f"is being written by another process \\(pid {os.getpid()}"),
        Run(tmp_path, "r", {"a": 1}),
    ):
        pass


def test_a_folder_begun_with_other_settings_is_refused(tmp_path):
    with Run(tmp_path, "r", {"lr": 1.0}):
        pass
    with pytest.raises(RunError, match="was begun with lr=1.0, now it is 2.0"), Run(tmp_path, "r", {"lr": 2.0}):
        pass


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run folder .*: Not a directory; choose another with --runs"):
        Run(tmp_path / "file", "r", {}).__enter__()


# ---- the schedule ----


class Scripted:
    """A task whose validation scores are written in advance."""

    seed, unit, observed = 0, "points", ("seen",)

    def __init__(self, scores):
        self.scores = iter(scores)

    def build(self):
        self.seen, self.model = [], nn.Linear(1, 1)
        return self.model

    def epoch(self, number, rank, world):
        return [(torch.ones(2, 1),)] * 3

    def begins(self, position):
        return True

    def loss(self, model, batch, state):
        return model(batch[0]).pow(2).mean(), None

    def shown(self, loss):
        return loss

    def size(self, batch):
        return 1

    def rows(self, world):
        return {2}

    def score(self, model, split, rank, world):
        self.seen.append(self.model.weight.detach().clone())
        return Sum(next(self.scores), 1)

    def observe(self, model):
        return {"seen": 7.5}


def rates(tmp_path, scores, schedule):
    fabric = engine.make_fabric("cpu")
    with Run(tmp_path, "r", {}) as run:
        progress, _ = engine.fit(Scripted(scores), schedule, run, fabric)
    with run.curve.open() as file:
        return progress, [float(row["lr"]) for row in csv.DictReader(file)]


def test_the_rate_is_halved_after_two_evaluations_without_a_lower_score(tmp_path):
    scores = [5.0, 4.0, 4.0, 4.5, 4.2, 3.0, 3.1]
    progress, seen = rates(tmp_path, scores, Schedule(lr=1.0, epochs=7))
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5], "halved after the two stale ones at 4.0 and 4.5"
    assert progress.best == 3.0 and progress.best_update == 18 and progress.done == "7 epochs"


def test_the_best_weights_are_kept_though_no_checkpoint_was_due(tmp_path, monkeypatch):
    monkeypatch.setattr(engine._Fit, "late", lambda self, due: False)
    task = Scripted([3.0, 1.0, 2.0, 2.0])
    with Run(tmp_path, "r", {}) as run:
        progress, model = engine.fit(task, Schedule(lr=0.1, epochs=4), run, engine.make_fabric("cpu"))
    assert progress.best_update == 6 and not torch.equal(task.seen[1], task.seen[3])
    assert torch.equal(model.weight, task.seen[1])
    with run.curve.open() as file:
        assert [row["seen"] for row in csv.DictReader(file)] == ["7.5"] * 4


def test_a_kill_between_the_best_weights_and_the_checkpoint_leaves_a_score_that_is_theirs(tmp_path):
    """Going on from the older checkpoint, a machine that rounds differently need not find that best again."""
    scores = [3.0, 2.0, 2.5, 2.6]
    with Run(tmp_path, "r", {}) as run:
        engine.fit(Scripted(scores), Schedule(epochs=4), run, engine.make_fabric("cpu"))
        best, then = run.load(run.checkpoints / "best.safetensors")
        run.save("best", best, dataclasses.replace(then, best=1.5, best_update=99))
        progress, _ = engine.fit(Scripted([]), Schedule(epochs=4), run, engine.make_fabric("cpu"))
    assert (progress.best, progress.best_update) == (1.5, 99)


def test_a_score_that_is_not_a_number_is_never_the_best(tmp_path):
    progress, _ = rates(tmp_path / "a", [float("nan"), 3.0, 2.0], Schedule(epochs=3))
    assert progress.best == 2.0 and progress.best_update == 9
    with pytest.raises(RunError, match="no evaluation gave a number"):
        rates(tmp_path / "b", [float("nan")] * 2, Schedule(epochs=2))


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


def command(text, root, *more):
    sets = [word for change in [*TINY, "schedule.updates=50", "schedule.evaluate_every=25"] for word in ("--set", change)]
    paths = [f"--runs={root / 'runs'}", f"--results={root / 'results'}", "--device=cpu"]
    return ["-m", "multint.paper", "train", "charlm", f"--text={text}", *sets, *paths, *more]


@pytest.mark.parametrize("carry", ["false", "true"])
def test_two_processes_equal_one_at_equal_global_batch(text, tmp_path, carry):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ways = {"one": ([sys.executable], []), "two": (launcher, []), "own": ([sys.executable], ["--devices=2"])}
    for name, (words, more) in ways.items():
        full = [*words, *command(text, tmp_path / name, "--set", f"carry={carry}", *more)]
        done = subprocess.run(full, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two, own = (load_file(*(tmp_path / n / "runs").rglob("000000050.safetensors")) for n in ways)
    for other in (two, own):
        assert other.keys() == one.keys()
        for name, value in one.items():
            if not name.startswith("rng"):
                torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    for x, y, z in zip(*(curve(tmp_path / n) for n in ways), strict=True):
        for column in ("train", "valid"):
            assert float(x[column]) == pytest.approx(float(y[column]), abs=1e-5) == pytest.approx(float(z[column]), abs=1e-5)


LOSES_A_WORKER = """
import os, signal, sys
from multint.paper import engine
engine.fit.__kwdefaults__.update(save_every=0.0, log_every=10)
inner = engine._Fit.evaluate
def evaluate(self):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.rank == 1 and self.p.update == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    inner(self)
engine._Fit.evaluate = evaluate
from multint.paper.__main__ import main
main(sys.argv[1:])
"""


def test_torchrun_restarts_after_a_lost_worker_and_ends_with_the_same_weights(text, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = tmp_path / "job.py"
    script.write_text(LOSES_A_WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for name, more in (("straight", ["-m", "multint.paper"]), ("lost", ["--max-restarts=1", str(script)])):
        restarts, program = (more[:1], more[1:]) if more[0].startswith("--") else ([], more)
        words = [*launcher, *restarts, *program, *command(text, tmp_path / name)[2:]]
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    (a,), (b,) = ([*(tmp_path / n / "runs").rglob("000000050.safetensors")] for n in ("straight", "lost"))
    assert a.read_bytes() != b"" and all(torch.equal(v, load_file(b)[k]) for k, v in load_file(a).items())


def test_a_process_that_joins_a_run_keeps_its_own_generator():
    """Or two would draw the same dropout."""
    saved, own = torch.arange(6).reshape(2, 3), torch.tensor([7, 8, 9])
    found = [engine._Fit._row(SimpleNamespace(rank=rank), saved, own).tolist() for rank in range(3)]
    assert found == [[0, 1, 2], [3, 4, 5], [7, 8, 9]]


# ---- checkpoints that are not as they were written ----


def kept_run(tmp_path):
    """A run with checkpoints of updates 1 and 2."""
    run = Run(tmp_path, "made-up", {"hidden": 3})
    with run:
        for update in (1, 2):
            run.save_last({"model.w": torch.full((2,), float(update))}, Progress(update=update, lr=0.008))
    return run


@pytest.mark.parametrize("old, new", [(b"0.008", b"0.009"), (b'"lr', b'"rl'), (b"made-up", b"made-ip")])
def test_a_checkpoint_whose_account_was_altered_is_refused_and_the_one_before_is_used(tmp_path, old, new, capsys):
    run = kept_run(tmp_path)
    newest = run.checkpoints / "000000002.safetensors"
    assert old in newest.read_bytes()
    newest.write_bytes(newest.read_bytes().replace(old, new))
    tensors, progress = run.load_last()
    assert progress.update == 1 and tensors["model.w"].tolist() == [1.0, 1.0]
    assert "refused" in capsys.readouterr().err
    with run:
        run.save_last(tensors, Progress(update=2))  # a refused one is in nobody's place
    assert run.load_last()[1].update == 2


def test_a_checkpoint_of_before_its_account_was_summed_is_still_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "checksum", lambda tensors, said=None, whole=runs.checksum: whole(tensors))
    run = kept_run(tmp_path)
    monkeypatch.undo()
    assert run.load_last()[1].update == 2


def test_the_best_weights_are_found_in_the_checkpoint_of_their_update(tmp_path):
    run = kept_run(tmp_path)
    assert run.load_best(2)[0]["model.w"].tolist() == [2.0, 2.0]
    (run.checkpoints / "best.safetensors").write_bytes(b"torn")
    assert run.load_best(1)[0]["model.w"].tolist() == [1.0, 1.0]
    with pytest.raises(RunError, match="its weights are nowhere else; delete .*made-up and train again"):
        run.load_best(3)


def test_a_run_whose_best_weights_are_torn_ends_with_those_of_the_checkpoint(text, tmp_path):
    record = train(text, tmp_path)
    folder = tmp_path / "runs" / record["run"]
    best = folder / "checkpoints" / "best.safetensors"
    progress = Run(tmp_path / "runs", record["run"], read_json(folder / "config.json")).load_last()[1]
    if progress.best_update != progress.update:
        pytest.skip("the best weights were not the last")
    best.write_bytes(best.read_bytes()[:-1])
    (folder / "record.json").unlink()
    assert train(text, tmp_path)["value"] == record["value"]


def test_a_log_on_a_full_disk_is_an_error_of_one_line(tmp_path):
    run = kept_run(tmp_path)
    run.log_file = run.curve = Path("/dev/full")
    for write in (lambda: run.log("a line"), lambda: run.add_row({"update": 1})):
        with pytest.raises(RunError, match="cannot write /dev/full: No space left on device; make room and run the same"):
            write()
