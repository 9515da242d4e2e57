"""The books and the labelled sets as ``multint data`` shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from multint.paper import obtain, prepared
from multint.paper.obtain import Where
from multint.paper.skipthought import corpora, corpus, labelled
from multint.paper.skipthought.corpora import CORPORA
from multint.paper.skipthought.corpus import Corpus
from multint.paper.skipthought.labelled import CLASSES, SETS, Data


@dataclass(frozen=True)
class SetHere:
    """A labelled set that was read, an ``experiment.Dataset`` for ``multint data``."""

    name: str
    texts: int
    sha256: str = ""
    stands_for: str | None = None
    own: bool = False
    form: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.texts:,} different texts, tokens prepared"


class Books:
    """An ``experiment.Shelf``. Sets are downloaded where they may be; books come from the user."""

    def names(self) -> Sequence[str]:
        return (*CORPORA, *SETS)

    def listing(self, data: Where | None = None) -> Sequence[str]:
        books = [
            _line(
                one.name,
                _state(not corpora.absent(one.name, data), f"books-{one.name}-", data),
                f"{one.sentences:,} sentences",
                f"stands for {one.stands_for}: {one.detail}" if one.stands_for else one.detail,
                one.licence,
            )
            for one in CORPORA.values()
        ]
        sets = [
            _line(
                one.name,
                _state(not labelled.missing([one.name], data), f"transfer-{one.name}-", data),
                f"{sum(one.counts):,} {'texts' if one.name in CLASSES else 'pairs'}",
                one.detail,
                one.licence,
            )
            for one in SETS.values()
        ]
        return [*books, *sets]

    def get(self, name: Where, data: Where | None = None) -> Corpus | SetHere:
        if str(name) in CORPORA:
            return corpus.prepare(corpora.load(str(name), data), data)
        obtain.fetch(SETS[str(name)], data)
        return self._set(str(name), data)

    def verify(self, name: Where, data: Where | None = None) -> Corpus | SetHere:
        if str(name) in CORPORA:
            return corpus.prepare(corpora.load(str(name), data), data, check_sums=True)
        return self._set(str(name), data)

    def _set(self, name: str, data: Where | None) -> SetHere:
        sets = Data(data)
        sets.tokens(name)
        return SetHere(name, len(sets.texts(name)))


SHELF = Books()


def _state(here: bool, prefix: str, data: Where | None) -> str:
    if any(next(folder.glob(f"{prefix}*/{prepared.NOTE}"), None) for folder in prepared.folders(data)):
        return "prepared"
    return "here" if here else "absent"


def _line(name: str, state: str, size: str, detail: str, licence: str) -> str:
    return f"{name:16} {state:9} {size:18} {detail}. {licence}."
