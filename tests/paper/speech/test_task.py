"""What is trained and scored: CTC over characters, on speech of tones."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tones import UNITS, speech

from multint import MILSTM, Start
from multint.paper import session
from multint.paper.experiment import Job, Team
from multint.paper.obtain import DataError
from multint.paper.speech import task as task_module
from multint.paper.speech.corpus import prepare
from multint.paper.speech.model import described
from multint.paper.speech.recipes import OWN, RECIPES, additive
from multint.paper.speech.task import SpeechTask, best, build, count, rates
from multint.paper.speech.utterances import SPACE, Units

SMALL = replace(OWN, hidden=16, layers=1, stack=2, noise=0.0, utterances=8)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTINT_CACHE", str(folder / "cache"))
        yield prepare(speech(folder / "audio", (48, 6, 12)))


def a_task(corpus, recipe=SMALL) -> SpeechTask:
    return SpeechTask(Job("speech/own", recipe, 0, "fp32", corpus), CPU)


def test_the_paper_s_models_have_as_many_parameters_as_counted_by_hand():
    assert count(RECIPES["wsj-lstm"]) == 8_547_900
    assert count(RECIPES["wsj-milstm"]) == 8_578_620


def test_every_recipe_builds_and_twins_differ_in_the_integration_alone():
    for name, recipe in RECIPES.items():
        assert count(recipe) > 0, name
        if recipe.twin:
            plain = RECIPES[recipe.twin.removeprefix("speech/")]
            same = {"integration", "row", "twin", "cite", "note", "schedule", "start"}
            assert replace(recipe, **{k: getattr(plain, k) for k in same}) == plain, name
            assert plain.integration == "additive"


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_every_recipe_trains_for_two_updates(name, tones, tmp_path, monkeypatch):
    monkeypatch.setattr(task_module.corpora, "load", lambda *_: None)
    monkeypatch.setattr(task_module, "prepare", lambda *_: replace(tones, name=RECIPES[name].corpus, own=False))
    monkeypatch.setattr(task_module.SpeechTask, "graph", lambda self: None)
    job = session.job(f"speech/{name}", 0, ["hidden=5", "utterances=3", "stack=2", "schedule.updates=2"])
    found = session.train(job, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert found.updates == 2 and found.main.value > 0
    assert (found.row, found.twin, found.scale) == (RECIPES[name].row, RECIPES[name].twin, RECIPES[name].scale)


def test_the_loss_is_minus_the_log_probability_of_all_ways_to_write_the_labels(tones):
    """Beside the sum over all paths through three steps."""
    log_probs = torch.randn(3, 6, dtype=torch.float64).log_softmax(-1)
    total = sum(
        log_probs[range(3), path].sum().exp()
        for path in map(list, product(range(6), repeat=3))
        if [k for k, before in zip(path, [0, *path], strict=False) if k and k != before] == [2, 3]
    )

    class Fixed(torch.nn.Module):
        def forward(self, x, lengths):
            return log_probs[:, None].float().requires_grad_()

    one = next(iter(a_task(tones).epoch(0, Team())))
    given = one._replace(lengths=torch.tensor([3]), labels=torch.tensor([2, 3]), counts=torch.tensor([2]))
    loss, state = a_task(tones).loss(Fixed(), given, None)
    assert state is None and loss.count == 2
    torch.testing.assert_close(loss.total.double(), -total.log())
    torch.testing.assert_close(loss.value * 2, loss.total)


def test_padding_changes_neither_loss_nor_outputs(tones):
    task = a_task(tones)
    model = task.build().eval()
    split = tones.splits["train"]
    many = task_module.batch(split, [0, 1, 2], task.recipe.form)
    log_probs = model(many.x, many.lengths)
    for k, i in enumerate(sorted([0, 1, 2], key=lambda i: -int(split.lengths[i]))):
        one = task_module.batch(split, [i], task.recipe.form)
        torch.testing.assert_close(model(one.x, one.lengths)[:, 0], log_probs[: int(many.lengths[k]), k], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.posteriors(one.x[:, 0])[0], log_probs[: int(many.lengths[k]), k], atol=1e-5, rtol=1e-5)


def test_noise_is_on_weights_and_in_training_alone(tones):
    task = a_task(tones, replace(SMALL, noise=0.5))
    model = task.build()
    before = {name: p.clone() for name, p in model.named_parameters()}
    one = task.epoch(0, Team())[0]
    torch.manual_seed(1)
    noisy = [task.loss(model.train(), one, None)[0].value.item() for _ in range(2)]
    calm = [task.loss(model.eval(), one, None)[0].value.item() for _ in range(2)]
    assert noisy[0] != noisy[1] and calm[0] == calm[1]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_noise_leaves_the_layers_on_the_compiled_loop(tones, compiled_loop, ran):
    task = a_task(tones, replace(SMALL, noise=0.05))
    model = task.build().train()
    task.loss(model, task.epoch(0, Team())[0], None)[0].value.backward()
    assert set(ran) == {"cpu"}
    assert all(p.grad is not None for p in model.parameters())


def test_a_model_of_tones_learns_to_spell(tones):
    task = a_task(tones)
    torch.manual_seed(0)
    model = task.build()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for epoch in range(30):
        for one in task.epoch(epoch, Team()):
            optimizer.zero_grad()
            task.loss(model.train(), one, None)[0].value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    cer, graphed, wer = task.results(model.eval(), Team())
    assert cer.value < 8 and graphed.value <= wer.value < 25  # from 100 before
    assert (graphed.protocol, wer.protocol) == ("graph", "greedy")
    assert (cer.metric.name, cer.protocol, cer.split) == ("cer", "greedy", "test")
    found = task.measure(model)["test"]["greedy"]["characters"]
    assert 100 * sum(found["errors"]) / sum(found["lengths"]) == pytest.approx(cer.value)
    assert cer.n == sum(found["lengths"])


def test_without_a_graph_the_record_says_why(tones, monkeypatch, caplog):
    def missing(*_, **__):
        raise DataError("no wheels here")

    monkeypatch.setattr(task_module.language, "graph_of", missing)
    task = a_task(tones)
    model = task.build().eval()
    assert [one.protocol for one in task.results(model, Team())] == ["greedy", "greedy"]
    assert task.measure(model)["graph"] == {"missing": "no wheels here"} and "without a graph: no wheels here" in caplog.text


def test_processes_share_the_scoring(tones):
    task = a_task(tones)
    model = task.build().eval()
    alone = task.scores(model, "valid", Team())
    parts = [task.scores(model, "valid", Team(rank, 2)) for rank in (0, 1)]
    for name, one in alone.items():
        assert sum(part[name].total for part in parts) == pytest.approx(one.total)
        assert sum(part[name].count for part in parts) == one.count


def test_utterances_that_cannot_be_written_in_their_steps_are_left_out_and_counted(tones, caplog):
    split = tones.splits["train"]
    labels = list(split.labels)
    labels[3], labels[5] = (1, 1) * 200, ()
    crowded = replace(tones, splits={**tones.splits, "train": replace(split, labels=tuple(labels))})
    task = a_task(crowded)
    assert set(range(48)) - set(task.usable) == {3, 5}
    assert "2 of 48 training utterances have no words or more characters than steps" in caplog.text
    assert "are left out: train-3, train-5" in caplog.text
    assert task.measure(task.build())["left_out"] == 2


def test_an_utterance_without_frames_is_heard_as_nothing(tones):
    split = tones.splits["test"]
    starts = split.starts.copy()
    starts[1] = 0
    starts[0] = 0
    silent = replace(tones, splits={**tones.splits, "test": replace(split, starts=starts)})
    task = a_task(silent)
    model = task.build().eval()
    assert dict(task.posteriors(model, silent.splits["test"], [0, 1]))[0].shape == (0, 1 + len(UNITS))
    assert all(np.isfinite(one.value) for one in task.results(model, Team()))


def test_the_best_path_loses_repetitions_and_blanks():
    path = torch.tensor([0, 2, 2, 0, 2, 3, 3, 0, 1])
    assert best(torch.nn.functional.one_hot(path, 5).float()) == [2, 2, 3, 1]
    assert best(torch.zeros(0, 5)) == []


def test_rates_count_spaces_as_characters():
    found = rates([("AB", "D"), ("E",)], [("AB", "E"), ()])
    assert (found["cer"].total, found["cer"].count) == (200.0, 5)
    assert (found["wer"].total, found["wer"].count) == (200.0, 3)


def test_the_model_is_built_from_its_description_alone(tones):
    recipe = replace(SMALL, start=Start(1.0, 0.5, 0.5, 0.0, r_w=0.1, r_u=0.1))
    task = a_task(tones, recipe)
    torch.manual_seed(0)
    one = task.build()
    torch.manual_seed(0)
    two = described(task.description())
    assert two.units == UNITS and two.form == recipe.form
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert isinstance(build(additive(recipe), UNITS).core, MILSTM)


def test_units_spell_words_and_read_them_back():
    units = Units(("<NOISE>", "A", "B", SPACE, "<UNK>"), whole=("<NOISE>",), unknown="<UNK>")
    ids = units.encode(("AB", "<NOISE>", "B", "XY"))
    assert ids == [2, 3, 4, 1, 4, 3, 4, 5]
    assert units.words([0, *ids, 0]) == ("AB", "<NOISE>", "B", "<UNK>")
    assert units.scored(units.words(ids)) == ("AB", "B")
    with pytest.raises(ValueError, match=r"the word 'XA' has characters without a unit \('X'\)"):
        Units(("A", SPACE)).encode(("XA",))
