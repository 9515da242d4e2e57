"""A corpus of speech is complete and consistent, or it is refused with the names of what is wrong."""

import logging
from dataclasses import replace

import pytest

from multint.paper.obtain import DataError
from multint.paper.speech import listing
from multint.paper.speech.listing import LETTERS, TEST, TRAIN, VALID, checked
from multint.paper.speech.utterances import SPACE, Units, Utterance


@pytest.fixture
def splits(tmp_path):
    """Three utterances in each split, with files of a few bytes."""

    def one(split, k):
        path = tmp_path / "audio" / f"{split}-{k}.wav"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * (k + 1))
        return Utterance(f"{split}-{k}", f"speaker-{k}", (path,), ("IT'S", "ME"))

    return {split: [one(split, k) for k in range(3)] for split in (TRAIN, VALID, TEST)}


def changed(splits, split, k, **changes):
    ones = [*splits[split]]
    ones[k] = replace(ones[k], **changes)
    return {**splits, split: ones}


def names(speech, split=TRAIN):
    return [one.name for one in speech.splits[split]]


def test_a_corpus_in_order_keeps_every_utterance(splits, caplog):
    speech = checked("mine", LETTERS, splits, own=True)
    assert {split: [*ones] for split, ones in speech.splits.items()} == splits
    assert speech.units is LETTERS and speech.own and len(speech.sha256) == 64
    assert not caplog.records


def test_an_utterance_that_is_there_twice_is_refused_even_anyway(splits):
    for split, k in ((TRAIN, 1), (TEST, 2)):
        for anyway in (False, True):
            with pytest.raises(DataError, match="mine: utterances that are there more than once: train-0; keep one of each"):
                checked("mine", LETTERS, changed(splits, split, k, name="train-0"), anyway)


def test_an_utterance_without_its_audio_file_is_named_or_left_out(splits, caplog):
    gone = splits[TRAIN][1].audio[0]
    gone.unlink()
    with pytest.raises(DataError) as error:
        checked("mine", LETTERS, splits)
    assert str(error.value) == (f"mine: train utterances without audio, 1 of 3: train-1 (there is no {gone}); complete the data")
    speech = checked("mine", LETTERS, splits, anyway=True)
    assert names(speech) == ["train-0", "train-2"]
    assert caplog.messages == [f"mine: train utterances without audio, 1 of 3: train-1 (there is no {gone}); left out"]


def test_an_utterance_of_several_files_needs_all_of_them(splits):
    files = splits[TRAIN][0].audio
    complete = changed(splits, TRAIN, 0, audio=(*files, *files))
    assert names(checked("mine", LETTERS, complete)) == names(checked("mine", LETTERS, splits))
    with pytest.raises(DataError, match=r"train utterances without audio, 1 of 3: train-0 \(there is no .*none.wav\)"):
        checked("mine", LETTERS, changed(splits, TRAIN, 0, audio=(*files, files[0].with_name("none.wav"))))
    with pytest.raises(DataError, match="test utterances without audio, 1 of 3: test-2; complete"):
        checked("mine", LETTERS, changed(splits, TEST, 2, audio=()))


def test_an_empty_transcript_is_left_out_of_training_and_kept_elsewhere(splits, caplog):
    empty = changed(changed(splits, TRAIN, 2, words=()), TEST, 2, words=())
    speech = checked("mine", LETTERS, empty)
    assert names(speech) == ["train-0", "train-1"] and names(speech, TEST) == ["test-0", "test-1", "test-2"]
    assert caplog.messages == ["mine: train utterances without words, left out: train-2"]


def test_characters_without_a_unit_are_named(splits, caplog):
    odd = changed(splits, VALID, 0, words=("CAFÉ", "N°5"))
    with pytest.raises(DataError, match=r"valid utterances with characters that no unit stands for \(5 ° É\): valid-0; correct"):
        checked("mine", LETTERS, odd)
    assert names(checked("mine", LETTERS, odd, anyway=True), VALID) == ["valid-1", "valid-2"]
    unknown = Units((*LETTERS.symbols, "<UNK>"), unknown="<UNK>")
    assert names(checked("mine", unknown, odd), VALID) == ["valid-0", "valid-1", "valid-2"]


def test_a_recording_of_training_is_not_scored(splits):
    taken = splits[TRAIN][0]
    for split in (VALID, TEST):
        with pytest.raises(DataError, match=f"{split} has utterances with audio of train: {split}-1"):
            checked("mine", LETTERS, changed(splits, split, 1, audio=taken.audio))
    parts = changed(changed(splits, TRAIN, 0, end=1.0), TEST, 1, audio=taken.audio, start=1.0)
    assert len(checked("mine", LETTERS, parts).splits[TEST]) == 3, "other parts of the same recording"


def test_a_split_without_utterances_is_refused(splits):
    with pytest.raises(DataError, match="mine: no utterance of valid is left"):
        checked("mine", LETTERS, {**splits, VALID: []})
    for one in splits[TRAIN]:
        one.audio[0].unlink()
    with pytest.raises(DataError, match="mine: no utterance of train is left"):
        checked("mine", LETTERS, splits, anyway=True)


def test_the_digest_is_of_the_listing_and_not_of_its_folder(splits, tmp_path):
    digest = checked("mine", LETTERS, splits).sha256
    for change in ({"words": ("IT'S",)}, {"name": "other"}, {"speaker": "other"}, {"start": 0.1}, {"end": 0.1}, {"channel": 0}):
        assert checked("mine", LETTERS, changed(splits, TEST, 1, **change)).sha256 != digest
    assert checked("mine", LETTERS, {**splits, TRAIN: splits[TRAIN][::-1]}).sha256 != digest
    (tmp_path / "audio").rename(tmp_path / "moved")
    moved = {
        split: [replace(one, audio=(tmp_path / "moved" / one.audio[0].name,)) for one in ones] for split, ones in splits.items()
    }
    assert checked("other name", LETTERS, moved).sha256 == digest
    (tmp_path / "moved" / "test-1.wav").write_bytes(b"longer")
    assert checked("mine", LETTERS, moved).sha256 != digest


def test_another_number_of_utterances_is_refused_or_noted(splits, caplog):
    listing.same_count("mine", splits, {TRAIN: 3, TEST: 3}, "complete it")
    with pytest.raises(DataError) as error:
        listing.same_count("mine", splits, {TRAIN: 1300, VALID: 3, "more": 1}, "complete it")
    wrong = "mine: train has 3 utterances, not 1,300, more has 0 utterances, not 1"
    assert str(error.value) == f"{wrong}; complete it" and not caplog.records
    listing.same_count("mine", splits, {TRAIN: 1300, VALID: 3, "more": 1}, "complete it", anyway=True)
    assert caplog.record_tuples == [("multint", logging.WARNING, wrong)]


def test_units_are_the_letters_or_the_characters_of_the_words():
    assert listing.units_of(["IT'S", "ME"]) is LETTERS and len(LETTERS) == 28
    assert listing.units_of(["ÇA", "va"]) == Units((SPACE, "A", "a", "v", "Ç"))


def test_many_names_are_counted():
    assert listing.some({"b", "a"}) == "a, b"
    assert listing.some({f"u{k}" for k in range(7)}) == "u0, u1, u2, u3, u4 and 2 more"
