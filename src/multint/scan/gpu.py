"""How is a cell carried along fast on a GPU?

By one of two engines: ``persistent`` keeps U in the registers of one kernel for the whole sequence (Hopper, bfloat16 or float16);
``steps`` launches a product and a pointwise kernel a step, everywhere else. Both hide behind one pair of torch operators with fake
kernels and a derivative, so that torch.compile, autocast, DDP and CUDA graphs see ordinary nodes.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from multint.scan import fused, gpu_persistent, gpu_steps, walk
from multint.scan.contract import Problem, Result
from multint.scan.gpu_engine import Engine, Inputs

ENGINES: dict[str, Engine] = {"persistent": gpu_persistent, "steps": gpu_steps}  # the first that can run a problem does
HELPERS: dict[str, ModuleType] = {"launches in C++": walk}  # without which it runs, but slower


def missing() -> str | None:
    """Why no engine can run on this machine; None if one can."""
    reasons = {name: engine.missing() for name, engine in ENGINES.items()}
    return None if None in reasons.values() else list(reasons.values())[-1]


missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks when it traces, and does not look inside


def why_not(problem: Problem) -> str | None:
    p = problem
    if p.u.device.type != "cuda":
        return f"its tensors are on {p.u.device}, not on a CUDA device"
    return fused.why_not(p) or fused.seen_through() or missing() or _refusal(p)


def _refusal(p: Problem) -> str | None:
    """Why no engine takes this problem: the last one's reason, which takes most."""
    reasons = [engine.why_not(p) for engine in ENGINES.values()]
    return None if None in reasons else reasons[-1]


def engine_for(problem: Problem) -> str:
    """The name of the engine that runs a problem this backend takes."""
    return next(name for name, engine in ENGINES.items() if engine.why_not(problem) is None)


def run(problem: Problem) -> Result:
    p = problem
    given = fused.tensors(p, torch.float32)
    if p.tokens is not None and not p.recompute and fused.few_tokens(p.wx, p.tokens):
        given |= {"wx": p.flow(), "tokens": None}
    elif p.tokens is not None and p.tokens.numel() > 0:
        inside = ((p.tokens >= 0) & (p.tokens < p.wx.shape[0])).all()  # a look at the values themselves would wait for the GPU
        torch._assert_async(inside, f"multint: a token is not in 0 to {p.wx.shape[0] - 1}")
    keep = fused.needs_gradient(given)
    args = (*given.values(), p.cell.name, p.phi, engine_for(p), p.fresh, p.recompute, keep)
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        outputs, h, c, _ = torch.ops.multint.gpu_forward(*args)
    else:
        outputs, h, c, *_ = _Eager.apply(*args) if keep else _forward(*args)  # type: ignore[no-untyped-call]
    return fused.result(p, outputs, h, c)


# ---- the operators ----

_GIVEN = ", ".join(f"Tensor{'' if name in ('wx', 'u', 'vectors', 'h') else '?'} {name}" for name in fused.NAMES)
_SETTINGS = "str cell, str phi, str engine, bool fresh, bool recompute"
_LIBRARY = torch.library.Library("multint", "FRAGMENT")
_LIBRARY.define(f"gpu_forward({_GIVEN}, {_SETTINGS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor[])")
_LIBRARY.define(
    f"gpu_backward(Tensor? d_outputs, Tensor? d_h, Tensor? d_c, Tensor? outputs, Tensor[] kept, {_GIVEN}, {_SETTINGS}, str wanted)"
    " -> Tensor[]"
)
_TENSORS = len(fused.NAMES)


def _read(args: tuple[Any, ...]) -> tuple[Inputs, Engine, Any]:
    """A problem, its engine and the setting behind it, from the end of an operator's arguments."""
    tensors, (cell, phi, engine, fresh, recompute, last) = args[:_TENSORS], args[_TENSORS:]
    return Inputs(cell, phi, *tensors, fresh=fresh, recompute=recompute), ENGINES[engine], last  # type: ignore[misc]


def _forward(*args: Any) -> tuple[Tensor, ...]:
    p, engine, keep = _read(args)
    with torch.cuda.device(p.u.device):
        found = engine.forward(p, keep)
    return found.outputs, found.h, p.h.new_empty((0,)) if found.c is None else found.c, *found.kept


def _forward_kernel(*args: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    outputs, h, c, *kept = _forward(*args)
    return outputs, h, c, kept


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    p, engine, keep = _read(args)
    return (
        p.u.new_empty((p.steps, *p.h.shape)),
        p.h.new_empty(p.h.shape),
        p.h.new_empty((0,) if p.c is None else p.h.shape),
        [p.u.new_empty(shape, dtype=dtype) for shape, dtype in (engine.kept(p) if keep else [])],
    )


def _backward_kernel(
    d_outputs: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, outputs: Tensor | None, kept: list[Tensor], *args: Any
) -> list[Tensor]:
    p, engine, wanted = _read(args)
    names = wanted.split()
    with torch.cuda.device(p.u.device):
        found = engine.backward(p, kept, outputs, (d_outputs, d_h, None if p.c is None else d_c), frozenset(names))
    gradients = {name: getattr(found, name) for name in names}
    # restart states without resets, say
    return [torch.zeros_like(getattr(p, name)) if g is None else g for name, g in gradients.items()]


def _backward_fake(
    d_outputs: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, outputs: Tensor | None, kept: list[Tensor], *args: Any
) -> list[Tensor]:
    p, _, wanted = _read(args)
    return [getattr(p, name).new_empty(getattr(p, name).shape) for name in wanted.split()]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    outputs, _, _, *kept = output
    kept = kept[0] if kept and isinstance(kept[0], list) else kept  # the operator's own form
    p, engine, _ = _read(inputs)
    ctx.settings = inputs[_TENSORS:-1]
    # outputs that a user changes in place must not be among what is saved, unless they are read
    ctx.save_for_backward(*inputs[:_TENSORS], outputs if engine.reads_outputs(p) else None, *kept)
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, kernel: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # asked for once: checkpointing computes them anew
    given, outputs, kept = saved[:_TENSORS], saved[_TENSORS], saved[_TENSORS + 1 :]
    if torch.is_grad_enabled() or fused.seen_through() or fused.batched(grads):
        named, (cell, phi, *_) = dict(zip(fused.NAMES, given, strict=True)), ctx.settings
        p = Inputs(cell, phi, *given)
        found = fused.gradients_in_torch(named, cell, phi, fused.whole(grads, p.steps, p.u, p.h, p.c))
    else:
        wanted = [name for name, needed in zip(fused.NAMES, ctx.needs_input_grad, strict=False) if needed]
        flat = kernel(*grads, outputs, list(kept), *given, *ctx.settings, " ".join(wanted))
        found = dict(zip(wanted, flat, strict=True))
    return (*(found.get(name) for name in fused.NAMES), *(None,) * (len(ctx.settings) + 1))


def _backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, torch.ops.multint.gpu_backward, grads[:3])


class _Eager(torch.autograd.Function):
    """The operators' own functions without the dispatcher, which costs an eager call more than its kernels."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        found = _forward(*args)
        _keep(ctx, args, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward_kernel, grads[:3])


_LIBRARY.impl("gpu_forward", _forward_kernel, "CUDA")
_LIBRARY.impl("gpu_backward", _backward_kernel, "CUDA")
torch.library.register_fake("multint::gpu_forward", _forward_fake)
torch.library.register_fake("multint::gpu_backward", _backward_fake)
torch.library.register_autograd("multint::gpu_forward", _backward, setup_context=_keep)
