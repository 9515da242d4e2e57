"""Speech of tones: every letter is a pitch, so a small model learns to spell in seconds."""

import wave
from pathlib import Path

import numpy as np

from multint.paper.speech.utterances import SPACE, Speech, Units, Utterance

RATE = 16_000
LETTERS = "ABDE"
PITCH = {"A": 300, "B": 700, "D": 1500, "E": 3000}
WORDS = ("AB", "BAD", "BE", "DAB", "DEED", "BEAD")
UNITS = Units((*LETTERS, SPACE))
LETTER, GAP = 0.09, 0.06  # seconds of a letter, and of the silence between words


def spoken(words: tuple[str, ...], generator: np.random.Generator) -> np.ndarray:
    """The audio of words: a tone for each letter, with pauses between letters and longer ones between words."""
    pieces = [np.zeros(400)]
    for word in words:
        for letter in word:
            time = np.arange(int(LETTER * RATE)) / RATE
            pieces += [0.3 * np.sin(2 * np.pi * PITCH[letter] * time), np.zeros(int(0.04 * RATE))]
        pieces.append(np.zeros(int(GAP * RATE)))
    sound = np.concatenate(pieces)
    return sound + 0.003 * generator.standard_normal(len(sound))


def write_wav(path: Path, samples: np.ndarray, rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def kaldi_folder(folder: Path, sizes: tuple[int, int, int] = (48, 8, 8)) -> Path:
    """The same as a data folder of Kaldi."""
    made = speech(folder / "audio", sizes)
    every = [one for ones in made.splits.values() for one in ones]
    tables = {
        "wav.scp": [f"{one.name} {one.audio[0].relative_to(folder)}" for one in every],
        "text": [f"{one.name} {' '.join(one.words)}" for one in every],
        "utt2spk": [f"{one.name} {one.speaker}" for one in every],
        **{f"{split}.list": [one.name for one in ones] for split, ones in made.splits.items()},
    }
    for name, lines in tables.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def speech(folder: Path, sizes: tuple[int, int, int] = (48, 8, 8), name: str = "tones") -> Speech:
    """A corpus of tones, two speakers in each split."""
    generator = np.random.default_rng(0)
    splits = {}
    for split, size in zip(("train", "valid", "test"), sizes, strict=True):
        ones = []
        for k in range(size):
            words = tuple(str(word) for word in generator.choice(WORDS, size=generator.integers(1, 4)))
            path = folder / split / f"{k}.wav"
            write_wav(path, spoken(words, generator))
            ones.append(Utterance(f"{split}-{k}", f"{split}-{k % 2}", (path,), words))
        splits[split] = ones
    return Speech(name, UNITS, splits, sha256="0" * 64, own=True)
