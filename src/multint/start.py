"""What do parameters begin as?

The paper states {alpha, beta1, beta2, b} for each experiment and U(-r, r) for the weights. A ``Start`` holds such a choice, and
``PRESETS`` every one the paper prints.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

PerGate = float | Mapping[str, float]  # one value for all gates, or by gate name, with the default for those not named


@dataclass(frozen=True)
class Start:
    """Starting values of a layer.

    Args:
        alpha, beta1, beta2, b: a number for all gates, or a mapping by gate: ``b={"f": 1.0}`` opens an LSTM's forget gate. Gates
            that are not named have the default.
        r_w, r_u: W ~ U(-r_w, r_w), U ~ U(-r_u, r_u). Default: 1/sqrt(hidden_size), as in torch.nn.
        r_b: b is drawn from U(b - r_b, b + r_b). Default: 0, but 1/sqrt(hidden_size) for the simple form, which from
            h = 0 and b = 0 would stay at zero for ever with no gradient for W and U.
        orthogonal: each gate's U is a random orthogonal matrix instead.

    >>> Start(alpha=2.0, beta1=0.5, beta2=0.5, r_w=0.02, r_u=0.02).alpha
    2.0
    """

    alpha: PerGate = 1.0
    beta1: PerGate = 1.0
    beta2: PerGate = 1.0
    b: PerGate = 0.0
    r_w: float | None = None
    r_u: float | None = None
    r_b: float | None = None
    orthogonal: bool = False

    def __post_init__(self) -> None:
        for name in ("r_w", "r_u", "r_b"):
            r = getattr(self, name)
            if r is not None and not (math.isfinite(r) and r >= 0):
                raise ValueError(f"Start: {name} must be a finite number of at least 0, got {r}")
        for name in ("alpha", "beta1", "beta2", "b"):
            value = getattr(self, name)
            for v in value.values() if isinstance(value, Mapping) else (value,):
                if not math.isfinite(v):
                    raise ValueError(f"Start: {name} must be finite, got {v}")


# {alpha, beta1, beta2, b} of each experiment in §3. §3.1 says the values were searched and §3.3 is silent: no preset.
PRESETS: Mapping[str, Start] = MappingProxyType(
    {
        "text8-rnn": Start(2.0, 0.5, 0.5, 0.0),
        "text8-lstm": Start(1.0, 0.5, 0.5, 0.0),
        "hutter-lstm": Start(1.0, 1.0, 1.0, 0.0),
        "skipthought-gru": Start(1.0, 1.0, 1.0, 0.0),
        "reader-lstm": Start(1.0, 1.0, 1.0, 0.0),
    }
)


def chosen(start: Start | str | None) -> Start:
    """A Start as given, by the name of a preset, or the default {1, 1, 1, 0}."""
    if isinstance(start, str):
        if start not in PRESETS:
            raise ValueError(f"Unknown start {start!r}. Select from {', '.join(map(repr, PRESETS))}, or pass a Start(...).")
        return PRESETS[start]
    if start is None:
        return Start()
    if not isinstance(start, Start):
        raise TypeError(f"start should be a Start, the name of a preset or None, got: {type(start).__name__}")
    return start


@torch.no_grad()
def begin(start: Start, name: str, parameter: Tensor, gates: Sequence[str], hidden_size: int, form: str) -> None:
    """Fill one parameter, known by its name without the layer's suffix."""
    usual = 1.0 / math.sqrt(hidden_size)
    if name == "weight_hh" and start.orthogonal:
        for gate in parameter.chunk(len(gates)):
            # half precision has no QR decomposition
            whole = torch.empty(gate.shape, device=gate.device, dtype=torch.promote_types(gate.dtype, torch.float32))
            gate.copy_(nn.init.orthogonal_(whole))
    elif name.startswith("weight"):
        r = {"weight_ih": start.r_w, "weight_hh": start.r_u}.get(name)
        r = usual if r is None else r
        parameter.uniform_(-r, r)
    elif name in ("alpha", "beta1", "beta2"):
        fill(parameter, start, name, gates)
    elif name == "bias":
        fill(parameter, start, "b", gates)
        r = (usual if form == "simple" else 0.0) if start.r_b is None else start.r_b
        if r > 0:
            parameter.add_(torch.empty_like(parameter).uniform_(-r, r))
    else:
        parameter.zero_()


def fill(parameter: Tensor, start: Start, field: str, gates: Sequence[str]) -> None:
    """A field's value in every gate's part of a vector; Start's own where it names other gates."""
    value: PerGate = getattr(start, field)
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - set(gates))
        if unknown:
            raise ValueError(f"Start names gate {unknown[0]!r}; this cell has {', '.join(map(repr, gates))}")
        for gate, part in zip(gates, parameter.chunk(len(gates)), strict=True):
            part.fill_(value.get(gate, getattr(Start, field)))
    else:
        parameter.fill_(value)
