"""What does an audio file sound like? Its samples: one channel, in [-1, 1], at the rate that the features want.

libsndfile decodes (wav, flac, ogg with Vorbis or Opus, SPHERE and more). Files of the Linguistic Data Consortium that are SPHERE
with shorten compression go through the program ``sph2pipe``. What cannot be read completely is an ``AudioError``: a recording that
lost its end would be scored against words that nobody hears.
"""

import contextlib
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint.paper.obtain import DataError, Where, one_line
from multint.paper.speech.resample import Resampler, resample
from multint.paper.speech.utterances import Utterance

Samples = NDArray[np.float32]
Sound = Any  # soundfile.SoundFile; soundfile is imported when it is needed

RATE = 16000  # of the paper's features
OVERSHOOT = 0.5  # seconds by which a segment may end after its recording, as Kaldi's tools allow
LOUDEST = 8.0  # a lossy decoder overshoots 1 a little; a file beyond this is on another scale
UNKNOWN = 0x7FFF_0000  # a program that writes wav into a pipe states a length like this, because it does not know it yet
SPH2PIPE = "https://github.com/burrmill/sph2pipe"


class AudioError(DataError):
    """An audio file cannot be used; the message names the file and the reason."""

    def __init__(self, path: Where, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


# ---- read ----


def read(path: Where, rate: int = RATE, channel: int | None = None, start: float = 0.0, end: float | None = None) -> Samples:
    """The samples of a file, or of its seconds from ``start`` to ``end``.

    Args:
        channel: 0 is the first; None is the mean of all.
        end: None is the end of the file.
    """
    with _opened(path) as sound:
        first, last = _part(path, sound, start, end)
        x = np.concatenate([*_blocks(path, sound, channel, first, last - first)])
        return np.clip(resample(x, sound.samplerate, rate), -1, 1)


def samples(utterance: Utterance, rate: int = RATE) -> Samples:
    """What is heard in an utterance: the part of its files, one after the other, that belongs to it."""
    if len(utterance.audio) == 1:
        return read(utterance.audio[0], rate, utterance.channel, utterance.start, utterance.end)
    x = np.concatenate([read(path, rate, utterance.channel) for path in utterance.audio])
    end = None if utterance.end is None else round(utterance.end * rate)
    return x[round(utterance.start * rate) : end]


def pieces(path: Where, size: int, rate: int = RATE, channel: int | None = None, offset: int = 0) -> Iterator[Samples]:
    """A long file in pieces of ``size`` samples, the last one shorter, from sample ``offset`` on; together they are ``read``.

    The memory needed does not depend on the length of the file. Sizes and offsets count samples at ``rate``.
    """
    if size < 1 or offset < 0:
        raise ValueError(f"pieces have a size of at least 1 and an offset of at least 0, got {size} and {offset}")
    ready: Samples = np.zeros(0, np.float32)
    skip = offset
    for x in _stream(path, rate, channel):
        ready = np.concatenate((ready, x[skip:]))
        skip = max(0, skip - len(x))
        while len(ready) >= size:
            yield ready[:size]
            ready = ready[size:]
    if len(ready):
        yield ready


def seconds(path: Where) -> float:
    """How long a file is."""
    with _opened(path) as sound:
        return float(sound.frames / sound.samplerate)


def _stream(path: Where, rate: int, channel: int | None) -> Iterator[Samples]:
    with _opened(path) as sound:
        blocks = _blocks(path, sound, channel, 0, sound.frames)
        if sound.samplerate == rate:
            yield from (np.clip(block, -1, 1) for block in blocks)
        else:
            resampler = Resampler(sound.samplerate, rate)
            yield from (np.clip(resampler.push(block), -1, 1) for block in blocks)
            yield np.clip(resampler.finish(), -1, 1)


def _part(path: Where, sound: Sound, start: float, end: float | None) -> tuple[int, int]:
    """First frame and last frame (exclusive) of a part that is given in seconds."""
    length = sound.frames / sound.samplerate
    stop = length if end is None else end
    if not 0 <= start < min(stop, length):
        raise AudioError(path, f"it has {length:.3f} s and so no part from {start:g} to {stop:g} s; correct the list of segments")
    if stop > length + OVERSHOOT:
        raise AudioError(path, f"a part ends at {stop:g} s, the file at {length:.3f} s; get the complete file or correct the list")
    return round(start * sound.samplerate), min(round(stop * sound.samplerate), sound.frames)


def _blocks(path: Where, sound: Sound, channel: int | None, first: int, frames: int) -> Iterator[Samples]:
    """One channel of ``frames`` frames, a few seconds at a time."""
    if channel is not None and not 0 <= channel < sound.channels:
        raise AudioError(path, f"there is no channel {channel}; it has {sound.channels}, counted from 0")
    left = frames
    try:
        _go_to(sound, first)
        while left > 0:
            block = sound.read(min(left, 1 << 16), dtype="float32", always_2d=True)
            if not len(block):
                raise AudioError(path, f"it is cut short: {left} of {frames} samples are missing; get it again")
            left -= len(block)
            yield _checked(path, block.mean(1) if channel is None else np.ascontiguousarray(block[:, channel]))
    except RuntimeError as error:  # soundfile's errors are RuntimeErrors
        raise AudioError(path, f"it is damaged ({one_line(error)}); get it again") from error


def _go_to(sound: Sound, first: int) -> None:
    """Lossy decoders remember what came before, so they start at the beginning: a part is then exactly a part of the file."""
    if sound.format not in ("OGG", "MP3", "MPEG"):
        sound.seek(first)
        return
    while first > 0 and (skipped := len(sound.read(min(first, 1 << 16), dtype="float32", always_2d=True))):
        first -= skipped


def _checked(path: Where, x: Samples) -> Samples:
    peak = np.abs(x).max()
    if not np.isfinite(peak):
        raise AudioError(path, "some samples are NaN or infinite; get it again, or write it in another format")
    if peak > LOUDEST:
        raise AudioError(path, f"samples reach {peak:g}, but should lie in [-1, 1]; scale them")
    return np.clip(x, -1, 1)


# ---- open ----


@contextlib.contextmanager
def _opened(path: Where) -> Iterator[Sound]:
    """The file as libsndfile sees it, after the checks that libsndfile does not make."""
    try:
        import soundfile  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("reading audio needs soundfile: pip install 'multint[speech]'") from error
    path = Path(path)
    head = _head(path)
    try:
        with soundfile.SoundFile(_sph2pipe(path) if _compressed(path, head) else str(path)) as sound:
            if sound.frames == 0:
                raise AudioError(path, "it has no samples")
            missing = _missing(path, head, sound)
            if missing:
                raise AudioError(path, f"it is cut short: {missing}; get it again")
            yield sound
    except soundfile.LibsndfileError as error:
        raise AudioError(path, f"it is not audio, or it is damaged ({one_line(error)}); get it again") from error


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            head = stream.read(1024)
    except FileNotFoundError:
        raise AudioError(path, "there is no such file") from None
    except OSError as error:
        raise AudioError(path, f"it cannot be opened ({one_line(error)})") from error
    if not head:
        raise AudioError(path, "it is empty; get it again")
    return head


def _missing(path: Path, head: bytes, sound: Sound) -> str:
    """What the end of the file lacks; libsndfile reads what there is and says nothing."""
    if head.startswith(b"NIST_1A"):
        stated = re.search(rb"sample_count -i (\d+)", head)
        if stated and sound.frames < int(stated[1]):
            return f"{sound.frames} of {int(stated[1])} samples are there"
    elif head.startswith(b"OggS"):
        return "" if _has_last_page(path) else "its last page is missing"
    # libsndfile's notes on the header of wav and aiff name the sizes of its parts, and which one is wrong
    for name, stated, real in re.findall(r"^ *(data|SSND) : (\d+) \(should be (\d+)\)", sound.extra_info, re.MULTILINE):
        if int(real) < int(stated) < UNKNOWN:
            return f"{real} of the {stated} bytes of its part {name!r} are there"
    return ""


def _has_last_page(path: Path) -> bool:
    """Whether an Ogg file ends with a complete page that is marked as the last of its stream."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 2 * 65_307))  # a page has 65,307 bytes at most
        tail = stream.read()
    for found in reversed([match.start() for match in re.finditer(b"OggS\0", tail)]):
        page = tail[found:]
        if len(page) > 27 and len(page) == 27 + page[26] + sum(page[27 : 27 + page[26]]):
            return bool(page[5] & 4)
    return False


# ---- SPHERE with compression ----


def _compressed(path: Path, head: bytes) -> bool:
    """Whether a file is SPHERE with shorten compression; other compressions are refused."""
    coding = re.search(rb"sample_coding -s\d+ (\S+)", head) if head.startswith(b"NIST_1A") else None
    if coding is None or b"embedded" not in coding[1]:
        return False
    if b"shorten" in coding[1]:
        return True
    raise AudioError(
        path, f"SPHERE compression {coding[1].decode(errors='replace')} cannot be read; convert the file to flac or wav"
    )


def _sph2pipe(path: Path) -> io.BytesIO:
    """The file as wav, decoded by sph2pipe."""
    program = shutil.which("sph2pipe")
    if program is None:
        way_out = f"put the program sph2pipe on PATH (source: {SPH2PIPE}), or convert the files to flac or wav"
        raise AudioError(path, f"it is SPHERE audio with shorten compression; to read it, {way_out}")
    done = subprocess.run([program, "-p", "-f", "wav", str(path.absolute())], capture_output=True, check=False)
    if done.returncode or not done.stdout:
        reason = one_line(RuntimeError(done.stderr.decode(errors="replace") or f"exit code {done.returncode}"))
        raise AudioError(path, f"sph2pipe cannot decode it ({reason}); get it again")
    return io.BytesIO(done.stdout)
