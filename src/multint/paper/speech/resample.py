"""How is sound brought to another sampling rate?

Each new sample is a weighted sum of the old ones around it. The weights are a sinc, cut off by a Kaiser window; there is one row of
weights for each place that a new sample can have between two old ones.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

CROSSINGS = 64  # zeros of the sinc on each side
BETA = 10.0  # of the Kaiser window: what the filter stops is 100 dB down
EDGE = 0.95  # the filter's middle as a share of the lower Nyquist frequency; it passes up to 0.9 and stops from 1.0
BLOCK = 1 << 14  # new samples computed at a time


@functools.lru_cache(maxsize=4)
def _weights(up: int, half: int, cutoff: float) -> Samples:
    """Weights of ``2 * half`` old samples for each of the ``up`` places of a new one."""
    between = np.arange(up)[:, None] / up  # how far a new sample lies behind the old one before it
    away = np.arange(1 - half, half + 1)[None] - between
    window = np.i0(BETA * np.sqrt(np.clip(1 - (away / half) ** 2, 0, None))) / np.i0(BETA)
    weights = cutoff * np.sinc(cutoff * away) * window
    summed: Samples = (weights / weights.sum(1, keepdims=True)).astype(np.float32)  # a constant stays what it is
    return summed


class Resampler:
    """Takes sound in pieces of any length and gives it at another rate; the pieces do not change the result."""

    def __init__(self, old: int, new: int) -> None:
        if min(old, new) < 1:
            raise ValueError(f"a sampling rate is at least 1 Hz, got {old} and {new}")
        common = math.gcd(old, new)
        self.up, self.down = new // common, old // common
        cutoff = EDGE * min(1.0, new / old)
        self.half = math.ceil(CROSSINGS / cutoff)  # old samples used on each side
        self.weights = _weights(self.up, self.half, cutoff)
        self.kept: Samples = np.zeros(self.half, np.float32)  # silence before the first sample
        self.first = -self.half  # which old sample kept[0] is
        self.given = 0  # new samples so far

    def push(self, x: Samples) -> Samples:
        """The new samples that the old ones up to here determine."""
        self.kept = np.concatenate((self.kept, x.astype(np.float32, copy=False)))
        end = self.first + len(self.kept)
        # new sample n needs the old ones up to n * down // up + half
        ready = max(self.given, -((self.half - end) * self.up // self.down))
        out = [self._between(n, min(n + BLOCK, ready)) for n in range(self.given, ready, BLOCK)]
        self.given = ready
        unneeded = min(self.given * self.down // self.up + 1 - self.half - self.first, len(self.kept))
        if unneeded > 0:
            self.kept, self.first = self.kept[unneeded:], self.first + unneeded
        return np.concatenate(out) if out else np.zeros(0, np.float32)

    def _between(self, n: int, end: int) -> Samples:
        places = np.arange(n, end, dtype=np.int64) * self.down
        windows = np.lib.stride_tricks.sliding_window_view(self.kept, 2 * self.half)
        starts = places // self.up + 1 - self.half - self.first
        out: Samples = np.einsum("nk,nk->n", windows[starts], self.weights[places % self.up])
        return out

    def finish(self) -> Samples:
        """The new samples at the end, after which there is silence."""
        total = -(-(self.first + len(self.kept)) * self.up // self.down)
        left = total - self.given
        return self.push(np.zeros(self.half + self.down, np.float32))[:left]


def resample(x: Samples, old: int, new: int) -> Samples:
    """Sound at another rate: ``ceil(len(x) * new / old)`` samples, in time with the old ones."""
    if old == new:
        return x
    resampler = Resampler(old, new)
    return np.concatenate((resampler.push(x), resampler.finish()))
