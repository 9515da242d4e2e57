"""What is said in an audio file of any length, and when?

A file is one speaker: its mean and variance normalise its features. It is read in pieces. Layers of one direction carry their state
from piece to piece; those of two directions see some seconds more on both sides of each piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multint.paper.speech import audio
from multint.paper.speech.features import MEL, RATE, SHIFT, Moments, frames, log_mel
from multint.paper.speech.model import Recogniser
from multint.paper.speech.utterances import BLANK, SPACE, Units
from multint.shapes import Float

READ = 30 * RATE  # samples in memory at a time


@dataclass(frozen=True)
class Word:
    """A word and the seconds from its first unit to the end of its last."""

    text: str
    start: float
    end: float


def energies(path: Path, channel: int | None = None) -> Float[Tensor, "t mel"]:
    """Log-mel energies of a file, read in pieces: the same as those of all of it at once."""
    rest, parts = torch.zeros(0), [torch.zeros(0, MEL)]
    for piece in audio.pieces(path, READ, RATE, channel):
        samples = torch.cat([rest, torch.from_numpy(piece)])
        parts.append(log_mel(samples))
        rest = samples[frames(len(samples)) * SHIFT :]
    return torch.cat(parts)


def posteriors(
    model: Recogniser, path: Path, channel: int | None = None, piece: float = 30.0, context: float = 3.0
) -> Float[Tensor, "t k"]:
    """Log-probabilities of blank and units at every step of a file.

    Args:
        piece: seconds that the model reads at a time.
        context: seconds before and after a piece that layers of two directions read with it.
    """
    raw = energies(path, channel)
    x = model.form(Moments.of(raw).normalised(raw))
    size, around = (max(1, round(seconds / model.form.seconds)) for seconds in (piece, context))
    parts = _carried(model, x, size) if not model.core.bidirectional else _surrounded(model, x, size, around)
    return torch.cat([torch.zeros(0, 1 + len(model.units)), *parts])


def _carried(model: Recogniser, x: Tensor, size: int) -> Iterator[Tensor]:
    state: Any = None
    for first in range(0, len(x), size):
        log_probs, state = model.posteriors(x[first : first + size], state)
        yield log_probs.cpu()


def _surrounded(model: Recogniser, x: Tensor, size: int, around: int) -> Iterator[Tensor]:
    for first in range(0, len(x), size):
        begin, last = max(0, first - around), min(first + size, len(x))
        log_probs, _ = model.posteriors(x[begin : last + around])
        yield log_probs[first - begin : last - begin].cpu()


def words(log_probs: Float[Tensor, "t k"], units: Units, seconds: float) -> list[Word]:
    """The words of the best unit at every step; ``seconds`` lie between two steps."""
    best = log_probs.argmax(1).tolist() if len(log_probs) else []
    found: list[Word] = []
    spelled: list[int] = []
    start = end = 0
    for step, (unit, before) in enumerate(zip([*best, BLANK], [BLANK, *best], strict=True)):
        ends_word = unit != BLANK and units.symbols[unit - 1] == SPACE
        if spelled and (ends_word or step == len(best)):
            found += [Word(text, start * seconds, end * seconds) for text in units.words(spelled)]
            spelled = []
        elif unit not in (BLANK, before) and not ends_word:
            start = start if spelled else step
            spelled.append(unit)
        if unit != BLANK and not ends_word:
            end = step + 1
    return found


def text(found: Sequence[Word]) -> str:
    return " ".join(word.text for word in found)
