"""Recipes are rows of the paper: sizes as counted, every one of them runs, and every setting can be changed."""

from dataclasses import fields

import pytest
import torch
from helpers import unchecked

from multint.paper import experiments, overrides
from multint.paper.charlm import recipes, task
from multint.paper.experiments import RECIPES
from multint.paper.overrides import RecipeError, apply


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("ptb-rnn", 4_401_202),
        ("ptb-mirnn", 4_407_346),
        ("ptb-lstm", 4_254_050),
        ("ptb-milstm", 4_266_050),
        ("text8-rnn", 4_306_971),
        ("text8-mirnn", 4_313_115),
        ("text8-lstm", 4_336_667),
        ("text8-milstm", 4_348_955),
        ("text8-gru", 3_259_419),
        ("text8-migru", 3_268_635),
        ("text8-second-order", 4_149_915),
        ("enwik8-lstm", 18_884_813),
        ("enwik8-milstm", 18_909_389),
    ],
)
def test_parameter_counts_are_those_of_the_rows(name, parameters):
    assert task.count(RECIPES[task.full(name, RECIPES)]) == parameters


def test_the_multiplicative_rnn_beside_them_is_of_the_same_size():
    assert task.count(RECIPES["charlm/text8-mrnn"]) == pytest.approx(4e6, rel=1e-3)


def test_recipes_hold_what_the_paper_states():
    ptb = RECIPES["exploratory/ptb-mirnn"]
    assert (ptb.hidden, ptb.length, ptb.schedule.lr, ptb.start.r_w, ptb.start.r_u) == (2048, 50, 1e-4, 0.02, 0.02)
    assert RECIPES["exploratory/ptb-linmirnn"].nonlinearity == "identity"
    assert [RECIPES[f"exploratory/ptb-rnn-rw{r}"].start.r_w for r in (0.1, 0.3, 0.6)] == [0.1, 0.3, 0.6]
    for name in ("text8-milstm", "enwik8-milstm"):
        assert RECIPES[f"charlm/{name}"].schedule.halve_after == 2
    assert RECIPES["charlm/text8-milstm"].start.alpha == 1.0 and RECIPES["charlm/text8-milstm"].start.beta1 == 0.5
    assert RECIPES["charlm/enwik8-milstm"].start.beta1 == 1.0


@pytest.mark.parametrize("name", ["ptb-mirnn", "text8-milstm", "enwik8-milstm"])
def test_a_twin_differs_in_the_block_alone(name):
    mi, plain = (RECIPES[task.full(one, RECIPES)] for one in (name, name.replace("-mi", "-")))
    different = {f.name for f in fields(mi) if getattr(mi, f.name) != getattr(plain, f.name)}
    assert different <= {"integration", "cite", "paper", "note"}


def test_the_other_spelling_of_the_corpus_has_the_same_rows_and_not_the_papers_number():
    both = [name for name, recipe in RECIPES.items() if recipe.corpus == "ptb-b"]
    assert len(both) == 13
    for name in both:
        other = RECIPES[name.replace("ptb-b-", "ptb-")]
        different = {f.name for f in fields(other) if getattr(other, f.name) != getattr(RECIPES[name], f.name)}
        assert different <= {"corpus", "cite", "paper", "note"} and RECIPES[name].paper is None


def test_the_grid_has_every_point_once():
    points = {
        (r.start.alpha, r.start.beta1, r.start.beta2, r.start.b)
        for name, r in RECIPES.items()
        if name == "exploratory/ptb-mirnn" or name.startswith("exploratory/ptb-mirnn-a")
    }
    assert points == {(a, b, b, 0.0) for a in (0.0, 0.5, 1.0, 2.0, 4.0) for b in (0.5, 1.0)}


def test_a_stand_in_is_named_as_one_and_never_carries_the_papers_number():
    for name, recipe in RECIPES.items():
        if recipe.corpus == "text8-74M":
            assert "74M" in name and recipe.paper is None and "stand-in" in recipe.note


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_every_recipe_trains_for_two_updates(name, text, tmp_path):
    small = ["hidden=6", "batch=4", "length=8", "evaluation_streams=2", "schedule.updates=2"]
    job = experiments.job(name, 0, small, text, False, None, "fp32")
    record = experiments.train(job, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert record["updates"] == 2 and 0 < record["value"] < 20


@pytest.mark.parametrize("carry", ["carry=true", "carry=false"])
def test_a_corpus_in_the_memory_of_a_gpu_gives_the_same_batches(text, monkeypatch, carry):
    own = task.job("charlm", 0, ["batch=4", "length=8", carry], text, False, None, "fp32")
    real = task.resident
    monkeypatch.setattr(task, "resident", lambda tokens, device: real(tokens, "cpu"))
    here, there = (task.CharTask(own, torch.device(kind)) for kind in ("cpu", "cuda"))
    assert isinstance(there.tokens("train"), torch.Tensor) and there.tokens("train") is there.tokens("train")
    for position in (0, 7, -1):
        for ours, theirs in zip(here.epoch(3, 0, 1)[position], there.epoch(3, 0, 1)[position], strict=True):
            assert torch.equal(ours, theirs)
    assert there.streams("valid").predicted == here.streams("valid").predicted == len(own.corpus.valid) - 1


# ---- overrides ----


def test_overrides_reach_every_setting_and_keep_its_type():
    recipe = apply(
        recipes.DEMO_MILSTM,
        [
            "hidden=64",
            "carry=true",
            "schedule.lr=0.5",
            "start.alpha=2",
            "reset_every=None",
            "schedule.updates=none",
            "cell=gru",
            "schedule.betas=0.8,0.95",
            "schedule.clip=None",
        ],
    )
    assert (recipe.hidden, recipe.carry, recipe.schedule.lr, recipe.start.alpha, recipe.cell) == (64, True, 0.5, 2.0, "gru")
    assert recipe.schedule.betas == (0.8, 0.95) and recipe.schedule.updates is None and recipe.schedule.clip is None
    assert type(recipe.hidden) is int and type(recipe.start.alpha) is float
    assert recipes.DEMO_MILSTM.hidden != 64, "recipes do not change"


@pytest.mark.parametrize(
    "change, message",
    [
        ("hiden=64", "no setting 'hiden'; there are corpus, cell, hidden, .*schedule.lr"),
        ("schedule=3", "no setting 'schedule'; there are"),
        ("schedule.lrr=3", "no setting 'schedule.lrr'; there are"),
        ("hidden.x=3", "no setting 'hidden.x'"),
        ("hidden=6.5", "hidden='6.5': expected a whole number"),
        ("schedule.lr=fast", "schedule.lr='fast': expected a number"),
        ("carry=maybe", "carry='maybe': expected true or false"),
        ("hidden", "--set takes key=value, got 'hidden'"),
        ("start.r_w=-1", "start.r_w='-1': Start: r_w must be a finite number"),
        ("schedule.lr=-1", "schedule.lr='-1': lr must be greater than zero, got -1.0"),
        ("schedule.updates=0", "updates must be greater than zero, got 0"),
        ("schedule.evaluate_every=0", "evaluate_every must be greater than zero"),
        ("schedule.betas=0.9", "betas must be two numbers"),
        ("dropout=2", "dropout='2': dropout must be a number from 0 to 1, got 2.0"),
        ("dropout=nan", "dropout must be a number from 0 to 1, got nan"),
        ("reset_every=0", "reset_every must be greater than zero, got 0"),
        ("evaluation_streams=0", "evaluation_streams must be greater than zero, got 0"),
        ("batch=-3", "batch must be greater than zero, got -3"),
    ],
)
@unchecked()
def test_a_wrong_override_is_named(change, message):
    with pytest.raises(RecipeError, match=message):
        apply(recipes.DEMO_MILSTM, [change])


def test_a_setting_inside_may_be_called_by_its_own_name():
    assert apply(recipes.DEMO_MILSTM, ["lr=0.5", "alpha=2"]) == apply(recipes.DEMO_MILSTM, ["schedule.lr=0.5", "start.alpha=2"])
    assert overrides.spelled(recipes.DEMO_MILSTM, [" lr = 0.5", "hidden=3"]) == ("schedule.lr=0.5", "hidden=3")


def test_a_value_the_recipe_has_already_is_no_change():
    hidden, lr = recipes.DEMO_MILSTM.hidden, recipes.DEMO_MILSTM.schedule.lr
    assert overrides.effective(recipes.DEMO_MILSTM, [f"hidden={hidden}", f"lr={lr}"]) == ()
    assert overrides.effective(recipes.DEMO_MILSTM, ["lr=0.5", f"hidden={hidden}"]) == ("schedule.lr=0.5",)
    assert overrides.effective(recipes.DEMO_MILSTM, ["hidden=3", f"hidden={hidden}"]) == ()


@pytest.mark.parametrize("name", ["enwik8", "text8", "text8-74M"])
def test_a_text_called_like_a_corpus_is_not_that_corpus(name, home, text):
    file = text.with_name(name)
    file.write_bytes(text.read_bytes())
    job = experiments.job("charlm", 0, [], file, False, None, "fp32")
    assert job.name == f"charlm/{name}-text-milstm"
    assert job.name not in experiments.RECIPES


def test_keys_lists_settings_inside_settings():
    names = overrides.keys(recipes.DEMO_MILSTM)
    assert "schedule.halve_after" in names and "start.orthogonal" in names and "schedule" not in names


NO_MODEL = ["integration=product", "cell=transformer", "hidden=0", "layers=-1", "nonlinearity=gelu"]


@pytest.mark.parametrize("change", NO_MODEL)
def test_settings_no_layer_takes_are_named_before_data_is_read(change, home, text):
    cell = [] if "nonlinearity" not in change else ["cell=rnn"]
    for name, file in (("ptb-mirnn", None), ("charlm", text)):
        with pytest.raises(RecipeError, match="no model of these settings"):
            experiments.job(name, 0, [*cell, change], file, False, None, "fp32")


def test_a_rate_that_ends_training_at_once_is_named(home, text):
    with pytest.raises(
        RecipeError, match="schedule.lr=5e-06 is below schedule.min_lr=1e-05, where training ends; set that lower too"
    ):
        experiments.job("charlm", 0, ["lr=5e-6"], text, False, None, "fp32")
    experiments.job("charlm", 0, ["lr=5e-6", "min_lr=1e-6"], text, False, None, "fp32")


def test_an_unknown_cell_lists_those_there_are(home, text):
    with pytest.raises(RecipeError, match="no cell 'gruu'; there are rnn, lstm, gru, mrnn, mlstm, second-order"):
        experiments.job("charlm", 0, ["cell=gruu"], text, False, None, "fp32")


def test_an_unknown_recipe_lists_those_there_are(home):
    with pytest.raises(RecipeError, match="no recipe 'ptb-transformer'; there are charlm/demo-lstm"):
        experiments.job("ptb-transformer", 0, [], None, False, None, "fp32")
