"""How do a language model and the spellings of words become one transducer from CTC labels to words, and where is it kept?

TLG = T ∘ min(det(L ∘ G)) as in Eesen (Miao et al. 2015). A graph is a folder of a cache, named by the hash of all that goes into
it. It is built under a temporary name and published, so a folder that has its name is complete.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from multint.locks import locked
from multint.paper.obtain import DataError, chunks, one_line, sha256_of
from multint.paper.speech import transducers
from multint.paper.speech.arpa import END, START
from multint.paper.speech.arpa import read as read_arpa
from multint.paper.speech.sentences import UNKNOWN
from multint.paper.speech.utterances import SPACE, Units
from multint.publish import publish, remove_leftovers, replacing, temporary

FORMAT = 1  # of the folder; a graph of another format is built again
TLG, WORDS, ABOUT = "TLG.fst", "words.txt", "graph.json"
BACKOFF = "#0"
OTHERS = ("<eps>", BACKOFF, START, END)  # entries of the table of words that are no words
MAKERS = ("kaldifst", "kaldilm")  # a graph that other versions built is another graph

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Graph:
    """A decoding graph on disk.

    Args:
        units: what the labels stand for.
        words: by their number in the graph; the first and the last three are marks, not words.
        topology: one of ``transducers.TOPOLOGIES``.
        about: sizes, seconds and origins, for records.
    """

    folder: Path
    units: Units
    words: tuple[str, ...]
    topology: str
    about: Mapping[str, Any]

    @property
    def tlg(self) -> Path:
        return self.folder / TLG

    def __str__(self) -> str:
        size = self.about["bytes"] / 1e6
        facts = f"{self.about['states']:,} states, {self.about['arcs']:,} arcs, {size:.1f} MB"
        return f"{self.folder.name}: {len(self.words) - len(OTHERS):,} words, {self.topology}, {facts}"


def load(folder: Path) -> Graph:
    """A graph that is there; DataError if it is damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, now {FORMAT}")
        if (size := (folder / TLG).stat().st_size) != about["bytes"]:
            raise ValueError(f"{TLG} has {size:,} bytes, not {about['bytes']:,}")
        text = (folder / WORDS).read_text(encoding="utf-8")
        if hashlib.sha256(text.encode()).hexdigest() != about["words"]:
            raise ValueError(f"{WORDS} was altered")
        units = Units(tuple(about["units"]["symbols"]), tuple(about["units"]["whole"]), about["units"]["unknown"])
        return Graph(folder, units, tuple(line.split()[0] for line in text.splitlines()), about["topology"], about)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is no complete graph ({one_line(error)}); build it again") from error


def build(
    units: Units,
    words: Sequence[str] | None,
    arpa: Path,
    cache: Path,
    topology: str = "compact",
    say: Say = lambda _: None,
) -> Graph:
    """The graph of a language model, from the cache or built now.

    Args:
        units: the outputs of the acoustic model. Words that they cannot spell are left out.
        words: that may be recognised; None takes all 1-grams of the language model.
        arpa: the language model, may be compressed. N-grams with other words are left out.
        cache: where graphs are kept.
        topology: ``compact``, ``eesen`` or ``strict`` (see ``transducers``).
        say: receives a line for each stage, with its seconds.
    """
    _check(units, words, topology)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        final = cache / f"graph-{_key(units, words, arpa, topology)[:16]}"
        with locked(cache / f".{final.name}.lock") as alone:
            if final.exists():
                try:
                    graph = load(final)
                    say(f"from the cache: {graph}")
                    return graph
                except DataError as error:
                    say(f"{error}: building it")
                    shutil.rmtree(final)
            if alone:
                remove_leftovers(cache, final.name)
            _publish(final, _Recipe(units, words, arpa, topology), say)
            return load(final)
    except OSError as error:
        raise DataError(f"cannot build a graph of {arpa} in {cache}: {one_line(error)}") from error


def _check(units: Units, words: Sequence[str] | None, topology: str) -> None:
    if topology not in transducers.TOPOLOGIES:
        raise ValueError(f"no topology {topology!r}: use {', '.join(transducers.TOPOLOGIES)}")
    if SPACE not in units.symbols:
        raise ValueError(f"these units have no {SPACE}, which stands between words: {' '.join(units.symbols)}")
    if words is not None and (odd := next((word for word in words if word.split() != [word] or word in ("<eps>", BACKOFF)), None)):
        raise ValueError(f"{odd!r} cannot be a word of a graph: it has white space, or a meaning of its own")
    _kaldifst()


def _kaldifst() -> Any:
    try:
        import kaldifst  # type: ignore[import-untyped]
        import kaldilm  # type: ignore[import-untyped]  # noqa: F401 - used in another process
    except ImportError as error:
        raise DataError("building a graph needs kaldifst and kaldilm: pip install 'multint[speech]'") from error
    return kaldifst


def _key(units: Units, words: Sequence[str] | None, arpa: Path, topology: str) -> str:
    made_by = {name: metadata.version(name) for name in MAKERS}
    listed = None if words is None else list(words)
    facts = [FORMAT, asdict(units), listed, sha256_of(arpa), topology, made_by]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# ---- building ----


@dataclass(frozen=True)
class _Recipe:
    units: Units
    words: Sequence[str] | None
    arpa: Path
    topology: str


class _Stages:
    """Says after each stage how large its result is and how many seconds it took."""

    def __init__(self, say: Say) -> None:
        self.say, self.seconds, self.began = say, dict[str, float](), time.monotonic()

    def done(self, name: str, result: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self.began, 3)
        self.say(f"{name}: {result}, {now - self.began:.1f} s")
        self.began = now


def _publish(final: Path, recipe: _Recipe, say: Say) -> None:
    work = temporary(final)
    work.mkdir()
    try:
        _write(work, recipe, say)
        try:
            publish(work, final)
        except OSError:
            if not final.exists():  # without locks another process may have been faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(work: Path, recipe: _Recipe, say: Say) -> None:
    """All files of a graph, on disk."""
    kaldifst, stages = _kaldifst(), _Stages(say)
    lexicon = _lexicon(recipe, say)
    stages.done("words", f"{len(lexicon):,}")
    table = {word: number for number, word in enumerate([OTHERS[0], *lexicon, *OTHERS[1:]])}
    listing = "".join(f"{word} {number}\n" for word, number in table.items())
    with replacing(work / WORDS) as out:
        out.write(listing.encode())
    text, symbols = transducers.lexicon(recipe.units, lexicon, table)
    lg = _lg(kaldifst, text, _grammar(work, recipe.arpa, kaldifst, stages), stages)
    first = len(recipe.units) + 1
    t = kaldifst.compile(transducers.topology(recipe.topology, len(recipe.units), range(first, first + symbols)))
    kaldifst.arcsort(t, "olabel")
    composed = kaldifst.compose(t, lg)
    del lg
    kaldifst.arcsort(composed, "ilabel")  # arcs without a label first, as ``lattice`` expects
    stages.done("T∘LG", f"{composed.num_states:,} states")
    tlg = kaldifst.StdConstFst(composed)  # one block of memory, half of what a mutable one takes
    arcs = sum(map(composed.num_arcs, range(composed.num_states)))
    part = temporary(work / TLG)
    if not tlg.write(str(part)):
        raise OSError(f"cannot write {part}")
    publish(part, work / TLG)
    size = (work / TLG).stat().st_size
    stages.done("written", f"{size / 1e6:.1f} MB")
    about = {
        "format": FORMAT,
        "units": asdict(recipe.units),
        "topology": recipe.topology,
        "words": hashlib.sha256(listing.encode()).hexdigest(),
        "arpa": sha256_of(recipe.arpa),
        "made_by": {name: metadata.version(name) for name in MAKERS},
        "states": composed.num_states,
        "arcs": arcs,
        "bytes": size,
        "seconds": stages.seconds,
    }
    with replacing(work / ABOUT) as out:
        out.write(json.dumps(about, indent=1, ensure_ascii=False).encode())


def _lexicon(recipe: _Recipe, say: Say) -> dict[str, tuple[str, ...]]:
    """The spellings of the graph's words. Reading the ARPA file also checks it: kaldilm may take a damaged one, or abort."""
    listed = read_arpa(recipe.arpa).words
    wanted = listed if recipe.words is None else recipe.words
    words = [word for word in dict.fromkeys(wanted) if word not in OTHERS]
    lexicon = transducers.spellings(recipe.units, words, UNKNOWN)
    strange = [word for word in words if word not in lexicon and word != UNKNOWN]
    if strange:
        say(f"{len(strange):,} words cannot be spelled with these units and are left out, such as {' '.join(strange[:5])}")
    if not set(lexicon) & set(listed):
        raise DataError(f"{recipe.arpa}: none of its 1-grams is among the {len(lexicon):,} words that these units can spell")
    return lexicon


_ARPA_TO_FST = """
import sys, kaldilm
arpa, fst, words, backoff = sys.argv[1:]
kaldilm.arpa2fst(input_arpa=arpa, output_fst=fst, read_symbol_table=words, disambig_symbol=backoff, max_arpa_warnings=0)
"""


def _grammar(work: Path, path: Path, kaldifst: Any, stages: _Stages) -> Any:
    """G: words to words. kaldilm runs in a process of its own, which keeps its memory and its messages apart."""
    plain, fst = work / "lm.arpa", work / "G.fst"
    with plain.open("wb") as out:
        out.writelines(chunks(path, path.stem))
    code = [sys.executable, "-c", _ARPA_TO_FST, str(plain), str(fst), str(work / WORDS), BACKOFF]
    ran = subprocess.run(code, capture_output=True, text=True, errors="replace", check=False)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise DataError(f"{path}: kaldilm cannot make a transducer of it ({last})")
    grammar = kaldifst.StdVectorFst.read(str(fst))
    plain.unlink()
    fst.unlink()
    stages.done("G", f"{grammar.num_states:,} states")
    return grammar


def _lg(kaldifst: Any, lexicon: str, grammar: Any, stages: _Stages) -> Any:
    """min(det(L ∘ G)), sorted for composition."""
    l = kaldifst.compile(lexicon)
    kaldifst.arcsort(l, "olabel")
    lg = kaldifst.compose(l, grammar)
    stages.done("L∘G", f"{lg.num_states:,} states")
    kaldifst.determinize_star(lg, use_log=True)
    stages.done("determinised", f"{lg.num_states:,} states")
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, "ilabel")
    stages.done("minimised", f"{lg.num_states:,} states")
    return lg
