"""Features as Kaldi computes them, step by step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multint.paper.speech import features
from multint.paper.speech.features import MEL, Form, Moments, log_mel, stacked, with_deltas


def slow_log_mel(samples: np.ndarray) -> np.ndarray:
    """One window and one filter at a time."""
    rows = []
    for first in range(0, len(samples) - 399, 160):
        x = samples[first : first + 400].astype(np.float64) * 32768
        x -= x.mean()
        x = x - 0.97 * np.concatenate([x[:1], x[:-1]])
        x *= (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
        power = np.abs(np.fft.rfft(x, 512)) ** 2
        top, low = 1127 * math.log(1 + 8000 / 700), 1127 * math.log(1 + 20 / 700)
        width = (top - low) / 41
        row = []
        for k in range(40):
            energy = 0.0
            for i in range(256):
                place = (1127 * math.log(1 + i * 31.25 / 700) - low) / width - k
                energy += power[i] * max(0.0, 1 - abs(place - 1))
            row.append(math.log(max(energy, 1.1920929e-07)))
        rows.append(row)
    return np.array(rows)


def audio(n: int = 4000) -> torch.Tensor:
    time = torch.arange(n) / features.RATE
    return 0.3 * torch.sin(2 * math.pi * 440 * time) + 0.05 * torch.randn(n)


def test_log_mel_is_what_one_window_and_one_filter_at_a_time_give():
    x = audio()
    np.testing.assert_allclose(log_mel(x).numpy(), slow_log_mel(x.numpy()), atol=2e-3)


def test_log_mel_agrees_with_kaldi():
    knf = pytest.importorskip("kaldi_native_fbank", reason="the judge is Kaldi's own code: pip install kaldi-native-fbank")
    x = audio(16_000)
    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.samp_freq, options.mel_opts.num_bins = 0.0, features.RATE, MEL
    kaldi = knf.OnlineFbank(options)
    kaldi.accept_waveform(features.RATE, (x * 32768).tolist())
    kaldi.input_finished()
    theirs = np.stack([kaldi.get_frame(i) for i in range(kaldi.num_frames_ready)])
    np.testing.assert_allclose(log_mel(x).numpy(), theirs, atol=1e-3)


@pytest.mark.parametrize("n, frames", [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16_000, 98)])
def test_a_frame_needs_a_whole_window(n, frames):
    assert features.frames(n) == frames
    assert log_mel(torch.randn(n)).shape == (frames, MEL)


def test_silence_has_the_energy_of_the_floor():
    assert torch.equal(log_mel(torch.zeros(1000)), torch.full((4, MEL), features.FLOOR).log())


def test_deltas_are_differences_over_two_frames_to_each_side():
    x = torch.randn(9, 3)
    y = with_deltas(x)
    assert y.shape == (9, 9)
    torch.testing.assert_close(y[:, :3], x)

    def at(t: int) -> torch.Tensor:  # ends are repeated
        return x[min(max(t, 0), 8)]

    for t in range(9):
        once = sum(k * at(t + k) for k in range(-2, 3)) / 10
        twice = sum(j * k * at(t + j + k) for j in range(-2, 3) for k in range(-2, 3)) / 100
        torch.testing.assert_close(y[t, 3:6], once)
        torch.testing.assert_close(y[t, 6:], twice)


def test_deltas_of_a_ramp_are_its_slope():
    ramp = torch.arange(20.0)[:, None] * 0.5
    torch.testing.assert_close(with_deltas(ramp)[4:-4, 1:], torch.tensor([0.5, 0.0]).expand(12, -1), atol=1e-5, rtol=0)


@given(t=st.integers(0, 13), n=st.integers(1, 4))
def test_stacked_frames_follow_each_other_and_the_last_is_repeated(t, n):
    x = torch.arange(1.0, t + 1)[:, None].expand(-1, 2)
    y = stacked(x, n)
    flat = y.reshape(-1, 2)[:, 0].tolist()
    assert y.shape == (Form(deltas=False, stack=n).frames(t), 2 * n)
    assert flat == list(range(1, t + 1)) + [t] * (-t % n)


def test_a_form_says_the_size_of_its_frames():
    for form in (Form(), Form(deltas=False), Form(stack=3), Form(deltas=False, stack=2)):
        x = torch.randn(7, MEL)
        assert form(x).shape == (form.frames(7), form.size)
    assert Form(stack=3).seconds == pytest.approx(0.03)
    assert Form(stack=3)(torch.zeros(0, MEL)).shape == (0, 360)


def test_a_speaker_has_mean_zero_and_variance_one_over_all_utterances():
    one, two = 3 + 2 * torch.randn(50, MEL), 5 * torch.randn(70, MEL) - 1
    both = Moments.of(one) + Moments.of(two)
    x = torch.cat([both.normalised(one), both.normalised(two)])
    torch.testing.assert_close(x.mean(0), torch.zeros(MEL), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.var(0, unbiased=False), torch.ones(MEL), atol=1e-4, rtol=0)


def test_features_that_do_not_vary_become_zero_not_nan():
    silent = torch.full((10, MEL), -15.9)
    assert Moments.of(silent).normalised(silent).abs().max() < 1e-2
    assert Moments.of(silent[:0]).normalised(silent[:0]).shape == (0, MEL)
