"""What can be seen in a layer? (§2.2, §3.1)

How gradients travel back (``gradient_norms``, Fig. 1a; ``jacobian_product``, Eq. 5-6), how far activations are from saturation
(``saturation``, ``histogram``, Fig. 1c-d), and how large the two flows are (``flow_norms``, §3.1's scaling problem). A probe leaves
parameters, their gradients and the training mode as they are; it runs the layer in the mode it is in, so call ``eval()`` first
where dropout or zoneout should not act.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint.convert import convert
from multint.layers import INTEGERS, MIGRU, MILSTM, MIRNN, Hidden, _Layer
from multint.scan import Problem, Result
from multint.shapes import Float, Integer

T = TypeVar("T")

# ---- gradients through time (Fig. 1a) ----


@dataclass(frozen=True)
class GradientNorms:
    """``norms[k, j]`` is the L2 norm of dC/dh at step ``at[k]`` for example j; the averages of it, since the paper does not say."""

    at: tuple[int, ...]
    norms: Float[Tensor, "k n"]

    @property
    def mean_log(self) -> Float[Tensor, " k"]:
        """Mean over examples of the natural logarithm; -inf where an example has no gradient at all."""
        return self.norms.log().mean(-1)

    @property
    def log_mean(self) -> Float[Tensor, " k"]:
        """Natural logarithm of the mean over examples."""
        return self.norms.mean(-1).log()


def gradient_norms(
    layer: nn.Module,
    input: Tensor,
    cost: Callable[[Tensor], Tensor],
    at: Sequence[int] = (0, 1, 5, 10),
    hx: Hidden | None = None,
    *,
    depth: int = -1,
) -> GradientNorms:
    r""":math:`\|\partial C/\partial h_t\|_2` for every example, C's total derivative through all later steps (§3.1).

    Works on any unidirectional layer that is called as torch.nn's are: the sequence is cut at the chosen steps and the parts are
    called one after the other. Where the state has other parts at t (c of an LSTM, other layers), they are held fixed.

    Args:
        layer: of torch.nn, of multint, or another with their call form.
        input: features or tokens in the layer's own layout, batched or not; not packed.
        cost: C from the outputs of all steps, as the layer would return them: one value for each example, or their sum.
        at: steps, 0 for the initial state, 1 for the state after the first step.
        hx: as for the layer.
        depth: which layer's h, of a stack.

    >>> import torch
    >>> from multint import MIRNN
    >>> found = gradient_norms(MIRNN(50, 8), torch.randint(50, (20, 3)), lambda outputs: outputs[-1].square().sum(-1))
    >>> found.norms.shape
    torch.Size([4, 3])
    """
    steps = _check(layer, input)
    cuts = sorted(set(at))
    if not cuts or cuts[0] < 0 or cuts[-1] > steps:
        raise ValueError(f"at must name steps from 0, the initial state, to {steps}, the last; got {list(at)}")
    with _differentiable(layer):
        states, outputs = _chained(layer, input, _first(layer, input, hx), cuts)
        values = cost(outputs)
        _check_cost(values, states[cuts[0]])
        hs = [states[t] for t in cuts]
        found = torch.autograd.grad(values.sum(), hs, allow_unused=True, materialize_grads=True)
    # in float64: the squares of what has vanished over many steps would be zero
    wide = (_level(g.unbind(), depth).double() for g in found)
    norms = {t: torch.linalg.vector_norm(g, dim=-1).reshape(-1) for t, g in zip(cuts, wide, strict=True)}
    return GradientNorms(tuple(at), torch.stack([norms[t] for t in at]).to(hs[0].dtype))


def _check(layer: nn.Module, input: Any) -> int:
    """Number of steps of an input that may be cut in time."""
    name = type(layer).__name__
    if not isinstance(input, Tensor):
        raise TypeError(f"probes take the padded tensor of a batch, got {type(input).__name__}; see pad_packed_sequence")
    if getattr(layer, "bidirectional", False):
        raise ValueError(f"{name} is bidirectional: its h_t depends on later steps, so that dC/dh_t is not carried by h_t alone")
    if layer.training and getattr(layer, "recurrent_dropout", False):
        raise ValueError(f"{name} in training mode draws a dropout mask for every piece of a cut sequence; call eval() first")
    norm = getattr(layer, "norm", None)
    if getattr(norm, "kind", None) == "batch":
        raise ValueError(f"{name} has recurrent batch norm with statistics for every step, so it cannot be cut in time")
    return input.shape[_time(layer, input)]


def _time(layer: nn.Module, input: Tensor) -> int:
    """The axis of time, of the input and of the outputs."""
    batched = input.dim() == (2 if input.dtype in INTEGERS else 3)
    return 1 if batched and getattr(layer, "batch_first", False) else 0


def _check_cost(values: Tensor, h: Tensor) -> None:
    n = h[0].numel() // h.shape[-1]
    if not isinstance(values, Tensor) or tuple(values.shape) not in ((), (n,)):
        what = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"cost must give one value for each of {n} examples, or their sum as a scalar; got {what}")
    if not values.requires_grad:
        raise ValueError("cost does not depend on the outputs: nothing to differentiate")


@contextmanager
def _differentiable(layer: nn.Module) -> Iterator[None]:
    """Gradients on; cuDNN off in evaluation mode, where its recurrent layers have no backward pass."""
    with torch.enable_grad(), nullcontext() if layer.training else torch.backends.cudnn.flags(enabled=False):
        yield


def _same_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn inside is not missed afterwards."""
    kind = device.type
    return torch.random.fork_rng([] if kind == "cpu" else [device], device_type="cuda" if kind == "cpu" else kind)


def _parts(hx: Any) -> tuple[Tensor, ...]:
    return tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)


def _first(layer: nn.Module, input: Tensor, hx: Hidden | None) -> tuple[Tensor, ...]:
    """The initial state as leaves that ask for gradients: hx, the learned state, or zeros."""
    return tuple(part.detach().clone().requires_grad_() for part in (_fresh(layer, input) if hx is None else _parts(hx)))


@torch.no_grad()
def _fresh(layer: nn.Module, input: Tensor) -> list[Tensor]:
    with _same_random_numbers(input.device):  # one step tells the shape of the state
        _, after = layer(input.narrow(_time(layer, input), 0, 1))
    zeros = [torch.zeros_like(part) for part in _parts(after)]
    if not isinstance(layer, _Layer) or not layer.learn_state:
        return zeros
    learned = [layer.get_parameter(name) for name in ("h0", "c0")[: len(zeros)]]
    return [zero + (h if zero.dim() == 2 else h.unsqueeze(1)) for h, zero in zip(learned, zeros, strict=True)]


def _chained(layer: nn.Module, input: Tensor, state: tuple[Tensor, ...], cuts: Sequence[int]) -> tuple[dict[int, Tensor], Tensor]:
    """h (layers, n, size) at every cut, and the outputs of all steps, which run through those very tensors."""
    axis = _time(layer, input)
    states, parts, done = {0: state[0]}, [], 0
    for t in sorted({*cuts, input.shape[axis]} - {0}):
        outputs, after = layer(input.narrow(axis, done, t - done), state if len(state) > 1 else state[0])
        state = _parts(after)
        last = state[0][-1]
        if torch.equal(outputs.select(axis, -1), last):
            # seen by the cost, the last output must be the tensor that is differentiated
            outputs = torch.cat([outputs.narrow(axis, 0, t - done - 1), last.unsqueeze(axis)], axis)
        parts.append(outputs)
        states[t], done = state[0], t
    return states, torch.cat(parts, axis)


def _level(h: Sequence[T], depth: int) -> T:
    if not -len(h) <= depth < len(h):
        raise IndexError(f"depth {depth} is outside a stack of {len(h)} layers")
    return h[depth]


# ---- Jacobians (§2.2) ----


def jacobian_product(
    layer: nn.Module, input: Tensor, hx: Hidden | None = None, *, t: int | None = None, n: int | None = None, depth: int = -1
) -> Float[Tensor, "batch m m"]:
    r""":math:`\partial h_t/\partial h_{t-n}` of an RNN in closed form (Eq. 5, Eq. 6 and its footnote), for every example:

    .. math:: \prod_{k=t-n+1}^{t} U^\top\,\mathrm{diag}(\alpha\odot Wx_k+\beta_1)\,\mathrm{diag}(\phi'_k)

    with :math:`Wx_k` in the middle for Eq. 2 and nothing there for Eq. 1. This is the paper's layout: factors from left to right in
    the order of time, and entry (i, j) is the derivative of :math:`h_{t,j}` by :math:`h_{t-n,i}`, the transpose of the usual one.

    Args:
        layer: an ``MIRNN`` of any form and nonlinearity, or ``nn.RNN``; other layers have :func:`jacobian`.
        input, hx: as for the layer, not packed.
        t: the later step. Default: the last.
        n: how many steps back. Default: t, to the initial state.
        depth: which layer of a stack.

    >>> import torch
    >>> from torch import nn
    >>> jacobian_product(nn.RNN(5, 7), torch.randn(20, 3, 5), n=4).shape
    torch.Size([3, 7, 7])
    """
    ours = _ours(layer) if isinstance(layer, nn.RNN) else layer
    _check_closed(ours)
    t, n = _span(_check(layer, input), t, n)
    _, p, (h, _) = _level(_passes(ours, input, hx), depth)
    with torch.no_grad():
        factors = _gate(p) * PHI_PRIME[p.phi](h)  # [t, n, m]
        product = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device).expand(h.shape[1], -1, -1)
        for k in range(t - n, t):
            product = product @ (p.u.t().to(h.dtype) * factors[k].unsqueeze(-2))
    return product


def _gate(p: Problem) -> Float[Tensor, "t n m"]:
    """What stands between U^T and phi' in Eq. 5 (nothing), Eq. 6, and for Eq. 3 and 4 as the footnote to Eq. 6 has it."""
    wx, v = p.flow(), p.vectors
    if p.form == "additive":
        return torch.ones_like(wx)
    if p.form == "simple":
        return wx
    assert v.beta1 is not None
    return wx + v.beta1 if v.alpha is None else v.alpha * wx + v.beta1


# phi' from phi's value
PHI_PRIME: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda h: 1 - h * h,
    "relu": lambda h: (h > 0).to(h.dtype),
    "identity": torch.ones_like,
}


def _check_closed(layer: nn.Module) -> None:
    if not isinstance(layer, MIRNN):
        raise TypeError(f"Eq. 5 and 6 are for MIRNN and nn.RNN, got {type(layer).__name__}; jacobian() takes any layer")
    if layer.norm is not None or any(layer.zoneout) or (layer.training and layer.recurrent_dropout):
        raise ValueError("Eq. 5 and 6 know no norm, zoneout or recurrent dropout; jacobian() differentiates what the layer does")


def _span(steps: int, t: int | None, n: int | None) -> tuple[int, int]:
    t = steps if t is None else t
    n = t if n is None else n
    if not 0 <= t <= steps or not 0 <= n <= t:
        raise ValueError(f"of {steps} steps, t must lie in 0 to {steps} and n in 0 to t; got t={t} and n={n}")
    return t, n


def jacobian(
    layer: nn.Module, input: Tensor, hx: Hidden | None = None, *, t: int | None = None, n: int | None = None, depth: int = -1
) -> Float[Tensor, "batch m m"]:
    r""":math:`\partial h_t/\partial h_{t-n}` by automatic differentiation; arguments and layout of :func:`jacobian_product`.

    Takes every layer ``gradient_norms`` takes. Other parts of the state at t-n (c of an LSTM, other layers) are held fixed. It
    costs a backward pass for each unit.
    """
    t, n = _span(_check(layer, input), t, n)
    input = input.narrow(_time(layer, input), 0, max(t, 1))
    with _differentiable(layer):
        states, _ = _chained(layer, input, _first(layer, input, hx), (t - n, t))
        top, bottom = _level(states[t].unbind(), depth), states[t - n]
        units = [torch.autograd.grad(unit.sum(), bottom, retain_graph=True)[0] for unit in top.unbind(-1)]
    return torch.stack([unit[depth].reshape(-1, unit.shape[-1]) for unit in units], -1)


# ---- activations (Fig. 1c-d) ----


def saturation(h: Float[Tensor, "t n h"], edge: float = 0.9) -> float:
    """Share of hidden activations with |h| > edge (the mass at the ends of Fig. 1c-d)."""
    return _share(h.abs() > edge)


def _share(which: Tensor) -> float:
    return int(which.count_nonzero()) / max(which.numel(), 1)


@dataclass(frozen=True)
class Histogram:
    """Counts of activations between neighbouring ``edges``. Histograms of several batches add up: ``sum(parts[1:], parts[0])``."""

    edges: Float[Tensor, " bins_and_1"]
    counts: Integer[Tensor, " bins"]
    saturated: float  # share of |h| > 0.9
    near_zero: float  # share of |h| < 0.1

    def __add__(self, other: "Histogram") -> "Histogram":
        if not torch.equal(self.edges, other.edges):
            raise ValueError(f"histograms of {len(self.counts)} and {len(other.counts)} bins with unequal edges do not add up")
        a, b = int(self.counts.sum()), int(other.counts.sum())
        total = max(a + b, 1)
        saturated = (a * self.saturated + b * other.saturated) / total
        near_zero = (a * self.near_zero + b * other.near_zero) / total
        return Histogram(self.edges, self.counts + other.counts, saturated, near_zero)


def histogram(h: Float[Tensor, "*any"], bins: int = 200, reach: float = 1.0) -> Histogram:
    """Histogram of hidden activations on [-reach, reach] as in Fig. 1c-d, with the shares of |h| > 0.9 and |h| < 0.1.

    >>> import torch
    >>> histogram(torch.tensor([-1.0, 0.0, 0.05, 0.95]), bins=4).counts.tolist()
    [1, 0, 2, 1]
    """
    if bins < 1 or not reach > 0:
        raise ValueError(f"bins and reach must be greater than zero, got {bins} and {reach}")
    size = h.detach().abs()
    top = size.max().item() if h.numel() else 0.0
    if not top <= reach:
        raise ValueError(f"activations up to |h| = {top:g} lie outside [-{reach:g}, {reach:g}]; pass a larger reach")
    edges = torch.linspace(-reach, reach, bins + 1, dtype=torch.float64)
    place = ((h.detach().double() + reach) * (bins / (2 * reach))).long().clamp(max=bins - 1)  # reach itself ends the last bin
    counts = torch.bincount(place.flatten(), minlength=bins).cpu()
    return Histogram(edges, counts, _share(size > 0.9), _share(size < 0.1))


# ---- the two flows (§3.1, scaling problem) ----


class FlowNorms(NamedTuple):
    """L2 norms of the flows into each gate of one layer and direction, in the order of the input's steps."""

    name: str  # "l0", "l0_reverse", "l1", ...
    gates: tuple[str, ...]
    wx: Float[Tensor, "t n g"]
    uh: Float[Tensor, "t n g"]


@torch.no_grad()
def flow_norms(layer: nn.Module, input: Tensor, hx: Hidden | None = None) -> list[FlowNorms]:
    r""":math:`\|Wx_k\|` and :math:`\|Uh_{k-1}\|` at every step, for every layer and direction.

    Biases and the MI vectors are left out, as in the paper. A GRU's candidate is measured with h before the reset.

    Args:
        layer: of multint, or nn.RNN, nn.LSTM, nn.GRU.
        input, hx: as for the layer, not packed.

    >>> import torch
    >>> from torch import nn
    >>> [flow.name for flow in flow_norms(nn.LSTM(5, 7, bidirectional=True), torch.randn(20, 3, 5))]
    ['l0', 'l0_reverse']
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"probes take the padded tensor of a batch, got {type(input).__name__}; see pad_packed_sequence")
    ours = _ours(layer) if isinstance(layer, nn.RNNBase) else layer
    if not isinstance(ours, (MIRNN, MILSTM, MIGRU)):
        raise TypeError(f"flow_norms reads W and U of MIRNN, MILSTM, MIGRU, nn.RNN, nn.LSTM, nn.GRU; got {type(layer).__name__}")
    return [_norms(one) for one in _passes(ours, input, hx)]


def _ours(layer: nn.Module) -> nn.Module:
    with _same_random_numbers(next(layer.parameters()).device):  # the twin draws parameters before it is given the layer's
        return convert(layer)


class _Pass(NamedTuple):
    """One direction of one layer: what went into ``scan`` and what came out."""

    suffix: str
    problem: Problem
    result: Result


@torch.no_grad()
def _passes(layer: nn.Module, input: Tensor, hx: Hidden | None) -> list[_Pass]:
    """Every direction of a layer of ours along the input, layer-major."""
    assert isinstance(layer, (MIRNN, MILSTM, MIGRU))
    if layer.training and layer.norm is not None and layer.norm.kind == "batch":
        raise ValueError(f"{type(layer).__name__} in training mode would update its batch statistics; call eval() first")
    seen: list[_Pass] = []

    def carry(suffix: str, x: Tensor, state: Any, **more: Any) -> Result:
        result = layer._carry(suffix, x, state, **more)
        seen.append(_Pass(suffix, layer._problem(suffix, x, state, **more), result))
        return result

    twin = copy.copy(layer)  # shares the parameters; the layer itself is not touched
    vars(twin)["_carry"] = carry
    twin(input, hx)
    order = [suffix for _, suffix in layer._directions()]
    return sorted(seen, key=lambda one: order.index(one.suffix))  # on a GPU the second direction is read first


def _norms(one: _Pass) -> FlowNorms:
    p, reverse = one.problem, one.suffix.endswith("_reverse")
    before = torch.cat([p.state.h.unsqueeze(0), one.result.outputs[:-1]])
    flows = [p.flow(), F.linear(before.to(p.u.dtype), p.u)]
    sizes = [torch.linalg.vector_norm(x.unflatten(-1, (len(p.cell.gates), -1)), dim=-1) for x in flows]
    wx, uh = (x.flip(0) if reverse else x for x in sizes)
    return FlowNorms(one.suffix.lstrip("_"), p.cell.gates, wx, uh)
