"""Do the persistent kernels compile, and does their arithmetic of places come out right? Nothing here needs a GPU."""

import contextlib
import ctypes
import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from multint.cells import CELLS, State
from multint.integration import Vectors
from multint.scan import build, gpu_persistent, nvrtc, reference
from multint.scan.contract import Problem
from multint.scan.gpu_engine import Inputs, padded
from multint.scan.gpu_persistent import CSRC, gates_first, gates_last, grid_plan, in_clusters, padded_width, shared_bytes, source

H200 = 132  # multiprocessors
MOST_SHARED = 227 * 1024  # bytes of a thread block


def _no_compiler():
    try:
        nvrtc.compiler()
    except nvrtc.Unavailable as reason:
        return str(reason)
    return None


needs_nvrtc = pytest.mark.skipif(_no_compiler() is not None, reason=f"{_no_compiler()}")

VARIANTS = [
    ("FINISH", {}),
    ("TURN", {}),
    *(("GRID_FORWARD", {"HP": hp, "COLUMNS": n}) for hp, n in [(1024, 64), (704, 32), (1024, 16), (64, 8), (576, 32)]),
    *(("GRID_BACKWARD", {"HP": hp, "COLUMNS": n, "QUADS": 0}) for hp, n in [(1024, 64), (704, 32), (64, 8)]),
    *(("GRID_BACKWARD", {"HP": hp, "COLUMNS": n, "QUADS": 1}) for hp, n in [(704, 32), (1024, 16), (64, 8), (576, 32)]),
    *((kind, {"HP": hp}) for kind in ("CLUSTER_FORWARD", "CLUSTER_BACKWARD") for hp in (64, 256, 320)),
]


@needs_nvrtc
@pytest.mark.parametrize("kind, defines", VARIANTS)
def test_every_kind_of_kernel_compiles_and_has_registers_enough(kind, defines):
    program = source(kind, **defines)
    cubin, log = nvrtc.compile_source(program.name, program.text, dict(program.headers), (*program.options, "--ptxas-options=-v"))
    assert cubin.startswith(b"\x7fELF")
    assert f"'{kind.lower()}'" in log
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    # the largest may put a few values aside that are the same at every step
    assert max(map(int, spilled.groups())) <= (16 if defines.get("COLUMNS") == 64 else 0), log
    assert "C75" not in log, "products with U wait for each other"
    assert "warning" not in log, log


@needs_nvrtc
def test_a_source_that_does_not_compile_says_where():
    with pytest.raises(nvrtc.NotCompiled, match=r"(?s)wrong\.cu.*error: identifier \"nonsense\" is undefined"):
        nvrtc.compile_source("wrong.cu", "__global__ void f() { nonsense(); }", {}, ("--gpu-architecture=sm_90a",))


@needs_nvrtc
def test_a_cubin_is_compiled_once_and_again_when_what_was_kept_is_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path))
    program = nvrtc.Source("tiny.cu", 'extern "C" __global__ void f(int* p) { *p = 1; }', (), ("--gpu-architecture=sm_90a",))
    made = program.cubin()
    path = program.path
    assert [*build.cache_folder().iterdir()] == [path]
    assert path.name.startswith("tiny-")
    assert path.read_bytes() == made
    with monkeypatch.context() as without:
        without.setattr(nvrtc, "compile_source", lambda *_: pytest.fail("compiled again"))
        assert program.cubin() == made
    path.write_bytes(made[:100])  # an ELF's beginning: only the driver can tell, and asks anew
    assert program.cubin() == made[:100]
    assert program.cubin(anew=True) == made == path.read_bytes()
    path.write_bytes(b"")
    assert program.cubin() == made == path.read_bytes()
    assert replace(program, options=(*program.options, "-DX")).path != path
    assert replace(program, text=program.text + " ").path != path


@needs_nvrtc
def test_without_a_folder_that_can_be_written_kernels_are_compiled_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "file"))
    program = nvrtc.Source("tiny.cu", 'extern "C" __global__ void f() {}', (), ("--gpu-architecture=sm_90a",))
    assert program.cubin().startswith(b"\x7fELF")


def test_a_program_the_driver_refuses_is_compiled_anew_once(monkeypatch):
    given, loaded = [], []

    def module(cubin):
        loaded.append(cubin)
        if cubin == b"broken":
            raise RuntimeError("cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (200)")
        return ctypes.c_void_p(1)

    def cubin(_, anew=False):
        given.append(anew)
        return b"whole" if anew else b"broken"

    monkeypatch.setattr(nvrtc.Source, "cubin", cubin)
    monkeypatch.setattr(nvrtc, "_module", module)
    monkeypatch.setattr(nvrtc, "cuda", lambda *_: None)
    kernel = nvrtc.load(nvrtc.Source("x.cu", "", (), ()), "f", 0, threads=256, shared=1024, cluster=10, cooperative=True)
    assert (given, loaded) == ([False, True], [b"broken", b"whole"])
    assert [(a.id, *a.value[:3]) for a in kernel.attributes] == [(nvrtc.COOPERATIVE, 1, 0, 0), (nvrtc.CLUSTER_DIMENSION, 10, 1, 1)]
    config = kernel._config((7, 3), 0, kernel.attributes)
    assert (config.grid_x, config.grid_y, config.grid_z, config.block_x, config.shared, config.count) == (7, 3, 1, 256, 1024, 2)


def test_structures_lie_as_in_cuda_h_and_in_the_kernel():
    assert (ctypes.sizeof(nvrtc._Attribute), nvrtc._Attribute.value.offset) == (72, 8)
    assert (ctypes.sizeof(nvrtc._Config), nvrtc._Config.stream.offset, nvrtc._Config.count.offset) == (56, 32, 48)
    text = re.sub(r"//.*", "", (CSRC / "persistent.cu").read_text())
    for name in ("Forward", "Backward", "Finish"):
        body = re.search(rf"struct {name} {{(.*?)}};", text, re.DOTALL)[1]
        found = [n for line in body.split(";") for n in re.findall(r"(\w+)(?=,|$)", line.strip())]
        assert found == [field[0] for field in getattr(gpu_persistent, f"_{name}")._fields_]


# ------------------------------------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize("n, h, columns, blocks", [(64, 704, 32, 88), (128, 1024, 64, 128), (16, 1024, 16, 64), (1, 576, 8, 36)])
def test_the_batch_is_split_as_was_measured_fast(n, h, columns, blocks):
    plan = grid_plan(n, padded_width(h), H200)
    assert (plan.columns, plan.groups * padded_width(h) // 16, plan.slices) == (columns, blocks, 1)


@pytest.mark.parametrize("sms", [78, 114, H200])
def test_every_plan_covers_the_batch_and_fits_the_gpu(sms):
    for n, h in itertools.product([1, 7, 8, 9, 63, 64, 65, 100, 128, 129, 200, 300, 512, 1000], range(1, 1025, 31)):
        hp = padded_width(h)
        plan = grid_plan(n, hp, sms)
        assert plan.groups * hp // 16 <= sms
        assert plan.rows * (plan.slices - 1) < n <= plan.rows * plan.slices
        assert plan.columns in (8, 16, 32, 64)


def test_no_plan_where_the_gpu_is_too_small():
    assert grid_plan(1, 1024, 63) is None


@pytest.mark.parametrize(
    "n, h, clusters", [(32, 256, True), (16, 320, True), (16, 352, False), (1000, 256, False), (100_000, 64, True)]
)
def test_small_layers_run_in_clusters(n, h, clusters):
    assert in_clusters(n, padded_width(h), H200) is clusters


def test_shared_memory_suffices():
    widths = range(64, 1025, 64)
    most = [shared_bytes(kind, hp, 64) for kind in ("GRID_FORWARD", "GRID_BACKWARD") for hp in widths]
    most += [shared_bytes(kind, hp) for kind in ("CLUSTER_FORWARD", "CLUSTER_BACKWARD") for hp in range(64, 321, 64)]
    assert max(most) <= MOST_SHARED


# ----------------------------------------------------------------------------------------------------------- the interface


def problem(t=3, n=2, h=40, i=5, dtype=torch.bfloat16, **changes):
    given = {"cell": "lstm", "phi": "tanh", "tokens": None, "x": torch.randn(t, n, i, dtype=dtype), "bias_hn": None}
    given |= {"wx": torch.randn(4 * h, i, dtype=dtype), "u": torch.randn(4 * h, h, dtype=dtype), "vectors": torch.randn(4, 4 * h)}
    given |= {"h": torch.randn(n, h), "c": torch.randn(n, h)}
    given |= dict.fromkeys(("lengths", "resets", "restart_h", "restart_c"))
    return Inputs(**(given | changes))


def whole_problem(n=2, h=40, cell="lstm", dtype=torch.bfloat16, device="cpu", **changes):
    u, wx, state = (
        torch.empty(4 * h, h, dtype=dtype, device=device),
        torch.empty(3, n, 4 * h, dtype=dtype, device=device),
        torch.empty(n, h),
    )
    return Problem(CELLS[cell], "general", wx, u, Vectors(), State(state, state), **changes)


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"cell": "gru"}, "for the cell 'lstm', not 'gru'"),
        ({"dtype": torch.float16}, "store bfloat16, not torch.float16"),
        ({"resets": torch.zeros(3, 2, dtype=torch.bool)}, "no resets"),
        ({"h": 1025}, "room for 1024 units, not 1025"),
        ({}, "on cpu, not on a GPU"),
    ],
)
def test_what_it_cannot_run_it_refuses_in_words(given, reason):
    assert reason in gpu_persistent.why_not(whole_problem(**given))


def test_each_device_is_asked_for_its_own_kind(monkeypatch):
    kinds = {0: (8, 0), 1: (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", kinds.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    gpu_persistent._other_kind.cache_clear()
    assert gpu_persistent.other_kind(1) is None
    assert gpu_persistent.other_kind(0) == "needs a GPU of compute capability 9.0 (Hopper), this is GPU 0 with 8.0"
    gpu_persistent._other_kind.cache_clear()


def test_batches_of_too_many_slices_are_refused(monkeypatch):
    monkeypatch.setattr(gpu_persistent, "missing", lambda: None)
    monkeypatch.setattr(gpu_persistent, "other_kind", lambda _: None)
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: H200)

    def why_not(n, h):
        with FakeTensorMode():
            return gpu_persistent.why_not(whole_problem(n, h, device="cuda:0"))

    assert why_not(512, 1024) is None
    assert "513 rows of 1024 units in 5 slices, more than 4" in why_not(513, 1024)
    assert why_not(100_000, 320) is None
    for n, h in itertools.product((1, 100, 600, 1000, 3000), (60, 320, 321, 700, 1024)):
        hp = padded_width(h)
        assert (why_not(n, h) is None) == (in_clusters(n, hp, H200) or grid_plan(n, hp, H200).slices <= 4)
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: 60)
    assert "need 64 multiprocessors for 1000 units, this GPU has 60" in why_not(4, 1000)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    assert gpu_persistent.missing() == "no CUDA device"


def test_what_is_kept_is_padded_and_with_tokens_has_no_flow():
    shapes = [shape for shape, _ in gpu_persistent.kept(problem())]
    assert shapes[:3] == [(3, 2, 256), (3, 2, 64), (3, 2, 256)]  # U h, c, W x; then W
    assert len(shapes) == 4 and shapes[3][0] == 256
    tokens = problem(x=None, wx=torch.randn(9, 160, dtype=torch.bfloat16), tokens=torch.zeros(3, 2, dtype=torch.int64))
    assert [shape for shape, _ in gpu_persistent.kept(tokens)] == shapes[:2]


@pytest.mark.parametrize("h, hp", [(1, 64), (40, 64), (64, 64), (70, 128)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gates_first_undoes_gates_last(h, hp, dim):
    shape = [3, 2, 5]
    shape[dim] = 4 * h
    x = torch.randn(shape)
    packed = gates_last(x, hp, dim)
    assert packed.is_contiguous()
    assert packed.shape[dim] == 4 * hp
    for unit, gate in itertools.product((0, h - 1), range(4)):
        assert torch.equal(packed.select(dim, 4 * unit + gate), x.select(dim, gate * h + unit))
    assert packed.narrow(dim, 4 * h, 4 * (hp - h)).abs().sum() == 0
    assert torch.equal(gates_first(packed, h, dim), x)


# ----------------------------------------------------------------------------- what is done around the kernels, on a CPU
# The kernels' work in a few lines of torch, on the memory whose addresses they would get.


def memory(address, dtype, *shape):
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


def step(a, c):
    i, f, z, o = a.unbind(-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(c), c


class Memory:
    def __init__(self, p, hp, transposed=False):
        self.p, self.t, self.n, self.h, self.hp = p, p.steps, p.batch, p.width, hp
        self.vectors = gates_last(memory(p.vectors, torch.float32, 4, 4 * self.h), hp, 1).view(4, hp, 4)
        shape = (self.h, self.h, 4) if transposed else (4, self.h, self.h)
        u = memory(p.u, torch.bfloat16, *shape).float()
        self.u = gates_last((u.permute(2, 1, 0) if transposed else u).reshape(4 * self.h, self.h), hp, 0)
        tokens = memory(p.tokens, torch.int64, self.t * self.n) if p.tokens else torch.arange(self.t * self.n)
        self.flow = memory(p.flow, torch.bfloat16, int(tokens.max()) + 1, hp, 4)[tokens].float().view(self.t, self.n, hp, 4)
        self.lengths = memory(p.lengths, torch.int64, self.n) if p.lengths else torch.full((self.n,), self.t)

    def over_time(self, name, gates=4, dtype=torch.bfloat16):
        shape = (self.t, self.n, self.hp, gates) if gates else (self.t, self.n, self.hp)
        return memory(getattr(self.p, name), dtype, *shape)

    def rows(self, name):
        return memory(getattr(self.p, name), torch.float32, self.n, self.h)

    def sums(self, t, uz):
        alpha, beta1, beta2, b = self.vectors
        return alpha * self.flow[t] * uz + beta1 * uz + beta2 * self.flow[t] + b


def forward_in_torch(p, hp):
    m = Memory(p, hp)
    h, c = (padded(m.rows(name), hp) for name in "hc")
    outputs = memory(p.outputs, torch.bfloat16, m.t, m.n, m.h)
    for t in range(m.t):
        uz = (h.bfloat16().float() @ padded(m.u, hp).T).view(m.n, hp, 4)
        if p.uz:
            m.over_time("uz")[t], m.over_time("cs", 0, torch.float32)[t] = uz.bfloat16(), c
        inside = (t < m.lengths)[:, None]
        h, c = (torch.where(inside, new, old) for new, old in zip(step(m.sums(t, uz), c), (h, c), strict=True))
        outputs[t] = h[:, : m.h]
    m.rows("last_h")[:], m.rows("last_c")[:] = h[:, : m.h], c[:, : m.h]


def backward_in_torch(p, hp):
    m = Memory(p, hp, transposed=True)
    d_h, d_c = (padded(m.rows(name), hp) for name in ("d_last_h", "d_last_c"))
    product = torch.zeros_like(d_h)
    for t in reversed(range(m.t)):
        uz, c = m.over_time("uz")[t].float().requires_grad_(), m.over_time("cs", 0, torch.float32)[t].clone().requires_grad_()
        sums = m.sums(t, uz)
        d_h = d_h + product + padded(memory(p.d_outputs, torch.bfloat16, m.t, m.n, m.h)[t].float(), hp)
        d_gates, d_uz, d_before = torch.autograd.grad(step(sums, c), (sums, uz, c), (d_h, d_c))
        inside = (t < m.lengths)[:, None]
        d_uz, d_gates = (torch.where(inside[..., None], d, 0) for d in (d_uz, d_gates))
        m.over_time("d_uz")[t], m.over_time("d_gates")[t] = d_uz.bfloat16(), d_gates.bfloat16()
        product = d_uz.flatten(1) @ padded(m.u, hp)
        d_h, d_c = torch.where(inside, 0, d_h), torch.where(inside, d_before, d_c)
    m.rows("d_h")[:], m.rows("d_c")[:] = d_h[:, : m.h], d_c[:, : m.h]


class FinishInTorch:
    def launch(self, grid, p, stream):
        rows, hp = p.rows, p.padded
        no_u = torch.zeros(4 * p.width, p.width, dtype=torch.bfloat16)
        p.steps, p.batch, p.u, p.lengths = rows, 1, no_u.data_ptr(), None
        m = Memory(p, hp)
        d_gates, sums = m.over_time("d_gates"), memory(p.sums, torch.float32, grid[1], 4, hp, 4)
        d, uz = d_gates.float(), m.over_time("uz").float()
        sums.zero_()
        sums[0] = torch.stack([(d * uz * m.flow).sum((0, 1)), (d * uz).sum((0, 1)), (d * m.flow).sum((0, 1)), d.sum((0, 1))])
        d_gates[:] = (d * (m.vectors[0] * uz + m.vectors[2])).bfloat16()


@pytest.fixture
def kernels_in_torch(monkeypatch):
    passes = {"FORWARD": forward_in_torch, "BACKWARD": backward_in_torch}

    def launch(kind, given, n, hp, like):
        assert given.batch == n
        passes[kind](given, hp)

    mm = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda a, b, out_dtype=None: mm(a, b) if out_dtype is None else mm(a.to(out_dtype), b.to(out_dtype))
    )
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: H200)
    monkeypatch.setattr(gpu_persistent, "_launch", launch)
    monkeypatch.setattr(gpu_persistent, "_turned", lambda u: u.unflatten(0, (4, -1)).permute(2, 1, 0).contiguous())
    monkeypatch.setattr(gpu_persistent, "_finish_kernel", lambda _: FinishInTorch())


@pytest.mark.parametrize("t, n, h", [(1, 1, 1), (4, 3, 33), (5, 2, 64)])
@pytest.mark.parametrize("kind", ["x", "tokens", "flows"])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_passes_around_the_kernels_agree_with_the_reference(kernels_in_torch, t, n, h, kind, ragged):
    generator = torch.Generator().manual_seed(t)

    def drawn(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=generator).mul(0.5).to(dtype)

    i, symbols = 5, 7
    x, tokens = None, None
    if kind == "x":
        x, wx = drawn(t, n, i), drawn(4 * h, i)
    elif kind == "tokens":
        tokens, wx = torch.randint(symbols, (t, n), generator=generator), drawn(symbols, 4 * h)
    else:
        wx = drawn(t, n, 4 * h)
    u, vectors, h0, c0 = drawn(4 * h, h), drawn(4, 4 * h, dtype=torch.float32), *drawn(2, n, h, dtype=torch.float32)
    lengths = torch.arange(n) % (t + 1) if ragged else None
    p = replace(problem(), wx=wx, tokens=tokens, x=x, u=u, vectors=vectors, h=h0, c=c0, lengths=lengths)

    found = gpu_persistent.forward(p, True)
    assert [(tuple(k.shape), k.dtype) for k in found.kept] == gpu_persistent.kept(p)
    assert gpu_persistent.forward(p, False).kept == ()
    grads = drawn(t, n, h), drawn(n, h, dtype=torch.float32), drawn(n, h, dtype=torch.float32)
    names = ["wx", "u", "vectors", "h", "c", *(["x"] if kind == "x" else [])]
    got = gpu_persistent.backward(p, found.kept, found.outputs, grads, frozenset(names))

    exact = {name: getattr(p, name).double().requires_grad_() for name in names}
    whole = Problem(
        CELLS["lstm"], "general", exact["wx"], exact["u"], Vectors(*exact["vectors"]), State(exact["h"], exact["c"]),
        tokens=tokens, x=exact.get("x"), lengths=lengths,
    )  # fmt: skip
    result = reference.run(whole)
    expected = (result.outputs, result.state.h, result.state.c)
    for a, b in zip((found.outputs, found.h, found.c), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0.02, atol=0.02)
    wanted = torch.autograd.grad(expected, list(exact.values()), [g.double() for g in grads], allow_unused=True)
    for name, b in zip(exact, wanted, strict=True):
        a = getattr(got, name)
        assert (a.shape, a.dtype) == (getattr(p, name).shape, getattr(p, name).dtype)
        b = torch.zeros_like(exact[name]) if b is None else b
        assert (a.double() - b).norm() <= 0.02 * b.norm() + 1e-6, name
    nothing = gpu_persistent.backward(p, found.kept, found.outputs, grads, frozenset())
    assert all(value is None for value in vars(nothing).values())


# ---------------------------------------------------------------------------------------- the kernels' places, emulated
# What wgmma does with registers and shared memory, as the PTX manual has it; and who reads and writes what, as persistent.cu does.


def in_tile(n, piece):
    return n * 128 + ((piece ^ (n & 7)) << 4)


def operand(tiles, address, columns):
    """The 16 values of k of each column at a descriptor's address: bits 4-6 of an address are xored with bits 7-9."""
    n, k = np.meshgrid(np.arange(columns), np.arange(16), indexing="ij")
    at = address + n // 8 * 1024 + n % 8 * 128 + 2 * k
    return tiles[(at ^ ((at >> 7 & 7) << 4)) // 2]


def product(fragment, tiles, address, columns):
    """Accumulators of one warpgroup, [warp, lane, 4 * eights], from its fragments, [warp, lane, 4 registers, 2 values]."""
    a = np.zeros((64, 16), dtype=np.int64)
    for warp, lane, r, v in itertools.product(range(4), range(32), range(4), range(2)):
        a[16 * warp + lane // 4 + 8 * (r & 1), 2 * (lane % 4) + v + 8 * (r >> 1)] = fragment[warp, lane, r, v]
    full = a @ operand(tiles, address, columns).T
    d = np.zeros((4, 32, columns // 2), dtype=np.int64)
    for warp, lane, i in itertools.product(range(4), range(32), range(columns // 2)):
        d[warp, lane, i] = full[16 * warp + lane // 4 + 8 * (i >> 1 & 1), 8 * (i // 4) + 2 * (lane % 4) + (i & 1)]
    return d


def u_fragment(u, h, unit0, k0):
    """``load_u`` of one step in k for the warpgroup whose first unit is unit0."""
    a = np.zeros((4, 32, 4, 2), dtype=np.int64)
    for warp, lane, r, v in itertools.product(range(4), range(32), range(4), range(2)):
        q, l = lane // 4, lane % 4
        unit, gate, k = unit0 + 4 * warp + (q & 3), (2 if q >= 4 else 0) + (r & 1), k0 + 2 * l + 8 * (r >> 1) + v
        a[warp, lane, r, v] = u[gate * h + unit, k] if unit < h and k < h else 0
    return a


def u_transposed_fragment(u, h, m0, k0, warps=4):
    """``load_u_transposed`` of one step in k for the warpgroup whose first row of U^T is m0."""
    a = np.zeros((4, 32, 4, 2), dtype=np.int64)
    for warp, lane, r, v in itertools.product(range(warps), range(32), range(4), range(2)):
        m, k = m0 + 16 * warp + lane // 4 + 8 * (r & 1), k0 + 2 * (lane % 4) + 8 * (r >> 1)
        unit, gate = k >> 2, (k & 3) + v
        a[warp, lane, r, v] = u[gate * h + unit, m] if unit < h and m < h else 0
    return a


def all_gates(v, lane):
    """What a lane has after ``all_gates``: v[lane] are its four accumulators of an eight of columns."""
    other = v[lane ^ 16]
    if lane >= 16:
        return [other[1], other[3], v[lane][1], v[lane][3]]
    return [v[lane][0], v[lane][2], other[0], other[2]]


def integers(*shape):
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape)


@pytest.mark.parametrize("h, columns", [(64, 8), (100, 16), (192, 32), (70, 64)])
def test_a_forward_step_through_l2_multiplies_by_u(h, columns):
    hp = padded_width(h)
    u, state = integers(4 * h, h), integers(columns, h)
    parts, chunks, steps, eights = hp // 16, hp // 64, hp // 32, columns // 8
    own = max(1, eights // 2)
    exchange = np.zeros((chunks, columns * 64), dtype=np.int64)
    for part, tid in itertools.product(range(parts), range(2 * columns)):
        staged = np.zeros((columns, 16), dtype=np.int64)
        units = np.arange(part * 16, part * 16 + 16)
        staged[:, units < h] = state[:, units[units < h]]
        at = in_tile(tid >> 1, (part & 3) * 2 + (tid & 1)) // 2
        exchange[part >> 2, at : at + 8] = staged.reshape(-1)[tid * 8 : tid * 8 + 8]
    tiles = exchange.reshape(-1)
    uz = np.full((columns, hp, 4), 10**6)
    for part in range(parts):
        d = []
        for half in range(2):
            ks = [half * steps + s for s in range(steps)]
            parts_of_sum = [
                product(u_fragment(u, h, part * 16, k * 16), tiles, (k >> 2) * columns * 128 + (k & 3) * 32, columns) for k in ks
            ]
            d.append(sum(parts_of_sum))
        for half, warp, lane, j in itertools.product(range(2 if eights > 1 else 1), range(4), range(32), range(own)):
            other = 4 * own if eights > 1 else 0
            at = (other if half else 0) + 4 * j
            given = d[1 - half][warp, :, at : at + 4]  # what lies in ``halves`` for this warpgroup
            gates = all_gates(d[half][warp, :, at : at + 4] + given, lane)
            column = 8 * (half * own if eights > 1 else 0) + 2 * (lane % 4) + (lane >= 16) + 8 * j
            uz[column, part * 16 + 4 * warp + (lane // 4 & 3)] = gates
    expected = (state @ u.T).reshape(columns, 4, h).transpose(0, 2, 1)
    assert np.array_equal(uz[:, :h], expected)
    assert not uz[:, h:].any()


@pytest.mark.parametrize("h, columns", [(64, 8), (100, 16), (192, 32), (70, 64)])
def test_a_backward_step_through_l2_multiplies_by_u_transposed(h, columns):
    hp = padded_width(h)
    u, d_uz = integers(4 * h, h), integers(columns, 4, h)  # by gate and unit
    parts, chunks, steps, eights, values = hp // 16, hp // 64, hp // 32, columns // 8, columns * 16
    workers = min(values, 256)
    each = values // workers

    def place(tid, e):
        value = tid * each + e
        j, lane, i = value >> 7, value >> 2 & 31, value & 3
        return lane // 4 + 8 * (i >> 1), 8 * j + 2 * (lane & 3) + (i & 1)

    exchange = np.zeros((parts, columns * 64), dtype=np.int64)
    for part, tid, e in itertools.product(range(parts), range(workers), range(each)):
        unit16, column = place(tid, e)
        at = in_tile(column, unit16 >> 1) // 2 + (unit16 & 1) * 4
        exchange[part, at : at + 4] = d_uz[column, :, part * 16 + unit16] if part * 16 + unit16 < h else 0
    partial = np.full((parts, 8, values), 10**6)
    for part in range(parts):
        quarter = part & 3
        tiles = exchange[quarter * chunks : (quarter + 1) * chunks].reshape(-1)
        for half in range(2):
            ks = [half * steps + s for s in range(steps)]
            d = sum(
                product(
                    u_transposed_fragment(u, h, (part >> 2) * 64, quarter * hp + k * 16),
                    tiles,
                    (k >> 2) * columns * 128 + (k & 3) * 32,
                    columns,
                )
                for k in ks
            )
            for warp, lane, j in itertools.product(range(4), range(32), range(eights)):
                at = (j * 32 + lane) * 4
                partial[(part & ~3) + warp, 2 * quarter + half, at : at + 4] = d[warp, lane, 4 * j : 4 * j + 4]
    d_h = np.full((columns, hp), 10**6)
    for part, tid, e in itertools.product(range(parts), range(workers), range(each)):
        unit16, column = place(tid, e)
        d_h[column, part * 16 + unit16] = partial[part, :, tid * each + e].sum()
    assert np.array_equal(d_h[:, :h], d_uz.reshape(columns, 4 * h) @ u)
    assert not d_h[:, h:].any()


@pytest.mark.parametrize("h", [64, 100, 160])
def test_a_forward_step_inside_a_cluster_multiplies_by_u(h):
    hp = padded_width(h)
    u, state = integers(4 * h, h), integers(8, h)
    whole = np.pad(state, ((0, 0), (0, hp - h)))
    first, sent = np.zeros((2, hp // 64 * 512), dtype=np.int64)
    for i in range(8 * hp):  # the first step's tiles
        n, k = divmod(i, hp)
        first[k // 64 * 512 + in_tile(n, k % 64 >> 3) // 2 + (k & 7)] = whole[n, k]
    for rank, piece in itertools.product(range(hp // 32), range(32)):  # those of later steps
        at = (rank >> 1) * 512 + in_tile(piece >> 2, (rank & 1) * 4 + (piece & 3)) // 2
        sent[at : at + 8] = whole[:, rank * 32 : rank * 32 + 32].reshape(-1)[piece * 8 : piece * 8 + 8]
    assert np.array_equal(first, sent)
    uz = np.full((8, hp, 4), 10**6)
    for rank, half in itertools.product(range(hp // 32), range(2)):
        unit0 = rank * 32 + half * 16
        d = sum(product(u_fragment(u, h, unit0, s * 16), sent, (s >> 2) * 1024 + (s & 3) * 32, 8) for s in range(hp // 16))
        for warp, lane in itertools.product(range(4), range(32)):
            uz[2 * (lane % 4) + (lane >= 16), unit0 + 4 * warp + (lane // 4 & 3)] = all_gates(d[warp], lane)
    assert np.array_equal(uz[:, :h], (state @ u.T).reshape(8, 4, h).transpose(0, 2, 1))
    assert not uz[:, h:].any()


@pytest.mark.parametrize("h", [64, 100, 160])
def test_a_backward_step_inside_a_cluster_multiplies_by_u_transposed(h):
    hp = padded_width(h)
    u, d_uz = integers(4 * h, h), integers(8, 4, h)
    steps = hp // 8
    tiles = np.zeros(hp // 16 * 512, dtype=np.int64)
    for rank, tid in itertools.product(range(hp // 32), range(256)):
        unit32, column = tid >> 3, tid & 7
        if rank * 32 + unit32 < h:
            stage = (unit32 >> 4) * 1024 + in_tile(column, (unit32 & 15) >> 1) + (unit32 & 1) * 8
            at = (2 * rank * 1024 + stage) // 2
            tiles[at : at + 4] = d_uz[column, :, rank * 32 + unit32]
    d_h = np.full((8, hp), 10**6)
    for rank in range(hp // 32):
        halves = np.zeros((2, 32, 8), dtype=np.int64)
        for half in range(2):
            ks = [half * steps + s for s in range(steps)]
            d = sum(
                product(u_transposed_fragment(u, h, rank * 32, k * 16, 2), tiles, (k >> 2) * 1024 + (k & 3) * 32, 8) for k in ks
            )
            for warp, lane in itertools.product(range(2), range(32)):
                row, l = 16 * warp + lane // 4, lane % 4
                halves[half, row, 2 * l : 2 * l + 2], halves[half, row + 8, 2 * l : 2 * l + 2] = (
                    d[warp, lane, :2],
                    d[warp, lane, 2:],
                )
        d_h[:, rank * 32 : rank * 32 + 32] = halves.sum(0).T
    assert np.array_equal(d_h[:, :h], d_uz.reshape(8, 4 * h) @ u)
    assert not d_h[:, h:].any()
