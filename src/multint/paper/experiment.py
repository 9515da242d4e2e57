"""What does one experiment say of itself? The protocol between what is trained and the rooms that train, record and report it.

A room that trains (``engine``, ``session``), records (``record``) or reports (``report``) imports this file and no experiment.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

State = Any  # a tree of tensors (tuples, lists, dicts, dataclasses), or None
Batch = Any  # a tree of tensors
T = TypeVar("T")
SAID = ("row", "twin", "scale", "cite", "note")  # fields of a recipe that change nothing in the training


# ---- trees of tensors ----


def mapped(f: Callable[[Tensor], Any], tree: T) -> T:
    """The tree with f applied to each of its tensors; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return f(tree)  # type: ignore[no-any-return]
    if isinstance(tree, Mapping):
        return type(tree)({key: mapped(f, part) for key, part in tree.items()})  # type: ignore[call-arg]
    if isinstance(tree, (tuple, list)):
        parts = [mapped(f, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{one.name: mapped(f, getattr(tree, one.name)) for one in fields(tree)})
    return tree


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    mapped(found.append, tree)
    return found


# ---- what is measured ----


@dataclass(frozen=True)
class Metric:
    """A figure of merit: its name in records, its unit as shown, and whether a lower value is better."""

    name: str
    unit: str
    lower: bool = True

    def better(self, value: float, than: float) -> bool:
        return value < than if self.lower else value > than


class Loss(NamedTuple):
    """``value`` is differentiated. The training curve shows the sum of all ``total`` over the sum of all ``count``."""

    value: Tensor
    total: Tensor
    count: int | Tensor  # type: ignore[assignment] # tuple.count is not needed here


@dataclass
class Sum:
    """A score summed over ``count`` predictions, to be added up over processes."""

    total: float
    count: int | float  # the annotation is checked in tests, where an int is no float


@dataclass(frozen=True)
class Result:
    """One number of a finished run. ``n`` counts what it is the mean of; ``protocol`` tells two ways to take one metric apart."""

    metric: Metric
    value: float
    dataset: str
    split: str
    n: int
    protocol: str = ""


@dataclass(frozen=True)
class Team:
    """The processes that share a run. This one is number ``rank`` of ``world``; alone, there is nobody to ask."""

    rank: int = 0
    world: int = 1

    def mean(self, part: Sum) -> float:
        """The mean of a sum over all processes, the same on each; NaN where there is nothing to count."""
        return part.total / part.count if part.count else float("nan")


# ---- what is trained ----


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    ``halve_after`` is the paper's rule: halve the rate when the validation score has not improved for that many evaluations.
    ``linear`` lowers the rate in a straight line to zero at the last update instead.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = 1.0
    epochs: int = 50
    updates: int | None = None  # at most, whatever the epoch
    evaluate_every: int | None = None  # updates; None: after every epoch
    halve_after: int | None = 2
    linear: bool = False
    stop_after: int | None = 10  # evaluations without a new best
    min_lr: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "clip", "epochs", "updates", "evaluate_every", "halve_after", "stop_after"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than zero, got {value}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")

    def most(self, per_epoch: int | None) -> int:
        """Updates after which training ends at the latest; ``per_epoch`` is None where an epoch has no end."""
        if per_epoch is None:
            if self.updates is None:
                raise ValueError("an epoch without end needs schedule.updates, after which training ends")
            return self.updates
        return min(self.epochs * per_epoch, self.updates or self.epochs * per_epoch)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row to train. A subclass adds the settings of its model and data.

    Args:
        row: key of the row in ``numbers.ROWS`` that this recipe repeats.
        twin: name of the additive recipe that this one is compared with; None for one that is additive itself.
        scale: "paper" for the paper's size, "laptop" for the same row in small, "" for a recipe beside the paper.
    """

    schedule: Schedule = field(default_factory=Schedule)
    row: str | None = None
    twin: str | None = None
    scale: Literal["paper", "laptop", ""] = ""
    cite: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """What a run on the user's own data is called."""
        return type(self).__name__.lower()

    @property
    def twin_label(self) -> str | None:
        """What a run of the additive twin on the user's own data is called; None for a recipe that is additive itself."""
        return None

    def idle(self) -> Mapping[str, str]:
        """Settings that change nothing in this recipe, each with the reason. ``--set`` refuses them."""
        return {}


@runtime_checkable
class Batches(Protocol):
    """One epoch of batches, in an order that depends on (seed, epoch) alone. Without ``__len__`` the epoch has no end."""

    def __getitem__(self, position: int, /) -> Batch: ...


class Task:
    """What the engine trains. A subclass gives ``metrics``, ``select``, ``build``, ``epoch``, ``loss``, ``scores`` and ``results``;
    the rest has defaults.
    """

    metrics: tuple[Metric, ...]  # of ``scores``
    select: str  # name of the metric that picks the best checkpoint
    loss_unit: str = "loss"  # of the training curve
    work_unit: str = "samples"  # of the throughput
    observed: tuple[str, ...] = ()  # further columns of the curve, which ``observe`` fills
    state_dim: int = 1  # dimension of the state's tensors that processes share
    seed: int = 0

    # -- training --

    def build(self) -> nn.Module:
        raise NotImplementedError

    def epoch(self, number: int, team: Team) -> Batches:
        raise NotImplementedError

    def begins(self, position: int) -> bool:
        """Does this batch start from ``initial_state``? If not, it goes on from the state of the last one."""
        return True

    def initial_state(self, batch: Batch) -> State:
        """The state at a start. None leaves it to the model, which may have learned one."""
        return None

    def loss(self, model: nn.Module, batch: Batch, state: State) -> tuple[Loss, State]:
        raise NotImplementedError

    def work(self, batch: Batch) -> int:
        """How much of ``work_unit`` a batch is; speed counts it."""
        return len(tensors(batch)[0])

    def optimizer(self, parameters: list[nn.Parameter], schedule: Schedule, **how: Any) -> torch.optim.Optimizer:
        """``how`` are the options torch's optimisers share (lr, capturable, fused, foreach), as the device needs them."""
        return torch.optim.Adam(parameters, **{"betas": schedule.betas, "eps": schedule.eps, **how})

    def capture_key(self, batch: Batch) -> Hashable | None:
        """On CUDA, batches with one key share one CUDA graph; None runs this batch eagerly."""
        return tuple((tuple(part.shape), part.dtype) for part in tensors(batch))

    def product_rows(self, world: int) -> set[int]:
        """Rows that the products with the model's matrices have; a GPU is checked with them before training."""
        return set()

    # -- evaluation --

    def scores(self, model: nn.Module, split: str, team: Team) -> dict[str, Sum]:
        """This process's share of every metric, by name."""
        raise NotImplementedError

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Further columns of the curve, at every evaluation."""
        return {}

    # -- the end --

    def after_training(self, model: nn.Module) -> None:
        """Change the model with the best weights once, before its results are taken."""

    def results(self, model: nn.Module, team: Team) -> list[Result]:
        """The numbers the run is judged by; of one metric the first counts, the others are other protocols."""
        raise NotImplementedError

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """What else the record says of the trained model."""
        return {}

    def description(self) -> dict[str, Any]:
        """What ``Experiment.model`` builds the model from without the data, as JSON: sizes, symbols."""
        return {}


# ---- an experiment ----


@runtime_checkable
class Dataset(Protocol):
    """Prepared data.

    ``stands_for`` is the corpus of the paper whose place it takes. ``own`` marks the user's own data. ``form`` tells two ways of
    reading the same files apart.
    """

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def stands_for(self) -> str | None: ...
    @property
    def own(self) -> bool: ...
    @property
    def form(self) -> str: ...


@runtime_checkable
class Shelf(Protocol):
    """The corpora of an experiment; a module can be one."""

    def names(self) -> Sequence[str]: ...
    def listing(self, data: Path | None) -> Sequence[str]: ...
    def get(self, name: str, data: Path | None) -> Dataset: ...  # downloads what is missing
    def verify(self, name: str, data: Path | None) -> Dataset: ...  # reads all of it


@dataclass(frozen=True)
class Job:
    """A recipe with everything a run of it depends on.

    Args:
        name: of the recipe, with its experiment before it: ``EXPERIMENT/RECIPE``.
        changed: overrides that differ from the recipe, spelled out.
        given: options of the experiment's own, as typed; a hint for opening the run again, no part of what it is.
    """

    name: str
    recipe: Recipe
    seed: int
    precision: str
    data: Any  # a Dataset
    changed: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def experiment(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Experiment:
    """A plug-in: ``multint.paper.experiments`` finds it as ``EXPERIMENT`` in a module, by name or by entry point.

    Args:
        recipes: by name, without the experiment's.
        prepare: the data of a recipe, from the data folder and the options given.
        task: what the engine trains.
        model: the model of ``Task.description()``; with weights loaded it is complete.
        options: click options that ``multint train`` and ``sweep`` take for this experiment.
        own: the recipe that ``multint train NAME`` with such options starts from.
        commands: click commands of its own, as ``multint sample``.
        sections: its part of the report.
        check: refuses a recipe that cannot be built, before any data is read.
        size: parameters of a recipe's model, 0 where only the data say it.
        shelf: its corpora, for ``multint data``.
    """

    name: str
    recipes: Mapping[str, Recipe]
    prepare: Callable[[Recipe, Path | None, Mapping[str, Any]], Dataset]
    task: Callable[[Job, torch.device], Task]
    model: Callable[[Mapping[str, Any]], nn.Module]
    options: Sequence[Any] = ()
    own: Recipe | None = None
    commands: Sequence[Any] = ()
    sections: Callable[[Any], Sequence[Any]] | None = None
    check: Callable[[Recipe], None] = lambda recipe: None
    size: Callable[[Recipe], int] = lambda recipe: 0
    shelf: "Shelf | None" = None

    def named(self) -> Iterator[tuple[str, Recipe]]:
        """Recipes by their full names."""
        return ((f"{self.name}/{name}", recipe) for name, recipe in self.recipes.items())
