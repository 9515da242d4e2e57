"""What is trained and scored in §3.2: characters, one after the other."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint import Start
from multint.paper.charlm.corpora import CORPORA
from multint.paper.charlm.corpus import Alphabet, Corpus, prepare, prepare_text
from multint.paper.charlm.data import (
    Batches,
    Evaluation,
    Segments,
    Streams,
    Tokens,
    evaluation_segments,
    evaluation_streams,
    resident,
)
from multint.paper.charlm.model import LAYERS, CharModel, parameters
from multint.paper.charlm.recipes import BOUNDED, MI, CharLM
from multint.paper.experiment import Job, Loss, Metric, Result, Sum, Task, Team
from multint.paper.overrides import RecipeError

SYMBOLS = {name: source.symbols for name, source in CORPORA.items() if source.symbols}  # known before the corpus is here
WINDOW = 200  # steps evaluated at a time: logits of a whole stream would not fit
COLUMNS = 256  # segments of the reset protocol at a time
BPC = Metric("bpc", "BPC")


def data(recipe: CharLM, folder: Path | None, given: Mapping[str, Any]) -> Corpus:
    """The corpus of a recipe, or the user's text."""
    text = given.get("text")
    if text is None:
        if given.get("as_bytes"):
            raise RecipeError("--bytes says how --text is read; give --text FILE too")
        return prepare(recipe.corpus, folder)
    return prepare_text(Path(text), folder, bool(given.get("as_bytes")))


def check(recipe: CharLM) -> None:
    """Build the model without memory: a setting no layer takes is named before any data is read."""
    lr, least = recipe.schedule.lr, recipe.schedule.min_lr
    if lr < least and not recipe.schedule.linear:
        raise RecipeError(f"schedule.lr={lr:g} is below schedule.min_lr={least:g}, where training ends; set that lower too")
    if recipe.cell not in LAYERS:
        raise RecipeError(f"no model of these settings: no cell {recipe.cell!r}; there are {', '.join(LAYERS)}")
    try:
        count(replace(recipe, corpus="text8"))
    except (TypeError, ValueError, KeyError) as error:
        raise RecipeError(f"no model of these settings: {error}") from error


def build(recipe: CharLM, symbols: int) -> CharModel:
    options: dict[str, Any] = {}
    if recipe.cell in MI:
        options["integration"] = recipe.integration
    if recipe.cell == "gru":
        options["reset_after"] = recipe.reset_after
    if recipe.cell in BOUNDED:
        options["nonlinearity"] = recipe.nonlinearity
    return CharModel(symbols, recipe.hidden, recipe.cell, recipe.layers, recipe.start, recipe.dropout, **options)


def count(recipe: CharLM, symbols: int | None = None) -> int:
    """Parameters of a recipe's model; 0 where its alphabet is not known yet."""
    symbols = symbols or SYMBOLS.get(recipe.corpus, 0)
    if not symbols:
        return 0
    with torch.device("meta"):
        return parameters(build(recipe, symbols))


SHAPE = ("cell", "hidden", "layers", "integration", "nonlinearity", "reset_after", "dropout")  # settings that a model is built from


def model(description: Mapping[str, Any]) -> CharModel:
    """The model of ``CharTask.description()``, with its alphabet."""
    start = Start(**description["start"])
    recipe = CharLM(corpus="", start=start, **{name: description[name] for name in SHAPE})
    found = build(recipe, len(description["symbols"]))
    found.alphabet = Alphabet(tuple(description["symbols"]), description["as_bytes"])
    return found


class CharTask(Task):
    """The task of one job."""

    metrics = (BPC,)
    select = "bpc"
    loss_unit = "BPC"
    work_unit = "characters"

    def __init__(self, job: Job, device: torch.device) -> None:
        assert isinstance(job.recipe, CharLM) and isinstance(job.data, Corpus)
        self.recipe, self.corpus, self.seed, self.device = job.recipe, job.data, job.seed, device
        self._held: dict[str, Tokens] = {}

    def tokens(self, split: str) -> Tokens:
        """A split of the corpus: on a GPU all of it in its memory, a byte a character, so that no batch waits to be copied."""
        if split not in self._held:
            stored = getattr(self.corpus, split)
            self._held[split] = resident(stored, self.device) if self.device.type == "cuda" else stored
        return self._held[split]

    def build(self) -> CharModel:
        return build(self.recipe, len(self.corpus.symbols))

    def description(self) -> dict[str, Any]:
        settings = {name: getattr(self.recipe, name) for name in SHAPE}
        alphabet = {"symbols": list(self.corpus.symbols), "as_bytes": self.corpus.as_bytes}
        return {**settings, "start": asdict(self.recipe.start), **alphabet}

    @property
    def plan(self) -> Streams | Segments:
        r = self.recipe
        return Streams(r.length, r.batch, r.reset_every) if r.carry else Segments(r.length, r.batch, self.seed)

    def epoch(self, number: int, team: Team) -> Batches:
        return self.plan.shard(team.rank, team.world).batches(self.tokens("train"), number)

    def begins(self, position: int) -> bool:
        return self.plan.begins(position)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor], state: Any) -> tuple[Loss, Any]:
        x, y = batch
        logits, state = model(x, state)
        value = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        return Loss(value, value.detach() * (y.numel() / math.log(2)), y.numel()), state

    def work(self, batch: tuple[Tensor, Tensor]) -> int:
        return batch[0].numel()

    def product_rows(self, world: int) -> set[int]:
        r = self.recipe
        pairs = [(r.batch // world, r.length), (COLUMNS, min(r.length, WINDOW))]
        pairs += [(-(-self.streams(split).streams // world), WINDOW) for split in ("valid", "test")]
        return {n for rows, steps in pairs for n in (rows, rows * steps)}

    def scores(self, model: nn.Module, split: str, team: Team) -> dict[str, Sum]:
        return {"bpc": self.carried(model, split, team)}

    def results(self, model: nn.Module, team: Team) -> list[Result]:
        return [
            Result(BPC, team.mean(protocol(model, "test", team)), self.corpus.name, "test", len(self.tokens("test")) - 1, name)
            for name, protocol in (("carried", self.carried), ("reset", self.reset))
        ]

    def streams(self, split: str) -> Evaluation:
        tokens = self.tokens(split)
        return evaluation_streams(tokens, min(self.recipe.evaluation_streams, max(1, (len(tokens) - 1) // WINDOW)))

    def carried(self, model: nn.Module, split: str, team: Team) -> Sum:
        """State carried along ``evaluation_streams`` parallel streams, each from zero: the primary protocol."""
        return self.total(model, share(self.streams(split), team))

    def reset(self, model: nn.Module, split: str, team: Team) -> Sum:
        """State reset every training length."""
        mine = share(evaluation_segments(self.tokens(split), self.recipe.length), team)
        parts = [self.total(model, mine.columns(k, k + COLUMNS)) for k in range(0, mine.streams, COLUMNS)]
        return Sum(sum(p.total for p in parts), sum(p.count for p in parts))

    @torch.no_grad()
    def total(self, model: nn.Module, columns: Evaluation) -> Sum:
        """Bits of the given columns, each read from a zero state."""
        state, total = None, torch.zeros((), dtype=torch.float64, device=self.device)
        for window in columns.windows(WINDOW) if columns.streams else ():
            x, y, counts = (part.to(self.device) for part in window)
            logits, state = model(x, state)
            losses = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none")
            total += (losses * counts.flatten()).sum(dtype=torch.float64)
        return Sum(float(total) / math.log(2), columns.predicted if columns.streams else 0)


def share(columns: Evaluation, team: Team) -> Evaluation:
    """One process's columns."""
    each = -(-columns.streams // team.world)
    return columns.columns(team.rank * each, (team.rank + 1) * each)
