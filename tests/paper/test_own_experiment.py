"""An experiment of a user's own, ``user/tally.py``, by the commands that a person types. Nothing outside that file knows of it."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from killing import assert_same_to_the_bit, curve, final, killed_twenty_times
from replay import Replay
from test_capture import trained_alike

from multint.paper import capture, engine, experiments, session
from multint.paper.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
USER = Path(__file__).parent / "user"
PAGE = Path(__file__).parents[2] / "docs" / "own-experiment.md"


@pytest.fixture
def tally(tmp_path, monkeypatch):
    """The module, where this process and those it starts can import it. They share the cache with the compiled CPU loop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(USER)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(USER), str(tmp_path), before))))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(experiments, "added", [])
    return importlib.import_module("tally")


def typed(*words, experiment="tally", code=0):
    """What ``multint --experiment tally ...`` prints."""
    done = CliRunner().invoke(main, ["--experiment", experiment, *map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def start(*words, experiment="tally"):
    """The same in a process of its own."""
    command = [sys.executable, "-m", "multint.paper", "--experiment", experiment, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def records(results="results"):
    return [json.loads(line) for line in (Path(results) / "runs.jsonl").read_text().splitlines()]


def folder():
    """Of the one run."""
    return next(Path("runs").rglob("config.json")).parent


def in_folders(name):
    return [f"--runs={name}/runs", f"--results={name}/results", "--device=cpu"]


# ---- train ----


def test_its_recipes_and_its_command_are_listed(tally):
    assert [line.split()[0] for line in typed("recipes", "tally/*").splitlines()] == ["tally/mi", "tally/plain"]
    assert "tally" in re.findall(r"^  (\w+) ", typed("--help"), re.MULTILINE)
    assert "demo" in typed("--help")


def test_it_trains_and_its_record_says_what_it_is(tally):
    said = typed("train", "tally/mi", "--device=cpu")
    (record,) = records()
    assert (record["row"], record["twin"], record["scale"]) == ("tally-mi", "tally/plain", "laptop")
    assert [(one["metric"]["name"], one["split"], one["n"]) for one in record["results"]] == [
        ("hits", "valid", 64),
        ("nats", "valid", 64),
    ]
    assert record["throughput"]["unit"] == "sequences" and record["updates"] == 48
    assert f"valid right % {record['results'][0]['value']:.3f}, nats" in said
    assert "is finished" in typed("train", "mi", "--device=cpu") and len(records()) == 1


def test_the_best_checkpoint_has_the_most_hits(tally):
    typed("train", "tally/mi", "--device=cpu")
    (record,) = records()
    hits = [float(row["valid"]) for row in curve(Path())]
    assert min(hits) < max(hits) == pytest.approx(record["selected_by"]["value"])
    assert record["results"][0]["value"] == pytest.approx(max(hits)), "the weights are those of the best"


def test_the_learned_initial_state_has_a_gradient_at_every_restart_and_changes(tally, monkeypatch):
    real, seen = engine.Update.__call__, []

    def update(self, batch, state):
        before = self.model.core.h0.detach().clone()
        done = real(self, batch, state)
        gradient = self.model.core.h0.grad
        seen.append((state is None, gradient is not None and bool(gradient.any()), not before.equal(self.model.core.h0)))
        return done

    monkeypatch.setattr(engine.Update, "__call__", update)
    typed("train", "tally/mi", "--device=cpu")
    assert seen == [(True, True, True), *[(False, False, False)] * 3] * 12


def test_killed_twenty_times_it_ends_with_the_same_bits(tally, monkeypatch, tmp_path):
    monkeypatch.setattr(engine._Fit, "late", lambda self, due: True)  # a checkpoint after every update
    began = time.perf_counter()
    typed("train", "tally/mi", *in_folders("straight"))
    length = time.perf_counter() - began
    late = killed_twenty_times(lambda: typed("train", "tally/mi", *in_folders("torn")), tmp_path / "torn", length)
    assert late > 4
    assert_same_to_the_bit(tmp_path / "torn", tmp_path / "straight")
    (one,), (other,) = records("torn/results"), records("straight/results")
    assert one["results"] == other["results"]


def test_two_processes_equal_one(tally, tmp_path):
    for name, more in (("one", []), ("two", ["--devices=2"])):
        with start("train", "tally/mi", *in_folders(name), *more) as process:
            assert process.wait() == 0, process.stderr.read()[-2000:]
    one, two = (final(tmp_path / name / "runs") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        if not name.startswith("rng"):
            torch.testing.assert_close(two[name], value, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    for x, y in zip(records("one/results")[0]["results"], records("two/results")[0]["results"], strict=True):
        assert x["value"] == pytest.approx(y["value"], abs=1e-5) and x["n"] == y["n"]


# ---- after training ----


def test_its_command_works_on_a_run_and_its_section_is_on_the_page(tally):
    typed("train", "tally/mi", "--device=cpu", "--set", "schedule.epochs=20")
    assert typed("tally", folder(), 1, 0.5, 2) == "positive\n"
    assert typed("tally", folder(), -1, -0.5, -2) == "not positive\n"
    assert typed("report").strip() == "results/report.html"
    page = Path("results/report.html").read_text()
    assert "Tallies" in page and "Hits of every run." in page and records()[0]["run"] in page


def test_scores_taken_again_are_those_of_the_record(tally):
    typed("train", "tally/mi", "--device=cpu")
    lines = typed("evaluate", folder(), "--device=cpu").splitlines()
    hits, nats = (one["value"] for one in records()[0]["results"])
    assert [line.split()[1:2] for line in lines] == [[f"{hits:.4f}"], [f"{nats:.4f}"]] * 2


def test_a_trained_model_is_handed_on(tally, monkeypatch):
    typed("train", "tally/mi", "--device=cpu")
    typed("export", folder(), "given/away")
    assert sorted(path.name for path in Path("given/away").iterdir()) == ["README.md", "model.json", "weights.safetensors"]
    assert [path.name for path in Path("given").iterdir()] == ["away"], "no temporary folder is left"
    expected = session.load(folder()).state_dict()
    monkeypatch.chdir("given")
    model = session.load("away")
    assert not model.training and all(value.equal(expected[name]) for name, value in model.state_dict().items())
    assert "right %" in Path("away/README.md").read_text()


def test_an_export_that_fails_leaves_nothing(tally):
    typed("train", "tally/mi", "--device=cpu")
    (folder() / "weights.safetensors").unlink()
    assert "cannot write given/away: No such file" in typed("export", folder(), "given/away", code=2)
    assert not [*Path("given").iterdir()]


# ---- sweep and reproduce ----


def test_a_sweep_lists_the_most_hits_first(tally):
    out = typed("sweep", "tally/mi", "--grid", "schedule.lr=0.0001,0.02", "--jobs", 2, "--device=cpu")
    table = [line.split() for line in out.splitlines() if line.startswith("valid ")]
    assert [words[4] for words in table] == ["schedule.lr=0.02", "schedule.lr=0.0001"]
    assert float(table[0][1]) > float(table[1][1])
    assert sorted(record["changed"] for record in records()) == [[], ["schedule.lr=0.0001"]], "0.02 is the recipe's own rate"


def test_reproduce_trains_a_row_and_its_twin_and_ends_on_the_report(tally):
    words = ["reproduce", "tally-mi", "--seeds", "0", "--device=cpu"]
    plan = typed(*words, "--dry-run")
    assert re.search(r"^tally-mi +tally/mi +0 of 1 seeds finished, \d+ s left \(measured\)$", plan, re.MULTILINE)
    assert re.search(r"^tally/plain +tally/plain +0 of 1 seeds finished", plan, re.MULTILINE)
    assert re.search(r"^2 runs to train, \d+ at a time: about \d+ s$", plan, re.MULTILINE) and not Path("runs").exists()
    out = typed(*words)
    assert "[2/2] tally/plain" in out and out.splitlines()[-1] == "report: results/report.html"
    assert sorted(record["recipe"] for record in records()) == ["tally/mi", "tally/plain"]
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*") if path.name != "lock"}
    again = typed(*words)
    assert "1 of 1 seeds finished, 0 s left" in again and "0 runs to train" in again and "measuring" not in again
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*") if path.name != "lock"} == before
    assert len(records()) == 2


def test_reproduce_stops_after_its_hours_and_still_reports(tally):
    out = typed("reproduce", "tally-mi", "--seeds", "0", "--hours", "0.0001", "--device=cpu", code=75)
    assert "[1/2] not started" in out and "report: results/report.html" in out
    assert out.splitlines()[-1] == "multint: 2 runs are not finished; the same command continues them"


LONG = """
from dataclasses import replace
import tally
schedule = replace(tally.SCHEDULE, epochs=100, halve_after=None, stop_after=None)
recipes = {name: replace(one, schedule=schedule, twin=None) for name, one in tally.EXPERIMENT.recipes.items()}
EXPERIMENT = replace(tally.EXPERIMENT, name="long", recipes=recipes, commands=())
"""


def test_reproduce_is_killed_half_way_and_continued_and_nothing_is_lost(tally, tmp_path, monkeypatch):
    Path("long_tally.py").write_text(LONG)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["reproduce", "tally-mi", "--seeds", "0,1", "--jobs", "1"]
    with start(*words, *in_folders("torn"), experiment="long_tally") as process:
        until = time.monotonic() + 120
        while not [*Path("torn").rglob("0*.safetensors")] and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "stopped at update" in err and "[2/2] not started" in err and "report: torn/results/report.html" in out
    with start(*words, *in_folders("torn"), experiment="long_tally") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    first, second = sorted(records("torn/results"), key=lambda record: record["seed"])
    stopped, continued = first["history"]
    assert stopped["to"] == continued["from"] > 0 and continued["to"] == 1200 and len(second["history"]) == 1
    typed("train", "long/mi", *in_folders("straight"), experiment="long_tally")
    (straight,) = records("straight/results")
    assert first["results"] == straight["results"]
    torn, other = (tmp_path / name / "runs" / first["run"] / "weights.safetensors" for name in ("torn", "straight"))
    assert torn.read_bytes() == other.read_bytes()


# ---- how it is found ----


def installed(folder, name):
    info = folder / "site" / "tally-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tally\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[multint.experiments]\n{name} = tally\n")
    return info.parent


def test_an_installed_package_is_found_by_its_entry_point(tally, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed(tmp_path, "tally"))
    done = CliRunner().invoke(main, ["train", "tally/mi", "--device=cpu", "--set", "schedule.epochs=1"], catch_exceptions=False)
    assert done.exit_code == 0 and records()[0]["recipe"] == "tally/mi", done.output
    done = CliRunner().invoke(main, ["tally", str(folder()), "1"], catch_exceptions=False)
    assert done.exit_code == 0 and "positive" in done.output


def test_an_entry_point_with_another_name_than_its_experiment_is_refused(tally, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed(tmp_path, "count"))
    done = CliRunner().invoke(main, ["recipes", "tally/*"], catch_exceptions=False)
    assert done.exit_code == 2
    assert done.output == "multint: the entry point 'count' is of the experiment 'tally'; they need the same name\n"


# ---- capture ----


def task(tally, device="cpu"):
    return tally.TallyTask(session.job("tally/mi"), torch.device(device))


def test_with_the_stand_in_every_length_has_a_graph_from_the_learned_state_and_one_from_a_carried_one(tally):
    experiments.added.append("tally")
    captured, log = trained_alike(task(tally), 120)
    assert log == []
    keys = {(dict(zip(("x", "y"), batch, strict=True))["x"][0][0], state == "None") for batch, state in captured.graphs}
    assert keys == {(length, start) for length in tally.LENGTHS for start in (True, False)}


def test_a_run_with_graphs_gives_the_bits_of_one_without(tally, tmp_path, monkeypatch):
    def optimizer(self, parameters, schedule, **how):  # which both ways can use on the CPU
        return torch.optim.Adam(parameters, lr=torch.tensor(schedule.lr), fused=True)

    monkeypatch.setattr(tally.TallyTask, "optimizer", optimizer)
    typed("train", "tally/mi", *in_folders("eager"), "--set", "schedule.epochs=10")
    monkeypatch.setattr(capture, "why_not", lambda fabric: None)
    monkeypatch.setattr(capture, "CudaRecorder", Replay)
    typed("train", "tally/mi", *in_folders("graphs"), "--set", "schedule.epochs=10")
    assert "each update is one CUDA graph" in next(Path("graphs").rglob("log.txt")).read_text()
    assert_same_to_the_bit(tmp_path / "graphs", tmp_path / "eager")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning, of the extra multint[paper]")
def test_on_a_gpu_graphs_train_as_eager_updates_and_a_run_ends(tally):
    from test_engine_gpu import trained_alike as trained_alike_on_gpu

    experiments.added.append("tally")
    captured, log = trained_alike_on_gpu(task(tally, "cuda"), 120)
    assert len(captured.graphs) == 6 and log == []
    typed("train", "tally/mi", "--device=cuda", "--set", "schedule.epochs=20")
    (record,) = records()
    assert record["results"][0]["value"] > 60


# ---- the page that shows how ----


def test_the_experiment_on_the_page_trains(home, monkeypatch):
    monkeypatch.setattr(experiments, "added", [])
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    assert sum(bool(line.strip()) for line in block.splitlines()) < 60
    (home / "parity.py").write_text(block)
    monkeypatch.syspath_prepend(home)
    for name in ("parity/mi", "parity/plain"):
        typed("train", name, "--device=cpu", "--set", "schedule.updates=8", experiment="parity")
    mi, plain = records()
    assert (mi["recipe"], mi["twin"], mi["updates"]) == ("parity/mi", plain["recipe"], 8)
    assert mi["results"][0]["metric"]["lower"] is False and mi["results"][0]["split"] == "test"
    typed("evaluate", f"runs/{mi['run']}", "--device=cpu", experiment="parity")
    typed("report", experiment="parity")
    assert "parity/plain" in Path("results/report.html").read_text()
