"""What is trained, scored and written in §3.2: characters, one after the other."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint import Start
from multint.paper import engine, products
from multint.paper.charlm.data import (
    Batches,
    Corpus,
    Evaluation,
    Segments,
    Streams,
    Tokens,
    evaluation_segments,
    evaluation_streams,
    prepare,
    prepare_text,
    resident,
)
from multint.paper.charlm.model import LAYERS, MI, CharModel, parameters, sample
from multint.paper.charlm.recipes import DEMO_MILSTM, RECIPES, CharLM
from multint.paper.engine import Schedule, Sum
from multint.paper.metrics import bpc
from multint.paper.overrides import RecipeError, apply, effective
from multint.paper.runs import Progress, Run, RunError, digest, environment, read_json
from multint.paper.sources import CORPORA

SYMBOLS = {name: source.symbols for name, source in CORPORA.items() if source.symbols}  # known before the corpus is here
WINDOW = 200  # steps evaluated at a time: logits of a whole stream would not fit
COLUMNS = 256  # segments of the reset protocol at a time


@dataclass(frozen=True)
class Job:
    """A recipe with everything a run of it depends on."""

    name: str
    recipe: CharLM
    seed: int
    precision: str
    corpus: Corpus
    changed: tuple[str, ...] = ()  # overrides, as typed
    text: str | None = None
    as_bytes: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {
            "recipe": self.name,
            "seed": self.seed,
            "precision": self.precision,
            "text": self.text,
            "as_bytes": self.as_bytes,
            "data": f"sha256:{self.corpus.sha256}",
            "settings": settings(self.recipe),
        }

    @property
    def run(self) -> str:
        return f"{self.name}-s{self.seed}-{digest(self.config)}"


def job(
    name: str,
    seed: int,
    changes: Sequence[str],
    text: Path | None,
    as_bytes: bool,
    data: Path | None,
    precision: str,
    recipes: Mapping[str, CharLM] = MappingProxyType(RECIPES),
) -> Job:
    """The job a command line describes: a recipe by name, or any text with ``charlm``."""
    if text is not None:
        name = name if name == "charlm" else full(name, recipes)
        base = DEMO_MILSTM if name == "charlm" else recipes[name]
        own = replace(base, corpus=text.name, cite="", paper=None, note="a text of the user's")
        recipe = apply(own, changes)
        check(recipe)
        corpus = prepare_text(text, data, as_bytes)
        model = recipe.cell if recipe.integration == "additive" else f"mi{recipe.cell}"
        name = f"{name.partition('/')[0]}/{text.stem}-{model}"
        if name in recipes:  # a file that is called like a corpus is not that corpus
            name = f"{name.partition('/')[0]}/{text.stem}-text-{model}"
        return Job(name, recipe, seed, precision, corpus, effective(own, changes), str(text.resolve()), as_bytes)
    if name == "charlm":
        raise RecipeError("train charlm needs --text FILE; recipes with a corpus of their own: multint recipes")
    name = full(name, recipes)
    recipe = apply(recipes[name], changes)
    check(recipe)
    return Job(name, recipe, seed, precision, prepare(recipe.corpus, data), effective(recipes[name], changes))


def settings(recipe: CharLM) -> dict[str, Any]:
    """Every setting, but for those that came after runs had been named and are as they were before: those runs keep their names."""
    found = asdict(recipe)
    if not recipe.schedule.linear:
        del found["schedule"]["linear"]
    if not recipe.dropout:
        del found["dropout"]
    return found


def full(name: str, recipes: Mapping[str, CharLM]) -> str:
    """The name with its experiment before it."""
    for known in recipes:
        if name in (known, known.partition("/")[2]):
            return known
    raise RecipeError(f"no recipe {name!r}; there are {', '.join(recipes)}")


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
    if recipe.cell in ("rnn", "mrnn", "second-order"):
        options["nonlinearity"] = recipe.nonlinearity
    return CharModel(symbols, recipe.hidden, recipe.cell, recipe.layers, recipe.start, recipe.dropout, **options)


def count(recipe: CharLM, symbols: int | None = None) -> int:
    """Parameters of a recipe's model; 0 where its alphabet is not known yet."""
    symbols = symbols or SYMBOLS.get(recipe.corpus, 0)
    if not symbols:
        return 0
    with torch.device("meta"):
        return parameters(build(recipe, symbols))


class CharTask:
    """engine.Task for one job."""

    unit = "BPC"
    observed: tuple[str, ...] = ()

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self.seed, self.device = job, job.seed, device
        self._held: dict[str, Tokens] = {}

    def tokens(self, split: str) -> Tokens:
        """A split of the corpus: on a GPU all of it in its memory, a byte a character, so that no batch waits to be copied."""
        if split not in self._held:
            stored = getattr(self.job.corpus, split)
            self._held[split] = resident(stored, self.device) if self.device.type == "cuda" else stored
        return self._held[split]

    def build(self) -> CharModel:
        return build(self.job.recipe, len(self.job.corpus.symbols))

    @property
    def plan(self) -> Streams | Segments:
        r = self.job.recipe
        return Streams(r.length, r.batch, r.reset_every) if r.carry else Segments(r.length, r.batch, self.seed)

    def epoch(self, number: int, rank: int, world: int) -> Batches:
        return self.plan.shard(rank, world).batches(self.tokens("train"), number)

    def begins(self, position: int) -> bool:
        return self.plan.begins(position)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], state: Any) -> tuple[Tensor, Any]:
        x, y = batch
        logits, state = model(x, state)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten()), state

    def shown(self, loss: float) -> float:
        return bpc(loss)

    def size(self, batch: tuple[Tensor, ...]) -> int:
        return batch[0].numel()

    def rows(self, world: int) -> set[int]:
        r = self.job.recipe
        pairs = [(r.batch // world, r.length), (COLUMNS, min(r.length, WINDOW))]
        pairs += [(-(-self.streams(split).streams // world), WINDOW) for split in ("valid", "test")]
        return {n for rows, steps in pairs for n in (rows, rows * steps)}

    def score(self, model: nn.Module, split: str, rank: int, world: int) -> Sum:
        return self.carried(model, split, rank, world)

    def observe(self, model: nn.Module) -> dict[str, float]:
        return {}

    def measure(self, model: CharModel) -> dict[str, Any]:
        """What is to be said of the trained model beyond its scores."""
        return {}

    def streams(self, split: str) -> Evaluation:
        tokens = self.tokens(split)
        return evaluation_streams(tokens, min(self.job.recipe.evaluation_streams, max(1, (len(tokens) - 1) // WINDOW)))

    def carried(self, model: nn.Module, split: str, rank: int = 0, world: int = 1) -> Sum:
        """State carried along ``evaluation_streams`` parallel streams, each from zero: the primary protocol."""
        return self.total(model, share(self.streams(split), rank, world))

    def reset(self, model: nn.Module, split: str, rank: int = 0, world: int = 1) -> Sum:
        """State reset every training length."""
        mine = share(evaluation_segments(self.tokens(split), self.job.recipe.length), rank, world)
        parts = [self.total(model, mine.columns(k, k + COLUMNS)) for k in range(0, mine.streams, COLUMNS)]
        return Sum(sum(p.total for p in parts), sum(p.count for p in parts))

    @torch.no_grad()
    def total(self, model: nn.Module, columns: Evaluation) -> Sum:
        """Summed loss of the given columns, each read from a zero state."""
        state, total = None, torch.zeros((), dtype=torch.float64, device=self.device)
        for window in columns.windows(WINDOW) if columns.streams else ():
            x, y, counts = (part.to(self.device) for part in window)
            logits, state = model(x, state)
            losses = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none")
            total += (losses * counts.flatten()).sum(dtype=torch.float64)
        return Sum(float(total), columns.predicted if columns.streams else 0)


def share(columns: Evaluation, rank: int, world: int) -> Evaluation:
    """One process's columns."""
    each = -(-columns.streams // world)
    return columns.columns(rank * each, (rank + 1) * each)


# ---- a run from beginning to end ----


def train(
    job: Job,
    runs: Path,
    results: Path,
    *,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    watcher: engine.Watcher | None = None,
    kind: type[CharTask] = CharTask,
    **settings: Any,
) -> dict[str, Any]:
    """Train, or continue, or if it is done just look: the record of the run. Processes other than the first get an empty one."""
    fabric = engine.make_fabric(device, devices, nodes, job.precision)
    watcher = watcher if watcher is not None and fabric.global_rank == 0 else engine.Silent()
    run = Run(runs, job.run, job.config)
    if run.record_file.exists():
        watcher.say(f"{run.folder} is finished; delete it to train again")
        if fabric.global_rank != 0:
            return {}
        record = read_json(run.record_file)
        run.publish(record, results)
        return record
    if fabric.global_rank == 0:
        run.__enter__()
    fabric.barrier()
    try:
        if run.pending():
            fabric.barrier()  # all have seen it
            if fabric.global_rank != 0:
                return {}
            run.settle(results)
            return read_json(run.record_file)
        task = kind(job, fabric.device)
        progress, model = engine.fit(task, job.recipe.schedule, run, fabric, watcher, **settings)
        scores = {name: total(task, protocol, model, "test", fabric) for name, protocol in PROTOCOLS.items()}
        check_scores(scores, progress)
        if fabric.global_rank != 0:
            return {}
        record = make_record(job, progress, scores, parameters(model))
        inside = task.measure(engine.bare(model))  # type: ignore[arg-type]
        if inside:
            record["measured"] = inside
        run.finish(record, results)
        return read_json(run.record_file)
    finally:
        run.__exit__()


PROTOCOLS = {"carried": CharTask.carried, "reset": CharTask.reset}


def total(task: CharTask, protocol: Any, model: nn.Module, split: str, fabric: Any) -> float:
    model.eval()
    return bpc(engine.mean(protocol(task, model, split, fabric.global_rank, fabric.world_size), fabric))


def check_scores(scores: dict[str, float], progress: Progress) -> None:
    """A result that is not a number is none."""
    for name, value in scores.items():
        if not math.isfinite(value):
            best = f"the weights of update {progress.best_update}, {progress.best:.3f} on the validation text"
            raise RunError(
                f"{best}, give {value} on the test text ({name}); no record was written, the run's checkpoints are whole: "
                "try a smaller rate (--set schedule.lr=...) or --precision fp32 in another --runs folder"
            )


def make_record(job: Job, progress: Progress, scores: dict[str, float], size: int) -> dict[str, Any]:
    where = environment()
    characters = job.recipe.batch * job.recipe.length * progress.update
    return {
        "run": job.run,
        "recipe": job.name,
        "corpus": job.corpus.name,
        "stands_for": job.corpus.stands_for,
        "metric": "bpc",
        "split": "test",
        "value": round(scores["carried"], 5),
        "protocols": {name: round(value, 5) for name, value in scores.items()},
        "valid": progress.best,
        "paper": job.recipe.paper,
        "seed": job.seed,
        "commit": where["commit"],
        "dirty": where["dirty"],
        "data": f"sha256:{job.corpus.sha256}",
        "device": where["device"],
        "shared": where["shared"],
        "python": where["python"],
        "torch": where["torch"],
        "precision": job.precision,
        "parameters": size,
        "updates": progress.update,
        "epochs": progress.epoch,
        "ended": progress.done,
        "changed": list(job.changed),
        **({} if job.text is None else {"text": True, "as_bytes": job.as_bytes}),
        "seconds": round(progress.seconds, 1),
        "chars_per_second": round(characters / max(progress.seconds, 1e-9)),
        "config": job.config["settings"],
        "history": progress.history,
    }


# ---- afterwards ----


def opened(folder: Path, data: Path | None, device: str) -> tuple[Job, CharModel, torch.device]:
    """A run's job and its model with the best weights."""
    config = read_json(folder / "config.json")
    try:
        settings = dict(config["settings"])
        settings["start"] = Start(**settings["start"])
        settings["schedule"] = Schedule(**{**settings["schedule"], "betas": tuple(settings["schedule"]["betas"])})
        recipe = CharLM(**settings)
        text = config["text"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / 'config.json'} is not the configuration of a character model: {error}") from error
    corpus = prepare(recipe.corpus, data) if text is None else prepare_text(Path(text), data, config["as_bytes"])
    if f"sha256:{corpus.sha256}" != config["data"]:
        raise RunError(
            f"{folder} was trained on {config['data'][:19]}..., but {corpus.name} here is sha256:{corpus.sha256[:12]}..."
        )
    found = Job(config["recipe"], recipe, config["seed"], config["precision"], corpus, text=text, as_bytes=config["as_bytes"])
    run = Run(folder.parent, folder.name, config)
    best = run.checkpoints / "best.safetensors"
    if not best.exists():
        raise RunError(f"{folder} has no best checkpoint yet: it was never evaluated")
    run.name = found.run
    tensors, _ = run.load(best)
    engine.check_device(device)
    where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    model = build(recipe, len(corpus.symbols))
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    return found, model.to(where).eval(), where


def evaluate(folder: Path, data: Path | None, device: str) -> Iterator[str]:
    """Lines with both protocols on both splits."""
    found, model, where = opened(folder, data, device)
    task = CharTask(found, where)
    wrong = products.fault(model, task.rows(1), where) if where.type == "cuda" else None
    if wrong:
        raise RunError(wrong)
    for split, (name, protocol) in itertools.product(("valid", "test"), PROTOCOLS.items()):
        part = protocol(task, model, split)
        yield f"{split:5} {name:7} {bpc(part.total / part.count):.4f} BPC over {part.count:,} characters"


def write(
    folder: Path, prompt: str, length: int, temperature: float, top_k: int | None, seed: int, data: Path | None
) -> Iterator[str]:
    """The prompt, then ``length`` symbols as they are drawn."""
    found, model, _ = opened(folder, data, "cpu")
    ids = torch.as_tensor(found.corpus.encode(prompt) if prompt else found.corpus.test[:1].astype("int64"))
    generator = torch.Generator().manual_seed(seed)
    drawn = sample(model, ids, temperature=temperature, top_k=top_k, generator=generator)
    yield from found.corpus.decoded(itertools.chain(ids.tolist(), itertools.islice(drawn, length)))
