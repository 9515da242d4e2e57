"""How does a backend appear in a compiled graph?

As one opaque operator, ``multint::scan``, whose cost to the compiler does not grow with the sequence: torch.compile gets one graph
for every length, and nothing is unrolled. Eager calls do not come here; they run a backend directly, so double backward, torch.func
and forward-mode AD see plain torch operations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from multint.cells import CELLS, State
from multint.integration import Vectors
from multint.scan import reference
from multint.scan.contract import Problem, Result


def why_not(problem: Problem) -> str | None:
    if not torch.compiler.is_compiling():
        return "only torch.compile and torch.export need an operator; eager calls run the loop itself"
    transform = transformed()
    if transform is not None:
        return transform
    if problem.norm is not None:
        return "per-step normalisation is Python that an operator cannot hold; use backend='reference', which unrolls the loop"
    return None


def transformed() -> str | None:
    """Why an operator of ours would be in the way just now."""
    if torch._C._functorch.maybe_current_level() is not None or torch.autograd.forward_ad._current_level >= 0:
        return "torch.func and forward-mode AD see through torch operations, not through an operator of ours"
    return None


def run(problem: Problem) -> Result:
    tensors = flatten(problem)
    outputs, *state = _scan(list(tensors.values()), " ".join(tensors), problem.cell.name, problem.form, problem.phi)
    return Result(outputs, State(*state))


def flatten(p: Problem) -> dict[str, Tensor]:
    """The tensors a problem has, by name. (A list with gaps would lose its gradients in torch.library.)"""
    restart, hold = p.restart or State(None), p.hold or State(None)
    named = {
        "wx": p.wx,
        "u": p.u,
        "alpha": p.vectors.alpha,
        "beta1": p.vectors.beta1,
        "beta2": p.vectors.beta2,
        "b": p.vectors.b,
        "h": p.state.h,
        "c": p.state.c,
        "bias_hn": p.bias_hn,
        "weight_hr": p.weight_hr,
        "restart_h": restart.h,
        "restart_c": restart.c,
        "hold_h": hold.h,
        "hold_c": hold.c,
        "drop": p.drop,
        "x": p.x,
        "tokens": p.tokens,
        "lengths": p.lengths,
        "resets": p.resets,
    }
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def rebuild(tensors: Sequence[Tensor], names: str, cell: str, form: str, phi: str) -> Problem:
    """The inverse of ``flatten``."""
    x: dict[str, Tensor] = dict(zip(names.split(), tensors, strict=True))

    def state(prefix: str) -> State | None:
        h, c = x.get(prefix + "h"), x.get(prefix + "c")
        return None if h is None and c is None else State(h, c)

    return Problem(
        CELLS[cell],
        form,
        x["wx"],
        x["u"],
        Vectors(x.get("alpha"), x.get("beta1"), x.get("beta2"), x.get("b")),
        State(x["h"], x.get("c")),
        phi,
        tokens=x.get("tokens"),
        x=x.get("x"),
        bias_hn=x.get("bias_hn"),
        weight_hr=x.get("weight_hr"),
        lengths=x.get("lengths"),
        resets=x.get("resets"),
        restart=state("restart_"),
        hold=state("hold_"),
        drop=x.get("drop"),
    )


@torch.library.custom_op("multint::scan", mutates_args=())
def _scan(tensors: Sequence[Tensor], names: str, cell: str, form: str, phi: str) -> list[Tensor]:
    result = reference.run(rebuild(tensors, names, cell, form, phi))
    # outputs of an operator own their memory: the last h is also a row of the outputs
    return [result.outputs, *(part.clone() for part in result.state if part is not None)]


@_scan.register_fake
def _scan_fake(tensors: Sequence[Tensor], names: str, cell: str, form: str, phi: str) -> list[Tensor]:
    p = rebuild(tensors, names, cell, form, phi)
    outputs = p.state.h.new_empty((p.steps, *p.state.h.shape))
    return [outputs, *(torch.empty_like(part, memory_format=torch.contiguous_format) for part in p.state if part is not None)]


@contextmanager
def _autograd_again() -> Iterator[None]:
    """Let autograd record inside an operator's kernel, where torch has switched it off."""
    keys = torch._C.DispatchKey
    with torch._C._PreserveDispatchKeyGuard():
        for key in (keys.AutogradFunctionality, keys.AutogradOther):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


@torch.library.custom_op("multint::scan_backward", mutates_args=())
def _scan_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool], names: str, cell: str, form: str, phi: str
) -> list[Tensor]:
    with _autograd_again(), torch.enable_grad():
        inputs = [x.detach().requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)]
        result = reference.run(rebuild(inputs, names, cell, form, phi))
        outputs = [result.outputs, *(part for part in result.state if part is not None)]
        leaves = [x for x, w in zip(inputs, wanted, strict=True) if w]
        found = torch.autograd.grad(outputs, leaves, list(grads), allow_unused=True, materialize_grads=True)
    return [g.clone(memory_format=torch.contiguous_format) for g in found]


@_scan_backward.register_fake
def _scan_backward_fake(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool], names: str, cell: str, form: str, phi: str
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x, w in zip(tensors, wanted, strict=True) if w]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.rest = inputs
    ctx.wanted = [x.requires_grad for x in tensors]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    found = iter(_scan_backward(grads, ctx.saved_tensors, ctx.wanted, *ctx.rest))
    return [next(found) if w else None for w in ctx.wanted], None, None, None, None


_scan.register_autograd(_backward, setup_context=_setup_context)
