"""Obtain: what is downloaded and unpacked is complete and right, or is not there."""

import bz2
import errno
import gzip
import io
import lzma
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from corpora import TEXT, a_file, leftovers, sum_of, tarred, zipped

from multint.paper import obtain
from multint.paper.obtain import DataError, cache_folder, copies, fetch, verified
from multint.paper.sources import Address, Source

pytestmark = pytest.mark.usefixtures("data")


def a_source(*files, name="small", **more):
    return Source(name, "small", files, licence="none", obtain="a copy from its author", detail="a fixture", **more)


BINARY = np.random.default_rng(0).bytes(200_000)
SMALL = a_source(a_file())
ARCHIVED = a_source(a_file("small", TEXT, Address("http://127.0.0.1/examples.tgz", member="examples/small")))


def contents(source):
    """The verified content of every file, from local copies."""
    return [b"".join(verified(source, file, copy)) for file, copy in zip(source.files, copies(source), strict=True)]


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
def test_a_local_copy_serves_packed_or_not(data, name, pack):
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(pack(TEXT))
    assert contents(ARCHIVED) == [TEXT]


def test_the_head_of_a_longer_file_serves_as_well(data):
    source = a_source(a_file("first1000", TEXT[:1000], head_of=("longer", "complete")))
    (data / "complete.zip").write_bytes(zipped({"complete": TEXT}))
    assert contents(source) == [TEXT[:1000]]


def test_a_file_that_is_an_archive_stays_packed(data):
    """Speech comes as an archive of many files, whose sum is published."""
    archive = tarred({"speech/1.wav": b"one", "speech/2.wav": b"two"})
    (data / "speech.tar.gz").write_bytes(archive)
    assert contents(a_source(a_file("speech.tar.gz", archive))) == [archive]


def test_a_member_is_taken_by_its_path_where_two_have_its_name(data):
    parts = [a_file(name, raw, Address("http://127.0.0.1/all.zip", member=f"{name}/x")) for name, raw in (("a", b"1"), ("b", b"2"))]
    (data / "all.zip").write_bytes(zipped({"a/x": b"1", "b/x": b"2"}))
    assert contents(a_source(*parts)) == [b"1", b"2"]


def test_a_read_only_data_folder_gets_its_cache_elsewhere(data, tmp_path, monkeypatch):
    data.chmod(0o555)
    try:
        assert cache_folder() == tmp_path / "home" / "multint" / "prepared"
        monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "given"))
        assert cache_folder() == tmp_path / "given"
    finally:
        data.chmod(0o755)
    monkeypatch.delenv("MULTINT_CACHE")
    assert cache_folder() == data / "prepared"


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
def test_a_bad_copy_is_refused_in_one_line(data, name, content, message):
    (data / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        contents(ARCHIVED)
    assert str(data / name) in str(caught.value) and "\n" not in str(caught.value)
    assert not leftovers(data) and not list(data.parent.rglob("evil"))


def test_a_zip_that_lies_about_its_size_is_stopped(data):
    """The directory states 2,120 bytes, the deflated stream holds more."""
    packed = zipped({"small": TEXT + bytes(100_000)})
    lie = packed.replace((len(TEXT) + 100_000).to_bytes(4, "little"), len(TEXT).to_bytes(4, "little"))
    assert lie != packed
    (data / "small.zip").write_bytes(lie)
    with pytest.raises(DataError, match="cannot be read|is not small|refused"):
        contents(SMALL)


def test_an_absent_file_says_where_it_goes_and_what_fetches_it(data):
    place = data / "small" / "small"
    with pytest.raises(DataError, match=f"^small: no small at {place} .*; fetch it: multint data get small$"):
        copies(ARCHIVED)
    with pytest.raises(DataError, match="get small, or take half, which stands for it, or take tenth, which stands for it$"):
        copies(ARCHIVED, stand_ins=["half", "tenth"])


@pytest.mark.parametrize("call", [copies, fetch])
def test_a_file_that_cannot_be_downloaded_says_how_it_is_obtained(data, call):
    place = data / "small" / "small"
    way_out = r"it cannot be downloaded, so obtain it yourself \(a copy from its author\) and put it there"
    with pytest.raises(DataError, match=f"^small: no small at {place} .*; {way_out}, or take half, which stands for it$"):
        call(SMALL, stand_ins=["half"])
    place.parent.mkdir()
    place.write_bytes(TEXT[:-1])
    with pytest.raises(DataError, match="holds 2,119 bytes of small's 2,120; put the right one there: a copy from its author"):
        contents(SMALL)
    place.write_bytes(TEXT)
    assert fetch(SMALL) == [place] and contents(SMALL) == [TEXT]


# ---- download ----


@pytest.fixture
def archive(server):
    """Two small binaries in a zip that is served as pair.zip."""
    content = zipped({"train.bin": BINARY, "pair/test.bin": BINARY[:1000]})
    server.content["/pair.zip"] = content
    return content


@pytest.fixture
def pair(server, archive):
    """The corpus of these binaries, the sum of the zip known."""
    address = Address(f"{server.url}/pair.zip", len(archive), sum_of(archive))
    files = [
        a_file(name, raw, replace(address, member=member))
        for name, raw, member in (("train.bin", BINARY, "train.bin"), ("test.bin", BINARY[:1000], "pair/test.bin"))
    ]
    return a_source(*files, name="pair")


@pytest.fixture
def place(data):
    """Where the zip belongs."""
    return data / "small" / "pair.zip"


def test_a_download_is_checked_and_named_and_made_once(pair, archive, server, data, place):
    assert fetch(pair) == [place] and place.read_bytes() == archive
    assert contents(pair) == [BINARY, BINARY[:1000]]
    assert fetch(pair) == [place]
    assert len(server.asked) == 1 and not leftovers(data)


def test_a_broken_download_is_taken_up_where_it_stopped(pair, archive, server, data, place):
    server.cut = 150_000
    with pytest.raises(DataError, match="pair: could not fetch train.bin .*get it yourself and put it at"):
        fetch(pair)
    assert not place.exists()
    have = place.with_name("partial-pair.zip").stat().st_size
    assert 0 < have <= server.cut
    server.cut = None
    fetch(pair)
    assert server.asked[-1] == ("/pair.zip", f"bytes={have}-")
    assert place.read_bytes() == archive and not leftovers(data)


@pytest.mark.parametrize("start", ["right", "wrong", "complete", "longer"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_is_right_with_any_partial_file_before_it(pair, archive, server, data, place, start, ranges):
    server.ranges = ranges
    left = {"right": archive[:500], "wrong": b"x" * 500, "complete": archive, "longer": archive + b"x"}[start]
    place.parent.mkdir()
    place.with_name("partial-pair.zip").write_bytes(left)
    fetch(pair)
    assert place.read_bytes() == archive and not leftovers(data)


@pytest.mark.parametrize("other", [b"<html>moved</html>", b"x" * 300_000])
def test_a_server_that_sends_something_else_is_not_believed(pair, archive, server, place, other):
    server.content["/pair.zip"] = other
    with pytest.raises(DataError, match="wrong content|sends more than|bytes came"):
        fetch(pair)
    assert not place.exists()
    server.content["/pair.zip"] = archive
    fetch(pair)
    assert contents(pair) == [BINARY, BINARY[:1000]]


@pytest.mark.parametrize(
    "name, member, pack",
    [
        ("examples.tgz", "examples/small", lambda raw: tarred({"examples/small": raw})),
        ("data.zip", None, lambda raw: zipped({"anything": raw})),
        ("small", None, bytes),
    ],
)
def test_without_a_published_sum_the_content_is_checked(server, data, name, member, pack):
    source = a_source(a_file("small", TEXT, Address(f"{server.url}/{name}", member=member)))
    server.content[f"/{name}"] = pack(TEXT[:-1] + b"x")
    with pytest.raises(DataError, match="is not small: expected sha256"):
        fetch(source)
    assert not [path for path in data.rglob(f"*{name}") if path.is_file()]
    server.content[f"/{name}"] = pack(TEXT)
    assert fetch(source) == [data / "small" / name] and contents(source) == [TEXT]


def test_the_next_address_is_tried(server):
    addresses = [Address(f"{server.url}/{path}", len(TEXT), sum_of(TEXT)) for path in ("gone/small", "here/small")]
    server.content["/here/small"] = TEXT
    fetch(a_source(a_file("small", TEXT, *addresses)))
    assert [path for path, _ in server.asked] == ["/gone/small", "/here/small"]


def test_two_at_once_download_once(pair, archive, server, place):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch(pair), range(4)))
    assert len(server.asked) == 1 and place.read_bytes() == archive


UNREACHABLE = a_source(a_file("small", TEXT, Address("http://127.0.0.1:9/small", len(TEXT), sum_of(TEXT))))


def test_no_network_is_one_line(data, monkeypatch):
    pytest.importorskip("requests")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(DataError, match=f"get it yourself and put it at {data / 'small' / 'small'}") as caught:
        fetch(UNREACHABLE)
    assert "\n" not in str(caught.value)


def test_without_requests_the_message_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(DataError, match=r"downloads need requests: pip install 'multint\[paper\]'.*put it at"):
        fetch(UNREACHABLE)


def test_a_download_goes_to_the_users_folder_where_the_data_folder_is_read_only(pair, data, tmp_path):
    data.chmod(0o555)
    try:
        assert fetch(pair) == [tmp_path / "home" / "multint" / "small" / "pair.zip"]
    finally:
        data.chmod(0o755)


def test_a_full_disk_is_one_line_and_publishes_nothing(pair, data, place, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="could not fetch train.bin .*No space left on device"):
        fetch(pair)
    assert not place.exists()


def test_progress_goes_to_stderr(capsys):
    out = io.BytesIO()
    obtain._append([bytes(500_000)], out, Address("http://127.0.0.1/small", 3_000_000), 1_000_000, show=True)
    assert capsys.readouterr().err == "\rsmall: 1.5 of 3.0 MB\rsmall: 1.5 of 3.0 MB\n"
