"""Two directions on two streams give what one stream gives, however late the second is and whatever becomes of freed memory."""

import contextlib
import copy
import random
import subprocess
import sys

import pytest
import torch
import torch.utils.checkpoint
from helpers import KINDS, make, scalar, tensors
from problems import BF16, F32, F64, all_gradients
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

from multint import layers
from multint.scan import streams

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LATE = 1_000_000  # cycles that the second stream is held up before a piece of work, about half a millisecond
BLOCKS = {512: 32, 1024: 16, 2048: 16, 4096: 8, 8192: 8, 1 << 14: 4, 1 << 15: 4, 1 << 16: 4}  # bytes of what small problems keep
ENGINES = {"persistent": BF16, "steps": F32, "reference": F64}


# ---- where it decides ----


def test_a_cpu_and_checkpointing_have_one_stream():
    x = torch.zeros(2)
    assert "have no streams" in streams.why_one_stream(x)
    pretended = torch.empty(2, device="meta")
    assert "have no streams" in streams.why_one_stream(pretended)


@needs_gpu
def test_hooks_of_saved_tensors_and_transforms_have_one_stream():
    x = torch.zeros(2, device="cuda")
    assert streams.why_one_stream(x) is None
    with torch.autograd.graph.save_on_cpu():
        assert "hooks of saved tensors" in streams.why_one_stream(x)
    assert torch.func.vmap(lambda row: row * (streams.why_one_stream(x) is not None))(x).shape == (2,)


# ---- a second stream that is late, on memory that is used again ----


def spoil():
    """On the current stream, overwrite what the allocator would hand out next."""
    for size, count in BLOCKS.items():
        for block in [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]:
            block.fill_(255)  # NaN in every floating dtype


@contextlib.contextmanager
def hostile():
    """Before each piece of work on the second stream it is held up; in between, freed memory of the first is overwritten."""
    home, direction = torch.cuda.current_stream(), layers._Layer._direction

    def disturb():
        if torch.cuda.current_stream() != home:
            torch.cuda._sleep(LATE)
        with torch.cuda.stream(home):
            spoil()

    def disturbed(*args):
        disturb()
        try:
            return direction(*args)
        finally:
            disturb()

    def watch(result):
        """Do so before every node of the backward pass too."""
        seen, nodes = set(), [y.grad_fn for y in tensors(result)]
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen:
                seen.add(node)
                node.register_prehook(lambda grads: disturb())
                nodes += [parent for parent, _ in node.next_functions]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers._Layer, "_direction", disturbed)
        yield watch


@contextlib.contextmanager
def one_stream():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "why_one_stream", lambda like: "for comparison")
        yield


def problem(kind, engine, n=3, t=4, h=5, **options):
    dtype = ENGINES[engine]
    features = options.pop("features", 4)
    module = make(kind, features, h, num_layers=2, bidirectional=True, device="cuda", dtype=dtype, **options)
    if engine == "reference":
        module.backend = "reference"
    return module, torch.randn(t, n, features, device="cuda", dtype=dtype)


def packed(module, x):
    return pack_padded_sequence(x, torch.arange(x.shape[0], 0, -1)[: x.shape[1]])


def tokens(module, x):
    return torch.randint(x.shape[-1], x.shape[:2], device="cuda")


CASES = {
    "plain": ({}, lambda module, x: x, {}),
    "input with a gradient": ({}, lambda module, x: x.requires_grad_(), {}),
    "tokens": ({}, tokens, {}),
    "packed": ({}, packed, {}),
    "learned state": ({"learn_state": True}, lambda module, x: x, {}),
    "recompute": ({"recompute": True}, lambda module, x: x, {}),
    "resets": ({}, lambda module, x: x, {"resets": True}),
    "zoneout": ({"zoneout": 0.5}, lambda module, x: x, {}),
    "norm": ({"norm": "layer"}, lambda module, x: x, {}),
}


def run(module, x, watch=None, again=False, **more):
    torch.manual_seed(0)  # zoneout draws
    result = module(x, **more)
    if watch is not None:
        watch(result)
    found = [y.detach() for y in tensors(result)]
    for keep in (True, False) if again else (False,):
        found += all_gradients(module, result, x, retain_graph=keep).values()
    return found


def assert_same_values(found, expected, dtype):
    assert len(found) == len(expected) > 0
    tolerance = {F64: 1e-10, F32: 1e-4, BF16: 2e-2}[dtype]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_a_late_second_stream_changes_nothing(kind, engine, name):
    options, source, more = CASES[name]
    if "recompute" in options and engine == "reference":
        pytest.skip("the reference loop keeps its flows")
    module, x = problem(kind, engine, **options)
    x = source(module, x)
    more = {"resets": torch.rand(x.shape[:2], device="cuda") < 0.4} if more else {}
    with one_stream():
        expected = run(module, x, again=True, **more)
    with hostile() as watch:
        assert_same_values(run(module, x, watch, again=True, **more), expected, ENGINES[engine])


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_sequences_in_flight_do_not_disturb_each_other(engine):
    module, x = problem("lstm", engine, n=6, t=7)
    rows = [x[:length, k] for k, length in enumerate((7, 5, 5, 2, 1, 1))]

    def losses():
        return [scalar(module(row)) for row in rows]

    with one_stream():
        expected = torch.autograd.grad(sum(losses()), list(module.parameters()))
    with hostile() as watch:
        found = losses()
        watch(found)
        assert_same_values(torch.autograd.grad(sum(found), list(module.parameters())), expected, ENGINES[engine])


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_a_capture_of_a_late_second_stream_replays_the_same(engine):
    module, x = problem("lstm", engine)
    with one_stream():
        expected = run(module, x)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run(module, x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(0)
    with torch.cuda.graph(graph), hostile() as watch:
        result = module(x)
        watch(result)
        found = [*(y.detach() for y in tensors(result)), *all_gradients(module, result, x).values()]
    for _ in range(3):
        for y in found:
            y.fill_(torch.nan)
        graph.replay()
        assert_same_values(found, expected, ENGINES[engine])


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_checkpointing_and_the_reverse_direction_alone_give_the_same_gradients(engine):
    module, x = problem("lstm", engine)
    weights = [p for name, p in module.named_parameters() if "l1" in name and name.endswith("_reverse")]

    def gradients(call):
        return torch.autograd.grad(call(module, x)[1][0][-1].sum(), weights)

    expected = gradients(lambda module, x: module(x))
    with hostile():
        found = gradients(lambda module, x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False))
    assert_same_values(found, expected, ENGINES[engine])


# ---- as users have it, beside another process ----

LOAD = """
import torch
a = torch.randn(2048, 2048, device="cuda")
print("begun", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


@pytest.fixture
def busy_gpu():
    """Another process that keeps the GPU busy."""
    with subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "begun\n"
            yield
            assert other.poll() is None, "it ended early"
        finally:
            other.kill()


def drawn_case(rng):
    """A bidirectional stack and what it reads, of random shape: padded, packed in one call, or a list of single sequences."""
    kind, engine = rng.choice(KINDS), rng.choice(list(ENGINES))
    t, n, features, h = (
        rng.randint(1, 9),
        rng.randint(1, 9),
        rng.randint(1, 12),
        rng.choice([5, 5, 40, 70]),
    )  # kernels are made for h
    dtype = ENGINES[engine]
    module = make(kind, features, h, num_layers=rng.randint(1, 3), bidirectional=True, device="cuda", dtype=dtype)
    module.backend = "reference" if engine == "reference" else "auto"
    lengths = sorted((rng.randint(1, t) for _ in range(n)), reverse=True)
    rows = [torch.randn(length, features, device="cuda", dtype=dtype) for length in lengths]
    how = rng.choice(["padded", "packed", "one by one"])
    given = {
        "padded": [torch.randn(t, n, features, device="cuda", dtype=dtype)],
        "packed": [pack_sequence(rows)],
        "one by one": rows,
    }
    return module, given[how], dtype, f"{kind} {engine} {how} t={t} n={n} features={features} h={h} lengths={lengths}"


@needs_gpu
def test_two_hundred_bidirectional_stacks_beside_a_busy_process(busy_gpu):
    rng = random.Random(0)
    for k in range(200):
        torch.manual_seed(k)
        module, given, dtype, what = drawn_case(rng)
        twin = copy.deepcopy(module)

        def gradients(module, given=given):
            for x in given:  # one after the other, without waiting for the GPU
                scalar(module(x)).backward()
            return [p.grad for p in module.parameters()]

        found = gradients(module)
        with one_stream():
            expected = gradients(twin)
        scale = max(g.abs().max().item() for g in expected)
        for (name, _), a, b in zip(module.named_parameters(), found, expected, strict=True):
            away = (a - b).abs().max().item() / scale
            assert away <= {F64: 1e-12, F32: 1e-5, BF16: 2e-2}[dtype], f"{k}: {what}: gradient of {name} is off by {away:.1e}"
