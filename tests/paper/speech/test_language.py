"""Language models by name: where their text comes from, and that they are made once."""

import gzip

import pytest
from tones import UNITS, speech

from multint.paper.obtain import DataError
from multint.paper.speech import arpa, corpora, language, ngram
from multint.paper.speech.corpus import prepare
from multint.paper.speech.language import BOOKS, LANGUAGES, NEWSPAPER, OF, TRANSCRIPTS


@pytest.fixture
def tones(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    return prepare(speech(tmp_path / "audio", (12, 2, 2)), tmp_path / "data")


def test_every_corpus_has_a_language_model_that_exists():
    assert {language.of(name) for name in corpora.CORPORA} <= set(LANGUAGES)
    assert set(OF) <= set(corpora.CORPORA) and language.of("anything") == TRANSCRIPTS


def test_transcripts_are_those_of_training(tones):
    assert list(language.text(TRANSCRIPTS, tones, None)) == [" ".join(words) for words in tones.splits["train"].words]


def test_a_model_is_estimated_once(tones, monkeypatch):
    path = language.model(TRANSCRIPTS, tones)
    assert set(arpa.read(path).words) >= {word for words in tones.splits["train"].words for word in words}
    monkeypatch.setattr(ngram, "estimate", None)
    assert language.model(TRANSCRIPTS, tones) == path


def test_the_graph_of_a_corpus_has_its_units(tones):
    pytest.importorskip("kaldifst", reason="graphs need kaldifst: pip install 'multint[speech]'")
    said: list[str] = []
    found = language.graph_of(TRANSCRIPTS, tones, say=said.append)
    assert found.units == UNITS and any("estimating" in line for line in said)


def test_books_are_read_without_those_that_are_scored(tones, tmp_path):
    folder = tmp_path / "data" / "books"
    folder.mkdir(parents=True)
    (folder / "books.txt").write_text("=== a\nA dab. Be bad!\n\n=== n100/Wcollins_Legacy_1889\nDeed.\n")
    assert list(language.text(BOOKS, tones, tmp_path / "data")) == ["A DAB", "BE BAD"]


def test_missing_books_say_where_they_are_looked_for(tones, tmp_path):
    with pytest.raises(DataError, match=r"books-20k: no .*data/books/books.txt .*multint lm train"):
        language.model(BOOKS, tones, tmp_path / "data")


def test_the_newspaper_is_read_from_the_discs_without_its_marks(tones, tmp_path):
    folder = tmp_path / "data" / "wsj" / "13-32.1" / "wsj1" / "doc" / "lng_modl" / "lm_train" / "np_data" / "87"
    folder.mkdir(parents=True)
    (folder / "w7_001.z").write_bytes(gzip.compress(b"<art>\n<p>\nmr. dab was bad\n</p>\n\nbe a bead\n"))
    assert list(language.text(NEWSPAPER, tones, tmp_path / "data")) == ["MR. DAB WAS BAD", "BE A BEAD"]
    (folder / "w7_002.z").write_bytes(b"not packed")
    with pytest.raises(DataError, match=r"w7_002.z cannot be unpacked"):
        list(language.text(NEWSPAPER, tones, tmp_path / "data"))


def test_a_missing_newspaper_names_its_disc(tones, tmp_path):
    with pytest.raises(DataError, match=r"wsj-extended: no np_data/87.*disc 13-32.1 of LDC94S13B"):
        language.model(NEWSPAPER, tones, tmp_path / "data")
