"""The six labelled sets: read as they are, refused when they are something else."""

import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from sentences_made_up import SIZES, write_sets

from multint.paper.obtain import DataError
from multint.paper.skipthought import labelled, text
from multint.paper.skipthought.labelled import CLASSES, Data

REAL = Path(os.environ.get("MULTINT_DATA", "nowhere"))
WHY = "the real sets are not here; MULTINT_DATA names their folder"
here = pytest.mark.skipif(not (REAL / "sick").is_dir(), reason=WHY)


@pytest.fixture
def sets(data, monkeypatch):
    return write_sets(data, monkeypatch)


def test_pairs_come_with_their_numbers(sets, data):
    found = Data(data).pairs("sick")
    assert [len(found[name]) for name in ("train", "valid", "test")] == list(SIZES["sick"])
    assert set(found["train"].y) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert "\r" not in "".join(found["test"].a + found["test"].b)
    quality = Data(data).pairs("msrp")["train"].y
    assert set(quality) == {0.0, 1.0}


def test_texts_of_the_first_file_are_positive(sets, data):
    found = Data(data).classes("mr")
    assert len(found) == 80 and found.positive.tolist() == [True] * 40 + [False] * 40
    assert found.texts[0] == (data / "mr" / "rt-polarity.pos").read_text().split("\n")[0].strip()


def test_files_may_be_compressed(sets, data):
    path = data / "cr" / "custrev.pos"
    (data / "cr" / "custrev.pos.xz").write_bytes(lzma.compress(path.read_bytes()))
    before = Data(data).classes("cr")
    path.unlink()
    assert Data(data).classes("cr").texts == before.texts
    other = data / "cr" / "custrev.neg"
    (data / "cr" / "custrev.neg.gz").write_bytes(gzip.compress(other.read_bytes()))
    other.unlink()
    assert Data(data).classes("cr").texts == before.texts


def test_empty_lines_are_left_out_and_counted(sets, data):
    path = data / "mpqa" / "mpqa.pos"
    lines = path.read_text().split("\n")
    lines[3] = "  "
    path.write_text("\n".join(lines))
    found = Data(data).classes("mpqa")
    assert found.empty == 1 and len(found) == 51 and int(found.positive.sum()) == 25


def test_a_text_in_latin_1_is_read_and_said_to_be_another_edition(sets, data, caplog):
    path = data / "mr" / "rt-polarity.neg"
    path.write_bytes(path.read_bytes().replace(b"The", b"Th\xe9", 1))
    assert any("Th\xe9" in line for line in Data(data).classes("mr").texts)
    assert "rt-polarity.neg is another edition of rt-polarity.neg" in caplog.text


def test_a_file_with_a_wrong_count_is_refused_with_both_numbers(sets, data):
    path = data / "subj" / "plot.tok.gt9.5000"
    path.write_text(path.read_text() + "one more line\n")
    with pytest.raises(DataError, match=r"subj: .*plot.tok.gt9.5000 has 31 lines, not 30; get it again"):
        Data(data).classes("subj")


def test_a_missing_file_is_named_with_its_place(sets, data):
    (data / "sick" / "SICK_trial.txt").unlink()
    with pytest.raises(DataError, match=r"sick: no SICK_trial.txt at .*data/sick/SICK_trial.txt.*multint data get sick"):
        Data(data).pairs("sick")
    (data / "msrp" / "msr_paraphrase_test.txt").unlink()
    with pytest.raises(DataError, match="obtain it yourself"):
        Data(data).pairs("msrp")
    assert len(labelled.missing(["sick", "msrp", "mr"], data)) == 2
    with pytest.raises(DataError, match="no task 'trec'; there are sick, msrp"):
        labelled.missing(["trec"], data)


@pytest.mark.parametrize("cell, why", [("6.5", "6.5 is not from 1 to 5"), ("high", "could not convert")])
def test_a_number_that_cannot_be_is_named_with_its_line(sets, data, cell, why):
    path = data / "sick" / "SICK_train.txt"
    head, first, *rest = path.read_text().split("\n")
    cells = first.split("\t")
    cells[3] = cell
    path.write_text("\n".join([head, "\t".join(cells), *rest]))
    with pytest.raises(DataError, match=f"sick: line 2 of SICK_train.txt cannot be read .{why}"):
        Data(data).pairs("sick")


def test_a_table_without_its_columns_is_refused(sets, data):
    path = data / "sick" / "SICK_train.txt"
    path.write_text(path.read_text().replace("relatedness_score", "score"))
    with pytest.raises(DataError, match="no columns sentence_A, sentence_B, relatedness_score"):
        Data(data).pairs("sick")


def test_tokens_are_prepared_once_and_then_need_no_tokeniser(sets, data, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    monkeypatch.setattr(text, "versions", lambda: "made up")
    first = Data(data).tokens("cr")

    def absent(_):
        raise DataError("no tokeniser here")

    monkeypatch.setattr(text, "words", absent)
    again = Data(data).tokens("cr")
    for one in Data(data).texts("cr"):
        assert again(one) == first(one) == one.split()
    (damaged,) = (data / "prepared").glob("transfer-cr-*/tokens.json")
    damaged.write_text("[]")
    with pytest.raises(DataError, match="no tokeniser here"):
        Data(data).tokens("cr")


# ---- the real sets ----


@here
def test_the_real_sets_have_the_counts_of_the_papers():
    data = Data(REAL)
    sick, msrp = data.pairs("sick"), data.pairs("msrp")
    assert [len(sick[name]) for name in ("train", "valid", "test")] == [4500, 500, 4927]
    assert [len(msrp[name]) for name in ("train", "test")] == [4076, 1725]
    assert [int(msrp[name].y.sum()) for name in ("train", "test")] == [2753, 1147]
    found = {name: data.classes(name) for name in CLASSES}
    assert {name: len(one) + one.empty for name, one in found.items()} == {"mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606}
    assert np.mean(sick["test"].y) == pytest.approx(3.53, abs=0.005)


@here
def test_the_real_files_are_the_known_editions(caplog):
    data = Data(REAL)
    for name in labelled.SETS:
        data.texts(name)
    assert "another edition" not in caplog.text
