"""How is a cell carried along fast on a CPU?

By a compiled time loop (csrc/): each thread owns some units, multiplies by packed panels of U and turns the product into the new
state while it is in the cache. Registered as torch operators with fake kernels and a derivative, so that torch.compile sees one
node. What differentiates its own derivative, or looks through operators (torch.func, forward-mode AD), gets the reference loop.
"""

import ctypes
import threading
from typing import Any

import torch
from torch import Tensor

from multint.cells import CELLS, Cell, State
from multint.integration import Vectors, as_general
from multint.scan import build, operator, reference
from multint.scan.contract import PHI, Problem, Result
from multint.shapes import Float

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
KINDS = list(CELLS)  # the numbers csrc/kernels.h gives the cells
SPAN_BYTES = 12 << 20  # flows between two marks: the backward pass finds them in the last-level cache
FEATURE_BYTES = 8192  # rows of x up to here are multiplied in one block (csrc/product.h), which the layer operator asks for
MOST_SYMBOLS = 4096  # beyond, a table over the symbols costs more than the flows of the tokens at hand


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


def level() -> str:
    """The instruction set in use: "base", "avx2", "avx512" or "avx512bf16"."""
    _load()
    _library.multint_level.restype = ctypes.c_char_p
    return str(_library.multint_level().decode())


def why_not(problem: Problem) -> str | None:
    p = problem
    if p.u.device.type != "cpu":
        return f"its tensors are on {p.u.device}, not on the CPU"
    if p.u.dtype not in DTYPES:
        return f"it computes in float32, float64 and bfloat16, not in {p.u.dtype}"
    for y in (p.wx, p.x):
        if y is not None and y.dtype != p.u.dtype:
            return f"W x and U must have one dtype, got {y.dtype} and {p.u.dtype}"
    for name, part in (("norm", p.norm), ("zoneout", p.hold), ("recurrent_dropout", p.drop), ("proj_size", p.weight_hr)):
        if part is not None:
            return f"{name} is not in the compiled loop; use backend='reference'"
    return _seen_through() or missing()


def _seen_through() -> str | None:
    if torch.compiler._is_exporting_flag:
        return "an exported program must run where multint is not installed"
    return operator.transformed()


def run(problem: Problem) -> Result:
    p = problem
    exact = torch.float64 if p.u.dtype == torch.float64 else torch.float32
    vectors = torch.stack([_as(v, exact) for v in as_general(p.form, p.vectors, p.u.shape[0], p.u)])
    state, bias_hn = [_as(part, exact) for part in p.state], _as(p.bias_hn, exact)
    restart = [None if part is None else _as(part, exact).expand_as(p.state.h) for part in p.restart or State(None)]
    rest = (p.u, vectors, bias_hn, *state, _as(p.lengths, torch.int64), p.resets, *restart)
    keep = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in (p.wx, p.x, *rest))
    kind = (KINDS.index(p.cell.name), PHI.index(p.phi))
    wx, tokens = p.wx, _as(p.tokens, torch.int64)
    if p.x is not None and not keep and p.x.shape[2] * p.x.element_size() < FEATURE_BYTES:
        outputs, h, c = _call(torch.ops.multint.cpu_layer, keep, p.x, wx, *rest, *kind)
        return _result(p, outputs, h, c)
    if p.x is not None:
        wx = _product(p.x, wx, keep)
    elif tokens is not None:
        if _few_tokens(p):
            wx, tokens = p.flow(), None
        elif not torch.compiler.is_compiling():  # the kernel looks too, but before torch 2.13 its error would end the process
            low, high = (int(end) for end in tokens.aminmax()) if tokens.numel() > 0 else (0, 0)
            if low < 0 or high >= wx.shape[0]:
                raise IndexError(f"index out of range in self: tokens from {low} to {high} for a table of {wx.shape[0]} symbols")
    step_bytes = 2 * p.state.h.shape[0] * p.u.shape[0] * p.u.element_size()
    span = SPAN_BYTES // (step_bytes + 1) + 1
    outputs, h, c, _, _ = _call(torch.ops.multint.cpu_forward, keep, wx, tokens, *rest, *kind, span, keep)
    return _result(p, outputs, h, c)


def _result(p: Problem, outputs: Tensor, h: Tensor, c: Tensor) -> Result:
    return Result(outputs, State(_as(h, p.state.h.dtype), None if p.state.c is None else _as(c, p.state.c.dtype)))


def _as(x: Any, dtype: torch.dtype) -> Any:
    return x if x is None or x.dtype == dtype else x.to(dtype)


def _call(kernel: Any, differentiable: bool, *args: Any) -> Any:
    """Without a gradient to record, an eager call saves the detour through Python that records it."""
    if differentiable or torch.compiler.is_compiling():
        return kernel(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return kernel(*args)


def _few_tokens(p: Problem) -> bool:
    """Whether the flows of the tokens at hand are fewer than the symbols there are."""
    assert p.tokens is not None
    # a compiled graph serves every length, so it must not ask for this one
    return p.wx.shape[0] > (MOST_SYMBOLS if torch.compiler.is_compiling() else p.tokens.numel())


def _product(x: Float[Tensor, "t n i"], weight: Float[Tensor, "gh i"], keep: bool) -> Float[Tensor, "t n gh"]:
    """W x of a whole sequence."""
    t, n, _ = x.shape
    product: Tensor = _call(torch.ops.multint.cpu_multiply, keep, x.reshape(t * n, x.shape[2]), weight, False, True)
    return product.view(t, n, weight.shape[0])


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
    wx, tokens, u, _, _, h, c, *_, span, keep = args
    t, n = (wx if tokens is None else tokens).shape[:2]
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
    t = (wx if tokens is None else tokens).shape[0]
    shapes = [(t, *h.shape), h.shape, (0,) if c is None else h.shape]
    whole = [
        (u if k == 0 else h).new_zeros(shape) if g is None else g
        for k, (g, shape) in enumerate(zip(grads[:3], shapes, strict=True))
    ]
    if torch.is_grad_enabled() or _seen_through():
        found = _backward_in_torch(inputs, ctx.settings, whole)
    else:
        flat = torch.ops.multint.cpu_backward(*whole, uz, marks, *inputs, *ctx.settings)
        d_wx, d_u, d_vectors, d_bias_hn, d_h, d_c, d_restart_h, d_restart_c = flat
        found = [d_wx, None, d_u, d_vectors, d_bias_hn, d_h, d_c, None, None, d_restart_h, d_restart_c]
        found = [None if x is None else g for x, g in zip(inputs, found, strict=True)]
    return (*found, None, None, None, None)


def _backward_in_torch(inputs: Any, settings: tuple[int, int, int], grads: list[Tensor]) -> list[Tensor | None]:
    """The same gradients as torch operations, which can be differentiated again and batched."""
    floats = [k for k, x in enumerate(inputs) if x is not None and x.is_floating_point()]

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        own = list(inputs)
        for k, leaf in zip(floats, leaves, strict=True):
            own[k] = leaf
        wx, tokens, u, vectors, bias_hn, h, c, lengths, resets, restart_h, restart_c = own
        problem = Problem(
            _cell(settings[0]),
            "general",
            wx,
            u,
            Vectors(*vectors.unbind()),
            State(h, c),
            PHI[settings[1]],
            tokens=tokens,
            bias_hn=bias_hn,
            lengths=lengths,
            resets=resets,
            restart=None if restart_h is None else State(restart_h, restart_c),
        )
        result = reference.run(problem)
        return (result.outputs.to(u.dtype), *(part for part in result.state if part is not None))

    last = 2 if inputs[6] is None else 3
    found = iter(torch.func.vjp(outputs, *(inputs[k] for k in floats))[1](tuple(grads[:last])))
    return [next(found) if k in floats else None for k in range(INPUTS)]


def _cell(kind: int) -> Cell:
    return CELLS[KINDS[kind]]


def _multiply_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, *ctx.turned = inputs
    ctx.save_for_backward(a, b)


def _multiply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    turn_a, turn_b = ctx.turned
    multiply = _multiply_in_torch if _seen_through() else torch.ops.multint.cpu_multiply
    d_a = d_b = None
    if ctx.needs_input_grad[0]:
        d_a = multiply(b, grad, turn_b, True) if turn_a else multiply(grad, b, False, not turn_b)
    if ctx.needs_input_grad[1]:
        d_b = multiply(grad, a, True, turn_a) if turn_b else multiply(a, grad, not turn_a, False)
    return d_a, d_b, None, None


def _multiply_in_torch(a: Tensor, b: Tensor, turn_a: bool, turn_b: bool) -> Tensor:
    return (a.mT if turn_a else a) @ (b.mT if turn_b else b)
