"""Books become arrays: beside a slow version, after a kill, and with all that may be odd in them."""

import json
import os
import random
import signal
from collections import Counter
from dataclasses import replace

import pytest
from killing import in_a_child
from sentences_made_up import BAD, GOOD, THINGS, sentence

from multint.paper.obtain import DataError
from multint.paper.skipthought import books, corpora, corpus
from multint.paper.skipthought.books import Books, own
from multint.paper.skipthought.corpus import LIMIT, Counts, prepare

TOO_LONG = " ".join(["very"] * LIMIT)


@pytest.fixture
def alone(monkeypatch):
    """All in one process."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def tale(seed, count=60):
    choose = random.Random(seed)
    lines = [sentence(choose, choose.choice((GOOD, BAD, ()))) for _ in range(count)]
    lines[count // 2] = TOO_LONG
    return lines


def write_tales(folder, seeds=(1, 2, 3), end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / f"tale-{seed}.txt").write_text(end.join(tale(seed)) + end)
    return folder


def as_sentences(found):
    """The sentences of a corpus, those over the limit as None."""
    parts = [found.tokens[a:b] for a, b in zip(found.starts[:-1], found.starts[1:], strict=True)]
    return [[found.words[k] for k in part] if len(part) else None for part in parts]


# ---- what comes out ----


def test_every_sentence_and_triple_is_there_as_counted_by_hand(data, tmp_path, alone, monkeypatch):
    monkeypatch.setattr(books, "PIECE", 300)  # pieces end inside books
    tales = [[line.lower().split() for line in tale(seed)] for seed in (1, 2, 3)]
    found = prepare(own(write_tales(tmp_path / "tales"), "tokens"))
    assert as_sentences(found) == [words if len(words) < LIMIT else None for one in tales for words in one]
    seen = Counter(word for one in tales for words in one for word in words)
    assert dict(zip(found.words, found.seen.tolist(), strict=True)) == seen
    assert list(found.words) == sorted(seen, key=lambda word: (-seen[word], word))
    middles = [
        (len(one[i]), 60 * k + i)
        for k, one in enumerate(tales)
        for i in range(1, len(one) - 1)
        if all(len(words) < LIMIT for words in one[i - 1 : i + 2])
    ]
    assert list(found.middles) == [place for _, place in sorted(middles)]
    assert list(found.of_length) == [sum(length == n for length, _ in middles) for n in range(LIMIT)]
    assert found.counts == Counts(
        pieces=found.counts.pieces,
        bytes=sum(path.stat().st_size for path in (tmp_path / "tales").iterdir()),
        books=3,
        lines=180,
        sentences=180,
        long_sentences=3,
        tokens=sum(seen.values()),
    )
    assert found.counts.pieces > 6 and found.own and found.form == "tokens" and found.stands_for is None


def test_running_text_is_split_into_sentences_and_tokens(data, tmp_path, alone):
    pytest.importorskip("syntok", reason="syntok splits text into sentences")
    pytest.importorskip("nltk", reason="NLTK splits sentences into tokens")
    (tmp_path / "tale.txt").write_text("\"Don't go!\" said Mr. Fish. He didn't\nlisten.\n\nThe sea--so cold--was near.\n")
    found = prepare(own(tmp_path / "tale.txt", "books"))
    assert as_sentences(found) == [
        ["``", "do", "n't", "go", "!", "''", "said", "mr.", "fish", "."],
        ["he", "did", "n't", "listen", "."],
        ["the", "sea", "--", "so", "cold", "--", "was", "near", "."],
    ]
    assert found.counts.empty_lines == 1 and len(found.middles) == 1 and found.form == ""


def test_a_mark_and_an_empty_line_end_a_book(data, tmp_path, alone):
    path = tmp_path / "all.txt"
    path.write_text("=== one\na b\nc d\ne f\n=== two\ng h\ni j\nk l\n\nm n\no p\nq r\n")
    found = prepare(Books("all", (path,), "0", "tokens", own=True, mark="=== "))
    sentences = as_sentences(found)
    assert [sentences[k] for k in found.middles] == [["c", "d"], ["i", "j"], ["o", "p"]]
    assert found.counts.books == 2 and found.counts.empty_lines == 1


def test_words_beyond_sixteen_bits_are_rare(data, tmp_path, alone, monkeypatch):
    monkeypatch.setattr(corpus, "RARE", 3)
    (tmp_path / "tale.txt").write_text("a a a b\na b c\na b c d e\n")
    found = prepare(own(tmp_path / "tale.txt", "tokens"))
    assert found.words == ("a", "b", "c")
    assert found.tokens.tolist() == [0, 0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 3]
    assert found.unknown(2) == pytest.approx(4 / 12) and found.unknown(0) == 1.0


def test_odd_bytes_and_empty_lines_are_counted_and_told(data, tmp_path, alone, caplog):
    caplog.set_level("INFO", "multint")
    (tmp_path / "tale.txt").write_bytes(b"caf\xe9 .\n\nthe end .\n   \nand so on .\nmore .\nlast .\n")
    found = prepare(own(tmp_path / "tale.txt", "tokens"))
    assert (found.counts.odd_bytes, found.counts.empty_lines) == (1, 2)
    assert "caf\u00e9" in found.words
    assert "2 empty lines, 1 bytes that are not UTF-8" in caplog.text and "2 empty lines" in str(found)


# ---- the same again ----


def arrays(found):
    return {key: getattr(found, key).tolist() for key in ("tokens", "starts", "middles", "seen")} | {"words": found.words}


def test_several_processes_give_what_one_gives(data, tmp_path, monkeypatch):
    monkeypatch.setattr(books, "PIECE", 400)
    tales = own(write_tales(tmp_path / "tales"), "tokens")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    several = prepare(tales, tmp_path / "two")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    one = prepare(tales, tmp_path / "one")
    assert arrays(several) == arrays(one) and several.sha256 == one.sha256


def test_a_killed_preparation_continues_and_ends_with_the_same_bits(data, tmp_path, alone, monkeypatch):
    monkeypatch.setattr(books, "PIECE", 400)
    tales = own(write_tales(tmp_path / "tales"), "tokens")
    whole = prepare(tales, tmp_path / "whole")
    real, done = corpus.work_on, []

    def killed(piece, *rest):
        if piece.number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(piece, *rest)

    monkeypatch.setattr(corpus, "work_on", killed)
    assert not in_a_child(lambda: prepare(tales, tmp_path / "killed"))
    (parts,) = (tmp_path / "killed" / "prepared").glob("*-parts")
    assert len(list(parts.glob("*.npz"))) == 5
    monkeypatch.setattr(corpus, "work_on", lambda piece, *rest: done.append(piece.number) or real(piece, *rest))
    again = prepare(tales, tmp_path / "killed")
    assert arrays(again) == arrays(whole) and again.sha256 == whole.sha256
    assert done[0] == 5 and len(done) == whole.counts.pieces - 5
    assert not parts.exists()


def test_pieces_of_other_rules_are_not_taken_over(data, tmp_path, alone):
    tales = own(write_tales(tmp_path / "tales"), "tokens")
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "000000.npz").write_bytes(b"of another day")
    (parts / "about.json").write_text(json.dumps({"format": 0}))
    corpus._Preparation(tales, parts).take_over()
    assert [path.name for path in parts.iterdir()] == ["about.json"]


def test_a_damaged_array_is_prepared_again(data, tmp_path, alone, caplog):
    tales = own(write_tales(tmp_path / "tales"), "tokens")
    first = arrays(prepare(tales))
    (path,) = (data / "prepared").glob("books-*/middles.npy")
    path.write_bytes(path.read_bytes()[:-4])
    assert arrays(prepare(tales)) == first
    assert "preparing it again" in caplog.text


# ---- where it must stop ----


def test_too_little_text_is_refused(data, tmp_path, alone):
    (tmp_path / "tale.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="holds 2 sentences; a triple needs three"):
        prepare(own(tmp_path / "tale.txt", "tokens"))


def test_a_wrong_number_of_lines_is_refused(data, tmp_path, alone):
    tales = replace(own(write_tales(tmp_path / "tales"), "tokens"), lines=200)
    with pytest.raises(DataError, match="tales has 180 lines, not 200; get it again"):
        prepare(tales)


def test_another_content_than_the_known_one_is_refused(data, tmp_path, alone, monkeypatch):
    path = data / "books" / "books.txt"
    path.parent.mkdir()
    path.write_text("=== a\nOne. Two. Three.\n")
    monkeypatch.setattr(corpus, "work_on", lambda *_: Counts())
    monkeypatch.setattr(corpus.text, "versions", lambda: "made up")
    with pytest.raises(DataError, match="books.txt is not books-275: expected sha256 2286a532"):
        prepare(corpora.load("books-275"))


def test_a_missing_corpus_is_named_with_what_stands_for_it(data):
    with pytest.raises(DataError, match=r"no books_large_p1.txt and books_large_p2.txt in .*bookcorpus.*or take books-275"):
        prepare(corpora.load("bookcorpus"))
    with pytest.raises(DataError, match="no books.txt in .*/books; obtain it yourself"):
        prepare(corpora.load("books-275"))
    with pytest.raises(DataError, match="unknown corpus 'novels'; there are books-275, bookcorpus"):
        corpora.load("novels")


def test_a_prepared_corpus_needs_no_books_any_more(data, alone, monkeypatch):
    lines = ["=== a\n", *(f"{thing} .\n" for thing in THINGS)]
    source = corpora.CORPORA["bookcorpus"]
    small = replace(source, lines=9, mark="=== ")
    monkeypatch.setattr(corpora, "CORPORA", {**corpora.CORPORA, "bookcorpus": small})
    (data / "bookcorpus").mkdir()
    for name, content in zip(small.names, (lines[:4], lines[4:]), strict=True):
        (data / "bookcorpus" / name).write_text("".join(content))
    found = prepare(corpora.load("bookcorpus"))
    for name in small.names:
        (data / "bookcorpus" / name).unlink()
    assert arrays(prepare(corpora.load("bookcorpus"))) == arrays(found) and found.counts.sentences == 8
