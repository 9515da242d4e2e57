"""What is trained and scored in §3.5: which entity is missing from a question."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint.paper.experiment import Job, Loss, Metric, Result, Schedule, Sum, Task, Team
from multint.paper.overrides import RecipeError
from multint.paper.reader.baselines import BASELINES
from multint.paper.reader.corpus import Corpus, Split, prepare
from multint.paper.reader.data import Batch, Batches, Plan, Reading, in_turn
from multint.paper.reader.model import AttentiveReader, description
from multint.paper.reader.recipes import Reader
from multint.paper.reader.vocabulary import FIRST, Vocabulary
from multint.regularize import estimating_population, use_statistics

ERROR = Metric("error", "error")
TEST = Metric("test_error", "test error")
BESIDE = "error on {}"
CURVE = Metric("population_error", "error with population statistics")
POPULATION = "population statistics"  # the protocol; that without a name has the statistics of minibatches, as the paper's
ENTITIES = {"wikicloze": 150, "babi-1": 6}  # known before the corpus is here, as are the words
WORDS = {"babi-1": 15}


def data(recipe: Reader, folder: Path | None, given: Mapping[str, Any]) -> Corpus:
    """The corpus of a recipe, or the user's own, prepared."""
    return prepare(str(given.get("questions") or recipe.corpus), folder, recipe.sentences)


def check(recipe: Reader) -> None:
    """Build the model without memory: a setting no layer takes is named before any data is read."""
    try:
        count(replace(recipe, corpus="babi-1"))
    except (TypeError, ValueError, KeyError) as error:
        raise RecipeError(f"no model of these settings: {error}") from error


def count(recipe: Reader) -> int:
    """Parameters of a recipe's model; 0 where only the data say it."""
    words = recipe.words or WORDS.get(recipe.corpus)
    if recipe.corpus not in ENTITIES or words is None:
        return 0
    with torch.device("meta"):
        model = AttentiveReader(recipe.shape, Vocabulary(ENTITIES[recipe.corpus], tuple(map(str, range(words)))))
    return sum(p.numel() for p in model.parameters())


class ReaderTask(Task):
    """The task of one job."""

    select = "error"
    loss_unit = "nats"
    work_unit = "questions"

    def __init__(self, job: Job, device: torch.device) -> None:
        assert isinstance(job.recipe, Reader) and isinstance(job.data, Corpus)
        self.recipe, self.corpus, self.seed, self.device = job.recipe, job.data, job.seed, device
        self.precision = job.precision
        self.metrics = (ERROR,) if self.recipe.norm is None else (ERROR, CURVE)
        self.vocabulary = self.corpus.vocabulary.cut(self.recipe.words)

    def build(self) -> AttentiveReader:
        return AttentiveReader(self.recipe.shape, self.vocabulary)

    def description(self) -> dict[str, Any]:
        r = self.recipe
        return description(r.shape, self.vocabulary, r.sentences, r.longest)

    # -- training --

    def reading(self, split: Split) -> Reading:
        return Reading.of(split, self.corpus.vocabulary, self.vocabulary, self.recipe.longest)

    @cached_property
    def plan(self) -> Plan:
        r = self.recipe
        return Plan(self.reading(self.corpus.splits["train"]), r.batch, self.seed, r.permute)

    def epoch(self, number: int, team: Team) -> Batches:
        return self.plan.epoch(number, team)

    def optimizer(self, parameters: list[nn.Parameter], schedule: Schedule, **how: Any) -> torch.optim.Optimizer:
        """Adam in one pass over the weights: most of them are word vectors, and reading them takes the time."""
        if self.device.type == "cpu":
            how |= {"fused": True, "foreach": False}
        return super().optimizer(parameters, schedule, **how)

    def target(self, batch: Batch) -> Tensor:
        return batch.answer - FIRST if self.recipe.readout == "entities" else batch.answer

    def loss(self, model: nn.Module, batch: Batch, state: Any) -> tuple[Loss, Any]:
        """Minus the log-probability of the answer."""
        value = F.cross_entropy(model(batch.document, batch.question).logits.float(), self.target(batch))
        count = len(batch.answer)
        return Loss(value, value.detach() * count, count), None

    def work(self, batch: Batch) -> int:
        return len(batch.answer)

    def capture_key(self, batch: Batch) -> Hashable | None:
        """Packed documents are read from lengths on the host, which a graph would repeat."""
        packed = self.recipe.norm is not None and not self.recipe.padding
        return None if packed else (tuple(batch.document.shape), tuple(batch.question.shape))

    def product_rows(self, world: int) -> set[int]:
        n = self.recipe.batch // world
        return {rows for group in self.plan.groups for rows in (n, n * group.shape[0], n * group.shape[1])}

    # -- scoring --

    def scores(self, model: nn.Module, split: str, team: Team) -> dict[str, Sum]:
        """With the statistics of minibatches, and with those of the population as they are so far."""
        reading = self.reading(self.corpus.splits[split])
        if self.recipe.norm is None:
            return {"error": self.error(model, reading, team)}
        with statistics(model, "batch"):
            found = {"error": self.error(model, reading, team)}
        return {**found, "population_error": self.error(model, reading, team)}

    @torch.no_grad()
    def error(self, model: nn.Module, reading: Reading, team: Team) -> Sum:
        wrong, count = torch.zeros((), dtype=torch.int64, device=self.device), 0
        for picked in in_turn(reading, self.recipe.batch)[team.rank :: team.world]:
            batch = Batch(*(part.to(self.device) for part in reading.batch(picked)))
            wrong += (model(batch.document, batch.question).logits.argmax(1) != self.target(batch)).sum()
            count += len(picked)
        return Sum(float(wrong), count)

    def after_training(self, model: nn.Module) -> None:
        """Average the statistics of minibatches over the training set, as Cooijmans et al. did; the same on every process."""
        if self.recipe.norm is None:
            return
        batches = self.plan.epoch(0, Team())
        narrow = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        model.eval()
        with torch.no_grad(), estimating_population(model), narrow:
            for position in range(min(self.recipe.population, len(batches))):
                batch = batches[position]
                model(batch.document.to(self.device), batch.question.to(self.device))

    def results(self, model: nn.Module, team: Team) -> list[Result]:
        """On the validation questions, which the paper's number is of, then on the others."""
        sets = [(ERROR, self.corpus.name, "valid", self.corpus.splits["valid"])]
        if "test" in self.corpus.splits:
            sets.append((TEST, self.corpus.name, "test", self.corpus.splits["test"]))
        for name, one in self.corpus.beside.items():
            sets.append((Metric(f"{name}_error", BESIDE.format(name)), name, "test", one.splits["test"]))
        return [result for metric, name, split, part in sets for result in self._results(model, team, metric, name, split, part)]

    def _results(self, model: nn.Module, team: Team, metric: Metric, dataset: str, split: str, part: Split) -> Iterator[Result]:
        reading = self.reading(part)
        with statistics(model, "batch"):
            yield Result(metric, team.mean(self.error(model, reading, team)), dataset, split, len(part))
        if self.recipe.norm is not None:
            yield Result(metric, team.mean(self.error(model, reading, team)), dataset, split, len(part), POPULATION)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """What counting alone answers, how often the answer is shown, and what was wrong with questions."""
        counts = {name: self.corpus.counts[name] for name in self.corpus.splits}
        counts |= {name: one.counts["test"] for name, one in self.corpus.beside.items()}
        return {name: rates(count) for name, count in counts.items()}


def rates(count: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of the questions of a split that are answered wrongly by the baselines or cannot be answered, and its faults."""
    kept = count["kept"]
    wrong = {name: round(1 - count[name] / kept, 5) for name in (*BASELINES, "answerable")}
    return {"questions": kept, **wrong, "faults": dict(count["faults"])}


@contextmanager
def statistics(model: nn.Module, which: str) -> Iterator[None]:
    """What the batch norms use while this lasts; the population's afterwards."""
    use_statistics(model, which)  # type: ignore[arg-type]
    try:
        yield
    finally:
        use_statistics(model, "population")
