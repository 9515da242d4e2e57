"""How does an article become questions? WikiCloze: Wikipedia in the form of Hermann et al.

The article that a link leads to is an entity, and so is the article's own subject. All their mentions become ``@entity7``, whether
they are links or not. A sentence with one of them missing is a question; its document is the rest of the article. Every choice is
made by sha256 sums, so the same dump gives the same questions everywhere.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from multint.paper.reader.questions import ENDS, PLACEHOLDER, Question, number, sentences
from multint.paper.reader.text import MARK, Forms, anonymous, forms_of, words
from multint.paper.reader.wikipedia import Page, Token, linked, pages, paragraphs

EDITION = 1  # of the questions; the next, when the same dump gives others
SPLITS = {"test": 5, "valid": 5}  # percent of the articles; the others are train
LONGEST = 1300  # tokens of a document
SENTENCE = (5, 60)  # tokens of a question
MOST = 100  # tokens of a sentence of the document; a longer one is a list or a mistake
LEAD = 3  # sentences that sum up the article
EACH = 15  # questions of an article at most about its other sentences
ENTITIES = 150  # of an article at most: those mentioned first


def drawn(*what: object) -> int:
    """A number that depends on this alone."""
    return int(hashlib.sha256("\n".join(map(str, what)).encode()).hexdigest(), 16)


def split_of(title: str) -> str:
    place = drawn("split", title) % 100
    for split, percent in SPLITS.items():
        if place < percent:
            return split
        place -= percent
    return "train"


@dataclass(frozen=True)
class Article:
    """An article with anonymous entities.

    Args:
        lead: the first sentences of its first paragraph.
        body: all other sentences, up to LONGEST tokens.
        entities: names by entity.
        source: its address.
    """

    lead: tuple[tuple[str, ...], ...]
    body: tuple[tuple[str, ...], ...]
    entities: dict[str, str]
    source: str


def article(page: Page) -> Article | None:
    """None for a page without running text."""
    parts = [linked(paragraph) for paragraph in paragraphs(page.text)]
    if not parts:
        return None
    forms = surfaces(page.title, [token for part in parts for token in part])
    named = [anonymous([token.text for token in part], forms) for part in parts]
    first = cut(named[0])
    rest = [*first[LEAD:], *(sentence for part in named[1:] for sentence in cut(part))]
    body = within([sentence for sentence in rest if len(sentence) <= MOST], LONGEST)
    lead, body, entities = numbered(page.title, first[:LEAD], body, ENTITIES)
    return Article(tuple(lead), tuple(body), entities, f"http://en.wikipedia.org/wiki/{page.title.replace(' ', '_')}")


def surfaces(title: str, tokens: Sequence[Token]) -> Forms:
    """How the entities of an article are written: its title, the words of its links, the titles that these lead to.

    The last word of a title of several words, as Lincoln, is its entity too.
    """
    bare = words(re.sub(r"\s*\(.*?\)$|,.*$", "", title))
    links: list[tuple[list[str], str]] = []
    for token in tokens:
        if token.target is not None:
            if not token.inside:
                links.append(([], token.target))
            links[-1][0].append(token.text)
    targets = [(words(re.sub(r"\s*\(.*?\)$", "", target)), target) for _, target in links]
    last = [(bare[-1:], title)] if len(bare) > 1 and bare[-1][:1].isupper() and len(bare[-1]) > 2 else []
    return forms_of([(words(title), title), (bare, title), *links, *targets, *last])


def cut(tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """Sentences, without a last one that is none."""
    return [sentence for sentence in sentences(tokens) if any(token in ENDS for token in sentence)]


def within(parts: Sequence[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    """The first sentences with so many tokens in all."""
    found = []
    for part in parts:
        most -= len(part)
        if most < 0:
            break
        found.append(part)
    return found


Sentences = Sequence[Sequence[str]]


def numbered(
    title: str, lead: Sentences, body: Sentences, most: int
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], dict[str, str]]:
    """Sentences with numbers for entities, and the entities' names. An entity beyond the most there may be is words again."""
    mentioned = dict.fromkeys(token for sentence in (*lead, *body) for token in sentence if token.startswith(MARK))
    order = sorted(list(mentioned)[:most], key=lambda mark: drawn("entity", title, mark))  # so that a number says nothing
    numbers = {mark: f"@entity{i}" for i, mark in enumerate(order)}

    def renamed(sentence: Sequence[str]) -> tuple[str, ...]:
        marked = ((t, t.startswith(MARK)) for t in sentence)
        parts = ([numbers[t]] if t in numbers else words(t.removeprefix(MARK).lower()) if is_ else [t] for t, is_ in marked)
        return tuple(token for part in parts for token in part)

    names = {entity: mark.removeprefix(MARK) for mark, entity in numbers.items()}
    return [renamed(one) for one in lead], [renamed(one) for one in body], names


# ---- questions ----


def questions(content: Iterable[bytes]) -> Iterator[tuple[str, Question]]:
    """All questions of a dump with their split."""
    for page in pages(content):
        found = article(page)
        if found is not None:
            split = split_of(page.title)
            yield from ((split, one) for one in about(found))


def about(one: Article) -> Iterator[Question]:
    """The questions of an article.

    Each sentence of the lead asks for every entity that the body mentions too, and its document is the body. Of the other sentences
    some ask for one entity that another sentence mentions; their document is the body without the sentence.
    """
    yield from summing_up(one, one.lead)
    where = mentions(one.body)
    others = [(i, answers) for i, s in enumerate(one.body) if fits(s) and (answers := asked(s, where, 2))]
    for i, answers in sorted(sorted(others, key=lambda other: drawn("sentence", one.source, other[0]))[:EACH]):
        answer = min(answers, key=lambda entity: drawn("answer", one.source, i, entity))
        yield asking(one, [*one.body[:i], *one.body[i + 1 :]], one.body[i], answer)


def summing_up(one: Article, lead: Iterable[Sequence[str]]) -> Iterator[Question]:
    """Questions from sentences that are no part of the document."""
    where = mentions(one.body)
    for sentence in lead:
        if fits(sentence):
            for answer in asked(sentence, where, 1):
                yield asking(one, one.body, sentence, answer)


def mentions(body: Sentences) -> dict[str, int]:
    """How many sentences mention an entity."""
    where: dict[str, int] = {}
    for sentence in body:
        for entity in {token for token in sentence if number(token) is not None}:
            where[entity] = where.get(entity, 0) + 1
    return where


def fits(sentence: Sequence[str]) -> bool:
    return SENTENCE[0] <= len(sentence) <= SENTENCE[1]


def asked(sentence: Sequence[str], where: dict[str, int], least: int) -> list[str]:
    """Entities of a sentence that so many sentences of the body mention."""
    return [entity for entity in dict.fromkeys(sentence) if where.get(entity, 0) >= least]


def asking(one: Article, body: Sentences, sentence: Sequence[str], answer: str) -> Question:
    document = tuple(token for part in body for token in part)
    question = tuple(PLACEHOLDER if token == answer else token for token in sentence)
    mentioned = {*document, *question, answer}
    names = {entity: name for entity, name in one.entities.items() if entity in mentioned}
    return Question(document, question, answer, names, one.source)
