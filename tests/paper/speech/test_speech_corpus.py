"""From audio to the cache and back."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tones import UNITS, speech, spoken, write_wav

from multint.paper.obtain import DataError
from multint.paper.speech import audio, corpus, features
from multint.paper.speech.corpus import energies, prepare
from multint.paper.speech.features import log_mel
from multint.paper.speech.utterances import Utterance


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_prepared_utterance_is_its_log_mel_energies_normalised_by_its_speaker(cache, tmp_path):
    raw = speech(tmp_path / "audio", (5, 2, 2))
    made = prepare(raw)
    split = made.splits["train"]
    assert split.names == tuple(f"train-{k}" for k in range(5)) and split.speakers[:2] == ("train-0", "train-1")
    own = [log_mel(torch.from_numpy(audio.read(one.audio[0]))) for one in raw.splits["train"] if one.speaker == "train-1"]
    together = torch.cat(own)
    expected = (own[0] - together.mean(0)) / together.std(0, unbiased=False)
    torch.testing.assert_close(split.features(1), expected, atol=5e-3, rtol=1e-3)  # half precision
    assert split.labels[0] == tuple(UNITS.encode(raw.splits["train"][0].words))
    assert made.own and str(made).startswith("tones: 5 utterances")


def test_a_second_preparing_reads_what_the_first_wrote(cache, tmp_path, monkeypatch):
    raw = speech(tmp_path / "audio", (3, 1, 1))
    first = prepare(raw)
    monkeypatch.setattr(corpus, "energies", None)
    second = prepare(raw)
    assert np.array_equal(first.splits["test"].frames, second.splits["test"].frames)


def test_other_audio_or_other_features_are_prepared_again(cache, tmp_path, monkeypatch, caplog):
    raw = speech(tmp_path / "audio", (3, 1, 1))
    prepare(raw)
    assert prepare(replace(raw, sha256="1" * 64)).sha256 == "1" * 64
    monkeypatch.setattr(features, "LOW", 60.0)
    features.filters.cache_clear()
    prepare(raw)
    features.filters.cache_clear()
    assert "other features" in caplog.text


def test_more_utterances_than_a_few_are_prepared_by_several_processes(cache, tmp_path, monkeypatch):
    raw = speech(tmp_path / "audio", (6, 1, 1))
    alone = prepare(raw)
    monkeypatch.setattr(corpus, "FEW", 2)
    monkeypatch.setattr(corpus.os, "cpu_count", lambda: 2)
    together = prepare(replace(raw, sha256="2" * 64))
    assert np.array_equal(alone.splits["train"].frames, together.splits["train"].frames)


def test_a_segment_is_a_part_of_its_audio_and_several_files_follow_each_other(tmp_path):
    generator = np.random.default_rng(0)
    one, two = (spoken((word,), generator) for word in ("AB", "BE"))
    for name, samples in (("one", one), ("two", two)):
        write_wav(tmp_path / f"{name}.wav", samples)
    both = Utterance("u", "s", (tmp_path / "one.wav", tmp_path / "two.wav"), ("AB", "BE"))
    assert len(energies(both)) == features.frames(len(one) + len(two))
    part = replace(both, audio=both.audio[:1], start=0.1, end=0.3)
    read = torch.from_numpy(audio.read(tmp_path / "one.wav"))
    assert np.array_equal(energies(part), log_mel(read[1600:4800]).numpy())
    with pytest.raises(DataError, match=r"one.wav: a part ends at 9 s, the file at 0.\d+ s"):
        energies(replace(part, end=9.0))


def test_audio_too_short_for_a_frame_is_kept_with_no_frames(cache, tmp_path):
    raw = speech(tmp_path / "audio", (3, 1, 1))
    write_wav(raw.splits["test"][0].audio[0], np.zeros(300))
    split = prepare(raw).splits["test"]
    assert split.lengths.tolist() == [0] and split.features(0).shape == (0, 40)


def test_audio_that_cannot_be_read_is_named_and_leaves_nothing_behind(cache, tmp_path):
    raw = speech(tmp_path / "audio", (3, 1, 1))
    raw.splits["valid"][0].audio[0].write_bytes(b"RIFF no audio")
    with pytest.raises(DataError, match="valid/0.wav"):
        prepare(raw)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_a_cut_array_is_noticed_and_prepared_again(cache, tmp_path, caplog):
    raw = speech(tmp_path / "audio", (3, 1, 1))
    prepare(raw)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert json.loads((folder / "corpus.json").read_text())["name"] == "tones"
    (folder / "train-frames.npy").write_bytes(b"")
    assert len(prepare(raw).splits["train"]) == 3
    assert "preparing it again" in caplog.text
