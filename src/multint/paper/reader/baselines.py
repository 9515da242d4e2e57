"""How often is a question answered without reading, by counting entities alone?"""

from collections import Counter
from collections.abc import Collection, Iterable

from multint.paper.reader.questions import number


def max_frequency(document: Iterable[str], question: Collection[str], answer: str) -> float:
    """How likely the answer is to be picked among the entities that the document has most often.

    >>> max_frequency("@entity1 saw @entity2 and @entity1".split(), [], "@entity1")
    1.0
    """
    return _picked(Counter(token for token in document if number(token) is not None), answer)


def exclusive_frequency(document: Iterable[str], question: Collection[str], answer: str) -> float:
    """The same, of the entities that are not in the question.

    >>> exclusive_frequency("@entity1 saw @entity2 and @entity3".split(), ["@entity1"], "@entity2")
    0.5
    """
    asked = set(question)
    return _picked(Counter(token for token in document if number(token) is not None and token not in asked), answer)


def _picked(counts: Counter[str], answer: str) -> float:
    most = max(counts.values(), default=0)
    best = [entity for entity, count in counts.items() if count == most]
    return 1.0 / len(best) if answer in best else 0.0


BASELINES = {"max_frequency": max_frequency, "exclusive_frequency": exclusive_frequency}
