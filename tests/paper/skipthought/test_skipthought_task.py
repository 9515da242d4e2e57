"""What is trained and scored in §3.4, from recipes to records, on books and tasks of a made-up language."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from killing import assert_same_to_the_bit, in_a_child
from safetensors.numpy import load_file
from sentences_made_up import BAD, GOOD, made_up, sentence, write_sets

from multint.paper import session
from multint.paper.__main__ import main
from multint.paper.experiment import Job, Schedule, Team
from multint.paper.export import export
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.skipthought import books, task, text, transfer
from multint.paper.skipthought.adam import AuthorsAdam
from multint.paper.skipthought.corpus import LIMIT, prepare
from multint.paper.skipthought.encoder import load
from multint.paper.skipthought.labelled import Data
from multint.paper.skipthought.recipes import CODE, OWN, RECIPES
from multint.paper.skipthought.softmax import NOTHING
from multint.paper.skipthought.task import Material, SkipThoughtTask, check, count

CPU = torch.device("cpu")
SMALL = replace(
    OWN,
    vocabulary=20,
    width=6,
    hidden=8,
    batch=8,
    schedule=Schedule(lr=0.01, clip=5.0, epochs=100, updates=12, evaluate_every=4, halve_after=None, stop_after=None, min_lr=1e-9),
)
CHANGES = (
    *("vocabulary=20", "width=6", "hidden=8", "batch=8", "schedule.lr=0.01"),
    *("schedule.updates=12", "schedule.evaluate_every=4"),
)


@pytest.fixture
def sets(data, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    monkeypatch.setattr(text, "versions", lambda: "made up")
    monkeypatch.setattr(transfer, "BLOCK", 20)
    monkeypatch.setattr(transfer, "BLOCKS", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    write_sets(data, monkeypatch)
    return Data(data)


@pytest.fixture
def tales(sets, tmp_path):
    """One sentence a line, about as many as two epochs of twelve updates need."""
    choose = random.Random(5)
    lines = [sentence(choose, choose.choice((GOOD, BAD, ()))) for _ in range(80)]
    path = tmp_path / "tales.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def a_task(sets, recipe=SMALL, device=CPU) -> SkipThoughtTask:
    return SkipThoughtTask(Job("skipthought/own", recipe, 0, "fp32", Material(made_up(), sets)), device)


# ---- recipes ----


def test_every_recipe_builds_and_twins_differ_in_the_integration_alone():
    for name, recipe in RECIPES.items():
        assert count(recipe) > 0, name
        if recipe.twin:
            plain = RECIPES[recipe.twin.removeprefix("skipthought/")]
            same = {"integration", "row", "twin", "cite", "note"}
            assert replace(recipe, **{k: getattr(plain, k) for k in same}) == plain, name
            assert plain.integration == "additive"


def test_the_paper_s_models_have_the_parameters_of_the_authors():
    assert count(RECIPES["uni-skip"]) == 125_673_600
    assert count(RECIPES["mi-uni-skip"]) == 125_695_200
    assert RECIPES["mi-uni-skip"].start == CODE and RECIPES["mi-uni-skip"].reset_after


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"vocabulary": 2}, "vocabulary must be at least 3, got 2"),
        ({"adam": "sgd"}, "adam is standard or authors, got 'sgd'"),
        ({"tasks": ("sick", "trec")}, "tasks are sick and others of sick, msrp, mr, cr, subj, mpqa, got sick, trec"),
        ({"tasks": ("mr",)}, "tasks are sick and others"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        replace(SMALL, **changes)


def test_a_model_that_cannot_be_is_refused_before_data_is_read():
    with pytest.raises(RecipeError, match="an even number of units, got 9"):
        check(replace(SMALL, hidden=9, bidirectional=True))


def test_settings_that_do_nothing_are_known():
    assert "start.alpha" in replace(SMALL, integration="additive").idle() and not SMALL.idle()


# ---- the task ----


def test_the_loss_is_a_sum_and_the_curve_shows_it_per_word(sets):
    one = a_task(sets)
    model, batch = one.build(), one.epoch(0, Team())[1]
    loss, state = one.loss(model, batch, None)
    words = len(batch.after.wanted) + len(batch.before.wanted)
    assert state is None and int(loss.count) == words and one.work(batch) == batch.x.shape[1]
    torch.testing.assert_close(loss.value, loss.total)
    assert loss.total.item() / words == pytest.approx(math.log(20), rel=0.2)  # at the start every word is as likely


def test_two_processes_together_have_the_loss_of_one(sets):
    whole, model = a_task(sets), None
    position = next(k for k in range(20) if whole.epoch(0, Team())[k].x.shape[1] == 8)
    parts = []
    for rank in range(2):
        one = a_task(sets)
        torch.manual_seed(0)
        model = one.build()
        parts.append(one.loss(model, one.epoch(0, Team(rank, 2))[position], None)[0])
    expected = whole.loss(model, whole.epoch(0, Team())[position], None)[0]
    torch.testing.assert_close((parts[0].value + parts[1].value) / 2, expected.value)  # gradients of processes are averaged
    assert sum(int(part.count) for part in parts) == int(expected.count)


def test_on_a_gpu_few_shapes_occur_and_the_last_batch_of_a_length_runs_by_itself(sets):
    one = a_task(sets, device=torch.device("cuda"))
    batches = one.epoch(0, Team())
    keys = {one.capture_key(batches[k]) for k in range(len(batches))}
    assert None in keys and 1 < len(keys - {None}) <= LIMIT // 2
    for k in range(len(batches)):
        shape = batches[k].after.words.shape
        assert shape[0] == LIMIT and (batches[k].after.wanted == NOTHING).any()
    assert a_task(sets, replace(SMALL, bidirectional=True), torch.device("cuda")).epoch(0, Team())[0].x.shape[0] in range(2, 11)


def test_either_adam_is_the_optimiser(sets):
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    how = {"lr": 0.01, "capturable": False, "fused": False, "foreach": True}
    standard = a_task(sets).optimizer(parameters, SMALL.schedule, **how)
    authors = a_task(sets, replace(SMALL, adam="authors")).optimizer(parameters, SMALL.schedule, **how)
    assert isinstance(standard, torch.optim.Adam) and isinstance(authors, AuthorsAdam)
    assert standard.param_groups[0]["lr"] == authors.param_groups[0]["lr"] == 0.01


def test_validation_is_sick_and_its_test_pairs_make_the_curve(sets):
    one = a_task(sets)
    model = one.build().eval()
    scores = one.scores(model, "valid", Team())
    observed = one.observe(model)
    assert scores["mse"].count == 20 and set(observed) == set(one.observed)
    assert one.latest.valid["mse"] == pytest.approx(scores["mse"].total / 20)
    assert observed["test_r"] == pytest.approx(one.latest.test["r"], rel=1e-5)


def test_results_are_all_of_table_2_and_unknown_words_are_measured(sets):
    one = a_task(sets)
    model = one.build().eval()
    found = one.results(model, Team())
    assert [result.metric.name for result in found] == ["r", "rho", "mse", "acc", "f1", "acc", "f1", "mr", "cr", "subj", "mpqa"]
    unknown = one.measure(model)["unknown"]
    assert set(unknown) == {"books", *one.recipe.tasks} and 0 < unknown["books"] < 1
    assert unknown["mr"] == 1.0  # made_up() has other words than the sets
    few = a_task(sets, replace(SMALL, tasks=("sick", "cr")))
    assert [result.dataset for result in few.results(model, Team())] == ["sick"] * 3 + ["cr"]


def test_a_vocabulary_larger_than_the_books_have_is_refused(sets):
    with pytest.raises(DataError, match="made-up has a vocabulary of 42, not 50; --set vocabulary=42"):
        a_task(sets, replace(SMALL, vocabulary=50))


# ---- data ----


def test_what_a_task_lacks_is_said_before_training(sets, tales, data):
    (data / "mpqa" / "mpqa.neg").unlink()
    with pytest.raises(DataError, match=r"mpqa: no mpqa.neg at .*; or score on fewer tasks"):
        task.data(SMALL, data, {"tokens": tales})
    found = task.data(replace(SMALL, tasks=("sick",)), data, {"tokens": tales})
    assert found.own and found.form == "tokens" and found.name == "tales.txt"


def test_two_corpora_at_once_are_refused(sets, tales, data):
    with pytest.raises(DataError, match="name one corpus: --books or --tokens"):
        task.data(SMALL, data, {"books": tales, "tokens": tales})


# ---- a run ----


def train(tales, root, changes=CHANGES, **settings):
    job = session.job("skipthought", 0, changes, {"tokens": tales})
    return session.train(job, root / "runs", root / "results", device="cpu", **settings)


@pytest.fixture
def run(tales, tmp_path):
    record = train(tales, tmp_path / "one")
    return tmp_path / "one" / "runs" / record.run, record


def test_a_run_is_recorded_exported_loaded_and_reported(run, tales, tmp_path):
    folder, record = run
    assert record.recipe == "skipthought/own-mi-uni-skip" and record.twin == "skipthought/own-uni-skip" and record.updates == 12
    assert {one.dataset for one in record.results} == {"sick", "msrp", "mr", "cr", "subj", "mpqa"}
    assert record.throughput.unit == "triples" and 0 < record.measured["unknown"]["books"] < 0.1
    lines = (folder / "curve.csv").read_text().splitlines()
    assert lines[0].endswith("r,rho,test_mse,test_r,test_rho") and len(lines) == 4
    encoder = load(export(folder, tmp_path / "model"))
    model = session.load(folder)
    sentences = [["The", "dog", "is", "plain"], ["boat"]]
    assert torch.equal(encoder.encode(sentences), model.encoder.encode(sentences))
    again = session.evaluate(folder, None, "cpu")
    assert [(one.metric.name, round(one.value, 5)) for one in again[3:]] == [(o.metric.name, o.value) for o in record.results]


def test_a_run_that_is_killed_ends_with_the_same_bits(tales, tmp_path, monkeypatch):
    train(tales, tmp_path / "whole")
    real, calls = SkipThoughtTask.work, iter(range(1, 1000))

    def work(self, batch):
        if next(calls) == 7:
            os.kill(os.getpid(), 9)
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(SkipThoughtTask, "work", work)
        assert not in_a_child(lambda: train(tales, tmp_path / "killed", save_every=0.0))
    assert any((tmp_path / "killed").rglob("0*.safetensors"))
    train(tales, tmp_path / "killed")
    assert_same_to_the_bit(tmp_path / "whole", tmp_path / "killed")


def test_training_lowers_the_loss(sets, tales, tmp_path):
    train(tales, tmp_path / "one", (*CHANGES[:-2], "schedule.updates=60", "schedule.evaluate_every=20", "tasks=sick"))
    (path,) = (tmp_path / "one").rglob("curve.csv")
    losses = [float(line.split(",")[5 - 1]) for line in path.read_text().splitlines()[1:]]
    assert losses[-1] < 0.8 * losses[0] < math.log(20)


# ---- commands ----


def invoke(*words):
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    return ran


def test_encode_writes_a_vector_for_every_line(run, tmp_path):
    folder, _ = run
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"The dog is plain .\n\nA caf\xe9 .\nThe dog is plain .\n")
    said = invoke("encode", folder, lines)
    assert "1 bytes are not UTF-8" in said.stderr and "1 lines are empty" in said.stderr and "4 of 4 sentences" in said.stderr
    found = np.load(tmp_path / "lines.txt.npy")
    assert found.shape == (4, 8) and found.dtype == np.float32
    assert (found[0] == found[3]).all() and not found[1].any()
    np.testing.assert_allclose(np.linalg.norm(found[[0, 2]], axis=1), 1.0, rtol=1e-5)
    invoke("encode", folder, lines, "--out", tmp_path / "v.safetensors", "--eos")
    assert (load_file(tmp_path / "v.safetensors")["vectors"] != found).any()
    refused = CliRunner().invoke(main, ["encode", str(folder), str(lines), "--out", "v.csv"])
    assert refused.exit_code == 2 and "ends in .npy or .safetensors, not v.csv" in refused.stderr
    absent = CliRunner().invoke(main, ["encode", str(folder), str(tmp_path / "absent.txt")])
    assert absent.exit_code == 2 and "cannot read" in absent.stderr


def test_nearest_shows_the_sentence_itself_first(run, tmp_path):
    folder, _ = run
    lines = tmp_path / "lines.txt"
    lines.write_text("The dog is plain .\nboat\nhouse near river\n")
    said = invoke("nearest", folder, lines, "boat", "--count", 2).stdout.splitlines()
    assert said[0] == "1.000  boat" and len(said) == 2


def test_transfer_scores_a_run_and_several_side_by_side(run, sets):
    folder, record = run
    said = invoke("transfer", "--encoder", folder, "--tasks", "sick,cr").stdout
    for one in record.results:
        if one.dataset in ("sick", "cr"):
            assert f"{one.value:8.4f}" in said
    invoke("transfer", "--encoder", folder, "--encoder", folder, "--tasks", "cr")


def test_word_vectors_serve_words_that_a_run_does_not_know(run, tmp_path):
    folder, _ = run
    path = tmp_path / "vectors.txt"
    given = ["dog", "boat", "is", "cold", "zebra"]
    path.write_text("".join(f"{word} {k} {k * k}\n" for k, word in enumerate(given)))
    both = set(given) & set(json.loads((folder / "model.json").read_text())["model"]["words"])
    assert len(both) > 1 and "zebra" not in both
    lines = tmp_path / "lines.txt"
    lines.write_text("zebra\nunheard\n")
    invoke("encode", folder, lines)
    before = np.load(tmp_path / "lines.txt.npy")
    assert (before[0] == before[1]).all()
    assert f"{len(both)} words are known to both" in invoke("encode", folder, lines, "--vectors", path).stderr
    after = np.load(tmp_path / "lines.txt.npy")
    assert (after[1] == before[1]).all() and (after[0] != before[0]).any()
    invoke("transfer", "--encoder", folder, "--tasks", "cr", "--vectors", path)


def test_an_encoder_that_no_run_trained_leaves_a_record(sets, tmp_path):
    words = ("transfer", "--encoder", "bag-of-words", "--tasks", "sick,mr", "--record", "bag-of-words", "--results", tmp_path / "r")
    assert "recorded as skipthought/bag-of-words-" in invoke(*words).stdout
    (line,) = (tmp_path / "r" / "runs.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert [one["metric"]["name"] for one in found["results"]] == ["r", "rho", "mse", "mr"]
    assert found["config"]["encoder"] == "bag-of-words" and found["updates"] is None


def test_averages_of_the_books_own_counts_are_a_baseline(sets, tales, monkeypatch):
    from multint.paper.skipthought import corpora, counted, encoders

    corpus = prepare(books.own(tales, "tokens"))
    found = counted.vectors(corpus, words=12, size=5)
    assert list(found) == list(corpus.words[:12]) and all(vector.shape == (5,) for vector in found.values())
    monkeypatch.setattr(corpora, "load", lambda name, data: books.own(tales, "tokens"))
    (one,) = transfer.evaluate(encoders.named("averaged:books-275", sets, ["mr"]), sets, ["mr"])
    assert one.value > 60


def test_neighbours_are_counted_as_by_hand(sets, tmp_path):
    from multint.paper.skipthought import counted

    (tmp_path / "t.txt").write_text("a b c\na b\nc a\n")
    corpus = prepare(books.own(tmp_path / "t.txt", "tokens"))
    assert corpus.words == ("a", "b", "c")
    ab, ac, bc = 1.0 + 1.0, 0.5 + 1.0, 1.0  # next to each other 1, one apart a half
    np.testing.assert_allclose(counted.neighbours(corpus, 3, 2), [[0, ab, ac], [ab, 0, bc], [ac, bc, 0]])


def test_data_lists_books_and_sets(sets):
    said = invoke("data", "list").stdout
    assert "books-275" in said and "stands for bookcorpus: 275 public-domain books" in said and "is a sentence on a film" in said
    assert "tokens prepared" in invoke("data", "get", "cr").stdout
    assert "tokens prepared" in invoke("data", "verify", "cr").stdout


def test_commands_work_in_a_process_of_their_own(run, tmp_path):
    """As a user runs them, without anything that a test replaced."""
    folder, _ = run
    (tmp_path / "an_encoder.py").write_text("def encode(texts):\n    return [[float(len(t))] for t in texts]\n")
    code = f"from multint.paper.skipthought.encoder import load\nprint(load({str(folder)!r}).encode([['dog']]).shape)"
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "torch.Size([1, 8])", ran.stderr
