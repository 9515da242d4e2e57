"""Which words does a decoding graph hear in the outputs of a model? The scales of the search are selected on validation data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from multint.paper.speech import scoring
from multint.paper.speech.corpus import Corpus, Split
from multint.paper.speech.decode import Search, decode, priors
from multint.paper.speech.graph import Graph

Words = tuple[str, ...]

SEARCH = Search(beam=13.0, max_active=2000)
ACOUSTIC = (0.6, 0.9, 1.2)  # acoustic scales that are tried
PRIOR = (0.0, 0.3, 0.6)  # weights of the priors that are tried
TRIED_ON = 40  # validation utterances


@dataclass(frozen=True)
class Selected:
    """A search, and the word error rate (percent) of each acoustic and prior scale that was tried."""

    search: Search
    tried: tuple[tuple[float, float, float], ...]
    utterances: int

    @property
    def description(self) -> dict[str, Any]:
        """What a record says of it."""
        search = {name: getattr(self.search, name) for name in ("beam", "max_active", "acoustic_scale", "prior_scale")}
        return {**search, "tried": [list(one) for one in self.tried], "tried_on": self.utterances}


def log_priors(corpus: Corpus) -> NDArray[np.float64]:
    """Of the blank and the units, from the training transcripts."""
    return priors(corpus.splits["train"].labels, len(corpus.units))


def sample(split: Split, most: int = TRIED_ON) -> list[int]:
    """Numbers of utterances, evenly over a split."""
    return [int(i) for i in np.unique(np.linspace(0, len(split) - 1, min(most, len(split))).round())]


def words(graph: Graph, log_probs: Sequence[Tensor], search: Search, logs: NDArray[np.float64], processes: int = 1) -> list[Words]:
    """The best words of every utterance."""
    return [one.words for one in decode(graph, [one.numpy() for one in log_probs], search, logs, processes)]


def select(
    graph: Graph,
    log_probs: Sequence[Tensor],
    said: Sequence[Words],
    logs: NDArray[np.float64],
    processes: int = 1,
    base: Search = SEARCH,
) -> Selected:
    """The scales with the lowest word error rate on these utterances; of equal ones the first that was tried."""
    total = sum(map(len, said))
    tried = []
    for scale in ACOUSTIC:
        for prior in PRIOR:
            search = replace(base, acoustic_scale=scale, prior_scale=prior)
            heard = words(graph, log_probs, search, logs, processes)
            wrong = sum(scoring.distance(a, b) for a, b in zip(said, heard, strict=True))
            tried.append((scale, prior, round(100 * wrong / max(total, 1), 3)))
    best = min(tried, key=lambda one: one[2])
    return Selected(replace(base, acoustic_scale=best[0], prior_scale=best[1]), tuple(tried), len(said))
