"""What do the fused backends share around their kernels?

Their operators take a problem as a row of tensors, in the order of ``NAMES``. What differentiates a derivative again, or looks
through operators (torch.func, forward-mode AD), gets the same gradients from the reference loop, as torch operations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from multint.cells import CELLS, State
from multint.integration import Vectors, as_general
from multint.scan import operator, reference
from multint.scan.contract import Problem, Result

NAMES = ("wx", "tokens", "x", "u", "vectors", "bias_hn", "h", "c", "lengths", "resets", "restart_h", "restart_c")
MOST_SYMBOLS = 4096  # beyond, a table over the symbols costs more than the flows of the tokens at hand


def why_not(p: Problem) -> str | None:
    """What no fused loop has: options that are Python at every step, and dtypes that differ."""
    for y in (p.wx, p.x):
        if y is not None and y.dtype != p.u.dtype:
            return f"W x and U must have one dtype, got {y.dtype} and {p.u.dtype}"
    for name, part in (("norm", p.norm), ("zoneout", p.hold), ("recurrent_dropout", p.drop), ("proj_size", p.weight_hr)):
        if part is not None:
            return f"{name} is not in the compiled loop; use backend='reference'"
    return None


def seen_through() -> str | None:
    """Why an operator would be in the way just now."""
    if torch.compiler._is_exporting_flag:
        return "an exported program must run where multint is not installed"
    return operator.transformed()


def batched(grads: Sequence[Tensor | None]) -> bool:
    """Whether gradients are many at once, as from ``torch.autograd.grad(is_grads_batched=True)``: no kernel can read those."""
    return any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in grads)


def tensors(p: Problem, exact: torch.dtype) -> dict[str, Tensor | None]:
    """A problem's tensors by ``NAMES``; what is not stored narrow comes in the dtype ``exact``, Eq. 4's vectors as one tensor."""
    h = cast(p.state.h, exact)
    c = h if p.fresh and p.state.c is not None else cast(p.state.c, exact)  # the same zeros
    restart = [None if part is None else cast(part, exact).expand_as(p.state.h) for part in p.restart or State(None)]
    general = [v for v in as_general(p.form, p.vectors, p.u.shape[0], p.u) if v is not None]  # none is
    alike = all(v.dtype == general[0].dtype for v in general)  # then one cast serves all four
    vectors = cast(torch.stack([v if alike else cast(v, exact) for v in general]), exact)
    given = (p.wx, cast(p.tokens, torch.int64), p.x, p.u, vectors, cast(p.bias_hn, exact), h, c)
    return dict(zip(NAMES, (*given, cast(p.lengths, torch.int64), p.resets, *restart), strict=True))


def problem(x: Mapping[str, Tensor | None], cell: str, phi: str) -> Problem:
    """The inverse of ``tensors``."""
    wx, u, vectors, h, restart_h = x["wx"], x["u"], x["vectors"], x["h"], x["restart_h"]
    assert wx is not None and u is not None and vectors is not None
    return Problem(
        CELLS[cell],
        "general",
        wx,
        u,
        Vectors(*vectors.unbind()),
        State(h, x["c"]),
        phi,
        tokens=x["tokens"],
        x=x["x"],
        bias_hn=x["bias_hn"],
        lengths=x["lengths"],
        resets=x["resets"],
        restart=None if restart_h is None else State(restart_h, x["restart_c"]),
    )


def cast(x: Any, dtype: torch.dtype) -> Any:
    return x if x is None or x.dtype == dtype else x.to(dtype)


def needs_gradient(x: Mapping[str, Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in x.values())


def result(p: Problem, outputs: Tensor, h: Tensor, c: Tensor) -> Result:
    """An operator's results in the dtypes of the state they continue."""
    return Result(outputs, State(cast(h, p.state.h.dtype), None if p.state.c is None else cast(c, p.state.c.dtype)))


def few_tokens(table: Tensor, tokens: Tensor) -> bool:
    """Whether the flows of the tokens at hand are fewer than the symbols there are."""
    # a compiled graph serves every length, so it must not ask for this one
    return table.shape[0] > (MOST_SYMBOLS if torch.compiler.is_compiling() else tokens.numel())


def call(kernel: Any, differentiable: bool, *args: Any) -> Any:
    """Without a gradient to record, an eager call saves the detour through Python that records it."""
    if differentiable or torch.compiler.is_compiling():
        return kernel(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return kernel(*args)


def whole(grads: Sequence[Tensor | None], t: int, u: Tensor, h: Tensor, c: Tensor | None) -> list[Tensor]:
    """Gradients of outputs, last h and last c, with zeros where nothing came back."""
    shapes = [(t, *h.shape), h.shape, (0,) if c is None else h.shape]
    return [
        (u if k == 0 else h).new_zeros(shape) if g is None else g
        for k, (g, shape) in enumerate(zip(grads[:3], shapes, strict=True))
    ]


def gradients_in_torch(x: Mapping[str, Tensor | None], cell: str, phi: str, grads: Sequence[Tensor]) -> dict[str, Tensor | None]:
    """Gradients of every tensor as torch operations, which can be differentiated again and batched."""
    floats = [name for name, y in x.items() if y is not None and y.is_floating_point()]

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        own = {**x, **dict(zip(floats, leaves, strict=True))}
        found, u = reference.run(problem(own, cell, phi)), own["u"]
        assert u is not None
        return (found.outputs.to(u.dtype), *(part for part in found.state if part is not None))

    last = 2 if x["c"] is None else 3
    pulled = torch.func.vjp(outputs, *(x[name] for name in floats))[1](tuple(grads[:last]))
    return {**dict.fromkeys(x), **dict(zip(floats, pulled, strict=True))}
