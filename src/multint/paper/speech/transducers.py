"""Which label sequences spell which units, and which units spell which words? The transducers T and L, as OpenFst's text.

Labels are 1 for the blank and k + 1 for unit k: column j of a matrix of posteriors is label j + 1, since 0 is OpenFst's epsilon.

A topology says what T accepts. All of them merge equal neighbours and drop blanks; they differ where one unit follows itself:

| topology | "LL" needs a blank between | blanks alone | arcs for u units |
|---|---|---|---|
| ``compact`` | no | the empty sequence | 3 u + 1 |
| ``eesen`` | no | refused | 3 u + 4 |
| ``strict`` | yes, as CTC has it | the empty sequence | u² + 2 u + 1 |

``eesen`` is that of Eesen's ``ctc_token_fst.py`` (Miao et al. 2015), ``compact`` that of Laptev et al. (2021), see also
wenet-e2e/wenet#679.
A path that reads "L L" as "LL" costs the same as one that reads it as "L", so spelling and language model decide.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from multint.paper.speech.utterances import SPACE, Units

TOPOLOGIES = ("compact", "eesen", "strict")
EPSILON = 0
LABEL_OF_BLANK = 1
HALF = -math.log(0.5)


def topology(name: str, units: int, disambiguation: Sequence[int]) -> str:
    """T: labels to units, numbered from 1. Disambiguation symbols, numbers above those of units, pass through it.

    >>> print(topology("compact", 1, [2]))
    0 0 1 0
    0 1 2 1
    1 1 2 0
    1 0 0 0
    0 0 0 2
    0
    """
    if name not in TOPOLOGIES:
        raise ValueError(f"no topology {name!r}: use {', '.join(TOPOLOGIES)}")
    arcs = {"compact": _compact, "eesen": _eesen, "strict": _strict}[name](units)
    states = range(units + 1) if name == "strict" else [0]
    through = (f"{state} {state} {EPSILON} {symbol}" for state in states for symbol in disambiguation)
    return "\n".join([*arcs, *through, *map(str, states)])


def _compact(units: int) -> Iterator[str]:
    yield f"0 0 {LABEL_OF_BLANK} {EPSILON}"
    for unit in range(1, units + 1):
        yield f"0 {unit} {unit + 1} {unit}"
        yield f"{unit} {unit} {unit + 1} {EPSILON}"
        yield f"{unit} 0 {EPSILON} {EPSILON}"


def _eesen(units: int) -> Iterator[str]:
    yield from (f"0 1 {EPSILON} {EPSILON}", f"1 1 {LABEL_OF_BLANK} {EPSILON}")
    yield from (f"2 2 {LABEL_OF_BLANK} {EPSILON}", f"2 0 {EPSILON} {EPSILON}")
    for unit in range(1, units + 1):
        state = unit + 2
        yield f"1 {state} {unit + 1} {unit}"
        yield f"{state} {state} {unit + 1} {EPSILON}"
        yield f"{state} 2 {EPSILON} {EPSILON}"


def _strict(units: int) -> Iterator[str]:
    yield f"0 0 {LABEL_OF_BLANK} {EPSILON}"
    for unit in range(1, units + 1):
        yield f"0 {unit} {unit + 1} {unit}"
        yield f"{unit} {unit} {unit + 1} {EPSILON}"
        yield f"{unit} 0 {LABEL_OF_BLANK} {EPSILON}"
        yield from (f"{unit} {other} {other + 1} {other}" for other in range(1, units + 1) if other != unit)


def spellings(units: Units, words: Sequence[str], unknown: str) -> dict[str, tuple[str, ...]]:
    """The units of each word that can be spelled. Of those that cannot, only ``unknown`` is there, if a unit stands for it."""
    found = {}
    for word in words:
        spelling = units.spelled(word)
        if spelling is not None and (spelling != (units.unknown,) or word in (unknown, units.unknown)):
            found[word] = spelling
    return found


def endings(lexicon: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """The disambiguation symbol at the end of each word: from 1 where its spelling begins another's or is another's, else 0."""
    longer = {start for spelling in lexicon.values() for start in accumulate((unit,) for unit in spelling[:-1])}
    often = Counter(lexicon.values())
    used: Counter[tuple[str, ...]] = Counter()
    ends = {}
    for word, spelling in lexicon.items():
        ambiguous = spelling in longer or often[spelling] > 1
        used[spelling] += ambiguous
        ends[word] = used[spelling] if ambiguous else 0
    return ends


def lexicon(units: Units, words: Mapping[str, tuple[str, ...]], numbers: Mapping[str, int]) -> tuple[str, int]:
    """L: units to words, and how many disambiguation symbols it uses: #0, #1 and so on, numbered after the units.

    As Eesen makes it: before the first word and after each word the space is there or not, with a probability of 0.5 each. It ends
    with a disambiguation symbol of its own. #0, the back-off symbol of the language model, passes between words.

    Args:
        words: their spellings.
        numbers: of words, and of "#0" among them.
    """
    ends = endings(words)
    symbol = len(units) + 1  # of #0
    after_space = symbol + max(ends.values(), default=0) + 1
    unit = units.numbers
    start, between, space, spaced = range(4)
    lines = [f"{start} {between} 0 0 {HALF}", f"{start} {space} 0 0 {HALF}", f"{between} {between} {symbol} {numbers['#0']}"]
    lines += [f"{space} {spaced} {unit[SPACE]} 0", f"{spaced} {between} {after_space} 0", f"{between}"]
    state = spaced
    for word, spelling in words.items():
        labels = [unit[name] for name in spelling] + [symbol + ends[word]] * (ends[word] > 0)
        here, output = between, numbers[word]
        for label in labels[:-1]:
            state += 1
            lines.append(f"{here} {state} {label} {output}")
            here, output = state, EPSILON
        lines += [f"{here} {end} {labels[-1]} {output} {HALF}" for end in (between, space)]
    return "\n".join(lines), after_space - symbol + 1
