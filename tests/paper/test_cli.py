"""The commands as a person types them: what they print, and one line with exit code 2 for a mistake."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from multint.paper import runs, session, sweeps
from multint.paper.__main__ import main
from multint.paper.charlm.task import CharTask
from multint.paper.experiment import Sum

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
TINY = ["hidden=8", "batch=4", "length=10", "evaluation_streams=4", "schedule.updates=20", "schedule.evaluate_every=10"]
SET = [word for change in TINY for word in ("--set", change)]


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def records():
    return [json.loads(line) for line in Path("results/runs.jsonl").read_text().splitlines()]


def trained(text, *more):
    done = call("train", "charlm", "--text", text, "--device", "cpu", *SET, *more)
    assert done.exit_code == 0, done.output
    record = records()[-1]
    return done, record


def test_train_evaluate_sample_compare_report(text):
    done, record = trained(text)
    value = record["results"][0]["value"]
    assert f"test BPC carried {value:.3f}" in done.output
    run = f"runs/{record['run']}"
    scores = call("evaluate", run, "--device", "cpu")
    assert scores.exit_code == 0
    lines = scores.output.splitlines()
    assert [line.split()[0] for line in lines] == ["valid", "test", "test"]
    assert [line.split()[1] for line in lines[1:]] == ["carried", "reset"]
    assert float(lines[0].split()[1]) == pytest.approx(record["selected_by"]["value"], abs=1e-4)
    assert float(lines[1].split()[2]) == pytest.approx(value, abs=1e-4)
    one, two = (call("sample", run, "--prompt", "mo sa", "--length", 30, "--seed", s).output for s in (1, 1))
    assert one == two and one.startswith("mo sa") and len(one.rstrip("\n")) <= 36
    trained(text, "--seed", 1)
    other = records()[-1]
    table = call("compare", run, f"runs/{other['run']}")
    assert table.exit_code == 0 and "seed" in table.output and f"{value:.3f}"[:4] in table.output
    page = call("report")
    assert page.exit_code == 0 and page.output.strip() == "results/report.html"


def test_the_demo_trains_two_pairs_of_twins_and_writes_the_report(home):
    small = ["hidden=8", "schedule.updates=4", "schedule.evaluate_every=4", "evaluation_streams=3000"]
    done = call("demo", *(word for change in small for word in ("--set", change)))
    assert done.exit_code == 0, done.output
    assert "--- RNN writes:" in done.output and "--- MI-RNN writes:" in done.output
    assert re.search(r"on held-out text: RNN \d\.\d+, MI-RNN \d\.\d+, LSTM \d\.\d+, MI-LSTM", done.output)
    assert "report: runs/demo/report.html" in done.output and "CUDA graph" not in done.output
    assert (home / "runs" / "demo" / "report.html").exists() and not (home / "results").exists()


def test_recipes_are_listed_with_their_rows():
    out = call("recipes").output
    assert "exploratory/ptb-mirnn" in out and "4,407,346" in out and "paper 1.39" in out
    some = call("recipes", "laptop-*").output
    assert "charlm/laptop-text8-milstm" in some and "paper" not in some.replace("the paper's start", "") and "demo" not in some


def test_a_finished_run_is_added_to_other_results_once(text):
    trained(text)
    for _ in range(2):
        assert call("train", "charlm", "--text", text, "--device", "cpu", *SET, "--results", "elsewhere").exit_code == 0
    (line,) = Path("elsewhere/runs.jsonl").read_text().splitlines()
    assert json.loads(line) == records()[0]
    assert (Path("elsewhere") / records()[0]["curve"]).exists()


def test_a_full_disk_is_one_line(text, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    call("train", "charlm", "--text", text, "--device", "cpu", *SET)  # which prepares the text
    monkeypatch.setattr(os, "fsync", full)
    done = call("train", "charlm", "--text", text, "--device", "cpu", *SET, "--seed", 1)
    assert done.exit_code == 2
    assert "cannot write runs/" in done.output and "No space left on device" in done.output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "demo-lstm", "--devices", "0"],
        ["train", "demo-lstm", "--devices=-1"],
        ["train", "demo-lstm", "--nodes", "0"],
        ["train", "demo-lstm", "--seed", str(2**70)],
        ["train", "demo-lstm", "--seed=-1"],
        ["sample", "nowhere", "--length=-5"],
        ["sample", "nowhere", "--temperature", "nan"],
        ["sample", "nowhere", "--seed", str(2**70)],
        ["train", "demo-lstm", "--set", "dropout=nan"],
        ["train", "demo-lstm", "--set", "carry=true", "--set", "reset_every=0"],
    ],
    ids=" ".join,
)
def test_numbers_out_of_range_are_refused(home, words):
    assert call(*words).exit_code == 2


def test_the_same_command_again_does_not_train_again(text):
    trained(text)
    done, _ = trained(text)
    assert "is finished; delete it to train again" in done.output
    assert len(records()) == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "ptb-gpt"], "no recipe 'ptb-gpt'; there are exploratory/ptb-rnn"),
        (["train", "charlm"], "train charlm needs data of yours (--text or --bytes)"),
        (["train", "demo-lstm", "--set", "hiden=3"], "no setting 'hiden'; there are"),
        (["train", "demo-lstm", "--set", "cell=gpt"], "no model of these settings"),
        (["train", "ptb-mirnn"], "ptb"),
        (["train", "charlm", "--text", "absent.txt"], "absent.txt"),
        (["train", "--text", "tale.txt", "charlm"], "name a recipe before the options of its experiment"),
        (["train", "charlm", "--texd", "tale.txt"], "Options of charlm: --text, --bytes"),
        (["train", "ptb-mirnn", "--text", "tale.txt"], "Options of exploratory: none"),
        (["train", "demo-lstm", "--bytes"], "--bytes says how --text is read"),
        (["train", "demo-lstm", "--set", "note=mine"], "no setting 'note'"),
        (["train", "demo-lstm", "--set", "nonlinearity=relu"], "nonlinearity=relu changes nothing: cell=lstm has gates"),
        (["train", "demo-lstm", "--set", "reset_every=5"], "reset_every=5 changes nothing: without carry=true"),
        (["train", "demo-lstm", "--set", "alpha=5"], "start.alpha=5 changes nothing: integration=additive has no such vector"),
        (
            ["train", "laptop-text8-lstm", "--set", "halve_after=5"],
            "schedule.halve_after=5 changes nothing: the rate falls linearly",
        ),
        (["--experiment", "nowhere", "recipes"], "cannot import the experiment nowhere"),
        (["--experiment", "json", "recipes"], "json has no EXPERIMENT"),
        (["--experiment", "nowhere", "--help"], "cannot import the experiment nowhere"),
        (["evaluate", "nowhere"], "there is no nowhere/model.json"),
        (["export", "nowhere", "out"], "there is no nowhere/record.json"),
        (["sample", "nowhere"], "there is no nowhere/model.json"),
        (["compare", "nowhere"], "there is no nowhere/record.json"),
        (["data", "get", "wsj"], "wsj"),
        (["sweep", "gpt-*"], "no recipe 'gpt-*'; there are exploratory/ptb-rnn"),
        (["sweep", "demo-lstm", "--grid", "schedule.lr"], "--grid takes key=a,b,c"),
        (["sweep", "demo-lstm", "--seeds", "a,b"], "--seeds takes whole numbers"),
        (
            ["sweep", "demo-lstm", "--seeds", "0,-1"],
            "--seeds takes whole numbers with commas between, or a range as 0-2, got '0,-1'",
        ),
        (["sweep", "demo-lstm", "--seeds", "4294967296"], "--seeds takes numbers from 0 to 4294967295, got 4294967296"),
        (["reproduce", "squad-*"], "no row of scale laptop matches squad-*; there are ptb-rnn, "),
        (["reproduce", "--seeds", "x"], "--seeds takes whole numbers"),
        (["sweep", "demo-lstm", "--engine", "submitit", "--minutes", "5"], "--minutes is for runs on this machine"),
        (["reproduce", "--engine", "submitit", "--hours", "5"], "--hours is for runs on this machine"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(home, words, message):
    done = call(*words)
    assert done.exit_code == 2
    (line,) = done.output.strip().splitlines()
    assert line.startswith("multint: ") and message in line
    assert not (home / "runs").exists() or not [*(home / "runs").rglob("*.safetensors")]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "empty"),
        (b"abc \xff\xfe abc" * 500, "UTF-8"),
        (b"short", "5 symbols; at least 40 are needed"),
    ],
)
def test_a_file_that_cannot_be_a_corpus_is_named(home, content, message):
    path = home / "bad.txt"
    path.write_bytes(content)
    done = call("train", "charlm", "--text", path, "--device", "cpu", *SET)
    assert done.exit_code == 2
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("multint: ") and message in last


@pytest.mark.parametrize(
    "name, file, content, message",
    [
        ("enwik8", "enwik8/enwik8.xz", b"\xfd7zXZ\x00corrupt", "enwik8.xz"),
        ("enwik8", "enwik8/enwik8", b"other text", "enwik8"),
        ("text8", "text8.zip", b"PK\x03\x04 torn", "text8.zip"),
        ("ptb-a", "ptb/ptb.train.txt", b" a b c\n" * 9, "no ptb.valid.txt"),
    ],
)
def test_damaged_copies_of_a_corpus_are_one_line_and_nothing_is_prepared(home, name, file, content, message):
    path = home / "data" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    done = call("train", {"ptb-a": "ptb-mirnn", "text8": "text8-milstm", "enwik8": "enwik8-milstm"}[name], "--device", "cpu")
    assert done.exit_code == 2
    (line,) = done.output.strip().splitlines()
    assert line.startswith("multint: ") and message in line
    assert not [p for p in (home / "cache").rglob("*") if p.suffix in (".npy", ".json")] and not (home / "runs").exists()


def test_bytes_that_are_not_utf8_train_as_bytes(home):
    path = home / "bytes.bin"
    path.write_bytes(b"abc \xff\xfe abc" * 500)
    done = call("train", "charlm", "--text", path, "--bytes", "--device", "cpu", *SET)
    assert done.exit_code == 0, done.output


def test_a_prompt_with_an_unknown_character_is_named(text):
    _, record = trained(text)
    done = call("sample", f"runs/{record['run']}", "--prompt", "mo€")
    assert done.exit_code == 2 and "'€'" in done.output


def test_a_sweep_crosses_recipes_and_seeds_with_its_grid_and_repeats_nothing(text):
    grid = ["--grid", "schedule.lr=0.01,0.001", "--seeds", "0", "--jobs", 2]
    words = ["sweep", "demo-*lstm", "demo-lstm", "--text", text, *grid, "--device", "cpu", *SET]
    done = call(*words)
    assert done.exit_code == 0, done.output
    table = [line for line in done.output.splitlines() if line.startswith("valid ")]
    assert len(table) == 4 and table == sorted(table), "by validation score, best first; the test score is not for choosing"
    points = {(r["recipe"].removeprefix("charlm/own-"), r["config"]["schedule"]["lr"], r["seed"]) for r in records()}
    assert points == {(name, lr, 0) for name in ("lstm", "milstm") for lr in (0.01, 0.001)}
    assert {r["shared"] for r in records()} == {2} and {r["history"][0]["shared"] for r in records()} == {2}
    assert call(*words).exit_code == 0
    assert len(records()) == 4, "finished runs are looked at, and a recipe named twice is one"


def test_a_sweep_that_runs_out_of_time_stops_its_runs_and_the_same_command_continues_them(text, monkeypatch):
    long = ["sweep", "charlm", "--text", text, "--seeds", "0,1", "--device", "cpu", *SET, "--set", "schedule.updates=100000"]
    real = subprocess.Popen.communicate

    def soon(self, input=None, timeout=None):
        """The deadline comes once the run has left its first checkpoint."""
        while timeout is not None and not [*Path("runs").rglob("0*.safetensors")]:
            time.sleep(0.1)
        return real(self, input, None if timeout is None else 0.5)

    monkeypatch.setattr(subprocess.Popen, "communicate", soon)
    monkeypatch.setattr(
        time, "monotonic", iter([0.0, 0.0, 0.0, 1e9]).__next__
    )  # for the deadline, before the first run, what is left, before the second
    done = call(*long, "--minutes", 1)
    assert done.exit_code == 75, done.output
    assert "stopped at update" in done.output and "[2/2] not started" in done.output
    assert done.output.strip().splitlines()[-1] == "multint: 2 of 2 runs are not finished; the same command continues them"
    (run,) = {p.parent for p in Path("runs").rglob("config.json")}
    assert "stopped at update" in (run / "log.txt").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_forwards_a_signal_to_its_runs_and_waits_for_them(text, number):
    words = ["sweep", "charlm", "--text", text, "--seeds", "0,1,2", "--jobs", "2", "--device", "cpu", *SET]
    endless = ["--set", "schedule.updates=100000", "--set", "schedule.stop_after=none", "--set", "schedule.halve_after=none"]
    words = [sys.executable, "-m", "multint.paper", *map(str, words), *endless]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as sweep:
        until = time.monotonic() + 120
        while len({path.parent for path in Path("runs").rglob("0*.safetensors")}) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        sweep.send_signal(number)
        said = sweep.communicate(timeout=60)[1]
    assert sweep.returncode == 75, said
    assert said.strip().splitlines()[-1] == "multint: 3 of 3 runs are not finished; the same command continues them"
    assert said.count("stopped at update") == 2 and "[3/3] not started" in said
    for folder in (path.parent for path in Path("runs").rglob("config.json")):
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no process holds it any more


def test_a_sweep_ignores_the_signals_its_parent_ignores():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with sweeps.Signals().listening() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.stopping
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.stopping
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_record_is_appended_once_however_often(tmp_path):
    for _ in range(3):
        runs.append_line(tmp_path / "runs.jsonl", '{"run": 1}')
    assert (tmp_path / "runs.jsonl").read_text() == '{"run": 1}\n'


def test_a_sweep_with_a_wrong_value_starts_nothing(text):
    done = call("sweep", "charlm", "--text", text, "--grid", "lr=0.01,abc", "--device", "cpu", *SET)
    assert done.exit_code == 2 and "schedule.lr='abc'" in done.output
    assert not Path("runs").exists()


def test_points_cross_every_axis_with_every_seed():
    found = sweeps.points(["a=1,2", "b=3,4"], "0,1")
    assert len(found) == 8 and ((("a=2", "b=3"), 1)) in found


@pytest.mark.parametrize("said, commit, dirty", [("abc1234", "abc1234", False), ("abc1234+", "abc1234", True)])
def test_a_copy_without_its_repository_takes_its_commit_from_the_environment(text, monkeypatch, said, commit, dirty):
    monkeypatch.setenv("MULTINT_COMMIT", said)
    trained(text)
    (found,) = records()
    assert (found["commit"], found["dirty"]) == (commit, dirty)


def test_a_sweep_can_be_sent_through_submitit(text):
    pytest.importorskip("submitit")
    words = ["sweep", "charlm", "--text", text, "--grid", "hidden=6,7", "--engine", "submitit", "--device", "cpu", *SET]
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert {r["config"]["hidden"] for r in records()} == {6, 7}


def test_a_job_that_slurm_ended_is_a_failed_run():
    class Killed:
        def result(self):
            raise RuntimeError("the job was killed\nwith its output")

    assert sweeps._result(Killed()) == (1, "the job was killed")


def test_python_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "multint.paper", "--help"], capture_output=True, text=True, check=True)
    for word in ("demo", "data", "recipes", "train", "evaluate", "export", "sample", "sweep", "reproduce", "report", "compare"):
        assert word in done.stdout


@pytest.mark.parametrize("said, counted", [(None, "2"), ("1", "2"), ("5", "5")])
def test_a_run_knows_how_many_share_its_machine(monkeypatch, said, counted):
    monkeypatch.delenv("MULTINT_SHARED", raising=False)
    if said is not None:
        monkeypatch.setenv("MULTINT_SHARED", said)
    words = [sys.executable, "-c", "import os; print(os.environ['MULTINT_SHARED'])"]
    assert sweeps.execute(words, at_a_time=2) == (0, counted)


@pytest.mark.parametrize("said", ["two", "0", "-1", ""])
def test_a_count_of_runs_that_is_no_count_is_refused(monkeypatch, said):
    monkeypatch.setenv("MULTINT_SHARED", said)
    with pytest.raises(runs.RunError, match=f"MULTINT_SHARED .* not '{said}'; unset it"):
        runs.environment()


def test_a_result_that_is_not_a_number_is_refused_and_nothing_is_recorded(text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(CharTask, "reset", lambda *_: Sum(float("nan"), 1))
        done = call("train", "charlm", "--text", text, "--device", "cpu", *SET)
    assert done.exit_code == 2 and "give BPC nan on corpus.txt, test, reset; no record was written" in done.output
    assert not Path("results/runs.jsonl").exists()
    assert call("train", "charlm", "--text", text, "--device", "cpu", *SET).exit_code == 0, "the checkpoints are complete"


# ---- what a run is ----


def test_a_text_that_was_moved_or_copied_is_the_same_run(text):
    _, record = trained(text)
    moved = text.with_name("elsewhere.txt")
    text.rename(moved)
    done, _ = trained(moved)
    assert "is finished; delete it to train again" in done.output and len(records()) == 1
    run = f"runs/{record['run']}"
    assert call("sample", run, "--length", 5).exit_code == 0, "a run is complete without its data"
    lost = call("evaluate", run)
    assert lost.exit_code == 2 and "no such file" in lost.output and "if it moved, name it with --text" in lost.output
    assert call("evaluate", run, "--text", moved).exit_code == 0
    moved.write_text(moved.read_text() + "more")
    other = call("evaluate", run, "--text", moved)
    assert other.exit_code == 2 and "was trained on sha256:" in other.output


def test_a_model_without_multiplication_is_not_called_mi(text):
    _, record = trained(text, "--set", "cell=mlstm")
    assert record["recipe"] == "charlm/own-mlstm" and record["twin"] is None
    _, record = trained(text)
    assert (record["recipe"], record["twin"]) == ("charlm/own-milstm", "charlm/own-lstm")


def test_an_exported_model_loads_without_its_run_and_its_data(text, tmp_path, monkeypatch):
    _, record = trained(text)
    run = Path("runs") / record["run"]
    assert call("export", run, "given/away").exit_code == 0
    assert sorted(path.name for path in Path("given/away").iterdir()) == ["README.md", "model.json", "weights.safetensors"]
    assert str(tmp_path) not in "".join(path.read_text() for path in Path("given/away").glob("*.[mj]*"))
    again = call("export", run, "given/away")
    assert again.exit_code == 2 and "given/away exists already" in again.output
    expected = session.load(run).state_dict()
    monkeypatch.chdir("given")
    for path in tmp_path.rglob("*.txt"):
        path.unlink()
    model = session.load("away")
    assert not model.training and all(value.equal(expected[name]) for name, value in model.state_dict().items())
    assert model.alphabet.decode(model.alphabet.encode("mo sa")) == "mo sa"
    assert f"{record['results'][0]['value']:.4f}" in Path("away/README.md").read_text()


def test_the_record_counts_scoring_and_leaves_out_compilation(text):
    _, record = trained(text)
    assert record["seconds"] >= record["scoring_seconds"] > 0
    assert record["throughput"]["unit"] == "characters"
    assert record["results"][0]["n"] > 0 and record["version"] == 2


# ---- reproduce ----


def test_reproduce_plans_in_the_order_of_the_paper(home, monkeypatch):
    plan = call("reproduce", "text8-*", "ptb-linrnn", "--dry-run", "--data", "nowhere")
    assert plan.exit_code == 0, plan.output
    rows = [line.split()[0] for line in plan.output.splitlines()[:-1]]
    assert rows == ["ptb-linrnn", "text8-mirnn", "text8-lstm", "text8-milstm", "text8-rnn"]
    assert "left out: " in plan.output and plan.output.splitlines()[-1].startswith("0 runs to train")
    assert not (home / "runs").exists()
