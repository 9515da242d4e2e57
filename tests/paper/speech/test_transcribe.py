"""Audio of any length: pieces together are the whole."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tones import RATE, UNITS, spoken, write_wav

from multint.paper.speech import audio, transcribe
from multint.paper.speech.features import Form, Moments, log_mel
from multint.paper.speech.model import Recogniser
from multint.paper.speech.transcribe import Word, energies, posteriors, words


@pytest.fixture
def wav(tmp_path):
    write_wav(tmp_path / "one.wav", spoken(("BAD", "DEED", "BE"), np.random.default_rng(0)))
    return tmp_path / "one.wav"


def a_model(bidirectional: bool) -> Recogniser:
    return Recogniser(UNITS, Form(stack=2), 6, 2, bidirectional=bidirectional).eval()


@pytest.mark.parametrize("size", [401, 1600, 10**6])
def test_features_of_pieces_are_those_of_the_whole(wav, monkeypatch, size):
    monkeypatch.setattr(transcribe, "READ", size)
    torch.testing.assert_close(energies(wav), log_mel(torch.from_numpy(audio.read(wav))), atol=1e-4, rtol=1e-5)


def test_layers_of_one_direction_hear_the_same_in_pieces(wav):
    model = a_model(False)
    torch.testing.assert_close(posteriors(model, wav, piece=0.2), posteriors(model, wav, piece=99.0))


def test_layers_of_two_directions_need_some_context(wav):
    model = a_model(True)
    whole = posteriors(model, wav, piece=99.0)
    raw = energies(wav)
    torch.testing.assert_close(whole, model.posteriors(model.form(Moments.of(raw).normalised(raw)))[0])
    torch.testing.assert_close(posteriors(model, wav, piece=0.3, context=99.0), whole)
    near, far = (float((posteriors(model, wav, piece=0.3, context=c) - whole).abs().max()) for c in (0.3, 0.02))
    assert near < far


def test_words_have_the_times_of_their_units():
    a, b, _, _, space = (UNITS.numbers[s] for s in UNITS.symbols)
    path = [0, a, a, 0, b, 0, 0, space, 0, b, b, 0, b]
    log_probs = torch.nn.functional.one_hot(torch.tensor(path), 6).float()
    assert words(log_probs, UNITS, 0.5) == [Word("AB", 0.5, 2.5), Word("BB", 4.5, 6.5)]
    assert words(log_probs[:0], UNITS, 0.5) == []
    assert words(log_probs[:1], UNITS, 0.5) == []


def test_audio_shorter_than_a_window_has_no_steps(tmp_path):
    write_wav(tmp_path / "short.wav", np.zeros(RATE // 100))
    assert posteriors(a_model(True), tmp_path / "short.wav").shape == (0, 6)


def test_silence_and_clipped_audio_are_heard_as_something_finite(tmp_path):
    noise = np.sign(np.random.default_rng(0).standard_normal(RATE))
    for name, samples in (("silent", np.zeros(RATE)), ("clipped", noise)):
        write_wav(tmp_path / f"{name}.wav", samples)
        assert torch.isfinite(posteriors(a_model(True), tmp_path / f"{name}.wav")).all()


def test_whole_words_stand_alone_in_a_transcript():
    units = replace(UNITS, symbols=(*UNITS.symbols, "<NOISE>"), whole=("<NOISE>",))
    path = torch.tensor([1, 0, 6, 0, 2])
    found = words(torch.nn.functional.one_hot(path, 7).float(), units, 1.0)
    assert [word.text for word in found] == ["A", "<NOISE>", "B"]
