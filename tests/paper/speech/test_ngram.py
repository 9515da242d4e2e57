"""Language models are those of lmplz: a slow one made of dictionaries is the judge, and lmplz itself where there is one."""

import itertools
import math
import shutil
import subprocess

import grams
import numpy as np
import pytest
from grams import natural, table_of
from hypothesis import given
from hypothesis import strategies as st

from multint.paper.obtain import DataError
from multint.paper.speech import arpa, ngram
from multint.paper.speech.ngram import estimate

WORDS = ["SEA", "SHE", "SELLS", "SHELLS", "BY", "THE", "SHORE", "A"]
texts = st.lists(st.lists(st.sampled_from(WORDS[:4]), max_size=5).map(" ".join), min_size=1, max_size=12)


def assert_same(model, judge, tolerance=1e-9):
    found = table_of(model)
    assert found.keys() == judge.keys()
    for gram, (p, b) in judge.items():
        assert found[gram] == pytest.approx((math.log10(p), math.log10(max(b, 1e-99))), abs=tolerance), gram


@given(texts, st.integers(1, 5), st.lists(st.integers(0, 2), max_size=4).map(sorted))
def test_a_model_is_that_of_the_formulas(sentences, order, prune):
    thresholds = [0, *prune][:order]
    model = estimate(sentences, order, words=WORDS[:3], prune=thresholds)
    full = [*thresholds, *[thresholds[-1]] * order][:order]
    judge, _ = grams.kneser_ney(sentences, order, WORDS[:3], full)
    assert_same(model, judge)


@pytest.mark.parametrize("order, prune", [(1, ()), (2, (0,)), (3, (0, 0, 1)), (3, (0, 1, 3)), (4, (0, 0, 1)), (5, ())])
def test_a_model_of_natural_text_has_estimated_discounts(order, prune):
    sentences, said = natural(400), []
    model = estimate(sentences, order, at_least=2, prune=prune, say=said.append)
    vocabulary = [word for word in model.words if word not in ngram.SPECIAL]
    thresholds = [*prune, *[prune[-1] if prune else 0] * order][:order]
    judge, discounts = grams.kneser_ney(sentences, order, vocabulary, thresholds)
    assert_same(model, judge)
    for n, amounts in enumerate(discounts, start=1):
        if n in (2, 3):  # 1-grams of few kinds of words, and long n-grams of a short text, have unnatural counts
            assert f"discounts of {n}-grams: " + " ".join(f"{d:.4f}" for d in amounts) in said


def test_the_probabilities_after_every_history_sum_to_one(tmp_path):
    model = estimate(natural(60, kinds=12), 3, at_least=2, prune=(0, 0, 1))
    arpa.write(model, tmp_path / "m.arpa")
    table = grams.read(tmp_path / "m.arpa")
    words = [word for word in model.words if word != "<s>"]
    histories = [h for n in (0, 1, 2) for h in itertools.product(model.words, repeat=n) if "</s>" not in h and "<s>" not in h[1:]]
    assert len(histories) > 100 and len(table) > 100
    for history in histories:
        assert math.fsum(10 ** grams.score(table, history, word) for word in words) == pytest.approx(1, abs=2e-6), history


def test_a_text_read_in_pieces_gives_the_same_model(monkeypatch):
    sentences = natural(50)
    at_once = estimate(sentences, 3)
    monkeypatch.setattr(ngram, "TOKENS", 7)
    monkeypatch.setattr(ngram, "SENTENCES", 3)
    in_pieces = estimate(iter(sentences), 3)
    assert table_of(at_once) == table_of(in_pieces)


def test_n_grams_too_long_for_one_number_are_counted_too():
    sentences, words = natural(40, kinds=30), [f"W{k}" for k in range(9000)]
    model = estimate(sentences, 5, words=words)
    assert_same(model, grams.kneser_ney(sentences, 5, words, [0] * 5)[0])


@pytest.mark.parametrize("order, prune", [(3, "0"), (3, "0 1 3"), (5, "0 0 1"), (1, "0")])
def test_lmplz_itself_agrees(tmp_path, order, prune):
    lmplz = shutil.which("lmplz")
    if lmplz is None:
        pytest.skip("lmplz of KenLM is not on the path")
    sentences = natural(2000)
    (tmp_path / "text").write_text("\n".join(sentences) + "\n")
    files = ["--text", tmp_path / "text", "--arpa", tmp_path / "theirs.arpa", "-T", tmp_path]
    subprocess.run([lmplz, "-o", str(order), "-S", "100M", "--discount_fallback", "--prune", *prune.split(), *files], check=True)
    arpa.write(estimate(sentences, order, prune=[int(k) for k in prune.split()]), tmp_path / "ours.arpa")
    ours, theirs = grams.read(tmp_path / "ours.arpa"), grams.read(tmp_path / "theirs.arpa")
    assert ours.keys() == theirs.keys()
    for gram, pair in theirs.items():
        assert ours[gram] == pytest.approx(pair, abs=1e-6), gram


# ---- vocabulary ----

SOME = ["B A A", "C A B", "D"]


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, ["A", "B", "C", "D"]),
        ({"most": 2}, ["A", "B"]),
        ({"most": 3}, ["A", "B", "C"]),  # of equal counts, in the order of the alphabet
        ({"at_least": 2}, ["A", "B"]),
        ({"at_least": 2, "most": 1}, ["A"]),
        ({"words": ["Z", "D", "D", "<s>"]}, ["Z", "D"]),
    ],
)
def test_the_vocabulary_is_the_most_frequent_words_or_the_given_ones(options, words):
    said = []
    model = estimate(SOME, 2, **options, say=said.append)
    assert list(model.words) == ["<unk>", "<s>", "</s>", *words]
    outside = sum(word not in words for sentence in SOME for word in sentence.split())
    assert f"{len(words)} words in the vocabulary; {outside} words of the text become <unk>" in said


def test_words_that_the_text_marks_as_unknown_are_unknown():
    assert table_of(estimate(["A <unk> B"], 3)) == table_of(estimate(["A X B"], 3, words=["A", "B"]))


def test_discounts_that_cannot_be_estimated_are_said():
    said = []
    estimate(["A B", "B"], 2, say=said.append)
    assert any("discounts of 2-grams: 0.5 1.0 1.5, not estimated" in line for line in said)


@pytest.mark.parametrize(
    "sentences, options, error, message",
    [
        ([], {}, DataError, "the text is empty"),
        (["A <s> B"], {}, DataError, "<s> or </s> stands in the text"),
        (["A </s>"], {}, DataError, "<s> or </s> stands in the text"),
        (["A"], {"at_least": 2}, DataError, "no word in the vocabulary: the text has 1"),
        (["A"], {"words": ["A", "B C"]}, DataError, "'B C' in the vocabulary is not one word"),
        (["A"], {"order": 6}, ValueError, "1 to 5 words, not 6"),
        (["A"], {"prune": (1,)}, ValueError, "cannot prune by 1"),
        (["A"], {"prune": (0, 2, 1)}, ValueError, "cannot prune by 0 2 1"),
        (["A"], {"prune": (0, 0, 0, 1)}, ValueError, "at most 3 values"),
    ],
)
def test_what_cannot_be_estimated_is_refused_with_the_reason(sentences, options, error, message):
    with pytest.raises(error, match=message):
        estimate(sentences, **options)


def test_a_single_word_is_enough():
    model = estimate(["A"], 5)
    assert np.isfinite(model.orders[2].prob).all() and len(model.orders[4].keys) == 0
