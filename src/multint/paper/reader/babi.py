"""What do the tasks of bAbI ask? Short stories with questions, the quick check of a reader.

The answers are entities here, numbered by the alphabet, so that the same code reads them; they keep their numbers in training.
"""

import re
from collections.abc import Callable, Iterator

from multint.paper.reader.cloze import drawn
from multint.paper.reader.questions import PLACEHOLDER, Question

VALID = 10  # percent of the training stories
FILE = re.compile(r"(?:.*/)?en-10k/qa(\d+)_[\w-]+_(train|test)\.txt")


def wanted(task: int) -> Callable[[str], bool]:
    """Which files belong to a task."""
    return lambda name: (found := FILE.fullmatch(name)) is not None and int(found[1]) == task


def stories(text: str) -> Iterator[list[tuple[list[str], list[str], str]]]:
    """For each story its questions: the statements so far, as tokens, the question, and the answer."""
    known: list[str] = []
    found: list[tuple[list[str], list[str], str]] = []
    for line in text.splitlines():
        count, _, rest = line.partition(" ")
        if count == "1" and found:
            yield found
        if count == "1":
            known, found = [], []
        parts = rest.split("\t")
        tokens = re.findall(r"\w+|[^\w\s]", parts[0].lower())
        if len(parts) > 1:
            found.append(([*known], tokens, parts[1].strip().lower()))
        else:
            known += tokens
    if found:
        yield found


def questions(files: dict[str, str]) -> Iterator[tuple[str, Question]]:
    """The questions of a task with their split, from its files by "train" and "test"."""
    told = {kind: list(stories(text)) for kind, text in files.items()}
    answers = sorted({answer for every in told.values() for story in every for _, _, answer in story})
    entities = {answer: f"@entity{i}" for i, answer in enumerate(answers)}
    names = {entity: answer for answer, entity in entities.items()}
    for kind, every in told.items():
        for i, story in enumerate(every):
            split = "valid" if kind == "train" and drawn("babi", i) % 100 < VALID else kind
            for known, asked, answer in story:
                document, question = (tuple(entities.get(token, token) for token in tokens) for tokens in (known, asked))
                yield split, Question(document, (*question, PLACEHOLDER), entities[answer], names, f"story {i}")
