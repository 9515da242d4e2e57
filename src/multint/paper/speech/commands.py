"""What can be typed about speech alone: ``decode``, ``transcribe``, ``lm`` and ``graph``."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from multint.paper import session
from multint.paper.obtain import DataError, Where, cache_folder
from multint.paper.overrides import RecipeError
from multint.paper.speech import alignment, arpa, beam, corpora, graph, language, ngram, recognise, scoring, sentences, transcribe
from multint.paper.speech.corpus import Corpus
from multint.paper.speech.decode import Decoder, Search, lattices
from multint.paper.speech.graph import Graph
from multint.paper.speech.model import Recogniser
from multint.paper.speech.recognise import SEARCH, Words
from multint.paper.speech.task import SpeechTask, best
from multint.paper.speech.transducers import TOPOLOGIES
from multint.paper.speech.utterances import Units
from multint.paper.terminal import COUNT, options
from multint.publish import replacing

FILE = click.Path(path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
CORES = os.cpu_count() or 1
SCALE = 0.7  # of acoustic costs where no validation utterance says more

OPTIONS = (click.Option(["--speech"], type=FILE, help="Train on this data folder of Kaldi instead of the recipe's corpus."),)
SEARCHING = (
    click.option("--graph", "folder", type=FILE, help="A graph's folder, as multint graph build names it."),
    click.option("--beam", type=POSITIVE, default=SEARCH.beam, show_default=True, help="Width of the search in the graph."),
    click.option("--max-active", type=click.IntRange(2), default=SEARCH.max_active, show_default=True),
    click.option("--acoustic-scale", type=POSITIVE, help="Weight of acoustic costs against those of the graph."),
    click.option("--prior-scale", type=click.FloatRange(0), help="Weight of the label priors, with --acoustic-scale."),
)


def searching(command: Any) -> Any:
    """The options of a search through a graph."""
    for option in reversed(SEARCHING):
        command = option(command)
    return command


def say(line: str) -> None:
    click.echo(line, err=True)


def recogniser(run: Path) -> Recogniser:
    model = session.load(run)
    if not isinstance(model, Recogniser):
        raise RecipeError(f"{run} is not a recogniser; name the folder of a run of a speech recipe, or an exported one")
    return model


def fitting(folder: Path, units: Units) -> Graph:
    """A graph on disk, which must have the model's units."""
    found = graph.load(folder)
    if found.units != units:
        raise RecipeError(
            f"{folder} is a graph of other units than the model's ({' '.join(found.units.symbols)}); build one with them"
        )
    return found


# ---- decode ----


@click.command("decode")
@click.argument("run", type=FILE)
@click.option("--split", default="test", show_default=True)
@searching
@click.option("--greedy", is_flag=True, help="Without a graph: the best unit of every step.")
@click.option("--prefix-beam", type=COUNT, help="Without a graph: a prefix beam search that keeps so many prefixes.")
@click.option("--nbest", type=COUNT, default=1, show_default=True, help="Hypotheses of each utterance in --out.")
@click.option("--jobs", type=COUNT, default=CORES, show_default=True, help="Processes; each has the graph in memory.")
@click.option("--out", type=FILE, help="Write every utterance as a line of JSON.")
@click.option("--html", "page", type=FILE, help="Write a page with what was said beside what was heard.")
@options("data")
def decode_command(run: Path, split: str, out: Path | None, page: Path | None, data: Path | None, **how: Any) -> None:
    """Recognise a split of a run's corpus and count the errors. Without --graph it takes the language model of the corpus."""
    job = session.reopen(run, data)
    task, model = SpeechTask(job, torch.device("cpu")), recogniser(run)
    corpus: Corpus = job.data
    if split not in corpus.splits:
        raise RecipeError(f"{corpus.name} has no split {split!r}; there are {', '.join(corpus.splits)}")
    part = corpus.splits[split]
    found = dict(task.posteriors(model, part, range(len(part))))
    heard = _Hearing(task, model, data, **how)([found[i] for i in range(len(part))])
    said, first = task.scored(part.words), task.scored(ones[0] if ones else () for ones in heard)
    summary = _summary(said, first)
    click.echo(f"{corpus.name} {split}: {summary}")
    if out is not None:
        rows = zip(part.names, part.words, heard, strict=True)
        lines = ({"name": name, "said": " ".join(a), "heard": [" ".join(b) for b in many]} for name, a, many in rows)
        with replacing(out) as file:
            file.writelines(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    if page is not None:
        ones = (alignment.Heard(*one) for one in zip(part.names, said, first, strict=True))
        alignment.write(page, f"{run.name}, {corpus.name} {split}", summary, ones)
        click.echo(f"page: {page}")


@dataclass
class _Hearing:
    """How utterances become words: the options of ``decode``. A call gives the hypotheses of each utterance, the best first."""

    task: SpeechTask
    model: Recogniser
    data: Path | None
    folder: Path | None
    beam: float
    max_active: int
    acoustic_scale: float | None
    prior_scale: float | None
    greedy: bool
    prefix_beam: int | None
    nbest: int
    jobs: int

    def __call__(self, log_probs: Sequence[Tensor]) -> list[list[Words]]:
        units = self.model.units
        if self.prefix_beam is not None:
            width, n = self.prefix_beam, min(self.nbest, self.prefix_beam)
            return [[units.words(one.ids) for one in beam.search(x.numpy(), width, n)] for x in log_probs]
        if self.greedy:
            return [[units.words(best(x))] for x in log_probs]
        logs, found = recognise.log_priors(self.task.corpus), self.graph()
        search = self.search(found)
        if self.nbest == 1:
            return [[one] for one in recognise.words(found, log_probs, search, logs, self.jobs)]
        many = lattices(found, [x.numpy() for x in log_probs], search, logs, self.jobs)
        return [[one.words for one in lattice.nbest(self.nbest)] for lattice in many]

    def graph(self) -> Graph:
        if self.folder is not None:
            return fitting(self.folder, self.model.units)
        corpus = self.task.corpus
        return language.graph_of(language.of(corpus.name), corpus, self.data, say=say)

    def search(self, found: Graph) -> Search:
        """As given, or with the scales that are best on validation utterances."""
        base = replace(SEARCH, beam=self.beam, max_active=self.max_active)
        if self.acoustic_scale is not None:
            return replace(base, acoustic_scale=self.acoustic_scale, prior_scale=self.prior_scale or 0.0)
        selected = self.task.scales(self.model, found, self.jobs, base)
        search = selected.search
        say(f"acoustic scale {search.acoustic_scale:g} and prior scale {search.prior_scale:g}: the best of {len(selected.tried)}")
        return search


def _summary(said: Sequence[Words], heard: Sequence[Words]) -> str:
    """Both error rates, their intervals and the kinds of errors."""
    parts = []
    for name, one, other in (
        ("WER", said, heard),
        ("CER", [scoring.characters(words) for words in said], [scoring.characters(words) for words in heard]),
    ):
        found = [scoring.edits(a, b) for a, b in zip(one, other, strict=True)]
        wrong, lengths = [edit.total for edit in found], [edit.length for edit in found]
        low, high = scoring.bootstrap(wrong, lengths)
        kinds = [sum(getattr(edit, kind) for edit in found) for kind in ("substitutions", "deletions", "insertions")]
        rate = 100 * sum(wrong) / max(sum(lengths), 1)
        counted = ", ".join(f"{count:,} {kind}" for count, kind in zip(kinds, ("substituted", "deleted", "inserted"), strict=True))
        parts.append(f"{name} {rate:.2f} % ({low:.2f} to {high:.2f}; {counted} of {sum(lengths):,})")
    return "; ".join(parts)


# ---- transcribe ----


@click.command("transcribe")
@click.argument("run", type=FILE)
@click.argument("files", type=FILE, nargs=-1, required=True)
@searching
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each file: its words with their times in seconds.")
@click.option("--channel", type=click.IntRange(0), help="Of a file with several; default: their mean.")
@click.option("--piece", type=POSITIVE, default=30.0, show_default=True, help="Seconds that the model reads at a time.")
@click.option(
    "--context", type=click.FloatRange(0), default=3.0, show_default=True, help="Seconds read with a piece, on both sides."
)
def transcribe_command(
    run: Path,
    files: tuple[Path, ...],
    folder: Path | None,
    as_json: bool,
    channel: int | None,
    piece: float,
    context: float,
    **how: Any,
) -> None:
    """Write the words of audio files of any length (wav, flac, ogg, opus, SPHERE). Without --graph, the best unit of every step."""
    model = recogniser(run)
    decoder = _decoder(fitting(folder, model.units), **how) if folder else None
    unread = 0
    for path in files:
        try:
            log_probs = transcribe.posteriors(model, path, channel, piece, context)
        except DataError as error:
            say(f"multint: {error}")
            unread += 1
            continue
        found = _timed(decoder, log_probs, model)
        if as_json:
            words = [{"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in found]
            click.echo(json.dumps({"file": str(path), "text": transcribe.text(found), "words": words}, ensure_ascii=False))
        else:
            click.echo(f"{path}: {transcribe.text(found)}" if len(files) > 1 else transcribe.text(found))
    if unread:
        raise DataError(f"{unread} of {len(files)} files could not be read; the others were transcribed")


def _decoder(found: Graph, beam: float, max_active: int, acoustic_scale: float | None, prior_scale: float | None) -> Decoder:
    if prior_scale:
        raise RecipeError("the label priors are those of a corpus, which transcribe does not read; leave out --prior-scale")
    return Decoder(
        found, replace(SEARCH, beam=beam, max_active=max_active, acoustic_scale=acoustic_scale or SCALE, prior_scale=0.0)
    )


def _timed(decoder: Decoder | None, log_probs: Tensor, model: Recogniser) -> list[transcribe.Word]:
    step = model.form.seconds
    if decoder is None:
        return transcribe.words(log_probs, model.units, step)
    found = decoder.best(log_probs.numpy())
    times = found.times or ((0, len(log_probs)),) * len(found.words)
    return [transcribe.Word(word, a * step, b * step) for word, (a, b) in zip(found.words, times, strict=True)]


# ---- language models and graphs ----


@contextlib.contextmanager
def wrong_values() -> Iterator[None]:
    """A value that cannot be right becomes one line."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _sentences(texts: Sequence[Path], as_books: bool, leave_out: Sequence[str]) -> Iterator[str]:
    return sentences.books(texts, leave_out) if as_books else sentences.prepared(texts)


TEXTS = (
    click.argument("texts", type=FILE, nargs=-1, required=True),
    click.option("--books", "as_books", is_flag=True, help="Running text, a paragraph a line: sentences are split and spelled."),
    click.option("--leave-out", multiple=True, metavar="ID", help="A book to leave out, by its line '=== ID'."),
)


def of_texts(command: Any) -> Any:
    for option in reversed(TEXTS):
        command = option(command)
    return command


@click.group("lm")
def lm_command() -> None:
    """Language models: n-grams with modified Kneser-Ney smoothing."""


@lm_command.command("train")
@of_texts
@click.option("--out", type=FILE, required=True, help="The ARPA file.")
@click.option("--order", type=click.IntRange(1, ngram.HIGHEST), default=3, show_default=True)
@click.option("--most", type=COUNT, help="Keep only the most frequent words.")
@click.option("--at-least", type=COUNT, default=1, show_default=True, help="Keep only words that come so often.")
@click.option(
    "--prune", type=click.IntRange(0), multiple=True, help="For each order: leave out n-grams that come so often or less."
)
def lm_train(texts: tuple[Path, ...], as_books: bool, leave_out: tuple[str, ...], out: Path, **how: Any) -> None:
    """Estimate a model from texts: a sentence a line, or with --books running text. Files may be compressed."""
    with wrong_values():
        arpa.write(ngram.estimate(_sentences(texts, as_books, leave_out), say=say, **how), out)
    click.echo(str(out))


@lm_command.command("fit")
@click.argument("model", type=FILE)
@of_texts
def lm_fit(model: Path, texts: tuple[Path, ...], as_books: bool, leave_out: tuple[str, ...]) -> None:
    """The perplexity of texts under an ARPA file."""
    found = arpa.fit(arpa.read(model), _sentences(texts, as_books, leave_out))
    unknown = f"{found.unknown:,} of {found.words:,} words unknown"
    click.echo(f"perplexity {found.perplexity:.2f} without them ({unknown}), {found.perplexity_of_all:.2f} with all of them")


@click.group("graph")
def graph_command() -> None:
    """Decoding graphs: labels to units to words."""


@graph_command.command("build")
@click.option("--arpa", "model", type=FILE, required=True, help="The language model.")
@click.option("--units", "units_of", required=True, help="A run or an exported model, or the name of a corpus: whose units.")
@click.option("--topology", type=click.Choice(TOPOLOGIES), default="compact", show_default=True)
@click.option(
    "--words", "vocabulary", type=FILE, help="A file with the words that may be recognised, one a line; default: all of the model."
)
@click.option("--cache", type=FILE, help="The folder that receives the graph's folder; default: in the cache.")
@options("data")
def graph_build(model: Path, units_of: str, topology: str, vocabulary: Path | None, cache: Path | None, data: Path | None) -> None:
    """Build the graph of a language model, or find it in the cache; the last line is its folder."""
    listed = None if vocabulary is None else [line.strip() for line in sentences.lines(vocabulary) if line.strip()]
    with wrong_values():
        found = graph.build(_units(units_of), listed, model, cache or cache_folder(data) / "graphs", topology, say)
    say(str(found))
    click.echo(str(found.folder))


def _units(name: Where) -> Units:
    found = corpora.units(str(name))
    return found if found is not None else recogniser(Path(name)).units


COMMANDS = (decode_command, transcribe_command, lm_command, graph_command)
