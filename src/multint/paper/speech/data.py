"""Which utterances does a batch hold, and in which order do batches come?"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multint.paper.experiment import Team
from multint.paper.speech.corpus import Split
from multint.paper.speech.features import Form
from multint.shapes import Float, Int


class Batch(NamedTuple):
    """Utterances side by side, the longest first."""

    x: Float[Tensor, "t n f"]
    lengths: Int[Tensor, " n"]  # steps of each
    labels: Int[Tensor, " l"]  # of all, one after the other
    counts: Int[Tensor, " n"]  # labels of each


def batch(split: Split, picked: list[int], form: Form) -> Batch:
    """The utterances of these numbers, the longest first."""
    order = sorted(picked, key=lambda i: -int(split.lengths[i]))
    parts = [form(split.features(i)) for i in order]
    labels = [split.labels[i] for i in order]
    flat = torch.tensor([label for one in labels for label in one], dtype=torch.int64)
    lengths, counts = torch.tensor([len(part) for part in parts]), torch.tensor([len(one) for one in labels])
    return Batch(pad_sequence(parts), lengths, flat, counts)


def needed(labels: tuple[int, ...]) -> int:
    """Steps that CTC needs to write these labels: equal neighbours have a blank between them."""
    return len(labels) + sum(a == b for a, b in pairwise(labels))


@dataclass(frozen=True)
class Plan:
    """How a split is cut into batches of utterances of similar length.

    Args:
        utterances: most in a batch.
        frames: most in a batch, padding included; a longer utterance stands alone.
        spread: lengths are multiplied by a random number of 1 - spread to 1 + spread before they are sorted, so that batches
            change from epoch to epoch.
        sorted_first: the first epoch goes from short utterances to long ones.
    """

    utterances: int
    frames: int
    spread: float = 0.1
    sorted_first: bool = False

    def cut(self, split: Split, picked: list[int], seed: int, epoch: int) -> list[list[int]]:
        """The batches of an epoch as numbers of utterances."""
        generator = np.random.default_rng([seed, epoch])
        lengths = split.lengths
        first = self.sorted_first and epoch == 0
        noise = np.ones(len(picked)) if first else generator.uniform(1 - self.spread, 1 + self.spread, len(picked))
        order = [picked[k] for k in np.argsort(lengths[picked] * noise, kind="stable")]
        cuts: list[list[int]] = []
        longest = 0
        for i in order:
            longest = max(longest, int(lengths[i]))
            full = not cuts or len(cuts[-1]) == self.utterances or longest * (len(cuts[-1]) + 1) > self.frames
            if full:
                cuts.append([])
                longest = int(lengths[i])
            cuts[-1].append(i)
        return cuts if first else [cuts[k] for k in generator.permutation(len(cuts))]


class Batches:
    """One epoch; each process takes its part of every batch, which then has at least one utterance of each."""

    def __init__(self, split: Split, cuts: list[list[int]], form: Form, team: Team) -> None:
        self.split, self.form, self.team = split, form, team
        self.cuts = [cut for cut in cuts if len(cut) >= team.world]

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, position: int) -> Batch:
        return batch(self.split, self.cuts[position][self.team.rank :: self.team.world], self.form)
