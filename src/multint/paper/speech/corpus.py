"""How do utterances become features and labels, cached on disk?

Features are 40 log-mel energies a frame, normalised by speaker, in half precision. Deltas and stacking come later
(``features.Form``). The cache is read through memory maps, so a corpus may be larger than memory.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multint.paper import prepared
from multint.paper.obtain import Where
from multint.paper.speech import audio, features
from multint.paper.speech.features import MEL, Moments, log_mel
from multint.paper.speech.utterances import Speech, Units, Utterance

logger = logging.getLogger("multint")

FORMAT = 1  # of the cache; a cache of another format is prepared again
FEW = 64  # utterances that are prepared without further processes
TOGETHER = 1 << 16  # frames normalised at a time


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a prepared corpus. Utterance i has the frames ``starts[i]`` to ``starts[i + 1]``."""

    names: tuple[str, ...]
    speakers: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    starts: NDArray[np.int64]
    frames: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each utterance."""
        return np.diff(self.starts)

    def features(self, i: int) -> Tensor:
        """The normalised frames (t, mel) of an utterance."""
        return torch.from_numpy(self.frames[self.starts[i] : self.starts[i + 1]].astype(np.float32))


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus, an ``experiment.Dataset``."""

    name: str
    sha256: str
    stands_for: str | None
    units: Units
    splits: Mapping[str, Split]
    own: bool = False
    form: str = ""
    data: Where | None = None  # the data folder, for the text of language models

    def __str__(self) -> str:
        sizes = " / ".join(f"{len(s)} utterances, {features.seconds(int(s.starts[-1]))}" for s in self.splits.values())
        stands = f" (stands for {self.stands_for})" if self.stands_for else ""
        return f"{self.name}{stands}: {sizes}; {len(self.units)} units, sha256 {self.sha256}"


# ---- the cache ----


def prepare(speech: Speech, data: Where | None = None, check_sums: bool = False) -> Corpus:
    """A corpus from the cache, or prepared now. Audio that cannot be read stops it with an error that names the file."""
    name = f"speech-{speech.name}-{speech.sha256[:16]}"

    def read(folder: Path, check: bool) -> Corpus:
        return _read(folder, speech, data, check)

    return prepared.ready(name, data, read, lambda work: _write(work, speech), check_sums)


def _read(folder: Path, speech: Speech, data: Where | None, check_sums: bool) -> Corpus:
    def corpus(note: Mapping[str, Any]) -> Corpus:
        if (note["sha256"], note["features"]) != (speech.sha256, features.digest_of_form()):
            raise ValueError("it is of other audio or other features")
        splits = {split: _split(folder, split, speech, note["arrays"][split], check_sums) for split in speech.splits}
        return Corpus(speech.name, speech.sha256, speech.stands_for, speech.units, splits, speech.own, data=data)

    return prepared.described(folder, FORMAT, corpus)


def _split(folder: Path, split: str, speech: Speech, facts: Mapping[str, Any], check_sums: bool) -> Split:
    ones = speech.splits[split]
    starts, frames = (prepared.mapped(folder / f"{split}-{kind}.npy", facts[kind], check_sums) for kind in ("starts", "frames"))
    if len(starts) != len(ones) + 1:
        raise ValueError(f"{split} has {len(starts) - 1} utterances, not {len(ones)}")
    labels = tuple(tuple(speech.units.encode(one.words)) for one in ones)
    return Split(tuple(o.name for o in ones), tuple(o.speaker for o in ones), tuple(o.words for o in ones), labels, starts, frames)


def _write(work: Path, speech: Speech) -> dict[str, Any]:
    """All log-mel energies into one raw file per split while the moments of every speaker add up; then the normalised arrays."""
    shown = _Progress(speech.name, sum(map(len, speech.splits.values())))
    moments: dict[str, Moments] = {}
    starts: dict[str, NDArray[np.int64]] = {}
    for split, ones in speech.splits.items():
        lengths = []
        with (work / f"{split}.raw").open("wb") as out:
            for one, frames in zip(ones, _energies(ones), strict=True):
                here = Moments.of(torch.from_numpy(frames))
                moments[one.speaker] = moments[one.speaker] + here if one.speaker in moments else here
                out.write(frames.data)
                lengths.append(len(frames))
                shown.step(one.name)
        starts[split] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    shown.end()
    arrays = {split: _normalised(work, split, ones, starts[split], moments) for split, ones in speech.splits.items()}
    about = {"format": FORMAT, "name": speech.name, "sha256": speech.sha256, "features": features.digest_of_form()}
    return {**about, "arrays": arrays}


def _normalised(
    work: Path, split: str, ones: Sequence[Utterance], starts: NDArray[np.int64], moments: Mapping[str, Moments]
) -> dict[str, Any]:
    raw = work / f"{split}.raw"
    total = int(starts[-1])
    source = np.memmap(raw, np.float32, "r", shape=(total, MEL)) if total else np.zeros((0, MEL), np.float32)
    path = work / f"{split}-frames.npy"
    target = np.lib.format.open_memmap(path, "w+", np.float16, (total, MEL))
    for one, first, last in zip(ones, starts[:-1], starts[1:], strict=True):
        if last > first:
            target[first:last] = moments[one.speaker].normalised(torch.from_numpy(source[first:last].copy())).numpy()
    target.flush()
    raw.unlink()
    return {"starts": prepared.saved(work / f"{split}-starts.npy", starts), "frames": prepared.facts(path, target)}


def _energies(ones: Sequence[Utterance]) -> Iterator[NDArray[np.float32]]:
    """Log-mel energies of utterances, in order."""
    if len(ones) <= FEW or (os.cpu_count() or 1) == 1:
        yield from map(energies, ones)
        return
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _alone) as pool:
        yield from pool.map(energies, ones, chunksize=8)


def _alone() -> None:
    torch.set_num_threads(1)


def energies(one: Utterance) -> NDArray[np.float32]:
    """Log-mel energies (t, mel) of an utterance."""
    return log_mel(torch.from_numpy(audio.samples(one, features.RATE))).numpy()


class _Progress:
    """A line on a terminal while audio is read."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done, self.shown = name, total, 0, 0.0
        self.live = sys.stderr.isatty()
        logger.info("%s: reading %d utterances", name, total)

    def step(self, utterance: str) -> None:
        self.done += 1
        if self.live and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            print(f"\r{self.name}: {self.done:,} of {self.total:,} utterances", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print(f"\r{self.name}: {self.total:,} utterances" + " " * 20, file=sys.stderr, flush=True)
