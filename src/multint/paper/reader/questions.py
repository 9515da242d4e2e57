"""What is a question about a document, how is it written in a file, and which sentences of the document does the reader see?

The form is that of Hermann et al. (2015): entities are anonymous, ``@entity7``, and one of them is missing from the question.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PLACEHOLDER = "@placeholder"
ENTITY = re.compile(r"@entity(\d+)")
ENDS = (".", "?", "!")
CLOSING = ("'", "''", '"', "”", "’", ")", "]")  # belong to the sentence that ended before them

# words that say nothing about which sentence a question is about
STOPWORDS = frozenset(
    word
    for line in (
        "a about after all also am an and any are as at be because been before being between both but by can could did do",
        "does during each for from further had has have he her here him his how i if in into is it its itself just may me",
        "might more most much must my no nor not now of off on one only or other our out over own said same says she",
        "should so some such than that the their them then there these they this those through to too two under until up",
        "us very was we were what when where which while who whom whose why will with would you your 's n't 're 've 'll",
        "'d 'm -lrb- -rrb- `` '' -- . , ; : ? ! ( ) [ ] \" ' - – — / “ ” ‘ ’ … & % $ @placeholder",
    )
    for word in line.split()
)


class Malformed(ValueError):
    """Why a text is no question, in a few words that fit every text with this fault."""


@dataclass(frozen=True)
class Question:
    """A document, a sentence about it with one entity missing, and that entity.

    Args:
        document, question: tokens.
        entities: names of the anonymous entities; a reader never sees them.
        source: where the document is from.
    """

    document: tuple[str, ...]
    question: tuple[str, ...]
    answer: str
    entities: Mapping[str, str] = field(default_factory=dict)
    source: str = ""


def number(token: str) -> int | None:
    """The number of an entity; None for a word.

    >>> number("@entity12"), number("entity12")
    (12, None)
    """
    found = ENTITY.fullmatch(token) if token.startswith("@") else None
    return int(found[1]) if found else None


# ---- files ----


def read(text: str) -> Question:
    """The content of a ``.question`` file: five blocks with empty lines between them.

    The blocks are the document's address, the document, the question, the answer, and a line ``@entity7:Name`` for each entity.
    """
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    if len(lines) < 7 or any(line.strip() for line in lines[1:8:2]):
        raise Malformed("there are no five blocks with empty lines between them")
    source, document, question, answer = (lines[i].strip() for i in range(0, 8, 2))
    names = [line.partition(":") for line in lines[8:] if line.strip()]
    found = Question(tuple(document.split()), tuple(question.split()), answer, {a.strip(): b.strip() for a, _, b in names}, source)
    return checked(found)


def checked(one: Question) -> Question:
    """The question; Malformed if it cannot be asked."""
    if PLACEHOLDER not in one.question:
        raise Malformed(f"the question has no {PLACEHOLDER}")
    if number(one.answer) is None:
        raise Malformed("the answer is no entity")
    return one


def written(one: Question) -> str:
    """The content of a ``.question`` file."""
    names = "\n".join(f"{entity}:{name}" for entity, name in one.entities.items())
    return "\n\n".join((one.source, " ".join(one.document), " ".join(one.question), one.answer, names)) + "\n"


# ---- sentences ----


def sentences(document: Sequence[str]) -> list[tuple[str, ...]]:
    """The document cut after every full stop, question mark and exclamation mark.

    >>> sentences("he said so . did he ? ''".split())
    [('he', 'said', 'so', '.'), ('did', 'he', '?', "''")]
    """
    found: list[list[str]] = []
    ended = True
    for token in document:
        if ended and not (found and token in CLOSING):
            found.append([])
            ended = False
        found[-1].append(token)
        ended = ended or token in ENDS
    return [tuple(sentence) for sentence in found]


def relevant(parts: Sequence[Sequence[str]], question: Iterable[str], most: int) -> list[int]:
    """Numbers of the sentences that share most with the question, in the order of the document.

    A sentence counts the different words and entities that it shares with the question, stop words left out. Of equal sentences the
    first is taken.
    """
    asked = set(question) - STOPWORDS
    shared = [len(asked.intersection(part)) for part in parts]
    return sorted(sorted(range(len(parts)), key=lambda i: -shared[i])[:most])


def selected(one: Question, most: int | None) -> tuple[str, ...]:
    """The part of the document that the reader sees; None is all of it."""
    if most is None:
        return one.document
    parts = sentences(one.document)
    return tuple(token for i in relevant(parts, one.question, most) for token in parts[i])
