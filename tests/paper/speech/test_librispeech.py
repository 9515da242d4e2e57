"""The unpacked parts of LibriSpeech become utterances."""

import pytest

from multint.paper.obtain import DataError
from multint.paper.speech import librispeech
from multint.paper.speech.listing import TEST, TRAIN, VALID


def chapter(folder, part, speaker, chapter, lines):
    place = folder / part / speaker / chapter
    place.mkdir(parents=True)
    (place / f"{speaker}-{chapter}.trans.txt").write_text(
        "".join(f"{speaker}-{chapter}-{k:04d} {t}\n" for k, t in enumerate(lines))
    )
    for k in range(len(lines)):
        (place / f"{speaker}-{chapter}-{k:04d}.flac").write_bytes(b"flac")


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "LibriSpeech"
    chapter(top, "train-clean-100", "19", "227", ["TO THE CITY", "SHE DIDN'T"])
    chapter(top, "train-clean-100", "19", "198", ["A HOUSE"])
    chapter(top, "dev-clean", "84", "1", ["GO"])
    chapter(top, "test-clean", "61", "2", ["HE BEGAN"])
    (top / "SPEAKERS.TXT").write_text("; not an utterance")
    return tmp_path


@pytest.mark.parametrize("inside", ["", "LibriSpeech"])
def test_each_part_is_a_split(folder, inside):
    speech = librispeech.load(folder / inside)
    assert {split: [one.name for one in ones] for split, ones in speech.splits.items()} == {
        TRAIN: ["19-198-0000", "19-227-0000", "19-227-0001"],
        VALID: ["84-1-0000"],
        TEST: ["61-2-0000"],
    }
    one = speech.splits[TRAIN][2]
    assert (one.speaker, one.words) == ("19", ("SHE", "DIDN'T"))
    assert one.audio == (folder / "LibriSpeech" / "train-clean-100" / "19" / "227" / "19-227-0001.flac",)
    assert len(speech.units) == 28 and speech.name == "librispeech-100"


def test_a_missing_part_and_a_missing_file_are_named(folder):
    with pytest.raises(DataError, match=r"no part test-other of LibriSpeech at .*; unpack test-other.tar.gz in"):
        librispeech.load(folder, {TRAIN: ("dev-clean",), TEST: ("test-other",)})
    next(folder.rglob("61-2-0000.flac")).unlink()
    with pytest.raises(DataError, match="librispeech-100: test utterances without audio, 1 of 1: 61-2-0000"):
        librispeech.load(folder)
