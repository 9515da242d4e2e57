"""The corpora of speech as ``multint data`` shows them."""

from collections.abc import Sequence

from multint.paper import prepared
from multint.paper.obtain import Where
from multint.paper.speech import corpora, corpus
from multint.paper.speech.corpora import CORPORA, SpeechSource
from multint.paper.speech.corpus import Corpus


class SpeechCorpora:
    """An ``experiment.Shelf``. Nothing is downloaded: audio comes in archives of gigabytes, or on discs under a licence."""

    def names(self) -> Sequence[str]:
        return tuple(CORPORA)

    def listing(self, data: Where | None = None) -> Sequence[str]:
        return [_described(source, data) for source in CORPORA.values()]

    def get(self, name: Where, data: Where | None = None) -> Corpus:
        return corpus.prepare(corpora.load(name, data), data)

    def verify(self, name: Where, data: Where | None = None) -> Corpus:
        return corpus.prepare(corpora.load(name, data), data, check_sums=True)


SHELF = SpeechCorpora()


def _described(source: SpeechSource, data: Where | None) -> str:
    state = "here" if corpora.found(source, data) else "absent"
    if any(next(folder.glob(f"speech-{source.name}-*/{prepared.NOTE}"), None) for folder in prepared.folders(data)):
        state = "prepared"
    size = f"{sum(source.counts.values()):,} utterances"
    stands = f"stands for {source.stands_for}: " if source.stands_for else ""
    return f"{source.name:16} {state:9} {size:18} {stands}{source.detail}. {source.licence}."
