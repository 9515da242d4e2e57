"""How is a cell carried along fast on a CPU?

By a compiled time loop (csrc/): each thread owns some units, multiplies by packed panels of U and turns the product into the new
state while it is in the cache. Registered as torch operators with fake kernels and a derivative: torch.compile sees one node.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from multint.cells import CELLS
from multint.scan import build, fused
from multint.scan.contract import PHI, Problem, Result
from multint.shapes import Float

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
KINDS = list(CELLS)  # the numbers csrc/kernels.h gives the cells
SPAN_BYTES = 12 << 20  # flows between two marks: the backward pass finds them in the last-level cache
FEATURE_BYTES = 8192  # rows of x up to here are multiplied in one block (csrc/product.h), which the layer operator asks for


def missing() -> str | None:
    """Why this machine has no compiled kernel; None if it has one. Builds it if need be, once."""
    try:
        _load()
    except build.Unavailable as reason:
        return f"no compiled kernel: {reason}"
    return None


missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks when it traces, and does not look inside
_library: Any = None
_loading = threading.Lock()


def _load() -> None:
    global _library
    if _library is not None:
        return
    with _loading:
        if _library is None:
            path = build.library()
            torch.ops.load_library(path)
            library = ctypes.CDLL(str(path))
            if "OpenMP" not in torch.__config__.parallel_info():
                library.multint_limit_threads(1)  # workers wait for each other: a pool that queues them would never end
            _register()
            _library = library


def library() -> Any:
    """The compiled library, for functions that are no torch operators; raises ``build.Unavailable``."""
    _load()
    return _library


def level() -> str:
    """The instruction set in use: "base", "avx2", "avx512" or "avx512bf16"."""
    name = library().multint_level
    name.restype = ctypes.c_char_p
    return str(name().decode())


def why_not(problem: Problem) -> str | None:
    p = problem
    if p.u.device.type != "cpu":
        return f"its tensors are on {p.u.device}, not on the CPU"
    if p.u.dtype not in DTYPES:
        return f"it computes in float32, float64 and bfloat16, not in {p.u.dtype}"
    return fused.why_not(p) or fused.seen_through() or missing()


def run(problem: Problem) -> Result:
    p = problem
    given = fused.tensors(p, torch.float64 if p.u.dtype == torch.float64 else torch.float32)
    keep = fused.needs_gradient(given)
    wx, tokens, x, *rest = given.values()
    kind = (KINDS.index(p.cell.name), PHI.index(p.phi))
    if x is not None and not keep and x.shape[2] * x.element_size() < FEATURE_BYTES:
        return fused.result(p, *fused.call(torch.ops.multint.cpu_layer, keep, x, wx, *rest, *kind))
    lean = p.recompute and keep and not torch.compiler.is_compiling()  # a compiler chooses what is kept by itself
    if x is not None and not lean:
        wx = _product(x, p.wx, keep)
    elif tokens is not None:
        if fused.few_tokens(p.wx, tokens):
            wx, tokens = (wx, tokens) if lean else (p.flow(), None)
        elif not torch.compiler.is_compiling() and not _fake(tokens):
            # the kernel looks too, but before torch 2.13 its error would end the process
            low, high = (int(end) for end in tokens.aminmax()) if tokens.numel() > 0 else (0, 0)
            if low < 0 or high >= p.wx.shape[0]:
                raise IndexError(f"index out of range in self: tokens from {low} to {high} for a table of {p.wx.shape[0]} symbols")
    if lean:
        outputs, h, c = _Lean.apply(wx, tokens, x, *rest, *kind, SPAN_BYTES)  # type: ignore[no-untyped-call]
    else:
        outputs, h, c, _, _ = fused.call(torch.ops.multint.cpu_forward, keep, wx, tokens, *rest, *kind, SPAN_BYTES, keep)
    return fused.result(p, outputs, h, c)


def _fake(x: Tensor) -> bool:
    """Whether a tensor has no values, but a shape."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return False
    from torch._subclasses.fake_tensor import is_fake

    return is_fake(x)


def _product(x: Float[Tensor, "t n i"], weight: Float[Tensor, "gh i"], keep: bool) -> Float[Tensor, "t n gh"]:
    """W x of a whole sequence."""
    t, n, _ = x.shape
    product: Tensor = fused.call(torch.ops.multint.cpu_multiply, keep, x.reshape(t * n, x.shape[2]), weight, False, True)
    return product.view(t, n, weight.shape[0])


class _Lean(torch.autograd.Function):
    """The operators, keeping nothing that one product over all steps gives again: W x, and U z where z is h."""

    @staticmethod
    def forward(ctx: Any, wx: Tensor, tokens: Tensor | None, x: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
        flow, own = _flow(wx, tokens, x)
        outputs, h, c, uz, marks = torch.ops.multint.cpu_forward(flow, own, *args, True)
        rest, ctx.settings = args[: INPUTS - 2], args[INPUTS - 2 :]
        second = uz[..., CELLS[KINDS[ctx.settings[0]]].shared * outputs.shape[2] :].clone()  # of r h, say
        ctx.save_for_backward(wx, tokens, x, *rest, outputs, second, marks)
        ctx.set_materialize_grads(False)
        return outputs, h, c

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *given, outputs, second, marks = ctx.saved_tensors
        wx, tokens, x, *rest = given
        u, _, _, h, c, _, resets, restart_h, _ = rest
        whole, named = fused.whole(grads, outputs.shape[0], u, h, c), dict(zip(fused.NAMES, given, strict=True))
        if torch.is_grad_enabled() or fused.seen_through():
            found = fused.gradients_in_torch(named, KINDS[ctx.settings[0]], PHI[ctx.settings[1]], whole)
        else:
            flow, own = _flow(wx, tokens, x)
            uz = torch.cat([_recurrent(outputs, u, h, resets, restart_h, second.shape[2]), second], -1)
            d_flow, *others = torch.ops.multint.cpu_backward(*whole, uz, marks, flow, own, *rest, *ctx.settings)
            found = _named(named, (d_flow, *others))
            if x is not None:
                rows, multiply = d_flow.flatten(0, 1), torch.ops.multint.cpu_multiply
                found["x"] = multiply(rows, wx, False, False).view_as(x) if ctx.needs_input_grad[2] else None
                found["wx"] = multiply(rows, x.flatten(0, 1), True, False) if ctx.needs_input_grad[0] else None
            elif tokens is not own:
                rows = d_flow.flatten(0, 1)
                found["wx"] = torch.ops.aten.embedding_dense_backward(rows, tokens.flatten(), wx.shape[0], -1, False)
        return (*(found.get(name) for name in fused.NAMES), None, None, None)


def _flow(wx: Tensor, tokens: Tensor | None, x: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What the operators take in their place: W x, or a table and its tokens; more symbols than tokens are gathered."""
    if x is not None:
        return _product(x, wx, False), None
    if tokens is not None and fused.few_tokens(wx, tokens):
        return F.embedding(tokens, wx), None
    return wx, tokens


def _recurrent(
    outputs: Float[Tensor, "t n h"], u: Tensor, h: Tensor, resets: Tensor | None, restart_h: Tensor | None, left_out: int
) -> Float[Tensor, "t n gh"]:
    """U h of every step, of all gates but the last ``left_out`` rows of U."""
    before = torch.cat([h.to(outputs.dtype).unsqueeze(0), outputs[:-1]])
    if resets is not None and restart_h is not None:
        before = torch.where(resets.unsqueeze(-1), restart_h.to(before.dtype), before)
    return _product(before, u[: u.shape[0] - left_out], False)


# ---- what torch must know of the operators ----

INPUTS = 11  # tensors of a scan, which come first; the settings follow


def _register() -> None:
    torch.library.register_fake("multint::cpu_forward", _forward_fake)
    torch.library.register_fake("multint::cpu_layer", _layer_fake)
    torch.library.register_fake("multint::cpu_backward", _backward_fake)
    torch.library.register_fake("multint::cpu_multiply", _multiply_fake)
    torch.library.register_autograd("multint::cpu_forward", _backward, setup_context=_keep)
    torch.library.register_autograd("multint::cpu_multiply", _multiply_backward, setup_context=_multiply_keep)


def _forward_fake(*args: Any) -> tuple[Tensor, ...]:
    wx, tokens, u, _, _, h, c, *_, span_bytes, keep = args
    t, n = (wx if tokens is None else tokens).shape[:2]
    span = span_bytes // (2 * n * u.shape[0] * u.element_size() + 1) + 1  # as in operators.cpp
    kept = (u.new_empty((t, n, u.shape[0])), h.new_empty(((t + span - 1) // span, 1 if c is None else 2, *h.shape)))
    return (
        u.new_empty((t, *h.shape)),
        h.new_empty(h.shape),
        h.new_empty((0,) if c is None else h.shape),
        *(kept if keep else (u.new_empty((0,)), h.new_empty((0,)))),
    )


def _layer_fake(
    x: Tensor, w: Tensor, u: Tensor, vectors: Tensor, bias_hn: Tensor | None, h: Tensor, c: Tensor | None, *_: Any
) -> Any:
    return u.new_empty((x.shape[0], *h.shape)), h.new_empty(h.shape), h.new_empty((0,) if c is None else h.shape)


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    wx, _, u, vectors, bias_hn, h, c, _, _, restart_h, restart_c = args[5 : 5 + INPUTS]
    return tuple(
        h.new_empty((0,)) if x is None else x.new_empty(x.shape) for x in (wx, u, vectors, bias_hn, h, c, restart_h, restart_c)
    )


def _multiply_fake(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return a.new_empty((a.shape[1 if transpose_a else 0], b.shape[0 if transpose_b else 1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *_, uz, marks = output
    ctx.settings = inputs[INPUTS:-1]
    ctx.save_for_backward(*inputs[:INPUTS], uz, marks)
    ctx.mark_non_differentiable(uz, marks)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, uz, marks = ctx.saved_tensors
    wx, tokens, u, _, _, h, c, *_ = inputs
    whole = fused.whole(grads, (wx if tokens is None else tokens).shape[0], u, h, c)
    given = dict(zip(fused.NAMES, (wx, tokens, None, *inputs[2:]), strict=True))
    if torch.is_grad_enabled() or fused.seen_through():
        found = fused.gradients_in_torch(given, KINDS[ctx.settings[0]], PHI[ctx.settings[1]], whole)
    else:
        found = _named(given, torch.ops.multint.cpu_backward(*whole, uz, marks, *inputs, *ctx.settings))
    return (*(found.get(name) for name in fused.NAMES if name != "x"), None, None, None, None)


def _named(given: Mapping[str, Tensor | None], found: Sequence[Tensor]) -> dict[str, Tensor | None]:
    """What cpu_backward gives, by name; None where there is no such input."""
    names = ("wx", "u", "vectors", "bias_hn", "h", "c", "restart_h", "restart_c")
    return {name: None if given[name] is None else d for name, d in zip(names, found, strict=True)}


def _multiply_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, *ctx.turned = inputs
    ctx.save_for_backward(a, b)


def _multiply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    turn_a, turn_b = ctx.turned
    multiply = _multiply_in_torch if fused.seen_through() else torch.ops.multint.cpu_multiply
    d_a = d_b = None
    if ctx.needs_input_grad[0]:
        d_a = multiply(b, grad, turn_b, True) if turn_a else multiply(grad, b, False, not turn_b)
    if ctx.needs_input_grad[1]:
        d_b = multiply(grad, a, True, turn_a) if turn_b else multiply(a, grad, not turn_a, False)
    return d_a, d_b, None, None


def _multiply_in_torch(a: Tensor, b: Tensor, turn_a: bool, turn_b: bool) -> Tensor:
    return (a.mT if turn_a else a) @ (b.mT if turn_b else b)
