"""Books become sentences in the spelling of transcripts."""

import gzip
import lzma

import pytest

from multint.paper.obtain import DataError
from multint.paper.speech.sentences import books, lines, prepared, spelled, split


@pytest.mark.parametrize(
    "text, words",
    [
        ("It's o'clock", "IT'S O'CLOCK"),
        ("'Tis the boys' ‘house’", "TIS THE BOYS HOUSE"),
        ("well-known -- and_so—on", "WELL KNOWN AND SO ON"),
        ("Zoë, Æsop, œuvre, Łódź, naïve", "ZOE AESOP OEUVRE LODZ NAIVE"),
        ("in 1,845 at 3rd st., 10.30 o'clock", "IN <unk> AT <unk> ST <unk> O'CLOCK"),
        ("... -- !", ""),
    ],
)
def test_text_is_spelled_in_capitals(text, words):
    assert spelled(text) == words


def test_a_paragraph_is_split_at_its_full_stops_and_not_at_abbreviations_and_initials():
    paragraph = "\"Stop,\" said Mr. J. B. Smith. 'Why?' he asked... (Yes.) At St. Paul's, No. 4. -- Etc. etc. ends. And on"
    assert list(split(paragraph)) == [
        "STOP SAID MR J B SMITH",
        "WHY",
        "HE ASKED",
        "YES",
        "AT ST PAUL'S NO <unk>",
        "ETC",
        "ETC ENDS",
        "AND ON",
    ]


@pytest.fixture
def shelf(tmp_path):
    path = tmp_path / "books.txt.xz"
    path.write_bytes(lzma.compress(b"=== a/one\nFirst. Second!\n=== a/two\nThird.\n\n=== b\nFourth"))
    return path


def test_books_that_are_left_out_give_no_sentence(shelf):
    assert list(books([shelf])) == ["FIRST", "SECOND", "THIRD", "FOURTH"]
    assert list(books([shelf], leave_out=["a/two"])) == ["FIRST", "SECOND", "FOURTH"]


def test_a_book_to_leave_out_that_is_not_there_is_an_error_that_names_it(shelf):
    with pytest.raises(DataError, match=r"no book c/three in books\.txt\.xz"):
        list(books([shelf], leave_out=["a/two", "c/three"]))


def test_prepared_text_stays_as_it_is_and_may_be_compressed(tmp_path):
    plain, packed = tmp_path / "t.txt", tmp_path / "t.txt.gz"
    content = "the  cat\r\n\nCAFÉ 3"
    plain.write_bytes(content.encode())
    packed.write_bytes(gzip.compress(content.encode()))
    assert list(prepared([plain, packed])) == ["the  cat", "CAFÉ 3"] * 2


def test_lines_are_the_same_however_the_file_is_cut_into_chunks(tmp_path, monkeypatch):
    path = tmp_path / "t.txt"
    path.write_text("ä\nbb\n\nccc\n")
    monkeypatch.setattr("multint.paper.obtain.CHUNK", 1)
    assert list(lines(path)) == ["ä", "bb", "", "ccc"]


def test_a_line_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("fine\ncafé".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt, line 2: not UTF-8"):
        list(lines(path))
