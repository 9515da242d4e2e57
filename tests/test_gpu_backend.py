"""The GPU backend against the reference in float64, and under whatever may disturb it: streams, graphs, compilers, dirty memory."""

import copy
import gc
import os
import shutil
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from helpers import KINDS, THEIRS, assert_same, hidden, make, make_cell, mapped, scalar, tensors
from hypothesis import assume, given
from problems import (
    BF16,
    F16,
    F32,
    F64,
    PHIS,
    Recorder,
    all_gradients,
    assert_agrees,
    assert_near,
    bits,
    drawn_problems,
    judged,
    leaves,
    random_problem,
    rounded_weights,
    trained_problem,
    values,
    widened,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import multint
from multint import probes
from multint.cells import CELLS
from multint.integration import FORMS
from multint.scan import gpu, gpu_persistent, nvrtc, reference, replay, scan

DEVICE = "cuda"
ROUNDED_TF32 = 1e-3  # two factors, each rounded to 10 bits of mantissa
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # of tests that use parameters on several streams themselves
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning"),
]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_cell = pytest.mark.parametrize("cell", CELLS)
each_engine = pytest.mark.parametrize("engine", ["persistent", "steps"])
# an engine with what it stores: `persistent` both dtypes it takes
STORED = {"persistent-bf16": ("persistent", BF16), "persistent-f16": ("persistent", F16), "steps-f32": ("steps", F32)}
each_storage = pytest.mark.parametrize("engine, dtype", STORED.values(), ids=list(STORED))
OPTIONS = {"flow": {}, "tokens": {"symbols": 6}, "x": {"features": 5}, "lengths": {"lengths": True}}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
each_narrow = pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])


@pytest.fixture(autouse=True)
def _gpu():
    """Float32 is float32, unless a test says otherwise."""
    reason = multint.backends()["gpu"]
    if reason is not None:
        pytest.skip(reason)
    places = torch.backends.cudnn.rnn, torch.backends.cuda.matmul
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "ieee"
    yield
    for place, precision in zip(places, before, strict=True):
        place.fp32_precision = precision


@contextmanager
def only(engine):
    """The GPU backend with one of its engines alone; a test that asks for one this machine lacks is skipped."""
    module = gpu.ENGINES[engine]
    reason = module.missing()
    if reason is not None:
        pytest.skip(f"{engine}: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "ENGINES", {engine: module})
        yield


def on_device(cell, **options):
    return random_problem(cell, **options, device=DEVICE)


def usual(dtype, t=6, n=9, h=40, seed=0, cell="lstm", **options):
    """A problem of one dtype: the persistent engine takes narrow ones without resets."""
    return on_device(cell, t=t, n=n, h=h, seed=seed, dtype=dtype, state=F32, **options)


def drawn(*shape, dtype=F32):
    return torch.randn(shape, dtype=F64).to(dtype).to(DEVICE).requires_grad_()


def drawn_hidden(module, n=None, dtype=None):
    return mapped(lambda part: part.detach().to(DEVICE).requires_grad_(), hidden(module, n, dtype=dtype))


def raw(x):
    """The bits of a tensor, in which -0 is not 0 and a NaN is itself."""
    return x.detach().contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def differing(ours, judge):
    """How many values differ in their bits: a number on the device, so that nobody waits for it."""
    return sum((raw(a) != raw(b)).sum() for a, b in zip(ours, judge, strict=True))


def assert_same_bits(ours, judge):
    assert [(x.shape, x.dtype) for x in ours] == [(x.shape, x.dtype) for x in judge]
    assert int(differing(ours, judge)) == 0


# ---- agreement ----

# random vectors stretch roundings; in float16 those of the nonlinearities, which `persistent` has to 11 bits, are as large
NEAR = {F32: 1e-5, BF16: 1e-2, F16: 1e-2}

# random vectors stretch roundings further than those of training (see the bars below), and some problems have few values to average
DRAWN = [(F32, None, 1e-5), (BF16, F32, 1e-2), (BF16, None, 1e-2), (F16, F32, 5e-3)]


@given(drawn_problems(phis=("tanh", "identity")))
@pytest.mark.parametrize("dtype, state, tolerance", DRAWN, ids=["f32", "bf16-autocast", "bf16-module", "f16-autocast"])
def test_steps_agrees_with_the_reference_in_float64(dtype, state, tolerance, options):
    with only("steps"):
        problem = on_device(**options, dtype=dtype, state=state)
        assert_agrees(problem, tolerance, "gpu")
        result = scan(problem, "gpu")
        assert result.outputs.dtype == dtype
        assert {part.dtype for part in result.state if part is not None} == {state or dtype}


@given(drawn_problems(phis=("tanh", "identity")))
def test_steps_with_tf32_agrees_with_the_reference_in_float64(options):
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    with only("steps"):
        assert_agrees(on_device(**options, dtype=F32), 5e-3, "gpu")


@given(drawn_problems(phis=("tanh", "identity"), restart=0))
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "module"])
@each_narrow
def test_persistent_agrees_with_the_reference_in_float64(dtype, autocast, options):
    with only("persistent"):
        problem = on_device(**options, dtype=dtype, state=F32 if autocast else dtype)
        assume(gpu.why_not(problem) is None)
        assert_agrees(problem, NEAR[dtype], "gpu")


# (t, n, h): one step, one row, one unit; beside the sizes of tiles; more rows than a block of threads
SIZES = [(1, 1, 1), (5, 1, 1), (1, 3, 33), (3, 2, 129), (7, 9, 65), (4, 17, 8), (2, 257, 40), (3, 64, 64), (2, 5, 513)]


@each_cell
@pytest.mark.parametrize("t, n, h", SIZES)
@pytest.mark.parametrize("dtype, tolerance", [(F32, 1e-5), (BF16, 1e-2), (F16, 5e-3)], ids=["f32", "bf16", "f16"])
def test_steps_agrees_at_odd_sizes(cell, t, n, h, dtype, tolerance):
    source = {5: {"symbols": 9}, 9: {"features": 13}, 257: {"features": 8}, 1: {"features": 1}}.get(n, {})
    with only("steps"):
        assert_agrees(on_device(cell, t=t, n=n, h=h, dtype=dtype, state=F32, **source), tolerance, "gpu")
        assert_agrees(on_device(cell, t=t, n=n, h=h, dtype=dtype, state=F32, lengths=True, restart=n), tolerance, "gpu")


# more: sums through L2 of four blocks and of eight, a batch in two slices and in three, the last one short
SLICED = [(4, 100, 700), (4, 128, 1000), (3, 129, 1000), (3, 300, 1000)]
SLICED += [(4, 32, 1000), (3, 64, 704), (3, 96, 500)]  # the most rows of the paper's GRU


@each_cell
@pytest.mark.parametrize("t, n, h", [*SIZES, (2, 3, 1023), (3, 130, 260), (3, 300, 330), (4, 40, 384), *SLICED])
@pytest.mark.parametrize("lengths", [False, True])
@each_narrow
def test_persistent_agrees_at_odd_sizes(dtype, cell, t, n, h, lengths):
    source = {5: {"symbols": 9}, 9: {"features": 13}, 257: {"features": 8}, 1: {"features": 1}}.get(n, {})
    with only("persistent"):
        problem = on_device(cell, t=t, n=n, h=h, dtype=dtype, state=F32, lengths=lengths, **source)
        reason = gpu.why_not(problem)
        if reason is not None:
            pytest.skip(reason)
        assert_agrees(problem, NEAR[dtype], "gpu")


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "rnn"])
@pytest.mark.parametrize("t, n, h", [(5, 32, 1000), (4, 40, 700), (12, 9, 450)])
@each_narrow
def test_persistent_agrees_where_clusters_of_four_do_not_fit_at_once(dtype, cell, t, n, h, monkeypatch):
    """As on a share of a GPU: the sums of the backward pass then go through L2."""
    monkeypatch.setattr(nvrtc.Kernel, "clusters_at_once", lambda *_: 0)
    gpu_persistent._grid_kernel.cache_clear()
    try:
        with only("persistent"):
            problem = on_device(cell, t=t, n=n, h=h, dtype=dtype, state=F32, lengths=True)
            reason = gpu.why_not(problem)
            if reason is not None:
                pytest.skip(reason)
            for _ in range(20):
                assert_agrees(problem, NEAR[dtype], "gpu")
    finally:
        gpu_persistent._grid_kernel.cache_clear()


# (cell, t, n, h, features): the shapes of the paper's experiments, fewer steps of them
BARS = [
    ("lstm", 20, 64, 704, 704),
    ("lstm", 10, 128, 1024, 1024),
    ("lstm", 20, 32, 240, 240),
    ("lstm", 20, 16, 320, 240),
    ("lstm", 6, 64, 700, 700),
    ("lstm", 6, 32, 1000, 1000),
    ("lstm", 6, 33, 513, 50),
    ("lstm", 6, 100, 2048, 64),
    ("lstm", 6, 64, 2400, 620),
    ("rnn", 10, 100, 2048, 64),
    ("rnn", 10, 32, 1000, 50),
    ("gru", 6, 64, 2400, 620),
    ("gru", 6, 33, 700, 50),
    ("gru_after", 6, 64, 2400, 620),
    ("gru_after", 6, 33, 513, 50),
]
PERSISTENT = [bar for bar in BARS if bar[0] == "lstm" and bar[3] <= 1024]
PERSISTENT += [(cell, *sizes) for cell in ("gru_after", "rnn", "gru") for _, *sizes in PERSISTENT]
PERSISTENT.remove(("gru", 10, 128, 1024, 1024))  # more rows than one slice has


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: "-".join(map(str, bar)))
@pytest.mark.parametrize("dtype, tolerance", [(F32, 1e-5), (BF16, 5e-3), (F16, 5e-3)], ids=["f32", "bf16", "f16"])
def test_steps_agrees_at_the_shapes_of_the_experiments(bar, dtype, tolerance):
    """Every result and every gradient to within a share of its own norm, however small that is."""
    with only("steps"):
        assert_agrees(trained_problem(*bar, dtype, device=DEVICE), tolerance, "gpu", share=0)


@pytest.mark.parametrize("bar", PERSISTENT, ids=lambda bar: "-".join(map(str, bar)))
@each_narrow
def test_persistent_agrees_at_the_shapes_of_the_experiments(dtype, bar):
    with only("persistent"):
        problem = trained_problem(*bar, dtype, device=DEVICE)
        assert gpu.engine_for(problem) == "persistent"
        assert_agrees(problem, 5e-3, "gpu", share=0)


@pytest.mark.parametrize("bar", [*BARS[:4], *BARS[7:9], *BARS[11:]], ids=lambda bar: "-".join(map(str, bar)))
@each_narrow
def test_flows_formed_anew_agree_at_the_shapes_of_the_experiments(dtype, bar):
    assert_agrees(replace(trained_problem(*bar, dtype, device=DEVICE), recompute=True), 5e-3, "gpu", share=0)


@each_storage
@each_cell
@each_option
def test_flows_formed_anew_agree_whatever_the_memory_holds(engine, dtype, cell, options):
    with only(engine):
        problem = replace(usual(dtype, cell=cell, **options), recompute=True)
        assert_agrees(problem, NEAR[dtype], "gpu")
        expected = bits(problem, "gpu")
        poison()
        assert_same_bits(bits(problem, "gpu"), expected)


# nn.LSTM's bfloat16 weights are not one block of memory, and torch warns about it
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk of memory:UserWarning")
@pytest.mark.parametrize("h", [1024, 2048])
def test_with_flows_formed_anew_a_layer_holds_less_than_half_of_what_cudnn_holds(h):
    x, held = torch.randn(50, 64, h, device=DEVICE, dtype=BF16, requires_grad=True), []
    for kind, options in ((torch.nn.LSTM, {}), (multint.MILSTM, {"recompute": True})):
        module = kind(h, h, device=DEVICE, dtype=BF16, **options)
        module(x)[0].sum().backward()  # what is allocated once and for all
        before = torch.cuda.memory_allocated()
        kept = module(x)
        held.append(torch.cuda.memory_allocated() - before)
        del kept
    assert held[1] < 0.5 * held[0]


@pytest.mark.parametrize("bar", BARS[:4] + BARS[9:], ids=lambda bar: "-".join(map(str, bar)))
def test_steps_with_tf32_agrees_at_the_shapes_of_the_experiments(bar):
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    with only("steps"):
        assert_agrees(trained_problem(*bar, F32, device=DEVICE), 5e-3, "gpu", share=0)


@pytest.mark.parametrize("cell, phi", [(cell, phi) for cell in CELLS for phi in PHIS[cell]])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", [{}, {"symbols": 7}, {"features": 5}], ids=["flow", "tokens", "features"])
def test_every_cell_form_and_nonlinearity_agrees_with_everything_optional(cell, phi, form, source):
    for restart in (1, 11):
        problem = on_device(cell, form=form, phi=phi, t=6, n=11, h=19, lengths=True, restart=restart, dtype=F32, **source)
        assert_agrees(problem, 1e-5, "gpu")


@each_narrow
def test_relu_in_narrow_types_gives_the_outputs_of_the_reference(dtype):
    """Not its gradients: a sum within a rounding of zero is on either side of relu's edge."""
    problem = on_device("rnn", phi="relu", t=6, n=11, h=40, dtype=dtype, state=F32)
    assert_agrees(problem, 1e-2, "gpu", differentiate=False)


@pytest.mark.parametrize("symbols", [3, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype, tolerance", [(F32, 1e-5), (BF16, 1e-2)], ids=["f32", "bf16"])
def test_small_and_large_tables_agree(symbols, dtype, tolerance):
    assert_agrees(on_device("lstm", t=30, n=40, h=24, symbols=symbols, dtype=dtype, state=F32), tolerance, "gpu")


@each_cell
def test_a_layer_without_bias_agrees(cell):
    for dtype, tolerance in ((F32, 1e-5), (BF16, 1e-2)):
        problem = on_device(cell, dtype=dtype, state=F32)
        assert_agrees(replace(problem, vectors=problem.vectors._replace(b=None), bias_hn=None), tolerance, "gpu")


@each_cell
@pytest.mark.parametrize("symbols", [0, 7], ids=["dense", "tokens"])
def test_rows_of_no_steps_keep_their_state(cell, symbols):
    problem = replace(on_device(cell, symbols=symbols, dtype=F32), lengths=torch.tensor([0, 5, 0], device=DEVICE))
    result = scan(problem, "gpu")
    assert_same([part[::2] for part in result.state if part is not None], [part[::2] for part in problem.state if part is not None])
    assert_agrees(problem, 1e-5, "gpu")
    assert_agrees(replace(problem, lengths=torch.zeros(3, dtype=torch.long, device=DEVICE)), 1e-5, "gpu")


@each_storage
def test_lengths_within_the_sequence_agree(engine, dtype):
    """The engine that steps through all rows at once has to leave the finished ones alone."""
    with only(engine):
        for n, h in ((1, 17), (9, 40), (40, 320)):
            assert_agrees(usual(dtype, t=8, n=n, h=h, lengths=True), NEAR[dtype], "gpu")


@each_cell
def test_lengths_and_tokens_may_be_narrow_integers(cell):
    problem = on_device(cell, symbols=7, lengths=True, dtype=F32)
    narrow = replace(problem, tokens=problem.tokens.int(), lengths=problem.lengths.to(torch.int16))
    assert_same_bits(values(scan(narrow, "gpu")), values(scan(problem, "gpu")))


@each_cell
@pytest.mark.parametrize("dtype, tolerance", [(F32, 1e-5), (BF16, 1e-1)], ids=["f32", "bf16"])
def test_large_pre_activations_stay_finite(cell, dtype, tolerance):
    """Products make large values: tanh and sigmoid must not overflow on the way.

    Few may differ: where a sum is within a rounding of zero, a saturated gate is on the one side or the other.
    """
    problem = on_device(cell, dtype=dtype)
    problem = replace(problem, wx=(problem.wx * 1e6).detach().requires_grad_())
    found = values(scan(problem, "gpu"))
    grads = torch.autograd.grad(found, list(leaves(problem).values()), [torch.ones_like(y) for y in found])
    assert all(x.isfinite().all() for x in (*found, *grads))
    for ours, judge in zip(found, values(reference.run(widened(problem))), strict=True):
        assert_near(ours, judge, tolerance, "a value")


@each_narrow
def test_relu_leaves_what_is_not_a_number_to_be_seen(dtype):
    problem = on_device("rnn", phi="relu", t=3, n=3, h=20, dtype=dtype, state=F32)
    problem.wx.data[1, 2, 3] = float("nan")
    outputs = scan(problem, "gpu").outputs
    assert outputs[1, 2, 3].isnan() and outputs[:, :2].isfinite().all()


@each_storage
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_row(engine, dtype, bad):
    with only(engine):
        problem = usual(dtype, t=5, n=3, h=20)
        clean = values(scan(problem, "gpu"))
        problem.wx.data[2, 1, 3] = bad
        ours, judge = values(scan(problem, "gpu")), values(reference.run(widened(problem)))
        assert_same_bits([ours[0][:, ::2]], [clean[0][:, ::2]])
        assert torch.equal(ours[0].isnan(), judge[0].isnan())


@pytest.mark.parametrize("engine, dtype", [*STORED.values(), ("steps", BF16), ("steps", F16)])
def test_every_length_from_one_to_sixty_agrees(engine, dtype):
    tolerance = 1e-5 if dtype == F32 else 1e-2
    with only(engine):
        longest = on_device("lstm", t=60, n=3, h=24, dtype=dtype, state=F32)
        judge = reference.run(widened(longest)).outputs.detach()
        for t in range(1, 61):
            problem = replace(longest, wx=longest.wx[:t].detach().requires_grad_())
            result = scan(problem, "gpu")
            assert_near(result.outputs, judge[:t], tolerance, f"{t} outputs", 0.5 * judge[:t].numel() ** 0.5)
            assert_near(result.state.h, judge[t - 1], tolerance, f"h after {t} steps", 0.5 * judge[0].numel() ** 0.5)
            if t in (1, 2, 31, 60):
                assert_agrees(problem, tolerance, "gpu")


# ---- the same bits ----


@each_storage
@each_option
def test_outputs_are_the_same_bits_with_and_without_gradients(engine, dtype, options):
    with only(engine):
        for t in (1, 2, 7):
            problem = usual(dtype, t=t, **options)
            kept = values(scan(problem, "gpu"))
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    alone = values(scan(problem, "gpu"))
                assert_same_bits([y.clone() for y in alone], kept)


REPEATED = {
    "persistent-small": ("persistent", {"t": 5, "n": 3, "h": 24}),
    "persistent-mid": ("persistent", {"t": 12, "n": 64, "h": 704}),
    "persistent-ragged": ("persistent", {"t": 7, "n": 37, "h": 330, "lengths": True, "symbols": 9}),
    "persistent-wide": ("persistent", {"t": 12, "n": 128, "h": 1024}),
    "persistent-uneven": ("persistent", {"t": 12, "n": 100, "h": 700}),
    "persistent-gru": ("persistent", {"cell": "gru_after", "t": 12, "n": 64, "h": 704}),
    "persistent-gru-before": ("persistent", {"cell": "gru", "t": 12, "n": 64, "h": 704}),
    "persistent-gru-before-wide": ("persistent", {"cell": "gru", "t": 12, "n": 32, "h": 1024}),
    "persistent-gru-before-uneven": ("persistent", {"cell": "gru", "t": 12, "n": 61, "h": 700}),
    "persistent-gru-before-small": ("persistent", {"cell": "gru", "t": 7, "n": 37, "h": 200, "lengths": True}),
    "persistent-rnn": ("persistent", {"cell": "rnn", "t": 12, "n": 64, "h": 704}),
    "persistent-rnn-small": ("persistent", {"cell": "rnn", "t": 7, "n": 37, "h": 200, "lengths": True}),
    "steps-small": ("steps", {"t": 5, "n": 3, "h": 24}),
    "steps-mid": ("steps", {"t": 8, "n": 64, "h": 704}),
    "steps-ragged": ("steps", {"t": 7, "n": 37, "h": 330, "lengths": True, "restart": 1, "features": 9}),
}


REPEATED_IN = [
    (name, dtype) for name, (engine, _) in REPEATED.items() for dtype in ((BF16, F16) if engine == "persistent" else (F32,))
]


@pytest.mark.parametrize("name, dtype", REPEATED_IN)
def test_a_thousand_runs_give_the_same_bits(name, dtype):
    engine, options = REPEATED[name]
    with only(engine):
        problem = usual(dtype, **options)
        first, wrong = bits(problem, "gpu"), torch.zeros((), dtype=torch.long, device=DEVICE)
        for _ in range(1000):
            wrong += differing(bits(problem, "gpu"), first)
        assert int(wrong) == 0
        assert all(x.isfinite().all() for x in first)


@each_kind
@each_narrow
def test_every_kind_gives_the_same_bits_again(kind, dtype):
    problem = on_device(kind, t=9, n=37, h=130, dtype=dtype, state=F32, symbols=6, lengths=True, restart=1)
    first, wrong = bits(problem, "gpu"), torch.zeros((), dtype=torch.long, device=DEVICE)
    for _ in range(50):
        wrong += differing(bits(problem, "gpu"), first)
    assert int(wrong) == 0


def test_graphs_are_made_and_survive_what_torch_does_with_its_workspaces():
    problem = on_device("lstm", t=6, n=32, h=264, dtype=F32)
    gc.collect()
    torch.cuda.empty_cache()  # holes that other tests left would give each call other memory
    with only("steps"):
        before = len(replay._graphs)
        for _ in range(8):
            bits(problem, "gpu")  # dropped, as a training loop does, so that the next call gets the same memory
        expected = bits(problem, "gpu")
        assert len(replay._graphs) > before
        torch._C._cuda_clearCublasWorkspaces()
        canary = torch.full((64 << 20,), 77, dtype=torch.uint8, device=DEVICE)  # takes what was given away
        for _ in range(5):
            assert_same_bits(bits(problem, "gpu"), expected)
        assert (canary == 77).all()


def test_rows_may_be_more_than_a_grid_is_wide():
    problem = on_device("rnn", t=1, n=65537, h=300, dtype=F32)
    assert_agrees(problem, 1e-5, "gpu", differentiate=False)


def test_what_is_replayed_has_the_precision_that_is_asked_for_now():
    """That of nn.LSTM: other products have a setting of their own."""
    problem = on_device("lstm", t=4, n=16, h=64, dtype=F32)
    found = {}
    a, b = (torch.randn(64, 64, device=DEVICE) for _ in range(2))
    exact = (a.double() @ b.double()).float()
    with only("steps"):
        for rnn, matmul in (("ieee", "ieee"), ("tf32", "ieee"), ("ieee", "tf32"), ("tf32", "tf32"), ("ieee", "ieee")):
            torch.backends.cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision = rnn, matmul
            for _ in range(5):  # on the same memory, so that graphs are made and launched
                found.setdefault(rnn, []).append(bits(problem, "gpu"))
                away = ((a @ b) - exact).norm() / exact.norm()  # torch's own products are as they were
                assert away > 1e-5 if matmul == "tf32" else away < 1e-6
    for results in found.values():
        for result in results:
            assert_same_bits(result, results[0])
    assert not torch.equal(found["tf32"][0][0], found["ieee"][0][0])


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("h", [64, 250])
def test_float32_has_the_precision_of_the_layer_that_is_replaced(kind, h):
    """A converted layer is as far from float64 as cuDNN's is, under each setting of torch.backends.cudnn.rnn.

    cuDNN takes full float32 for some small layers although TF32 is allowed; ours is then as far as TF32 makes it.
    """
    theirs = THEIRS[kind](h, h, device=DEVICE)
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(2)
    ours, judge, x = multint.convert(theirs), copy.deepcopy(theirs).double(), drawn(20, 16, h)
    exact = judge(x.detach().double().requires_grad_())[0]
    for precision in ("tf32", "ieee"):
        torch.backends.cudnn.rnn.fp32_precision = precision
        away = []
        for module in (ours, theirs):
            y = module(x)[0]
            (g,) = torch.autograd.grad(y.sum(), module.weight_hh_l0)
            (expected,) = torch.autograd.grad(exact.sum(), judge.weight_hh_l0, retain_graph=True)
            away.append([((y.double() - exact).norm() / exact.norm()).item(), ((g - expected).norm() / expected.norm()).item()])
        for mine, cudnn in zip(*away, strict=True):
            bound = max(2 * cudnn, ROUNDED_TF32) if precision == "tf32" else 2 * cudnn + 1e-7
            assert mine < bound, f"{precision}: {mine:.1e} from float64, cuDNN {cudnn:.1e}"
            assert (mine > 1e-5) == (precision == "tf32")


@each_kind
def test_flow_norms_keep_the_order_of_the_directions(kind):
    module = layer(kind, 6, 18, num_layers=2, bidirectional=True)
    found = probes.flow_norms(module, drawn(5, 3, 6).detach())
    assert [one.name for one in found] == ["l0", "l0_reverse", "l1", "l1_reverse"]


@each_kind
def test_parameters_of_both_directions_get_their_gradients_on_the_callers_stream(kind):
    """Else torch warns, and a CUDA graph around the backward pass breaks."""
    module = layer(kind, 6, 18, num_layers=2, bidirectional=True)
    x = drawn(5, 3, 6)
    plain = copy.copy(module)
    plain.backend = "reference"
    first = plain(x)[0]  # its graph holds on to where the parameters' gradients are added up
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x)[0].sum().backward()
    assert all(p.grad is not None for p in module.parameters()) and first.requires_grad


def poison():
    """Memory that the allocator will hand out next holds ones in every bit: NaN in every floating dtype, -1 in integers."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    sizes = [1 << k for k in range(9, 21) for _ in range(64)] + [20 << 20] * 8  # what is left of small blocks in use goes first
    blocks = [torch.full((size,), 255, dtype=torch.uint8, device=DEVICE) for size in sizes]
    torch.cuda.synchronize()
    blocks.clear()


@each_storage
@each_option
def test_memory_full_of_nan_changes_nothing(engine, dtype, options):
    with only(engine):
        for t, n, h in ((1, 1, 1), (5, 9, 40), (6, 33, 330)):
            problem = usual(dtype, t=t, n=n, h=h, **options)
            expected = bits(problem, "gpu")
            poison()
            assert torch.empty(1000, device=DEVICE).isnan().any(), "the poison has no effect"
            found = bits(problem, "gpu")
            assert all(x.isfinite().all() for x in found)
            assert_same_bits(found, expected)
            poison()
            with torch.no_grad():
                alone = values(scan(problem, "gpu"))
            assert_same_bits(alone, expected[: len(alone)])


@each_cell
def test_memory_full_of_nan_changes_nothing_in_any_cell(cell):
    for dtype, restart in ((F32, 1), (BF16, 1), (F16, 1), (BF16, 0), (F16, 0)):  # the last two may be persistent
        problem = on_device(cell, t=4, n=9, h=37, dtype=dtype, state=F32, symbols=5, lengths=True, restart=restart)
        expected = bits(problem, "gpu")
        poison()
        found = bits(problem, "gpu")
        assert all(x.isfinite().all() for x in found)
        assert_same_bits(found, expected)


@each_storage
def test_memory_does_not_grow_with_the_calls(engine, dtype):
    with only(engine):
        problems = [usual(dtype, t=t) for t in (3, 5)]
        for problem in problems * 10:
            bits(problem, "gpu")
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for problem in problems * 250:
            bits(problem, "gpu")
        gc.collect()
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


# ---- streams and graphs ----


# small enough for clusters; through L2 with clusters of four; through L2 alone, where two launches do not fit the GPU at once
each_size = pytest.mark.parametrize("n, h", [(32, 320), (64, 704), (128, 1024)])


@each_storage
@each_size
def test_two_streams_at_once_give_the_bits_of_one_after_the_other(engine, dtype, n, h):
    with only(engine):
        problems = [usual(dtype, t=12, n=n, h=h, seed=seed) for seed in (1, 2)]
        expected = [bits(problem, "gpu") for problem in problems]
        streams = [torch.cuda.Stream() for _ in problems]
        torch.cuda.synchronize()
        found = []
        for _ in range(20):
            for k, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    found.append((k, bits(problems[k], "gpu")))
        torch.cuda.synchronize()
        for k, result in found:
            assert_same_bits(result, expected[k])


@each_storage
@each_size
def test_two_python_threads_at_once_get_their_own_results(engine, dtype, n, h):
    with only(engine):
        problems = [usual(dtype, t=12, n=n, h=h, seed=seed) for seed in (1, 2)]
        expected, found = [bits(problem, "gpu") for problem in problems], {}
        start = threading.Barrier(2)
        torch.cuda.synchronize()

        def work(k):
            start.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                found[k] = [bits(problems[k], "gpu") for _ in range(30)]
                torch.cuda.current_stream().synchronize()

        running = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert sorted(found) == [0, 1]  # a thread that raised has left nothing
        for k in range(2):
            for result in found[k]:
                assert_same_bits(result, expected[k])


@each_storage
def test_work_on_a_stream_waits_for_what_is_before_it_there(engine, dtype):
    """The input is written on the same stream, late: an engine that reads it elsewhere would read the old one."""
    with only(engine):
        problem = usual(dtype, t=6, n=16, h=240)
        later = usual(dtype, t=6, n=16, h=240, seed=9).wx.detach()
        expected = values(scan(replace(problem, wx=later), "gpu"))
        stream, wx = torch.cuda.Stream(), problem.wx.detach().clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), torch.no_grad():
            torch.cuda._sleep(50_000_000)
            wx.copy_(later)
            found = values(scan(replace(problem, wx=wx), "gpu"))
            wx.zero_()
        stream.synchronize()
        assert_same_bits(found, expected)


@each_storage
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("h", [40, 704])
def test_a_cuda_graph_of_forward_and_backward_replays_eagers_bits(engine, dtype, tokens, bidirectional, h):
    with only(engine):
        module = make("lstm", 6, h, device=DEVICE, dtype=dtype, backend="gpu", bidirectional=bidirectional)
        inputs = [torch.randint(6, (7, 9), device=DEVICE) if tokens else drawn(7, 9, 6, dtype=dtype).detach() for _ in range(3)]
        parameters, static = list(module.parameters()), inputs[0].clone()

        def step(x):
            result = module(x)
            return [*tensors(result), *torch.autograd.grad(scalar(result), parameters)]

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step(static)
        for x in inputs[1:] * 2:
            expected = step(x)
            static.copy_(x)
            graph.replay()
            assert_same_bits(captured, expected)


# ---- layers ----

LAYERS = {
    "plain": {},
    "two bidirectional layers": {"num_layers": 2, "bidirectional": True},
    "batch_first": {"batch_first": True},
    "learn_state": {"learn_state": True, "num_layers": 2},
    "gated without bias": {"integration": "gated", "bias": False},
    "simple": {"integration": "simple", "bidirectional": True},
    "additive": {"integration": "additive"},
}


def layer(kind, *sizes, builder=make, **options):
    return builder(kind, *sizes, device=DEVICE, backend="gpu", **options)


def assert_layer_agrees(module, *inputs, tolerance=1e-5, **more):
    """A layer or cell of float32: results and gradients of inputs and parameters are the reference's in float64."""
    judge = copy.deepcopy(module).double()
    judge.backend = "reference"
    wide = mapped(lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x, inputs)
    found, expected = module(*inputs, **more), judge(*wide, **more)
    with torch.no_grad():
        alone = module(*inputs, **more)
    for a, without, b in zip(tensors(found), tensors(alone), tensors(expected), strict=True):
        assert_near(a, b, tolerance, "a result", 0.1 * b.numel() ** 0.5)
        assert_near(without, b, tolerance, "a result without a gradient", 0.1 * b.numel() ** 0.5)
    ours, theirs = all_gradients(module, found, *inputs), all_gradients(judge, expected, *wide)
    least = 0.1 * max(g.norm().item() for g in theirs.values())  # sums that cancel keep the roundings of their terms
    for name, b in theirs.items():
        assert_near(ours[name], b, tolerance, f"gradient of {name}", least)


@each_kind
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_the_reference(kind, name):
    module = layer(kind, 3, 18, **LAYERS[name])
    x, resets, hx = drawn(5, 5, 3), torch.rand(5, 5, device=DEVICE) < 0.4, drawn_hidden(module, 5)
    assert_layer_agrees(module, x)
    assert_layer_agrees(module, x, hx)
    assert_layer_agrees(module, x, hx, resets=resets)
    assert_layer_agrees(module, x[:, 0])


@each_kind
@pytest.mark.parametrize("symbols", [6, 50])
def test_layers_on_tokens_equal_the_reference(kind, symbols):
    module = layer(kind, symbols, 18, num_layers=2, bidirectional=True)
    tokens, resets = torch.randint(symbols, (5, 4), device=DEVICE), torch.rand(5, 4, device=DEVICE) < 0.4
    assert_layer_agrees(module, tokens)
    assert_layer_agrees(module, tokens, resets=resets)
    assert_layer_agrees(module, tokens[:, 0])


@each_kind
def test_tokens_equal_one_hot_rows(kind):
    module, tokens = layer(kind, 6, 40), torch.randint(6, (7, 9), device=DEVICE)
    results = [module(tokens), module(torch.nn.functional.one_hot(tokens, 6).float())]
    assert_same(*results, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(scalar(result), list(module.parameters())) for result in results]
    assert_same(*grads, rtol=1e-4, atol=1e-4)


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_layers_on_packed_sequences_equal_the_reference(kind, tokens):
    module, lengths = layer(kind, 6, 18, num_layers=2, bidirectional=True, learn_state=True), torch.tensor([2, 5, 3, 1])

    def packed(x):
        return pack_padded_sequence(x, lengths, enforce_sorted=False)

    x = packed(torch.randint(6, (5, 4), device=DEVICE)) if tokens else packed(drawn(5, 4, 6))
    assert_layer_agrees(module, x)
    assert_layer_agrees(module, x, drawn_hidden(module, 4))
    assert_layer_agrees(module, x, resets=packed(torch.rand(5, 4, device=DEVICE) < 0.4))


@each_storage
def test_packed_rows_equal_each_row_alone(engine, dtype):
    with only(engine):
        tolerance = 1e-5 if dtype == F32 else 2 * NEAR[dtype]
        module = rounded_weights(layer("lstm", 6, 40, bidirectional=True), dtype).to(dtype)
        x, lengths = drawn(9, 4, 6, dtype=dtype).detach(), torch.tensor([4, 9, 1, 7])
        output, state = module(pack_padded_sequence(x, lengths, enforce_sorted=False))
        padded, _ = pad_packed_sequence(output)
        for k, length in enumerate(lengths.tolist()):
            alone, last = module(x[:length, k])
            assert_same(padded[:length, k], alone, rtol=tolerance, atol=tolerance)
            assert_same([part[:, k] for part in state], last, rtol=tolerance, atol=tolerance)
            assert not padded[length:, k].any()


@each_kind
def test_a_carried_state_goes_on_where_the_sequence_was_cut(kind):
    module, x = layer(kind, 6, 40, num_layers=2), drawn(9, 5, 6)
    whole, last = module(x)
    first, state = module(x[:4])
    second, end = module(x[4:], state)
    assert_same([torch.cat([first, second]), end], [whole, last], rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(scalar(y), [x, *module.parameters()]) for y in (whole, torch.cat([first, second]))]
    assert_same(*grads, rtol=1e-4, atol=1e-4)


@each_kind
def test_a_reset_begins_a_sequence(kind):
    module, x = layer(kind, 6, 40, learn_state=True), drawn(9, 5, 6).detach()
    resets = torch.zeros(9, 5, dtype=torch.bool, device=DEVICE)
    resets[4] = True
    together, _ = module(x, resets=resets)
    assert_same(together, torch.cat([module(x[:4])[0], module(x[4:])[0]]), rtol=1e-5, atol=1e-6)


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_cells_equal_the_reference(kind, tokens):
    module = layer(kind, 6, 18, builder=make_cell)
    for n in (None, 1, 4, 30):
        rows = () if n is None else (n,)
        x = torch.randint(6, rows, device=DEVICE) if tokens else drawn(*rows, 6)
        assert_layer_agrees(module, x)
        assert_layer_agrees(module, x, drawn_hidden(module, n))


@each_kind
def test_an_empty_batch_gives_empty_results_and_zero_gradients(kind):
    module = make(kind, 6, 4, device=DEVICE, num_layers=2, bidirectional=True, learn_state=True)
    for x in (drawn(3, 0, 6), torch.zeros(3, 0, dtype=torch.long, device=DEVICE)):
        result = module(x)
        assert result[0].shape == (3, 0, 8)
        assert not any(g.any() for g in all_gradients(module, result).values())


@each_kind
def test_inputs_need_not_be_contiguous(kind):
    module = layer(kind, 6, 18)
    hx = mapped(lambda part: part.detach()[:, :1].expand(1, 4, 18).requires_grad_(), drawn_hidden(module, 4))
    x = drawn(4, 6, 5).permute(2, 0, 1)
    assert_layer_agrees(module, x, hx)
    assert_layer_agrees(module, drawn(10, 4, 6)[::2], mapped(lambda part: part.mT.contiguous().mT, hx))
    tokens, resets = torch.randint(6, (4, 5), device=DEVICE).t(), (torch.rand(4, 5, device=DEVICE) < 0.4).t()
    assert_layer_agrees(module, tokens, hx, resets=resets)
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach().t().contiguous().t())
    assert_layer_agrees(module, x)


@each_storage
def test_gradients_need_not_be_contiguous(engine, dtype):
    with only(engine):
        problem = usual(dtype)
        outputs = scan(problem, "gpu").outputs
        t, n, h = outputs.shape
        turned, one = drawn(h, n, t, dtype=outputs.dtype).detach(), drawn(dtype=outputs.dtype).detach()
        for sent in (turned.permute(2, 1, 0), one.expand(t, n, h)):
            wanted = list(leaves(problem).values())
            found = torch.autograd.grad(outputs, wanted, sent, retain_graph=True)
            assert_same_bits(found, torch.autograd.grad(outputs, wanted, sent.contiguous(), retain_graph=True))


@each_kind
def test_gradients_of_a_part_of_the_results_equal_the_reference(kind):
    """Where nothing comes back for an output its gradient is zero."""
    module = layer(kind, 3, 18)
    judge, x = copy.deepcopy(module), drawn(5, 4, 3)
    judge.backend = "reference"
    for part in range(len(tensors(module(x)))):
        grads = [torch.autograd.grad(scalar(tensors(m(x))[part]), [x, *m.parameters()]) for m in (module, judge)]
        assert_same(*grads, rtol=1e-4, atol=1e-4)


@each_storage
def test_every_part_of_the_problem_may_be_frozen(engine, dtype):
    """Gradients of what is left are the same bits, whatever is not asked for."""
    with only(engine):
        for source in ({}, {"symbols": 6}, {"features": 5}):
            problem = usual(dtype, **source)
            everything = leaves(problem)
            found = values(scan(problem, "gpu"))
            costs = [torch.randn_like(y) for y in found]
            expected = dict(zip(everything, torch.autograd.grad(found, list(everything.values()), costs), strict=True))
            for name, x in everything.items():
                (alone,) = torch.autograd.grad(values(scan(problem, "gpu")), [x], costs)
                assert_same_bits([alone], [expected[name]])
                x.requires_grad_(False)
                rest = leaves(problem)
                others = torch.autograd.grad(values(scan(problem, "gpu")), list(rest.values()), costs)
                assert_same_bits(others, [expected[other] for other in rest])
                x.requires_grad_()


@each_storage
def test_a_second_backward_pass_gives_the_same_bits(engine, dtype):
    with only(engine):
        problem = usual(dtype, n=33, h=130)
        loss, wanted = sum(y.float().sin().sum() for y in values(scan(problem, "gpu"))), list(leaves(problem).values())
        first = torch.autograd.grad(loss, wanted, retain_graph=True)
        assert_same_bits(torch.autograd.grad(loss, wanted, retain_graph=True), first)
        assert_same_bits(torch.autograd.grad(loss, wanted), first)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(loss, wanted)


@each_kind
def test_a_weight_edited_before_the_backward_pass_raises(kind):
    module, x = layer(kind, 3, 18), drawn(5, 4, 3)
    loss = scalar(module(x))
    with torch.no_grad():
        module.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_kind
def test_an_output_edited_before_the_backward_pass_raises_as_with_cudnn(kind):
    """The gradient of U is a product with the outputs, which are not copied for it."""
    x = drawn(5, 4, 3)
    for module in (layer(kind, 3, 24), THEIRS[kind](3, 24, device=DEVICE)):
        output, _ = module(x)
        output.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@each_kind
def test_an_output_edited_before_the_backward_pass_is_no_error_where_units_are_added_to_it(kind):
    """The steps then have a wider copy of their own."""
    module, x = layer(kind, 4, 5), drawn(6, 4, 4)
    output, _ = module(x)
    output.mul_(2)
    (found,) = torch.autograd.grad(output.sum(), module.weight_hh_l0)
    (expected,) = torch.autograd.grad(2 * module(x)[0].sum(), module.weight_hh_l0)
    assert_same_bits([found], [expected])


@each_storage
def test_checkpointing_gives_the_same_gradients(engine, dtype):
    with only(engine):
        module, x = layer("lstm", 3, 18, dtype=dtype), drawn(5, 4, 3, dtype=dtype)
        wanted = [x, *module.parameters()]
        plain = torch.autograd.grad(scalar(module(x)), wanted)
        again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
        assert_same_bits(torch.autograd.grad(scalar(again), wanted), plain)


# ---- narrow layers ----


@pytest.mark.parametrize("h", [40, 330])
def test_where_c_overflows_float16_outputs_stay_finite_and_gradients_show_it(h):
    """c is float32 along the sequence and float16 between the passes, where it is inf: GradScaler then skips the update."""
    with only("persistent"):
        usually = usual(F16, t=6, n=5, h=h)
        c, rest = usually.state.c.detach().clone(), [0, 1, 3, 4]
        c[2] = 1e5
        problem = replace(usually, state=usually.state._replace(c=c.requires_grad_()))
        found, expected, names = bits(problem, "gpu"), bits(usually, "gpu"), list(leaves(problem))
        results, grads = found[: -len(names)], dict(zip(names, found[-len(names) :], strict=True))
        for y, judge in zip(results, values(reference.run(widened(problem))), strict=True):
            assert y.isfinite().all()
            assert_near(y, judge, 1e-2, "a result")
        assert not grads["wx"][0, 2].isfinite().all() and not grads["u"].isfinite().all()
        assert_same_bits([results[0][:, rest]], [expected[0][:, rest]])
        for name, clean in zip(names, expected[-len(names) :], strict=True):
            if name in ("wx", "h", "c"):  # which have rows of their own
                assert_same_bits([grads[name].movedim(-2, 0)[rest]], [clean.movedim(-2, 0)[rest]])
        assert_same_bits(bits(usually, "gpu"), expected)


def test_in_float16_flows_beyond_its_range_give_what_is_not_a_number_and_small_gradients_zeros():
    with only("persistent"):
        module = layer("lstm", 64, 40, dtype=F16)
        x = torch.full((4, 3, 64), 6e4, device=DEVICE, dtype=F16)
        with torch.no_grad():
            module.weight_ih_l0.fill_(1)
        assert not module(x)[0].isfinite().all()
        module = layer("lstm", 6, 40, dtype=F16)
        x = drawn(1, 3, 6, dtype=F16)
        for scale, lost in ((1, False), (2.0**-24, True)):
            (found,) = torch.autograd.grad(module(x)[0], x, torch.full((1, 3, 40), scale, device=DEVICE, dtype=F16))
            assert bool(found.any()) is not lost


@each_kind
@each_narrow
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
@pytest.mark.parametrize("mode", ["module", "autocast"])
def test_narrow_layers_agree_with_float64(kind, dtype, tokens, mode):
    module = rounded_weights(layer(kind, 6, 40, bidirectional=True), dtype)
    x = torch.randint(6, (7, 9), device=DEVICE) if tokens else drawn(7, 9, 6, dtype=dtype).detach().float()
    cost = drawn(7, 9, 80, dtype=dtype).detach()
    judge = judged(module, x, cost)
    if mode == "module":
        module, x = module.to(dtype), x if tokens else x.to(dtype)
    with torch.autocast(DEVICE, dtype=dtype, enabled=mode == "autocast"):
        output, state = module(x)
    assert {y.dtype for y in tensors([output, state])} == {dtype}
    grads = torch.autograd.grad((output * cost).sum(), list(module.parameters()))
    assert {g.dtype for g in grads} == {dtype if mode == "module" else F32}
    tolerance = 2e-2 if dtype == BF16 else 5e-3  # weights of up to 0.8 stretch roundings
    for ours, expected in zip([output, *tensors(state), *grads], [judge[0], *judge[1], *judge[2]], strict=True):
        assert_near(ours, expected, tolerance, "a value or gradient")


@each_narrow
def test_under_autocast_the_state_between_steps_keeps_its_digits(dtype):
    """The scan's own state stays in float32, as that of the problem is; only stored values are narrow."""
    result = scan(on_device("lstm", t=4, n=3, h=24, dtype=dtype, state=F32), "gpu")
    assert result.outputs.dtype == dtype
    assert {part.dtype for part in result.state} == {F32}
    assert not torch.equal(result.state.c, result.state.c.to(dtype).float())


@each_narrow
def test_a_state_of_float32_is_carried_under_autocast(dtype):
    module = layer("lstm", 6, 40)
    x, hx = drawn(7, 9, 6), drawn_hidden(module, 9)
    with torch.autocast(DEVICE, dtype=dtype):
        output, state = module(x, hx)
    exact, last = module(x, hx)
    assert {y.dtype for y in tensors([output, state])} == {dtype}
    for ours, expected in zip(tensors([output, state]), tensors([exact, last]), strict=True):
        assert_near(ours, expected.double(), 2e-2, "a value")


# ---- which backend and engine runs ----


@each_kind
def test_plain_layers_and_cells_run_on_the_gpu(kind, ran):
    x = drawn(3, 2, 6)
    make(kind, 6, 4, device=DEVICE)(x)
    make(kind, 6, 4, device=DEVICE, num_layers=2, bidirectional=True).eval()(torch.randint(6, (3, 2), device=DEVICE))
    make_cell(kind, 6, 4, device=DEVICE)(x[0])
    for dtype in (BF16, F16):
        make(kind, 6, 4, device=DEVICE, dtype=dtype)(x.to(dtype))
        with torch.autocast(DEVICE, dtype=dtype):
            make(kind, 6, 4, device=DEVICE)(x)
    assert ran == ["gpu"] * (1 + 4 + 1 + 4)


def test_the_engine_is_the_first_that_takes_the_problem():
    assert list(gpu.ENGINES) == ["persistent", "steps"]
    assert gpu.engine_for(on_device("lstm", dtype=F32)) == "steps"
    for dtype in (BF16, F16):
        assert (
            gpu.engine_for(trained_problem("gru", 6, 128, 1024, 1024, dtype, device=DEVICE)) == "steps"
        )  # too many rows for a slice
        with only("persistent"):
            assert gpu.engine_for(on_device("gru", dtype=dtype, state=F32)) == "persistent"
            assert gpu.engine_for(trained_problem("lstm", 6, 64, 704, 704, dtype, device=DEVICE)) == "persistent"
        assert gpu.engine_for(trained_problem("lstm", 6, 64, 704, 704, dtype, device=DEVICE)) == "persistent"


def test_an_engine_that_cannot_take_a_problem_is_said_to():
    with only("persistent"), pytest.raises(ValueError, match="backend 'gpu' cannot run this: "):
        scan(on_device("gru", dtype=F32), "gpu")


OUTSIDE = {
    "norm": {"norm": "layer"},
    "zoneout": {"zoneout": (0.1, 0.1)},
    "recurrent_dropout": {"recurrent_dropout": 0.2},
    "proj_size": {"proj_size": 2},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_backend_lacks_runs_the_reference_and_is_named(name, ran):
    x = drawn(3, 2, 6)
    make("lstm", 6, 4, device=DEVICE, **OUTSIDE[name])(x)
    assert ran == ["reference"]
    with pytest.raises(ValueError, match=f"backend 'gpu' cannot run this: .*{name}"):
        layer("lstm", 6, 4, **OUTSIDE[name])(x)


def test_other_dtypes_and_devices_run_elsewhere_and_are_named(ran):
    make("lstm", 6, 4, device=DEVICE, dtype=F64)(drawn(3, 2, 6, dtype=F64))
    assert ran == ["reference"]
    with pytest.raises(ValueError, match="backend 'gpu' cannot run this: .*float64"):
        layer("lstm", 6, 4, dtype=F64)(drawn(3, 2, 6, dtype=F64))
    with pytest.raises(ValueError, match="backend 'gpu' cannot run this: .*cpu"):
        make("lstm", 6, 4, backend="gpu")(torch.randn(3, 2, 6))


# ---- higher derivatives and transforms ----


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_gradients_are_differentiated_again_by_the_reference(kind, tokens, ran):
    module = layer(kind, 3, 5)
    judge = copy.deepcopy(module).double()
    judge.backend = "reference"
    given = torch.randint(3, (4, 2), device=DEVICE) if tokens else drawn(4, 2, 3)
    found = []
    for m, x in ((module, given), (judge, given if tokens else given.detach().double().requires_grad_())):
        wanted = [*([] if tokens else [x]), *m.parameters()]
        grads = torch.autograd.grad(scalar(m(x)), wanted, create_graph=True)
        found.append([*grads, *torch.autograd.grad(scalar(grads), wanted)])
    assert ran[:2] == ["gpu", "reference"]
    least = 0.1 * max(g.norm().item() for g in found[1])
    for ours, expected in zip(*found, strict=True):
        assert_near(ours, expected, 1e-4, "a first or second derivative", least)


@each_kind
def test_a_backward_pass_under_vmap_equals_one_for_each_row(kind):
    module, x = layer(kind, 6, 4), drawn(3, 2, 6)
    output = module(x)[0]
    sent, wanted = drawn(4, *output.shape).detach(), [x, *module.parameters()]
    together = torch.func.vmap(lambda g: torch.autograd.grad(output, wanted, g, retain_graph=True))(sent)
    for k, g in enumerate(sent):
        one = torch.autograd.grad(output, wanted, g, retain_graph=True)
        assert_same([rows[k] for rows in together], one, rtol=1e-4, atol=1e-5)


@each_kind
@each_engine
def test_batched_gradients_equal_one_for_each_row(kind, engine):
    with only(engine):
        dtype = BF16 if engine == "persistent" else F32
        module, x = layer(kind, 6, 40, dtype=dtype), drawn(3, 2, 6, dtype=dtype)
        output = module(x)[0]
        sent, wanted = drawn(4, *output.shape, dtype=dtype).detach(), [x, *module.parameters()]
        together = torch.autograd.grad(output, wanted, sent, is_grads_batched=True, retain_graph=True)
        for k, g in enumerate(sent):
            one = torch.autograd.grad(output, wanted, g, retain_graph=True)
            for a, b in zip(together, one, strict=True):
                assert_near(a[k], b.double(), 1e-5 if dtype == F32 else 2e-2, "a gradient", 0.1 * b.numel() ** 0.5)


@each_kind
def test_transforms_that_look_through_operations_run_the_reference(kind, ran):
    module, x = make(kind, 6, 4, device=DEVICE), drawn(3, 2, 6).detach()
    judge = copy.deepcopy(module)
    judge.backend = "reference"
    found = []
    for m in (module, judge):
        parameters = dict(m.named_parameters())
        mapped_rows = torch.func.vmap(m, in_dims=1)(x)
        slope = torch.func.grad(lambda x, m=m: m(x)[0].sin().sum())(x)
        of_parameters = torch.func.grad(lambda p, m=m: torch.func.functional_call(m, p, (x,))[0].sin().sum())(parameters)
        forward = torch.func.jvp(lambda x, m=m: m(x)[0], (x,), (x,))
        found.append([*tensors(mapped_rows), slope, *of_parameters.values(), *forward])
    assert_same(*found)
    assert set(ran) == {"reference"}
    module.backend = "gpu"
    with pytest.raises(ValueError, match="backend 'gpu' cannot run this: torch.func and forward-mode AD see through"):
        torch.func.vmap(module, in_dims=1)(x)


# ---- the operators in a graph ----


class Calls(TorchDispatchMode):
    """Writes down the arguments our operators are called with."""

    def __init__(self):
        super().__init__()
        self.arguments = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "multint":
            self.arguments[operator] = args
        return operator(*args, **(kwargs or {}))


def as_leaves(args, differentiable):
    """Arguments of their own, which ask for a gradient where they are floating point."""
    kinds = (list, tuple)
    return tuple(
        x.detach().clone().requires_grad_(differentiable and x.is_floating_point())
        if isinstance(x, torch.Tensor)
        else type(x)(as_leaves(x, differentiable))
        if isinstance(x, kinds)
        else x
        for x in args
    )


OPERANDS = {
    "rnn": {"cell": "rnn"},
    "lstm-lengths-resets": {"cell": "lstm", "lengths": True, "restart": 3},
    "lstm-tokens": {"cell": "lstm", "symbols": 4},
    "lstm-x": {"cell": "lstm", "features": 4},
    "gru-tokens-lengths-resets": {"cell": "gru", "symbols": 4, "lengths": True, "restart": 3},
    "gru_after-resets": {"cell": "gru_after", "restart": 3},
    "lstm-bf16": {"cell": "lstm", "dtype": BF16, "state": F32},
    "gru-bf16": {"cell": "gru", "dtype": BF16, "state": F32},
    "gru_after-bf16": {"cell": "gru_after", "dtype": BF16, "state": F32},
    "rnn-bf16": {"cell": "rnn", "h": 128, "dtype": BF16, "state": F32},  # whose flows are read where they lie
    "lstm-f16": {"cell": "lstm", "dtype": F16, "state": F32},
    "gru-f16": {"cell": "gru", "dtype": F16, "state": F32},
    "rnn-f16": {"cell": "rnn", "h": 128, "dtype": F16, "state": F32},
    "lstm-x-recompute": {"cell": "lstm", "features": 4, "recompute": True},
    "gru-bf16-recompute": {"cell": "gru", "dtype": BF16, "state": F32, "recompute": True},
    "rnn-bf16-recompute": {
        "cell": "rnn",
        "features": 4,
        "dtype": BF16,
        "state": F32,
        "recompute": True,
    },  # of which nothing is kept
}


@pytest.mark.traced
@pytest.mark.parametrize("name", OPERANDS)
def test_opcheck_of_the_operators(name):
    options = {"dtype": F32, **OPERANDS[name]}
    lean = options.pop("recompute", False)
    problem = replace(on_device(**options), recompute=lean)
    with Calls() as calls, torch.autograd.set_multithreading_enabled(False):
        bits(problem, "gpu")
    forward, backward = torch.ops.multint.gpu_forward.default, torch.ops.multint.gpu_backward.default
    assert {forward, backward} <= set(calls.arguments)
    torch.library.opcheck(forward, as_leaves(calls.arguments[forward], True))
    torch.library.opcheck(backward, as_leaves(calls.arguments[backward], False))
    with Calls() as calls, torch.no_grad():
        scan(problem, "gpu")
    torch.library.opcheck(forward, as_leaves(calls.arguments[forward], False))


def assert_compiled_equals_eager(compiled, module, x, rtol, atol, **more):
    found, expected = compiled(x, **more), module(x, **more)
    assert_same(found, expected, rtol=rtol, atol=atol)
    grads = [all_gradients(module, result, x) for result in (found, expected)]
    torch.testing.assert_close(*grads, rtol=10 * rtol, atol=10 * atol)
    with torch.no_grad():
        assert_same(compiled(x, **more), mapped(torch.detach, expected), rtol=rtol, atol=atol)


@pytest.mark.traced
@each_kind
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["f32", "bf16", "f16"])
def test_a_compiled_layer_is_our_operator_in_one_graph_for_every_length(kind, dtype):
    torch.compiler.reset()
    module, recorder = make(kind, 3, 18, device=DEVICE, dtype=dtype), Recorder()
    compiled = torch.compile(module, fullgraph=True, backend=recorder)
    tolerance = 1e-5 if dtype == F32 else 2e-2
    for t in (5, 7, 9, 30):
        assert_compiled_equals_eager(compiled, module, drawn(t, 4, 3, dtype=dtype), tolerance, tolerance)
    assert any("gpu_forward" in name for name in recorder.forward)
    assert any("gpu_backward" in name for name in recorder.backward)
    assert any("gpu_forward" in name for name in recorder.inference)
    # the first length and one graph for every other: each with and without gradients, and its backward pass
    assert recorder.graphs <= 6


@pytest.mark.traced
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_layer_on_tokens_serves_every_length_with_one_graph(training):
    torch.compiler.reset()
    module, recorder = make("lstm", 6, 18, device=DEVICE, num_layers=2), Recorder()
    compiled = torch.compile(module, fullgraph=True, backend=recorder)
    with torch.set_grad_enabled(training):
        for t in (5, 6, 7, 11, 30):
            tokens, resets = torch.randint(6, (t, 4), device=DEVICE), torch.rand(t, 4, device=DEVICE) < 0.3
            assert_same(compiled(tokens, resets=resets), module(tokens, resets=resets), rtol=1e-5, atol=1e-6)
    assert recorder.graphs <= (4 if training else 2)


@pytest.mark.traced
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["f32", "bf16", "f16"])
def test_inductor_gives_eagers_values_and_gradients(dtype):
    torch.compiler.reset()
    module = make("lstm", 3, 18, device=DEVICE, dtype=dtype)
    compiled = torch.compile(module, fullgraph=True)
    tolerance = 1e-5 if dtype == F32 else 2e-2
    for t in (5, 8, 13):
        assert_compiled_equals_eager(compiled, module, drawn(t, 4, 3, dtype=dtype), tolerance, tolerance)


@pytest.mark.traced
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo 2.11 reads it
@each_kind
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_compiled_model_takes_packed_sequences(kind, bidirectional):
    torch.compiler.reset()
    module, x = make(kind, 3, 18, device=DEVICE, bidirectional=bidirectional), drawn(5, 4, 3)

    def model(x, lengths):
        output, _ = module(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(output)[0]

    compiled = torch.compile(model)
    for lengths in ([2, 5, 3, 1], [5, 1, 1, 4]):
        results = [f(x, torch.tensor(lengths)) for f in (compiled, model)]
        assert_same(*results, rtol=1e-5, atol=1e-6)
        grads = [torch.autograd.grad(scalar(result), [x, *module.parameters()]) for result in results]
        assert_same(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.traced
@each_narrow
def test_autocast_under_compile_equals_eager(dtype):
    torch.compiler.reset()
    module, x = make("lstm", 3, 18, device=DEVICE), drawn(5, 4, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.autocast(DEVICE, dtype=dtype):
        results = [f(x) for f in (compiled, module)]
    assert_same(*results, rtol=2e-2, atol=2e-2)
    grads = [torch.autograd.grad(scalar(result), list(module.parameters())) for result in results]
    assert {g.dtype for g in grads[0]} == {F32}
    for ours, judge in zip(*grads, strict=True):
        assert_near(ours, judge.double(), 2e-2, "a gradient")


# ---- other processes ----


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    if not dist.is_available():
        pytest.skip("torch has no distributed package")
    backend = "nccl" if dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore::UserWarning")  # nccl's, about a group of one
@each_storage
def test_ddp_gives_the_gradients_of_the_layer_itself(engine, dtype):
    with only(engine):
        module, x = layer("lstm", 3, 18, num_layers=2, dtype=dtype), drawn(5, 4, 3, dtype=dtype).detach()
        expected = torch.autograd.grad(scalar(module(x)), list(module.parameters()))
        parallel = DistributedDataParallel(module, device_ids=[torch.cuda.current_device()])
        for _ in range(2):
            module.zero_grad()
            scalar(parallel(x)).backward()
            assert_same_bits([p.grad for p in module.parameters()], expected)


OUT_OF_RANGE = """
import sys
from test_gpu_backend import *
module = make("lstm", 6, 5, device=DEVICE, backend="gpu")
tokens = torch.tensor([[0, 3], [int(sys.argv[1]), 2]], device=DEVICE).repeat(1, int(sys.argv[2]))
with pytest.raises((IndexError, RuntimeError)):  # the first call after the assertion fails, whichever that is
    module(tokens)
    torch.cuda.synchronize()
print("it was seen", flush=True)
os._exit(0)  # a context that has met an assertion does not always close
"""


def script(code, *args, program=(), seconds=280, **environment):
    """Run in a process of its own: its exit status, and what it prints."""
    ran = subprocess.run(
        [*program, sys.executable, "-c", code, *map(str, args)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("bad", [6, -1])
@pytest.mark.parametrize("repeats", [1, 10], ids=["by flow", "by table"])
def test_tokens_beyond_the_table_do_not_pass_unseen(bad, repeats):
    """Seen on the device, which ends the context: in a process of its own."""
    status, said = script(OUT_OF_RANGE, bad, repeats)
    assert status == 0 and "it was seen" in said and ("a token is not in 0 to 5" in said or "Assertion" in said), said[-3000:]


SANITIZED = """
import sys
from test_gpu_backend import *
engine, dtype = STORED[sys.argv[1]]
with only(engine):
    for h in (40, 330):
        bits(usual(dtype, t=3, n=9, h=h, cell=sys.argv[2], lengths=True, symbols=5), "gpu")
    torch.cuda.synchronize()
"""


WATCHED = [("steps-f32", "lstm"), *((name, cell) for name in ("persistent-bf16", "persistent-f16") for cell in CELLS)]


@pytest.mark.parametrize("name, cell", WATCHED)
def test_no_access_is_out_of_bounds(name, cell):
    """compute-sanitizer sees every access; without torch's cache every tensor is an allocation with ends of its own."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("no compute-sanitizer on the PATH")
    engine, dtype = STORED[name]
    with only(engine):
        for h in (40, 330):
            bits(usual(dtype, t=3, n=9, h=h, cell=cell, lengths=True, symbols=5), "gpu")  # builds what is not built yet
    memcheck = (program, "--tool", "memcheck", "--error-exitcode", "86")
    status, said = script(SANITIZED, name, cell, program=memcheck, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert status == 0, said[-3000:]
