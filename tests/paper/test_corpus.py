"""Corpora of characters: arrays that are prepared are complete and are the text, and an alphabet spells it without the corpus."""

import json
import logging
import lzma
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from corpora import TEXT, a_file, leftovers, sum_of, zipped
from hypothesis import given
from hypothesis import strategies as st

from multint.paper import obtain
from multint.paper.charlm import corpus as corpus_module
from multint.paper.charlm.corpora import CORPORA, CharSource
from multint.paper.charlm.corpus import SHELF, Alphabet, prepare, prepare_text
from multint.paper.experiment import Dataset, Shelf
from multint.paper.obtain import DataError
from multint.paper.sources import Address

LINES = b"".join(b" line %d of a small corpus \n" % i for i in range(50))

pytestmark = pytest.mark.usefixtures("data")


def a_source(*files, name="small", **more):
    return CharSource(name, "small", files, licence="none", obtain="make it", detail="a fixture", **more)


@pytest.fixture
def know(monkeypatch):
    def add(*sources):
        monkeypatch.setattr(corpus_module, "CORPORA", {source.name: source for source in sources})
        return sources[0]

    return add


@pytest.fixture
def small(know, data):
    """A corpus named small, and the place of its one file."""
    know(a_source(a_file()))
    (data / "small").mkdir()
    return data / "small" / "small"


@pytest.fixture
def pieces(monkeypatch):
    """Sets how many bytes are read at a time."""

    def of(size):
        for module in (obtain, corpus_module):
            monkeypatch.setattr(module, "CHUNK", size)

    return of


# ---- corpora by name ----


def test_a_corpus_is_a_dataset_and_its_shelf_a_shelf(small):
    small.write_bytes(TEXT)
    corpus = prepare("small")
    assert isinstance(corpus, Dataset) and isinstance(SHELF, Shelf)
    assert (corpus.name, corpus.own, corpus.form, corpus.stands_for) == ("small", False, "", None)
    assert SHELF.names() == ("small",)


def test_a_read_only_data_folder_gets_its_cache_elsewhere(small, data, tmp_path, monkeypatch):
    small.write_bytes(TEXT)
    data.chmod(0o555)
    try:
        assert prepare("small").folder == tmp_path / "home" / "multint" / "prepared" / "small"
        monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "given"))
        assert prepare("small").folder == tmp_path / "given" / "small"
    finally:
        data.chmod(0o755)
    monkeypatch.delenv("MULTINT_CACHE")
    assert prepare("small").folder == data / "prepared" / "small"


def test_an_explicit_folder_goes_before_the_environment(small, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "small").write_bytes(TEXT)
    assert prepare("small", other).folder == other / "prepared" / "small"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("small", TEXT[:-1] + b"x", "is not small: expected sha256"),
        ("small.xz", lzma.compress(TEXT)[:-20], "is cut short"),
        ("small.zip", zipped({"small": TEXT, "../../evil": b"x"}), "names a file outside its folder"),
    ],
    ids=["altered", "cut short", "hostile"],
)
def test_nothing_is_prepared_from_a_bad_copy(small, data, name, content, message):
    small.with_name(name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare("small")
    assert not (data / "prepared" / "small").exists() and not leftovers(data) and not list(data.parent.rglob("evil"))


def test_an_absent_corpus_says_where_it_goes_and_what_fetches_it(know, data):
    know(a_source(a_file("small", TEXT, Address("http://127.0.0.1/small"))))
    with pytest.raises(DataError, match=f"no small at {data / 'small' / 'small'} .*fetch it: multint data get small$"):
        prepare("small")
    know(*CORPORA.values())
    others = "or take text8-74M, which stands for it, or take text8-5M, which stands for it$"
    with pytest.raises(DataError, match=f"multint data get text8, {others}"):
        prepare("text8")


def test_a_missing_corpus_is_downloaded_only_on_request(know, server):
    know(a_source(a_file("small", TEXT, Address(f"{server.url}/small", len(TEXT), sum_of(TEXT)))))
    server.content["/small"] = TEXT
    with pytest.raises(DataError, match="no small at"):
        prepare("small")
    assert not server.asked
    assert SHELF.get("small").sha256 == sum_of(TEXT)
    assert len(server.asked) == 1


@pytest.mark.parametrize("call", [prepare, SHELF.get, SHELF.verify])
def test_an_unknown_name_lists_the_known(call):
    with pytest.raises(
        DataError, match="unknown corpus 'text9'.*ptb-a, ptb-b, text8, text8-74M, text8-5M, enwik8, enwik8-5M, python-docs"
    ):
        call("text9")


def test_the_listing_tells_here_from_absent(know, data):
    symbols = len(set(TEXT))
    here = a_source(a_file(), counts=(1908, 106, 106), symbols=symbols)
    gone = a_source(a_file("gone"), name="gone", stands_for="all")
    know(here, gone)
    (data / "small").write_bytes(TEXT)
    assert [line.split()[:2] for line in SHELF.listing()] == [["small", "here"], ["gone", "absent"]]
    prepare("small")
    assert [line.split()[1] for line in SHELF.listing()] == ["prepared", "absent"]
    assert "stands for all" in SHELF.listing()[1]


# ---- preparing ----


def test_prepared_arrays_are_the_text(small):
    small.write_bytes(TEXT)
    corpus = prepare("small")
    assert corpus.symbols == tuple(sorted(set(TEXT.decode())))
    assert [len(a) for a in (corpus.train, corpus.valid, corpus.test)] == [1908, 106, 106]
    assert isinstance(corpus.train, np.memmap) and corpus.train.dtype == np.uint8 and not corpus.train.flags.writeable
    assert corpus.alphabet.decode(corpus.valid) == TEXT[1908:2014].decode()
    assert (
        corpus.alphabet.decode(torch.tensor([[0, 1], [2, 3]]))
        == corpus.alphabet.decode([0, 1, 2, 3])
        == "".join(corpus.symbols[:4])
    )
    assert corpus.alphabet.encode("best times").tolist() == [corpus.symbols.index(c) for c in "best times"]
    assert str(corpus) == f"small: 1,908 / 106 / 106 characters, {len(corpus.symbols)} symbols, sha256 {sum_of(TEXT)}"
    with pytest.raises(DataError, match=r"there is no symbol for 'Z' \(place 3 of the text\)"):
        corpus.alphabet.encode("is Z")


def test_a_second_preparing_reads_what_the_first_wrote(small, monkeypatch):
    small.write_bytes(TEXT)
    prepare("small")
    small.unlink()
    monkeypatch.setattr(corpus_module, "_write", None)
    assert prepare("small").sha256 == sum_of(TEXT)


@pytest.mark.parametrize("trim, dropped", [("leading", 1), ("both", 2)])
def test_three_files_are_three_parts_and_lines_lose_their_spaces(know, data, trim, dropped, pieces):
    pieces(13)  # it must not matter where in a line pieces end
    raw = {"train": LINES, "valid": LINES[:270], "test": LINES[:135]}
    source = a_source(*(a_file(name, content) for name, content in raw.items()), trim=trim)
    know(source)
    for name, content in raw.items():
        (data / name).write_bytes(content)
    corpus = prepare("small")
    for name, content in raw.items():
        want = b"".join(
            line[1:] if trim == "leading" else line[1:].replace(b" \n", b"\n") for line in content.splitlines(keepends=True)
        )
        assert corpus.alphabet.decode(getattr(corpus, name)).encode() == want
        assert len(content) - len(want) == dropped * content.count(b"\n") + (not content.endswith(b"\n"))
    assert corpus.sha256 == sum_of(b"".join(raw.values()))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=40, max_size=400), size=st.integers(1, 50))
def test_any_text_comes_back(tmp_path_factory, text, size):
    folder = tmp_path_factory.mktemp("any")
    (folder / "any.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obtain, "CHUNK", size)
        patch.setattr(corpus_module, "CHUNK", size)
        corpus = prepare_text(folder / "any.txt", folder)
    assert corpus.alphabet.decode(np.concatenate([corpus.train, corpus.valid, corpus.test])) == text
    assert corpus.symbols == tuple(sorted(set(text)))
    assert corpus.alphabet.decode(corpus.alphabet.encode(text)) == text


def test_more_than_256_symbols_take_two_bytes(data):
    text = "".join(chr(0x4E00 + i % 300) for i in range(1000))
    (data / "hanzi.txt").write_text(text, encoding="utf-8")
    corpus = prepare(data / "hanzi.txt")
    assert corpus.train.dtype == np.uint16 and len(corpus.symbols) == 300 and corpus.alphabet.decode(corpus.train) == text[:900]
    as_bytes = prepare_text(data / "hanzi.txt", as_bytes=True)
    assert as_bytes.train.dtype == np.uint8 and len(as_bytes.train) == 2700
    assert (
        as_bytes.alphabet.decode(as_bytes.alphabet.encode(text[:5])) == text[:5]
        and as_bytes.alphabet.decode(as_bytes.train[:4]) == text[0] + "\ufffd"
    )
    pieces = list(as_bytes.alphabet.decoded(as_bytes.alphabet.encode(text[:2]).tolist()))
    assert "".join(pieces) == text[:2] and pieces == ["", "", text[0], "", "", text[1], ""], "whole characters, as they come"
    assert "".join(as_bytes.alphabet.decoded(as_bytes.train[:4].tolist())) == text[0] + "\ufffd"


def test_an_alphabet_spells_without_its_corpus():
    characters, octets = Alphabet(("a", "b", "é")), Alphabet(("a", "Ã", "©"), as_bytes=True)
    for alphabet, ids in ((characters, [2, 0]), (octets, [1, 2, 0])):
        assert alphabet.encode("éa").tolist() == ids
        assert alphabet.decode(ids) == "".join(alphabet.decoded(ids)) == "éa"
    with pytest.raises(DataError, match=r"no symbol for 'b' \(place 0 of the text\); the model knows 'aÃ©'"):
        octets.encode("b")
    assert prepare("python-docs").alphabet == Alphabet(prepare("python-docs").symbols)


def test_a_text_of_the_users_is_its_content_wherever_it_lies(data):
    """Its path is in the key of the cache alone."""
    (data / "other").mkdir()
    here, there, packed = data / "mine.txt", data / "other" / "theirs.txt", data / "mine.txt.xz"
    here.write_bytes(TEXT)
    shutil.copy(here, there)
    packed.write_bytes(lzma.compress(TEXT))
    mine = prepare_text(here)
    assert mine.own and mine.form == "" and mine.stands_for is None
    assert prepare_text(there).sha256 == prepare_text(packed).sha256 == mine.sha256 == sum_of(TEXT)
    assert prepare_text(here).own, "read from the cache it is still the user's"
    octets = prepare_text(here, as_bytes=True)
    assert (octets.own, octets.form, octets.sha256) == (True, "bytes", mine.sha256)


def test_a_file_that_changes_is_prepared_again(data):
    path = data / "mine.txt"
    path.write_bytes(TEXT)
    first = prepare(path)
    path.write_bytes(TEXT * 2)
    assert len(prepare(path).train) == 2 * len(first.train)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "mine.txt is empty"),
        (b"too short", "mine.txt has 9 symbols; at least 40 are needed"),
        (TEXT[:1000] + b"\xff" + TEXT, "not UTF-8 text: byte 0xff at offset 1,000; take it as bytes"),
        (TEXT[:1000] + "ä".encode() + b"\xc3", "not UTF-8 text: byte 0xc3 at offset 1,002"),
        (TEXT[:14] + "é".encode() + b"\xe2\x28" + TEXT, "not UTF-8 text: byte 0xe2 at offset 16"),
    ],
)
def test_a_text_that_cannot_be_a_corpus_says_why(data, pieces, content, message):
    pieces(16)
    (data / "mine.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare_text(data / "mine.txt")
    assert not leftovers(data)


def test_more_symbols_than_two_bytes_can_number_are_refused(data):
    (data / "all.txt").write_text("".join(map(chr, range(0x10000, 0x20002))), encoding="utf-8")
    with pytest.raises(DataError, match="all.txt has 65,538 different characters, more than 65,536; take it as bytes"):
        prepare_text(data / "all.txt")


def test_what_is_no_file_says_so(data):
    with pytest.raises(DataError, match="no such file"):
        prepare_text(data / "none.txt")
    with pytest.raises(DataError, match="is not a file"):
        prepare_text(data)


def test_a_bomb_without_a_stated_size_is_stopped(data):
    (data / "bomb.xz").write_bytes(lzma.compress(bytes(20_000_000)))
    with pytest.raises(DataError, match="unpacks past its stated .* refused"):
        prepare_text(data / "bomb.xz", as_bytes=True)


def test_python_docs_need_nothing(data):
    corpus = prepare("python-docs")
    assert not any((corpus.stands_for, list(data.glob("python-docs"))))
    assert sys.version.split()[0] in corpus.detail
    assert (
        len(corpus.train) > 3_000_000 and len(corpus.valid) == len(corpus.test) == (len(corpus.train) + 2 * len(corpus.valid)) // 20
    )
    assert corpus.train.dtype == np.uint8
    assert prepare("python-docs").sha256 == corpus.sha256


# ---- the cache ----


@pytest.mark.parametrize(
    "harm, reason",
    [
        (lambda folder: os.truncate(folder / "train.npy", 500), "train.npy has 500 bytes, not"),
        (lambda folder: (folder / "valid.npy").unlink(), "No such file"),
        (lambda folder: (folder / "test.npy").write_bytes(b"x" * (folder / "test.npy").stat().st_size), "damaged"),
        (lambda folder: os.truncate(folder / "corpus.json", 100), "damaged"),
        (lambda folder: (folder / "corpus.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "corpus.json").write_text('{"format": 0}'), "format 0, now 2"),
    ],
)
def test_a_damaged_cache_is_made_anew_with_a_message(small, caplog, harm, reason):
    small.write_bytes(TEXT)
    folder = prepare("small").folder
    harm(folder)
    with caplog.at_level(logging.WARNING, "multint"):
        corpus = prepare("small")
    assert reason in caplog.text and "preparing it again" in caplog.text
    assert corpus.alphabet.decode(corpus.train) == TEXT[:1908].decode() and not leftovers(folder.parent)


def test_verify_notices_one_altered_byte(small, caplog):
    small.write_bytes(TEXT)
    folder = prepare("small").folder
    with (folder / "train.npy").open("r+b") as out:
        out.seek(300)
        out.write(b"\x00\x01\x02")
    with caplog.at_level(logging.WARNING, "multint"):
        corpus = SHELF.verify("small")
    assert "train.npy was altered" in caplog.text
    assert corpus.alphabet.decode(corpus.train) == TEXT[:1908].decode()
    caplog.clear()
    SHELF.verify("small")
    assert not caplog.text


def test_arrays_open_before_a_rebuild_stay_readable(small):
    small.write_bytes(TEXT)
    old = prepare("small")
    (old.folder / "corpus.json").unlink()
    prepare("small")
    assert old.alphabet.decode(old.train) == TEXT[:1908].decode()


@pytest.mark.parametrize("locks", [True, False])
def test_many_at_once_prepare_one_cache(small, monkeypatch, locks):
    if not locks:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    small.write_bytes(TEXT)
    built, write = [], corpus_module._write
    monkeypatch.setattr(corpus_module, "_write", lambda *args: built.append(1) or write(*args))
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda _: prepare("small").sha256, range(8)))
    assert sums == [sum_of(TEXT)] * 8 and (len(built) == 1 or not locks)
    assert not leftovers(small.parents[1])


def test_what_a_killed_process_left_is_swept_away(small):
    small.write_bytes(TEXT)
    left = small.parents[1] / "prepared" / ".small~99999-0123abcd.part"
    left.mkdir(parents=True)
    (left / "raw").write_bytes(TEXT)
    prepare("small")
    assert not left.exists()


def test_a_full_disk_leaves_nothing_behind(small, monkeypatch):
    small.write_bytes(TEXT)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="cannot write the prepared arrays .*No space left.*set MULTINT_CACHE"):
        prepare("small")
    assert not leftovers(small.parents[1]) and not (small.parents[1] / "prepared" / "small").exists()


def test_the_description_says_who_made_it_from_what(small):
    small.write_bytes(TEXT)
    note = json.loads((prepare("small").folder / "corpus.json").read_text())
    assert [*note] == ["format", "name", "created_by", "detail", "stands_for", "as_bytes", "sha256", "symbols", "arrays"]
    assert note["format"] == 2 and [*note["arrays"]["train"]] == ["shape", "dtype", "bytes", "sha256"]
    assert note["created_by"].startswith("multint ") and note["sha256"] == sum_of(TEXT)
    assert note["arrays"]["train"]["sha256"] == obtain.sha256_of(prepare("small").folder / "train.npy")


# ---- the real corpora ----

REAL = os.environ.get("MULTINT_DATA")  # read before the fixture above hides it
CACHE = os.environ.get("MULTINT_CACHE")


@pytest.mark.parametrize("name", [name for name, source in CORPORA.items() if source.files])
def test_a_real_corpus_has_the_counts_of_the_literature(name, monkeypatch, tmp_path):
    source = CORPORA[name]
    if REAL is None or not all(obtain.local(source, file, REAL) for file in source.files):
        pytest.skip(f"{name} is not in MULTINT_DATA")
    monkeypatch.setenv("MULTINT_CACHE", CACHE or str(tmp_path))
    corpus = SHELF.verify(name, REAL)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == source.counts
    assert len(corpus.symbols) == source.symbols and corpus.stands_for == source.stands_for
    assert int(corpus.train.max()) == source.symbols - 1, "every symbol occurs in training"


def test_variant_b_has_the_symbols_of_the_published_character_files(monkeypatch, tmp_path):
    source = CORPORA["ptb-b"]
    if REAL is None or not all(obtain.local(source, file, REAL) for file in source.files):
        pytest.skip("ptb-b is not in MULTINT_DATA")
    monkeypatch.setenv("MULTINT_CACHE", CACHE or str(tmp_path))
    corpus = prepare("ptb-b", REAL)
    text = corpus.alphabet.decode(corpus.test).replace(" ", "_")
    assert sum_of("".join(character + " " for character in text).encode()).startswith("1ef5607a")
