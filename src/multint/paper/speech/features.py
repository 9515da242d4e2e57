"""What does a recogniser see of a piece of audio? Log-mel energies as Kaldi computes them, normalised, with deltas, stacked.

The order is Eesen's: 40 log-mel energies every 10 ms, mean and variance per speaker, then deltas, then stacking.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from multint.shapes import Float

RATE = 16_000  # samples a second
WINDOW, SHIFT, FFT = 400, 160, 512  # samples: 25 ms, 10 ms
LOW = 20.0  # Hz, lower end of the first filter; the last ends at half the rate
MEL = 40
SCALE = 32768.0  # Kaldi reads samples as 16-bit integers
FLOOR = torch.finfo(torch.float32).eps  # of an energy before the logarithm
FASTEST = SHIFT / RATE  # seconds between frames


@dataclass(frozen=True)
class Form:
    """How frames become the input of a model.

    Args:
        deltas: add first and second differences (120 values a frame in place of 40).
        stack: frames joined into one; the model sees every ``stack``-th.
    """

    deltas: bool = True
    stack: int = 1

    @property
    def size(self) -> int:
        return MEL * (3 if self.deltas else 1) * self.stack

    def frames(self, n: int) -> int:
        """Inputs that n frames become."""
        return -(-n // self.stack)

    @property
    def seconds(self) -> float:
        """From one input to the next."""
        return FASTEST * self.stack

    def __call__(self, x: Float[Tensor, "t mel"]) -> Float[Tensor, "s f"]:
        """The model's input for the normalised frames of an utterance."""
        return stacked(with_deltas(x) if self.deltas else x, self.stack)


def frames(samples: int) -> int:
    """Whole windows in that many samples."""
    return 0 if samples < WINDOW else 1 + (samples - WINDOW) // SHIFT


@functools.cache
def filters() -> Float[Tensor, "bins mel"]:
    """Triangles that overlap by half, equally wide on the mel scale. As in Kaldi the bin at half the rate is left out."""

    def mel(hertz: Tensor) -> Tensor:
        return 1127.0 * torch.log1p(hertz / 700.0)

    edges = torch.linspace(float(mel(torch.tensor(LOW))), float(mel(torch.tensor(RATE / 2.0))), MEL + 2, dtype=torch.float64)
    bins = mel(torch.arange(FFT // 2, dtype=torch.float64) * (RATE / FFT))[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    found: Tensor = torch.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)).clamp(min=0)
    return found.float()


@functools.cache
def window() -> Float[Tensor, " w"]:
    """Povey's window: a Hann window to the power 0.85."""
    hann: Tensor = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64)
    return hann.pow(0.85).float()


def log_mel(samples: Float[Tensor, " s"]) -> Float[Tensor, "t mel"]:
    """Log-mel energies of audio at 16 kHz with values from -1 to 1: Kaldi's fbank without dither.

    Each window loses its mean and is pre-emphasised by 0.97. Audio shorter than a window has no frame.
    """
    if frames(len(samples)) == 0:
        return samples.new_zeros(0, MEL)
    x = (samples * SCALE).unfold(0, WINDOW, SHIFT)
    x = x - x.mean(1, keepdim=True)
    before = torch.cat([x[:, :1], x[:, :-1]], 1)
    spectrum = torch.fft.rfft((x - 0.97 * before) * window(), FFT)
    power = spectrum.abs().square()[:, : FFT // 2]
    energies: Tensor = power @ filters()
    return energies.clamp(min=FLOOR).log()


def with_deltas(x: Float[Tensor, "t mel"]) -> Float[Tensor, "t f"]:
    """The frames with their first and second differences over two frames to each side; the ends are repeated."""
    if len(x) == 0:
        return x.new_zeros(0, 3 * x.shape[1])
    once = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]) / 10
    twice = F.conv1d(F.pad(once[None, None], (4, 4)), once.flip(0)[None, None]).flatten()  # the filter applied to itself
    kernels = torch.stack([F.pad(torch.ones(1), (4, 4)), F.pad(once, (2, 2)), twice]).to(x)
    padded = F.pad(x.t()[:, None], (4, 4), mode="replicate")
    return F.conv1d(padded, kernels[:, None]).permute(2, 1, 0).flatten(1)


def stacked(x: Float[Tensor, "t f"], n: int) -> Float[Tensor, "s g"]:
    """Every n frames as one; the last frame is repeated where some are missing."""
    short = -len(x) % n
    if short:
        x = torch.cat([x, x[-1:].expand(short, -1)])
    return x.reshape(len(x) // n, n * x.shape[1])


@dataclass(frozen=True)
class Moments:
    """Sums over the frames of a speaker, from which mean and variance follow."""

    count: int
    total: Float[Tensor, " mel"]
    squares: Float[Tensor, " mel"]

    @classmethod
    def of(cls, x: Float[Tensor, "t mel"]) -> "Moments":
        wide = x.double()
        return cls(len(x), wide.sum(0), wide.square().sum(0))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def normalised(self, x: Float[Tensor, "t mel"]) -> Float[Tensor, "t mel"]:
        """x with mean 0 and variance 1 over the speaker. A silent speaker's frames, which do not vary, become 0."""
        if self.count == 0:
            return x
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=1e-8 * (1 + mean.square()))
        return ((x.double() - mean) / variance.sqrt()).to(x.dtype)


def seconds(frames: int) -> str:
    """A length as shown to people."""
    whole = round(frames * FASTEST)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def digest_of_form() -> str:
    """What prepared features depend on beside the audio; another value makes prepared data out of date."""
    return f"log-mel {MEL} {RATE} {WINDOW}/{SHIFT}/{FFT} {LOW:g} {math.log(FLOOR):.3f}"
