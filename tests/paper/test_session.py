"""A run from its name to its record: killed, continued, finished once, on several processes."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
import torch
from killing import assert_same_to_the_bit, curve, final, killed_twenty_times
from safetensors.torch import load_file

from multint.paper import engine, session
from multint.paper.runs import Run, RunError, Stopped, read_json

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

TINY = ["hidden=8", "batch=4", "length=10", "evaluation_streams=4", "schedule.updates=60", "schedule.evaluate_every=20"]


def job(text, *changes, seed=0):
    return session.job("charlm", seed, [*TINY, *changes], {"text": text, "as_bytes": False})


def train(text, root, *changes, seed=0, **settings):
    return session.train(job(text, *changes, seed=seed), root / "runs", root / "results", device="cpu", **settings)


@pytest.mark.parametrize("options", [["carry=false", "schedule.linear=true"], ["carry=true", "reset_every=7", "dropout=0.3"]])
def test_killed_at_twenty_random_moments_and_continued_the_weights_are_the_same_to_the_bit(text, tmp_path, options):
    straight, torn = tmp_path / "straight", tmp_path / "torn"
    began = time.perf_counter()
    train(text, straight, *options, save_every=0.0)
    assert killed_twenty_times(lambda: train(text, torn, *options, save_every=0.0), torn, time.perf_counter() - began) > 1
    assert_same_to_the_bit(torn, straight)


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
            pending.write_text(json.dumps({"line": before.rstrip("\n"), "results": [str(folder)]}))
            written.unlink()
            lines.write_text(left)
            assert train(text, tmp_path) == record, "not that of another session"
            assert not pending.exists()
            if left != before or folder.name == "results":
                assert lines.read_text().splitlines()[-1:] == before.splitlines() and lines.read_text().count(before) == 1
    pending.write_text(json.dumps({"line": before.rstrip("\n"), "results": [str(tmp_path / "results")]}))
    written.unlink()
    with Run(tmp_path / "runs", record.run, read_json(written.with_name("config.json"))) as run:
        run.settle(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists(), "it is in the results of the first session"


def test_the_record_says_what_was_run(text, tmp_path):
    record = train(text, tmp_path, seed=3)
    (line,) = (tmp_path / "results" / "runs.jsonl").read_text().splitlines()
    stored = json.loads(line)
    value = record.result("bpc", "carried", "test").value
    assert record.main.value == value == stored["results"][0]["value"] and stored["results"][0]["metric"]["lower"] is True
    assert stored["seed"] == 3 and stored["updates"] == 60 and stored["ended"] == "60 updates"
    assert len(stored["data"]["sha256"]) == 64 and stored["commit"] and stored["seconds"] > stored["scoring_seconds"] > 0
    assert record.valid == pytest.approx(min(float(row["valid"]) for row in curve(tmp_path)), abs=1e-5)
    assert record.throughput.value > 0 and record.throughput.unit == "characters"
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
    assert record.main.value < 0.8 * float(torch.tensor(17.0).log2()), "below four fifths of a uniform guess"


def stopped(text, root, monkeypatch):
    """A run folder with two checkpoints, left in the middle."""
    decide = engine._Fit.decide
    with monkeypatch.context() as patch:
        patch.setattr(engine._Fit, "decide", lambda self: decide(self) or self.stop.extend([0] * (self.p.update == 25)))
        with pytest.raises(Stopped):
            train(text, root, save_every=0.0)
    names = sorted(p for p in (root / "runs").rglob("*.safetensors") if p.stem.isdigit())
    assert [p.stem for p in names] == ["000000024", "000000025"]
    return names


def test_a_torn_checkpoint_is_named_and_the_one_before_is_used(text, tmp_path, monkeypatch, capfd):
    _, newer = stopped(text, tmp_path, monkeypatch)
    newer.write_bytes(newer.read_bytes()[:-100])
    train(text, tmp_path)
    err = capfd.readouterr().err
    assert f"refused {newer}: it is torn" in err
    train(text, tmp_path / "straight")
    continued, straight = final(tmp_path / "runs"), final(tmp_path / "straight" / "runs")
    assert all(torch.equal(value, straight[name]) for name, value in continued.items())


def test_an_altered_and_a_foreign_checkpoint_are_refused(text, tmp_path, monkeypatch):
    older, newer = stopped(text, tmp_path, monkeypatch)
    run, other = (Run(tmp_path / "runs", session.run_name(one), session.config(one)) for one in (job(text), job(text, seed=1)))
    body = bytearray(newer.read_bytes())
    body[-1] ^= 1
    newer.write_bytes(bytes(body))
    with pytest.raises(RunError, match="its contents were altered"):
        run.load(newer)
    with pytest.raises(RunError, match=f"it belongs to {run.name}, not to {other.name} as configured"):
        other.load(older)


def test_a_run_whose_best_weights_are_torn_ends_with_those_of_the_checkpoint(text, tmp_path):
    record = train(text, tmp_path)
    folder = tmp_path / "runs" / record.run
    best = folder / "checkpoints" / "best.safetensors"
    progress = Run(tmp_path / "runs", record.run, read_json(folder / "config.json")).load_last()[1]
    if progress.best_update != progress.update:
        pytest.skip("the best weights were not the last")
    best.write_bytes(best.read_bytes()[:-1])
    (folder / "record.json").unlink()
    assert train(text, tmp_path).results == record.results


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
