"""Does the loop in C++ ask cuBLAS and the driver for what Python's loop does? Both are played by callbacks: no GPU is needed."""

import ctypes
from ctypes import c_int, c_longlong, c_uint, c_void_p
from types import SimpleNamespace

import pytest
import torch

import multint
from multint.scan import cublas, walk
from multint.scan.walk import Launch, Product

reason = multint.backends()["cpu"]
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

HANDLE, STREAM = 0x7_0000_0001, 0x7_0000_0002  # beyond 32 bits, as addresses are
FUNCTION, SHARED = 0x7_0000_1000, 4096
CPU = torch.device("cpu")
DTYPES = {number: dtype for dtype, number in cublas.TYPES.items()}
INVALID_VALUE, NOT_SUPPORTED = 7, 15  # statuses of cuBLAS
SINGLE, CHOOSE = 68, 99  # cublasComputeType_t and cublasGemmAlgo_t
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}  # a rounding or two of the dtype

MATRIX = (c_void_p, c_int, c_int)  # address, type, leading dimension
BATCH = (*MATRIX, c_longlong)  # and from one to the next
SIZES = (c_void_p, *[c_int] * 5, c_void_p)  # handle, transpositions, m, n, k, alpha
GEMM = ctypes.CFUNCTYPE(c_int, *SIZES, *MATRIX, *MATRIX, c_void_p, *MATRIX, c_int, c_int)
GEMM_PARTS = ctypes.CFUNCTYPE(c_int, *SIZES, *BATCH, *BATCH, c_void_p, *BATCH, c_int, c_int, c_int)
LAUNCH = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
SET_WORKSPACE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, ctypes.c_size_t)
SET_MATH_MODE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)


def columns(address, kind, leading, rows, count):
    """A matrix whose columns lie ``leading`` values apart, as BLAS has them."""
    dtype, values = DTYPES[kind], (count - 1) * leading + rows
    memory = (ctypes.c_byte * (values * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, count), (1, leading))


class Vendor:
    """cuBLAS and the driver on CPU memory."""

    def __init__(self):
        self.calls, self.launches, self.workspaces, self.modes = [], [], [], []
        self.refuse_product, self.refuse_launch = {}, {}  # status by number of the call
        self.arguments = {}  # of a kernel besides the step, by function
        self.cublasGemmEx, self.cublasGemmStridedBatchedEx = GEMM(self.multiply), GEMM_PARTS(self.multiply_parts)
        self.cublasSetWorkspace_v2, self.cublasSetMathMode = SET_WORKSPACE(self.set_workspace), SET_MATH_MODE(self.set_mode)
        self.cuLaunchKernel = LAUNCH(self.launch)

    def functions(self):
        functions = (self.cublasGemmEx, self.cublasGemmStridedBatchedEx, self.cuLaunchKernel)
        return tuple(ctypes.cast(function, c_void_p).value for function in functions)

    def multiply(self, *given):
        *head, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algorithm = given
        self.calls.append("product")
        return self._product(head, (a, a_type, lda, 0), (b, b_type, ldb, 0), beta, (c, c_type, ldc, 0), 1, (compute, algorithm))

    def multiply_parts(self, *given):
        head, a, b, beta, c, (parts, *how) = given[:7], given[7:11], given[11:15], given[15], given[16:20], given[20:]
        self.calls.append(f"product in {parts} parts")
        return self._product(head, a, b, beta, c, parts, tuple(how))

    def _product(self, head, a, b, beta, c, parts, how):
        handle, turn_a, turn_b, m, n, k, alpha = head
        refused = self.refuse_product.get(len([call for call in self.calls if call != "launch"]))
        if refused:
            return refused
        numbers = [ctypes.c_float.from_address(x).value for x in (alpha, beta)]
        if handle != HANDLE or numbers not in ([1, 0], [1, 1]) or how != (SINGLE, CHOOSE) or len({a[1], b[1], c[1]}) > 1:
            return NOT_SUPPORTED
        shapes = [(k, m) if turn_a else (m, k), (n, k) if turn_b else (k, n), (m, n)]
        if any(x[2] < max(1, rows) for x, (rows, _) in zip((a, b, c), shapes, strict=True)):
            return INVALID_VALUE
        for part in range(parts):
            left, right, out = (
                columns(address + part * apart * DTYPES[kind].itemsize, kind, leading, *shape)
                for (address, kind, leading, apart), shape in zip((a, b, c), shapes, strict=True)
            )
            product = (left.t() if turn_a else left).float() @ (right.t() if turn_b else right).float()
            out.copy_(out + product if numbers[1] else product)  # with 0 BLAS does not read what lay there
        return 0

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
        self.calls.append("launch")
        refused = self.refuse_launch.get(self.calls.count("launch"))
        if refused:
            return refused
        count = self.arguments.get(function, 0)
        pointers = (c_void_p * (count + 3)).from_address(arguments)
        t = ctypes.c_int32.from_address(pointers[0]).value
        rest = [ctypes.c_int64.from_address(pointer).value for pointer in pointers[1:]]
        self.launches.append((function, (gx, gy, gz), (bx, by, bz), shared, stream, t, rest, extra))
        return 0

    def set_workspace(self, handle, address, size):
        self.workspaces.append((handle, address, size))
        return self.refuse_product.get("workspace", 0)

    def set_mode(self, handle, mode):
        self.modes.append((handle, mode))
        return 0


@pytest.fixture
def vendor(monkeypatch):
    vendor = Vendor()
    monkeypatch.setattr(walk, "_vendor", vendor.functions)
    monkeypatch.setattr(cublas, "library", lambda: vendor)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: HANDLE)

    def compiled(action, device, values):
        vendor.arguments[FUNCTION + action.flags["NUMBER"]] = len(values)
        return SimpleNamespace(function=FUNCTION + action.flags["NUMBER"], metadata=SimpleNamespace(shared=SHARED))

    monkeypatch.setattr(walk, "_compiled", compiled)
    return vendor


def kernel(*arguments, number=0, grid=(3, 2), warps=4):
    def run(t, *given, **flags):
        raise AssertionError("Python launched it")

    return Launch(run, grid, arguments, {"NUMBER": number}, warps)


def compiled_walk(actions, steps, workspace=None):
    walk._walk_compiled(actions, steps, CPU, workspace)


# --------------------------------------------------------------------------------------------------------------- products

T, N, K, M = 4, 3, 8, 5


class Memory:
    """Tensors of which an action sees a part; what it does not write must stay."""

    def __init__(self, dtype):
        self.dtype, self.made, self.random = dtype, [], torch.Generator().manual_seed(3)

    def given(self, *shape):
        self.made.append(torch.randn(shape, generator=self.random).to(self.dtype))
        return self.made[-1]

    def empty(self, *shape):  # results must not depend on what lay there
        self.made.append(torch.full(shape, torch.nan, dtype=self.dtype))
        return self.made[-1]


OPERANDS = {
    "whole": lambda m: m.given(T, N, K),
    "one for every step": lambda m: m.given(N, K),
    "columns of a wider one": lambda m: m.given(T, N, 3 * K)[..., K : 2 * K],
    "columns of a wider one for every step": lambda m: m.given(N, 3 * K)[:, K : 2 * K],
}
MATRICES = {
    "plain": lambda m: m.given(K, M),
    "rows of a taller one": lambda m: m.given(2 * K, M)[K:],
    "columns of a wider one": lambda m: m.given(K, 2 * M)[:, M:],
    "transposed": lambda m: m.given(M, K).t(),
    "columns of a transposed one": lambda m: m.given(2 * M, K).t()[:, M:],
    "rows of a transposed one": lambda m: m.given(M, 2 * K).t()[K:],
}
RESULTS = {
    "whole": lambda m: m.empty(T, N, M),
    "one for every step": lambda m: m.empty(N, M),
    "columns of a wider one": lambda m: m.empty(T, N, 3 * M)[..., M : 2 * M],
    "columns of a wider one for every step": lambda m: m.empty(N, 3 * M)[:, M : 2 * M],
    "2 parts": lambda m: m.empty(2, N, M),
    "4 parts": lambda m: m.empty(4, N, M),
    "2 parts, columns of wider ones": lambda m: m.empty(2, N, 3 * M)[..., M : 2 * M],
    "every other of 4 parts": lambda m: m.empty(4, N, M)[::2],
}


def parts_of(result):
    return 4 if result == "4 parts" else 2 if "parts" in result else 1


def assert_python_agrees(vendor, build, steps, dtype=torch.float32):
    """``build`` lays the actions out anew in the memory it is given; everything in it is compared, gaps too."""
    ours, expected = Memory(dtype), Memory(dtype)
    compiled_walk(build(ours), steps)
    walk.walk(build(expected), steps)
    for mine, theirs in zip(ours.made, expected.made, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)
    return ours


@pytest.mark.parametrize("steps", [range(T), range(T - 1, -1, -1)], ids=["forward", "backward"])
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("operand", OPERANDS)
def test_a_product_is_pythons_wherever_its_tensors_lie(vendor, operand, matrix, result, steps):
    parts = parts_of(result)

    def build(m):
        return [Product(OPERANDS[operand](m), MATRICES[matrix](m), RESULTS[result](m), parts=parts)]

    made = assert_python_agrees(vendor, build, steps)
    assert vendor.calls == ["product" if parts == 1 else f"product in {parts} parts"] * T
    assert made.made[-1].isfinite().any()


@pytest.mark.parametrize("dtype", cublas.TYPES)
@pytest.mark.parametrize("result", ["columns of a wider one", "2 parts, columns of wider ones"])
@pytest.mark.parametrize("matrix", ["plain", "rows of a transposed one"])
def test_a_product_is_pythons_in_every_dtype(vendor, dtype, matrix, result):
    def build(m):
        operand = OPERANDS["columns of a wider one"](m)
        return [Product(operand, MATRICES[matrix](m), RESULTS[result](m), parts=parts_of(result))]

    assert_python_agrees(vendor, build, range(T), dtype)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shift, steps", [(-1, range(T)), (1, range(T - 1, -1, -1))], ids=["before", "after"])
def test_a_shifted_product_takes_the_operand_of_another_step_and_a_later_one_leaves_out_the_first(vendor, shift, steps, parts):
    def build(m):
        wide, w = m.given(T, N, 2 * K), m.given(M, K).t()
        return [Product(wide[..., K:], w, m.empty(2, N, M) if parts == 2 else m.empty(T, N, M), shift, parts, later=True)]

    made = assert_python_agrees(vendor, build, steps)
    assert len(vendor.calls) == T - 1
    if parts == 1:
        assert made.made[-1].isnan().flatten(1).all(1).tolist() == [t == steps[0] for t in range(T)]


@pytest.mark.parametrize("steps", [range(T), range(T - 1, -1, -1)], ids=["forward", "backward"])
def test_a_product_reads_what_an_earlier_action_or_step_wrote(vendor, steps):
    """As a cell does: U times the output before, of which the last action makes the next output."""

    def build(m):
        outputs, w, u = m.given(T, N, K), m.given(M, K).t(), m.given(M, K)
        between = m.empty(T, N, 2 * M)
        first = Product(outputs, w, between[..., :M], -steps.step, later=True)
        begin = Product(m.given(N, K), w, between[..., M:])
        return [first, begin, Product(between[..., M:], u, outputs)]

    assert_python_agrees(vendor, build, steps)
    assert len(vendor.calls) == 3 * T - 1


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("steps", [range(1), range(2, 3), range(1, 4), range(0)], ids=str)
def test_few_rows_and_few_steps_are_no_exception(vendor, n, steps):
    def build(m):
        return [
            Product(m.given(T, n, K), m.given(K, M), m.empty(T, n, M)),
            Product(m.given(n, K), m.given(M, K).t(), m.empty(n, M)),
        ]

    assert_python_agrees(vendor, build, steps)
    assert len(vendor.calls) == 2 * len(steps)


# ---------------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("steps", [range(T), range(T - 1, -1, -1)], ids=["forward", "backward"])
def test_a_kernel_is_launched_at_every_step_with_that_step_and_its_arguments(vendor, steps):
    x, y = torch.randn(3), torch.randn(5)
    compiled_walk([kernel(17, -2, x, y, number=1, grid=(3, 2), warps=8)], steps)
    place = (FUNCTION + 1, (3, 2, 1), (256, 1, 1), SHARED, STREAM)
    arguments = [17, -2, x.data_ptr(), y.data_ptr(), 0, 0]  # and no scratch memory
    assert vendor.launches == [(*place, t, arguments, None) for t in steps]


def test_kernels_and_products_come_in_the_order_of_the_list(vendor):
    x = torch.randn(3)
    later = Product(torch.randn(T, N, K), torch.randn(K, M), torch.empty(T, N, M), -1, later=True)
    second = Product(torch.randn(T, N, K), torch.randn(K, M), torch.empty(2, N, M), parts=2)
    compiled_walk([later, kernel(1, x), second, kernel(2, 3, x, number=1)], range(T))
    once = ["product", "launch", "product in 2 parts", "launch"]
    assert vendor.calls == once[1:] + once * (T - 1)
    assert [(function - FUNCTION, t, rest) for function, *_, t, rest, _ in vendor.launches] == [
        (number, t, [*numbers, x.data_ptr(), 0, 0]) for t in range(T) for number, numbers in ((0, [1]), (1, [2, 3]))
    ]


def test_a_kernel_may_be_all_there_is(vendor):
    compiled_walk([kernel(5, torch.empty(1))], range(1))
    assert vendor.calls == ["launch"]


@pytest.mark.parametrize("grid", [(0, 2), (3, 0)])
def test_an_empty_grid_launches_nothing(vendor, grid):
    out = torch.full((T, N, M), torch.nan)
    walk.walk([Product(torch.randn(T, N, K), torch.randn(K, M), out), kernel(5, torch.empty(1), grid=grid)], range(T))
    assert vendor.calls == []
    assert out.isnan().all()


def test_structures_have_the_fields_of_the_loop():
    names = [name for name, _ in walk._Product._fields_]
    assert names[:4] + names[11:] == ["a", "a_step", "a_row", "a_part", "rows", "columns", "terms", "parts", "shift", "transposed"]
    assert (ctypes.sizeof(walk._Product), ctypes.sizeof(walk._Launch)) == (11 * 8 + 6 * 4, 3 * 8 + 4 * 4)
    assert (ctypes.sizeof(walk._Action), walk._Action.launch.offset) == (8 + 112 + 40, 120)
    assert ctypes.sizeof(walk._Where) == 5 * 8 + 2 * 4


# --------------------------------------------------------------------------------------------------------------- failures


def everything():
    whole = Product(torch.randn(T, N, K), torch.randn(K, M), torch.empty(T, N, M))
    return [whole, kernel(5, torch.empty(1)), Product(torch.randn(T, N, K), torch.randn(K, M), torch.empty(2, N, M), parts=2)]


@pytest.mark.parametrize("status", [1, 7, 13, 14])
@pytest.mark.parametrize("call, calls", [(1, 1), (2, 3), (5, 7), (2 * T, 3 * T)])
def test_what_cublas_refuses_ends_the_loop_and_is_named(vendor, status, call, calls):
    vendor.refuse_product = {call: status}
    with pytest.raises(RuntimeError, match=f"^multint: cuBLAS answered status {status} while a step was launched$"):
        compiled_walk(everything(), range(T))
    assert len(vendor.calls) == calls


@pytest.mark.parametrize("error", [1, 2, 700, 719])
@pytest.mark.parametrize("call, calls", [(1, 2), (3, 8)])
def test_what_the_driver_refuses_ends_the_loop_and_is_named(vendor, error, call, calls):
    vendor.refuse_launch = {call: error}
    with pytest.raises(RuntimeError, match=f"^multint: the CUDA driver answered error {error} while a step was launched$"):
        compiled_walk(everything(), range(T))
    assert len(vendor.calls) == calls
    assert len(vendor.launches) == call - 1


# -------------------------------------------------------------------------------------------------------------- workspace


def test_cublas_gets_a_workspace_before_the_first_product_if_there_is_one(vendor):
    compiled_walk(everything(), range(T))
    assert vendor.workspaces == []
    workspace = torch.empty(64, dtype=torch.uint8)
    compiled_walk(everything(), range(T), workspace)
    assert vendor.workspaces == [(HANDLE, workspace.data_ptr(), 64)]


def test_a_workspace_that_cublas_refuses_is_named_and_nothing_is_launched(vendor):
    vendor.refuse_product = {"workspace": 7}
    with pytest.raises(RuntimeError, match="^multint: cuBLAS answered status 7 to a workspace of 64 bytes$"):
        compiled_walk(everything(), range(T), torch.empty(64, dtype=torch.uint8))
    assert vendor.calls == []


# -------------------------------------------------------------------------------------------------------------- precision


@pytest.fixture
def precision():
    """Sets the precision of recurrent layers and of other products, for one test."""
    places = torch.backends.cudnn.rnn, torch.backends.cuda.matmul
    before = [place.fp32_precision for place in places]

    def set_to(*values):
        for place, value in zip(places, values, strict=True):
            place.fp32_precision = value

    yield set_to
    set_to(*before)


@pytest.mark.parametrize("rnn, mode", [("tf32", 3), ("ieee", 0), ("none", 0)])
@pytest.mark.parametrize("matmul", ["tf32", "ieee"])
def test_float32_products_have_the_precision_of_recurrent_layers(vendor, precision, rnn, mode, matmul):
    precision(rnn, matmul)
    compiled_walk(everything(), range(T))
    cublas._multiply(torch.randn(N, K), torch.randn(K, M), torch.empty(N, M), add=False)
    assert vendor.modes == [(HANDLE, mode)] * 2
    assert cublas.as_torch_has_it() == ((rnn == "tf32") == (matmul == "tf32"))


def test_other_products_leave_the_precision_alone(vendor):
    narrow = Product(*(torch.randn(*shape).bfloat16() for shape in ((T, N, K), (K, M), (T, N, M))))
    compiled_walk([narrow], range(T))
    assert vendor.modes == []


def laid_out(how, rows, columns):
    """A random matrix whose memory lies in one way or another."""
    if how == "every other column":
        return torch.randn(rows, 2 * columns)[:, ::2]
    if how == "columns of a wider one":
        return torch.randn(rows, columns + 3)[:, 1 : columns + 1]
    if how == "one row, expanded":
        return torch.randn(1, columns).expand(rows, columns)
    if how == "one column, expanded":
        return torch.randn(rows, 1).expand(rows, columns)
    return torch.randn(columns, rows).t() if how == "transposed" else torch.randn(rows, columns)


LAYOUTS = ("plain", "transposed", "columns of a wider one", "every other column", "one row, expanded", "one column, expanded")


@pytest.mark.parametrize("n, k, m", [(3, 8, 5), (1, 8, 5), (3, 1, 5), (3, 8, 1), (1, 1, 1)])
@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_w", LAYOUTS)
@pytest.mark.parametrize("add", [False, True])
def test_a_single_product_is_torchs_wherever_its_tensors_lie(vendor, of_a, of_w, add, n, k, m):
    a, w, out = laid_out(of_a, n, k), laid_out(of_w, k, m), torch.randn(n, m + 2)[:, :m]
    expected = a @ w + (out if add else 0)
    cublas._multiply(a, w, out, add)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_stack_of_products_is_torchs(vendor, turned):
    a, out = torch.randn(N, 2 * K).unflatten(1, (2, K)).transpose(0, 1), torch.empty(2, N, M)
    w = (torch.randn(M, 2 * K).t() if turned else torch.randn(2 * K, M)).unflatten(0, (2, K))
    cublas._multiply(a, w, out, False)
    torch.testing.assert_close(out, a @ w, rtol=1e-5, atol=1e-5)
    assert vendor.calls == ["product in 2 parts"]


def test_a_product_that_cublas_refuses_is_named(vendor):
    vendor.refuse_product = {1: 7}
    with pytest.raises(RuntimeError, match=r"^multint: cuBLAS answered status 7 to a product of \(3, 8\) with \(8, 5\)$"):
        cublas._multiply(torch.randn(N, K), torch.randn(K, M), torch.empty(N, M), add=False)
