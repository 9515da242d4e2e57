"""Resampled sound is what a microphone would have given at the other rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multint.paper.speech.resample import Resampler, resample

RATES = [8000, 11_025, 12_000, 22_050, 32_000, 44_100, 48_000, 96_000, 16_001]


def tone(frames, rate, hertz):
    return np.sin(2 * np.pi * hertz * np.arange(frames) / rate + 0.3)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.88])
def test_a_tone_becomes_the_same_tone_at_the_other_rate(rate, share):
    hertz = share * min(rate, 16000) / 2
    frames = rate // 4
    y = resample(tone(frames, rate, hertz).astype(np.float32), rate, 16000)
    expected = tone(len(y), 16000, hertz)
    assert len(y) == -(-frames * 16000 // rate) and y.dtype == np.float32
    edge = 300  # there the filter sees the silence outside
    assert np.abs(y - expected)[edge:-edge].max() < 3e-5


@pytest.mark.parametrize("rate", [32_000, 44_100, 48_000])
def test_what_the_lower_rate_cannot_hold_is_removed(rate):
    for hertz in (8100.0, 12_000.0):
        y = resample(tone(rate // 4, rate, hertz).astype(np.float32), rate, 16000)
        assert np.abs(y[300:-300]).max() < 3e-5


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_nothing_appears_above_what_the_file_held(rate):
    x = np.random.default_rng(0).standard_normal(rate).astype(np.float32)
    power = np.abs(np.fft.rfft(resample(x, rate, 16000)[300:-300] * np.hanning(15_400))) ** 2
    hertz = np.fft.rfftfreq(15_400, 1 / 16000)
    above = power[hertz > min(rate, 16000) / 2 + 20].sum()
    assert above < 1e-8 * power.sum()


def test_a_constant_stays_the_same_constant():
    y = resample(np.full(2000, 0.25, np.float32), 44_100, 16000)
    assert np.abs(y[100:-100] - 0.25).max() < 1e-6


def test_the_same_rate_changes_nothing():
    x = np.arange(5, dtype=np.float32)
    assert resample(x, 16000, 16000) is x


def slow(x, old, new):
    """The filter as a sum over all samples, in float64, from its definition."""
    cutoff = 0.95 * min(1, new / old)
    half = int(np.ceil(64 / cutoff))
    y = np.zeros(-(-len(x) * new // old))
    for n in range(len(y)):
        away = np.arange(len(x)) - n * old / new
        inside = np.abs(away) <= half
        window = np.i0(10 * np.sqrt(np.clip(1 - (away / half) ** 2, 0, None))) / np.i0(10.0)
        y[n] = cutoff * (x * np.sinc(cutoff * away) * window)[inside].sum()
    return y


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 200), st.sampled_from([*RATES, 7, 100_003]))
def test_every_length_and_rate_agrees_with_the_sum_over_all_samples(frames, rate):
    x = np.random.default_rng(frames).uniform(-1, 1, frames).astype(np.float32)
    new = 16000 if rate > 1000 else 5
    assert np.abs(resample(x, rate, new) - slow(x, rate, new)).max() < 3e-5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 500), max_size=8), st.sampled_from(RATES))
def test_pieces_do_not_change_the_result(sizes, rate):
    parts = [np.random.default_rng(k).uniform(-1, 1, size).astype(np.float32) for k, size in enumerate(sizes)]
    x = np.concatenate([np.zeros(0, np.float32), *parts])
    resampler = Resampler(rate, 16000)
    got = np.concatenate([*(resampler.push(part) for part in parts), resampler.finish()])
    assert got.shape == resample(x, rate, 16000).shape
    assert np.abs(got - resample(x, rate, 16000)).max(initial=0) < 1e-6


def test_a_rate_below_one_hertz_is_refused():
    with pytest.raises(ValueError, match="at least 1 Hz, got 0 and 16000"):
        Resampler(0, 16000)
