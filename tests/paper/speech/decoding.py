"""Small graphs, and posteriors of what was said."""

import numpy as np

from multint.paper.speech import arpa, graph
from multint.paper.speech.ngram import estimate
from multint.paper.speech.utterances import SPACE, Units

TINY = Units((SPACE, "A", "B"))
LETTERS = Units((SPACE, "'", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
SHORE = [
    "SHE SELLS SEA SHELLS BY THE SEA SHORE",
    "THE SHELLS SHE SELLS ARE SURELY SEA SHELLS",
    "SO IF SHE SELLS SHELLS ON THE SEA SHORE",
    "I'M SURE SHE SELLS SEA SHORE SHELLS",
    "THE SEA SEES THE SHORE AND SHE SEES THE SEA",
    "A SEAL SEES SEAS",
]


def built(folder, units, sentences, topology="compact", order=3, **options):
    """The graph of a model of a few sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lm.arpa"
    arpa.write(estimate(sentences, order), path)
    return graph.build(units, None, path, folder / "graphs", topology, **options)


def random_posteriors(rng, frames, units):
    return np.log(rng.dirichlet(np.ones(len(units) + 1), frames)).astype(np.float32)


def said(rng, units, text, peak=6.0, noise=1.0):
    """Posteriors of a sentence: a frame or two a unit, a blank or two between, and noise."""
    frames = []
    for unit in units.encode(text.split()):
        frames += [unit] * rng.integers(1, 3) + [0] * rng.integers(1, 4)
    logits = noise * rng.standard_normal((len(frames), len(units) + 1))
    logits[np.arange(len(frames)), frames] += peak
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


def shortest(graph, scores):
    """Words and cost of OpenFst's shortest path through all frames and the graph."""
    import kaldifst

    frames = [f"{t} {t + 1} {k + 1} {k + 1} {-score:.9g}" for t, row in enumerate(scores) for k, score in enumerate(row)]
    linear = kaldifst.compile("\n".join([*frames, str(len(scores))]))
    tlg = kaldifst.StdVectorFst(kaldifst.StdConstFst.read(str(graph.tlg)))
    kaldifst.arcsort(linear, "olabel")
    path = kaldifst.shortest_path(kaldifst.compose(linear, tlg))
    if path.start < 0:
        return None
    _, labels, words, cost = kaldifst.get_linear_symbol_sequence(path)
    return tuple(graph.words[w] for w in words), cost.value, labels
