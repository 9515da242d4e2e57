"""How are the flows Wx and Uz combined? (§2.1)

Equations 1 to 4 of the paper as functions of tensors, the pairwise form for k sources, and a small module for any network.
Every function returns the argument of the nonlinearity, so a reader finds ``phi(integrate(...))`` where the paper has it.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from multint.shapes import Float


def additive(
    wx: Float[Tensor, "*batch d"], uz: Float[Tensor, "*batch d"], b: Float[Tensor, " d"] | None = None
) -> Float[Tensor, "*batch d"]:
    r"""Argument of phi in Eq. 1: :math:`Wx + Uz + b`, the block of every ordinary RNN."""
    return _plus(wx + uz, b)


def simple(
    wx: Float[Tensor, "*batch d"], uz: Float[Tensor, "*batch d"], b: Float[Tensor, " d"] | None = None
) -> Float[Tensor, "*batch d"]:
    r"""Argument of phi in Eq. 2: :math:`Wx \odot Uz + b`. From z = 0 with b = 0 it never leaves zero."""
    return _plus(wx * uz, b)


def gated(
    wx: Float[Tensor, "*batch d"],
    uz: Float[Tensor, "*batch d"],
    beta1: Float[Tensor, " d"],
    beta2: Float[Tensor, " d"],
    b: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "*batch d"]:
    r"""Argument of phi in Eq. 3: :math:`(Wx + \beta_1) \odot (Uz + \beta_2) + b`."""
    return _plus((wx + beta1) * (uz + beta2), b)


def integrate(
    wx: Float[Tensor, "*batch d"],
    uz: Float[Tensor, "*batch d"],
    alpha: Float[Tensor, " d"],
    beta1: Float[Tensor, " d"],
    beta2: Float[Tensor, " d"],
    b: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "*batch d"]:
    r"""Argument of phi in Eq. 4: :math:`\alpha\odot Wx\odot Uz + \beta_1\odot Uz + \beta_2\odot Wx + b`.

    :math:`\beta_1` scales the second flow Uz and :math:`\beta_2` the first, Wx. With alpha = 0 and beta1 = beta2 = 1 this is Eq. 1.

    >>> import torch
    >>> wx, uz = torch.tensor([2.0]), torch.tensor([3.0])
    >>> one = torch.ones(1)
    >>> integrate(wx, uz, one, one, one, one)  # 2·3 + 3 + 2 + 1
    tensor([12.])
    """
    return _plus(alpha * wx * uz + beta1 * uz + beta2 * wx, b)


general = integrate


def _plus(value: Tensor, b: Tensor | None) -> Tensor:
    return value if b is None else value + b


class Vectors(NamedTuple):
    """The vectors of Eq. 4. A form that lacks one holds None there; b is None in a layer without bias."""

    alpha: Tensor | None = None
    beta1: Tensor | None = None
    beta2: Tensor | None = None
    b: Tensor | None = None

    def cut(self, columns: slice) -> "Vectors":
        """The same vectors for some of the gates."""
        return Vectors(*(None if v is None else v[columns] for v in self))


# The vectors each form owns besides b, in the order its function takes them.
FORMS: dict[str, tuple[str, ...]] = {
    "additive": (),
    "simple": (),
    "gated": ("beta1", "beta2"),
    "general": ("alpha", "beta1", "beta2"),
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {"additive": additive, "simple": simple, "gated": gated, "general": integrate}


def combine(form: str, wx: Float[Tensor, "*batch d"], uz: Float[Tensor, "*batch d"], v: Vectors) -> Float[Tensor, "*batch d"]:
    """The block in the form called ``form``: one of additive (Eq. 1), simple (Eq. 2), gated (Eq. 3), general (Eq. 4)."""
    return _FUNCTIONS[form](wx, uz, *(getattr(v, name) for name in FORMS[form]), v.b)


def as_general(form: str, v: Vectors, d: int, like: Tensor) -> Vectors:
    """The vectors that make Eq. 4 compute ``form``, so that one kernel serves all four; ``like`` gives dtype and device."""
    if form == "general":
        return v if v.b is not None else v._replace(b=like.new_zeros(d))
    zero, one = like.new_zeros(d), like.new_ones(d)
    b = zero if v.b is None else v.b
    if form == "additive":
        return Vectors(zero, one, one, b)
    if form == "simple":
        return Vectors(one, zero, zero, b)
    assert v.beta1 is not None and v.beta2 is not None
    return Vectors(one, v.beta1, v.beta2, b + v.beta1 * v.beta2)


def pairwise(
    flows: Sequence[Float[Tensor, "*batch d"]],
    alpha: Float[Tensor, "pairs d"],
    beta: Float[Tensor, "k d"],
    b: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "*batch d"]:
    r"""The block for k sources: :math:`\sum_{a<c} \alpha_{ac}\odot A\odot C + \sum_a \beta_a\odot A + b`.

    Rows of ``alpha`` follow ``itertools.combinations``: (0,1), (0,2), ..., (k-2,k-1). At k = 2 this is Eq. 4 with
    beta = (beta2, beta1), since beta1 multiplies the second flow.
    """
    k = len(flows)
    if k < 2:
        raise ValueError(f"pairwise integrates two or more flows, got {k}")
    if tuple(alpha.shape[:1]) != (k * (k - 1) // 2,):
        raise ValueError(f"{k} flows have {k * (k - 1) // 2} pairs, alpha has {alpha.shape[0]} rows in shape {tuple(alpha.shape)}")
    if tuple(beta.shape[:1]) != (k,):
        raise ValueError(f"{k} flows need {k} rows of beta, got {beta.shape[0]} in shape {tuple(beta.shape)}")
    total = sum((beta[a] * flow for a, flow in enumerate(flows)), torch.zeros_like(beta[0]))
    for row, (a, c) in enumerate(combinations(range(k), 2)):
        total = total + alpha[row] * flows[a] * flows[c]
    return _plus(total, b)


class MultiplicativeIntegration(nn.Module):
    r"""The MI block for any network (§4.3): k inputs of sizes n1, n2, ... meet in d units, pair by pair.

    .. math:: \sum_{a<c} \alpha_{ac}\odot W_a x_a\odot W_c x_c + \sum_a \beta_a\odot W_a x_a + b

    Args:
        sizes: features of each source, two or more.
        features: d, the size of the result.
        bias: learn b. Default: ``True``.
        alpha, beta, b: what the vectors start as. Default: 1, 1, 0, the paper's most used values.

    Shapes:
        Input: k tensors ``(*, n_a)`` whose leading axes broadcast. Output: ``(*, d)``.

    >>> import torch
    >>> joiner = MultiplicativeIntegration([512, 320], 640)  # a transducer's encoder and predictor
    >>> joiner(torch.randn(8, 100, 1, 512), torch.randn(8, 1, 20, 320)).shape
    torch.Size([8, 100, 20, 640])
    """

    start: tuple[float, float, float] = (1.0, 1.0, 0.0)  # of alpha, beta, b; what was pickled without it has the default

    def __init__(
        self,
        sizes: Sequence[int],
        features: int,
        bias: bool = True,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        b: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"MultiplicativeIntegration joins two or more sources, got sizes {list(sizes)}")
        if features <= 0 or min(sizes) <= 0:
            raise ValueError(f"sizes and features must be greater than zero, got {list(sizes)} and {features}")
        self.sizes, self.features, self.start = tuple(sizes), features, (float(alpha), float(beta), float(b))
        k = len(sizes)
        self.flows = nn.ModuleList(nn.Linear(n, features, bias=False, device=device, dtype=dtype) for n in sizes)
        self.alpha = nn.Parameter(torch.empty((k * (k - 1) // 2, features), device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty((k, features), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty((features,), device=device, dtype=dtype)) if bias else None
        self._begin()

    def reset_parameters(self) -> None:
        """Draw the weights anew, and let the vectors begin as they began."""
        for flow in self.flows:
            assert isinstance(flow, nn.Linear)
            flow.reset_parameters()
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        for parameter, value in zip((self.alpha, self.beta, self.bias), self.start, strict=True):
            if parameter is not None:
                parameter.fill_(value)

    def forward(self, *inputs: Tensor) -> Tensor:
        if len(inputs) != len(self.sizes):
            raise ValueError(f"MultiplicativeIntegration joins {len(self.sizes)} inputs, got {len(inputs)}")
        for a, (x, n) in enumerate(zip(inputs, self.sizes, strict=True)):
            if x.size(-1) != n:
                raise ValueError(f"input {a} must have {n} features, got {x.size(-1)} in shape {tuple(x.shape)}")
        flows = torch.broadcast_tensors(*(flow(x) for flow, x in zip(self.flows, inputs, strict=True)))
        return pairwise(flows, self.alpha, self.beta, self.bias)

    def extra_repr(self) -> str:
        return f"{list(self.sizes)}, {self.features}, bias={self.bias is not None}"
