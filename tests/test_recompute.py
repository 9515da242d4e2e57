"""Layers that form W x and U z anew for the backward pass: the same gradients, from a fraction of what else is kept."""

from dataclasses import replace

import pytest
import torch
import torch.utils.checkpoint
from helpers import KINDS, assert_same, hidden, make, scalar, tensors
from hypothesis import given, settings
from problems import (
    BF16,
    F32,
    F64,
    assert_agrees,
    assert_same_results_and_gradients,
    bits,
    drawn_problems,
    pair,
    random_problem,
    values,
)
from torch.nn.utils.rnn import pack_padded_sequence

import multint
from multint import related
from multint.cells import CELLS
from multint.integration import FORMS
from multint.scan import PHI, cpu, scan

pytestmark = pytest.mark.usefixtures("compiled_loop")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_cell = pytest.mark.parametrize("cell", CELLS)
SOURCES = {"flow": {}, "tokens": {"symbols": 7}, "features": {"features": 5}}


# ---- agreement ----


@given(drawn_problems(PHI))
@settings(max_examples=2 * settings().max_examples)
def test_drawn_problems_agree_with_the_reference(options):
    assert_agrees(replace(random_problem(**options), recompute=True), 1e-10)


@each_cell
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-10), (F32, 1e-5), (BF16, 1e-2)], ids=["f64", "f32", "bf16"])
def test_every_cell_and_form_agrees_with_everything_optional(cell, form, source, dtype, tolerance):
    for restart in (0, 1, 11):
        problem = random_problem(cell, form, "tanh", 6, 11, 19, lengths=True, restart=restart, dtype=dtype, **SOURCES[source])
        assert_agrees(replace(problem, recompute=True), tolerance)


@each_cell
@pytest.mark.parametrize("steps", [1, 2])
def test_states_kept_between_spans_serve_as_well(cell, steps, monkeypatch):
    problem = random_problem(cell, t=7, n=5, h=19, features=3, lengths=True)
    monkeypatch.setattr(cpu, "SPAN_BYTES", steps * 2 * 5 * problem.u.shape[0] * 8)
    assert_agrees(replace(problem, recompute=True), 1e-10)


@each_cell
def test_a_problem_of_one_agrees(cell):
    assert_agrees(replace(random_problem(cell, t=1, n=1, h=1, features=1), recompute=True), 1e-10)


@each_cell
@pytest.mark.parametrize("source", SOURCES)
def test_outputs_and_repeats_are_the_same_bits(cell, source):
    problem = random_problem(cell, t=6, n=5, h=19, lengths=True, dtype=F32, **SOURCES[source])
    lean = replace(problem, recompute=True)
    assert_same(values(scan(lean, "cpu")), values(scan(problem, "cpu")))
    assert_same(bits(lean), bits(lean))


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_layers_equal_the_reference(kind, tokens):
    ours, judge = pair(kind, 6, 18, num_layers=2, bidirectional=True, recompute=True, dtype=F64)
    x = torch.randint(6, (5, 4)) if tokens else torch.randn(5, 4, 6, dtype=F64, requires_grad=True)
    hx, resets = hidden(ours, 4, requires_grad=True), torch.rand(5, 4) < 0.4
    assert_same_results_and_gradients(ours, judge, x)
    assert_same_results_and_gradients(ours, judge, x, hx)
    assert_same_results_and_gradients(ours, judge, x, hx, resets=resets)
    assert_same_results_and_gradients(ours, judge, pack_padded_sequence(x, torch.tensor([2, 5, 3, 1]), enforce_sorted=False))


# ---- what is kept ----


def kept(module, x):
    """Values held for the backward pass beside x, weights and outputs, for each output value."""
    known = {y.untyped_storage().data_ptr() for y in (x, *module.parameters())}
    found = {}

    def pack(y):
        found[y.untyped_storage().data_ptr()] = y.untyped_storage().nbytes()
        return y

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda y: y):
        output = module(x)[0]
    known.add(output.untyped_storage().data_ptr())
    size = output.numel() * output.element_size()
    return sum(held for place, held in found.items() if place not in known and held >= size / 2) / size


@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
@pytest.mark.parametrize("kind, usual, lean", [("rnn", 1, 0), ("lstm", 4, 0), ("gru", 3, 1), ("gru_after", 3, 0)])
def test_flows_are_not_kept(kind, usual, lean, tokens):
    """But for U (r h), which the state alone does not give."""
    x = torch.randint(8, (40, 16)) if tokens else torch.randn(40, 16, 8)
    assert kept(make(kind, 8, 32, backend="cpu"), x) == usual * (1 if tokens else 2)
    assert kept(make(kind, 8, 32, backend="cpu", recompute=True), x) == lean


@each_kind
def test_more_symbols_than_tokens_are_gathered_anew(kind):
    ours, judge = pair(kind, 900, 32, recompute=True, dtype=F64)
    tokens = torch.randint(900, (40, 16))
    assert kept(ours, tokens) == (1 if kind == "gru" else 0)
    assert_same_results_and_gradients(ours, judge, tokens)
    with pytest.raises(IndexError, match="takes tokens 0 to 899, got values from .* to 900"):
        ours(tokens.masked_fill(tokens == tokens[0, 0], 900))


@each_kind
def test_without_a_gradient_nothing_is_kept(kind):
    module, x = make(kind, 8, 32, backend="cpu", recompute=True), torch.randn(40, 16, 8)
    with torch.no_grad():
        assert kept(module, x) == 0
    assert kept(module.requires_grad_(False), x) == 0


# ---- torch's ways around it ----


@each_kind
def test_gradients_are_differentiated_again_and_in_batches(kind):
    ours, judge = pair(kind, 3, 4, recompute=True, dtype=F64)
    x = torch.randn(3, 2, 3, dtype=F64, requires_grad=True)

    def twice(module):
        wanted = [x, *module.parameters()]
        first = torch.autograd.grad(scalar(module(x)), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), wanted)

    assert_same(twice(ours), twice(judge), rtol=1e-10, atol=1e-12)
    output, sent = ours(x)[0], torch.randn(4, 3, 2, 4, dtype=F64)
    together = torch.func.vmap(lambda g: torch.autograd.grad(output, x, g, retain_graph=True)[0])(sent)
    for rows, g in zip(together, sent, strict=True):
        assert_same(rows, torch.autograd.grad(output, x, g, retain_graph=True)[0], rtol=1e-10, atol=1e-12)


@each_kind
def test_frozen_weights_and_inputs_get_no_gradient_and_the_others_keep_theirs(kind):
    modules = pair(kind, 3, 18, recompute=True, dtype=F64)
    for moving in (False, True):
        x, found = torch.randn(5, 4, 3, dtype=F64, requires_grad=moving), []
        for module in modules:
            module.weight_ih_l0.requires_grad_(False)
            scalar(module(x)).backward()
            assert module.weight_ih_l0.grad is None
            assert (x.grad is not None) == moving
            found.append([p.grad for p in (x, *module.parameters()) if p.grad is not None])
            module.zero_grad()
            x.grad = None
        assert_same(*found, rtol=1e-10, atol=1e-12)


@each_kind
def test_checkpointing_gives_the_same_gradients(kind):
    module, x = make(kind, 3, 18, recompute=True, backend="cpu"), torch.randn(5, 4, 3, requires_grad=True)
    wanted = [x, *module.parameters()]
    plain = torch.autograd.grad(scalar(module(x)), wanted)
    again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert_same(torch.autograd.grad(scalar(again), wanted), plain)


@each_kind
@pytest.mark.parametrize("edited", ["weight", "input", "output"])
def test_what_is_multiplied_again_must_not_be_edited_before(kind, edited):
    module, x = make(kind, 3, 18, recompute=True, backend="cpu"), torch.randn(5, 4, 3)
    output = module(x)[0]
    with torch.no_grad():
        {"weight": module.weight_hh_l0, "input": x, "output": output}[edited].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@each_kind
def test_an_empty_batch_gives_empty_results_and_zero_gradients(kind):
    module, x = make(kind, 3, 4, recompute=True, backend="cpu"), torch.randn(5, 0, 3, requires_grad=True)
    results = module(x)
    scalar(results).backward()
    assert [y.numel() for y in tensors(results)] == [0] * len(tensors(results))
    assert x.grad.shape == x.shape
    assert all(p.grad.eq(0).all() for p in module.parameters())


@each_kind
def test_autocast_agrees_with_a_layer_that_keeps_all(kind):
    lean = make(kind, 6, 24, recompute=True, backend="cpu")
    plain, x = make(kind, 6, 24, backend="cpu"), torch.randn(7, 5, 6)
    plain.load_state_dict(lean.state_dict())
    found = []
    for module in (lean, plain):
        with torch.autocast("cpu", dtype=BF16):
            found.append(torch.autograd.grad(scalar(module(x)), list(module.parameters())))
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm()


@pytest.mark.traced
@each_kind
def test_a_compiled_graph_gives_the_same_gradients(kind):
    module, x = make(kind, 3, 18, recompute=True, backend="cpu"), torch.randn(5, 4, 3)
    plain = torch.autograd.grad(scalar(module(x)), list(module.parameters()))
    compiled = torch.compile(module, fullgraph=True)
    assert_same(torch.autograd.grad(scalar(compiled(x)), list(module.parameters())), plain, rtol=1e-5, atol=1e-6)


# ---- the option ----


def test_it_is_an_option_of_layers():
    layer = multint.MILSTM(3, 4, recompute=True)
    assert layer.recompute
    assert repr(layer) == "MILSTM(3, 4, recompute=True)"
    assert "recompute" not in repr(multint.MILSTM(3, 4))
    with pytest.raises(TypeError, match="recompute"):
        multint.MILSTM(3, 4, recompute="yes")


def test_the_reference_loop_takes_it_and_keeps_what_it_keeps():
    lean, plain = (multint.MIGRU(3, 4, recompute=option, backend="reference") for option in (True, False))
    plain.load_state_dict(lean.state_dict())
    x = torch.randn(5, 2, 3)
    assert_same(lean(x), plain(x))


def test_a_layer_of_before_the_option_still_runs():
    layer = multint.MIRNN(3, 4)
    del layer.__dict__["recompute"]  # as if unpickled from then
    layer(torch.randn(5, 2, 3))


def test_relatives_do_not_take_it():
    with pytest.raises(TypeError, match="recompute"):
        related.MultiplicativeRNN(3, 4, recompute=True)
