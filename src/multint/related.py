"""Which earlier models are MI in disguise, and which are its kin? (§4)

The HMM's forward algorithm is an MI-RNN (``hmm_layer``); the second-order RNN and the multiplicative RNN contain every MI-RNN
(``to_second_order``, ``to_multiplicative``); the multiplicative LSTM and the Mogrifier LSTM are its younger siblings. The layers
are called as torch.nn's are.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from multint import cells
from multint.cells import Cell, State
from multint.integration import Vectors, as_general, simple
from multint.layers import INTEGERS, MIRNN, _among, _flag, _Layer, _positive
from multint.scan import PHI, Result, borrow
from multint.scan.reference import NONLINEARITIES, TensorMaths, walk
from multint.shapes import Float, Integer
from multint.start import Start

Step = Callable[[int, State, Tensor | None], State]

# ---- hidden Markov models (§4.1) ----


def hmm_layer(
    transition: Float[Tensor, "m from"],
    emission: Float[Tensor, "states n"],
    *,
    initial: Float[Tensor, " k"] | None = None,
    pi: Float[Tensor, " k"] | None = None,
) -> MIRNN:
    r"""The MI-RNN that is a hidden Markov model's forward algorithm: :math:`h_t = Wx_t \odot Uh_{t-1} = P(x_1,\dots,x_t,h_t)`.

    Called on integer tokens (t, n) it returns the forward variables of every step. The paper prints the indices of W the other way
    round, which does not fit its shape (docs/errata.md).

    Args:
        transition: U, (m, m), :math:`U_{ij} = P(h_{t+1}=i \mid h_t=j)`: columns sum to 1.
        emission: W, (m, n), :math:`W_{ij} = P(x_t=j \mid h_t=i)`: rows sum to 1.
        initial: the paper's :math:`P(h_0)`, before the transition that precedes the first emission. It becomes the layer's ``h0``;
            without it the layer wants ``hx``.
        pi: the textbook's :math:`P(h_1)`, at the first emission. It becomes the way out of one more state, the last, in which the
            layer begins and to which nothing returns.

    >>> import torch
    >>> u, w = torch.tensor([[0.9, 0.2], [0.1, 0.8]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> layer = hmm_layer(u, w, pi=torch.tensor([0.3, 0.7]))
    >>> hmm_log_likelihood(layer, torch.tensor([0])).exp()  # 0.3·0.5 + 0.7·1.0
    tensor(0.8500, grad_fn=<ExpBackward0>)
    """
    m = _check_matrices(transition, emission)
    if initial is not None and pi is not None:
        raise ValueError(
            "hmm_layer takes initial, the law before the first transition, or pi, that at the first emission, not both"
        )
    for name, law in (("initial", initial), ("pi", pi)):
        if law is not None:
            _check_law(name, law, m)
    if pi is not None:
        transition, emission, initial = _with_beginning(transition, emission, pi)
    m, n = emission.shape
    layer = MIRNN(n, m, nonlinearity="identity", bias=False, integration="simple", learn_state=initial is not None).to(transition)
    values = {"weight_ih_l0": emission, "weight_hh_l0": transition} | ({} if initial is None else {"h0": initial.unsqueeze(0)})
    layer.load_state_dict(values)
    return layer


def _with_beginning(u: Tensor, w: Tensor, pi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, W and h_0 with one more state that begins every sequence. It emits nothing: a transition comes first."""
    m, n = w.shape
    u = F.pad(torch.cat([u, pi.to(u).unsqueeze(1)], 1), (0, 0, 0, 1))
    return u, torch.cat([w, w.new_full((1, n), 1 / n)]), F.one_hot(torch.tensor(m), m + 1).to(u)


def _check_matrices(u: Tensor, w: Tensor) -> int:
    """The number of states, once U and W are seen to be stochastic."""
    if u.dim() != 2 or u.shape[0] != u.shape[1]:
        raise ValueError(f"transition must be a square matrix (m, m), got shape {tuple(u.shape)}")
    m = u.shape[0]
    if w.dim() != 2 or w.shape[0] != m:
        raise ValueError(f"emission must have a row for each of the {m} states of transition, got shape {tuple(w.shape)}")
    _check_stochastic("transition", u.t(), "column")
    _check_stochastic("emission", w, "row")
    return m


def _check_law(name: str, law: Tensor, m: int) -> None:
    if tuple(law.shape) != (m,):
        raise ValueError(f"{name} must give a probability for each of {m} states, got shape {tuple(law.shape)}")
    _check_stochastic(name, law.reshape(-1, m), "row")


def _check_stochastic(name: str, rows: Tensor, word: str) -> None:
    if not rows.is_floating_point():
        raise TypeError(f"{name} holds probabilities and must have a floating point dtype, got {rows.dtype}")
    sums, least = rows.detach().sum(-1), rows.detach().amin(-1)
    negative, far = least < 0, ~((sums - 1).abs() <= torch.finfo(rows.dtype).eps ** 0.5)  # NaN is far from 1 too
    if negative.any():
        k = int(negative.nonzero()[0])
        raise ValueError(f"{name} holds probabilities, but {word} {k} has the negative entry {least[k].item():g}")
    if far.any():
        k = int(far.nonzero()[0])
        raise ValueError(f"every {word} of {name} must sum to 1, but {word} {k} sums to {sums[k].item():.10g}")


class Forward(NamedTuple):
    """What the forward algorithm gives for every step.

    ``h`` is the forward variable :math:`P(x_1..x_t, h_t)` in mode plain, its logarithm in mode log, and in mode scaled the law
    :math:`P(h_t | x_1..x_t)`. ``log_likelihood`` is :math:`\\log P(x_1..x_t)`; its last row is the sequence's.
    """

    h: Float[Tensor, "t n m"]
    log_likelihood: Float[Tensor, "t n"]


def hmm_forward(
    layer: MIRNN, tokens: Integer[Tensor, "*tn"], initial: Float[Tensor, "*rows m"] | None = None, mode: str = "scaled"
) -> Forward:
    """The forward algorithm along tokens (t, n) or (t,), differentiable in every mode.

    Args:
        layer: what ``hmm_layer`` gives. Its values are not checked again, so it may be trained.
        tokens: observed symbols.
        initial: the law before the first transition, (m,) or (n, m). Default: the layer's ``h0``.
        mode: ``"plain"`` calls the layer itself and underflows to log P = -inf (float32: after some 40 steps of 10 symbols).
            ``"scaled"`` divides by :math:`c_t = \\sum_i h_{t,i}` at every step, so that log P is the sum of log c. ``"log"`` never
            leaves logarithms: m times the memory, but states of any improbability stay alive. At entries of U and W that are zero
            it gives the gradient 0, the other two the true one.
    """
    _check_hmm(layer)
    run = MODES[_among("mode", mode, tuple(MODES))]
    if tokens.dim() not in (1, 2) or tokens.dtype not in INTEGERS:
        raise ValueError(f"an HMM observes integer tokens (t, n) or (t,), got {tokens.dtype} of shape {tuple(tokens.shape)}")
    if tokens.shape[0] == 0:
        raise ValueError(f"an HMM observes at least one token, got shape {tuple(tokens.shape)}")
    batch = tokens if tokens.dim() == 2 else tokens.unsqueeze(1)
    try:
        h, log_likelihood = run(layer, batch.long(), _initial(layer, initial, batch.shape[1]))
    except IndexError as error:
        raise layer._out_of_range(tokens) from error
    return Forward(h, log_likelihood) if tokens.dim() == 2 else Forward(h.squeeze(1), log_likelihood.squeeze(1))


def hmm_log_likelihood(
    layer: MIRNN,
    tokens: Integer[Tensor, "*tn"],
    initial: Float[Tensor, "*rows m"] | None = None,
    mode: str = "scaled",
    lengths: Integer[Tensor, " n"] | None = None,
) -> Float[Tensor, "*rows"]:
    r"""log P of every sequence; arguments as in :func:`hmm_forward`, and ``lengths`` where sequences are padded.

    Its gradients are Baum-Welch's counts: :math:`U_{ij}\,\partial\log P/\partial U_{ij}` is the expected number of transitions
    from j to i given the sequence, and so for W and emissions.
    """
    steps = hmm_forward(layer, tokens, initial, mode).log_likelihood
    if lengths is None:
        return steps[-1]
    if steps.dim() != 2 or lengths.shape != steps.shape[1:] or not bool(((lengths > 0) & (lengths <= steps.shape[0])).all()):
        raise ValueError(f"lengths must give 1 to {steps.shape[0]} steps for each column of tokens, got {lengths.tolist()}")
    return steps.gather(0, lengths.long().unsqueeze(0) - 1).squeeze(0)


def _check_hmm(layer: MIRNN) -> None:
    wanted = {"integration": "simple", "nonlinearity": "identity", "bias": False, "num_layers": 1, "bidirectional": False}
    wanted |= {"batch_first": False, "norm": None, "zoneout": (0.0,), "recurrent_dropout": 0.0}
    for name, value in wanted.items():
        if getattr(layer, name, None) != value:
            given = getattr(layer, name, f"a {type(layer).__name__}")
            raise ValueError(f"an HMM is an MIRNN with {name}={value!r}, got {given!r}; build it with hmm_layer")


def _initial(layer: MIRNN, initial: Tensor | None, n: int) -> Float[Tensor, "n m"]:
    m = layer.hidden_size
    if initial is None:
        if not layer.learn_state:
            raise ValueError("the layer holds no law to begin with: pass initial=, or build it with hmm_layer(..., initial=...)")
        initial = layer.get_parameter("h0")
    elif tuple(initial.shape) not in ((m,), (n, m)):
        raise ValueError(f"initial must be of shape ({m},) or ({n}, {m}), got {tuple(initial.shape)}")
    return initial.to(layer._anchor).expand(n, m)


def _plain(layer: MIRNN, tokens: Tensor, h: Tensor) -> Forward:
    outputs, _ = layer(tokens, h.unsqueeze(0))
    return Forward(outputs, safe_log(outputs.sum(-1)))


def _scaled(layer: MIRNN, tokens: Tensor, h: Tensor) -> Forward:
    (w, u), laws, scales = layer.all_weights[0], [], []
    for wx in F.embedding(tokens, w.t()):
        h = simple(wx, F.linear(h, u))
        c = h.sum(-1, keepdim=True)
        h = h / torch.where(c > 0, c, 1)  # a sequence that cannot be keeps h = 0 and log c = -inf
        laws.append(h)
        scales.append(c.squeeze(-1))
    return Forward(torch.stack(laws), safe_log(torch.stack(scales)).cumsum(0))


def _logs(layer: MIRNN, tokens: Tensor, h: Tensor) -> Forward:
    log_w, log_u = (safe_log(weight) for weight in layer.all_weights[0])
    log_h, steps, tops = safe_log(h), [], []
    for log_wx in F.embedding(tokens, log_w.t()):
        log_h = log_wx + safe_logsumexp(log_u + log_h.unsqueeze(-2))
        top = _top(log_h)
        log_h = log_h - top  # near 0, where float32 is fine; the tops are added up apart
        steps.append(log_h)
        tops.append(top)
    logs = torch.stack(steps) + torch.stack(tops).cumsum(0)
    return Forward(logs, safe_logsumexp(logs))


MODES: dict[str, Callable[[MIRNN, Tensor, Tensor], Forward]] = {"plain": _plain, "scaled": _scaled, "log": _logs}


def safe_log(x: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """log x with gradient 0, not NaN, where x = 0."""
    return torch.where(x > 0, torch.where(x > 0, x, 1).log(), -torch.inf)


def safe_logsumexp(x: Float[Tensor, "*a m"]) -> Float[Tensor, "*a"]:
    """logsumexp over the last axis with gradient 0, not NaN, where all of it is -inf."""
    top = _top(x)
    return safe_log((x - top).exp().sum(-1)) + top.squeeze(-1)


def _top(x: Tensor) -> Tensor:
    """The largest value of the last axis, or 0 where all are -inf: a constant to subtract."""
    top = x.detach().amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0, top)


# ---- relatives of the MI-RNN and MI-LSTM (§4.2) ----

# what _Layer offers beyond torch.nn and the relatives do not
_WITHOUT: dict[str, Any] = {"integration": "general", "norm": None, "recurrent_dropout": 0.0, "recompute": False, "backend": "auto"}


class _Relative(_Layer):
    """A layer around a step of its own: subclasses name their parameters in ``_shapes`` and take steps in ``_steps``."""

    def _is_foreign(self, state: dict[str, Any], prefix: str, suffix: str, version: int | None) -> bool:
        """torch.nn has no layer that computes this: strict loading names the keys that differ."""
        return False

    def _carry(self, suffix: str, x: Tensor, state: State, **more: Any) -> Result:
        del more["drop"], more["norm"], more["fresh"], more["recompute"]  # the first two are always None: see _WITHOUT
        names = [name for name, _ in self._shapes(1)]
        weights = dict(zip(names, borrow([getattr(self, name + suffix) for name in names]), strict=True))
        try:
            return walk(x.shape[0], self._steps(weights, x), state, **more)
        except IndexError as error:
            if x.dtype not in INTEGERS:
                raise
            raise self._out_of_range(x) from error

    def _steps(self, w: dict[str, Tensor], x: Tensor) -> Step:
        """The step along x (t, n, features) or tokens (t, n), with one direction's parameters by name."""
        raise NotImplementedError

    def _advance(self, total: Tensor, s: State) -> State:
        """The cell's own equations on gates whose blocks are given."""
        return advance(self._cell, total, s, self.nonlinearity)


def _beyond(**values: tuple[Any, Any]) -> str:
    """For repr: the arguments, given as (value, usual value), that are not as usual."""
    return "".join(f", {name}={value!r}" for name, (value, usual) in values.items() if value != usual)


def advance(cell: Cell, total: Float[Tensor, "n gh"], s: State, phi: str) -> State:
    blocks = dict(zip(cell.gates, total.to(s.h.dtype).chunk(len(cell.gates), -1), strict=True))
    return cell.step(lambda gate, source, after=None: blocks[gate], s, TensorMaths(NONLINEARITIES[phi]))


def flow(x: Tensor, weight: Float[Tensor, "d features"], b: Float[Tensor, " d"] | None = None) -> Float[Tensor, "*t d"]:
    """W x + b for features (*t, features) or integer tokens (*t), whose W x is a row gather since x is one-hot."""
    if x.dtype not in INTEGERS:
        return F.linear(x, weight, b)
    wx = F.embedding(x.long(), weight.t())
    return wx if b is None else wx + b


class SecondOrderRNN(_Relative):
    r"""The second-order RNN (Goudreau et al., 1994), :math:`h_t = \phi(s_t + Wx_t + Uh_{t-1} + b)` with
    :math:`s_{t,i} = x_t^\top\mathcal{T}^{(i)}h_{t-1}`.

    Its tensor ``weight_t``, (hidden_size, input_size, hidden_size), has a full matrix for every unit; the MI-RNN is the case where
    each is :math:`\alpha_i w_i u_i^\top`, of rank 1 (:func:`to_second_order`).

    Args:
        input_size, ..., dtype: as in :class:`~multint.MIRNN`, and so start, zoneout, learn_state.
        first_order: keep W x + U h. Default: ``True``; ``False`` leaves :math:`\phi(s_t + b)`.

    Shapes:
        As in :class:`~multint.MIRNN`, tokens and ``resets`` included.

    >>> import torch
    >>> output, h_n = SecondOrderRNN(27, 16)(torch.randint(27, (7, 3)))
    >>> output.shape
    torch.Size([7, 3, 16])
    """

    _cell = cells.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        first_order: bool = True,
        start: Start | str | None = None,
        zoneout: float = 0.0,
        learn_state: bool = False,
    ) -> None:
        self.nonlinearity = _among("nonlinearity", nonlinearity, PHI)
        self.first_order = _flag("first_order", first_order)
        given: list[Any] = [input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype]
        super().__init__(*given, begin=start, zoneout=zoneout, learn_state=learn_state, **_WITHOUT)

    def extra_repr(self) -> str:
        return super().extra_repr() + _beyond(first_order=(self.first_order, True))

    def _shapes(self, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        h = self.hidden_size
        yield "weight_t", (h, input_size, h)
        if self.first_order:
            yield from {"weight_ih": (h, input_size), "weight_hh": (h, h)}.items()
        if self._has_bias:
            yield "bias", (h,)

    def _steps(self, w: dict[str, Tensor], x: Tensor) -> Step:
        second, b = self._second(w["weight_t"], x), w.get("bias")
        wx = flow(x, w["weight_ih"], b) if self.first_order else None

        def step(t: int, s: State, rows: Tensor | None) -> State:
            if wx is None:
                return self._advance(second(t, s.h) if b is None else second(t, s.h) + b, s)
            return self._advance(second(t, s.h) + wx[t] + F.linear(s.h, w["weight_hh"]), s)

        return step

    def _second(self, tensor: Tensor, x: Tensor) -> Callable[[int, Tensor], Tensor]:
        """s_t from t and h_{t-1}: for tokens the slice of T that the symbol picks, applied to h."""
        if x.dtype in INTEGERS:
            table = tensor.transpose(0, 1).flatten(1)  # [v, h*h]
            return lambda t, h: (F.embedding(x[t].long(), table).unflatten(-1, (-1, h.shape[-1])) @ h.unsqueeze(-1)).squeeze(-1)
        rows = tensor.flatten(0, 1)  # [h*features, h]
        return lambda t, h: (F.linear(h, rows).unflatten(-1, (-1, x.shape[-1])) @ x[t].unsqueeze(-1)).squeeze(-1)


class MultiplicativeRNN(_Relative):
    r"""The multiplicative RNN (Sutskever et al., 2011), :math:`h_t = \phi(W_{hf} f_t + W_{hx} x_t + b)` with
    :math:`f_t = W_{fx}x_t \odot W_{fh}h_{t-1}`.

    Parameters ``weight_fx``, ``weight_fh``, ``weight_hf``, and ``weight_ih`` for :math:`W_{hx}`. The MI-RNN is the case where
    :math:`W_{hf}` is diagonal and the product shares its matrices with the first-order terms (:func:`to_multiplicative`).

    Args:
        input_size, ..., dtype: as in :class:`~multint.MIRNN`, and so start, zoneout, learn_state.
        factors: size of f. Default: hidden_size.
        recurrent: add a first-order term ``weight_hh`` times :math:`h_{t-1}`, which the original lacks and MI has.

    Shapes:
        As in :class:`~multint.MIRNN`, tokens and ``resets`` included.

    >>> import torch
    >>> output, h_n = MultiplicativeRNN(86, 16, factors=12)(torch.randint(86, (7, 3)))
    >>> output.shape
    torch.Size([7, 3, 16])
    """

    _cell = cells.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        factors: int | None = None,
        recurrent: bool = False,
        start: Start | str | None = None,
        zoneout: float = 0.0,
        learn_state: bool = False,
    ) -> None:
        self.nonlinearity = _among("nonlinearity", nonlinearity, PHI)
        self.factors = hidden_size if factors is None else _positive("factors", factors)
        self.recurrent = _flag("recurrent", recurrent)
        given: list[Any] = [input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype]
        super().__init__(*given, begin=start, zoneout=zoneout, learn_state=learn_state, **_WITHOUT)

    def extra_repr(self) -> str:
        return super().extra_repr() + _beyond(factors=(self.factors, self.hidden_size), recurrent=(self.recurrent, False))

    def _shapes(self, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        h, f = self.hidden_size, self.factors
        yield from {"weight_ih": (h, input_size), "weight_fx": (f, input_size), "weight_fh": (f, h), "weight_hf": (h, f)}.items()
        if self.recurrent:
            yield "weight_hh", (h, h)
        if self._has_bias:
            yield "bias", (h,)

    def _steps(self, w: dict[str, Tensor], x: Tensor) -> Step:
        fx, wx = flow(x, w["weight_fx"]), flow(x, w["weight_ih"], w.get("bias"))

        def step(t: int, s: State, rows: Tensor | None) -> State:
            f = fx[t] * F.linear(s.h, w["weight_fh"])
            total = F.linear(f, w["weight_hf"]) + wx[t]
            return self._advance(total + F.linear(s.h, w["weight_hh"]) if self.recurrent else total, s)

        return step


class MultiplicativeLSTM(_Relative):
    r"""The multiplicative LSTM (Krause et al., 2016): an LSTM whose gates see :math:`m_t = W_{mx}x_t \odot W_{mh}h_{t-1}` in the
    place of :math:`h_{t-1}`.

    Parameters ``weight_mx``, ``weight_mh``, and the LSTM's ``weight_ih``, ``weight_hh`` (which multiplies m) and ``bias``, in
    PyTorch's gate order. h is :math:`o\odot\tanh(c)`; the preprint's first version had :math:`\tanh(o\odot c)`.

    Args:
        input_size, ..., dtype: as in ``torch.nn.LSTM`` without proj_size.
        start, zoneout, learn_state: as in :class:`~multint.MILSTM`.

    Shapes:
        As in :class:`~multint.MILSTM`, tokens and ``resets`` included.

    >>> import torch
    >>> output, (h_n, c_n) = MultiplicativeLSTM(27, 16)(torch.randint(27, (7, 3)))
    >>> output.shape
    torch.Size([7, 3, 16])
    """

    _cell = cells.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        start: Start | str | None = None,
        zoneout: float | tuple[float, float] = 0.0,
        learn_state: bool = False,
    ) -> None:
        given: list[Any] = [input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype]
        super().__init__(*given, begin=start, zoneout=zoneout, learn_state=learn_state, **_WITHOUT)

    def _shapes(self, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        h = self.hidden_size
        yield from {"weight_ih": (4 * h, input_size), "weight_hh": (4 * h, h)}.items()
        yield from {"weight_mx": (h, input_size), "weight_mh": (h, h)}.items()
        if self._has_bias:
            yield "bias", (4 * h,)

    def _steps(self, w: dict[str, Tensor], x: Tensor) -> Step:
        mx, wx = flow(x, w["weight_mx"]), flow(x, w["weight_ih"], w.get("bias"))

        def step(t: int, s: State, rows: Tensor | None) -> State:
            m = mx[t] * F.linear(s.h, w["weight_mh"])
            return self._advance(wx[t] + F.linear(m, w["weight_hh"]), s)

        return step


class MogrifierLSTM(_Relative):
    r"""The Mogrifier LSTM (Melis et al., 2020): before an LSTM step, x and h gate each other in turn,
    :math:`x \leftarrow 2\sigma(Q^i h)\odot x` in odd rounds i and :math:`h \leftarrow 2\sigma(R^i x)\odot h` in even ones.

    Parameters ``weight_q1``, ``weight_r2``, ``weight_q3``, ... and the LSTM's ``weight_ih``, ``weight_hh``, ``bias``, in PyTorch's
    gate order. With a rank, :math:`Q^i` is ``weight_q1_up`` times ``weight_q1_down``.

    Args:
        input_size, ..., dtype: as in ``torch.nn.LSTM`` without proj_size.
        rounds: how often x or h is gated; 0 is the LSTM. Default: 5, as most of the paper's models.
        rank: rank of every Q and R. Default: full matrices.
        start, zoneout, learn_state: as in :class:`~multint.MILSTM`.

    Shapes:
        As in :class:`~multint.MILSTM`, tokens and ``resets`` included: a gated one-hot row is a token with a weight.

    >>> import torch
    >>> output, (h_n, c_n) = MogrifierLSTM(50, 16, rounds=4, rank=3)(torch.randn(7, 3, 50))
    >>> output.shape
    torch.Size([7, 3, 16])
    """

    _cell = cells.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rounds: int = 5,
        rank: int | None = None,
        start: Start | str | None = None,
        zoneout: float | tuple[float, float] = 0.0,
        learn_state: bool = False,
    ) -> None:
        self.rounds = 0 if rounds == 0 else _positive("rounds", rounds)
        self.rank = None if rank is None else _positive("rank", rank)
        given: list[Any] = [input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype]
        super().__init__(*given, begin=start, zoneout=zoneout, learn_state=learn_state, **_WITHOUT)

    def _rounds(self) -> list[list[str]]:
        """Names of each round's matrix, or of its two factors in the order they are applied."""
        names = [f"weight_{'qr'[k % 2]}{k + 1}" for k in range(self.rounds)]
        return [[name] if self.rank is None else [name + "_down", name + "_up"] for name in names]

    def extra_repr(self) -> str:
        return super().extra_repr() + _beyond(rounds=(self.rounds, 5), rank=(self.rank, None))

    def _shapes(self, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        h = self.hidden_size
        yield from {"weight_ih": (4 * h, input_size), "weight_hh": (4 * h, h)}.items()
        for k, names in enumerate(self._rounds()):
            source, gated = (h, input_size) if k % 2 == 0 else (input_size, h)
            inner = [] if self.rank is None else [self.rank]
            sizes = [source, *inner, gated]
            yield from zip(names, zip(sizes[1:], sizes[:-1], strict=True), strict=True)
        if self._has_bias:
            yield "bias", (4 * h,)

    def _steps(self, w: dict[str, Tensor], x: Tensor) -> Step:
        maps = [[w[name] for name in names] for names in self._rounds()]

        def step(t: int, s: State, rows: Tensor | None) -> State:
            seen, h = (_Token(x[t].long()) if x.dtype in INTEGERS else _Features(x[t])), s.h
            for k, matrices in enumerate(maps):
                if k % 2 == 0:
                    seen = seen.gated(matrices, h)
                else:
                    h = 2 * torch.sigmoid(seen.through(matrices)) * h
            return self._advance(F.linear(h, w["weight_hh"], w.get("bias")) + seen.through([w["weight_ih"]]), s)

        return step


class _Features(NamedTuple):
    """A Mogrifier's x."""

    x: Float[Tensor, "n features"]

    def through(self, matrices: list[Tensor]) -> Tensor:
        return _chain(self.x, matrices)

    def gated(self, matrices: list[Tensor], h: Tensor) -> "_Features":
        return _Features(2 * torch.sigmoid(_chain(h, matrices)) * self.x)


class _Token(NamedTuple):
    """A Mogrifier's x that was one-hot: it stays zero but at one symbol, whatever gates it."""

    symbol: Integer[Tensor, " n"]
    weight: Float[Tensor, "n 1"] | float = 1.0

    def through(self, matrices: list[Tensor]) -> Tensor:
        return _chain(flow(self.symbol, matrices[0]) * self.weight, matrices[1:])

    def gated(self, matrices: list[Tensor], h: Tensor) -> "_Token":
        row = F.embedding(self.symbol, matrices[-1])
        gate = 2 * torch.sigmoid((row * _chain(h, matrices[:-1])).sum(-1, keepdim=True))
        return _Token(self.symbol, self.weight * gate)


def _chain(x: Tensor, matrices: list[Tensor]) -> Tensor:
    for matrix in matrices:
        x = F.linear(x, matrix)
    return x


# ---- exact maps (§4.2) ----

R = TypeVar("R", SecondOrderRNN, MultiplicativeRNN)


def to_second_order(layer: MIRNN) -> SecondOrderRNN:
    r"""The second-order RNN that computes what this MI-RNN computes: :math:`\mathcal{T}^{(i)} = \alpha_i w_i u_i^\top`, of rank 1.

    The paper's :math:`\alpha w_i\otimes u_i` lacks the subscript of alpha.

    >>> to_second_order(MIRNN(5, 8)).weight_t_l0.shape
    torch.Size([8, 5, 8])
    """

    def values(w: Tensor, u: Tensor, v: Vectors) -> dict[str, Tensor]:
        return {"weight_t": torch.einsum("i,ij,ik->ijk", v.alpha, w, u), **_first_order(w, u, v)}

    return _mapped(layer, SecondOrderRNN, "first_order", values)


def to_multiplicative(layer: MIRNN) -> MultiplicativeRNN:
    r"""The multiplicative RNN that computes what this MI-RNN computes: :math:`W_{hf} = \mathrm{diag}(\alpha)`, :math:`W_{fh} = U`,
    :math:`W_{fx} = W`; beta1 needs its ``recurrent`` term.

    >>> to_multiplicative(MIRNN(5, 8))
    MultiplicativeRNN(5, 8, recurrent=True)
    """

    def values(w: Tensor, u: Tensor, v: Vectors) -> dict[str, Tensor]:
        assert v.alpha is not None
        return {"weight_fx": w, "weight_fh": u, "weight_hf": torch.diag(v.alpha), **_first_order(w, u, v)}

    return _mapped(layer, MultiplicativeRNN, "recurrent", values)


def _first_order(w: Tensor, u: Tensor, v: Vectors) -> dict[str, Tensor]:
    assert v.beta1 is not None and v.beta2 is not None and v.b is not None
    return {"weight_ih": v.beta2.unsqueeze(1) * w, "weight_hh": v.beta1.unsqueeze(1) * u, "bias": v.b}


@torch.no_grad()
def _mapped(layer: MIRNN, kind: type[R], linear: str, values: Callable[[Tensor, Tensor, Vectors], dict[str, Tensor]]) -> R:
    """A layer of the other kind with the same settings, filled from W, U and the vectors of Eq. 4 of every direction.

    ``linear`` is the argument of the other kind that adds first-order terms, which Eq. 2 does without.
    """
    name = kind.__name__
    if not isinstance(layer, MIRNN):
        raise TypeError(f"only an MIRNN is exactly a {name}, got {type(layer).__name__}")
    if layer.norm is not None:
        raise ValueError(f"{name} has no normalisation to take over {layer.norm}; build the MIRNN without norm")
    if layer.recurrent_dropout:
        raise ValueError(f"{name} has no recurrent dropout, the layer has {layer.recurrent_dropout}; set it to 0.0 first")
    like, more = layer._anchor, {linear: layer.integration != "simple"}
    new = kind(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        layer.nonlinearity,
        layer.bias or layer.integration == "gated",  # beta1 * beta2 becomes a bias
        layer.batch_first,
        bidirectional=layer.bidirectional,
        device=like.device,
        dtype=like.dtype,
        start=layer.start,
        zoneout=layer.zoneout[0],
        learn_state=layer.learn_state,
        **more,
    )
    new.dropout = layer.dropout  # set here: one layer with dropout has had its warning
    for suffix in layer._suffixes():
        w, u = getattr(layer, "weight_ih" + suffix), getattr(layer, "weight_hh" + suffix)
        own = Vectors(*(getattr(layer, part + suffix, None) for part in ("alpha", "beta1", "beta2", "bias")))
        filled = values(w, u, as_general(layer.integration, own, layer.hidden_size, like))
        for part, _ in new._shapes(1):
            getattr(new, part + suffix).copy_(filled[part])
    if layer.learn_state:
        new.get_parameter("h0").copy_(layer.get_parameter("h0"))
    new.requires_grad_(any(p.requires_grad for p in layer.parameters()))
    return new.train(layer.training)
