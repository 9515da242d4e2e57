"""Prepared questions: numbers, the cache, counts of everything that is wrong, the vocabulary."""

import json
import logging

import numpy as np
import pytest
from asked import FOLDERS, PLACES, corpus, question

from multint.paper.obtain import DataError
from multint.paper.reader import corpora
from multint.paper.reader import corpus as corpus_module
from multint.paper.reader.corpus import prepare, told
from multint.paper.reader.questions import PLACEHOLDER, Question, read, written
from multint.paper.reader.vocabulary import FIRST, MISSING, NUMBER, UNKNOWN, Vocabulary, ordered


@pytest.fixture
def house(home):
    return corpus(home / "house")


def test_numbers_stand_for_the_tokens_of_the_files(house):
    found = prepare(house, sentences=None)
    assert [len(split) for split in found.splits.values()] == list(FOLDERS.values())
    assert found.vocabulary.entities == 6 and set(found.vocabulary.words) == {".", "the", "went", "to", "is", "in", *PLACES}
    for split, folder in (("train", "training"), ("valid", "validation"), ("test", "test")):
        part = found.splits[split]
        for i in (0, len(part) - 1):
            one = read((house / folder / f"{i:04d}.question").read_text())
            assert tuple(found.vocabulary.tokens(part.document(i))) == one.document
            assert tuple(found.vocabulary.tokens(part.question(i))) == one.question
            assert found.vocabulary.tokens(part.answers[i : i + 1]) == [one.answer]
    assert part.lengths.tolist() == [18] * 16 and part.question_lengths.tolist() == [6] * 16


def test_only_the_selected_sentences_are_kept(house):
    one = prepare(house, sentences=1)
    assert set(one.splits["train"].lengths.tolist()) == {6}
    assert one.form == "top 1 sentences" and one.counts["valid"]["answerable"] == FOLDERS["validation"]  # who is named there
    assert one.sha256 == prepare(house, sentences=None).sha256  # the same questions


def test_a_prepared_corpus_is_read_again_and_a_damaged_one_is_made_again(house, home, monkeypatch, caplog):
    first = prepare(house)
    documents = np.array(first.splits["train"].documents)
    real = corpora.question_files
    monkeypatch.setattr(corpora, "question_files", lambda path: pytest.fail("prepared again"))
    again = prepare(house)
    assert again.sha256 == first.sha256 and again.vocabulary == first.vocabulary
    (folder,) = (home / "cache").glob("reader-questions-*")
    array = folder / "train-documents.npy"
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    monkeypatch.setattr(corpora, "question_files", real)
    with caplog.at_level(logging.WARNING):
        assert prepare(house, check_sums=True).sha256 == first.sha256
    assert "was altered" in caplog.text
    assert np.array_equal(prepare(house).splits["train"].documents, documents)


def test_folder_and_archive_give_the_same_corpus(house, home):
    from test_reader_corpora import packed

    one, two = prepare(house), prepare(packed(house, home / "house.tgz"))
    assert one.sha256 == two.sha256 and one.vocabulary == two.vocabulary
    for split, part in one.splits.items():
        for array in ("documents", "questions", "answers", "starts"):
            assert np.array_equal(getattr(part, array), getattr(two.splits[split], array))


def put(house, name, one):
    (house / "validation" / f"{name}.question").write_text(written(one) if isinstance(one, Question) else one)


def test_every_fault_is_counted_and_named(house, caplog):
    import random

    good = question(random.Random(9))
    put(house, "cut", "http://x\n\nonly a document\n")
    put(house, "empty", Question((), (PLACEHOLDER, "slept"), "@entity1", {"@entity1": "Ann"}))
    put(house, "absent", Question(("nobody", "."), (PLACEHOLDER, "slept"), "@entity1", {"@entity1": "Ann"}))
    put(house, "unnamed", Question(good.document, good.question, good.answer))
    put(house, "huge", Question(("@entity99999",), (PLACEHOLDER,), "@entity99999", {"@entity99999": "x"}))
    put(house, "word", written(good).replace(f"\n\n{good.answer}\n\n", "\n\nPerson\n\n"))
    found = prepare(house)
    faults = found.counts["valid"]["faults"]
    assert faults == {
        "left out because there are no five blocks with empty lines between them": 1,
        "with an empty document": 1,
        "whose answer is not in the document": 1,
        "with an entity that has no name": 1,
        "left out because an entity has the number 99999": 1,
        "left out because the answer is no entity": 1,
    }
    assert len(found.splits["valid"]) == FOLDERS["validation"] + 3 == found.counts["valid"]["total"] - 3
    text = str(found)
    for name in ("cut", "empty", "absent", "unnamed", "huge", "word"):
        assert f"{name}.question" in text
    assert found.counts["train"]["faults"] == {}
    assert found.vocabulary.entities == 6
    place = sorted(p.name for p in (house / "validation").glob("*.question") if p.stem not in ("cut", "huge", "word"))
    assert found.splits["valid"].document(place.index("empty.question")).tolist() == [UNKNOWN]
    assert "1 with an empty document (empty.question)" in told(found.counts["valid"])


def test_a_corpus_without_a_split_is_refused(house):
    for path in (house / "validation").iterdir():
        path.write_text("")
    with pytest.raises(DataError, match="has no valid question, .*24 left out because there are no five blocks"):
        prepare(house)


def test_too_few_questions_of_the_paper_s_corpus_are_refused(house, data, home, monkeypatch):
    monkeypatch.setenv("MULTINT_CACHE", str(home / "cache"))
    (data / "cnn").mkdir()
    house.rename(data / "cnn" / "questions")
    with pytest.raises(DataError, match=r"cnn has 160 train questions, not 380,298; complete it, or take .* \(--questions\)"):
        prepare("cnn")
    monkeypatch.setattr(corpora, "CNN_COUNTS", {"train": 160, "valid": 24, "test": 16})
    found = prepare("cnn")
    assert (found.name, found.own, found.stands_for, found.form) == ("cnn", False, None, "top 4 sentences")


def test_a_test_set_beside_has_the_numbers_of_the_corpus(house, data, home, monkeypatch):
    import hashlib
    from dataclasses import replace

    from multint.paper.sources import File

    monkeypatch.setenv("MULTINT_CACHE", str(home / "cache"))
    monkeypatch.setattr(corpora, "CNN_COUNTS", {})
    (data / "cnn").mkdir()
    house.rename(data / "cnn" / "questions")
    assert prepare("cnn").beside == {}
    table = b'article,highlights,id\n"Anna Lee went to the attic. Anna Lee slept.","Anna Lee slept in the attic .",7\n'
    (data / "cnn" / "t.csv").write_bytes(table)
    source = replace(corpora.CORPORA[corpora.HIGHLIGHTS], files=(File("t.csv", len(table), hashlib.sha256(table).hexdigest()),))
    for module in (corpora, corpus_module):
        monkeypatch.setattr(module, "CORPORA", {**corpora.CORPORA, corpora.HIGHLIGHTS: source})
    found = prepare("cnn")
    (beside,) = found.beside.values()
    assert beside.vocabulary == found.vocabulary and list(beside.splits) == ["test"]
    shown = beside.vocabulary.tokens(beside.splits["test"].document(0))
    assert shown == ["@entity0", "went", "to", "the", "attic", ".", "@entity0", "<unknown>", "."]
    (data / "cnn" / "t.csv").unlink()
    assert list(prepare("cnn").beside) == [corpora.HIGHLIGHTS]  # once prepared, the table is not needed


def test_a_vocabulary_keeps_what_is_frequent_and_knows_numbers():
    assert ordered([("b", 2), ("a", 2), ("c", 5), ("d", 1)], 2) == ("c", "a", "b")
    whole = Vocabulary(3, ("the", "1990", "cat", "7", "dog"))
    tokens = ["the", "@entity2", PLACEHOLDER, "dog", "7", "12,000.5", "what", "@entity3", "1990"]
    numbers = whole.encode(tokens)
    assert numbers.tolist() == [FIRST + 3, FIRST + 2, MISSING, FIRST + 7, FIRST + 6, NUMBER, UNKNOWN, UNKNOWN, FIRST + 4]
    small = whole.cut(2)
    assert len(small) == FIRST + 3 + 2 and whole.cut(None) is whole.cut(9) is whole
    assert np.array_equal(whole.into(small)[numbers], small.encode(tokens))
    assert small.tokens(np.array([FIRST, FIRST + 3, 0, UNKNOWN])) == ["@entity0", "the", "", "<unknown>"]


def test_the_note_is_plain_json(house, home):
    prepare(house)
    (note,) = (home / "cache").glob("reader-questions-*/corpus.json")
    assert json.loads(note.read_text())["counts"]["train"]["kept"] == FOLDERS["training"]
