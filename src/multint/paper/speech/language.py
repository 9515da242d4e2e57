"""Which language models are words decoded with, and from which text is each estimated?

A model is a trigram with modified Kneser-Ney smoothing (``ngram``). Its ARPA file and its graph are kept in the cache.
"""

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from multint.locks import locked
from multint.paper.obtain import DataError, Where, cache_folder, data_folder, one_line, sha256_of, user_folder
from multint.paper.speech import arpa, corpora, graph, ngram, sentences
from multint.paper.speech.corpora import CORPORA
from multint.paper.speech.corpus import Corpus
from multint.paper.speech.graph import Graph

Say = Callable[[str], None]


@dataclass(frozen=True)
class Language:
    """A language model, and how it is estimated.

    Args:
        order, most, at_least, prune: as ``ngram.estimate`` takes them.
    """

    detail: str
    order: int = 3
    most: int | None = None
    at_least: int = 1
    prune: tuple[int, ...] = ()


TRANSCRIPTS, BOOKS, NEWSPAPER = "transcripts", "books-20k", "wsj-extended"
FORMAT = 1  # of estimated models; those of another format are estimated again
LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        TRANSCRIPTS: Language("the transcripts of the training utterances"),
        BOOKS: Language("books in the public domain, none of them of the validation or test speech", most=20_000, prune=(0, 3, 6)),
        # Eesen's vocabulary: words of the newspaper that come twice or more; Eesen prunes its trigram to 1.45 M n-grams
        NEWSPAPER: Language("the text of the Wall Street Journal of 1987 to 1989 on LDC94S13B", at_least=2, prune=(0, 0, 2)),
    }
)
OF: Mapping[str, str] = MappingProxyType({"mini-librispeech": BOOKS, "wsj": NEWSPAPER})  # other corpora: their transcripts
# It has the title of a book that a validation speaker of mini-LibriSpeech reads; no other book of scored speech is among the 275.
LEFT_OUT = ("n100/Wcollins_Legacy_1889",)


def of(corpus: str) -> str:
    """The language model of a corpus."""
    return OF.get(corpus, TRANSCRIPTS)


# ---- text ----


def text(name: str, corpus: Corpus, data: Where | None) -> Iterator[str]:
    """The sentences that a language model is estimated from."""
    if name == TRANSCRIPTS:
        train = corpus.splits["train"]
        return (" ".join(corpus.units.scored(words)) for words in train.words)
    if name == BOOKS:
        return sentences.books([books(data)], LEFT_OUT)
    return newspaper(data)


def books(data: Where | None) -> Path:
    """The file of books."""
    for top in (data_folder(data), user_folder()):
        for path in (top / "books" / "books.txt", top / "books" / "books.txt.xz"):
            if path.is_file():
                return path
    place = data_folder(data) / "books" / "books.txt"
    raise DataError(
        f"{BOOKS}: no {place} (or .xz): books in the public domain, a paragraph a line and a line '=== id' before each; put it "
        "there, or estimate a model of another text (multint lm train) and name it (multint decode --arpa)"
    )


def newspaper(data: Where | None) -> Iterator[str]:
    """The sentences of the newspaper, in capitals: lines without mark-up of np_data/87, 88 and 89, which ``compress`` packed."""
    top = corpora.found(CORPORA["wsj"], data)
    files = sorted(path for year in ("87", "88", "89") for path in top.glob(f"**/np_data/{year}/*.[zZ]")) if top else []
    if not files:
        raise DataError(f"{NEWSPAPER}: no np_data/87/*.z in {data_folder(data) / 'wsj'}; it is on disc 13-32.1 of LDC94S13B")
    return _lines(files)


def _lines(files: list[Path]) -> Iterator[str]:
    for path in files:
        try:
            found = subprocess.run(["gzip", "-dc", str(path)], capture_output=True, check=True).stdout
        except FileNotFoundError as error:
            raise DataError(f"{path} is packed by compress, and there is no program gzip to unpack it: install gzip") from error
        except subprocess.CalledProcessError as error:
            raise DataError(f"{path} cannot be unpacked ({error.stderr.decode(errors='replace').strip()})") from error
        yield from (line.upper() for line in found.decode("latin-1").splitlines() if line.strip() and not line.startswith("<"))


# ---- the cache ----


def model(name: str, corpus: Corpus, data: Where | None = None, say: Say = ngram.quiet) -> Path:
    """The ARPA file of a language model, from the cache or estimated now."""
    language = LANGUAGES[name]
    origin = sha256_of(books(data)) + " ".join(LEFT_OUT) if name == BOOKS else corpus.sha256
    key = hashlib.sha256(json.dumps([FORMAT, name, asdict(language), origin]).encode()).hexdigest()[:16]
    folder = cache_folder(data) / "language"
    path = folder / f"{name}-{key}.arpa"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{path.name}.lock"):
            if not path.is_file():
                say(f"{name}: estimating the language model")
                how = {"order": language.order, "most": language.most, "at_least": language.at_least, "prune": language.prune}
                arpa.write(ngram.estimate(text(name, corpus, data), **how, say=say), path)  # type: ignore[arg-type]
    except OSError as error:
        raise DataError(f"cannot write {path}: {one_line(error)}; set MULTINT_CACHE to another folder") from error
    return path


def graph_of(name: str, corpus: Corpus, data: Where | None = None, topology: str = "compact", say: Say = ngram.quiet) -> Graph:
    """The decoding graph of a language model with the units of a corpus, from the cache or built now."""
    found = model(name, corpus, data, say)
    return graph.build(corpus.units, None, found, cache_folder(data) / "graphs", topology, say)
