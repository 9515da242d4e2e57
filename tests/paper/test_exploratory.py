"""§3.1: what is seen inside a model while it learns and afterwards is what the definitions say."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from multint.paper import experiments, record, session
from multint.paper.charlm import task as charlm
from multint.paper.charlm.corpus import prepare_text
from multint.paper.charlm.data import evaluation_streams
from multint.paper.exploratory import task
from multint.paper.overrides import RecipeError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

TINY = ["hidden=6", "batch=4", "length=12", "evaluation_streams=3", "schedule.updates=6", "schedule.evaluate_every=3"]


@pytest.fixture(autouse=True)
def _text_for_the_corpus(text, monkeypatch):
    monkeypatch.setattr(charlm, "prepare", lambda corpus, folder: replace(prepare_text(text), name=corpus, own=False))


def job(name="ptb-mirnn", *changes):
    return session.job(name, 1, [*TINY, *changes])


def probed(name="ptb-mirnn", *changes):
    found = task.ProbedTask(job(name, *changes), torch.device("cpu"))
    torch.manual_seed(found.seed)
    return found, found.build()


def larger(model, times=40):
    """Weights that make activations leave the neighbourhood of zero."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(times)
    return model


def test_a_run_leaves_its_gradient_norms_beside_its_curve_and_what_was_measured_in_its_record(tmp_path):
    found = session.train(job(), tmp_path / "runs", tmp_path / "results", device="cpu")
    (line,) = (tmp_path / "results" / "runs.jsonl").read_text().splitlines()
    stored = json.loads(line)
    assert stored["measured"] == found.measured and stored["shared"] == 1
    assert sum(stored["measured"]["histogram"]["counts"]) == (len(job().data.valid) - 1) * 6
    assert stored["measured"]["flows"]["gates"] == ["h"]
    with (tmp_path / "results" / stored["curve"]).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert all(math.isfinite(float(row[name])) for name in task.ProbedTask.observed)
        assert float(row["mean_log_dh10"]) <= float(row["log_mean_dh10"])


@pytest.mark.parametrize("name", ["ptb-linrnn", "ptb-linmirnn"])
def test_the_norms_of_a_linear_model_are_products_of_its_matrices(name):
    """dC/dh_t = (prod over k > t of diag(alpha * W x_k + beta1) U)^T dC/dh_T."""
    found, model = probed(name)
    larger(model, 5)
    x, y = found.segments
    row = found.observe(model)
    core = model.core
    logits = model.out(model.core(x)[0][-1])
    error = (logits.softmax(-1) - F.one_hot(y, logits.shape[1])) @ model.out.weight
    for t in range(len(x), 0, -1):
        if name == "ptb-linmirnn":
            error = error * (core.alpha_l0 * core.weight_ih_l0[:, x[t - 1]].T + core.beta1_l0)
        error = error @ core.weight_hh_l0
        if t - 1 in task.STEPS:
            norms = error.norm(dim=1)
            assert row[f"mean_log_dh{t - 1}"] == pytest.approx(norms.log().mean().item(), abs=1e-3)
            assert row[f"log_mean_dh{t - 1}"] == pytest.approx(norms.mean().log().item(), abs=1e-3)


def test_every_model_is_probed_on_the_same_segments():
    one, other = (probed(name)[0] for name in ("ptb-linrnn", "ptb-milstm"))
    assert torch.equal(one.segments[0], other.segments[0])
    assert one.segments[0].shape == (12, task.SEGMENTS)


def test_activations_and_flows_are_those_of_the_whole_validation_set():
    found, model = probed("ptb-rnn")
    larger(model)
    streams = evaluation_streams(found.corpus.valid, 3)
    values, wx, uh = [], [], []
    w, u = model.core.weight_ih_l0, model.core.weight_hh_l0
    for start, length in zip(streams.starts.tolist(), streams.lengths.tolist(), strict=True):
        h = torch.zeros(6)
        for token in found.corpus.valid[start : start + length].astype(int):
            wx.append(w[:, token].norm().item())
            uh.append((u @ h).norm().item())
            h = torch.tanh(w[:, token] + u @ h + model.core.bias_l0)
            values.append(h)
    flat = torch.stack(values).flatten()
    seen = found.activations(model)
    assert int(seen.counts.sum()) == flat.numel()
    assert seen.saturated == pytest.approx((flat.abs() > 0.9).double().mean().item(), abs=1e-3)
    assert seen.near_zero == pytest.approx((flat.abs() < 0.1).double().mean().item(), abs=1e-3)
    places = torch.histc(flat.detach(), 200, -1, 1)
    assert (seen.counts - places).abs().sum() <= 0.002 * flat.numel(), "except for values at the edge of a bin"
    gates, flows = found.flows(model)
    assert gates == ("h",)
    assert flows["wx"][0] == pytest.approx(sum(wx) / len(wx), rel=1e-4)
    assert flows["uh"][0] == pytest.approx(sum(uh) / len(uh), rel=1e-3)


def test_what_is_measured_at_the_start_is_the_model_before_training():
    found, model = probed("ptb-milstm")
    before = found.measure(model)["flows"]
    assert before["start"] == before["end"] and len(before["gates"]) == 4
    after = found.measure(larger(model))["flows"]
    assert after["start"] == before["start"] != after["end"]


def test_linear_activations_have_no_bounds_and_no_histogram():
    found, model = probed("ptb-linmirnn")
    assert "histogram" not in found.measure(model)


def test_measuring_draws_no_random_number():
    found, model = probed()
    torch.manual_seed(5)
    found.observe(model)
    found.measure(model)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_the_scale_of_w_is_the_scale_of_w_alone():
    """Table 1, top left: U, and with it the output layer, stay as they are."""
    one, other = (probed(name)[1] for name in ("ptb-mirnn", "ptb-mirnn-rw0.6"))
    assert other.core.weight_ih_l0.abs().max() > 10 * one.core.weight_ih_l0.abs().max()
    for name in ("core.weight_hh_l0", "out.weight"):
        assert other.get_parameter(name).abs().max() <= 0.02, name


@pytest.mark.parametrize("cell", ["mrnn", "mlstm", "second-order"])
def test_a_cell_whose_flows_cannot_be_told_apart_is_refused_before_it_is_trained(cell):
    with pytest.raises(
        RecipeError, match=f"the flows of cell={cell} cannot be told apart; exploratory recipes take rnn, lstm, gru"
    ):
        job("ptb-mirnn", f"cell={cell}")


def test_the_settings_of_recorded_runs_are_those_of_their_recipes():
    """Runs of the recipes as they stand, in lines of every version, group with runs that are made today."""
    recipes = experiments.recipes()
    runs, _ = record.read(ROOT / "results", recipes)
    plain = [run for run in runs if run.recipe in recipes and not run.changed]
    assert any(run.recipe == "exploratory/ptb-mirnn" for run in plain)
    for run in plain:
        assert record.settings(recipes[run.recipe]) == run.config, run.run
