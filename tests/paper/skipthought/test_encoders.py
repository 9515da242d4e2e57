"""Names of encoders, and the command that scores them."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sentences_made_up import write_sets

from multint.paper.obtain import DataError
from multint.paper.skipthought import text
from multint.paper.skipthought.commands import transfer_command
from multint.paper.skipthought.encoders import named, together
from multint.paper.skipthought.labelled import Data


@pytest.fixture
def sets(data, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    monkeypatch.setattr(text, "versions", lambda: "made up")
    write_sets(data, monkeypatch)
    return Data(data)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "an_encoder_of_mine.py").write_text(
        "import numpy as np\nCONSTANT = 3\ndef lengths(texts):\n    return np.array([[len(t), t.count('a')] for t in texts])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "an_encoder_of_mine"


def test_a_function_of_a_module_is_an_encoder(sets, mine):
    found = named(f"{mine}:lengths", sets, ["mr"])(["banana", "b"], "mr")
    assert found.tolist() == [[6.0, 3.0], [1.0, 0.0]]


def test_averages_read_the_vectors_of_the_tasks_words_alone(sets, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("dog 1 0\nboat 0 1\nelsewhere 5 5\n")
    encode = named(f"averaged:{path}", sets, ["cr"])
    assert set(encode.vectors) == {"dog", "boat"}
    (first, *_) = sets.classes("cr").texts
    tokens = [token for token in first.split() if token in encode.vectors]
    expected = np.mean([encode.vectors[token] for token in tokens], 0) if tokens else np.zeros(2)
    np.testing.assert_allclose(encode([first], "cr")[0].numpy(), expected)


@pytest.mark.parametrize(
    "name, why",
    [
        ("nothing", "no encoder 'nothing'; an encoder is a run's folder"),
        ("absent_module:encode", "cannot import the encoder absent_module:encode: No module named 'absent_module'; install"),
        ("an_encoder_of_mine:absent", "an_encoder_of_mine has no function 'absent' that takes a list of texts"),
        ("an_encoder_of_mine:CONSTANT", "has no function 'CONSTANT'"),
        ("averaged:absent.txt", "no file of word vectors absent.txt"),
    ],
)
def test_a_name_that_stands_for_nothing_says_why(sets, mine, name, why):
    with pytest.raises(DataError, match=why):
        named(name, sets, ["mr"])


def test_encoders_together_put_their_vectors_side_by_side():
    one, other = (lambda texts, task, k=k: torch.full((len(texts), k), float(k)) for k in (2, 3))
    assert together([one, other])(["a"], "mr").tolist() == [[2.0, 2.0, 3.0, 3.0, 3.0]]
    assert together([one]) is one


def test_the_command_prints_every_result(sets, mine, data):
    ran = CliRunner().invoke(transfer_command, ["--encoder", f"{mine}:lengths", "--encoder", "bag-of-words", "--tasks", "sick, cr"])
    assert ran.exit_code == 0, ran.output
    lines = [line.split()[:2] for line in ran.stdout.splitlines()]
    assert lines == [["sick", "r"], ["sick", "ρ"], ["sick", "MSE"], ["cr", "CR"]]
    assert "over 40" in ran.stdout
