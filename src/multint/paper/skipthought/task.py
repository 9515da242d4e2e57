"""What is trained and scored in §3.4: two neighbours of a sentence are written from its vector; SICK scores the encoder."""

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multint.paper.experiment import Job, Loss, Metric, Result, Schedule, Sum, Task, Team
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.skipthought import books, corpora, labelled, softmax, transfer
from multint.paper.skipthought.adam import AuthorsAdam
from multint.paper.skipthought.corpus import LIMIT, Corpus, prepare
from multint.paper.skipthought.data import SPECIAL, Batch, Batches
from multint.paper.skipthought.encoders import of_model
from multint.paper.skipthought.labelled import Data
from multint.paper.skipthought.model import SkipThought, described
from multint.paper.skipthought.recipes import Skipthoughts
from multint.paper.skipthought.transfer import MSE, RHO, R, Relatedness

OPTIONS: Mapping[str, books.Form] = {
    "books": "books",
    "sentences": "sentences",
    "tokens": "tokens",
}  # by the option that names them


@dataclass(frozen=True, eq=False)
class Material:
    """What a run is trained and scored on, an ``experiment.Dataset``: a corpus of books, and the labelled sets."""

    corpus: Corpus
    sets: Data

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def sha256(self) -> str:
        return self.corpus.sha256

    @property
    def stands_for(self) -> str | None:
        return self.corpus.stands_for

    @property
    def own(self) -> bool:
        return self.corpus.own

    @property
    def form(self) -> str:
        return self.corpus.form


def data(recipe: Skipthoughts, folder: Path | None, given: Mapping[str, Any]) -> Material:
    """The books of a recipe, or the user's own, prepared, and the tasks that score it.

    What is missing of a task is said now, and not when training has ended.
    """
    lacking = labelled.missing(recipe.tasks, folder)
    if lacking:
        raise DataError(f"{'; '.join(lacking)}; or score on fewer tasks (--set tasks=sick,...)")
    named = [(name, given[name]) for name in OPTIONS if given.get(name)]
    if len(named) > 1:
        raise DataError(f"name one corpus: {' or '.join(f'--{name}' for name, _ in named)}")
    found = books.own(Path(named[0][1]), OPTIONS[named[0][0]], folder) if named else corpora.load(recipe.corpus, folder)
    sets = Data(folder)
    for task in recipe.tasks:
        sets.tokens(task)
    return Material(prepare(found, folder), sets)


def check(recipe: Skipthoughts) -> None:
    """Build the model without memory: a setting no layer takes is named before any data is read."""
    try:
        count(recipe)
    except (TypeError, ValueError, KeyError) as error:
        raise RecipeError(f"no model of these settings: {error}") from error


def count(recipe: Skipthoughts) -> int:
    """Parameters of a recipe's model."""
    words = [""] * (recipe.vocabulary - SPECIAL)
    with torch.device("meta"):
        return sum(p.numel() for p in described(_description(recipe, words)).parameters())


def _description(recipe: Skipthoughts, words: list[str]) -> dict[str, Any]:
    names = ("width", "hidden", "bidirectional", "integration", "reset_after")
    return {"words": words, "encoder": {**{name: getattr(recipe, name) for name in names}, "start": asdict(recipe.start)}}


class SkipThoughtTask(Task):
    """The task of one job."""

    metrics: tuple[Metric, ...] = (MSE, R, RHO)  # of SICK's validation pairs
    select = "mse"
    loss_unit = "nats per word"
    work_unit = "triples"
    observed = ("test_mse", "test_r", "test_rho")  # of SICK's test pairs, as in Fig. 2a

    def __init__(self, job: Job, device: torch.device) -> None:
        assert isinstance(job.recipe, Skipthoughts) and isinstance(job.data, Material)
        self.recipe, self.corpus, self.sets = job.recipe, job.data.corpus, job.data.sets
        self.seed, self.device, self.world = job.seed, device, 1
        self.latest: Relatedness | None = None
        if len(self.corpus.words) < self.recipe.vocabulary - SPECIAL:
            most = len(self.corpus.words) + SPECIAL
            raise DataError(
                f"{self.corpus.name} has a vocabulary of {most:,}, not {self.recipe.vocabulary:,}; --set vocabulary={most}"
            )

    def build(self) -> SkipThought:
        return described(self.description())

    def description(self) -> dict[str, Any]:
        return _description(self.recipe, list(self.corpus.words[: self.recipe.vocabulary - SPECIAL]))

    # -- training --

    def epoch(self, number: int, team: Team) -> Batches:
        self.world = team.world
        few = self.device.type == "cuda"  # shapes, so that CUDA graphs serve many batches
        r = self.recipe
        return Batches(self.corpus, r.vocabulary, r.batch, self.seed, number, team, few, few and not r.bidirectional)

    def loss(self, model: nn.Module, batch: Batch, state: Any) -> tuple[Loss, Any]:
        """The sum over both neighbours. Gradients of several processes are averaged, so each is as many times as large."""
        total = model(batch)
        counts = sum((one.wanted != softmax.NOTHING).sum() for one in (batch.after, batch.before))
        return Loss(total * self.world, total.detach(), counts), None

    def work(self, batch: Batch) -> int:
        return int(batch.x.shape[1])

    def optimizer(self, parameters: list[nn.Parameter], schedule: Schedule, **how: Any) -> torch.optim.Optimizer:
        common = {"betas": schedule.betas, "eps": schedule.eps, "lr": how["lr"]}
        if self.recipe.adam == "authors":
            return AuthorsAdam(parameters, capturable=how.get("capturable", False), **common)
        # on a CPU too the fused update is several times as fast
        return torch.optim.Adam(parameters, capturable=how.get("capturable", False), fused=True, **common)

    def capture_key(self, batch: Batch) -> Hashable | None:
        """One graph for each length; the last batch of a length is smaller and runs operation by operation."""
        return tuple(batch.x.shape) if batch.x.shape[1] * self.world == self.recipe.batch else None

    def product_rows(self, world: int) -> set[int]:
        rows = self.recipe.batch // world
        return {rows, rows * LIMIT, min(2 * rows * LIMIT, softmax.MOST // self.recipe.vocabulary)}

    # -- evaluation --

    def scores(self, model: nn.Module, split: str, team: Team) -> dict[str, Sum]:
        """SICK, by a softmax trained on its training pairs. Every process scores all of it."""
        self.latest = transfer.sick(of_model(encoder_of(model), self.sets), self.sets.pairs("sick"))
        count = self.latest.sizes[0]
        return {name: Sum(value * count, count) for name, value in self.latest.valid.items()}

    def observe(self, model: nn.Module) -> dict[str, float]:
        assert self.latest is not None
        return {f"test_{name}": float(f"{value:.6g}") for name, value in self.latest.test.items()}

    def results(self, model: nn.Module, team: Team) -> list[Result]:
        """All of Table 2, or the tasks of the recipe. Every process scores all of them."""
        return transfer.evaluate(of_model(encoder_of(model), self.sets), self.sets, self.recipe.tasks)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """The share of tokens that the vocabulary does not know: in the books, and in each task."""
        encoder = encoder_of(model)
        found = {"books": round(self.corpus.unknown(self.recipe.vocabulary - SPECIAL), 5)}
        for task in self.recipe.tasks:
            tokens = self.sets.tokens(task)
            unknown, every = encoder.unknown([tokens(one) for one in self.sets.texts(task)])
            found[task] = round(unknown / max(every, 1), 5)
        return {"unknown": found, "triples": len(self.corpus.middles)}


def encoder_of(model: nn.Module) -> Any:
    """The encoder, inside what the trainer put around the model."""
    inner: Any = model
    while not isinstance(inner, SkipThought):
        inner = inner.module
    return inner.encoder
