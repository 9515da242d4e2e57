"""The slow, obvious language model: dictionaries, one n-gram at a time."""

import math
import random
from collections import Counter

START, END, UNKNOWN = "<s>", "</s>", "<unk>"


def natural(sentences, kinds=300, seed=0):
    """Sentences whose words are as unevenly distributed as real ones."""
    choose = random.Random(seed)
    weights = [1 / (k + 1) for k in range(kinds)]
    return [" ".join(f"W{k}" for k in choose.choices(range(kinds), weights, k=choose.randint(1, 9))) for _ in range(sentences)]


def table_of(model):
    """{n-gram: (log10 p, log10 back-off)}."""
    table, names = {}, [(word,) for word in model.words]
    for n, order in enumerate(model.orders, start=1):
        if n > 1:
            names = [(*names[key // len(model.words)], model.words[key % len(model.words)]) for key in order.keys.tolist()]
        table |= {name: pair for name, *pair in zip(names, order.prob, order.backoff, strict=True)}
    return table


def kneser_ney(sentences, order, vocabulary, prune, fallback=(0.5, 1.0, 1.5)):
    """{n-gram: (probability, back-off weight)} by the formulas of lmplz, and the discounts of each order."""
    counts = [Counter() for _ in range(order + 1)]
    for sentence in sentences:
        words = [START, *(w if w in vocabulary else UNKNOWN for w in sentence.split()), END]
        for n in range(1, order + 1):
            counts[n].update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    del counts[1][(START,)]
    adjusted = [{}]
    for n in range(1, order + 1):
        in_front = Counter(gram[1:] for gram in counts[n + 1]) if n < order else {}
        adjusted.append({g: c if n == order or g[0] == START else in_front[g] for g, c in counts[n].items()})
    discounts = [discounts_of(a.values(), fallback) for a in adjusted[1:]]
    words = [UNKNOWN, END, *vocabulary]
    probability, backoff = {(): 1 / len(set(words))}, {}
    for n in range(1, order + 1):
        contexts = {(): [(w,) for w in dict.fromkeys(words)]} if n == 1 else {}
        if n > 1:
            for gram in adjusted[n]:
                contexts.setdefault(gram[:-1], []).append(gram)
        for context, grams in contexts.items():
            total = sum(adjusted[n].get(g, 0) for g in grams)
            taken = {}
            for g in grams:
                a = adjusted[n].get(g, 0)
                pruned = n > 1 and counts[n][g] <= prune[n - 1]
                taken[g] = a if pruned else (0, *discounts[n - 1])[min(a, 3)]
            weight = sum(taken.values()) / total
            backoff[context] = weight
            for g in grams:
                if n == 1 or counts[n][g] > prune[n - 1]:
                    probability[g] = (adjusted[n].get(g, 0) - taken[g]) / total + weight * probability[g[1:]]
    del probability[()]
    probability[(START,)] = 1.0
    return {g: (p, backoff.get(g, 1.0)) for g, p in probability.items()}, discounts


def discounts_of(values, fallback):
    n1, n2, n3, n4 = (sum(v == k for v in values) for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return fallback
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 <= d <= k for d, k in zip(found, (1, 2, 3), strict=True)) else fallback


def read(path):
    """{n-gram: (log10 p, log10 back-off)} of a plain ARPA file."""
    table = {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            table[tuple(fields[1].split())] = (float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0)
    return table


def score(table, history, word):
    """log10 p(word | history) with as much of the history as the model knows."""
    if (*history, word) in table:
        return table[(*history, word)][0]
    if not history:
        return -math.inf
    return table.get(tuple(history), (0.0, 0.0))[1] + score(table, history[1:], word)
