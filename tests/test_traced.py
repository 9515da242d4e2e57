"""torch.compile, torch.export and ONNX: one graph for every length, the values and gradients of eager."""

import numpy as np
import pytest
import torch
from helpers import KINDS, assert_same, gradients, hidden, make, make_cell, tensors
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence

from multint.cells import CELLS, State
from multint.integration import FORMS, Vectors
from multint.scan import Problem, operator

pytestmark = pytest.mark.traced
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


# ---- torch.compile ----


@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
@pytest.mark.parametrize("backend", ["auto", "operator"])
def test_compile_fullgraph_default_flags(kind, builder, backend):
    module = builder(kind, 3, 4, dtype=torch.float64, **({"num_layers": 2, "bidirectional": True} if builder is make else {}))
    x = torch.randn(*((5, 2, 3) if builder is make else (2, 3)), dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for hx in (None, hidden(module, 2)):
        module.backend = backend
        result = compiled(x, hx)
        module.backend = "reference"
        expected = module(x, hx)
        assert_same(result, expected, rtol=1e-12, atol=1e-12)
        assert_same(
            list(gradients(module, result, x).values()), list(gradients(module, expected, x).values()), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_compile_training_input_without_grad(kind):
    """B.3, with inductor: nn.LSTM crashes here when it is allowed into the graph."""
    module, x = make(kind, 3, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    result = torch.compile(module, fullgraph=True)(x)
    expected = module(x)
    assert_same(result, expected, rtol=1e-12, atol=1e-12)
    assert_same(list(gradients(module, result).values()), list(gradients(module, expected).values()), rtol=1e-12, atol=1e-12)


def test_the_last_state_survives_the_compiled_backward():
    """Inductor 2.13 overwrites a saved tensor that is returned as a stack of one."""
    module, x = make("rnn", 3, 4), torch.randn(5, 2, 3, requires_grad=True)
    output, h = torch.compile(module, fullgraph=True)(x)
    before = h.detach().clone()
    output.sum().backward()
    assert_same(h.detach(), before)
    assert_same(h.detach(), module(x)[1].detach(), rtol=1e-5, atol=1e-6)


@each_kind
@pytest.mark.parametrize("backend", ["auto", "operator"])
def test_compile_no_recompile_over_time(kind, backend):
    module, counter = make(kind, 3, 4, backend=backend), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for t in (5, 6, 7, 11, 30):
        assert compiled(torch.randn(t, 2, 3))[0].shape[0] == t
    assert counter.frame_count <= 2  # the first length, and one graph for every other


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_compiled_training_has_one_graph_for_every_length_and_batch(kind, tokens):
    module, counter, counts = make(kind, 3, 4), CompileCounterWithBackend("aot_eager"), []
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for t, n in ((5, 2), (6, 3), (7, 4), (7, 5), (9, 70), (3, 11), (4, 12), (8, 13), (2, 14), (6, 15), (5, 900)):
        x = torch.randint(3, (t, n)) if tokens else torch.randn(t, n, 3)
        result, expected = compiled(x), module(x)
        assert_same(result, expected, rtol=1e-4, atol=1e-5)
        found, wanted = (list(gradients(module, y).values()) for y in (result, expected))
        assert_same(found, wanted, rtol=1e-3, atol=1e-4)
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1, "compiled once"


@each_kind
def test_compiled_graph_does_not_grow_with_the_length(kind):
    counts = []
    for t in (2, 40):
        torch.compiler.reset()
        counter = CompileCounter()
        torch.compile(make(kind, 3, 4), fullgraph=True, backend=counter)(torch.randn(t, 2, 3))
        counts.append(counter.op_count)
    assert counts[0] == counts[1] < 40


@each_kind
def test_compiled_tokens_equal_eager(kind):
    module, tokens = make(kind, 6, 4, dtype=torch.float64), torch.randint(6, (5, 2))
    result, expected = torch.compile(module, fullgraph=True, backend="aot_eager")(tokens), module(tokens)
    assert_same(result, expected, rtol=1e-12, atol=1e-12)
    assert_same(list(gradients(module, result).values()), list(gradients(module, expected).values()), rtol=1e-12, atol=1e-12)


def test_compiled_resets_and_learned_states_equal_eager():
    module = make("lstm", 3, 4, num_layers=2, learn_state=True, dtype=torch.float64)
    x, resets = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, 2) < 0.4
    result, expected = torch.compile(module, fullgraph=True, backend="aot_eager")(x, resets=resets), module(x, resets=resets)
    assert_same(result, expected, rtol=1e-12, atol=1e-12)
    assert_same(list(gradients(module, result).values()), list(gradients(module, expected).values()), rtol=1e-12, atol=1e-12)


def test_compiled_zoneout_in_eval_mode_equals_eager():
    module, x = make("lstm", 3, 4, zoneout=(0.2, 0.4), dtype=torch.float64).eval(), torch.randn(5, 2, 3, dtype=torch.float64)
    assert_same(torch.compile(module, fullgraph=True, backend="eager")(x), module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at its packed input's
@each_kind
def test_compiled_packed_input_equals_eager(kind):
    """With graph breaks, as nn's."""
    module = make(kind, 3, 4, bidirectional=True, dtype=torch.float64)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)

    def packed():
        return pack_padded_sequence(x, torch.tensor([2, 5, 3]), enforce_sorted=False)

    result, expected = torch.compile(module, backend="aot_eager")(packed()), module(packed())
    assert_same(result, expected, rtol=1e-12, atol=1e-12)
    assert_same(list(gradients(module, result, x).values()), list(gradients(module, expected, x).values()), rtol=1e-12, atol=1e-12)


# ---- the operator ----


def problem(cell, form, masks, t=3, n=2, d=2, v=4):
    """A random Problem with the tensors a mask names."""
    cell, gen = CELLS[cell], torch.Generator().manual_seed(0)

    def drawn(*shape):
        return (torch.rand(*shape, generator=gen, dtype=torch.float64) - 0.5).requires_grad_()

    rows, p = len(cell.gates) * d, d - 1 if "weight_hr" in masks else d
    state = State(drawn(n, p), drawn(n, d) if "c" in cell.carries else None)
    more = {}
    if "tokens" in masks:
        more["tokens"] = torch.randint(v, (t, n), generator=gen)
    if "lengths" in masks:
        more["lengths"] = torch.tensor([t, 1])
    if "resets" in masks:
        more |= {
            "resets": torch.rand(t, n, generator=gen) < 0.5,
            "restart": State(*(None if s is None else drawn(*s.shape) for s in state)),
        }
    if "hold" in masks:
        more["hold"] = State(*(None if s is None else torch.rand(t, *s.shape, generator=gen, dtype=torch.float64) for s in state))
    if "drop" in masks:
        more["drop"] = torch.rand(n, p, generator=gen, dtype=torch.float64)
    if "weight_hr" in masks:
        more["weight_hr"] = drawn(p, d)
    if cell.name == "gru_after":
        more["bias_hn"] = drawn(d)
    names = (*FORMS[form], "b")
    vectors = Vectors(**{name: drawn(rows) for name in names})
    return Problem(cell, form, drawn(v, rows) if "tokens" in masks else drawn(t, n, rows), drawn(rows, p), vectors, state, **more)


PROBLEMS = [
    ("rnn", "general", ()),
    ("rnn", "simple", ("resets",)),
    ("lstm", "general", ("lengths", "hold")),
    ("lstm", "gated", ("weight_hr", "tokens")),
    ("gru", "additive", ("lengths", "resets", "drop")),
    ("gru_after", "general", ("tokens", "lengths")),
]


@pytest.mark.parametrize("cell, form, masks", PROBLEMS, ids=lambda v: "-".join(v) if isinstance(v, tuple) else v)
def test_opcheck_of_the_scan_operator(cell, form, masks):
    named = operator.flatten(problem(cell, form, masks))
    torch.library.opcheck(torch.ops.multint.scan.default, (list(named.values()), " ".join(named), cell, form, "tanh"))


@pytest.mark.parametrize("cell, form, masks", PROBLEMS, ids=lambda v: "-".join(v) if isinstance(v, tuple) else v)
def test_opcheck_of_the_scan_backward_operator(cell, form, masks):
    named = operator.flatten(problem(cell, form, masks))
    values = [x.detach() for x in named.values()]
    outputs = torch.ops.multint.scan(values, " ".join(named), cell, form, "tanh")
    wanted = [x.is_floating_point() for x in values]
    args = ([torch.randn_like(y) for y in outputs], values, wanted, " ".join(named), cell, form, "tanh")
    torch.library.opcheck(torch.ops.multint.scan_backward.default, args, test_utils=("test_schema", "test_faketensor"))


# ---- torch.export ----


def exported(module, x):
    """The module as torch.export sees it, time and batch left open."""
    t, n = Dim("t", min=2, max=500), Dim("n", min=2, max=500)
    order = {0: n, 1: t} if getattr(module, "batch_first", False) else {0: t, 1: n}
    return torch.export.export(module, (x,), dynamic_shapes=(order,), strict=False)


@each_kind
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_export_dynamic_time_and_batch(kind, mode):
    """As torch's scan in evaluation mode; in training mode as our operator, which has gradients."""
    module = make(kind, 3, 4).train(mode == "train")
    program = exported(module, torch.randn(5, 2, 3))
    targets = " ".join(str(node.target) for node in program.graph.nodes)
    assert ("multint.scan" in targets) is (mode == "train")
    for t, n in ((3, 7), (9, 2)):
        x = torch.randn(t, n, 3)
        assert_same(program.module()(x), module(x), rtol=1e-5, atol=1e-6)


def test_export_of_two_bidirectional_layers_with_hx_and_resets():
    module = make("lstm", 3, 4, num_layers=2, bidirectional=True).eval()
    t, n = Dim("t", min=2, max=500), Dim("n", min=2, max=500)
    shapes = {"input": {0: t, 1: n}, "hx": ({1: n}, {1: n}), "resets": {0: t, 1: n}}
    kwargs = {"hx": hidden(module, 2), "resets": torch.rand(5, 2) < 0.4}
    program = torch.export.export(module, (torch.randn(5, 2, 3),), kwargs, dynamic_shapes=shapes, strict=False)
    x, kwargs = torch.randn(3, 6, 3), {"hx": hidden(module, 6), "resets": torch.rand(3, 6) < 0.4}
    assert_same(program.module()(x, **kwargs), module(x, **kwargs), rtol=1e-5, atol=1e-6)


# ---- ONNX ----

ONNX = {
    "rnn": ("rnn", {}),
    "lstm": ("lstm", {}),
    "gru": ("gru", {}),
    "gru_after": ("gru_after", {}),
    "lstm-2-layers-bidirectional": ("lstm", {"num_layers": 2, "bidirectional": True}),
    "gru-batch_first": ("gru", {"batch_first": True}),
    "rnn-tokens": ("rnn", {}),
}


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")  # torch.onnx copies its own
@pytest.mark.parametrize("name", ONNX)
def test_onnx_dynamic_time_onnxruntime(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    kind, kwargs = ONNX[name]
    module = make(kind, 3, 4, **kwargs).eval()

    def drawn(t, n):
        shape = (n, t) if module.batch_first else (t, n)
        return torch.randint(3, shape) if "tokens" in name else torch.randn(*shape, 3)

    axes = ("n", "t") if module.batch_first else ("t", "n")
    program = torch.onnx.export(
        module, (drawn(5, 2),), dynamo=True, dynamic_shapes=({0: Dim(axes[0]), 1: Dim(axes[1])},), verbose=False
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for t, n in ((3, 7), (11, 2)):
        x = drawn(t, n)
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for ours, theirs in zip(found, tensors(module(x)), strict=True):
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks at it
@pytest.mark.parametrize("kind", KINDS)
def test_torch_func_and_forward_mode_under_compile_equal_eager(kind):
    """An opaque operator has no tangent: the compiled loop must be the plain one there, or derivatives are silently zero."""
    layer = make(kind, 3, 4)
    x = torch.randn(3, 2, 3)

    def f(z):
        return layer(z)[0]

    def tangent(z):
        return torch.func.jvp(f, (z,), (torch.ones_like(z),))[1]

    def per_row(z):
        return torch.func.vmap(lambda row: layer(row.unsqueeze(1))[0], in_dims=1)(z)

    def slope(z):
        return torch.func.grad(lambda q: f(q).sin().sum())(z)

    for transform in (tangent, per_row, slope):
        torch.testing.assert_close(torch.compile(transform, backend="aot_eager")(x), transform(x))


def test_layer_norm_exports_with_any_length():
    layer = make("lstm", 3, 4, norm="layer").eval()
    lengths = {"input": {0: torch.export.Dim("t"), 1: torch.export.Dim("n")}}
    program = torch.export.export(layer, (torch.randn(4, 2, 3),), dynamic_shapes=lengths)
    x = torch.randn(9, 5, 3)
    torch.testing.assert_close(program.module()(x)[0], layer(x)[0])
