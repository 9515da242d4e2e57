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
from multint.scan.contract import PHI, Problem
from multint.scan.gpu_engine import Inputs, padded
from multint.scan.gpu_persistent import (
    CSRC,
    Shape,
    gates_first,
    grid_plan,
    in_clusters,
    quartets,
    shared_bytes,
    source,
)

H200 = 132  # multiprocessors
MOST_SHARED = 227 * 1024  # bytes of a thread block


def _no_compiler():
    try:
        nvrtc.compiler()
    except nvrtc.Unavailable as reason:
        return str(reason)
    return None


needs_nvrtc = pytest.mark.skipif(_no_compiler() is not None, reason=f"{_no_compiler()}")

PERSISTENT = ("lstm", "gru_after", "gru", "rnn")
QUADLESS = [(1024, 64), (960, 64), (704, 64), (1024, 32), (704, 32), (512, 8), (64, 8)]
WIDE = [
    ("TURN", {}),
    *(("GRID_FORWARD", {"HP": hp, "COLUMNS": n}) for hp, n in [(1024, 64), (1024, 32), (704, 32), (1024, 16), (64, 8), (576, 32)]),
    *(("GRID_BACKWARD", {"HP": hp, "COLUMNS": n, "QUADS": 0}) for hp, n in QUADLESS),
    *(("GRID_BACKWARD", {"HP": hp, "COLUMNS": n, "QUADS": 1}) for hp, n in [(1024, 32), (704, 32), (1024, 16), (64, 8), (576, 32)]),
    *((kind, {"HP": hp}) for kind in ("CLUSTER_FORWARD", "CLUSTER_BACKWARD") for hp in (64, 256, 320)),
]
NARROW = [
    *(("GRID_FORWARD", {"HP": hp, "COLUMNS": n}) for hp, n in [(1024, 32), (1024, 16), (128, 8)]),
    *(("GRID_BACKWARD", {"HP": hp, "COLUMNS": n, "QUADS": 0}) for hp, n in [(1024, 32), (1024, 16), (128, 8)]),
    *((kind, {"HP": hp}) for kind in ("CLUSTER_FORWARD", "CLUSTER_BACKWARD") for hp in (128, 384)),
]
VARIANTS = [
    *((cell, kind, defines) for cell in ("lstm", "gru_after") for kind, defines in WIDE),
    *(("gru", kind, defines) for kind, defines in WIDE if defines.get("COLUMNS") != 64),
    *(("rnn", kind, defines) for kind, defines in NARROW),
]
LARGEST = [variant for variant in VARIANTS if variant[2].get("HP", 1024) in (1024, 320, 384)]  # of each way through the kernels
COMPILED = [*((torch.bfloat16, *variant) for variant in VARIANTS), *((torch.float16, *variant) for variant in LARGEST)]
each_dtype = pytest.mark.parametrize("dtype", gpu_persistent.STORAGE, ids=gpu_persistent.STORAGE.values())


@needs_nvrtc
@pytest.mark.parametrize("dtype, cell, kind, defines", COMPILED)
def test_every_kind_of_kernel_compiles_and_has_registers_enough(dtype, cell, kind, defines):
    program = source(kind, cell, dtype, **defines)
    cubin, log = nvrtc.compile_source(program.name, program.text, dict(program.headers), (*program.options, "--ptxas-options=-v"))
    assert cubin.startswith(b"\x7fELF")
    assert f"'{kind.lower()}'" in log
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    # the largest may put a few values aside that are the same at every step
    assert max(map(int, spilled.groups())) <= (16 if defines.get("COLUMNS") == 64 else 0), log
    assert "C75" not in log, "products with U wait for each other"
    assert "warning" not in log, log


@needs_nvrtc
@each_dtype
@pytest.mark.parametrize("kind", ["GRID_FORWARD", "CLUSTER_BACKWARD"])
def test_products_and_roundings_are_of_the_dtype_that_is_stored(dtype, kind, monkeypatch):
    program = source(kind, "rnn", dtype, HP=128, COLUMNS=8, QUADS=0)
    assert f"-DSTORAGE={gpu_persistent.STORAGE[dtype]}" in program.options
    answer = nvrtc._answer
    monkeypatch.setattr(nvrtc, "_answer", lambda made, what: answer(made, what.replace("CUBIN", "PTX")))
    code = nvrtc.compile_source(program.name, program.text, dict(program.headers), program.options)[0].decode()
    ours, other = ("bf16", "f16") if dtype == torch.bfloat16 else ("f16", "bf16")
    assert f".f32.{ours}.{ours} " in code and f".f32.{other}.{other} " not in code
    assert f"cvt.rn.{ours}x2.f32" in code and f"cvt.rn.{other}x2.f32" not in code


@needs_nvrtc
@pytest.mark.parametrize("phi", [name for name in PHI if name != "tanh"])
def test_an_rnn_compiles_with_every_nonlinearity(phi):
    grid = {"COLUMNS": 8, "QUADS": 0}
    for kind, more in (("CLUSTER_FORWARD", {}), ("CLUSTER_BACKWARD", {}), ("GRID_FORWARD", grid), ("GRID_BACKWARD", grid)):
        program = source(kind, "rnn", torch.bfloat16, phi, HP=128, **more)
        cubin, log = nvrtc.compile_source(program.name, program.text, dict(program.headers), program.options)
        assert cubin.startswith(b"\x7fELF")
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
    for name in ("Forward", "Backward", "Turn"):
        body = re.search(rf"struct {name} {{(.*?)}};", text, re.DOTALL)[1]
        found = [n for line in body.split(";") for n in re.findall(r"(\w+)(?=,|$)", line.strip())]
        assert found == [field[0] for field in getattr(gpu_persistent, f"_{name}")._fields_]


# ------------------------------------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    "cell, n, h, columns, blocks",
    [
        ("lstm", 64, 704, 32, 88),
        ("lstm", 128, 1024, 64, 128),
        ("lstm", 16, 1024, 16, 64),
        ("lstm", 1, 576, 8, 36),
        ("gru_after", 128, 1024, 64, 128),
        ("gru", 32, 1024, 32, 64),
        ("gru", 64, 704, 32, 88),
        ("rnn", 128, 1024, 16, 128),
        ("rnn", 64, 700, 8, 96),
    ],
)
def test_the_batch_is_split_as_was_measured_fast(cell, n, h, columns, blocks):
    shape = Shape(cell, h)
    plan = grid_plan(n, shape, H200)
    assert (plan.columns, plan.groups * shape.parts, plan.slices) == (columns, blocks, 1)


@pytest.mark.parametrize("cell", PERSISTENT)
@pytest.mark.parametrize("sms", [78, 114, H200])
def test_every_plan_covers_the_batch_and_fits_the_gpu(cell, sms):
    for n, h in itertools.product([1, 7, 8, 9, 63, 64, 65, 100, 128, 129, 200, 300, 512, 1000], range(1, 1025, 31)):
        shape = Shape(cell, h)
        plan = grid_plan(n, shape, sms)
        assert plan.groups * shape.parts <= shape.room(sms)
        assert plan.rows * (plan.slices - 1) < n <= plan.rows * plan.slices
        assert plan.columns in shape.limits.columns
        assert shape.parts % 2 == 0  # the forward pass has clusters of two


def test_no_plan_where_the_gpu_is_too_small():
    assert grid_plan(1, Shape("lstm", 1024), 63) is None
    assert grid_plan(1, Shape("rnn", 1024), 15) is None
    for sms in (8, 12, 15):  # clusters of four leave nothing there
        assert grid_plan(1, Shape("gru", 64), sms) is None
        assert "need 16 multiprocessors" in gpu_persistent._crowded(8, Shape("gru", 64), sms)


class Loaded(nvrtc.Kernel):
    """In the place of a kernel on a GPU: what it was compiled with, and how many of its clusters run at once there."""

    def __init__(self, options, cluster, fit):
        for name, value in {"options": options, "size": cluster, "fit": fit}.items():
            object.__setattr__(self, name, value)

    def clusters_at_once(self, grid):
        return self.fit


@pytest.mark.parametrize("cell", ["lstm", "gru_after", "gru"])
@pytest.mark.parametrize("fit, quads", [(22, True), (21, False)])
def test_sums_go_through_l2_where_clusters_of_four_do_not_all_fit(cell, fit, quads, monkeypatch):
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda device: H200)
    monkeypatch.setattr(nvrtc, "load", lambda program, *_, cluster, **__: Loaded(program.options, cluster, fit))
    choose = gpu_persistent._grid_kernel.__wrapped__
    kernel, sums = choose("GRID_BACKWARD", 0, Shape(cell, 704), torch.float16, "tanh", 32, 88)
    assert {f"-DQUADS={int(quads)}", "-DSTORAGE=f16"} <= set(kernel.options)
    assert (kernel.size, sums) == (4 if quads else 1, not quads)
    kernel, sums = choose("GRID_FORWARD", 0, Shape(cell, 704), torch.bfloat16, "tanh", 32, 88)
    assert (kernel.size, sums) == (2, False)


@pytest.mark.parametrize(
    "cell, n, h, clusters",
    [
        ("lstm", 32, 256, True),
        ("lstm", 16, 320, True),
        ("lstm", 16, 352, False),
        ("lstm", 1000, 256, False),
        ("lstm", 100_000, 64, True),
        ("gru_after", 16, 320, True),
        ("rnn", 32, 384, True),
        ("rnn", 32, 385, False),
    ],
)
def test_small_layers_run_in_clusters(cell, n, h, clusters):
    assert in_clusters(n, Shape(cell, h), H200) is clusters


@pytest.mark.parametrize("cell", PERSISTENT)
def test_shared_memory_suffices(cell):
    shapes = [Shape(cell, h) for h in range(64, 1025, 64)]
    widest = shapes[0].limits.columns[-1]
    most = [shared_bytes(kind, shape, widest) for kind in ("GRID_FORWARD", "GRID_BACKWARD") for shape in shapes]
    most += [
        shared_bytes("GRID_BACKWARD", shape, columns, quads=True) for shape in shapes if shape.shares for columns in (8, 16, 32)
    ]
    most += [shared_bytes(kind, shape) for kind in ("CLUSTER_FORWARD", "CLUSTER_BACKWARD") for shape in shapes[:6]]
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
        ({"dtype": torch.float32}, "store bfloat16 or float16, not torch.float32"),
        ({"resets": torch.zeros(3, 2, dtype=torch.bool)}, "no resets"),
        ({"h": 1025}, "room for 1024 units, not 1025"),
        ({}, "on cpu, not on a GPU"),
        ({"dtype": torch.float16}, "on cpu, not on a GPU"),
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

    def why_not(n, h, cell="lstm"):
        with FakeTensorMode():
            return gpu_persistent.why_not(whole_problem(n, h, cell, device="cuda:0"))

    assert why_not(512, 1024) is None
    assert "33 rows of 1024 units in 2 slices, more than 1" in why_not(33, 1024, "gru")
    assert "513 rows of 1024 units in 5 slices, more than 4" in why_not(513, 1024)
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        assert why_not(513, 1024) == why_not(514, 1024)  # a number would make a graph for each
    assert why_not(100_000, 320) is None
    assert why_not(192, 320, "gru") is None
    assert "193 rows of 320 units in 2 slices, more than 1" in why_not(193, 320, "gru")
    for n, h in itertools.product((1, 100, 600, 1000, 3000), (60, 320, 321, 700, 1024)):
        shape = Shape("lstm", h)
        assert (why_not(n, h) is None) == (in_clusters(n, shape, H200) or grid_plan(n, shape, H200).slices <= 4)
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: 60)
    assert "need 64 multiprocessors for 1000 units, this GPU has 60" in why_not(4, 1000)
    assert "need 76 multiprocessors for 1000 units, this GPU has 60" in why_not(4, 1000, "gru")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    assert gpu_persistent.missing() == "no CUDA device"


@each_dtype
def test_what_is_kept_has_the_dtype_of_the_layer(dtype):
    assert {kept for _, kept in gpu_persistent.kept(problem(dtype=dtype))} == {dtype}


def test_what_is_kept_is_padded_and_with_tokens_has_no_flow():
    shapes = [shape for shape, _ in gpu_persistent.kept(problem())]
    assert shapes[:3] == [(3, 2, 256), (3, 2, 64), (3, 2, 256)]  # U h, c, W x; then W
    assert len(shapes) == 4 and shapes[3][0] == 256
    tokens = problem(x=None, wx=torch.randn(9, 160, dtype=torch.bfloat16), tokens=torch.zeros(3, 2, dtype=torch.int64))
    assert [shape for shape, _ in gpu_persistent.kept(tokens)] == shapes[:2]
    narrow = {"u": torch.randn(40, 40, dtype=torch.bfloat16), "vectors": torch.randn(4, 40), "c": None}
    rnn = problem(cell="rnn", wx=torch.randn(40, 5, dtype=torch.bfloat16), **narrow)
    assert [shape for shape, _ in gpu_persistent.kept(rnn)] == [(3, 2, 128)] * 2  # U h, W x
    assert [shape for shape, _ in gpu_persistent.kept(replace(rnn, x=None, wx=rnn.x.new_empty(3, 2, 40)))] == [(3, 2, 128)]


def test_what_is_formed_anew_is_not_kept():
    assert gpu_persistent.kept(problem(recompute=True)) == [((3, 2, 64), torch.bfloat16)]  # c
    narrow = {"u": torch.randn(40, 40, dtype=torch.bfloat16), "vectors": torch.randn(4, 40), "c": None}
    assert gpu_persistent.kept(problem(cell="rnn", wx=torch.randn(40, 5, dtype=torch.bfloat16), recompute=True, **narrow)) == []
    gru = {"u": torch.randn(120, 40, dtype=torch.bfloat16), "vectors": torch.randn(4, 120), "c": None}
    wide = torch.randn(120, 5, dtype=torch.bfloat16)
    assert gpu_persistent.kept(problem(cell="gru", wx=wide, recompute=True, **gru)) == [((3, 2, 40), torch.bfloat16)]  # r h


@pytest.mark.parametrize("cell", PERSISTENT)
@pytest.mark.parametrize("h", [1, 40, 64, 70, 128])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gates_first_undoes_quartets(cell, h, dim):
    shape, sizes = Shape(cell, h), [3, 2, 5]
    sizes[dim] = shape.gates * h
    x = torch.randn(sizes)
    laid = quartets(x, shape, dim)
    assert laid.is_contiguous()
    assert laid.shape[dim] == 4 * shape.quartets
    for unit, gate in itertools.product((0, h - 1), range(shape.gates)):
        at = unit if cell == "rnn" else 4 * unit + gate
        assert torch.equal(laid.select(dim, at), x.select(dim, gate * h + unit))
    assert torch.count_nonzero(laid) == torch.count_nonzero(x)
    back = gates_first(laid, shape, dim)
    assert torch.equal(back, x) and back.is_contiguous()


# ----------------------------------------------------------------------------- what is done around the kernels, on a CPU
# The kernels' work in a few lines of torch, on the memory whose addresses they would get.


def memory(address, dtype, *shape):
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


class Memory:
    """What a kernel sees, in the order (t, n, gates, hp)."""

    def __init__(self, p, shape, dtype, transposed=False):
        self.p, self.shape, self.dtype = p, shape, dtype
        self.t, self.n, self.h, self.hp = p.steps, p.batch, p.width, shape.hp
        self.vectors = padded(memory(p.vectors, torch.float32, 4, shape.gates, self.h), self.hp)
        if not transposed:
            u = memory(p.u, dtype, shape.gates, self.h, self.h)
        elif shape.gates == 1:
            u = memory(p.u, dtype, self.h, self.hp).T[None, : self.h]
        else:
            u = memory(p.u, dtype, self.h, self.h, 4).permute(2, 1, 0)[: shape.gates]
        self.u = padded(padded(u.float(), self.hp, 1), self.hp)  # (gates, hp, hp)
        tokens = memory(p.tokens, torch.int64, self.t * self.n) if p.tokens else torch.arange(self.t * self.n)
        flow = memory(p.flow, dtype, int(tokens.max()) + 1, 4 * shape.quartets)[tokens].float()
        self.flow = self.gates(flow.view(self.t, self.n, -1))
        self.lengths = memory(p.lengths, torch.int64, self.n) if p.lengths else torch.full((self.n,), self.t)
        self.bias = padded(memory(p.bias_hn, torch.float32, self.h), self.hp) if p.bias_hn else torch.zeros(self.hp)

    def gates(self, x):
        """A view of quartets by gate and unit."""
        split = x.unflatten(-1, (-1, 4)).transpose(-1, -2)
        return x.unsqueeze(-2) if self.shape.gates == 1 else split[..., : self.shape.gates, :]

    def over_time(self, name):
        return self.gates(memory(getattr(self.p, name), self.dtype, self.t, self.n, 4 * self.shape.quartets))

    def slot(self, name):
        """A GRU's fourth."""
        return memory(getattr(self.p, name), self.dtype, self.t, self.n, self.shape.quartets, 4)[..., 3]

    def before(self, t):
        """An LSTM's c, or a GRU's h."""
        if self.p.cs:
            return memory(self.p.cs, self.dtype, self.t, self.n, self.hp)[t]
        return padded(memory(self.p.outputs, self.dtype, self.t, self.n, self.h)[t - 1].float() if t else self.rows("h"), self.hp)

    def rows(self, name):
        return memory(getattr(self.p, name), torch.float32, self.n, self.h)

    def block(self, t, flow, gate=slice(None)):
        alpha, beta1, beta2, b = self.vectors[:, gate]
        wx = self.flow[t][:, gate]
        return alpha * wx * flow + beta1 * flow + beta2 * wx + b

    def step(self, t, uz, h, c):
        """New h and c; what each gate's nonlinearity takes; and the flow of a GRU's n."""
        if self.shape.cell == "gru":
            r, z, n = self.block(t, uz).unbind(1)
            return (1 - torch.sigmoid(z)) * h + torch.sigmoid(z) * torch.tanh(n), c, (r, z, n), None
        if self.shape.cell == "gru_after":
            r, z = (self.block(t, uz[:, g], g) for g in (0, 1))
            flow = torch.sigmoid(r) * (uz[:, 2] + self.bias)
            n = self.block(t, flow, 2)
            return (1 - torch.sigmoid(z)) * h + torch.sigmoid(z) * torch.tanh(n), c, (r, z, n), flow
        sums = self.block(t, uz).unbind(1)
        if self.shape.cell == "rnn":
            return torch.tanh(sums[0]), c, sums, None
        i, f, z, o = sums
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        return torch.sigmoid(o) * torch.tanh(c), c, sums, None


def forward_in_torch(p, shape, dtype):
    m = Memory(p, shape, dtype)
    h = padded(m.rows("h"), m.hp)
    c = padded(m.rows("c"), m.hp) if p.c else torch.zeros_like(h)
    outputs = memory(p.outputs, dtype, m.t, m.n, m.h)
    for t in range(m.t):
        uz = torch.einsum("gij,nj->ngi", m.u, h.to(dtype).float())
        if shape.cell == "gru":
            operand = (torch.sigmoid(m.block(t, uz[:, 0], 0)) * h).to(dtype)
            uz[:, 2] = operand.float() @ m.u[2].T
            if p.operands:
                memory(p.operands, dtype, m.t, m.n, m.h)[t] = operand[:, : m.h]
        if p.uz:
            m.over_time("uz")[t] = uz.to(dtype)
        if p.cs:
            m.before(t)[:] = c
        inside = (t < m.lengths)[:, None]
        h, c = (torch.where(inside, new, old) for new, old in zip(m.step(t, uz, h, c)[:2], (h, c), strict=True))
        outputs[t] = h[:, : m.h]
    m.rows("last_h")[:] = h[:, : m.h]
    if p.c:
        m.rows("last_c")[:] = c[:, : m.h]


def backward_in_torch(p, shape, dtype):
    m = Memory(p, shape, dtype, transposed=True)
    d_h, d_c = (padded(m.rows(name), m.hp) if getattr(p, name) else torch.zeros(m.n, m.hp) for name in ("d_last_h", "d_last_c"))
    product, d_bias, sums_of_vectors = torch.zeros_like(d_h), torch.zeros_like(d_h), torch.zeros(4, 4 * shape.quartets)
    for t in reversed(range(m.t)):
        uz = m.over_time("uz")[t].float().requires_grad_()
        before = m.before(t).float().clone().requires_grad_()
        d_h = d_h + product + padded(memory(p.d_outputs, dtype, m.t, m.n, m.h)[t].float(), m.hp)
        h, c, sums, flow = m.step(t, uz, before, before)
        seeds = ((h, c), (d_h, d_c)) if shape.cell == "lstm" else ((h,), (d_h,))
        *d_sums, d_uz, d_before = torch.autograd.grad(seeds[0], (*sums, uz, before), seeds[1], allow_unused=True, retain_graph=True)
        inside = (t < m.lengths)[:, None]
        if shape.cell == "gru":
            r = torch.sigmoid(sums[0])
            d_sums[0], d_r, d_again = torch.autograd.grad(r * before, (sums[0], uz, before), d_uz[:, 2] @ m.u[2])
            d_uz, d_before = d_uz + d_r, d_before + d_again
        flows = uz.detach().clone()
        if flow is not None:  # what gate n's scale multiplies is not U h
            flows[:, 2] = flow.detach()
            d_bias += torch.where(inside, d_uz[:, 2], 0)
        d_uz, d_gates = (torch.where(inside[..., None], d, 0) for d in (d_uz, torch.stack(d_sums, 1)))
        d_scale = d_gates * flows
        if shape.gates == 3:
            m.slot("d_uz")[t] = m.slot("d_wx")[t] = 0
        m.over_time("d_uz")[t] = d_uz.to(dtype)
        m.over_time("d_wx")[t] = (m.vectors[0] * d_scale + m.vectors[2] * d_gates).to(dtype)
        m.gates(sums_of_vectors)[:] += torch.stack([x.sum(0) for x in (d_scale * m.flow[t], d_scale, d_gates * m.flow[t], d_gates)])
        through = CELLS[shape.cell].shared
        product = torch.einsum("gij,ngi->nj", m.u[:through], d_uz[:, :through])
        onwards = d_before if shape.gates == 3 else torch.zeros_like(d_h)
        d_h = torch.where(inside, onwards, d_h)
        d_c = torch.where(inside, d_before, d_c) if shape.cell == "lstm" else d_c
    m.rows("d_h")[:] = d_h[:, : m.h]
    if shape.gates > 1:
        m.rows("d_c")[:] = (d_bias if shape.gates == 3 else d_c)[:, : m.h]
    memory(p.sums, torch.float32, 4, 4 * shape.quartets)[:] = sums_of_vectors  # those of further groups stay zero


@pytest.fixture
def kernels_in_torch(monkeypatch):
    passes = {"FORWARD": forward_in_torch, "BACKWARD": backward_in_torch}

    def launch(kind, given, n, shape, phi, like):
        assert (given.batch, phi) == (n, "tanh")
        passes[kind](given, shape, like.dtype)

    def turned(u, shape):
        gates = u.unflatten(0, (shape.gates, -1))
        return padded(gates, 4, 0).permute(2, 1, 0).contiguous() if shape.gates > 1 else padded(u, shape.hp, 0).T.contiguous()

    mm = torch.mm

    def product(a, b, out_dtype=None, **out):  # on a CPU torch's has no dtype of its own for the result
        return mm(a, b, **out) if out_dtype is None else mm(a.to(out_dtype), b.to(out_dtype))

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: H200)
    monkeypatch.setattr(gpu_persistent, "_launch", launch)
    monkeypatch.setattr(gpu_persistent, "_turned", turned)


class Recorded:
    """In the place of a kernel: which blocks it was to have, and what of its parameters changes from slice to slice."""

    def __init__(self):
        self.launches = []

    def launch(self, grid, given, stream):
        sums = getattr(given, "sums", None)
        self.launches.append((grid[0], given.first, given.end, given.flags, getattr(given, "owner_flags", None), sums))


@pytest.mark.parametrize(
    "cell, n, h, rows, groups",
    [
        ("lstm", 64, 704, [(0, 64)], [2]),
        ("lstm", 300, 1000, [(0, 100), (100, 200), (200, 300)], [2, 2, 2]),
        ("lstm", 129, 1000, [(0, 65), (65, 129)], [2, 1]),
        ("rnn", 300, 1000, [(0, 150), (150, 300)], [5, 5]),
        ("gru_after", 20, 100, [(0, 20)], [3]),
    ],
)
def test_a_batch_is_launched_slice_by_slice_each_with_flags_and_sums_of_its_own(monkeypatch, cell, n, h, rows, groups):
    shape, kernel = Shape(cell, h), Recorded()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(gpu_persistent, "multiprocessors", lambda _: H200)
    monkeypatch.setattr(gpu_persistent, "_cluster_kernel", lambda *_: kernel)
    monkeypatch.setattr(gpu_persistent, "_grid_kernel", lambda kind, *_: (kernel, shape.shares and kind == "GRID_BACKWARD"))
    clusters, each = in_clusters(n, shape, H200), 4 * 4 * shape.quartets * 4  # bytes of a group's sums
    room = gpu_persistent.groups_of_rows(n, shape, H200)
    assert sum(groups) <= room
    for kind, kinds in (("FORWARD", gpu_persistent._Forward), ("BACKWARD", gpu_persistent._Backward)):
        kernel.launches.clear()
        given = kinds(sums=1 << 20) if kind == "BACKWARD" else kinds()
        gpu_persistent._launch(kind, given, n, shape, "tanh", torch.empty(0, dtype=torch.float16))
        blocks, first, end, flags, owners, sums = zip(*kernel.launches, strict=True)
        assert list(blocks) == [k * (shape.cluster if clusters else shape.parts) for k in groups]
        assert list(zip(first, end, strict=True)) == rows
        if kind == "BACKWARD":
            assert list(sums) == [(1 << 20) + each * sum(groups[:k]) for k in range(len(groups))]
        if not clusters:
            assert len(set(flags)) == len(flags)
        if not clusters and kind == "BACKWARD":
            assert len({*flags, *owners}) == (2 if shape.shares else 1) * len(flags)
        if not clusters:
            places = sorted({*flags, *owners} - {None})
            chunks = max(blocks) if kind == "BACKWARD" else max(groups) * shape.hp // gpu_persistent.CHUNK
            assert [b - a for a, b in itertools.pairwise(places)] == [chunks * 32 * 4] * (len(places) - 1), "a line for each"
    gpu_persistent._launch("FORWARD", gpu_persistent._Forward(), 0, shape, "tanh", torch.empty(0))  # nothing to be launched for


@pytest.mark.parametrize("cell", PERSISTENT)
@pytest.mark.parametrize("t, n, h", [(1, 1, 1), (4, 3, 33), (5, 2, 64), (3, 2, 128)])
@pytest.mark.parametrize("kind", ["x", "tokens", "flows"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("recompute", ["", "recompute", "recompute fresh"])
@each_dtype
def test_the_passes_around_the_kernels_agree_with_the_reference(kernels_in_torch, dtype, cell, t, n, h, kind, ragged, recompute):
    generator, tolerance = torch.Generator().manual_seed(t), 0.02 if dtype == torch.bfloat16 else 0.004

    def drawn(*shape, dtype=dtype):
        return torch.randn(shape, generator=generator).mul(0.5).to(dtype)

    i, symbols, gates = 5, 7, len(CELLS[cell].gates)
    x, tokens = None, None
    if kind == "x":
        x, wx = drawn(t, n, i), drawn(gates * h, i)
    elif kind == "tokens":
        tokens, wx = torch.randint(symbols, (t, n), generator=generator), drawn(symbols, gates * h)
    else:
        wx = drawn(t, n, gates * h)
    u, vectors, h0, c0 = drawn(gates * h, h), drawn(4, gates * h, dtype=torch.float32), *drawn(2, n, h, dtype=torch.float32)
    bias_hn = drawn(h, dtype=torch.float32) if cell == "gru_after" else None
    lengths = torch.arange(n) % (t + 1) if ragged else None
    fresh = "fresh" in recompute
    if fresh:
        h0 = c0 = torch.zeros(n, h)
    p = Inputs(
        cell, "tanh", wx, tokens, x, u, vectors, bias_hn, h0, c0 if cell == "lstm" else None, lengths, None, None, None,
        fresh=fresh, recompute=bool(recompute),
    )  # fmt: skip

    found = gpu_persistent.forward(p, True)
    assert [(tuple(k.shape), k.dtype) for k in found.kept] == gpu_persistent.kept(p)
    assert gpu_persistent.forward(p, False).kept == ()
    given = {x.untyped_storage().data_ptr() for x in vars(p).values() if isinstance(x, torch.Tensor)}
    assert not any(tensor.untyped_storage().data_ptr() in given for tensor in found.kept), "an operator returns none of its inputs"
    grads = drawn(t, n, h), drawn(n, h, dtype=torch.float32), drawn(n, h, dtype=torch.float32) if cell == "lstm" else None
    names = ["wx", "u", "vectors", "h", *(name for name in ("x", "c", "bias_hn") if getattr(p, name) is not None)]
    got = gpu_persistent.backward(p, found.kept, found.outputs, grads, frozenset(names))

    exact = {name: getattr(p, name).double().requires_grad_() for name in names}
    whole = Problem(
        CELLS[cell], "general", exact["wx"], exact["u"], Vectors(*exact["vectors"]), State(exact["h"], exact.get("c")),
        tokens=tokens, x=exact.get("x"), lengths=lengths, bias_hn=exact.get("bias_hn"),
    )  # fmt: skip
    result = reference.run(whole)
    expected = [y for y in (result.outputs, *result.state) if y is not None]
    for a, b in zip([y for y in (found.outputs, found.h, found.c) if y is not None], expected, strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()
    wanted = torch.autograd.grad(
        expected, list(exact.values()), [g.double() for g in grads if g is not None], allow_unused=True
    )  # fmt: skip
    for name, b in zip(exact, wanted, strict=True):
        a = getattr(got, name)
        assert (a.shape, a.dtype) == (getattr(p, name).shape, getattr(p, name).dtype)
        b = torch.zeros_like(exact[name]) if b is None else b
        assert (a.double() - b).norm() <= tolerance * b.norm() + 5e-4, name
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


def row_of_slot(shape, quartet, slot):
    unit = 4 * quartet + slot if shape.gates == 1 else quartet
    if unit >= shape.h or (shape.gates > 1 and slot >= shape.gates):
        return -1
    return unit if shape.gates == 1 else slot * shape.h + unit


def by_slots(shape, x):
    """(gate, unit) along the last axis as quartets have it, (quartets, 4)."""
    out = np.zeros((*x.shape[:-1], shape.quartets, 4), dtype=x.dtype)
    for quartet, slot in itertools.product(range(shape.quartets), range(4)):
        row = row_of_slot(shape, quartet, slot)
        out[..., quartet, slot] = x[..., row] if row >= 0 else 0
    return out


def u_fragment(shape, u, quartet0, k0):
    """``load_u`` of one step in k for the warpgroup whose first quartet is quartet0."""
    a = np.zeros((4, 32, 4, 2), dtype=np.int64)
    for warp, lane, r, v in itertools.product(range(4), range(32), range(4), range(2)):
        q, l = lane // 4, lane % 4
        row = row_of_slot(shape, quartet0 + 4 * warp + (q & 3), (2 if q >= 4 else 0) + (r & 1))
        k = k0 + 2 * l + 8 * (r >> 1) + v
        a[warp, lane, r, v] = u[row, k] if row >= 0 and k < shape.h else 0
    return a


def u_transposed_fragment(shape, u, m0, k0, warps=4):
    """``load_u_transposed`` of one step in k for the warpgroup whose first row of U^T is m0."""
    a = np.zeros((4, 32, 4, 2), dtype=np.int64)
    for warp, lane, r, v in itertools.product(range(warps), range(32), range(4), range(2)):
        m, k = m0 + 16 * warp + lane // 4 + 8 * (r & 1), k0 + 2 * (lane % 4) + 8 * (r >> 1)
        row = row_of_slot(shape, k >> 2, (k & 3) + v)
        a[warp, lane, r, v] = u[row, m] if row >= 0 and m < shape.h else 0
    return a


def all_slots(v, lane):
    """What a lane has after ``all_slots``: v[lane] are its four accumulators of an eight of columns."""
    other = v[lane ^ 16]
    if lane >= 16:
        return [other[1], other[3], v[lane][1], v[lane][3]]
    return [v[lane][0], v[lane][2], other[0], other[2]]


def integers(*shape):
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape)


SIZES = [("lstm", 64, 8), ("lstm", 100, 16), ("lstm", 192, 32), ("lstm", 70, 64), ("gru_after", 70, 16)]
SIZES += [("rnn", 128, 8), ("rnn", 200, 16), ("rnn", 70, 32)]


@pytest.mark.parametrize("cell, h, columns", SIZES)
def test_a_forward_step_through_l2_multiplies_by_u(cell, h, columns):
    shape = Shape(cell, h)
    u, state = integers(shape.gates * h, h), integers(columns, h)
    parts, chunks, steps, eights, units = shape.parts, shape.hp // 64, shape.hp // 32, columns // 8, shape.hp // shape.quartets
    own = max(1, eights // 2)
    whole = np.pad(state, ((0, 0), (0, shape.hp - h)))
    exchange = np.zeros((chunks, columns * 64), dtype=np.int64)
    for part in range(parts):
        staged = np.zeros(columns * 16 * units, dtype=np.int64)
        for column, quartet16 in itertools.product(range(columns), range(16)):
            at = column * 16 + quartet16 if units == 1 else in_tile(column, quartet16 >> 1) // 2 + (quartet16 & 1) * 4
            first = (part * 16 + quartet16) * units
            staged[at : at + units] = whole[column, first : first + units]
        for piece in range(2 * units * columns):
            column = piece // (2 * units)
            eight = piece & 1 if units == 1 else (piece & 7) ^ (column & 7)
            at = in_tile(column, (part & 3) * 2 + eight) // 2 if units == 1 else piece * 8
            exchange[part * units // 4, at : at + 8] = staged[piece * 8 : piece * 8 + 8]
            unit8 = part * 16 * units + eight * 8  # where the piece goes among the outputs
            assert np.array_equal(staged[piece * 8 : piece * 8 + 8], whole[column, unit8 : unit8 + 8])
    tiles = exchange.reshape(-1)
    uz = np.full((columns, shape.quartets, 4), 10**6)
    for part in range(parts):
        d = []
        for half in range(2):
            ks = [half * steps + s for s in range(steps)]
            parts_of_sum = [
                product(u_fragment(shape, u, part * 16, k * 16), tiles, (k >> 2) * columns * 128 + (k & 3) * 32, columns)
                for k in ks
            ]
            d.append(sum(parts_of_sum))
        for half, warp, lane, j in itertools.product(range(2 if eights > 1 else 1), range(4), range(32), range(own)):
            other = 4 * own if eights > 1 else 0
            at = (other if half else 0) + 4 * j
            given = d[1 - half][warp, :, at : at + 4]  # what lies in ``halves`` for this warpgroup
            slots = all_slots(d[half][warp, :, at : at + 4] + given, lane)
            column = 8 * (half * own if eights > 1 else 0) + 2 * (lane % 4) + (lane >= 16) + 8 * j
            uz[column, part * 16 + 4 * warp + (lane // 4 & 3)] = slots
    assert np.array_equal(uz, by_slots(shape, state @ u.T))


@pytest.mark.parametrize(
    "cell, h, columns, sharers",
    [(*size, 1 if size[0] == "rnn" else 4) for size in SIZES]
    + [("lstm", 128, 64, 8), ("lstm", 200, 16, 8), ("gru_after", 100, 8, 8)],
)
def test_a_backward_step_through_l2_multiplies_by_u_transposed(cell, h, columns, sharers):
    shape, apart = Shape(cell, h), sharers == 8
    u, d_uz = integers(shape.gates * h, h), integers(columns, shape.gates * h)
    slots = by_slots(shape, d_uz)
    terms = 4 * shape.quartets // sharers
    parts, chunks, steps, eights, values = shape.parts, terms // 64, shape.hp // 32, columns // 8, columns * 16
    workers = min(values, 256)
    each = values // workers

    def place(tid, e):
        if shape.gates == 1:
            return tid & 15, (tid >> 4) + 16 * e
        value = tid * each + e
        j, lane, i = value >> 7, value >> 2 & 31, value & 3
        return lane // 4 + 8 * (i >> 1), 8 * j + 2 * (lane & 3) + (i & 1)

    assert len({place(tid, e) for tid in range(workers) for e in range(each)}) == values
    owned = 2 if shape.gates > 1 and each == 4 else 1
    for quartet16 in range(16):  # whose totals are added up for a quartet: all that have it, once
        members = [worker_of(shape, each, quartet16, k) for k in range(workers * owned // 16)]
        here = range(quartet16 // 8 * 2, quartet16 // 8 * 2 + 2) if owned == 2 else range(each)
        assert sorted(members) == [tid for tid in range(workers) if all(place(tid, e)[0] == quartet16 for e in here)]
    exchange = np.zeros((parts, columns * 64), dtype=np.int64)
    for part, tid, e in itertools.product(range(parts), range(workers), range(each)):
        quartet16, column = place(tid, e)
        at = in_tile(column, quartet16 >> 1) // 2 + (quartet16 & 1) * 4
        exchange[part, at : at + 4] = slots[column, part * 16 + quartet16]
    sums = np.full((parts, 8, values), 10**6)  # of blocks that share them
    partial = np.full((parts, 2, columns, 68), 10**6)  # of an RNN's warpgroups
    raised = {}  # which warps raise a flag: of an owner and a source
    for part in range(parts):
        share, units = part % sharers, shape.hp // shape.quartets
        tiles = exchange[share * chunks : (share + 1) * chunks].reshape(-1)
        for half in range(2):
            ks = [(0 if apart else half * steps) + s for s in range(steps)]
            m0 = (part - share) * 16 * units + (64 * half if apart else 0)
            d = sum(
                product(
                    u_transposed_fragment(shape, u, m0, share * terms + k * 16),
                    tiles,
                    (k >> 2) * columns * 128 + (k & 3) * 32,
                    columns,
                )
                for k in ks
            )
            for warp, lane, j in itertools.product(range(4), range(32), range(eights)):
                four, q, l = d[warp, lane, 4 * j : 4 * j + 4], lane // 4, lane % 4
                if shape.gates == 1:
                    to = partial[part, half, 8 * j + 2 * l : 8 * j + 2 * l + 2, 16 * warp + q :: 8]
                    to[0, 0], to[1, 0], to[0, 1], to[1, 1] = four
                else:
                    at = (j * 32 + lane) * 4
                    owner, source = (4 * half + warp, share) if apart else (warp, 2 * share + half)
                    sums[part - share + owner, source, at : at + 4] = four
                    raised.setdefault((part - share + owner, source), set()).add((part, half, warp))
    if shape.gates > 1:
        assert set(raised) == set(itertools.product(range(parts), range(8)))
        assert all(len(warps) == 1 for warps in raised.values()), "else it would count what is not there"
    d_h = np.full((columns, shape.hp), 10**6)
    for part, tid, e in itertools.product(range(parts), range(workers), range(each)):
        quartet16, column = place(tid, e)
        if shape.gates == 1:
            unit = (part * 16 + quartet16) * 4
            d_h[column, unit : unit + 4] = partial[part, :, column, 4 * quartet16 : 4 * quartet16 + 4].sum(0)
        else:
            d_h[column, part * 16 + quartet16] = sums[part, :, tid * each + e].sum()
    assert np.array_equal(d_h[:, :h], d_uz @ u)
    assert not d_h[:, h:].any()


def worker_of(shape, each, quartet16, k):
    low, high = quartet16 & 7, quartet16 >> 3
    if shape.gates == 1:
        return quartet16 + 16 * k
    if each == 1:
        return low << 4 | high << 1 | (k & 1) | (k >> 1 & 3) << 2 | (k >> 3) << 7
    if each == 2:
        return low << 3 | high | (k & 3) << 1 | (k >> 2) << 6
    return low << 2 | (k & 3) | (k >> 2) << 5


CLUSTERS = [("lstm", 64), ("lstm", 100), ("lstm", 160), ("gru_after", 100), ("rnn", 128), ("rnn", 200), ("rnn", 70)]


@pytest.mark.parametrize("cell, h", CLUSTERS)
def test_a_forward_step_inside_a_cluster_multiplies_by_u(cell, h):
    shape = Shape(cell, h)
    hp, units = shape.hp, shape.hp // shape.quartets
    u, state = integers(shape.gates * h, h), integers(8, h)
    whole = np.pad(state, ((0, 0), (0, hp - h)))
    first, sent = np.zeros((2, hp // 64 * 512), dtype=np.int64)
    for i in range(8 * hp):  # the first step's tiles
        n, k = divmod(i, hp)
        first[k // 64 * 512 + in_tile(n, k % 64 >> 3) // 2 + (k & 7)] = whole[n, k]
    for rank in range(shape.cluster):  # those of later steps
        staged = np.zeros(8 * 32 * units, dtype=np.int64)
        for column, quartet32 in itertools.product(range(8), range(32)):
            at = column * 32 + quartet32 if units == 1 else in_tiles(column, quartet32) // 2
            unit = (rank * 32 + quartet32) * units
            staged[at : at + units] = whole[column, unit : unit + units]
        for piece in range(32 * units):
            if units == 1:
                n, unit8 = piece >> 2, rank * 32 + (piece & 3) * 8
                at = (rank >> 1) * 512 + in_tile(n, (rank & 1) * 4 + (piece & 3)) // 2
            else:
                n = piece >> 3 & 7
                unit8, at = rank * 128 + (piece >> 6) * 64 + ((piece & 7) ^ n) * 8, 2 * rank * 512 + piece * 8
            sent[at : at + 8] = staged[piece * 8 : piece * 8 + 8]
            assert np.array_equal(sent[at : at + 8], whole[n, unit8 : unit8 + 8])  # what goes to the outputs
    assert np.array_equal(first, sent)
    uz = np.full((8, shape.quartets, 4), 10**6)
    for rank, half in itertools.product(range(shape.cluster), range(2)):
        quartet0 = rank * 32 + half * 16
        d = sum(product(u_fragment(shape, u, quartet0, s * 16), sent, (s >> 2) * 1024 + (s & 3) * 32, 8) for s in range(hp // 16))
        for warp, lane in itertools.product(range(4), range(32)):
            uz[2 * (lane % 4) + (lane >= 16), quartet0 + 4 * warp + (lane // 4 & 3)] = all_slots(d[warp], lane)
    assert np.array_equal(uz, by_slots(shape, state @ u.T))


def in_tiles(column, quartet32):
    return (quartet32 >> 4) * 1024 + in_tile(column, (quartet32 & 15) >> 1) + (quartet32 & 1) * 8


@pytest.mark.parametrize("cell, h", CLUSTERS)
def test_a_backward_step_inside_a_cluster_multiplies_by_u_transposed(cell, h):
    shape = Shape(cell, h)
    shared, units = shape.gates > 1, shape.hp // shape.quartets
    u, d_uz = integers(shape.gates * h, h), integers(8, shape.gates * h)
    slots, steps = by_slots(shape, d_uz), shape.hp // 8 if shared else shape.hp // 16
    tiles = np.zeros(4 * shape.quartets // 64 * 512, dtype=np.int64)
    for rank, tid in itertools.product(range(shape.cluster), range(256)):
        quartet32, column = tid >> 3, tid & 7
        at = (2 * rank * 1024 + in_tiles(column, quartet32)) // 2
        tiles[at : at + 4] = slots[column, rank * 32 + quartet32]
    d_h = np.full((8, shape.hp), 10**6)
    for rank in range(shape.cluster):
        found = np.full((2 if shared else 1, 8, 32 * units), 10**6)
        for half in range(2):
            ks = [(half * steps if shared else 0) + s for s in range(steps)]
            m0, rows = (0, 2) if shared else (64 * half, 4)
            d = sum(
                product(
                    u_transposed_fragment(shape, u, rank * 32 * units + m0, k * 16, rows), tiles, (k >> 2) * 1024 + (k & 3) * 32, 8
                )
                for k in ks
            )
            for warp, lane in itertools.product(range(rows), range(32)):
                m, l, to = m0 + 16 * warp + lane // 4, lane % 4, found[half if shared else 0]
                to[2 * l, m], to[2 * l + 1, m], to[2 * l, m + 8], to[2 * l + 1, m + 8] = d[warp, lane]
        d_h[:, rank * 32 * units : (rank + 1) * 32 * units] = found.sum(0)
    assert np.array_equal(d_h[:, :h], d_uz @ u)
    assert not d_h[:, h:].any()
