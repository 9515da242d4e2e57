"""The plan of ``multint reproduce``: which runs, in which order, what they lack, and the time they take."""

import importlib
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reporting import made, write

from multint.paper import experiments, reproduce, session, sweeps
from multint.paper.experiment import Recipe, Schedule
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.reproduce import Planned
from multint.paper.runs import processor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
HERE = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()


@pytest.fixture
def tally(home, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "user")
    monkeypatch.setattr(experiments, "added", ["tally"])
    return importlib.import_module("tally")


def plan(*patterns, said=None, **settings):
    paths = {"runs": Path("runs"), "results": Path("results"), "data": None}
    how = {"device": "cpu", "precision": "fp32", "options": (), "jobs": 2, "say": (said if said is not None else []).append}
    return reproduce.plan(patterns, "laptop", [0, 1], **{**paths, **how, **settings})


# ---- which runs ----


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_rows_are_in_the_paper_s_order_whatever_the_patterns(scale):
    every = list(reproduce.rows([], scale))
    assert every.index("ptb-rnn") < every.index("ptb-mirnn") < every.index("text8-mirnn") < every.index("text8-milstm")
    some = list(reproduce.rows(["text8-milstm", "ptb-mirnn"], scale))
    assert some == [row for row in every if row in ("ptb-rnn", "ptb-mirnn", "text8-lstm", "text8-milstm")]


def test_an_mi_row_brings_its_additive_twin(tally):
    assert reproduce.rows(["tally-*"], "laptop") == {"tally-mi": ["tally/mi"], "tally/plain": ["tally/plain"]}
    for names in reproduce.rows([], "paper").values():
        twins = {experiments.find(name)[1].twin for name in names} - {None}
        assert twins <= {name for group in reproduce.rows(names, "paper").values() for name in group}


def test_a_recipe_is_matched_by_row_full_name_or_short_name():
    for pattern in ("ptb-rnn", "exploratory/laptop-ptb-rnn", "laptop-ptb-rnn"):
        assert list(reproduce.rows([pattern], "laptop")) == ["ptb-rnn"]
    with pytest.raises(RecipeError, match=r"no row of scale paper matches gpt-\*; there are ptb-rnn, "):
        reproduce.rows(["gpt-*"], "paper")


def test_of_a_row_s_recipes_the_first_with_data_is_trained(monkeypatch):
    lacks = {"a/one": "no one", "a/two": "", "a/three": ""}
    monkeypatch.setattr(reproduce, "_missing", lambda name, data, precision: lacks[name])
    assert reproduce.available(["a/one", "a/two", "a/three"], None, "fp32") == ("a/two", "")
    lacks.update({"a/two": "no two", "a/three": "no three"})
    assert reproduce.available(["a/one", "a/two", "a/three"], None, "fp32") == ("a/one", "no one")


def test_a_row_without_data_is_left_out_with_the_reason(tally, monkeypatch):
    real = session.job

    def job(name, *words, **settings):
        if name == "tally/mi":
            raise DataError("tally is not here: buy it")
        return real(name, *words, **settings)

    monkeypatch.setattr(session, "job", job)
    monkeypatch.setattr(reproduce, "measure", lambda job, device, threads: 5.0)
    planned = plan("tally-mi")
    assert [(one.row, one.missing) for one in planned] == [("tally-mi", "tally is not here: buy it"), *[("tally/plain", "")] * 2]
    assert reproduce.to_train(planned) == planned[1:]
    first, _, last = reproduce.listing(planned, 1)
    assert first.split(maxsplit=2) == ["tally-mi", "tally/mi", "left out: tally is not here: buy it"]
    assert last == "2 runs to train, 1 at a time: about 10 s"


def test_points_carry_the_options_of_the_command(tally, monkeypatch):
    monkeypatch.setattr(reproduce, "measure", lambda job, device, threads: 5.0)
    one = plan("tally-mi", options=("--device=cpu", "--runs=runs"))[1]
    assert one.point.command[1:] == [
        *["-m", "multint.paper", "--experiment", "tally", "train", "tally/mi", "--seed=1", "--device=cpu", "--runs=runs"]
    ]
    assert one.folder == Path("runs") / session.run_name(session.job("tally/mi", 1))


# ---- their time ----


def test_earlier_runs_say_the_time_if_they_ran_alike(tally, home, monkeypatch):
    monkeypatch.setattr(reproduce, "measure", lambda job, device, threads: 7.0)
    alike = {"device": HERE, "shared": 2, "corpus": "tally"}
    others = [{"device": "another"}, {"shared": 1}, {"changed": ["hidden=9"]}, {"precision": "bf16"}, {"seconds": None}]
    lines = [made("tally/mi", 50.0, seed, seconds=seconds, **alike) for seed, seconds in enumerate((10.0, 20.0, 90.0))]
    lines += [made("tally/mi", 50.0, 9, **{"seconds": 1000.0, **alike, **other}) for other in others]
    lines += [made("tally/plain", 50.0, 9, **{"seconds": 1000.0, **alike, **other}) for other in others]
    write(home / "results", lines)
    said = []
    planned = plan("tally-mi", said=said)
    assert [(one.seconds, one.measured) for one in planned] == [(20.0, False)] * 2 + [(7.0, True)] * 2
    assert said == ["measuring tally/plain"], "once for all seeds"
    assert [line.split(" left ")[-1] for line in reproduce.listing(planned, 2)][:2] == ["(as earlier runs took)", "(measured)"]


def test_a_run_that_is_finished_or_half_done_takes_less(tally, monkeypatch):
    monkeypatch.setattr(reproduce, "measure", lambda job, device, threads: 8.0)
    first, second = plan("tally-mi")[:2]
    first.folder.mkdir(parents=True)
    (first.folder / "record.json").touch()
    second.folder.mkdir(parents=True)
    (second.folder / "curve.csv").write_text("update,epoch\n12,1\n36,3\n")
    first, second = plan("tally-mi")[:2]
    assert (first.finished, first.seconds, second.finished, second.seconds) == (True, 0.0, False, 2.0)


def test_the_share_of_a_run_that_is_done(tmp_path):
    recipe = Recipe(schedule=Schedule(epochs=10, updates=1000))
    assert reproduce.done(tmp_path, recipe) == 0.0
    curve = tmp_path / "curve.csv"
    for body, share in (
        ("", 0.0),
        ("100,2\n", 0.2),  # the epochs end it first
        ("400,2\n", 0.4),
        ("400,\n", 0.0),
        ("1000,9\n", 0.99),  # the results are still to come
    ):
        curve.write_text("update,epoch\n" + body)
        assert reproduce.done(tmp_path, recipe) == share
    curve.write_text("update,epoch\n300,6\n")
    assert reproduce.done(tmp_path, Recipe(schedule=Schedule(epochs=10))) == 0.6
    (tmp_path / "record.json").touch()
    assert reproduce.done(tmp_path, recipe) == 1.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the measured work moves."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(reproduce, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


@pytest.mark.parametrize(
    "update, score, seconds, updates",
    [
        (0.1, lambda world: 2.0 / world, 48 * 0.1 + (48 / 6 + 2) * 2.0, 25),  # a part of the validation is enough
        (0.1, lambda world: 0.2, 48 * 0.1 + (48 / 6 + 2) * 0.2, 25),  # all of it, if it is short
        (3.0, lambda world: 2.0, 1.1 * 48 * 3.0, 2),  # the second update says enough
    ],
    ids=["in part", "short", "slow"],
)
def test_a_few_updates_and_a_validation_say_the_time(tally, monkeypatch, clock, update, score, seconds, updates):
    loss, scores, seen = tally.TallyTask.loss, tally.TallyTask.scores, []

    def slow_loss(self, model, batch, state):
        clock.seconds += update if seen else 50.0  # kernels are compiled
        seen.append(batch["x"].shape[0])
        return loss(self, model, batch, state)

    def slow_scores(self, model, split, team):
        clock.seconds += score(team.world)
        return scores(self, model, split, team)

    monkeypatch.setattr(tally.TallyTask, "loss", slow_loss)
    monkeypatch.setattr(tally.TallyTask, "scores", slow_scores)
    threads = torch.get_num_threads()
    assert reproduce.measure(session.job("tally/mi"), "cpu", 1) == pytest.approx(seconds)
    assert updates <= len(seen) <= updates + 1 and torch.get_num_threads() == threads


def test_runs_together_take_as_long_as_the_last_place():
    assert reproduce.together([], 2) == 0.0
    assert reproduce.together([10.0], 2) == 10.0
    assert reproduce.together([10.0, 10.0, 10.0], 2) == 20.0
    assert reproduce.together([30.0, 10.0, 10.0], 2) == 30.0


def test_the_listing_says_what_is_left():
    def one(row, **more):
        return Planned(row, sweeps.Point(f"a/{row}", 0), Path(row), **more)

    planned = [one("x", finished=True), one("x", seconds=300.0, measured=True), one("y", finished=True), one("z", seconds=9000.0)]
    assert [" ".join(line.split()) for line in reproduce.listing(planned, 2)] == [
        "x a/x 1 of 2 seeds finished, 5 min left (measured)",
        "y a/y 1 of 1 seeds finished, 0 s left",
        "z a/z 0 of 1 seeds finished, 2.5 h left (as earlier runs took)",
        "2 runs to train, 2 at a time: about 2.5 h",
    ]


def test_nothing_is_started_when_nothing_is_left(monkeypatch):
    monkeypatch.setattr(sweeps, "run", None)
    finished = Planned("x", sweeps.Point("a/x", 0), Path("x"), finished=True)
    lacking = Planned("y", sweeps.Point("a/y", 0), None, missing="no y")
    assert reproduce.train([finished, lacking], 2, "local", None, print, None, bar=True) == (0, 0)


def test_the_display_follows_the_curves_of_the_runs(tally, monkeypatch, capsys):
    shown, one = [], Planned("x", sweeps.Point("tally/mi", 0), Path("x"), seconds=100.0)

    def run(points, jobs, engine, partition, say, deadline):
        Path("x").mkdir()
        Path("x/curve.csv").write_text("update,epoch\n24,2\n")
        say("[1/1] a [/b] line")
        time.sleep(1.5)
        return 0, 0

    monkeypatch.setattr(sweeps, "run", run)
    assert reproduce.train([one], 2, "local", None, shown.append, None, bar=True) == (0, 0)
    said = capsys.readouterr()
    assert said.out == "" and "[1/1] a [/b] line" in said.err and "0 of 1 runs finished, about 50 s left" in said.err


def test_one_run_at_a_time_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert reproduce.has_gpu("auto") and reproduce.has_gpu("cuda") and not reproduce.has_gpu("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not reproduce.has_gpu("auto")
