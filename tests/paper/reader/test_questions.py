"""Questions in the form of Hermann et al.: files, sentences, the selection of sentences, and answers by counting."""

import random

import pytest
from asked import question

from multint.paper.reader.baselines import exclusive_frequency, max_frequency
from multint.paper.reader.questions import Malformed, Question, number, read, relevant, selected, sentences, written

FILE = """http://web.archive.org/web/2015id_/http://edition.cnn.com/2015/04/11/world/story/index.html

( @entity1 ) @entity0 won the race in @entity5 on friday . " it was hard , " she said . @entity5 cheered ; @entity7 : second

@placeholder wins in @entity5

@entity0

@entity0:Mary Keitany
@entity1:CNN
@entity5:New York: the city
@entity7:Ann
"""


def test_a_file_is_read_as_its_five_blocks():
    one = read(FILE)
    assert one.source.startswith("http://web.archive.org")
    assert one.document[:4] == ("(", "@entity1", ")", "@entity0") and one.document[-1] == "second"
    assert one.question == ("@placeholder", "wins", "in", "@entity5") and one.answer == "@entity0"
    assert one.entities == {"@entity0": "Mary Keitany", "@entity1": "CNN", "@entity5": "New York: the city", "@entity7": "Ann"}
    assert read(FILE.replace("\n", "\r\n")) == one


def test_what_is_written_is_read_back():
    draw = random.Random(3)
    for _ in range(20):
        one = question(draw)
        assert read(written(one)) == one
    empty = Question((), ("@placeholder",), "@entity3")
    assert read(written(empty)) == empty


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "no five blocks"),
        (FILE.replace("\n\n", "\n"), "no five blocks"),
        (FILE.replace("@placeholder", "@entity1"), "no @placeholder"),
        (FILE.replace("\n\n@entity0\n", "\n\nMary\n"), "the answer is no entity"),
    ],
)
def test_a_malformed_file_says_what_is_wrong(text, why):
    with pytest.raises(Malformed, match=why):
        read(text)


def test_sentences_end_at_full_stops_and_keep_all_tokens():
    document = ("a", "b", ".", "'", "c", "?", '"', "d", "e", "!", ")", "f")
    found = sentences(document)
    assert [" ".join(one) for one in found] == ["a b . '", 'c ? "', "d e ! )", "f"]
    assert tuple(token for one in found for token in one) == document
    assert sentences(()) == []


def test_the_selection_takes_sentences_that_share_words_with_the_question():
    parts = ["the cat of @entity3 slept .", "@entity1 saw a dog .", "rain .", "the dog saw @entity1 .", "a dog ."]
    asked = "@placeholder saw the dog of @entity1 ."
    tokens = [part.split() for part in parts]
    assert relevant(tokens, asked.split(), 2) == [1, 3]  # dog, saw, @entity1; "the", "of" and "." are stop words
    assert relevant(tokens, asked.split(), 3) == [1, 3, 4]
    assert relevant(tokens, ["nothing"], 2) == [0, 1]  # of equal ones the first
    one = Question(tuple(token for part in tokens for token in part), tuple(asked.split()), "@entity3")
    assert selected(one, 2) == (*tokens[1], *tokens[3])
    assert selected(one, None) == one.document == selected(one, 9)


def test_the_selection_agrees_with_counting_by_hand():
    """Beside the slow way: sort pairs of (shared, -place)."""
    draw = random.Random(0)
    letters = "bcdfg"
    for _ in range(200):
        parts = [[draw.choice(letters) for _ in range(4)] for _ in range(draw.randrange(1, 8))]
        asked = {draw.choice(letters) for _ in range(3)}
        scores = [(len({t for t in part if t in asked}), -i) for i, part in enumerate(parts)]
        best = sorted(-place for _, place in sorted(scores, reverse=True)[:4])
        assert relevant(parts, asked, 4) == best


def test_baselines_count_entities_and_share_ties():
    document = ["@entity1", "@entity1", "@entity2", "@entity2", "@entity3", "word", "word", "word"]
    assert max_frequency(document, [], "@entity1") == 0.5
    assert max_frequency(document, [], "@entity3") == 0.0
    assert exclusive_frequency(document, ["@entity1"], "@entity2") == 1.0
    assert exclusive_frequency(document, ["@entity1", "@entity2"], "@entity3") == 1.0
    assert max_frequency([], [], "@entity1") == exclusive_frequency(["@entity1"], ["@entity1"], "@entity1") == 0.0


def test_only_an_entity_has_a_number():
    assert [number(token) for token in ("@entity0", "@entity17", "@entity", "entity1", "@placeholder", "@entity1x")] == [0, 17] + [
        None
    ] * 4
