"""The slow, obvious searches: transducers walked arc by arc, and all paths of labels enumerated."""

import math
from collections import defaultdict
from itertools import groupby, pairwise, product

START, END = "<s>", "</s>"


def arcs_of(text):
    """Arcs {state: [(to, input, output, cost)]} and final costs of a transducer in OpenFst's text."""
    arcs, final = defaultdict(list), {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 2:
            source, to, label, output = map(int, fields[:4])
            arcs[source].append((to, label, output, float(fields[4]) if len(fields) > 4 else 0.0))
        elif fields:
            final[int(fields[0])] = float(fields[1]) if len(fields) > 1 else 0.0
    return arcs, final


def transduced(text, labels, start=0):
    """{output: lowest cost} of a sequence of input labels; epsilons are 0. Outputs longer by more than two symbols are left out."""
    arcs, final = arcs_of(text)
    longest = len(labels) + 2

    def closed(tokens):
        todo = list(tokens.items())
        while todo:
            (state, output), cost = todo.pop()
            for to, label, symbol, weight in arcs[state]:
                key = (to, output + (symbol,) * (symbol > 0))
                if label == 0 and len(key[1]) <= longest and cost + weight < tokens.get(key, math.inf):
                    tokens[key] = cost + weight
                    todo.append((key, cost + weight))
        return tokens

    tokens = closed({(start, ()): 0.0})
    for wanted in labels:
        following = {}
        for (state, output), cost in tokens.items():
            for to, label, symbol, weight in arcs[state]:
                key = (to, output + (symbol,) * (symbol > 0))
                if label == wanted:
                    following[key] = min(following.get(key, math.inf), cost + weight)
        tokens = closed(following)
    found = {}
    for (state, output), cost in tokens.items():
        if state in final:
            found[output] = min(found.get(output, math.inf), cost + final[state])
    return found


def collapsed(path):
    """What CTC reads in a path: one unit for equal neighbours, then no blanks."""
    return tuple(unit for unit, _ in groupby(path) if unit)


def readings(topology, path):
    """All unit sequences that a topology reads in a path of units and blanks (0)."""
    if topology == "strict":
        return {collapsed(path)}
    runs = [(unit, len(list(run))) for unit, run in groupby(path) if unit]
    if topology == "eesen" and not runs and path:
        return set()
    found = {()}
    for unit, length in runs:
        found = {one + (unit,) * k for one in found for k in range(1, length + 1)}
    return found


def spelled_by(units, lexicon, space):
    """{words: number of optional spaces decided} of a unit sequence; a space may be at the start and after each word."""

    def parse(rest):
        """Sequences after a word, or at the start."""
        found = []
        for after in [rest] if rest[:1] != (space,) else [rest, rest[1:]]:
            if not after:
                found.append(())
            for word, spelling in lexicon.items():
                if after[: len(spelling)] == spelling:
                    found += [(word, *more) for more in parse(after[len(spelling) :])]
        return found

    return {words: len(words) + 1 for words in parse(tuple(units))}


def grammar_cost(table, order, words):
    """The lowest cost of words and an end, over all ways to back off: {n-gram: (log10 p, log10 back-off)}."""

    def cost(history, rest):
        wanted = rest[0] if rest else END
        ways = []
        if (*history, wanted) in table:
            here = -math.log(10) * table[(*history, wanted)][0]
            if not rest:
                ways.append(here)
            else:
                new = (*history, wanted)
                while new and (len(new) > order - 1 or new not in table):
                    new = new[1:]
                ways.append(here + cost(new, rest[1:]))
        if history:
            ways.append(-math.log(10) * table[history][1] + cost(history[1:], rest))
        return min(ways, default=math.inf)

    return cost((START,) if order > 1 else (), words)


def all_hypotheses(scores, topology, lexicon, space, table, order):
    """{words: lowest cost} over all paths of labels, for scores (t, 1 + units) that are negative costs."""
    best, half = {}, math.log(2)
    for path in product(range(scores.shape[1]), repeat=len(scores)):
        acoustic = -sum(float(scores[t, unit]) for t, unit in enumerate(path))
        for units in readings(topology, path):
            for words, decisions in spelled_by(units, lexicon, space).items():
                total = acoustic + decisions * half
                best[words] = min(best.get(words, math.inf), total)
    return {words: cost + grammar_cost(table, order, words) for words, cost in best.items()}


def is_increasing(spans):
    return all(a < b for a, b in spans) and all(one[1] <= other[0] for one, other in pairwise(spans))
