"""How are products computed in the float32 precision of torch's recurrent layers?

``nn.LSTM`` obeys ``torch.backends.cudnn.rnn.fp32_precision``, which is TF32 unless the user says otherwise; torch's own products
obey ``torch.backends.cuda.matmul.fp32_precision``, which is float32 unless the user says otherwise. A layer that replaces nn.LSTM
obeys the first. Where the two differ, cuBLAS is called here directly: torch has no product that takes a precision of its own.
"""

import ctypes
import functools
import re
from ctypes import c_float, c_int, c_longlong, c_size_t, c_void_p
from pathlib import Path

import torch
from torch import Tensor

DEFAULT_MATH, TF32_MATH = 0, 3  # cublasMath_t
SINGLE, CHOOSE = 68, 99  # CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType


def tf32() -> bool:
    """Whether float32 products of recurrent layers may be TF32 products."""
    return bool(torch.backends.cudnn.rnn.fp32_precision == "tf32")  # type: ignore[attr-defined]


def as_torch_has_it() -> bool:
    """Whether torch's own float32 products have the precision of recurrent layers just now."""
    return tf32() == bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


@functools.cache
def library() -> ctypes.CDLL:
    """The cuBLAS that torch has loaded."""
    torch.cuda.current_blas_handle()  # loads it, if nothing has before
    paths = re.findall(r"\S*/libcublas\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if not paths:
        raise RuntimeError("multint: cuBLAS is not among the libraries torch has loaded; use backend='reference'")
    return ctypes.CDLL(paths[0])


def handle(dtype: torch.dtype, workspace: Tensor | None = None) -> int:
    """Torch's handle for the current stream, with the precision of recurrent layers and this workspace, if one is given.

    Torch sets both again whenever it takes the handle itself.
    """
    found: int = torch.cuda.current_blas_handle()
    if dtype == torch.float32:
        check(library().cublasSetMathMode(c_void_p(found), TF32_MATH if tf32() else DEFAULT_MATH), "a precision")
    if workspace is not None:
        size = workspace.numel()
        pointer = c_void_p(workspace.data_ptr())
        check(library().cublasSetWorkspace_v2(c_void_p(found), pointer, c_size_t(size)), f"a workspace of {size} bytes")
    return found


def check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"multint: cuBLAS answered status {status} to {what}")


def multiply(a: Tensor, w: Tensor, out: Tensor | None = None, add: bool = False) -> Tensor:
    """a w for matrices, or for stacks of them with one axis more; written to ``out``, or with ``add`` added to it."""
    if out is None:
        out = a.new_empty((*a.shape[:-1], w.shape[-1]))
    if a.dtype != torch.float32 or a.device.type != "cuda" or 0 in (*a.shape, *w.shape) or as_torch_has_it():
        if add:
            return out.addmm_(a, w)
        return torch.matmul(a, w, out=out)
    _multiply(a, w, out, add)
    return out


def _multiply(a: Tensor, w: Tensor, out: Tensor, add: bool) -> None:
    (w, turn_w, w_row), (a, turn_a, a_row) = _in_columns(w), _in_columns(a)
    (n, k), m, kind = a.shape[-2:], w.shape[-1], TYPES[a.dtype]
    numbers = c_float(1), c_float(1 if add else 0)
    head = (c_void_p(handle(a.dtype)), turn_w, turn_a, m, n, k, ctypes.byref(numbers[0]))
    matrices = [[c_void_p(x.data_ptr()), kind, row] for x, row in ((w, w_row), (a, a_row), (out, max(m, out.stride(-2))))]
    if a.dim() == 2:
        left, right, into = matrices
        status = library().cublasGemmEx(*head, *left, *right, ctypes.byref(numbers[1]), *into, SINGLE, CHOOSE)
    else:
        left, right, into = ([*matrix, c_longlong(x.stride(0))] for matrix, x in zip(matrices, (w, a, out), strict=True))
        gemm = library().cublasGemmStridedBatchedEx
        status = gemm(*head, *left, *right, ctypes.byref(numbers[1]), *into, c_int(a.shape[0]), SINGLE, CHOOSE)
    check(status, f"a product of {tuple(a.shape)} with {tuple(w.shape)}")


def _in_columns(x: Tensor) -> tuple[Tensor, int, int]:
    """A matrix, or a stack, as BLAS has it: whether it is turned, and how far its rows (or columns, if turned) are apart.

    A matrix that BLAS cannot read, such as one row expanded to several, is copied.
    """
    (rows, columns), (row, column) = x.shape[-2:], x.stride()[-2:]
    if (columns == 1 or column == 1) and (rows == 1 or row >= columns):
        return x, 0, max(columns, row)
    if (rows == 1 or row == 1) and (columns == 1 or column >= rows):
        return x, 1, max(rows, column)
    return x.contiguous(), 0, columns
