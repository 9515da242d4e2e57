"""What does a user put in a model?

``MIRNN``, ``MILSTM``, ``MIGRU`` and their cells: the constructors, call forms, parameter names and errors of ``torch.nn.RNN``,
``LSTM``, ``GRU`` and their cells, with the MI block inside. W x of a whole sequence is one product here; the time loop is ``scan``.
"""

import numbers
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from multint import cells, start
from multint.cells import Cell, State
from multint.integration import FORMS, Vectors
from multint.regularize import Norm, RecurrentNorm, dropout_mask, zoneout_share
from multint.scan import PHI, Problem, Result, borrow, check_backend, scan, side_by_side
from multint.start import Start

Hidden = Tensor | tuple[Tensor, Tensor]
Given = Tensor | Sequence[Tensor]  # hx may be any pair
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
    # torch.compile cannot trace this function; torch 2.13 leaves it to Python by itself
    pad_packed_sequence._torchdynamo_disable = True  # type: ignore[attr-defined]


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{name} must be greater than zero, got {value}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")
    return value


def _probability(name: str, value: Any, done: str = "zeroed") -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise ValueError(
            f"{name} should be a number in range [0, 1] representing the probability of an element being {done}, got {value!r}"
        )
    return float(value)


def _among(name: str, value: str, names: tuple[str, ...]) -> str:
    if value not in names:
        raise ValueError(f"Unknown {name} {value!r}. Select from {', '.join(map(repr, names[:-1]))} or {names[-1]!r}.")
    return value


class _Block(nn.Module):
    """Parameters of one or more MI cells and their way into a ``Problem``: what layers and single cells share."""

    _version = 2  # of our state_dicts; torch.nn's layers write 1
    _cell: Cell
    input_size: int
    hidden_size: int
    _has_bias: bool
    integration: str
    nonlinearity: str = "tanh"
    proj_size: int = 0
    recompute: bool = False

    def _settle(
        self, input_size: Any, hidden_size: Any, bias: Any, integration: str, begin: Start | str | None, backend: str
    ) -> None:
        self.input_size = _positive("input_size", input_size)
        self.hidden_size = _positive("hidden_size", hidden_size)
        self._has_bias = _flag("bias", bias)
        self.integration = _among("integration", integration, tuple(FORMS))
        self.start = start.chosen(begin)
        self.backend = check_backend(backend)

    @property
    def _carries_cell(self) -> bool:
        return "c" in self._cell.carries

    @property
    def _out_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _sizes(self) -> list[int]:
        """Sizes of the parts of the state."""
        return [self._out_size, self.hidden_size][: len(self._cell.carries)]

    def _shapes(self, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names, without suffix, and shapes of one direction's parameters."""
        rows = len(self._cell.gates) * self.hidden_size
        yield "weight_ih", (rows, input_size)
        yield "weight_hh", (rows, self._out_size)
        for name in FORMS[self.integration]:
            yield name, (rows,)
        if self._has_bias:
            yield "bias", (rows,)
            if self._cell is cells.GRU_AFTER:
                yield "bias_hn", (self.hidden_size,)
        if self.proj_size:
            yield "weight_hr", (self.proj_size, self.hidden_size)

    def _register(self, suffix: str, input_size: int, **where: Any) -> list[str]:
        names = []
        for name, shape in self._shapes(input_size):
            names.append(name + suffix)
            self.register_parameter(names[-1], nn.Parameter(torch.empty(shape, **where)))
        return names

    def _begin(self, names: list[str]) -> None:
        for name in names:
            base, parameter = name.partition("_l")[0], getattr(self, name)
            drawn = parameter if name in self._parameters else torch.empty_like(parameter)
            start.begin(self.start, base, drawn, self._cell.gates, self.hidden_size, self.integration)
            if drawn is not parameter:
                self._begin_through(name, drawn)

    @torch.no_grad()
    def _begin_through(self, name: str, drawn: Tensor) -> None:
        """Hand starting values to a parametrised weight."""
        if not parametrize.is_parametrized(self, name):
            raise RuntimeError(
                f"{type(self).__name__}: {name} is no parameter of its own (weight_norm, prune?), so it cannot be drawn anew; "
                "make it permanent first"
            )
        setattr(self, name, drawn)

    def _problem(self, suffix: str, x: Tensor, state: State, **more: Any) -> Problem:
        """Everything ``scan`` needs: x is (t, n, features), or integer tokens (t, n)."""
        weight_ih, weight_hh = borrow([getattr(self, name + suffix) for name in ("weight_ih", "weight_hh")])
        names = ("weight_hr", "bias_hn", "alpha", "beta1", "beta2", "bias")
        others = borrow([getattr(self, name + suffix, None) for name in names])
        self._check_shapes(suffix, {"weight_ih": weight_ih, "weight_hh": weight_hh, **dict(zip(names, others, strict=True))}, x)
        weight_hr, bias_hn, *vectors = others
        narrow = _autocast_dtype(x, weight_ih)
        if narrow is not None:
            weight_ih, weight_hh = weight_ih.to(narrow), weight_hh.to(narrow)
            weight_hr = None if weight_hr is None else weight_hr.to(narrow)
        tokens = x.long() if x.dtype in INTEGERS else None
        return Problem(
            self._cell,
            self.integration,
            weight_ih if tokens is None else weight_ih.t(),
            weight_hh,
            Vectors(*vectors),
            state,
            self.nonlinearity,
            tokens=tokens,
            x=x.to(weight_ih.dtype) if tokens is None else None,
            bias_hn=bias_hn,
            weight_hr=weight_hr,
            training=self.training,
            **more,
        )

    def _check_shapes(self, suffix: str, found: dict[str, Tensor | None], x: Tensor) -> None:
        """Whoever put other weights in their place: kernels read memory by the sizes they are told."""
        for name, shape in self._shapes(self.input_size if x.dtype in INTEGERS else x.shape[-1]):
            self._check_shape(name + suffix, found[name], shape)

    def _check_shape(self, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
        if tensor is not None and tensor.shape != shape:
            raise RuntimeError(f"{type(self).__name__}: {name} must have shape {shape}, got {tuple(tensor.shape)}")

    def _scan(self, problem: Problem) -> Result:
        try:
            return scan(problem, self.backend)
        except IndexError as error:
            if problem.tokens is None:
                raise
            raise self._out_of_range(problem.tokens) from error

    def _out_of_range(self, tokens: Tensor) -> IndexError:
        low, high = tokens.aminmax()
        return IndexError(
            f"{type(self).__name__} with input_size {self.input_size} takes tokens 0 to {self.input_size - 1}, "
            f"got values from {low.item()} to {high.item()}"
        )

    def _check_features(self, x: Tensor, weight: Tensor) -> None:
        """Last axis, dtype and device of an input that is not tokens, as nn words it."""
        if x.dtype in INTEGERS:
            return
        if x.size(-1) != self.input_size:
            hint = "" if x.dim() > 2 else f"; tokens must have dtype {', '.join(map(str, INTEGERS))}, this is {x.dtype}"
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.size(-1)} "
                f"in shape {tuple(x.shape)}{hint}"
            )
        if x.dtype != weight.dtype and _autocast_dtype(x, weight) is None:
            raise ValueError(
                f"{type(self).__name__}: RNN input dtype ({x.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: model.to({x.dtype})"
            )

    def _check_device(self, x: Tensor, weight: Tensor) -> None:
        if x.device != weight.device:
            raise RuntimeError(
                "Input and parameter tensors are not at the same device, "
                f"found input tensor at {x.device} and parameter tensor at {weight.device}"
            )

    def _as_state(self, hx: Any) -> State:
        """hx in nn's form, a tensor or for the LSTM a pair, as a State; anything else is named."""
        name = type(self).__name__
        if self._carries_cell:
            if not isinstance(hx, (tuple, list)) or len(hx) != 2 or not all(isinstance(part, Tensor) for part in hx):
                raise TypeError(f"{name} expects hx to be a pair of tensors (h_0, c_0), got {_describe(hx)}")
            return State(*hx)
        if not isinstance(hx, Tensor):
            raise TypeError(f"{name} expects hx to be one tensor h_0, got {_describe(hx)}")
        return State(hx)

    def _check_state(self, state: State, x: Tensor, weight: Tensor) -> None:
        for part in state:
            if part is None:
                continue
            if part.device != weight.device:
                raise RuntimeError(
                    "Input and hidden tensors are not at the same device, "
                    f"found input tensor at {x.device} and hidden tensor at {part.device}"
                )
            if part.dtype != weight.dtype and _autocast_dtype(x, weight) is None:
                raise RuntimeError(
                    "Input and hidden tensors are not the same dtype, "
                    f"found input tensor with {weight.dtype} and hidden tensor with {part.dtype}. "
                    f"Convert hidden: hx.to({weight.dtype})"
                )

    def _unusual(self, usual: dict[str, Any]) -> str:
        """Sizes and whatever differs from the usual value, for repr."""
        values = {name: getattr(self, name, value) for name, value in usual.items()}
        return f"{self.input_size}, {self.hidden_size}" + "".join(f", {k}={v!r}" for k, v in values.items() if v != usual[k])

    def _suffixes(self) -> list[str]:
        """What follows the parameter names of each direction."""
        return [""]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for suffix in self._suffixes():
            if self._is_foreign(state_dict, prefix, suffix, local_metadata.get("version")):
                reason = self._cannot_be_torch()
                if reason is None:
                    self._from_torch(state_dict, prefix, suffix)
                else:
                    error_msgs.append(f"{prefix}weight_hh{suffix}: {reason}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _is_foreign(self, state: dict[str, Any], prefix: str, suffix: str, version: int | None) -> bool:
        """Is this direction's part of a state_dict a torch.nn layer's? Its two biases tell, or without them the version."""
        there = [f"{prefix}{name}{suffix}" in state for name in ("weight_ih", "weight_hh")]
        ours = [f"{prefix}{name}{suffix}" in state for name in ("alpha", "beta1", "beta2", "bias", "bias_hn")]
        biases = [f"{prefix}{name}{suffix}" in state for name in ("bias_ih", "bias_hh")]
        if version == self._version or not all(there) or any(ours):
            return False
        if all(biases) or version == 1:
            return True
        if version is None and self._cell is cells.GRU_AFTER and self.integration == "additive" and not self._has_bias:
            warnings.warn(
                f"nothing in this state_dict tells {type(self).__name__}'s weights from nn.GRU's, whose update gate means the "
                "opposite: they are taken for our own. Load nn.GRU's with the metadata of state_dict(), or use convert()",
                stacklevel=4,
            )
        return False

    def _cannot_be_torch(self) -> str | None:
        """Why no parameters of this block compute what torch.nn's layer does."""
        if self.integration in ("simple", "gated"):
            return f"integration={self.integration!r} cannot compute a torch.nn layer's function; use 'additive' or 'general'"
        if self._cell is cells.GRU:
            return "torch.nn.GRU applies its reset after U; build the layer with reset_after=True"
        return None

    def _from_torch(self, state: dict[str, Any], prefix: str, suffix: str) -> None:
        """Rewrite, in place, one direction of a torch.nn layer's state_dict so that this block computes the same function."""
        h = self.hidden_size

        def key(name: str) -> str:
            return f"{prefix}{name}{suffix}"

        with torch.no_grad():
            u = state[key("weight_hh")]
            sign = u.new_ones(u.shape[0])
            if self._cell is cells.GRU_AFTER:
                sign[h : 2 * h] = -1  # nn's z keeps the old state where the paper's takes the new
            if self.integration == "general":  # never W and U: the product is even in them
                state[key("alpha")], state[key("beta1")], state[key("beta2")] = torch.zeros_like(sign), sign, sign.clone()
            elif self._cell is cells.GRU_AFTER:
                for name in ("weight_ih", "weight_hh"):
                    state[key(name)] = state[key(name)] * sign.unsqueeze(-1)
            if self._has_bias and key("bias_ih") in state:
                b_ih, b_hh = state.pop(key("bias_ih")), state.pop(key("bias_hh"))
                if self._cell is cells.GRU_AFTER:
                    state[key("bias_hn")] = b_hh[2 * h :].clone()
                    b_hh = torch.cat([b_hh[: 2 * h], torch.zeros_like(b_hh[2 * h :])])
                state[key("bias")] = sign * (b_ih + b_hh)


def _describe(hx: Any) -> str:
    if isinstance(hx, Tensor):
        return f"one tensor of shape {tuple(hx.shape)}"
    if isinstance(hx, (tuple, list)):
        return f"a {type(hx).__name__} of {len(hx)} ({', '.join(type(part).__name__ for part in hx)})"
    return f"an object of type {type(hx).__name__}"


def _autocast_dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    kind = x.device.type
    if kind == "meta" or weight.dtype == torch.float64 or not torch.is_autocast_enabled(kind):  # autocast leaves doubles alone
        return None
    return torch.get_autocast_dtype(kind)


class _Layer(_Block):
    """Layers, directions, packing and hx around a cell, as ``nn.RNNBase`` has them."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        *,
        integration: str,
        begin: Start | str | None,
        norm: Norm | str | None,
        zoneout: float | tuple[float, float],
        recurrent_dropout: float,
        learn_state: bool,
        recompute: bool,
        backend: str,
    ) -> None:
        super().__init__()
        self._settle(input_size, hidden_size, bias, integration, begin, backend)
        self.bias, self.num_layers = self._has_bias, _positive("num_layers", num_layers)
        self.batch_first, self.bidirectional = _flag("batch_first", batch_first), bool(bidirectional)
        self.dropout = _probability("dropout", dropout)
        self.recurrent_dropout = _probability("recurrent_dropout", recurrent_dropout)
        pair = zoneout if isinstance(zoneout, (tuple, list)) else (zoneout,) * len(self._cell.carries)
        if len(pair) != len(self._cell.carries):
            raise ValueError(f"zoneout of {type(self).__name__} takes {len(self._cell.carries)} probabilities, got {zoneout}")
        self.zoneout = tuple(_probability("zoneout", p, "kept") for p in pair)
        self.learn_state = _flag("learn_state", learn_state)
        self.recompute = _flag("recompute", recompute)
        self.norm = Norm.chosen(norm)
        if self.dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater "
                f"than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self._names: list[list[str]] = []
        for k, suffix in self._directions():
            size = self.input_size if k == 0 else self._out_size * (2 if bidirectional else 1)
            self._names.append(self._register(suffix, size, **where))
            if self.norm is not None:
                features = len(self._cell.gates) * hidden_size
                self.add_module("norm" + suffix, RecurrentNorm(self.norm, features, hidden_size, self._carries_cell, **where))
        if self.learn_state:
            for part, size in zip(self._cell.carries, self._sizes(), strict=True):
                self.register_parameter(part + "0", nn.Parameter(torch.empty(len(self._names), size, **where)))
        self.reset_parameters()

    def _directions(self) -> Iterator[tuple[int, str]]:
        """Layer and parameter suffix of each direction, layer-major."""
        for k in range(self.num_layers):
            yield k, f"_l{k}"
            if self.bidirectional:
                yield k, f"_l{k}_reverse"

    def reset_parameters(self) -> None:
        """Draw all parameters anew from ``start``."""
        for names in self._names:
            self._begin(names)
        for norm in self.children():
            if isinstance(norm, RecurrentNorm):  # others are the user's, or of a parametrisation
                norm.reset_parameters()
        if self.learn_state:
            for part in self._cell.carries:
                nn.init.zeros_(getattr(self, part + "0"))

    def flatten_parameters(self) -> None:
        """Does nothing: kept for code written for nn.LSTM, whose cuDNN weights want one chunk of memory."""

    @property
    def _anchor(self) -> Tensor:
        """A weight that tells the layer's dtype and device; not every relative of MI (related.py) has weight_ih."""
        weight: Tensor = getattr(self, self._names[0][0])
        return weight

    @property
    def all_weights(self) -> list[list[Tensor]]:
        return [[getattr(self, name) for name in names] for names in self._names]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [weight for names in self.all_weights for weight in names]

    def _suffixes(self) -> list[str]:
        return [suffix for _, suffix in self._directions()]

    def extra_repr(self) -> str:
        plain = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        beyond: dict[str, Any] = {"nonlinearity": "tanh", "integration": "general", "reset_after": False, "norm": None}
        beyond |= {"zoneout": (0.0,) * len(self.zoneout), "recurrent_dropout": 0.0, "learn_state": False}
        return self._unusual(plain | beyond | {"recompute": False, "backend": "auto"})

    # ---- the call ----

    def forward(
        self, input: Tensor | PackedSequence, hx: Given | None = None, *, resets: Tensor | PackedSequence | None = None
    ) -> tuple[Tensor | PackedSequence, Hidden]:
        """Outputs of every step, packed if the input was, and the state after the last: h_n, for the LSTM (h_n, c_n)."""
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, resets)
        if isinstance(resets, PackedSequence):
            raise TypeError(f"{type(self).__name__} got packed resets for an input that is not packed; pass a bool tensor")
        weight = self._anchor
        tokens = input.dtype in INTEGERS
        rank = 2 if tokens else 3
        if input.dim() not in (rank - 1, rank):
            kind = f"tokens of {input.dtype}" if tokens else "input"
            raise ValueError(f"{type(self).__name__}: Expected {kind} to be {rank - 1}D or {rank}D, got {input.dim()}D instead")
        batched = input.dim() == rank
        self._check_device(input, weight)
        self._check_features(input, weight)
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        state = None if hx is None else self._given(hx, batched, x)
        if resets is not None:
            resets = self._check_resets(resets, input.shape[: input.dim() - (0 if tokens else 1)], batched)
        output, last = self._layers(x, state, None, resets)
        if not batched:
            output, last = output.squeeze(1), State(*(None if part is None else part.squeeze(1) for part in last))
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, self._hidden(last)

    def _forward_packed(self, input: PackedSequence, hx: Given | None, resets: Any) -> tuple[PackedSequence, Hidden]:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        self._check_device(data, self._anchor)
        if data.dim() != (1 if data.dtype in INTEGERS else 2):
            raise ValueError(
                f"{type(self).__name__}: Expected packed data of shape (steps, features), or integer tokens (steps,), "
                f"got {data.dtype} of shape {tuple(data.shape)}"
            )
        self._check_features(data, self._anchor)
        if int(batch_sizes.sum()) != data.shape[0]:  # torch checks nothing of a PackedSequence made by hand
            raise ValueError(
                f"{type(self).__name__}: batch_sizes of a packed input must add up to its {data.shape[0]} steps, "
                f"got {batch_sizes.tolist()}"
            )
        if not bool((batch_sizes[1:] <= batch_sizes[:-1]).all()):
            raise ValueError(
                f"{type(self).__name__}: batch_sizes of a packed input must not increase, since longer sequences come first, "
                f"got {batch_sizes.tolist()}"
            )
        rows, lengths = _places(batch_sizes, data.shape[0])
        rows, steps = rows.to(data.device), (batch_sizes.shape[0], lengths.shape[0])
        x = _padded(data, rows, steps)
        state = None if hx is None else self._given(hx, True, x)
        if state is not None and sorted_indices is not None:
            state = State(*(None if part is None else part.index_select(1, sorted_indices) for part in state))
        if resets is not None:
            if not isinstance(resets, PackedSequence) or not _same_packing(resets, input):
                raise ValueError(
                    f"{type(self).__name__}: resets of a packed input must be packed with the same lengths in the same order"
                )
            resets = self._check_resets(_padded(resets.data, rows, steps), steps, True, batch_first=False)
        output, last = self._layers(x, state, lengths.to(data.device), resets)
        if unsorted_indices is not None:
            last = State(*(None if part is None else part.index_select(1, unsorted_indices) for part in last))
        packed = output.flatten(0, 1).index_select(0, rows)
        return PackedSequence(packed, batch_sizes, sorted_indices, unsorted_indices), self._hidden(last)

    def _given(self, hx: Given, batched: bool, x: Tensor) -> State:
        """hx checked and with a batch axis."""
        state = self._as_state(hx)
        ranks = tuple(part.dim() for part in state if part is not None)
        if any(rank != (3 if batched else 2) for rank in ranks):
            d = 3 if batched else 2
            what = f"hx should also be {d}-D but got {ranks[0]}-D tensor"
            if self._carries_cell:
                what = f"hx and cx should also be {d}-D but got ({', '.join(f'{r}-D' for r in ranks)}) tensors"
            raise RuntimeError(f"For {'batched 3-D' if batched else 'unbatched 2-D'} input, {what}")
        if not batched:
            state = State(*(None if part is None else part.unsqueeze(1) for part in state))
        self._check_state(state, x, self._anchor)
        for k, (part, size) in enumerate(zip((p for p in state if p is not None), self._sizes(), strict=True)):
            expected = (len(self._names), x.shape[1], size)
            if tuple(part.shape) != expected:
                label = f"hidden[{k}] size" if self._carries_cell else "hidden size"
                raise RuntimeError(f"Expected {label} {expected}, got {list(part.shape)}")
        return state

    def _check_resets(self, resets: Tensor, expected: Any, batched: bool, batch_first: bool | None = None) -> Tensor:
        if not isinstance(resets, Tensor) or resets.dtype != torch.bool:
            given = resets.dtype if isinstance(resets, Tensor) else type(resets).__name__
            raise TypeError(f"{type(self).__name__}: resets should be a bool tensor, got: {given}")
        if resets.device != self._anchor.device:
            raise RuntimeError(
                "Resets and parameter tensors are not at the same device, "
                f"found resets at {resets.device} and parameter tensor at {self._anchor.device}"
            )
        if tuple(resets.shape) != tuple(expected):
            raise RuntimeError(f"Expected resets of shape {tuple(expected)}, one for each step, got {tuple(resets.shape)}")
        if not batched:
            return resets.unsqueeze(1)
        return resets.t() if (self.batch_first if batch_first is None else batch_first) else resets

    def _fresh(self, n: int, like: Tensor) -> State:
        """The state a sequence begins with: learned, or zero; (layers*directions, n, size)."""
        if self.learn_state:
            learned = {part + "0": getattr(self, part + "0") for part in self._cell.carries}
            for (name, tensor), size in zip(learned.items(), self._sizes(), strict=True):
                self._check_shape(name, tensor, (len(self._names), size))
            return State(*(tensor.unsqueeze(1).expand(-1, n, -1) for tensor in learned.values()))
        zeros = {size: like.new_zeros((len(self._names), n, size)) for size in set(self._sizes())}
        return State(*(zeros[size] for size in self._sizes()))  # one for h and c, but with a projection

    def _hidden(self, last: State) -> Hidden:
        return tuple(part for part in last) if self._carries_cell else last.h

    def _layers(self, x: Tensor, state: State | None, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor, State]:
        """All layers and directions over x (t, n, features) or tokens (t, n)."""
        if x.shape[0] == 0:
            raise RuntimeError(f"Expected sequence length to be larger than 0 in {type(self).__name__}")
        weight, n = self._anchor, x.shape[1]
        out_dtype = _autocast_dtype(x, weight) or weight.dtype
        fresh = self._fresh(n, weight) if state is None or resets is not None else State(None)
        zeros = state is None and not self.learn_state
        state = fresh if state is None else state
        lasts: list[State] = []
        width = 2 if self.bidirectional else 1

        def reader(j: int, x: Tensor, reverse: bool) -> Callable[[], Result]:
            begin = State(*(None if part is None else part[j].to(weight.dtype) for part in state))
            anew = None if resets is None else State(*(None if part is None else part[j] for part in fresh))
            return partial(self._direction, j, x, begin, anew, lengths, resets, reverse, zeros)

        for k in range(self.num_layers):
            if width == 1:
                results = [reader(k, x, False)()]
            elif self.norm is not None:  # its parameters and statistics belong to one stream
                results = [reader(2 * k, x, False)(), reader(2 * k + 1, x, True)()]
            else:
                results = side_by_side(reader(2 * k, x, False), reader(2 * k + 1, x, True), x)
            lasts += [result.state for result in results]
            x = results[0].outputs if width == 1 else torch.cat([result.outputs for result in results], -1)
            x = x.to(out_dtype)
            if k < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, State(*(_stack([getattr(s, part) for s in lasts]).to(out_dtype) for part in self._cell.carries))

    def _direction(
        self,
        j: int,
        x: Tensor,
        state: State,
        restart: State | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
        zeros: bool,
    ) -> Result:
        suffix = f"_l{j // 2 if self.bidirectional else j}{'_reverse' if reverse else ''}"
        (x,), (lengths, resets) = borrow([x]), borrow([lengths, resets])
        state, restart = State(*borrow(state)), None if restart is None else State(*borrow(restart))
        if reverse:
            x = backwards(x, lengths)
            # reading backwards, a sequence ends where the next began: the state restarts one step later
            if resets is not None:
                resets = backwards(F.pad(resets, (0, 0, 0, 1))[1:], lengths)
        t, n = x.shape[:2]
        shapes = [(t, n, size) for size in self._sizes()]
        hold = State(*(zoneout_share(p, s, state.h, self.training) for p, s in zip(self.zoneout, shapes, strict=True)))
        result = self._carry(
            suffix,
            x,
            state,
            lengths=lengths,
            resets=resets,
            restart=restart,
            hold=None if all(part is None for part in hold) else hold,
            drop=dropout_mask(self.recurrent_dropout, (n, self._out_size), state.h, self.training),
            norm=None if self.norm is None else getattr(self, "norm" + suffix),
            fresh=zeros,
            recompute=self.recompute,
        )
        return Result(backwards(result.outputs, lengths), result.state) if reverse else result

    def _carry(self, suffix: str, x: Tensor, state: State, **more: Any) -> Result:
        """One direction along x; ``more`` is the rest of a Problem. Relatives of MI (related.py) take other steps here."""
        return self._scan(self._problem(suffix, x, state, **more))


def _stack(parts: list[Tensor]) -> Tensor:
    # one part is not stacked: inductor 2.13 overwrites a saved tensor that is returned as a one-element stack
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)


def _places(batch_sizes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of each packed step its row in padded memory, (steps * n, ...), and the length of each sequence; both on the CPU.

    Torch's own functions for this cannot be traced everywhere and have no forward-mode derivative.
    """
    n = int(batch_sizes[0]) if batch_sizes.shape[0] > 0 else 0
    ends = batch_sizes.cumsum(0)
    packed = torch.arange(size)
    t = torch.searchsorted(ends, packed, right=True)
    rows = t * n + packed - (ends - batch_sizes)[t]
    return rows, (batch_sizes.unsqueeze(1) > torch.arange(n)).sum(0)


def _padded(data: Tensor, rows: Tensor, steps: tuple[int, int]) -> Tensor:
    """Packed data as (t, n, ...), with zeros behind each sequence."""
    padded = data.new_zeros((steps[0] * steps[1], *data.shape[1:])).index_copy(0, rows, data)
    return padded.view(*steps, *data.shape[1:])


def _same_packing(a: PackedSequence, b: PackedSequence) -> bool:
    if not torch.equal(a.batch_sizes, b.batch_sizes):
        return False
    orders = [p.sorted_indices for p in (a, b)]
    n = int(b.batch_sizes[0])
    first, second = (torch.arange(n) if order is None else order.cpu() for order in orders)
    return torch.equal(first, second)


def backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (t, n, ...) with every row's steps in reverse order; steps past its length stay where they are."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    index = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, index.view(*index.shape, *(1,) * (x.dim() - 2)).expand_as(x))


class MIRNN(_Layer):
    r"""The RNN with Multiplicative Integration, :math:`h_t = \phi(\alpha\odot Wx_t\odot Uh_{t-1} + \beta_1\odot Uh_{t-1} +
    \beta_2\odot Wx_t + b)`: a drop-in for ``torch.nn.RNN``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in ``torch.nn.RNN``.
        nonlinearity: ``"tanh"``, ``"relu"``, or ``"identity"`` for the paper's lin-RNN and lin-MI-RNN.
        integration: ``"general"`` (Eq. 4), ``"gated"`` (Eq. 3), ``"simple"`` (Eq. 2) or ``"additive"`` (Eq. 1, which is nn.RNN).
        start: a :class:`~multint.Start`, the name of a preset (``"text8-rnn"``), or None for {1, 1, 1, 0}.
        norm: a :class:`~multint.Norm`, ``"batch"`` or ``"layer"``: normalise Wx and Uh at every step.
        zoneout: probability that a unit of h keeps its old value for a step.
        recurrent_dropout: probability that a unit of h is hidden from U, the same units for a whole sequence.
        learn_state: learn the state a sequence begins with, ``h0``, instead of zero.
        recompute: do not keep Wx and Uh for the backward pass, which forms each anew with one product over all steps. Less memory
            for a little time; the reference loop keeps them all the same.
        backend: ``"auto"``, or the name of one in ``multint.scan.BACKENDS``, which raises where it cannot run.

    Shapes:
        As in ``torch.nn.RNN``: input (t, n, input_size), (n, t, input_size) with batch_first, (t, input_size), or a PackedSequence.
        Besides, integer tokens in place of one-hot rows, one axis less; and ``resets``, a bool tensor of the input's shape without
        features, marking the steps before which a row's state begins anew.

    >>> import torch
    >>> layer = MIRNN(50, 64, start="text8-rnn")
    >>> output, h_n = layer(torch.randint(50, (7, 3)))
    >>> output.shape, h_n.shape
    (torch.Size([7, 3, 64]), torch.Size([1, 3, 64]))
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
        integration: str = "general",
        start: Start | str | None = None,
        norm: Norm | str | None = None,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        learn_state: bool = False,
        recompute: bool = False,
        backend: str = "auto",
        proj_size: int | None = None,
    ) -> None:
        _no_projection(proj_size)
        self.nonlinearity = _among("nonlinearity", nonlinearity, PHI)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            integration=integration,
            begin=start,
            norm=norm,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            learn_state=learn_state,
            recompute=recompute,
            backend=backend,
        )


class MILSTM(_Layer):
    """The LSTM with Multiplicative Integration in all four gates (Appendix A.1): a drop-in for ``torch.nn.LSTM``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as in
            ``torch.nn.LSTM``.
        zoneout: probability that a unit keeps its old value for a step: one for h and c, or a pair (h, c).
        learn_state: learn the state a sequence begins with, ``h0`` and ``c0``, instead of zero.
        integration, start, norm, recurrent_dropout, recompute, backend: as in :class:`~multint.MIRNN`; norm also normalises c on
            its way to h.

    Shapes:
        As in ``torch.nn.LSTM``, with integer tokens and ``resets`` as in :class:`~multint.MIRNN`.

    >>> import torch
    >>> layer = MILSTM(20, 64, num_layers=2, bidirectional=True)
    >>> output, (h_n, c_n) = layer(torch.randn(7, 3, 20))
    >>> output.shape, h_n.shape
    (torch.Size([7, 3, 128]), torch.Size([4, 3, 64]))
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
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        integration: str = "general",
        start: Start | str | None = None,
        norm: Norm | str | None = None,
        zoneout: float | tuple[float, float] = 0.0,
        recurrent_dropout: float = 0.0,
        learn_state: bool = False,
        recompute: bool = False,
        backend: str = "auto",
    ) -> None:
        if isinstance(proj_size, bool) or not isinstance(proj_size, int):
            raise TypeError(f"proj_size should be of type int, got: {type(proj_size).__name__}")
        if proj_size < 0:
            raise ValueError(f"proj_size should be a positive integer or zero to disable projections, got {proj_size}")
        if proj_size >= _positive("hidden_size", hidden_size):
            raise ValueError(f"proj_size has to be smaller than hidden_size, got {proj_size} and {hidden_size}")
        self.proj_size = proj_size
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            integration=integration,
            begin=start,
            norm=norm,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            learn_state=learn_state,
            recompute=recompute,
            backend=backend,
        )


class MIGRU(_Layer):
    """The GRU with Multiplicative Integration in gates and candidate (Appendix A.2): a drop-in for ``torch.nn.GRU``.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in ``torch.nn.GRU``.
        reset_after: apply the reset gate after U, as ``torch.nn.GRU`` and the skip-thought code do, with a bias of its own inside
            the reset. Default: ``False``, before U, as the paper's appendix prints it.
        integration, start, norm, zoneout, recurrent_dropout, learn_state, recompute, backend: as in :class:`~multint.MIRNN`.

    The update gate z is the paper's: 1 takes the new value. A trained ``torch.nn.GRU``, whose z means the opposite, is still loaded
    exactly with ``reset_after=True``.

    Shapes:
        As in ``torch.nn.GRU``, with integer tokens and ``resets`` as in :class:`~multint.MIRNN`.

    >>> import torch
    >>> layer = MIGRU(20, 64, batch_first=True)
    >>> output, h_n = layer(torch.randn(3, 7, 20))
    >>> output.shape
    torch.Size([3, 7, 64])
    """

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
        reset_after: bool = False,
        integration: str = "general",
        start: Start | str | None = None,
        norm: Norm | str | None = None,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        learn_state: bool = False,
        recompute: bool = False,
        backend: str = "auto",
        proj_size: int | None = None,
    ) -> None:
        _no_projection(proj_size)
        self.reset_after = _flag("reset_after", reset_after)
        self._cell = cells.GRU_AFTER if reset_after else cells.GRU
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            integration=integration,
            begin=start,
            norm=norm,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            learn_state=learn_state,
            recompute=recompute,
            backend=backend,
        )


def _no_projection(proj_size: Any) -> None:
    if proj_size is not None:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


class _SingleCell(_Block):
    """One step of a cell, as ``nn.RNNCellBase`` has it."""

    weight_ih: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        integration: str,
        begin: Start | str | None,
        backend: str,
    ) -> None:
        super().__init__()
        # nn's cells take any value for bias by its truth, and its own tests pass one that is no bool
        self._settle(input_size, hidden_size, bool(bias), integration, begin, backend)
        self._names = self._register("", self.input_size, device=device, dtype=dtype)
        if not self._has_bias:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew from ``start``."""
        self._begin(self._names)

    def extra_repr(self) -> str:
        usual = {"nonlinearity": "tanh", "integration": "general", "reset_after": False, "backend": "auto"}
        return self._unusual(usual) + ("" if self._has_bias else ", bias=False")

    def forward(self, input: Tensor, hx: Given | None = None) -> Hidden:
        """Input (n, input_size) or (input_size), or integer tokens with one axis less; returns h, for the LSTM (h, c)."""
        weight = self.weight_ih
        rank = 1 if input.dtype in INTEGERS else 2
        name = type(self).__name__
        if input.dim() not in (rank - 1, rank):
            raise ValueError(f"{name}: Expected input to be {rank - 1}D or {rank}D, got {input.dim()}D instead")
        if rank == 2 and input.size(-1) != self.input_size:  # before the device, as nn's cells have it
            raise RuntimeError(f"input has inconsistent input_size: got {input.size(-1)} expected {self.input_size}")
        self._check_device(input, weight)
        self._check_features(input, weight)
        batched = input.dim() == rank
        x = input if batched else input.unsqueeze(0)
        state = self._given(hx, x, batched)
        dtype = _autocast_dtype(x, weight) or weight.dtype
        last = self._scan(self._problem("", x.unsqueeze(0), state)).state
        parts = [
            getattr(last, part).to(dtype) if batched else getattr(last, part).squeeze(0).to(dtype) for part in self._cell.carries
        ]
        return (parts[0], parts[1]) if self._carries_cell else parts[0]

    def _given(self, hx: Given | None, x: Tensor, batched: bool) -> State:
        n = x.shape[0]
        if hx is None:
            return State(*(self.weight_ih.new_zeros((n, size)) for size in self._sizes()))
        state = self._as_state(hx)
        for k, part in enumerate(p for p in state if p is not None):
            if part.dim() not in (1, 2):
                raise ValueError(
                    f"{type(self).__name__}: Expected {f'hx[{k}]' if self._carries_cell else 'hidden'} to be 1D or 2D, "
                    f"got {part.dim()}D instead"
                )
            if part.dim() != (2 if batched else 1):
                raise RuntimeError(
                    f"For {'batched' if batched else 'unbatched'} input, hx should be {2 if batched else 1}D, "
                    f"got shape {tuple(part.shape)}"
                )
            if batched and part.shape[0] != n:
                raise RuntimeError(f"Input batch size {n} doesn't match hidden{k} batch size {part.shape[0]}")
            if part.shape[-1] != self.hidden_size:
                raise RuntimeError(f"hidden{k} has inconsistent hidden_size: got {part.shape[-1]}, expected {self.hidden_size}")
        self._check_state(state, x, self.weight_ih)
        rows = [None if part is None else part.to(self.weight_ih.dtype) for part in state]
        return State(*rows) if batched else State(*(None if part is None else part.unsqueeze(0) for part in rows))


class MIRNNCell(_SingleCell):
    """One step of :class:`~multint.MIRNN`: a drop-in for ``torch.nn.RNNCell``.

    >>> import torch
    >>> MIRNNCell(10, 20)(torch.randn(3, 10)).shape
    torch.Size([3, 20])
    """

    _cell = cells.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        integration: str = "general",
        start: Start | str | None = None,
        backend: str = "auto",
    ) -> None:
        self.nonlinearity = _among("nonlinearity", nonlinearity, PHI)
        super().__init__(input_size, hidden_size, bias, device, dtype, integration, start, backend)


class MILSTMCell(_SingleCell):
    """One step of :class:`~multint.MILSTM`: a drop-in for ``torch.nn.LSTMCell``.

    >>> import torch
    >>> h, c = MILSTMCell(10, 20)(torch.randn(3, 10))
    >>> h.shape
    torch.Size([3, 20])
    """

    _cell = cells.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        integration: str = "general",
        start: Start | str | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, integration, start, backend)


class MIGRUCell(_SingleCell):
    """One step of :class:`~multint.MIGRU`: a drop-in for ``torch.nn.GRUCell``.

    >>> import torch
    >>> MIGRUCell(10, 20)(torch.randn(3, 10)).shape
    torch.Size([3, 20])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = False,
        integration: str = "general",
        start: Start | str | None = None,
        backend: str = "auto",
    ) -> None:
        self.reset_after = _flag("reset_after", reset_after)
        self._cell = cells.GRU_AFTER if reset_after else cells.GRU
        super().__init__(input_size, hidden_size, bias, device, dtype, integration, start, backend)
