"""Strings of digits: the same for a seed, every recording as often as any other, no recording in two splits."""

from collections import Counter

import pytest
from recordings import noise, written

from multint.paper.obtain import DataError
from multint.paper.speech import audio, digits
from multint.paper.speech.listing import TEST, TRAIN, VALID

SPEAKERS = ("george", "lucas")


def fill(top, form):
    """Recordings 0 to 11 of three digits by two speakers: 5 for the test, 5 for development, 2 for training."""
    top.mkdir()
    lines = []
    for speaker in SPEAKERS:
        for digit in range(3):
            for k in range(12):
                name = form.format(speaker=speaker, digit=digit, k=k)
                (top / f"{name}.wav").write_bytes(b"x" * (k + digit))
                lines.append(f"{name} {top.name}/{name}.wav\n")
    return lines


@pytest.fixture
def kaldi_folder(tmp_path):
    lines = fill(tmp_path / "audio", "{speaker}-{digit}-{k:02d}")
    (tmp_path / "wav.scp").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def published(tmp_path):
    fill(tmp_path / "recordings", "{digit}_{speaker}_{k}")
    return tmp_path


STRINGS = {TRAIN: 40, VALID: 11, TEST: 12}


def test_each_string_is_of_one_speaker_and_says_what_its_recordings_say(kaldi_folder):
    speech = digits.load(kaldi_folder, STRINGS)
    assert {split: len(ones) for split, ones in speech.splits.items()} == STRINGS
    for split, ones in speech.splits.items():
        assert Counter(one.speaker for one in ones).keys() == set(SPEAKERS)
        for one in ones:
            parts = [path.stem.split("-") for path in one.audio]
            assert {speaker for speaker, _, _ in parts} == {one.speaker} and 2 <= len(parts) <= 5
            assert one.words == tuple(digits.WORDS[int(digit)] for _, digit, _ in parts)
            assert all(int(index) in digits.INDICES[split] for _, _, index in parts)
            assert one.name.startswith(f"{one.speaker}-{split}-")


def test_recordings_0_to_4_are_for_the_test_and_5_to_9_for_development(kaldi_folder):
    takes = {
        split: {int(path.stem.split("-")[2]) for one in ones for path in one.audio}
        for split, ones in digits.load(kaldi_folder, STRINGS).splits.items()
    }
    assert takes == {TEST: {0, 1, 2, 3, 4}, VALID: {5, 6, 7, 8, 9}, TRAIN: {10, 11}}


def test_every_recording_of_a_speaker_is_used_as_often_as_any_other(kaldi_folder):
    for ones in digits.load(kaldi_folder, STRINGS).splits.values():
        for speaker in SPEAKERS:
            times = Counter(path for one in ones if one.speaker == speaker for path in one.audio)
            assert max(times.values()) - min(times.values()) <= 1


def test_strings_depend_on_the_seed_alone(kaldi_folder, tmp_path):
    first = digits.load(kaldi_folder, STRINGS)
    assert digits.load(kaldi_folder, STRINGS).splits == first.splits
    assert digits.load(kaldi_folder, STRINGS, seed=1).splits != first.splits
    assert digits.load(kaldi_folder, {**STRINGS, TRAIN: 10}).splits[TRAIN] == first.splits[TRAIN][:10]


def test_the_draws_are_the_same_in_every_version_of_everything(kaldi_folder):
    first = digits.load(kaldi_folder, STRINGS).splits[TRAIN][0]
    assert [path.stem for path in first.audio] == FIRST


FIRST = ["george-1-10", "george-2-11"]


def test_the_published_dataset_gives_the_same_strings(published, tmp_path_factory):
    other = tmp_path_factory.mktemp("kaldi")
    (other / "wav.scp").write_text("".join(fill(other / "audio", "{speaker}-{digit}-{k:02d}")))
    ours, theirs = digits.load(published, STRINGS), digits.load(other, STRINGS)
    for split in STRINGS:
        assert [(a.name, a.words) for a in ours.splits[split]] == [(a.name, a.words) for a in theirs.splits[split]]


def test_a_string_is_heard_as_its_recordings_one_after_the_other(published):
    for k, path in enumerate(sorted((published / "recordings").iterdir())):
        written(path, noise(80 + k, seed=k), 8000)
    one = digits.load(published, STRINGS).splits[TEST][0]
    assert len(audio.samples(one)) == sum(len(audio.read(path)) for path in one.audio) > 320


def test_units_spell_the_digits():
    assert len(digits.UNITS) == 16
    for word in digits.WORDS:
        assert digits.UNITS.spelled(word) == tuple(word)


def test_other_files_are_left_out_and_an_empty_folder_is_refused(published, tmp_path, caplog):
    (published / "recordings" / "noise.wav").write_bytes(b"x")
    assert len(digits.recordings(published)) == 72
    assert "noise is not named after a speaker, a digit and a number; left out" in caplog.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no recordings of digits; it needs wav.scp, or recordings/0_george_0.wav"):
        digits.load(tmp_path / "empty")
