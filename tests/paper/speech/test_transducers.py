"""T and L accept what their tables say: all label paths and all spellings of small alphabets are enumerated."""

import math
from itertools import product

import pytest
from paths import collapsed, readings, transduced

from multint.paper.speech.transducers import TOPOLOGIES, endings, lexicon, spellings, topology
from multint.paper.speech.utterances import SPACE, Units

LETTERS = Units((SPACE, "A", "B"))
each_topology = pytest.mark.parametrize("name", TOPOLOGIES)


@each_topology
@pytest.mark.parametrize("units", [1, 2, 3])
def test_a_topology_reads_every_path_of_labels_as_its_table_says(name, units):
    text = topology(name, units, [units + 1])
    for length in range(5):
        for path in product(range(units + 1), repeat=length):
            found = transduced(text, [unit + 1 for unit in path])
            without = {output for output in found if units + 1 not in output}  # T may put disambiguation symbols anywhere
            assert without == readings(name, path)
            assert set(found.values()) <= {0.0}


@each_topology
def test_the_reading_of_ctc_is_always_among_those_of_a_topology(name):
    for path in product(range(3), repeat=4):
        if any(path) or name != "eesen":
            assert collapsed(path) in readings(name, path)


def test_only_the_strict_topology_wants_a_blank_between_equal_units():
    path = [2, 2]
    assert {name: (1, 1) in transduced(topology(name, 1, []), path) for name in TOPOLOGIES} == {
        "compact": True,
        "eesen": True,
        "strict": False,
    }


@pytest.mark.parametrize(
    "name, arcs", [("compact", lambda u: 3 * u + 1), ("eesen", lambda u: 3 * u + 4), ("strict", lambda u: u * u + 2 * u + 1)]
)
def test_the_table_of_topologies_counts_their_arcs(name, arcs):
    for units in (1, 2, 7):
        text = topology(name, units, [])
        assert sum(len(line.split()) > 2 for line in text.splitlines()) == arcs(units)


@each_topology
def test_disambiguation_symbols_pass_between_units_without_a_label(name):
    text = topology(name, 2, [3, 4])
    assert (3, 1, 4, 2) in transduced(text, [2, 1, 3])


def test_an_unknown_topology_is_refused():
    with pytest.raises(ValueError, match="no topology 'ctc': use compact, eesen, strict"):
        topology("ctc", 2, [])


WORDS = {"A": ("A",), "AB": ("A", "B"), "B": ("B",), "ABBA": ("A", "B", "B", "A")}


def test_words_whose_spelling_begins_another_end_with_a_symbol():
    assert endings(WORDS) == {"A": 1, "AB": 1, "B": 0, "ABBA": 0}
    assert endings({"x": ("U",), "y": ("U",), "z": ("U", "V")}) == {"x": 1, "y": 2, "z": 0}


def test_a_lexicon_reads_words_with_and_without_spaces():
    numbers = {"<eps>": 0, **{word: n for n, word in enumerate(WORDS, start=1)}, "#0": 5}
    text, symbols = lexicon(LETTERS, WORDS, numbers)
    assert symbols == 3  # #0, that of A and AB, and that after spaces
    space, a, b, passing, one, spaced = 1, 2, 3, 4, 5, 6
    half = math.log(2)

    def read(*labels):
        return transduced(text, labels)

    assert read() == {(): half} and read(space, spaced) == {(): half}
    assert read(a, one) == {(1,): 2 * half}
    assert read(space, spaced, a, one, space, spaced, a, b, one) == {(1, 2): 3 * half}
    assert read(a, one, b) == {(1, 3): 3 * half} and read(a, b, b, a) == {(4,): 2 * half}
    assert read(passing, b, passing) == {(5, 3, 5): 2 * half}
    assert read(a) == {} and read(a, space, spaced) == {} and read(space) == {} and read(b, space, spaced, space, spaced) == {}


def test_words_without_a_spelling_are_left_out_except_the_one_for_all_others():
    units = Units((SPACE, "A", "<NOISE>", "<UNK>"), whole=("<NOISE>",), unknown="<UNK>")
    words = ["A", "AX", "<unk>", "<NOISE>", "É"]
    assert spellings(units, words, "<unk>") == {"A": ("A",), "<unk>": ("<UNK>",), "<NOISE>": ("<NOISE>",)}
    assert spellings(LETTERS, words, "<unk>") == {"A": ("A",)}
