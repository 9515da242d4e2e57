"""What is normalised, disturbed or dropped while a layer trains?

Recurrent batch norm (Cooijmans et al., 2016) and layer norm as its sibling, Gaussian weight noise, zoneout and recurrent dropout.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint.shapes import Bool, Float


@dataclass(frozen=True)
class Norm:
    """Per-step normalisation of a recurrent layer: what ``norm=`` takes.

    Args:
        kind: ``"batch"``, recurrent batch norm with its own statistics for every step, or ``"layer"``, each gate over its units.
        place: ``"flows"`` normalises Wx and Uh before they are integrated, ``"sum"`` their integral (b is added afterwards).
        cell: normalise an LSTM's c on its way to h; c itself goes on as it is.
        gamma: what the scales start as. Default: 0.1 for batch norm, 1 for layer norm.
        max_steps: steps with statistics of their own; later ones use the last.
        momentum: weight of a new batch in the population estimates; ``None`` averages all batches equally.
        eps: added to the variance.
        padding: let rows past their length into the batch statistics, as the original code did.
    """

    kind: Literal["batch", "layer"] = "batch"
    place: Literal["flows", "sum"] = "flows"
    cell: bool = True
    gamma: float | None = None
    max_steps: int = 100
    momentum: float | None = 0.05
    eps: float = 1e-5
    padding: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("batch", "layer"):
            raise ValueError(f"Unknown norm {self.kind!r}. Select from 'batch' or 'layer'.")
        if self.place not in ("flows", "sum"):
            raise ValueError(f"Unknown place {self.place!r} for a norm. Select from 'flows' or 'sum'.")
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise ValueError(f"Norm: max_steps must be a whole number greater than zero, got {self.max_steps}")
        if self.gamma is not None and not math.isfinite(self.gamma):
            raise ValueError(f"Norm: gamma must be a finite number or None, got {self.gamma}")
        if not self.eps >= 0:
            raise ValueError(f"Norm: eps must be at least 0, got {self.eps}")
        if self.momentum is not None and not 0 < self.momentum <= 1:
            raise ValueError(f"Norm: momentum must lie in (0, 1] or be None, got {self.momentum}")

    @classmethod
    def chosen(cls, norm: "Norm | str | None") -> "Norm | None":
        """A Norm as given or by its kind."""
        if isinstance(norm, str):
            return cls(norm)  # type: ignore[arg-type]
        if norm is None or isinstance(norm, Norm):
            return norm
        raise TypeError(f"norm should be a Norm, 'batch', 'layer' or None, got: {type(norm).__name__}")


class StepLayerNorm(nn.Module):
    """Layer norm of one step, each gate over its own units; gamma, and on the cell beta, are learned."""

    def __init__(self, features: int, unit: int, gamma: float, beta: bool, eps: float, **where: Any) -> None:
        super().__init__()
        self.unit, self.eps, self.start = unit, eps, gamma
        self.gamma = nn.Parameter(torch.empty(features, **where))
        self.beta = nn.Parameter(torch.empty(features, **where)) if beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gamma, self.start)
        if self.beta is not None:
            nn.init.zeros_(self.beta)

    def forward(self, x: Float[Tensor, "n f"], t: int, rows: Bool[Tensor, " n"] | None, columns: slice) -> Float[Tensor, "n f"]:
        whitened = F.layer_norm(x.unflatten(-1, (-1, self.unit)), (self.unit,), eps=self.eps).flatten(-2)
        return self.scaled(whitened, columns)

    def scaled(self, whitened: Tensor, columns: slice) -> Tensor:
        y = whitened * self.gamma[columns]
        return y if self.beta is None else y + self.beta[columns]


class StepBatchNorm(StepLayerNorm):
    """Batch norm of one step with statistics of its own for every step up to a maximum; gamma and beta are shared over time.

    In training, and while ``estimating``, it uses the minibatch and keeps population estimates; otherwise the population, unless
    ``population`` is False. A step beyond those seen uses the last that was.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, spec: Norm, features: int, unit: int, gamma: float, beta: bool, **where: Any) -> None:
        self.max_steps, self.momentum, self.padding = spec.max_steps, spec.momentum, spec.padding
        super().__init__(features, unit, gamma, beta, spec.eps, **where)
        self.population, self.estimating = True, False
        self.register_buffer("mean", torch.zeros(spec.max_steps, features, **where))
        self.register_buffer("var", torch.ones(spec.max_steps, features, **where))
        self.register_buffer("count", torch.zeros(spec.max_steps, dtype=torch.long, device=where.get("device")))

    def forward(self, x: Float[Tensor, "n f"], t: int, rows: Bool[Tensor, " n"] | None, columns: slice) -> Float[Tensor, "n f"]:
        if x.shape[0] == 0:  # nothing to learn from, nothing to normalise
            return x
        if self.training or self.estimating or not self.population:
            mean, var = batch_statistics(x, None if self.padding else rows)
            if self.training or self.estimating:
                self.remember(mean, var, t, columns)
        else:
            mean, var = self.recall(t, columns)
        return self.scaled((x - mean) * torch.rsqrt(var + self.eps), columns)

    @torch.no_grad()
    def remember(self, mean: Tensor, var: Tensor, t: int, columns: slice) -> None:
        if t >= self.max_steps:
            return
        if columns.start == 0:  # a GRU comes here twice a step, with its shared gates first
            self.count[t] += 1
        weight = self.count[t].to(mean.dtype).reciprocal() if self.momentum is None else self.momentum
        self.mean[t, columns] += weight * (mean - self.mean[t, columns])
        self.var[t, columns] += weight * (var - self.var[t, columns])

    def recall(self, t: int, columns: slice) -> tuple[Tensor, Tensor]:
        last = (self.count > 0).sum().sub(1).clamp(min=0, max=t).view(1)
        mean, var = (table.index_select(0, last).squeeze(0)[columns] for table in (self.mean, self.var))
        return mean, var

    def forget(self) -> None:
        """Drop the population estimates."""
        self.mean.zero_()
        self.var.fill_(1.0)
        self.count.zero_()


def batch_statistics(x: Float[Tensor, "n f"], rows: Bool[Tensor, " n"] | None) -> tuple[Float[Tensor, " f"], Float[Tensor, " f"]]:
    """Mean and biased variance over the batch, of the given rows alone if there are any."""
    if rows is None:
        return x.mean(0), x.var(0, unbiased=False)
    weight = rows.to(x.dtype).unsqueeze(-1)
    total = weight.sum().clamp(min=1)
    mean = (weight * x).sum(0) / total
    return mean, (weight * (x - mean) ** 2).sum(0) / total


class RecurrentNorm(nn.Module):
    """The normalisers of one direction of one layer, in the places ``spec`` names."""

    def __init__(self, spec: Norm, features: int, hidden_size: int, has_cell: bool, **where: Any) -> None:
        super().__init__()
        gamma = spec.gamma if spec.gamma is not None else (0.1 if spec.kind == "batch" else 1.0)

        def make(wanted: bool, size: int, beta: bool = False) -> StepLayerNorm | None:
            if not wanted:
                return None
            if spec.kind == "batch":
                return StepBatchNorm(spec, size, hidden_size, gamma, beta, **where)
            return StepLayerNorm(size, hidden_size, gamma, beta, spec.eps, **where)

        self.wx = make(spec.place == "flows", features)
        self.uh = make(spec.place == "flows", features)
        self.total = make(spec.place == "sum", features)
        self.c = make(spec.cell and has_cell, hidden_size, beta=True)
        self.timeless = spec.kind == "layer"

    def reset_parameters(self) -> None:
        """Scales, shifts and, for batch norm, statistics as at the beginning."""
        for place in self.children():
            assert isinstance(place, StepLayerNorm)
            place.reset_parameters()
            if isinstance(place, StepBatchNorm):
                place.forget()


def _batch_norms(model: nn.Module) -> list[StepBatchNorm]:
    return [m for m in model.modules() if isinstance(m, StepBatchNorm)]


def use_statistics(model: nn.Module, which: Literal["population", "batch"]) -> None:
    """Choose what the recurrent batch norms of ``model`` use in evaluation mode."""
    if which not in ("population", "batch"):
        raise ValueError(f"Unknown statistics {which!r}. Select from 'population' or 'batch'.")
    for norm in _batch_norms(model):
        norm.population = which == "population"


@contextmanager
def estimating_population(model: nn.Module) -> Iterator[None]:
    """Forget the population estimates and average those of every batch run inside, each with the same weight.

    Run the training set through ``model.eval()`` within this context after training, as Cooijmans et al. did.
    """
    norms = _batch_norms(model)
    if not norms:
        raise ValueError(f"{type(model).__name__} has no recurrent batch norm to estimate; build its layers with norm='batch'")
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.forget()
        norm.momentum, norm.estimating = None, True
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum, norm.estimating = momentum, False


def is_weight(name: str, parameter: Tensor) -> bool:
    """A weight matrix, not a bias or an MI vector."""
    return name.rpartition(".")[2].startswith("weight") and parameter.dim() >= 2


@functools.cache  # one class for all contexts: a compiled model has one more graph, for modules of this type
def _disturbed(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A module's class whose forward finds disturbed weights under these names: parameters() and state_dict() look elsewhere."""

    def reading(name: str) -> property:
        def read(module: Any) -> Any:
            parameter = module._parameters[name]
            clean, noise, noisy = module._multint_noise[name]
            if parameter is clean and not torch.compiler.is_compiling():
                return noisy  # added once
            return parameter + noise  # functional_call has put another in its place, say

        return property(read)

    def refuse(module: nn.Module, protocol: Any) -> Any:  # a copy would keep the noise
        raise RuntimeError("weight_noise is active: leave it before copying or saving the module; its state_dict() is clean inside")

    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__reduce_ex__": refuse}
    return type(kind.__name__, (kind,), body | {name: reading(name) for name in names})


@contextmanager
def weight_noise(
    model: nn.Module,
    sigma: float,
    *,
    pick: Callable[[str, Tensor], bool] = is_weight,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """Within the context every weight of ``model`` is w + N(0, sigma²), one draw for the whole context: enter it once per update.

    Gradients reach the clean parameters, which the optimiser, ``parameters()`` and ``state_dict()`` see all along, inside too; the
    module itself can be neither copied nor pickled there. ``pick`` says which parameters are disturbed, by name and value; by
    default weight matrices alone, not biases or MI vectors. Weights that modules share get the same noise. What is checkpointed
    inside runs its forward pass again in ``backward()``, which then belongs inside too.

    >>> layer = nn.Linear(3, 2)
    >>> with weight_noise(layer, sigma=0.05):
    ...     loss = layer(torch.ones(3)).sum()
    >>> loss.backward()
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"weight_noise: sigma must be a finite number of at least 0, got {sigma}")
    drawn: dict[nn.Parameter, tuple[Tensor, Tensor, Tensor]] = {}  # one draw for a weight, however many modules share it
    found: dict[nn.Module, dict[str, tuple[Tensor, Tensor, Tensor]]] = {}
    for path, module, name, parameter in _picked(model, pick):
        if "_multint_noise" in vars(module):
            raise ValueError(f"weight_noise is already active on {path}; leave the outer context first")
        if parameter not in drawn:
            noise = sigma * torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
            drawn[parameter] = parameter, noise, parameter + noise
        found.setdefault(module, {})[name] = drawn[parameter]
    kinds = {module: type(module) for module in found}
    try:
        for module, noises in found.items():
            vars(module)["_multint_noise"] = noises
            module.__class__ = _disturbed(kinds[module], tuple(noises))  # type: ignore[arg-type]  # a class has a hash
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind
            vars(module).pop("_multint_noise", None)


def _picked(model: nn.Module, pick: Callable[[str, Tensor], bool]) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Every parameter to be disturbed, with its path, module and name."""
    for prefix, module in model.named_modules():
        for name in getattr(module, "parametrizations", ()):
            if pick(f"{prefix}.{name}", getattr(module, name)):
                raise ValueError(
                    f"weight_noise cannot disturb {prefix}.{name}: it is parametrised; remove the parametrisation or pass pick="
                )
        for name, parameter in module._parameters.items():
            if parameter is not None and pick(f"{prefix}.{name}", parameter):
                yield f"{prefix}.{name}".lstrip("."), module, name, parameter


def zoneout_share(p: float, shape: tuple[int, ...], like: Tensor, training: bool) -> Tensor | None:
    """The share of the old state kept at each step (Krueger et al.): 0 or 1 at random in training, p on average afterwards."""
    if p == 0:
        return None
    if not training:
        return like.new_full((1, 1, 1), p)
    return torch.bernoulli(like.new_full(shape, p))


def dropout_mask(p: float, shape: tuple[int, ...], like: Tensor, training: bool) -> Tensor | None:
    """Recurrent dropout (Gal & Ghahramani): one mask for all steps of a sequence, scaled to keep the mean."""
    if p == 0 or not training:
        return None
    return F.dropout(like.new_ones(shape), p)
