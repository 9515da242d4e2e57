"""The corpora of the reader as ``multint data`` shows them."""

from collections.abc import Sequence

from multint.paper import obtain, prepared
from multint.paper.obtain import Where
from multint.paper.reader import corpora, corpus
from multint.paper.reader.corpora import CORPORA, ReaderSource
from multint.paper.reader.corpus import Corpus


class ReaderCorpora:
    """An ``experiment.Shelf``. Only enwik8, of which WikiCloze is made, can be downloaded."""

    def names(self) -> Sequence[str]:
        return tuple(CORPORA)

    def listing(self, data: Where | None = None) -> Sequence[str]:
        return [_described(source, data) for source in CORPORA.values()]

    def get(self, name: Where, data: Where | None = None) -> Corpus:
        source = CORPORA[str(name)]
        if source.files and source.files[0].addresses and not _prepared(source, data):
            obtain.fetch(source, data)
        return corpus.prepare(name, data)

    def verify(self, name: Where, data: Where | None = None) -> Corpus:
        return corpus.prepare(name, data, check_sums=True)


SHELF = ReaderCorpora()


def _prepared(source: ReaderSource, data: Where | None) -> bool:
    return any(next(folder.glob(f"reader-{source.name}-*/{prepared.NOTE}"), None) for folder in prepared.folders(data))


def _described(source: ReaderSource, data: Where | None) -> str:
    state = "prepared" if _prepared(source, data) else "here" if corpora.here(source, data) else "absent"
    stands = f"stands for {source.stands_for}: " if source.stands_for else ""
    return f"{source.name:16} {state:9} {stands}{source.detail}. {source.licence}."
