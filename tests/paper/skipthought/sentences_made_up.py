"""Small labelled sets and books for the tests of §3.4: a made-up language whose classes can be learned."""

import random

import numpy as np

from multint.paper.skipthought.corpus import LIMIT, Corpus, Counts, triples

GOOD, BAD = ("lovely", "bright", "warm", "kind"), ("dull", "cold", "broken", "sad")
THINGS = ("dog", "boat", "house", "song", "river", "lamp", "train", "garden")


def sentence(choose, words=()):
    thing, other = choose.sample(THINGS, 2)
    kinds = " ".join(choose.choice(words) for _ in range(choose.randint(1, 3))) if words else "plain"
    return f"The {thing} near the {other} is {kinds} ."


def two_classes(count, seed):
    """Lines of two classes; one word in six is of the other class."""
    choose = random.Random(seed)

    def line(mine, others):
        return sentence(choose, others if choose.random() < 1 / 6 else mine)

    return [line(GOOD, BAD) for _ in range(count)], [line(BAD, GOOD) for _ in range(count)]


def pairs(count, seed):
    """Pairs of sentences that share as many of four words as their number says."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        shared = choose.randint(0, 4)
        words = choose.sample(THINGS, 8)
        rows.append((" ".join(words[:4]), " ".join(words[:shared] + words[4 : 8 - shared]), 1.0 + shared))
    return rows


def sick_file(rows):
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    return "\r\n".join([head, *(f"{k}\t{a}\t{b}\t{y:g}\tNEUTRAL" for k, (a, b, y) in enumerate(rows))]) + "\r\n"


def msrp_file(rows):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    return "\r\n".join([head, *(f"{int(y > 3)}\t{k}\t{k}\t{a}\t{b}" for k, (a, b, y) in enumerate(rows))]) + "\r\n"


SIZES = {"sick": (60, 20, 40), "msrp": (50, 30), "mr": (40, 40), "cr": (24, 24), "subj": (30, 30), "mpqa": (26, 26)}


def write_sets(folder, monkeypatch):
    """All six sets, and counts that fit them."""
    from dataclasses import replace

    from multint.paper.skipthought import labelled

    small = {name: replace(source, counts=SIZES[name]) for name, source in labelled.SETS.items()}
    monkeypatch.setattr(labelled, "SETS", small)
    for name, source in small.items():
        (folder / source.folder).mkdir(parents=True, exist_ok=True)
        if name in ("sick", "msrp"):
            contents = [
                (sick_file if name == "sick" else msrp_file)(pairs(count, seed)) for seed, count in enumerate(source.counts)
            ]
        else:
            contents = ["\n".join(lines) + "\n" for lines in two_classes(source.counts[0], len(name))]
        for file, content in zip(source.files, contents, strict=True):
            (folder / source.folder / file.name).write_text(content, encoding="utf-8", newline="")
    return small


def made_up(count=300, seed=0, words=40):
    """A corpus whose sentences have random words; some are too long."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, count)
    lengths[draw.random(count) < 0.1] = LIMIT
    begins = draw.random(count) < 0.05
    kept = np.where(lengths == LIMIT, 0, lengths)
    starts = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    tokens = draw.integers(0, words, starts[-1]).astype(np.uint16)
    middles, of_length = triples(lengths.astype(np.uint8), begins)
    names = tuple(f"w{k}" for k in range(words))
    seen = np.bincount(tokens, minlength=words)
    counts = Counts(sentences=count, tokens=len(tokens))
    return Corpus("made-up", "0", None, True, "", counts, names, seen, tokens, starts, middles, tuple(of_length))
