"""The evaluation of sentence encoders, beside slow and obvious versions of it."""

import numpy as np
import pytest
import torch
from sentences_made_up import THINGS, write_sets
from torch import nn
from torch.nn import functional as F

from multint.paper.obtain import DataError
from multint.paper.skipthought import linear, text, transfer
from multint.paper.skipthought.baselines import BagOfWords
from multint.paper.skipthought.labelled import Data, Pairs
from multint.paper.skipthought.transfer import SURFACE, any_encoder, evaluate


@pytest.fixture
def sets(data, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    monkeypatch.setattr(text, "versions", lambda: "made up")
    write_sets(data, monkeypatch)
    return Data(data)


def lengths(texts):
    return [[len(one), one.count(" "), 1.0] for one in texts]


# ---- everything ----


def test_an_encoder_that_sees_words_is_ahead_of_one_that_sees_lengths(sets):
    bags, blind = (
        {(one.metric.name, one.protocol): one for one in evaluate(encoder, sets)}
        for encoder in (BagOfWords(sets), any_encoder(lengths, "lengths"))
    )
    assert list(bags) == [
        *(("r", ""), ("rho", ""), ("mse", "")),
        *(("acc", ""), ("f1", ""), ("acc", SURFACE), ("f1", SURFACE)),
        *((name, "") for name in ("mr", "cr", "subj", "mpqa")),
    ]
    for (name, protocol), one in bags.items():
        assert one.split == "test" and one.n in (30, 40, 48, 52, 60, 80)
        if name not in ("acc", "f1"):
            assert one.metric.better(one.value, blind[name, protocol].value), name


def test_only_the_wanted_tasks_are_scored_and_a_line_tells_of_each(sets):
    told = []
    found = evaluate(any_encoder(lengths, "lengths"), sets, ["mr", "sick"], told.append)
    assert [one.dataset for one in found] == ["sick", "sick", "sick", "mr"]
    assert [line.partition(":")[0] for line in told] == ["sick", "mr"]
    with pytest.raises(DataError, match="no task 'trec'; there are sick"):
        evaluate(any_encoder(lengths, "lengths"), sets, ["trec"])


def test_two_evaluations_give_the_same_numbers(sets):
    one, other = (evaluate(BagOfWords(sets), sets) for _ in range(2))
    assert one == other


def test_a_text_that_occurs_often_is_encoded_once(sets):
    seen = []

    def encode(texts, task):
        seen.extend(texts)
        return torch.tensor(lengths(texts))

    pairs = sets.pairs("sick")
    found = transfer.of_pairs(encode, pairs, "sick")
    assert len(seen) == len(set(seen)) == len(sets.texts("sick"))
    u, v = (torch.tensor(lengths(side)) for side in (pairs["test"].a, pairs["test"].b))
    torch.testing.assert_close(found["test"], torch.cat([(u - v).abs(), u * v], 1))


@pytest.mark.parametrize(
    "gives, why",
    [
        (lambda texts: np.zeros((len(texts) - 1, 3)), r"an array of shape \(1, 3\) for 2 texts; give one row for each text"),
        (lambda texts: np.zeros(len(texts)), r"an array of shape \(2,\)"),
        (lambda texts: [[1.0, float("nan")]] * 2, "a vector with NaN or inf, the first for 'a'"),
    ],
)
def test_an_encoder_that_gives_something_else_is_named(gives, why):
    with pytest.raises(DataError, match=f"mine:encode gave {why}"):
        any_encoder(gives, "mine:encode")(["a", "b"], "mr")


def test_an_encoder_may_give_tensors_with_gradients_in_half_precision():
    found = any_encoder(lambda texts: torch.ones(len(texts), 2, dtype=torch.bfloat16, requires_grad=True), "mine")(["a"], "mr")
    assert found.dtype == torch.float32 and not found.requires_grad


# ---- SICK ----


def test_a_number_is_a_distribution_over_the_grades_around_it():
    found = transfer.soft_grades(np.array([3.6, 1.0, 5.0]))
    torch.testing.assert_close(found, torch.tensor([[0, 0, 0.4, 0.6, 0], [1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]]))


def test_the_softmax_is_trained_as_torch_trains_it(monkeypatch):
    """One block beside torch's own layers and optimiser, from the same weights."""
    monkeypatch.setattr(transfer, "BLOCK", 7)
    x, y = torch.randn(150, 6), np.random.default_rng(0).uniform(1, 5, 150)
    predict = transfer.graded(x, y, x[:40], y[:40], blocks=1)
    layer = nn.Linear(6, 5)
    bound = (6 / (6 + 5)) ** 0.5
    with torch.no_grad():
        layer.weight.copy_(torch.empty(6, 5).uniform_(-bound, bound, generator=torch.Generator().manual_seed(linear.SEED)).T)
        layer.bias.zero_()
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(7):
        for rows in (slice(0, 128), slice(128, 150)):
            adam.zero_grad()
            F.cross_entropy(layer(x[rows]), transfer.soft_grades(y)[rows]).backward()
            adam.step()
    expected = layer(x).detach().double().softmax(1) @ torch.arange(1.0, 6.0, dtype=torch.float64)
    np.testing.assert_allclose(predict(x), expected.numpy(), atol=1e-5)


def test_training_ends_when_validation_does_not_improve_and_keeps_the_best(monkeypatch):
    found = iter([0.3, 0.5, 0.4, 0.9])
    weights = []

    def told(x, w):
        weights.append(w.clone())
        return np.zeros(len(x))

    monkeypatch.setattr(transfer, "BLOCK", 1)
    monkeypatch.setattr(transfer, "pearson", lambda a, b: next(found))
    monkeypatch.setattr(transfer, "_expected", told)
    predict = transfer.graded(torch.randn(8, 3), np.full(8, 2.5), torch.randn(4, 3), np.full(4, 2.5))
    assert len(weights) == 3 and next(found) == 0.9
    predict(torch.randn(2, 3))
    torch.testing.assert_close(weights[3], weights[1])  # those of the block with r = 0.5


def test_correlations_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy judges the correlations")
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=50), draw.integers(1, 6, 50).astype(float)
    found = transfer.agreement(a, b)
    assert found["r"] == pytest.approx(stats.pearsonr(a, b)[0], abs=1e-12)
    assert found["rho"] == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-12)
    assert found["mse"] == pytest.approx(((a - b) ** 2).mean())
    assert transfer.pearson(np.zeros(4), b[:4]) == 0.0


# ---- MSRP ----


def test_paraphrases_are_judged_as_with_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn judges the classifiers")
    from sklearn.metrics import f1_score
    from sklearn.model_selection import KFold

    draw = np.random.default_rng(0)
    x = draw.normal(size=(130, 8)).astype(np.float32)
    y = x @ draw.normal(size=8) + draw.normal(size=130) > -0.5
    train, test = slice(0, 90), slice(90, 130)
    found = transfer.paraphrases(torch.from_numpy(x[train]), y[train], torch.from_numpy(x[test]), y[test])

    def fitted(rows, strength):
        return linear_model.LogisticRegression(C=strength, solver="liblinear", tol=1e-8).fit(x[train][rows], y[train][rows])

    folds = list(KFold(10, shuffle=True, random_state=1234).split(x[train]))
    means = [
        np.mean([f1_score(y[train][b], fitted(a, strength).predict(x[train][b])) for a, b in folds])
        for strength in linear.STRENGTHS
    ]
    last = fitted(np.arange(90), linear.STRENGTHS[int(np.argmax(means))])
    assert found[transfer.ACCURACY] == pytest.approx(100 * last.score(x[test], y[test]))
    assert found[transfer.F1] == pytest.approx(100 * f1_score(y[test], last.predict(x[test])))


def test_f1_is_zero_where_nothing_is_positive():
    none = np.zeros(3, bool)
    assert transfer.f1(none, none) == 0.0
    assert transfer.f1(np.array([True, True, False]), np.array([True, False, True])) == pytest.approx(0.5)


def test_surface_features_count_numerals_and_shared_tokens():
    pairs = Pairs(("sold 3 boats in 1998", "one two"), ("3 boats", "one 7"), np.array([1.0, 0.0]))
    found = transfer.surfaces(pairs, str.split)
    np.testing.assert_allclose(found[0], [0, 0, 1, 2 / 5, 2 / 2, (5 / 2 + 2 / 5) / 2])
    np.testing.assert_allclose(found[1], [0, 0, 1, 1 / 2, 1 / 2, 1])
    same = Pairs(("7 a",), ("b 7",), np.array([1.0]))
    assert transfer.surfaces(same, str.split)[0, :3].tolist() == [1, 1, 1]


# ---- two classes ----


def test_rows_are_shuffled_before_they_are_cut(sets):
    """Unshuffled, most folds would hold one class alone."""
    texts = sets.classes("mr")
    (found,) = transfer.classes("mr", BagOfWords(sets), texts)
    assert found.n == 80 and 60 < found.value <= 100


def test_things_are_no_hint_of_the_class(sets):
    def things(texts):
        return [[float(thing in one) for thing in THINGS] for one in texts]

    (found,) = transfer.classes("subj", any_encoder(things, "things"), sets.classes("subj"))
    assert found.value < 70
