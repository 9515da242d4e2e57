"""How do questions become numbers, cached on disk?

Only the sentences that the reader sees are kept. What was wrong with questions is counted and stored beside them; the baselines are
taken here too, once, on the same sentences.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multint.paper import prepared
from multint.paper.obtain import DataError, Where
from multint.paper.reader.baselines import BASELINES
from multint.paper.reader.corpora import CORPORA, HIGHLIGHTS, SPLITS, Found, Item, here, load
from multint.paper.reader.questions import PLACEHOLDER, Question, number, selected, written
from multint.paper.reader.vocabulary import UNKNOWN, Vocabulary, ordered

logger = logging.getLogger("multint")

FORMAT = 1  # of the cache; a cache of another format is prepared again
LEAST = 2  # times that a word of the vocabulary occurs in the training questions and documents
MOST_ENTITIES = 10_000  # an entity with a larger number is a mistake
EXAMPLES = 5  # names that are kept of a fault
WHOLE = "_whole"  # after the name of a baseline: on the complete document
RATES = (*BASELINES, *(name + WHOLE for name in BASELINES))
ARRAYS = ("documents", "starts", "questions", "question_starts", "answers")


@dataclass(frozen=True, eq=False)
class Split:
    """Questions of a split. Document i is ``documents[starts[i]:starts[i + 1]]``, and so on; an answer is one number."""

    documents: NDArray[np.int32]
    starts: NDArray[np.int64]
    questions: NDArray[np.int32]
    question_starts: NDArray[np.int64]
    answers: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        return np.diff(self.starts)

    @property
    def question_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.question_starts)

    def document(self, i: int) -> NDArray[np.int32]:
        return self.documents[self.starts[i] : self.starts[i + 1]]

    def question(self, i: int) -> NDArray[np.int32]:
        return self.questions[self.question_starts[i] : self.question_starts[i + 1]]


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus, an ``experiment.Dataset``.

    Args:
        counts: what ``Tally`` says of each split.
        beside: further test sets, in the numbers of this vocabulary.
    """

    name: str
    sha256: str
    stands_for: str | None
    vocabulary: Vocabulary
    splits: Mapping[str, Split]
    counts: Mapping[str, Mapping[str, Any]]
    own: bool = False
    form: str = ""
    beside: Mapping[str, "Corpus"] = field(default_factory=dict)

    def __str__(self) -> str:
        stands = f" (stands for {self.stands_for})" if self.stands_for else ""
        size = f"{self.vocabulary.entities} entities, {len(self.vocabulary.words):,} words"
        lines = [f"{self.name}{stands}, {self.form}: {size}, sha256 {self.sha256}"]
        lines += [f"{split}: {told(self.counts[split])}" for split in self.splits]
        return "\n".join([*lines, *(str(one) for one in self.beside.values())])


def told(count: Mapping[str, Any]) -> str:
    """The counts of a split in words."""
    kept, seen = count["kept"], max(count["kept"], 1)
    faults = [f"{n:,} {fault} ({', '.join(count['examples'][fault])})" for fault, n in count["faults"].items()]
    per = {name: count[name] / seen for name in ("tokens", "mentioned", "shown", "entities", "answerable", *RATES)}
    frequent, exclusive = (
        f"{100 * per[name]:.1f} % ({100 * per[name + WHOLE]:.1f} % in the complete document)" for name in BASELINES
    )
    size = f"documents of {per['tokens']:.0f} tokens and {per['mentioned']:.1f} entities"
    shown = f"{per['shown']:.0f} and {per['entities']:.1f} shown; the answer is shown in {100 * per['answerable']:.1f} %"
    right = f"right by maximum frequency {frequent}, by exclusive frequency {exclusive}"
    return "; ".join((f"{kept:,} questions", f"{size}, {shown}", right, *faults))


def form_of(sentences: int | None) -> str:
    return "all sentences" if sentences is None else f"top {sentences} sentences"


# ---- counting ----


class Tally:
    """What is in a split, and what is wrong with it. Nothing is left out without a count under ``faults``."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.rates = dict.fromkeys(RATES, 0.0)
        self.faults: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    @property
    def total(self) -> int:
        """Questions, those that were left out among them."""
        return self.sums["total"]

    def left_out(self, why: str, name: str) -> None:
        self.sums["total"] += 1
        self.fault(f"left out because {why}", name)

    def fault(self, what: str, name: str) -> None:
        self.faults[what] += 1
        if len(examples := self.examples.setdefault(what, [])) < EXAMPLES:
            examples.append(name)

    def add(self, name: str, one: Question, shown: tuple[str, ...]) -> None:
        mentioned, entities = ({token for token in tokens if number(token) is not None} for tokens in (one.document, shown))
        self.sums.update(total=1, kept=1, tokens=len(one.document), mentioned=len(mentioned))
        self.sums.update(shown=len(shown), entities=len(entities), answerable=int(one.answer in entities))
        for key, rule in BASELINES.items():
            self.rates[key] += rule(shown, one.question, one.answer)
            self.rates[key + WHOLE] += rule(one.document, one.question, one.answer)
        if not one.document:
            self.fault("with an empty document", name)
        elif one.answer not in one.document:
            self.fault("whose answer is not in the document", name)
        used = {token for token in (*one.document, *one.question, one.answer) if number(token) is not None}
        if used - set(one.entities):
            self.fault("with an entity that has no name", name)

    def note(self) -> dict[str, Any]:
        zeros: dict[str, Any] = dict.fromkeys(("total", "kept", "tokens", "mentioned", "shown", "entities", "answerable"), 0)
        rates = {key: round(value, 3) for key, value in self.rates.items()}
        return zeros | dict(self.sums) | rates | {"faults": dict(self.faults), "examples": self.examples}


def fault_of(one: Question) -> str | None:
    """Why a question that could be read is left out all the same."""
    largest = max((number(token) or 0 for token in (*one.document, *one.question, one.answer) if token.startswith("@")), default=0)
    return f"an entity has the number {largest}" if largest >= MOST_ENTITIES else None


# ---- the cache ----


def prepare(name: Where, data: Where | None = None, sentences: int | None = 4, check_sums: bool = False) -> Corpus:
    """A corpus by name, or the user's ``.question`` files by path, from the cache or prepared now. Downloads nothing."""
    corpus = _ready(load(name, data), data, sentences, None, check_sums)
    highlights = CORPORA[HIGHLIGHTS]
    if corpus.name == HIGHLIGHTS or not (corpus.stands_for or corpus.name in CORPORA) or corpus.name.startswith("babi"):
        return corpus
    found = load(HIGHLIGHTS, data)
    if not here(highlights, data) and not prepared.there(_key(found, sentences, corpus), data):
        return corpus
    return replace(corpus, beside={HIGHLIGHTS: _ready(found, data, sentences, corpus, check_sums)})


def _key(found: Found, sentences: int | None, words_of: Corpus | None) -> str:
    made = hashlib.sha256(f"{found.fingerprint} {sentences} {words_of.sha256 if words_of else ''}".encode()).hexdigest()
    return f"reader-{found.name}-{made[:16]}"


def _ready(found: Found, data: Where | None, sentences: int | None, words_of: Corpus | None, check_sums: bool) -> Corpus:
    """``words_of`` is the corpus whose vocabulary is used; None makes one."""

    def read(folder: Path, check: bool) -> Corpus:
        return _read(folder, found, sentences, check)

    vocabulary = None if words_of is None else words_of.vocabulary
    return prepared.ready(
        _key(found, sentences, words_of), data, read, lambda work: _write(work, found, sentences, vocabulary), check_sums
    )


def _read(folder: Path, found: Found, sentences: int | None, check_sums: bool) -> Corpus:
    def corpus(note: Mapping[str, Any]) -> Corpus:
        def split(name: str) -> Split:
            facts = note["arrays"][name]
            return Split(*(prepared.mapped(folder / f"{name}-{kind}.npy", facts[kind], check_sums) for kind in ARRAYS))

        vocabulary = Vocabulary(note["entities"], tuple(note["words"]))
        splits = {name: split(name) for name in note["arrays"]}
        return Corpus(
            found.name, note["sha256"], found.stands_for, vocabulary, splits, note["counts"], found.own, form_of(sentences)
        )

    return prepared.described(folder, FORMAT, corpus)


# ---- preparing ----


class Spool:
    """Questions on their way into arrays: what is shown of them, in a raw file per split, and what is counted meanwhile."""

    def __init__(self, work: Path, sentences: int | None) -> None:
        self.work, self.sentences = work, sentences
        self.tallies = {split: Tally() for split in SPLITS}
        self.places: dict[str, list[tuple[str, int]]] = {split: [] for split in SPLITS}  # name, and where its line begins
        self.words: Counter[str] = Counter()  # of the training questions
        self.entities = 0
        self.digest = 0  # of all questions, whatever their order

    def fill(self, items: Iterable[Item]) -> None:
        files = {split: (self.work / f"{split}.raw").open("wb") for split in SPLITS}
        try:
            for split, name, what in items:
                self.digest += int(
                    hashlib.sha256(f"{split} {what if isinstance(what, str) else written(what)}".encode()).hexdigest(), 16
                )
                fault = what if isinstance(what, str) else fault_of(what)
                if isinstance(what, str) or fault is not None:
                    self.tallies[split].left_out(str(fault), name)
                else:
                    self.places[split].append((name, files[split].tell()))
                    files[split].write(self.line(split, name, what).encode())
        finally:
            for file in files.values():
                file.close()

    def line(self, split: str, name: str, one: Question) -> str:
        shown = selected(one, self.sentences)
        self.tallies[split].add(name, one, shown)
        every = [*shown, *one.question, one.answer]
        entities = [i for token in every if (i := number(token)) is not None]
        self.entities = max(self.entities, *(i + 1 for i in entities))
        if split == "train":
            self.words.update(token for token in every if number(token) is None and token != PLACEHOLDER)
        return "\t".join((" ".join(shown), " ".join(one.question), one.answer)) + "\n"

    def lines(self, split: str) -> Iterator[list[list[str]]]:
        """Document, question and answer as tokens, in the order of names."""
        with (self.work / f"{split}.raw").open("rb") as file:
            for _, place in sorted(self.places[split]):
                file.seek(place)
                yield [part.split() for part in file.readline().decode().rstrip("\n").split("\t")]


def _write(work: Path, found: Found, sentences: int | None, vocabulary: Vocabulary | None) -> dict[str, Any]:
    logger.info("%s: reading questions", found.name)
    spool = Spool(work, sentences)
    spool.fill(found.items())
    counts = {split: tally.note() for split, tally in spool.tallies.items() if tally.total}
    _complete(found, counts, every=vocabulary is None)
    known = vocabulary or Vocabulary(spool.entities, ordered(list(spool.words.items()), LEAST))
    arrays = {split: _arrays(work, split, spool, known) for split in counts if counts[split]["kept"]}
    for split in SPLITS:
        (work / f"{split}.raw").unlink()
    for split in arrays:
        logger.info("%s, %s: %s", found.name, split, told(counts[split]))
    about = {"format": FORMAT, "name": found.name, "sha256": f"{spool.digest % 2**256:064x}", "counts": counts}
    return {**about, "entities": known.entities, "words": list(known.words), "arrays": arrays}


def _complete(found: Found, counts: Mapping[str, Mapping[str, Any]], every: bool) -> None:
    """Refuse a corpus with fewer questions than it has, or without those of a split."""
    for split, count in found.counts.items():
        there = counts.get(split, {"total": 0})["total"]
        if there < count:
            way_out = "complete it, or take what there is as data of your own (--questions)"
            raise DataError(f"{found.name} has {there:,} {split} questions, not {count:,}; {way_out}")
    missing = [split for split in SPLITS if every and not counts.get(split, {"kept": 0})["kept"]]
    if missing or not counts:
        folders = "folders training, validation and test"
        why = "".join(f"; {n} {what}" for tally in counts.values() for what, n in tally["faults"].items())
        raise DataError(
            f"{found.name} has no {' and no '.join(missing) or 'single'} question, in {folders}, in files *.question{why}"
        )


def _arrays(work: Path, split: str, spool: Spool, vocabulary: Vocabulary) -> dict[str, Any]:
    """Two files of numbers that grow while they are written, and three small arrays."""
    lengths: dict[str, list[int]] = {"documents": [], "questions": []}
    answers: list[int] = []
    with (work / "documents").open("wb") as documents, (work / "questions").open("wb") as questions:
        for document, question, (answer,) in spool.lines(split):
            for name, file, tokens in (("documents", documents, document), ("questions", questions, question)):
                file.write((numbers := vocabulary.encode(tokens) if tokens else np.array([UNKNOWN], np.int32)).tobytes())
                lengths[name].append(len(numbers))
            answers.append(int(vocabulary.encode([answer])[0]))
    found = {"answers": np.array(answers, np.int32)}
    for name, starts in (("documents", "starts"), ("questions", "question_starts")):
        found[name] = np.memmap(work / name, np.int32, "r")
        found[starts] = np.concatenate([[0], np.cumsum(lengths[name], dtype=np.int64)]).astype(np.int64)
    facts = {name: prepared.saved(work / f"{split}-{name}.npy", found[name]) for name in ARRAYS}
    for name in ("documents", "questions"):
        (work / name).unlink()
    return facts
