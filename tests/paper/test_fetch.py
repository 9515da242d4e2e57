"""Fetch: what is downloaded, unpacked and prepared is whole or is not there."""

import bz2
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multint.paper import fetch
from multint.paper.fetch import DataError, prepare, prepare_text, verify
from multint.paper.sources import CORPORA, Address, File, Source

TEXT = ("It was the best of times, it was the worst of times. " * 40).encode()
LINES = b"".join(b" line %d of a small corpus \n" % i for i in range(50))


def a_file(name="small", content=TEXT, *addresses, **more):
    return File(name, len(content), hashlib.sha256(content).hexdigest(), addresses, **more)


def a_source(*files, name="small", **more):
    return Source(name, "small", files, licence="none", obtain="make it", detail="a fixture", **more)


def sum_of(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """An empty data folder, and no way to the user's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MULTINT_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MULTINT_CACHE", raising=False)
    return folder


@pytest.fixture
def know(monkeypatch):
    def add(*sources):
        monkeypatch.setattr(fetch, "CORPORA", {source.name: source for source in sources})
        return sources[0]

    return add


@pytest.fixture
def small(know, data):
    """A corpus named small, and the place of its one file."""
    know(a_source(a_file()))
    (data / "small").mkdir()
    return data / "small" / "small"


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def leftovers(folder):
    return [p.name for p in folder.rglob("*") if "partial" in p.name or p.name == "raw"]


# ---- folders and local copies ----


@pytest.mark.parametrize(
    "name, pack",
    [
        ("small/small", bytes),
        ("small/small.xz", lzma.compress),
        ("small.gz", gzip.compress),
        ("small/small.bz2", bz2.compress),
        ("small.zip", lambda raw: zipped({"small": raw})),
        ("small/small.zip", lambda raw: zipped({"notes/README": b"hello", "inner/small": raw})),
        ("small/examples.tgz", lambda raw: tarred({"./README": b"hello", "./examples/small": raw})),
        ("examples/small", bytes),
    ],
)
def test_a_local_copy_is_found_packed_or_not(know, data, name, pack):
    know(a_source(a_file("small", TEXT, Address("http://127.0.0.1/examples.tgz", member="examples/small"))))
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(pack(TEXT))
    corpus = prepare("small")
    assert corpus.decode(np.concatenate([corpus.train, corpus.valid, corpus.test])).encode() == TEXT
    assert corpus.sha256 == sum_of(TEXT)


def test_the_head_of_a_longer_file_serves_as_well(know, data):
    know(a_source(a_file("first1000", TEXT[:1000], head_of=("longer", "whole"))))
    (data / "whole.zip").write_bytes(zipped({"whole": TEXT}))
    assert prepare("small").sha256 == sum_of(TEXT[:1000])


def test_a_read_only_data_folder_gets_its_cache_elsewhere(small, data, tmp_path, monkeypatch):
    small.write_bytes(TEXT)
    data.chmod(0o555)
    try:
        assert prepare("small").folder == tmp_path / "home" / "multint" / "prepared" / "small"
        monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "chosen"))
        assert prepare("small").folder == tmp_path / "chosen" / "small"
    finally:
        data.chmod(0o755)
    monkeypatch.delenv("MULTINT_CACHE")
    assert prepare("small").folder == data / "prepared" / "small"


def test_an_explicit_folder_goes_before_the_environment(small, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "small").write_bytes(TEXT)
    assert prepare("small", other).folder == other / "prepared" / "small"


# ---- what can be wrong with a local copy ----


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "small",
            TEXT[:-1] + b"x",
            "is not small: expected sha256 [0-9a-f]{64}, got [0-9a-f]{64}; delete it and run: multint data get small",
        ),
        ("small", TEXT[:-1], "holds 2,119 bytes of small's 2,120"),
        ("small", b"", "is empty"),
        ("small", TEXT + b"x", "is longer than 2,120 bytes: refused"),
        ("small.xz", lzma.compress(TEXT)[:-20], "is cut short"),
        ("small.gz", gzip.compress(TEXT)[:-20], "is cut short"),
        ("small.bz2", bz2.compress(TEXT)[:-20], "is cut short"),
        ("small.zip", zipped({"small": TEXT})[:-30], "cannot be read"),
        ("small.xz", lzma.compress(TEXT)[:60] + b"corrupt" + lzma.compress(TEXT)[67:], "cannot be read"),
        ("small.gz", b"no gzip at all" * 9, "cannot be read"),
        ("small.xz", lzma.compress(TEXT + bytes(10_000_000)), "unpacks past its stated 2,120 bytes: refused"),
        ("small.zip", zipped({"small": TEXT + bytes(10_000)}), "states 12,120 bytes for small, more than 2,120: refused"),
        ("small.zip", zipped({"small": TEXT, "../../evil": b"x"}), r"names a file outside its folder \(../../evil\): refused"),
        ("small.zip", zipped({"small": TEXT, "/evil": b"x"}), "names a file outside its folder"),
        ("small.zip", zipped({"small": TEXT, "a\\..\\..\\evil": b"x"}), "names a file outside its folder"),
        ("small.zip", zipped({"a": TEXT, "b": TEXT}), "holds 2 files and no single small"),
        ("examples.tgz", tarred({"../evil": b"x", "examples/small": TEXT}), "names a file outside its folder"),
        ("examples.tgz", tarred({"examples/other": TEXT}), "holds no examples/small"),
        ("examples.tgz", tarred({"a": b"x" * 99_999, "examples/small": TEXT})[:-40], "is cut short|cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",  # an archive holds the time it was made
)
def test_a_bad_copy_is_refused_in_one_line(know, data, name, content, message):
    know(a_source(a_file("small", TEXT, Address("http://127.0.0.1/examples.tgz", member="examples/small"))))
    (data / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        prepare("small")
    assert str(data / name) in str(caught.value) and "\n" not in str(caught.value)
    assert not (data / "prepared" / "small").exists() and not leftovers(data) and not list(data.parent.rglob("evil"))


def test_a_zip_that_lies_about_its_size_is_stopped(small):
    """The directory states 2,120 bytes, the deflated stream holds more."""
    packed = zipped({"small": TEXT + bytes(100_000)})
    lie = packed.replace((len(TEXT) + 100_000).to_bytes(4, "little"), len(TEXT).to_bytes(4, "little"))
    assert lie != packed
    small.with_name("small.zip").write_bytes(lie)
    with pytest.raises(DataError, match="cannot be read|is not small|refused"):
        prepare("small")


def test_an_absent_corpus_says_where_it_goes_and_what_fetches_it(small, know):
    with pytest.raises(DataError, match=f"no small at {small} .*fetch it: multint data get small$"):
        prepare("small")
    know(*CORPORA.values())
    with pytest.raises(DataError, match="multint data get text8, or take text8-74M, which stands for it, or take text8-5M, which stands for it$"):
        fetch.copies("text8")


@pytest.mark.parametrize("call", [prepare, verify, fetch.fetch])
def test_an_unknown_name_lists_the_known(call):
    with pytest.raises(
        DataError, match="unknown corpus 'text9'.*ptb-a, ptb-b, text8, text8-74M, text8-5M, enwik8, enwik8-5M, python-docs"
    ):
        call("text9")


# ---- preparing ----


def test_prepared_arrays_are_the_text(small):
    small.write_bytes(TEXT)
    corpus = prepare("small")
    assert corpus.symbols == tuple(sorted(set(TEXT.decode())))
    assert [len(a) for a in (corpus.train, corpus.valid, corpus.test)] == [1908, 106, 106]
    assert isinstance(corpus.train, np.memmap) and corpus.train.dtype == np.uint8 and not corpus.train.flags.writeable
    assert corpus.decode(corpus.valid) == TEXT[1908:2014].decode()
    assert corpus.decode(torch.tensor([[0, 1], [2, 3]])) == corpus.decode([0, 1, 2, 3]) == "".join(corpus.symbols[:4])
    assert corpus.encode("best times").tolist() == [corpus.symbols.index(c) for c in "best times"]
    assert str(corpus) == f"small: 1,908 / 106 / 106 characters, {len(corpus.symbols)} symbols, sha256 {sum_of(TEXT)}"
    with pytest.raises(DataError, match=r"small has no symbol for 'Z' \(place 3 of the text\)"):
        corpus.encode("is Z")


def test_a_second_preparing_reads_what_the_first_wrote(small, monkeypatch):
    small.write_bytes(TEXT)
    prepare("small")
    small.unlink()
    monkeypatch.setattr(fetch, "_build", None)
    assert prepare("small").sha256 == sum_of(TEXT)


@pytest.mark.parametrize("trim, dropped", [("leading", 1), ("both", 2)])
def test_three_files_are_three_parts_and_lines_lose_their_spaces(know, data, trim, dropped, monkeypatch):
    monkeypatch.setattr(fetch, "CHUNK", 13)  # lines must not care where pieces end
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
        assert corpus.decode(getattr(corpus, name)).encode() == want
        assert len(content) - len(want) == dropped * content.count(b"\n") + (not content.endswith(b"\n"))
    assert corpus.sha256 == sum_of(b"".join(raw.values()))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=40, max_size=400), size=st.integers(1, 50))
def test_any_text_comes_back(tmp_path_factory, text, size):
    folder = tmp_path_factory.mktemp("any")
    (folder / "any.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "CHUNK", size)
        corpus = prepare_text(folder / "any.txt", folder)
    assert corpus.decode(np.concatenate([corpus.train, corpus.valid, corpus.test])) == text
    assert corpus.symbols == tuple(sorted(set(text)))
    assert corpus.decode(corpus.encode(text)) == text


def test_more_than_256_symbols_take_two_bytes(data):
    text = "".join(chr(0x4E00 + i % 300) for i in range(1000))
    (data / "hanzi.txt").write_text(text, encoding="utf-8")
    corpus = prepare(data / "hanzi.txt")
    assert corpus.train.dtype == np.uint16 and len(corpus.symbols) == 300 and corpus.decode(corpus.train) == text[:900]
    as_bytes = prepare_text(data / "hanzi.txt", as_bytes=True)
    assert as_bytes.train.dtype == np.uint8 and len(as_bytes.train) == 2700
    assert as_bytes.decode(as_bytes.encode(text[:5])) == text[:5] and as_bytes.decode(as_bytes.train[:4]) == text[0] + "\ufffd"
    pieces = list(as_bytes.decoded(as_bytes.encode(text[:2]).tolist()))
    assert "".join(pieces) == text[:2] and pieces == ["", "", text[0], "", "", text[1], ""], "whole characters, as they come"
    assert "".join(as_bytes.decoded(as_bytes.train[:4].tolist())) == text[0] + "\ufffd"


def test_a_file_that_changes_is_prepared_anew(data):
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
def test_a_text_that_cannot_be_a_corpus_says_why(data, monkeypatch, content, message):
    monkeypatch.setattr(fetch, "CHUNK", 16)
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
        (lambda folder: (folder / "corpus.json").write_text('{"format": 0}'), "format 0, now 1"),
    ],
)
def test_a_damaged_cache_is_made_anew_with_a_message(small, caplog, harm, reason):
    small.write_bytes(TEXT)
    folder = prepare("small").folder
    harm(folder)
    with caplog.at_level(logging.WARNING, "multint"):
        corpus = prepare("small")
    assert reason in caplog.text and "preparing it anew" in caplog.text
    assert corpus.decode(corpus.train) == TEXT[:1908].decode() and not leftovers(folder.parent)


def test_verify_notices_one_altered_byte(small, caplog):
    small.write_bytes(TEXT)
    folder = prepare("small").folder
    with (folder / "train.npy").open("r+b") as out:
        out.seek(300)
        out.write(b"\x00\x01\x02")
    with caplog.at_level(logging.WARNING, "multint"):
        corpus = verify("small")
    assert "train.npy was altered" in caplog.text
    assert corpus.decode(corpus.train) == TEXT[:1908].decode()
    caplog.clear()
    verify("small")
    assert not caplog.text


def test_arrays_open_before_a_rebuild_stay_readable(small):
    small.write_bytes(TEXT)
    old = prepare("small")
    (old.folder / "corpus.json").unlink()
    prepare("small")
    assert old.decode(old.train) == TEXT[:1908].decode()


@pytest.mark.parametrize("locks", [True, False])
def test_many_at_once_prepare_one_cache(small, monkeypatch, locks):
    if not locks:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    small.write_bytes(TEXT)
    built, write = [], fetch._write
    monkeypatch.setattr(fetch, "_write", lambda *args: built.append(1) or write(*args))
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda _: prepare("small").sha256, range(8)))
    assert sums == [sum_of(TEXT)] * 8 and (len(built) == 1 or not locks)
    assert not leftovers(small.parents[1])


def test_what_a_killed_process_left_is_swept_away(small):
    small.write_bytes(TEXT)
    left = small.parents[1] / "prepared" / ".small~99999-0123abcd.partial"
    left.mkdir(parents=True)
    (left / "raw").write_bytes(TEXT)
    prepare("small")
    assert not left.exists()


def test_a_full_disk_leaves_nothing_behind(small, monkeypatch):
    small.write_bytes(TEXT)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.os, "fsync", full)
    with pytest.raises(DataError, match="cannot write the prepared arrays .*No space left.*set MULTINT_CACHE"):
        prepare("small")
    assert not leftovers(small.parents[1]) and not (small.parents[1] / "prepared" / "small").exists()


def test_the_description_says_who_made_it_from_what(small):
    small.write_bytes(TEXT)
    note = json.loads((prepare("small").folder / "corpus.json").read_text())
    assert note["created_by"].startswith("multint ") and note["sha256"] == sum_of(TEXT)
    assert note["arrays"]["train"]["sha256"] == fetch.sha256_of(prepare("small").folder / "train.npy")


# ---- download ----


class Server:
    """Serves ``content`` by path; can stop short, ignore ranges, or send something else."""

    def __init__(self, content):
        self.content, self.cut, self.ranges, self.asked = content, None, True, []

    @contextmanager
    def running(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append((self.path, self.headers.get("Range")))
                content = server.content.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                wanted = self.headers.get("Range") if server.ranges else None
                first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if first >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(content) - first))
                self.end_headers()
                self.wfile.write(content[first : server.cut])

            def log_message(self, *args):
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield self
        finally:
            http.shutdown()
            thread.join()
            http.server_close()


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server({}).running() as running:
        yield running


@pytest.fixture
def remote(know, server):
    """A corpus served as small.zip, with its sum known."""
    raw = np.random.default_rng(0).bytes(200_000)
    archive = zipped({"small": raw})
    server.content["/small.zip"] = archive
    address = Address(f"{server.url}/small.zip", len(archive), sum_of(archive), member="small")
    know(a_source(a_file("small", raw, address), as_bytes=True))
    return archive


def test_a_download_is_checked_and_named_and_made_once(remote, server, data):
    assert fetch.fetch("small") == [data / "small" / "small.zip"]
    assert (data / "small" / "small.zip").read_bytes() == remote
    prepare("small", download=True)
    assert len(server.asked) == 1 and not leftovers(data)


def test_a_broken_download_is_taken_up_where_it_stopped(remote, server, data):
    server.cut = 150_000
    with pytest.raises(DataError, match="small: could not fetch small .*get it yourself and put it at"):
        fetch.fetch("small")
    assert not (data / "small" / "small.zip").exists()
    have = (data / "small" / "partial-small.zip").stat().st_size
    assert 0 < have <= server.cut
    server.cut = None
    fetch.fetch("small")
    assert server.asked[-1] == ("/small.zip", f"bytes={have}-")
    assert (data / "small" / "small.zip").read_bytes() == remote and not leftovers(data)


@pytest.mark.parametrize("start", ["right", "wrong", "whole", "longer"])
@pytest.mark.parametrize("ranges", [True, False])
def test_whatever_was_left_of_a_download_the_result_is_right(remote, server, data, start, ranges):
    server.ranges = ranges
    left = {"right": remote[:500], "wrong": b"x" * 500, "whole": remote, "longer": remote + b"x"}[start]
    (data / "small").mkdir()
    (data / "small" / "partial-small.zip").write_bytes(left)
    fetch.fetch("small")
    assert (data / "small" / "small.zip").read_bytes() == remote and not leftovers(data)


@pytest.mark.parametrize("served", [b"<html>moved</html>", b"x" * 300_000])
def test_a_server_that_sends_something_else_is_not_believed(remote, server, data, served):
    server.content["/small.zip"] = served
    with pytest.raises(DataError, match="wrong content|sends more than|bytes came"):
        fetch.fetch("small")
    assert not (data / "small" / "small.zip").exists()
    server.content["/small.zip"] = remote
    fetch.fetch("small")
    assert prepare("small").as_bytes


def test_without_a_published_sum_the_content_is_checked(know, server, data):
    address = Address(f"{server.url}/examples.tgz", member="examples/small")
    know(a_source(a_file("small", TEXT, address)))
    server.content["/examples.tgz"] = tarred({"examples/small": TEXT[:-1] + b"x"})
    with pytest.raises(DataError, match="is not small: expected sha256"):
        fetch.fetch("small")
    assert not list(data.rglob("*.tgz"))
    server.content["/examples.tgz"] = tarred({"examples/small": TEXT})
    fetch.fetch("small")
    assert prepare("small").sha256 == sum_of(TEXT)


def test_the_next_address_is_tried(know, server):
    addresses = [Address(f"{server.url}/{path}", len(TEXT), sum_of(TEXT)) for path in ("gone/small", "here/small")]
    know(a_source(a_file("small", TEXT, *addresses)))
    server.content["/here/small"] = TEXT
    fetch.fetch("small")
    assert [path for path, _ in server.asked] == ["/gone/small", "/here/small"]


def test_two_at_once_download_once(remote, server, data):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch.fetch("small"), range(4)))
    assert len(server.asked) == 1 and (data / "small" / "small.zip").read_bytes() == remote


def test_no_network_is_one_line(know, data, monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    know(a_source(a_file("small", TEXT, Address("http://127.0.0.1:9/small", len(TEXT), sum_of(TEXT)))))
    with pytest.raises(DataError, match=f"get it yourself and put it at {data / 'small' / 'small'}") as caught:
        fetch.fetch("small")
    assert "\n" not in str(caught.value)


def test_without_pooch_the_message_says_so(know, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    know(a_source(a_file("small", TEXT, Address("http://127.0.0.1:9/small", len(TEXT), sum_of(TEXT)))))
    with pytest.raises(DataError, match=r"downloads need pooch: pip install 'multint\[paper\]'.*put it at"):
        fetch.fetch("small")


def test_progress_goes_to_stderr(capsys):
    out = io.BytesIO()
    sink = fetch._Sink(out, Address("http://127.0.0.1/small", 3_000_000), 1_000_000, show=True)
    sink.write(bytes(500_000))
    sink.tell("\n")
    assert capsys.readouterr().err == "\rsmall: 1.5 of 3.0 MB\rsmall: 1.5 of 3.0 MB\n"


def test_the_listing_tells_here_from_absent(know, data):
    here, gone = a_source(a_file(), counts=(1908, 106, 106), symbols=14), a_source(a_file("gone"), name="gone", stands_for="all")
    here = replace(here, symbols=len(set(TEXT)))
    know(here, gone)
    (data / "small").write_bytes(TEXT)
    assert [line.split()[:2] for line in fetch.listing()] == [["small", "here"], ["gone", "absent"]]
    prepare("small")
    assert [line.split()[1] for line in fetch.listing()] == ["prepared", "absent"]
    assert "stands for all" in fetch.listing()[1]


# ---- the real corpora ----

REAL = os.environ.get("MULTINT_DATA")  # read before the fixture above hides it
CACHE = os.environ.get("MULTINT_CACHE")


@pytest.mark.parametrize("name", [name for name, source in CORPORA.items() if source.files])
def test_a_real_corpus_has_the_counts_of_the_literature(name, monkeypatch, tmp_path):
    source = CORPORA[name]
    if REAL is None or not all(fetch.local(file, source.folder, REAL) for file in source.files):
        pytest.skip(f"{name} is not in MULTINT_DATA")
    monkeypatch.setenv("MULTINT_CACHE", CACHE or str(tmp_path))
    corpus = verify(name, REAL)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == source.counts
    assert len(corpus.symbols) == source.symbols and corpus.stands_for == source.stands_for
    assert int(corpus.train.max()) == source.symbols - 1, "every symbol occurs in training"


def test_variant_b_has_the_symbols_of_the_published_character_files(monkeypatch, tmp_path):
    if REAL is None or not all(fetch.local(file, "ptb", REAL) for file in CORPORA["ptb-b"].files):
        pytest.skip("ptb-b is not in MULTINT_DATA")
    monkeypatch.setenv("MULTINT_CACHE", CACHE or str(tmp_path))
    corpus = prepare("ptb-b", REAL)
    text = corpus.decode(corpus.test).replace(" ", "_")
    assert sum_of("".join(character + " " for character in text).encode()).startswith("1ef5607a")
