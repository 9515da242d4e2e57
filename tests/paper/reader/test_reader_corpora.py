"""Where questions come from: folders and archives in the form of Hermann et al., enwik8, highlights, bAbI."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from types import MappingProxyType

import pytest
from asked import FOLDERS, corpus

from multint.paper.obtain import DataError
from multint.paper.reader import babi, corpora, files
from multint.paper.reader.corpora import CORPORA, ELSEWHERE, Item, load
from multint.paper.reader.questions import PLACEHOLDER, Question, written
from multint.paper.reader.shelf import SHELF
from multint.paper.sources import File


def packed(folder, path, prefix="cnn/questions"):
    """The folder as an archive, its files in an odd order."""
    names = sorted(files.listed(folder), key=lambda name: hashlib.md5(name.encode()).hexdigest())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.write(folder / name, f"{prefix}/{name}")
        return path
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name in names:
            archive.add(folder / name, f"{prefix}/{name}")
    return path


def items(name, data=None) -> set[tuple[str, str, str]]:
    return {(one.split, one.name, written(one.what)) for one in load(name, data).items()}


@pytest.mark.parametrize("suffix", [".tar", ".tgz", ".tar.gz", ".zip"])
def test_a_folder_and_an_archive_of_it_have_the_same_questions(tmp_path, suffix):
    folder = corpus(tmp_path / "a", {"training": 5, "validation": 2, "test": 1})
    archive = packed(folder, tmp_path / f"all{suffix}")
    assert items(folder) == items(archive) and len(items(folder)) == 8
    assert {split for split, _, _ in items(folder)} == {"train", "valid", "test"}
    before = load(folder).fingerprint
    (folder / "training" / "9.question").write_text("")
    assert load(folder).fingerprint != before


def test_faults_are_items_with_a_reason(tmp_path):
    folder = corpus(tmp_path / "a", {"training": 1, "validation": 1, "test": 1})
    good = (folder / "test" / "0000.question").read_text()
    (folder / "test" / "bad.question").write_text(good.replace(PLACEHOLDER, "who"))
    (folder / "test" / "latin.question").write_bytes(b"\xff" + good.encode())
    (folder / "0.question").write_text(good)
    (folder / "README.txt").write_text("not a question")
    found = {one.name: one for one in load(folder).items()}
    assert found["bad.question"] == Item("test", "bad.question", "the question has no @placeholder")
    assert found["latin.question"].what == "the file is not UTF-8"
    assert found["0.question"].what == ELSEWHERE
    assert sorted(name for name, one in found.items() if isinstance(one.what, Question)) == ["0000.question"]
    assert "README.txt" not in found and len(found) == 4


@pytest.mark.parametrize("place", ["cnn/questions", "cnn/cnn/questions", "cnn/cnn.tgz", "cnn.tar.gz"])
def test_the_corpus_of_the_paper_is_found_where_a_person_puts_it(data, tmp_path, place, monkeypatch):
    folder = corpus(tmp_path / "a", {"training": 3, "validation": 1, "test": 1})
    with pytest.raises(DataError, match=r"cnn is not in .*obtain it .*https://cs.nyu.edu/~kcho/DMQA/"):
        load("cnn")
    target = data / place
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix:
        packed(folder, target)
    else:
        folder.rename(target)
    found = load("cnn")
    assert sum(1 for _ in found.items()) == 5 and found.counts["train"] == 380_298 and not found.own
    assert next(line for line in SHELF.listing() if line.startswith("cnn ")).split()[1] == "here"


def test_a_stand_in_is_offered_where_the_corpus_is_absent(data, monkeypatch):
    source = CORPORA["wikicloze"]
    tiny = replace(source, files=(File("enwik8", 5, hashlib.sha256(b"<page").hexdigest()),))
    monkeypatch.setattr(corpora, "CORPORA", MappingProxyType({**CORPORA, "wikicloze": tiny}))
    (data / "enwik8").mkdir()
    (data / "enwik8" / "enwik8").write_bytes(b"<page")
    with pytest.raises(DataError, match="or take wikicloze, which stands for it"):
        load("cnn")
    assert list(load("wikicloze").items()) == []
    (data / "enwik8" / "enwik8").write_bytes(b"<pagX")
    with pytest.raises(DataError, match="is not enwik8"):
        list(load("wikicloze").items())


def test_an_unknown_corpus_is_refused(data, tmp_path):
    with pytest.raises(DataError, match="no such folder or archive of .question files; corpora are cnn, wikicloze"):
        load("cmm")
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken.tar.gz cannot be read"):
        list(load(broken).items())
    with pytest.raises(DataError, match="wikicloze: no enwik8 at"):
        list(load("wikicloze").items())


STORIES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel? \thallway\t4
1 Sandra moved to the garden.
2 Where is Sandra? \tgarden\t1
"""


def test_babi_s_answers_are_entities_and_its_documents_grow(data):
    (data / "babi").mkdir()
    with tarfile.open(data / "babi" / "tasks.tar.xz", "w:xz") as archive:
        for kind in ("train", "test"):
            for task in (1, 12):
                info = tarfile.TarInfo(f"tasks_1-20/en-10k/qa{task}_x-y_{kind}.txt")
                info.size = len(STORIES)
                archive.addfile(info, io.BytesIO(STORIES.encode()))
    made = [(one.split, one.what) for one in load("babi-1").items()]
    first, second, third = (one for split, one in made if split == "test")
    assert first.document == ("mary", "moved", "to", "the", "@entity0", ".", "john", "went", "to", "the", "@entity2", ".")
    assert first.question == ("where", "is", "mary", "?", PLACEHOLDER) and first.answer == "@entity0"
    assert second.document[-3:] == ("the", "@entity2", ".") and len(second.document) == 19
    assert third.document[0] == "sandra" and third.entities["@entity1"] == "garden"
    assert len(made) == 6 and all(split in ("train", "valid", "test") for split, _ in made)
    splits = {s for s, _ in babi.questions({"train": STORIES.replace("Mary", "Ann") * 60, "test": STORIES})}
    assert splits == {"train", "valid", "test"}


def test_counts_of_the_fixture():
    assert sum(FOLDERS.values()) == 200
