"""Audio files become samples, or an error that names the file and the reason."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from recordings import FORMATS, SHORTEN, noise, sph2pipe, sphere, written

from multint.paper.obtain import DataError
from multint.paper.speech import audio
from multint.paper.speech.audio import AudioError
from multint.paper.speech.utterances import Utterance

soundfile = pytest.importorskip("soundfile")

LOSSY = ("ogg", "opus", "ulaw.sph")


def tone(frames, rate, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(frames) / rate)).astype(np.float32)


@pytest.fixture(params=FORMATS)
def any_format(request, tmp_path):
    return written(tmp_path / f"a.{request.param}", tone(40_000, 16000))


# ---- what is read ----


def test_every_format_gives_the_samples_that_were_written(any_format):
    x = audio.read(any_format)
    assert x.dtype == np.float32 and x.shape == (40_000,)
    error = np.abs(x - tone(40_000, 16000))
    if any_format.name.split(".", 1)[1] in LOSSY:
        assert error[:-1000].max() < 0.05  # the last frame of a lossy coder lacks what comes after it
    else:
        assert error.max() < 2**-15
    assert audio.seconds(any_format) == 2.5


def test_a_part_is_exactly_a_part_of_the_file(any_format):
    x = audio.read(any_format)
    assert np.array_equal(audio.read(any_format, start=1.25, end=1.5), x[20_000:24_000])
    assert np.array_equal(audio.read(any_format, start=2.0), x[32_000:])


def test_a_part_of_a_real_opus_file_is_exactly_a_part_of_the_file():
    """The decoder remembers seconds of speech, which it does not of the tones above."""
    files = sorted(Path(os.environ.get("MULTINT_DATA", "none"), "speech-minilibrispeech").glob("audio/118/*.opus"))
    if not files:
        pytest.skip("mini-librispeech is not in MULTINT_DATA")
    x = audio.read(files[0])
    assert np.array_equal(audio.read(files[0], start=6.25, end=8.0), x[100_000:128_000])
    assert np.array_equal(np.concatenate([*audio.pieces(files[0], 5000)]), x)
    assert np.array_equal(soundfile.read(files[0], dtype="float32")[0], x)


@pytest.mark.parametrize("size, offset", [(1000, 0), (7001, 333), (50_000, 0), (40_000, 39_999)])
def test_pieces_are_the_file(any_format, size, offset):
    got = [*audio.pieces(any_format, size, offset=offset)]
    assert [len(p) for p in got[:-1]] == [size] * (len(got) - 1) and 0 < len(got[-1]) <= size
    assert np.array_equal(np.concatenate(got), audio.read(any_format)[offset:])


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000])
def test_pieces_of_another_rate_are_the_file(tmp_path, rate):
    path = written(tmp_path / "a.wav", noise(140_000), rate)  # more than is read at a time
    got = np.concatenate([*audio.pieces(path, 1234)])
    x = audio.read(path)
    assert got.shape == x.shape == (-(-140_000 * 16000 // rate),)
    assert np.abs(got - x).max() < 1e-6


def test_pieces_past_the_end_are_none(tmp_path):
    assert [*audio.pieces(written(tmp_path / "a.wav", noise(100)), 10, offset=100)] == []
    with pytest.raises(ValueError, match="size of at least 1 and an offset of at least 0, got 0 and 0"):
        next(audio.pieces(tmp_path / "a.wav", 0))


def test_a_tenth_of_a_second_is_read(tmp_path):
    x = noise(1600)
    assert audio.read(written(tmp_path / "a.float.wav", x)) == pytest.approx(x)
    assert audio.read(written(tmp_path / "b.float.wav", noise(800), 8000)).shape == (1600,)
    assert audio.read(written(tmp_path / "c.float.wav", noise(1), 8000)).shape == (2,)


def test_silence_stays_silence(tmp_path):
    for rate in (8000, 16000, 44_100):
        assert not audio.read(written(tmp_path / f"{rate}.wav", np.zeros(3000, np.float32), rate)).any()


def test_clipped_sound_stays_within_its_range(tmp_path):
    square = np.sign(tone(8000, 8000, 333)).astype(np.float32)
    for rate in (8000, 16000):
        x = audio.read(written(tmp_path / f"{rate}.wav", square, rate))
        assert np.abs(x).max() <= 1 and np.abs(x).max() > 0.99


def test_a_float_file_a_little_too_loud_is_clipped_and_one_on_another_scale_is_refused(tmp_path):
    loud = written(tmp_path / "a.float.wav", 3 * tone(1000, 16000))
    assert np.array_equal(audio.read(loud), np.clip(3 * tone(1000, 16000), -1, 1))
    raw = written(tmp_path / "raw.float.wav", 32767 * tone(1000, 16000))
    with pytest.raises(AudioError, match=r"raw.float.wav: samples reach 163\d\d"):
        audio.read(raw)


def test_stereo_is_mixed_or_one_channel_is_taken(tmp_path):
    x = noise(500, channels=2)
    path = written(tmp_path / "a.float.wav", x)
    assert audio.read(path) == pytest.approx(x.mean(1))
    for channel in (0, 1):
        assert np.array_equal(audio.read(path, channel=channel), x[:, channel])
        assert np.array_equal(np.concatenate([*audio.pieces(path, 99, channel=channel)]), x[:, channel])
    for channel in (2, -1):
        with pytest.raises(AudioError, match=rf"a.float.wav: there is no channel {channel}; it has 2, counted from 0"):
            audio.read(path, channel=channel)


def test_an_utterance_joins_its_files(tmp_path):
    x, y = noise(1600), noise(800, seed=1)
    files = (written(tmp_path / "a.float.wav", x), written(tmp_path / "b.float.wav", y, 8000))
    joined = audio.samples(Utterance("u", "s", files, ("ONE", "TWO")))
    assert np.array_equal(joined, np.concatenate((x, audio.read(files[1]))))
    assert np.array_equal(audio.samples(Utterance("u", "s", files, (), start=0.05, end=0.15)), joined[800:2400])
    assert np.array_equal(audio.samples(Utterance("u", "s", files[:1], (), start=0.05)), x[800:])


# ---- what is refused ----


def refused(path, reason):
    for use in (audio.read, audio.seconds, lambda path: [*audio.pieces(path, 100)]):
        with pytest.raises(AudioError) as error:
            use(path)
        assert str(error.value).startswith(f"{path}: ") and reason in str(error.value) and "\n" not in str(error.value)
    assert isinstance(error.value, DataError)


def test_a_missing_file_a_folder_and_an_empty_file_are_named(tmp_path):
    refused(tmp_path / "none.wav", "there is no such file")
    refused(tmp_path, "cannot be opened")
    (tmp_path / "empty.flac").touch()
    refused(tmp_path / "empty.flac", "it is empty")
    refused(written(tmp_path / "header.wav", np.zeros(0, np.float32)), "it has no samples")


def test_a_file_that_is_not_audio_is_named(tmp_path):
    (tmp_path / "page.wav").write_text("<html>404</html>" * 100)
    refused(tmp_path / "page.wav", "it is not audio, or it is damaged")


@pytest.mark.parametrize("share", [0.3, 0.75, 0.999])
def test_a_file_without_its_end_is_refused(any_format, share):
    content = any_format.read_bytes()
    any_format.write_bytes(content[: int(share * len(content))])
    with pytest.raises(AudioError, match="cut short|damaged|no samples") as error:
        audio.read(any_format)
    assert str(any_format) in str(error.value)


@pytest.mark.parametrize("ending", ["ogg", "opus"])
def test_an_ogg_file_that_ends_with_another_page_than_its_last_is_refused(tmp_path, ending):
    path = written(tmp_path / f"a.{ending}", noise(100_000))
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"OggS")])
    refused(path, "it is cut short: its last page is missing")


def test_a_flac_file_with_damaged_samples_is_refused(tmp_path):
    path = written(tmp_path / "a.flac", noise(40_000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    path.write_bytes(content)
    with pytest.raises(AudioError, match=r"a.flac: it is damaged"):
        audio.read(path)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(tmp_path, odd):
    x = noise()
    x[1234] = odd
    path = written(tmp_path / "a.float.wav", x)
    with pytest.raises(AudioError, match=r"a.float.wav: some samples are NaN or infinite"):
        audio.read(path)


def test_a_wav_file_that_came_through_a_pipe_does_not_state_its_length(tmp_path):
    path = written(tmp_path / "a.wav", noise(500))
    content = path.read_bytes()
    for stated in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"):
        path.write_bytes(content.replace(b"data" + (1000).to_bytes(4, "little"), b"data" + stated))
        assert audio.read(path).shape == (500,)


def test_a_segment_ends_with_its_file_or_shortly_after(tmp_path):
    path = written(tmp_path / "a.wav", noise(16_000))
    assert audio.read(path, start=0.75, end=1.4).shape == (4000,)
    with pytest.raises(AudioError, match=r"a part ends at 1.6 s, the file at 1.000 s"):
        audio.read(path, end=1.6)
    for start, end in ((1.0, 1.2), (0.5, 0.5), (0.6, 0.5), (-0.1, None)):
        with pytest.raises(AudioError, match=rf"it has 1.000 s and so no part from {start:g} to"):
            audio.read(path, start=start, end=end)


def test_without_soundfile_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"reading audio needs soundfile: pip install 'multint\[speech\]'"):
        audio.read(tmp_path / "a.wav")


# ---- SPHERE of the Linguistic Data Consortium ----


@pytest.fixture
def decoder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{sph2pipe(tmp_path / 'programs')}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("order", ["01", "10"])
def test_plain_sphere_is_read_in_both_byte_orders(tmp_path, order):
    x = noise(300)
    assert np.abs(audio.read(sphere(tmp_path / "a.wv1", x, order=order)) - x).max() <= 2**-16


def test_compressed_sphere_is_read_with_sph2pipe(tmp_path, decoder):
    x = noise(70_000)
    path = sphere(tmp_path / "a b$.wv1", x, SHORTEN)
    assert np.abs(audio.read(path) - x).max() <= 2**-16
    assert audio.seconds(path) == 70_000 / 16000
    assert np.array_equal(np.concatenate([*audio.pieces(path, 999)]), audio.read(path))


def test_compressed_sphere_without_sph2pipe_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(sphere(tmp_path / "a.wv1", noise(300), SHORTEN), "put the program sph2pipe on PATH (source: https://github.com/")


def test_compressed_sphere_that_sph2pipe_cannot_decode_is_named(tmp_path, decoder):
    path = sphere(tmp_path / "a.wv1", noise(300), SHORTEN)
    path.write_bytes(path.read_bytes()[:1024] + b"broken")
    refused(path, "sph2pipe cannot decode it (sph2pipe: bad shorten data in this file)")


def test_compressed_sphere_that_decodes_to_less_than_it_states_is_refused(tmp_path, decoder):
    refused(sphere(tmp_path / "a.wv1", noise(300), SHORTEN, stated=400), "it is cut short: 300 of 400 samples are there")


def test_other_compressions_of_sphere_are_refused(tmp_path, decoder):
    path = sphere(tmp_path / "a.wv1", noise(300), "pcm,embedded-wavpack-v1.0")
    refused(path, "SPHERE compression pcm,embedded-wavpack-v1.0 cannot be read; convert the file")
