"""How are the actions of every step launched without Python between them?

By a loop in C++ (csrc/walk.cpp), which gets the list of a step's actions as plain numbers: addresses, strides, handles. What it has
launched on the same memory before becomes a CUDA graph (replay.py). Where there is no compiled library, and for CPU tensors under
Triton's interpreter, Python walks through the same list.
"""

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multint.scan import build, cpu, cublas, replay


@dataclass(frozen=True)
class Product:
    """A product with a matrix at every step: ``a`` at step t + shift times ``w``, into ``out``.

    Cut into ``parts`` along the terms, whose results ``out`` (parts, n, m) holds side by side. ``a`` is (t, n, k), or (n, k) at
    every step; ``out`` is (t, n, m), or one (n, m) for every step.
    """

    a: Tensor
    w: Tensor  # (k, m), or the view of a transposed one
    out: Tensor
    shift: int = 0
    parts: int = 1
    later: bool = False  # not at the first step that is walked

    def key(self) -> tuple[Any, ...]:
        """All that the launch depends on."""
        tensors = (self.a, self.w, self.out)
        return *((x.data_ptr(), x.dtype, x.shape, x.stride()) for x in tensors), self.shift, self.parts, self.later

    def run(self, t: int) -> None:
        a = self.a[t + self.shift] if self.a.dim() == 3 else self.a
        if self.parts == 1:
            cublas.multiply(a, self.w, self.out[t] if self.out.dim() == 3 else self.out)
            return
        k = a.shape[1] // self.parts
        cublas.multiply(a.unflatten(1, (self.parts, k)).transpose(0, 1), self.w.unflatten(0, (self.parts, k)), self.out)


@dataclass(frozen=True)
class Launch:
    """A Triton kernel at every step; its first argument is the step, the others are whole numbers and tensors."""

    kernel: Any
    grid: tuple[int, int]
    arguments: tuple[Any, ...]
    flags: dict[str, Any]  # what is compiled into it
    warps: int = 4

    def key(self) -> tuple[Any, ...]:
        """All that the launch depends on."""
        given = (x if isinstance(x, int) else (x.data_ptr(), x.dtype) for x in self.arguments)
        return self.kernel.__name__, self.grid, self.warps, *self.flags.values(), *given

    def run(self, t: int) -> None:
        self.kernel[self.grid](t, *self.arguments, **self.flags, num_warps=self.warps)


def walk(actions: Sequence[Product | Launch], steps: range) -> None:
    """Launch the actions of every step, on the current stream."""
    if any(isinstance(action, Launch) and 0 in action.grid for action in actions):
        return  # an empty batch
    device = actions[0].a.device if isinstance(actions[0], Product) else actions[0].arguments[-1].device
    if device.type == "cuda" and _library() is not None:
        key = (steps, cublas.tf32(), *(action.key() for action in actions))
        replay.launch(key, functools.partial(_walk_compiled, actions, steps, device), device)
        return
    for k, t in enumerate(steps):
        for action in actions:
            if k > 0 or not (isinstance(action, Product) and action.later):
                action.run(t)


# ---- the same as numbers ----


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Product(ctypes.Structure):  # as in walk.cpp, like the next three
    _fields_ = (
        *_fields(c_int64, "a a_step a_row a_part w w_row w_part out out_step out_row out_part"),
        *_fields(c_int32, "rows columns terms parts shift transposed"),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", c_void_p),
        ("arguments", POINTER(c_void_p)),
        ("t", POINTER(c_int32)),
        *_fields(c_uint32, "grid_x grid_y threads shared"),
    )


class _Action(ctypes.Structure):
    _fields_ = (("kind", c_int32), ("later", c_int32), ("product", _Product), ("launch", _Launch))


class _Where(ctypes.Structure):
    _fields_ = (*_fields(c_void_p, "handle stream multiply multiply_parts launch"), *_fields(c_int32, "type bytes"))


def _walk_compiled(actions: Sequence[Product | Launch], steps: range, device: torch.device, workspace: Tensor | None) -> None:
    dtype = next((action.a.dtype for action in actions if isinstance(action, Product)), torch.float32)
    stream = torch.cuda.current_stream(device).cuda_stream
    where = _Where(cublas.handle(dtype, workspace), stream, *_vendor(), cublas.TYPES[dtype], dtype.itemsize)
    alive: list[Any] = []  # what the numbers point to
    listed = (_Action * len(actions))(*(_numbers(action, device, alive) for action in actions))
    failed = _library()(ctypes.byref(where), listed, len(actions), steps.start, len(steps), steps.step)
    if failed:
        what = f"cuBLAS answered status {failed // 2}" if failed % 2 else f"the CUDA driver answered error {failed // 2 - 1}"
        raise RuntimeError(f"multint: {what} while a step was launched")


def _numbers(action: Product | Launch, device: torch.device, alive: list[Any]) -> _Action:
    if isinstance(action, Launch):
        return _Action(1, False, _Product(), _kernel(action, device, alive))
    a, w, out = action.a, action.w, action.out
    terms = w.shape[0] // action.parts
    transposed = w.stride(1) != 1
    product = _Product(
        a.data_ptr(),
        a.stride(0) if a.dim() == 3 else 0,
        a.stride(-2),
        terms,
        w.data_ptr(),
        w.stride(1) if transposed else w.stride(0),
        terms if transposed else terms * w.stride(0),
        out.data_ptr(),
        out.stride(0) if out.dim() == 3 and action.parts == 1 else 0,
        out.stride(-2),
        out.stride(0) if action.parts > 1 else 0,
        a.shape[-2],
        w.shape[1],
        terms,
        action.parts,
        action.shift,
        transposed,
    )
    return _Action(0, action.later, product, _Launch())


def _kernel(action: Launch, device: torch.device, alive: list[Any]) -> _Launch:
    values = [x if isinstance(x, int) else x.data_ptr() for x in action.arguments]
    compiled = _compiled(action, device, values)
    # the step, and behind the rest two more: Triton adds pointers to scratch memory, which these kernels do not use
    words = (c_int64 * (len(values) + 3))(0, *values)
    begin = ctypes.addressof(words)
    pointers = (c_void_p * len(words))(*range(begin, begin + 8 * len(words), 8))
    alive += [words, pointers]
    t = ctypes.cast(words, POINTER(c_int32))  # its low half
    return _Launch(compiled.function, pointers, t, *action.grid, 32 * action.warps, compiled.metadata.shared)


_kernels: dict[Any, Any] = {}


def _compiled(action: Launch, device: torch.device, values: list[int]) -> Any:
    """Triton's own object, compiled and loaded; found again without asking Triton, which takes longer than the launch."""
    kinds = tuple((x.dtype, value % 16) for x, value in zip(action.arguments, values, strict=True) if isinstance(x, Tensor))
    key = (action.kernel.__name__, device.index, kinds, tuple(action.flags.values()), action.warps)
    found = _kernels.get(key)
    if found is None:
        found = action.kernel.warmup(0, *action.arguments, grid=action.grid, **action.flags, num_warps=action.warps)
        found._init_handles()
        if found.metadata.global_scratch_size:
            raise RuntimeError(f"multint: Triton wants scratch memory for {action.kernel.__name__}, which is not provided for")
        _kernels[key] = found
    return found


def missing() -> str | None:
    """Why steps are launched from Python here, which takes longer; None if they are not."""
    return cpu.missing()


@functools.cache
def _library() -> Any:
    try:
        walk = cpu.library().multint_walk
    except build.Unavailable:
        return None
    walk.restype = c_int64
    walk.argtypes = [POINTER(_Where), POINTER(_Action), c_int64, c_int64, c_int64, c_int64]
    return walk


@functools.cache
def _vendor() -> tuple[int, int, int]:
    """Addresses of cublasGemmEx, cublasGemmStridedBatchedEx and cuLaunchKernel."""
    blas, driver = cublas.library(), ctypes.CDLL("libcuda.so.1")
    functions = (blas.cublasGemmEx, blas.cublasGemmStridedBatchedEx, driver.cuLaunchKernel)
    multiply, multiply_parts, launch = (ctypes.cast(function, c_void_p).value or 0 for function in functions)
    return multiply, multiply_parts, launch
