"""ARPA files are read as they were written, and texts are scored as a slow reader scores them."""

import gzip
import math
import random

import grams
import numpy as np
import pytest
from grams import natural, table_of

from multint.paper.obtain import DataError
from multint.paper.speech import arpa
from multint.paper.speech.ngram import estimate


@pytest.fixture
def model():
    return estimate(natural(80, kinds=40), 3, at_least=2, prune=(0, 0, 1))


def test_a_model_is_read_as_it_was_written(tmp_path, model):
    arpa.write(model, tmp_path / "m.arpa")
    (tmp_path / "m.arpa.gz").write_bytes(gzip.compress((tmp_path / "m.arpa").read_bytes()))
    wanted = table_of(model)
    for name in ("m.arpa", "m.arpa.gz"):
        found = table_of(arpa.read(tmp_path / name))
        assert found.keys() == wanted.keys()
        assert all(found[gram] == pytest.approx(pair, abs=6e-8) for gram, pair in wanted.items())


def test_a_file_of_another_tool_may_have_another_order_and_leave_backoffs_out(tmp_path):
    text = "made by hand\n\\data\\\nngram 1=4\nngram  2=2\n\n\\1-grams:\n-1 B\n-99 <s> -0.5\n-0.5\tA\t-0.25\n-0.7 </s>\n\n"
    (tmp_path / "m.arpa").write_text(text + "\\2-grams:\n-0.1 A B\n-0.2 <s> A\n\n\\end\\\nrest\n")
    model = arpa.read(tmp_path / "m.arpa")
    table = {gram: tuple(pair) for gram, pair in table_of(model).items()}
    assert table[("A",)] == (-0.5, -0.25) and table[("B",)] == (-1, 0) and table[("A", "B")] == (-0.1, 0)
    assert model.unknown == -1
    assert list(model.log10(model.ids(["<s>", "A", "B", "X", "</s>"]))) == pytest.approx([0, -0.2, -0.1, -math.inf, -0.7])


def test_every_word_of_a_text_is_scored_as_the_slow_reader_does(tmp_path, model):
    arpa.write(model, tmp_path / "m.arpa")
    table, choose = grams.read(tmp_path / "m.arpa"), random.Random(1)
    names = [word for word in model.words if word not in ("<s>", "</s>")]
    sentences = [[choose.choice([*names, "ZZZ"]) for _ in range(choose.randint(0, 6))] for _ in range(200)]
    tokens = [token for sentence in sentences for token in ("<s>", *sentence, "</s>")]
    wanted = []
    for sentence in sentences:
        known = ["<s>", *(word if word in names else "<unk>" for word in sentence), "</s>"]
        wanted += [0.0, *(grams.score(table, known[max(0, i - 2) : i], known[i]) for i in range(1, len(known)))]
    assert model.log10(model.ids(tokens)) == pytest.approx(wanted, abs=1e-6)


def test_perplexity_leaves_unlisted_words_out_or_scores_them_as_unknown(monkeypatch, model):
    sentences = [*natural(30, kinds=40, seed=5), "ZZZ W0 YYY"]
    whole = arpa.fit(model, sentences)
    monkeypatch.setattr(arpa, "SENTENCES", 4)
    in_pieces = arpa.fit(model, iter(sentences))
    assert (in_pieces.words, in_pieces.unknown) == (whole.words, whole.unknown)
    assert (in_pieces.log10, in_pieces.log10_unknown) == pytest.approx((whole.log10, whole.log10_unknown))
    listed = [[word in model.words for word in sentence.split()] for sentence in sentences]
    assert whole.sentences == 31 and whole.words == sum(map(len, listed))
    assert whole.unknown == sum(not one for flags in listed for one in flags)
    logs, logs_unknown = [], []
    for sentence, flags in zip(sentences, listed, strict=True):
        scores = model.log10(model.ids(["<s>", *sentence.split(), "</s>"]))[1:]
        logs += [s for s, one in zip(scores, [*flags, True], strict=True) if one]
        logs_unknown += [s for s, one in zip(scores, [*flags, True], strict=True) if not one]
    assert whole.perplexity == pytest.approx(10 ** -np.mean(logs))
    assert whole.perplexity_of_all == pytest.approx(10 ** -np.mean(logs + logs_unknown))


def test_perplexity_of_nothing_and_of_the_impossible_is_infinite(model):
    assert arpa.fit(model, []).perplexity == math.inf
    without = arpa.Model(("<s>", "</s>", "A"), (arpa.Grams(np.arange(3), np.array([-99.0, -1, -1]), np.zeros(3)),))
    fit = arpa.fit(without, ["A B"])
    assert fit.unknown == 1 and fit.perplexity == pytest.approx(10) and fit.perplexity_of_all == math.inf


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, model):
    path = tmp_path / "m.arpa"
    path.write_text("old")

    def broken(*_):
        yield "half"
        raise OSError("no space left")

    monkeypatch.setattr(arpa, "_texts", broken)
    with pytest.raises(OSError, match="no space"):
        arpa.write(model, path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


GOOD = "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1 <unk>\n-1 </s>\n0 <s> -1\n-1 A -1\n\n\\2-grams:\n-1 <s> A\n\n\\end\\\n"


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("\\data\\", "data", "it ends"),
        ("ngram 2=1", "ngram 3=1", "expected ngram 2=COUNT, got 'ngram 3=1'"),
        ("ngram 2=1", "ngram 2=x", "expected ngram 2=COUNT"),
        ("\\1-grams:", "\\2-grams:", r"expected \\1-grams:"),
        ("-1 A -1", "-1 A A A", "no 1-gram with its numbers"),
        ("-1 A -1", "one A", "no 1-gram with its numbers"),
        ("-1 A -1", "-1 </s>", "two 1-grams have the same word"),
        ("-1 <s> A", "-1 <s> B", "'B' is no 1-gram"),
        ("-1 <s> A", "-1 A", "not 2 words"),
        ("-1 <s> A", "", "no 2-gram with its numbers"),
        ("-1 <s> A", "-1 <s> A\n-1 A A", r"expected \\end\\, got '-1 A A'"),
        ("\\end\\", "", "it ends"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "m.arpa"
    path.write_text(GOOD)
    arpa.read(path)
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=message) as caught:
        arpa.read(path)
    assert "m.arpa, line" in str(caught.value) and "\n" not in str(caught.value)


def test_n_grams_without_their_context_and_twice_are_refused(tmp_path):
    path = tmp_path / "m.arpa"
    three = GOOD.replace("ngram 2=1", "ngram 2=1\nngram 3=1").replace("\\end\\", "\\3-grams:\n-1 A A A\n\n\\end\\")
    path.write_text(three)
    with pytest.raises(DataError, match="1 of its 3-grams have a context that is no 2-gram"):
        arpa.read(path)
    path.write_text(GOOD.replace("ngram 2=1", "ngram 2=2").replace("-1 <s> A", "-1 <s> A\n-2 <s> A"))
    with pytest.raises(DataError, match="one of its 2-grams twice"):
        arpa.read(path)
