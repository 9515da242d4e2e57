"""What do CNN's own summaries ask about its articles? A test set from another domain than Wikipedia.

A table of articles with their highlights, as version 3 of the CNN and Daily Mail corpus has them. For the questions of Hermann et
al. a recogniser found names and coreferences; here names are found by their capitals.
"""

import csv
import io
import sys
from collections.abc import Iterable, Iterator

from multint.paper.reader.cloze import Article, cut, numbered, summing_up, within
from multint.paper.reader.questions import Question
from multint.paper.reader.text import anonymous, forms_of, names, words

LONGEST = 1300  # tokens of a document, as in WikiCloze
ENTITIES = 150


def questions(table: str) -> Iterator[Question]:
    """A question for each entity of each highlight that the article mentions too."""
    csv.field_size_limit(sys.maxsize)
    for row in csv.DictReader(io.StringIO(table)):
        yield from about(row["id"], row["article"], row["highlights"].split("\n"))


def about(name: str, text: str, highlights: Iterable[str]) -> Iterator[Question]:
    document = words(text.removeprefix("(CNN)").removeprefix("--"))
    summary = [words(line) for line in highlights]
    found = names([*document, ".", *(token for line in summary for token in (*line, "."))])
    forms = forms_of(found)
    body = within(cut(anonymous(document, forms)), LONGEST)
    lead = [anonymous(line, forms) for line in summary]
    asked, seen, entities = numbered(name, lead, body, ENTITIES)
    yield from summing_up(Article((), tuple(seen), entities, name), asked)
