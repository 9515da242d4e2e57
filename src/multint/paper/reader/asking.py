"""What does a trained reader answer to a question about any document, and where did it look?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from multint.paper.reader.cloze import numbered
from multint.paper.reader.model import AttentiveReader
from multint.paper.reader.questions import PLACEHOLDER, Malformed, Question, number, selected, sentences
from multint.paper.reader.text import anonymous, forms_of, names, words
from multint.paper.reader.vocabulary import FIRST


@dataclass(frozen=True)
class Candidate:
    entity: str
    name: str
    probability: float


@dataclass(frozen=True)
class Reply:
    """An answer.

    Args:
        candidates: the entities of the text, the most probable first.
        shown: tokens of the document that the reader saw.
        attention: its share for each of them.
        question: the question and the names of entities; the answer is "" where nobody knows it.
    """

    candidates: tuple[Candidate, ...]
    shown: tuple[str, ...]
    attention: tuple[float, ...]
    question: Question

    def spelled(self, token: str) -> str:
        """An entity by its name."""
        return self.question.entities.get(token) or token


def asked(text: str, question: str, most: int) -> Question:
    """A question about running text. Names are found by their capitals and get numbers, at most so many.

    A text whose entities are anonymous already is taken as it is.
    """
    if PLACEHOLDER not in question:
        raise Malformed(f"the question has no {PLACEHOLDER}; write it where the answer belongs")
    if any(number(token) is not None for token in text.split()):
        return Question(tuple(text.split()), tuple(question.split()), "")
    before, _, after = question.partition(PLACEHOLDER)
    parts = [words(part) for part in re.split(r"\n\s*\n", text) if part.strip()]
    if not parts:
        raise Malformed("the document is empty")
    line = [*words(before), PLACEHOLDER, *words(after)]
    found = names([*(token for part in parts for token in (*part, ".")), *(token for token in line if token != PLACEHOLDER)])
    forms = forms_of(found)
    body = [sentence for part in parts for sentence in sentences(anonymous(part, forms))]
    (line_,), told, entities = numbered("document", [anonymous(line, forms)], body, most)
    return Question(tuple(token for sentence in told for token in sentence), line_, "", entities)


@torch.no_grad()
def answer(model: AttentiveReader, one: Question) -> Reply:
    """What the model answers; it is shown as much of the document as in training."""
    vocabulary = model.vocabulary
    shown = selected(one, model.sentences)[: model.longest]
    if not shown:
        raise Malformed("the document is empty")
    document, question = (torch.from_numpy(vocabulary.encode(tokens)).long().unsqueeze(1) for tokens in (shown, one.question))
    found = model(document, question)
    first = 0 if model.shape.readout == "entities" else FIRST
    probabilities = found.logits.softmax(1)[0, first : first + vocabulary.entities].tolist()
    there = dict.fromkeys(token for token in (*shown, *one.question) if number(token) is not None)
    known = [(token, i) for token in there if (i := number(token)) is not None and i < vocabulary.entities]
    candidates = [Candidate(token, one.entities.get(token, ""), probabilities[i]) for token, i in known]
    order = sorted(candidates, key=lambda candidate: -candidate.probability)
    return Reply(tuple(order), shown, tuple(found.attention[:, 0].tolist()), one)


def share(values: Sequence[float]) -> list[float]:
    """Values as shares of the largest, for colours."""
    most = max(values, default=0.0) or 1.0
    return [value / most for value in values]
