"""Encoders that know no order of words, and the files of word vectors."""

import gzip
import struct

import numpy as np
import pytest
import torch
from sentences_made_up import write_sets

from multint.paper.obtain import DataError
from multint.paper.skipthought import text, vectors
from multint.paper.skipthought.baselines import Averages, BagOfWords, words_of
from multint.paper.skipthought.labelled import Data


@pytest.fixture
def sets(data, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    monkeypatch.setattr(text, "versions", lambda: "made up")
    write_sets(data, monkeypatch)
    return Data(data)


class Given(Data):
    """Tokens without files."""

    def tokens(self, task):
        return str.split

    def texts(self, task):
        return ["A a b", "c"]


def test_a_bag_counts_the_words_that_occur_twice():
    found = BagOfWords(Given())(["a b A b b", "a c", "d"], "mr")
    torch.testing.assert_close(found, torch.tensor([[2.0, 3.0], [1.0, 0.0], [0.0, 0.0]]))  # a and b; c and d occur once
    assert BagOfWords(Given(), most=1)(["a b A b b", "a c"], "mr").shape == (2, 1)
    assert BagOfWords(Given())(["a", "b"], "mr").tolist() == [[0.0], [0.0]]


def test_an_average_leaves_out_unknown_words_and_counts_them():
    known = {"a": np.array([1.0, 0.0], np.float32), "B": np.array([0.0, 4.0], np.float32)}
    encode = Averages(Given(), known)
    found = encode(["A B", "b x", "x"], "cr")
    torch.testing.assert_close(found, torch.tensor([[0.5, 2.0], [0.0, 0.0], [0.0, 0.0]]))
    assert encode.unknown == {"cr": (3, 5)}


def test_words_are_wanted_as_written_and_in_lower_case():
    wanted = words_of(Given(), ["mr"])
    assert [word for word in ("A", "a", "b", "B", "c", "d") if wanted(word)] == ["A", "a", "b", "c"]


# ---- files of word vectors ----

WORDS = {"the": [0.5, -1.0, 2.0], "cat": [1.5, 0.0, -0.25], "New_York": [4.0, 5.0, 6.0]}


def as_text(head=""):
    return (head + "".join(f"{word} {' '.join(map(str, values))}\n" for word, values in WORDS.items())).encode()


def as_binary(ends=b""):
    body = b"".join(word.encode() + b" " + struct.pack("<3f", *values) + ends for word, values in WORDS.items())
    return b"3 3\n" + body


@pytest.mark.parametrize(
    "name, content",
    [
        ("glove.txt", as_text()),
        ("w2v.txt", as_text("3 3\n")),
        ("w2v.bin", as_binary()),
        ("w2v-lines.bin", as_binary(b"\n")),
        ("glove.txt.gz", gzip.compress(as_text())),
        ("w2v.bin.gz", gzip.compress(as_binary())),
    ],
)
def test_every_form_of_word_vectors_is_read(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    found = vectors.read(path)
    assert {word: vector.tolist() for word, vector in found.items()} == WORDS
    assert list(vectors.read(path, {"cat"}.__contains__)) == ["cat"]


def test_pieces_may_end_anywhere(tmp_path, monkeypatch):
    path = tmp_path / "w2v.bin"
    path.write_bytes(as_binary())
    monkeypatch.setattr("multint.paper.obtain.CHUNK", 5)
    assert {word: vector.tolist() for word, vector in vectors.read(path).items()} == WORDS


@pytest.mark.parametrize(
    "content, why",
    [
        (as_binary()[:-4], "ends in word 3 of 3; get it again"),
        (b"a 1 2\nb 1\n", "word vectors of 1, 2 numbers"),
        (b"a 1 2\nb one two\n", "line 2: expected a word and numbers, got b'b one two'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, why):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"vectors.txt {why}|vectors.txt has {why}"):
        vectors.read(path)
    with pytest.raises(DataError, match="no file of word vectors"):
        vectors.read(tmp_path / "absent.txt")
