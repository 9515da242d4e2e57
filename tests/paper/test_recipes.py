"""Recipes are rows of the paper: sizes as counted, every one of them runs, and every setting can be changed."""

from dataclasses import fields, replace

import pytest
import torch
from helpers import unchecked

from multint.paper import experiments, numbers, overrides, record, session
from multint.paper.charlm import recipes, task
from multint.paper.charlm.corpus import prepare_text
from multint.paper.experiment import SAID, Team
from multint.paper.overrides import RecipeError, apply

RECIPES = experiments.recipes(["exploratory", "charlm"])
DEMO = recipes.RECIPES["demo-milstm"]


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
    assert task.count(experiments.find(name)[1]) == parameters


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
    mi, plain = (experiments.find(one)[1] for one in (name, name.replace("-mi", "-")))
    different = {f.name for f in fields(mi) if getattr(mi, f.name) != getattr(plain, f.name)}
    assert different - set(SAID) == {"integration"}


def test_every_twin_exists_and_differs_in_the_block_its_start_and_its_rate_alone():
    pairs = [(name, recipe, RECIPES[recipe.twin]) for name, recipe in RECIPES.items() if recipe.twin]
    assert len(pairs) > 40
    for name, mi, plain in pairs:
        assert plain.integration == "additive" and plain.twin is None and mi.scale in (plain.scale, ""), name
        same = replace(mi, integration="additive", start=plain.start, schedule=replace(mi.schedule, lr=plain.schedule.lr))
        assert record.settings(same) == record.settings(plain), name
        assert (mi.start.r_w, mi.start.r_u, mi.start.b) == (plain.start.r_w, plain.start.r_u, plain.start.b), name


def test_every_row_of_sections_3_1_and_3_2_has_a_recipe_at_the_papers_size_and_one_for_a_laptop():
    rows = {row.key for row in numbers.ROWS if row.key and row.panel in ("scale", "ptb", "text8", "hutter") and not row.over}
    for scale in ("paper", "laptop"):
        assert rows <= {recipe.row for recipe in RECIPES.values() if recipe.scale == scale}, scale
    for name, recipe in RECIPES.items():
        assert (recipe.scale == "laptop") == ("/laptop-" in name) == recipe.note.startswith("laptop: "), name


def test_experiments_name_only_settings_in_what_does_nothing():
    for name, recipe in RECIPES.items():
        assert set(recipe.idle()) <= set(overrides.keys(recipe)), name


def test_the_other_spelling_of_the_corpus_has_the_same_rows():
    both = [name for name, recipe in RECIPES.items() if recipe.corpus == "ptb-b"]
    assert len(both) == 13
    for name in both:
        other = RECIPES[name.replace("ptb-b-", "ptb-")]
        different = {f.name for f in fields(other) if getattr(other, f.name) != getattr(RECIPES[name], f.name)}
        assert different <= {"corpus", "cite", "note", "twin"} and RECIPES[name].row == other.row


def test_the_grid_has_every_point_once():
    points = {
        (r.start.alpha, r.start.beta1, r.start.beta2, r.start.b)
        for name, r in RECIPES.items()
        if name == "exploratory/ptb-mirnn" or name.startswith("exploratory/ptb-mirnn-a")
    }
    assert points == {(a, b, b, 0.0) for a in (0.0, 0.5, 1.0, 2.0, 4.0) for b in (0.5, 1.0)}


def test_a_stand_in_is_named_as_one():
    for name, recipe in RECIPES.items():
        if recipe.corpus == "text8-74M":
            assert "74M" in name and "stand-in" in recipe.note


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_every_recipe_trains_for_two_updates(name, text, tmp_path, monkeypatch):
    small = ["hidden=6", "batch=4", "length=8", "evaluation_streams=2", "schedule.updates=2"]
    monkeypatch.setattr(task, "prepare", lambda corpus, folder: replace(prepare_text(text), name=corpus, own=False))
    job = session.job(name, 0, small)
    found = session.train(job, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert found.updates == 2 and 0 < found.main.value < 20
    assert (found.row, found.twin, found.scale) == (RECIPES[name].row, RECIPES[name].twin, RECIPES[name].scale)


@pytest.mark.parametrize("carry", ["carry=true", "carry=false"])
def test_a_corpus_in_the_memory_of_a_gpu_gives_the_same_batches(text, monkeypatch, carry):
    own = session.job("charlm", 0, ["batch=4", "length=8", carry], {"text": text})
    real = task.resident
    monkeypatch.setattr(task, "resident", lambda tokens, device: real(tokens, "cpu"))
    here, there = (task.CharTask(own, torch.device(kind)) for kind in ("cpu", "cuda"))
    assert isinstance(there.tokens("train"), torch.Tensor) and there.tokens("train") is there.tokens("train")
    for position in (0, 7, -1):
        for ours, theirs in zip(here.epoch(3, Team())[position], there.epoch(3, Team())[position], strict=True):
            assert torch.equal(ours, theirs)
    assert there.streams("valid").predicted == here.streams("valid").predicted == len(own.data.valid) - 1


# ---- overrides ----


def test_overrides_reach_every_setting_and_keep_its_type():
    recipe = apply(
        DEMO,
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
    assert DEMO.hidden != 64, "recipes do not change"


@pytest.mark.parametrize(
    "change, message",
    [
        ("hiden=64", "no setting 'hiden'; there are schedule.lr, .*corpus, cell, hidden, "),
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
        apply(DEMO, [change])


def test_a_setting_inside_may_be_called_by_its_own_name():
    assert apply(DEMO, ["lr=0.5", "alpha=2"]) == apply(DEMO, ["schedule.lr=0.5", "start.alpha=2"])
    assert overrides.spelled(DEMO, [" lr = 0.5", "hidden=3"]) == ("schedule.lr=0.5", "hidden=3")


def test_a_value_the_recipe_has_already_is_no_change():
    hidden, lr = DEMO.hidden, DEMO.schedule.lr
    assert overrides.effective(DEMO, [f"hidden={hidden}", f"lr={lr}"]) == ()
    assert overrides.effective(DEMO, ["lr=0.5", f"hidden={hidden}"]) == ("schedule.lr=0.5",)
    assert overrides.effective(DEMO, ["hidden=3", f"hidden={hidden}"]) == ()


@pytest.mark.parametrize("name", ["enwik8", "text8", "text8-74M"])
def test_a_text_called_like_a_corpus_is_not_that_corpus(name, home, text):
    file = text.with_name(name)
    file.write_bytes(text.read_bytes())
    job = session.job("charlm", given={"text": file})
    assert job.name == "charlm/own-milstm" and job.recipe.row is None and job.data.own
    assert session.run_name(job) == session.run_name(session.job("charlm", given={"text": text}))


def test_keys_lists_settings_inside_settings():
    names = overrides.keys(DEMO)
    assert "schedule.halve_after" in names and "start.orthogonal" in names and "schedule" not in names


@pytest.mark.parametrize("change", ["row=ptb-rnn", "twin=none", "scale=paper", "cite=x", "note=x"])
def test_what_is_only_said_about_a_recipe_is_no_setting(change):
    with pytest.raises(RecipeError, match=f"no setting '{change.partition('=')[0]}'"):
        apply(DEMO, [change])


def test_a_corpus_beside_the_users_own_text_is_refused(text):
    with pytest.raises(RecipeError, match="corpus=... changes nothing beside data of your own"):
        session.job("charlm", 0, ["corpus=text8"], {"text": text})


def test_a_recipe_is_rebuilt_from_the_settings_of_its_run():
    changed = apply(DEMO, ["hidden=3", "schedule.betas=0.5,0.6", "start.b=0.25", "schedule.updates=7"])
    assert overrides.rebuilt(DEMO, record.settings(changed)) == changed
    with pytest.raises(ValueError, match="CharLM has no setting hiden"):
        overrides.rebuilt(DEMO, {"hiden": 3})


NO_MODEL = ["integration=product", "cell=transformer", "hidden=0", "layers=-1", "nonlinearity=gelu"]


@pytest.mark.parametrize("change", NO_MODEL)
def test_settings_no_layer_takes_are_named_before_data_is_read(change, home, text):
    cell = [] if "nonlinearity" not in change else ["cell=rnn"]
    for name, given in (("ptb-mirnn", {}), ("charlm", {"text": text})):
        with pytest.raises(RecipeError, match="no model of these settings"):
            session.job(name, 0, [*cell, change], given)


def test_a_rate_that_ends_training_at_once_is_named(home, text):
    with pytest.raises(
        RecipeError, match="schedule.lr=5e-06 is below schedule.min_lr=1e-05, where training ends; set that lower too"
    ):
        session.job("charlm", 0, ["lr=5e-6"], {"text": text})
    session.job("charlm", 0, ["lr=5e-6", "min_lr=1e-6"], {"text": text})


def test_an_unknown_cell_lists_those_there_are(home, text):
    with pytest.raises(RecipeError, match="no cell 'gruu'; there are rnn, lstm, gru, mrnn, mlstm, second-order"):
        session.job("charlm", 0, ["cell=gruu"], {"text": text})


def test_an_unknown_recipe_lists_those_there_are(home):
    with pytest.raises(RecipeError, match="no recipe 'ptb-transformer'; there are exploratory/ptb-rnn"):
        session.job("ptb-transformer")
