"""Books in every form of storage become the same pieces, and odd ones are counted or named."""

import io
import lzma
import tarfile
import zipfile

import pytest

from multint.paper.obtain import DataError
from multint.paper.skipthought import books
from multint.paper.skipthought.books import Books, decoded, own, paragraphs, pieces

TALES = {
    "a.txt": "One fish. Two fish.\n\nRed fish.\n" * 30,
    "b.txt": "Blue fish.\n" * 40,
    "notes/c.txt": "Caf\u00e9 fish.\n" * 20,
}


def folder_of(path, tales=TALES):
    for name, tale in tales.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(tale, encoding="utf-8")
    return path


def joined(found):
    """The books that pieces make up."""
    whole = []
    for piece in found:
        if piece.begins:
            whole.append(b"")
        whole[-1] += piece.body
    return [body.decode() for body in whole]


def zip_of(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name, tale in TALES.items():
            archive.writestr(name, tale)


def tar_of(path):
    with tarfile.open(path, "w:gz") as tar:
        for name, tale in TALES.items():
            info = tarfile.TarInfo(name)
            info.size = len(tale.encode())
            tar.addfile(info, io.BytesIO(tale.encode()))


@pytest.mark.parametrize("storage", ["folder", "zip", "tar.gz", "xz"])
def test_a_folder_an_archive_and_a_compressed_file_hold_books(data, tmp_path, storage, monkeypatch):
    monkeypatch.setattr(books, "PIECE", 100)
    path = tmp_path / f"tales.{storage}"
    if storage == "folder":
        folder_of(path)
    elif storage == "zip":
        zip_of(path)
    elif storage == "tar.gz":
        tar_of(path)
    else:
        path.write_bytes(lzma.compress("".join(TALES.values()).encode()))
    found = own(path, "books")
    assert joined(pieces(found)) == (list(TALES.values()) if storage != "xz" else ["".join(TALES.values())])
    assert [piece.number for piece in pieces(found)] == list(range(len(list(pieces(found)))))


def test_pieces_end_at_empty_lines_or_at_least_at_lines(monkeypatch):
    monkeypatch.setattr(books, "PIECE", 20)
    assert list(books._cut([b"one two\n\nthree four five\nsix"], "books")) == [b"one two\n", b"\nthree four five\n", b"six"]
    assert list(books._cut([b"one\n", b"two\nthree\nfour and five\n"], "tokens")) == [b"one\ntwo\nthree\n", b"four and five\n"]
    assert list(books._cut([b"a line that is longer than a piece\nnext"], "tokens")) == [
        b"a line that is longer than a piece\n",
        b"next",
    ]


def test_pieces_do_not_depend_on_how_a_file_is_read(monkeypatch):
    monkeypatch.setattr(books, "PIECE", 50)
    content = "".join(TALES.values()).encode()
    whole = list(books._cut([content], "books"))
    assert list(books._cut([content[k : k + 7] for k in range(0, len(content), 7)], "books")) == whole
    assert b"".join(whole) == content


def test_files_that_are_no_text_are_left_out_and_named(data, tmp_path, caplog):
    folder_of(tmp_path / "tales")
    (tmp_path / "tales" / "cover.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "tales" / "z.txt").write_bytes(b"PK\0\0\0\0")
    assert joined(pieces(own(tmp_path / "tales", "books"))) == list(TALES.values())
    assert "1 files are no text and are left out: cover.jpg" in caplog.text
    assert "z.txt is no text and is left out" in caplog.text


def test_bytes_that_are_not_utf_8_are_read_as_windows_1252_and_counted():
    assert decoded("\ufeffd\u00e9j\u00e0".encode()) == ("d\u00e9j\u00e0", 0)
    assert decoded(b"caf\xe9 \x93so\x94 \xc3\xa9 end") == ("caf\u00e9 \u201cso\u201d \u00e9 end", 3)
    assert decoded(b"\xc3") == ("\u00c3", 1)
    assert decoded(b"\x81 x") == ("\ufffd x", 1)  # a byte that Windows-1252 does not have either


def test_wrapped_text_is_joined_up_to_an_empty_line():
    assert paragraphs(["It was the", "best of times.", "", "It was", "the worst."]) == [
        "It was the best of times.",
        "It was the worst.",
    ]
    assert paragraphs(["One.", "Two."]) == ["One.", "Two."]
    assert paragraphs(["A" * 300, "", "B" * 300, "C"]) == ["A" * 300, "B" * 300, "C"]  # long lines: a paragraph each
    assert paragraphs(["", " "]) == []


def test_books_are_known_by_their_content_not_by_their_place(data, tmp_path):
    one, other = (own(folder_of(tmp_path / name), "books") for name in ("here", "there"))
    assert one.sha256 == other.sha256
    (tmp_path / "there" / "b.txt").write_text("Green fish.\n")
    assert own(tmp_path / "there", "books").sha256 != one.sha256


def test_sums_are_taken_once_while_a_file_stays_as_it_is(data, tmp_path, monkeypatch):
    first = own(folder_of(tmp_path / "tales"), "books")
    taken = []
    real = books.obtain.sha256_of
    monkeypatch.setattr(books.obtain, "sha256_of", lambda path: taken.append(path.name) or real(path))
    assert own(tmp_path / "tales", "books") == first and not taken
    (tmp_path / "tales" / "a.txt").write_text("A new one.")
    assert own(tmp_path / "tales", "books").sha256 != first.sha256 and taken == ["a.txt"]


def test_a_place_without_books_is_named(data, tmp_path):
    with pytest.raises(DataError, match="there are no books at"):
        own(tmp_path / "nowhere", "books")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no book: no file that ends in .txt"):
        own(tmp_path / "empty", "books")


@pytest.mark.parametrize("name", ["torn.zip", "torn.tar.gz", "torn.txt.xz"])
def test_an_archive_that_is_torn_is_named(data, tmp_path, name):
    path = tmp_path / name
    {"zip": zip_of, "gz": tar_of, "xz": lambda p: p.write_bytes(lzma.compress(b"text " * 10**5))}[name.rpartition(".")[2]](path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=name):
        list(pieces(Books("torn", (path,), "0")))
