"""What is trained and scored in §3.3: CTC over characters."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint import weight_noise
from multint.paper.experiment import Job, Loss, Metric, Result, Sum, Task, Team
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.speech import corpora, language, recognise, scoring
from multint.paper.speech.corpus import Corpus, Split, prepare
from multint.paper.speech.data import Batch, Batches, Plan, batch, needed
from multint.paper.speech.decode import Search
from multint.paper.speech.graph import Graph
from multint.paper.speech.model import Recogniser as Model
from multint.paper.speech.model import described
from multint.paper.speech.recipes import Recogniser
from multint.paper.speech.recognise import SEARCH, Selected
from multint.paper.speech.utterances import BLANK, Units
from multint.shapes import Float

logger = logging.getLogger("multint")

CER = Metric("cer", "CER %")
WER = Metric("wer", "WER %")


def data(recipe: Recogniser, folder: Path | None, given: Mapping[str, Any]) -> Corpus:
    """The corpus of a recipe, or the user's own, prepared."""
    speech = corpora.load(str(given.get("speech") or recipe.corpus), folder)
    return prepare(speech, folder)


def check(recipe: Recogniser) -> None:
    """Build the model without memory: a setting no layer takes is named before any data is read."""
    try:
        count(recipe)
    except (TypeError, ValueError, KeyError) as error:
        raise RecipeError(f"no model of these settings: {error}") from error


def build(recipe: Recogniser, units: Units) -> Model:
    return described(_description(recipe, units))


def _description(recipe: Recogniser, units: Units) -> dict[str, Any]:
    names = ("hidden", "layers", "bidirectional", "integration", "dropout")
    layers = {**{name: getattr(recipe, name) for name in names}, "start": asdict(recipe.start)}
    return {"units": asdict(units), "form": asdict(recipe.form), "layers": layers}


def count(recipe: Recogniser) -> int:
    """Parameters of a recipe's model; 0 where its units are not known yet."""
    units = corpora.units(recipe.corpus)
    with torch.device("meta"):
        model = build(recipe, units or Units(("A",)))
    return sum(p.numel() for p in model.parameters()) if units else 0


class SpeechTask(Task):
    """The task of one job."""

    metrics = (CER, WER)
    select = "cer"
    loss_unit = "nats per character"
    work_unit = "frames"

    def __init__(self, job: Job, device: torch.device) -> None:
        assert isinstance(job.recipe, Recogniser) and isinstance(job.data, Corpus)
        self.recipe, self.corpus, self.seed, self.device = job.recipe, job.data, job.seed, device
        self.measured: dict[str, Any] = {}

    def build(self) -> Model:
        return build(self.recipe, self.corpus.units)

    def description(self) -> dict[str, Any]:
        return _description(self.recipe, self.corpus.units)

    # -- training --

    @cached_property
    def usable(self) -> list[int]:
        """Training utterances whose labels fit into their steps."""
        split, form = self.corpus.splits["train"], self.recipe.form
        pairs = enumerate(zip(split.labels, split.lengths.tolist(), strict=True))
        fits = [i for i, (labels, n) in pairs if 0 < needed(labels) <= form.frames(n)]
        if len(fits) < len(split):
            left = [split.names[i] for i in sorted(set(range(len(split))) - set(fits))]
            why = "have no words or more characters than steps"
            logger.warning("%d of %d training utterances %s and are left out: %s", len(left), len(split), why, ", ".join(left[:5]))
        return fits

    def epoch(self, number: int, team: Team) -> Batches:
        r, split = self.recipe, self.corpus.splits["train"]
        plan = Plan(r.utterances, r.frames, sorted_first=r.sorted_first)
        return Batches(split, plan.cut(split, self.usable, self.seed, number), r.form, team)

    def loss(self, model: nn.Module, batch: Batch, state: Any) -> tuple[Loss, Any]:
        """CTC: minus the log-probability of the labels, over all ways to place them, per label."""
        with weight_noise(model, self.recipe.noise if model.training else 0.0):
            log_probs = model(batch.x, batch.lengths)
        total = F.ctc_loss(log_probs, batch.labels, batch.lengths, batch.counts, blank=BLANK, reduction="sum")
        count = batch.labels.numel()
        return Loss(total / count, total.detach(), count), None

    def work(self, batch: Batch) -> int:
        return int(batch.lengths.sum()) * self.recipe.stack

    def capture_key(self, batch: Batch) -> None:
        """Lengths are needed on the host, and no two batches have one shape."""

    # -- scoring --

    def scores(self, model: nn.Module, split: str, team: Team) -> dict[str, Sum]:
        part = self.corpus.splits[split]
        mine = range(team.rank, len(part), team.world)
        greedy = {i: self.corpus.units.words(best(log_probs)) for i, log_probs in self.posteriors(model, part, list(mine))}
        return rates(self.scored(part.words[i] for i in mine), self.scored(greedy[i] for i in mine))

    def scored(self, ones: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
        return [self.corpus.units.scored(words) for words in ones]

    def posteriors(self, model: nn.Module, split: Split, picked: Sequence[int]) -> Iterator[tuple[int, Float[Tensor, "t k"]]]:
        """The log-probabilities of utterances, with their numbers; not in order."""
        plan = Plan(max(self.recipe.utterances, 16), self.recipe.frames, sorted_first=True)
        there = [i for i in picked if split.lengths[i]]
        yield from ((i, torch.zeros(0, 1 + len(self.corpus.units))) for i in picked if not split.lengths[i])
        for cut in plan.cut(split, there, 0, 0):
            one = batch(split, cut, self.recipe.form)
            with torch.no_grad():
                log_probs = model(one.x.to(self.device), one.lengths).float().cpu()
            order = sorted(cut, key=lambda i: -int(split.lengths[i]))
            yield from ((i, log_probs[: int(n), k]) for k, (i, n) in enumerate(zip(order, one.lengths, strict=True)))

    def results(self, model: nn.Module, team: Team) -> list[Result]:
        """On the test utterances: characters and words without a language model, and words through the graph.

        Every process scores all of them without the graph: it is quick beside training, and the parts would have to be joined.
        """
        units, test = self.corpus.units, self.corpus.splits["test"]
        found = dict(self.posteriors(model, test, range(len(test))))
        said = self.scored(test.words)
        greedy = self.scored(units.words(best(found[i])) for i in range(len(test)))
        sums = rates(said, greedy)
        self.measured = {"test": {"greedy": errors(said, greedy)}}
        results = [self.result(CER, sums["cer"], "greedy"), self.result(WER, sums["wer"], "greedy")]
        graph = self.graph() if team.rank == 0 else None
        if graph is not None:
            selected = self.scales(model, graph)
            logs = recognise.log_priors(self.corpus)
            heard = self.scored(recognise.words(graph, [found[i] for i in range(len(test))], selected.search, logs))
            self.measured["test"]["graph"] = errors(said, heard)
            self.measured["graph"] = {
                "language": language.of(self.corpus.name),
                "states": graph.about["states"],
                "arcs": graph.about["arcs"],
                "topology": graph.topology,
                **selected.description,
            }
            results.insert(1, self.result(WER, rates(said, heard)["wer"], "graph"))
        return results

    def graph(self) -> Graph | None:
        """The decoding graph of the corpus; None where it cannot be had, with a warning that says why."""
        try:
            return language.graph_of(language.of(self.corpus.name), self.corpus, self.corpus.data, say=logger.info)
        except DataError as error:
            logger.warning("words are scored without a graph: %s", error)
            self.measured["graph"] = {"missing": str(error)}
            return None

    def scales(self, model: nn.Module, graph: Graph, processes: int = 1, base: Search = SEARCH) -> Selected:
        """The scales of the search that are best on validation utterances."""
        valid = self.corpus.splits["valid"]
        some = recognise.sample(valid)
        known = dict(self.posteriors(model, valid, some))
        said = self.scored(valid.words[i] for i in some)
        return recognise.select(graph, [known[i] for i in some], said, recognise.log_priors(self.corpus), processes, base)

    def result(self, metric: Metric, total: Sum, protocol: str) -> Result:
        return Result(metric, total.total / max(total.count, 1), self.corpus.name, "test", int(total.count), protocol)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """The errors of every test utterance, from which intervals are drawn."""
        dropped = len(self.corpus.splits["train"]) - len(self.usable)
        return {**self.measured, "left_out": dropped}


def best(log_probs: Float[Tensor, "t k"]) -> list[int]:
    """CTC without a search: the best unit of every step, repetitions and blanks removed."""
    path = torch.unique_consecutive(log_probs.argmax(1)) if len(log_probs) else torch.zeros(0)
    return [int(i) for i in path if i != BLANK]


def rates(said: Sequence[tuple[str, ...]], heard: Sequence[tuple[str, ...]]) -> dict[str, Sum]:
    """Errors in percent, as sums over characters and over words."""
    pairs = list(zip(said, heard, strict=True))
    spelled = [(scoring.characters(a), scoring.characters(b)) for a, b in pairs]
    return {
        "cer": Sum(100.0 * sum(scoring.distance(a, b) for a, b in spelled), sum(len(a) for a, _ in spelled)),
        "wer": Sum(100.0 * sum(scoring.distance(a, b) for a, b in pairs), sum(len(a) for a, _ in pairs)),
    }


def errors(said: Sequence[tuple[str, ...]], heard: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Counts of every utterance for intervals, and substitutions, deletions and insertions of all."""
    words = [scoring.edits(a, b) for a, b in zip(said, heard, strict=True)]
    spelled = [scoring.edits(scoring.characters(a), scoring.characters(b)) for a, b in zip(said, heard, strict=True)]

    def counted(found: list[scoring.Edits]) -> dict[str, Any]:
        kinds = {kind: sum(getattr(one, kind) for one in found) for kind in ("substitutions", "deletions", "insertions")}
        return {**kinds, "errors": [one.total for one in found], "lengths": [one.length for one in found]}

    return {"words": counted(words), "characters": counted(spelled)}
