"""The compiled CPU loop against the reference: outputs and every gradient, whatever the shape, threads or instruction set."""

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from helpers import KINDS, assert_same, hidden, make, make_cell, mapped, scalar, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    BF16,
    F32,
    F64,
    PHIS,
    Recorder,
    all_gradients,
    assert_agrees,
    assert_near,
    assert_same_results_and_gradients,
    bits,
    drawn_problems,
    equal,
    judged,
    leaves,
    pair,
    random_problem,
    rounded_weights,
    values,
    widened,
)
from torch._subclasses import FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

import multint
from multint.cells import CELLS, State
from multint.integration import FORMS
from multint.scan import BACKENDS, PHI, build, cpu, operator, reference, scan

pytestmark = pytest.mark.usefixtures("compiled_loop")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_cell = pytest.mark.parametrize("cell", CELLS)


@contextmanager
def spans(problem, steps):
    """The backward pass replays so many steps from each state that was kept; None: as many as fit the cache."""
    size = 2 * problem.state.h.shape[0] * problem.u.shape[0] * problem.u.element_size()
    with pytest.MonkeyPatch.context() as patch:
        if steps is not None:
            patch.setattr(cpu, "SPAN_BYTES", steps * size)
        yield


@st.composite
def drawn_with_spans(draw, phis=PHI):
    """(options of random_problem, a span)"""
    return draw(drawn_problems(phis)), draw(st.sampled_from([None, None, 1, 2, 5]))


# ---- agreement ----


@given(drawn_with_spans())
@settings(max_examples=4 * settings().max_examples)
def test_float64_agrees_with_the_reference(drawn):
    options, span = drawn
    problem = random_problem(**options)
    with spans(problem, span):
        assert_agrees(problem, 1e-10)


@given(drawn_with_spans())
@settings(max_examples=4 * settings().max_examples)
def test_float32_agrees_with_the_reference(drawn):
    options, span = drawn
    problem = random_problem(**options, dtype=F32)
    with spans(problem, span):
        # a sum within a rounding of zero is on either side of relu's edge
        assert_agrees(problem, 1e-5, differentiate=problem.phi != "relu")


# (t, n, h): more units than a panel's depth, more rows than a block, and more steps x rows than one product of dU takes at once
LARGE = [(3, 5, 130), (2, 3, 257), (4, 100, 130), (3, 1, 257), (13, 200, 33)]


@each_cell
@pytest.mark.parametrize("t, n, h", LARGE)
@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-10), (F32, 1e-5)], ids=["f64", "f32"])
def test_large_problems_agree_with_the_reference(cell, t, n, h, dtype, tolerance):
    problem = random_problem(
        cell, t=t, n=n, h=h, dtype=dtype, lengths=n > 1, symbols=9 if n == 5 else 0, restart=n if t == 13 else 0
    )
    assert_agrees(problem, tolerance)
    with spans(problem, 2):
        assert_agrees(problem, tolerance)


@pytest.mark.parametrize("cell, phi", [(cell, phi) for cell in CELLS for phi in PHIS[cell]])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", [{}, {"symbols": 7}, {"features": 5}], ids=["flow", "tokens", "features"])
def test_every_cell_form_and_nonlinearity_agrees_with_everything_optional(cell, phi, form, source):
    for restart in (1, 11):
        assert_agrees(random_problem(cell, form, phi, 6, 11, 19, lengths=True, restart=restart, **source), 1e-10)


@each_cell
@pytest.mark.parametrize("features", [1000, 2100])
def test_many_features_agree(cell, features):
    """As many as one block of the product takes, and more."""
    assert_agrees(random_problem(cell, t=3, n=2, h=5, features=features), 1e-10)
    assert_agrees(random_problem(cell, t=3, n=30, h=5, features=features, dtype=F32), 1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-10), (F32, 1e-5), (BF16, 1e-2)], ids=["f64", "f32", "bf16"])
def test_a_long_flow_formed_piece_by_piece_agrees(cell, dtype, tolerance):
    """Without a gradient W x is formed for as many steps as fit the cache: here for some ten, three or seven times."""
    problem = random_problem(cell, t=33, n=200 if dtype == BF16 else 100, h=130, features=20, lengths=True, restart=1, dtype=dtype)
    assert_agrees(problem, tolerance, differentiate=False)


@each_cell
def test_a_layer_without_bias_agrees(cell):
    problem = random_problem(cell)
    assert_agrees(replace(problem, vectors=problem.vectors._replace(b=None), bias_hn=None), 1e-10)


@each_cell
@pytest.mark.parametrize("symbols", [0, 7], ids=["dense", "tokens"])
def test_rows_of_no_steps_keep_their_state(cell, symbols):
    problem = replace(random_problem(cell, symbols=symbols), lengths=torch.tensor([0, 5, 0]))
    result = scan(problem, "cpu")
    assert_same([part[::2] for part in result.state if part is not None], [part[::2] for part in problem.state if part is not None])
    assert_agrees(problem, 1e-10)
    nothing = replace(problem, lengths=torch.zeros(3, dtype=torch.long))
    assert_agrees(nothing, 1e-10)


@each_cell
def test_lengths_and_tokens_may_be_narrow_integers(cell):
    problem = random_problem(cell, symbols=7, lengths=True)
    expected = values(scan(problem, "reference"))
    narrow = replace(problem, tokens=problem.tokens.int(), lengths=problem.lengths.to(torch.int16))
    assert_same(values(scan(narrow, "cpu")), expected, rtol=1e-10, atol=1e-12)


@each_cell
def test_large_pre_activations_stay_finite(cell):
    """Products make large values: tanh and sigmoid must not overflow on the way."""
    for dtype, tolerance in ((F64, 1e-10), (F32, 1e-5)):
        problem = random_problem(cell, dtype=dtype)
        problem = replace(problem, wx=(problem.wx * 1e6).detach().requires_grad_())
        result = values(scan(problem, "cpu"))
        grads = torch.autograd.grad(result, list(leaves(problem).values()), [torch.ones_like(y) for y in result])
        assert all(x.isfinite().all() for x in (*result, *grads))
        for ours, judge in zip(result, values(reference.run(widened(problem))), strict=True):
            assert_near(ours, judge, tolerance, "a value")


@each_cell
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_row(cell, bad):
    problem = random_problem(cell, h=20)
    problem.wx.data[2, 1, 3] = bad
    ours, judge = values(scan(problem, "cpu")), values(reference.run(problem))
    for a, b in zip(ours, judge, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, equal_nan=True)
    assert ours[0][:, ::2].isfinite().all()


# ---- bfloat16 ----


@given(drawn_with_spans(phis=("tanh", "identity")))
@settings(max_examples=2 * settings().max_examples)
@pytest.mark.parametrize("state", [BF16, F32], ids=["module", "autocast"])
def test_bfloat16_agrees_with_the_reference_in_float64(state, drawn):
    options, span = drawn
    problem = random_problem(**options, dtype=BF16, state=state)
    with spans(problem, span):
        assert_agrees(problem, 5e-2)
    result = scan(problem, "cpu")
    assert result.outputs.dtype == BF16
    assert {part.dtype for part in result.state if part is not None} == {state}


@each_cell
@pytest.mark.parametrize("t, n, h", [*LARGE, (3, 2, 530)])
def test_large_problems_in_bfloat16_agree_with_the_reference_in_float64(cell, t, n, h):
    source = {5: {"symbols": 9}, 3: {"features": 300}, 100: {"features": 70}}.get(n, {})
    problem = random_problem(cell, t=t, n=n, h=h, dtype=BF16, state=F32, **source)
    assert_agrees(problem, 1e-2)
    with spans(problem, 2):
        assert_agrees(problem, 1e-2)


# ---- the product ----


@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-14), (F32, 1e-6), (BF16, 4e-3)], ids=["f64", "f32", "bf16"])
@pytest.mark.parametrize("turn_a", [False, True], ids=["a", "a.T"])
@pytest.mark.parametrize("turn_b", [False, True], ids=["b", "b.T"])
def test_the_product_is_torchs(dtype, tolerance, turn_a, turn_b):
    """Few and many rows, ragged columns, and more k than one block takes."""
    for m, n, k in [(1, 1, 1), (7, 65, 3), (24, 33, 17), (25, 70, 40), (113, 47, 129), (5, 20, 2100), (40, 35, 4500)]:
        a = torch.randn((k, m) if turn_a else (m, k)).to(dtype)
        b = torch.randn((n, k) if turn_b else (k, n)).to(dtype)
        judge = (a.mT if turn_a else a).double() @ (b.mT if turn_b else b).double()
        assert_near(torch.ops.multint.cpu_multiply(a, b, turn_a, turn_b), judge, tolerance, f"({m}, {n}, {k})")


def test_an_empty_product_is_zero():
    for m, n, k in [(3, 4, 0), (0, 4, 3), (3, 0, 4)]:
        assert_same(torch.ops.multint.cpu_multiply(torch.ones(m, k), torch.ones(k, n), False, False), torch.zeros(m, n))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="before torch 2.13 an error on the stable ABI ends the process")
def test_products_that_do_not_fit_are_named():
    with pytest.raises(RuntimeError, match="the inner sizes of a product differ: 3 and 4"):
        torch.ops.multint.cpu_multiply(torch.ones(2, 3), torch.ones(4, 5), False, False)


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
def test_the_product_is_differentiated_twice(turns):
    a, b = (torch.randn(3, 3, dtype=F64, requires_grad=True) for _ in range(2))

    def product(a, b):
        return torch.ops.multint.cpu_multiply(a, b, *turns)

    assert torch.autograd.gradcheck(product, (a, b), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, (a, b), check_batched_grad=True)


# ---- layers ----


def drawn(*shape, dtype=F64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


LAYERS = {
    "plain": {},
    "two bidirectional layers": {"num_layers": 2, "bidirectional": True},
    "batch_first": {"batch_first": True},
    "learn_state": {"learn_state": True, "num_layers": 2},
    "gated without bias": {"integration": "gated", "bias": False},
    "simple": {"integration": "simple", "bidirectional": True},
    "additive": {"integration": "additive"},
}


@each_kind
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_the_reference(kind, name):
    ours, judge = pair(kind, 3, 18, **LAYERS[name], dtype=F64)
    x, resets, hx = drawn(5, 5, 3), torch.rand(5, 5) < 0.4, hidden(ours, 5, requires_grad=True)
    assert_same_results_and_gradients(ours, judge, x)
    assert_same_results_and_gradients(ours, judge, x, hx)
    assert_same_results_and_gradients(ours, judge, x, hx, resets=resets)


@each_kind
@pytest.mark.parametrize("symbols", [6, 50], ids=["by table", "by flow"])
def test_layers_on_tokens_equal_the_reference(kind, symbols):
    """Fewer symbols than tokens go in as a table, more of them as the flows of the tokens at hand."""
    ours, judge = pair(kind, symbols, 18, num_layers=2, bidirectional=True, dtype=F64)
    tokens, resets = torch.randint(symbols, (5, 4)), torch.rand(5, 4) < 0.4
    assert_same_results_and_gradients(ours, judge, tokens)
    assert_same_results_and_gradients(ours, judge, tokens, resets=resets)
    assert_same_results_and_gradients(ours, judge, tokens[:, 0])


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_layers_on_packed_sequences_equal_the_reference(kind, tokens):
    ours, judge = pair(kind, 6, 18, num_layers=2, bidirectional=True, learn_state=True, dtype=F64)
    lengths = torch.tensor([2, 5, 3, 1])

    def packed(x):
        return pack_padded_sequence(x, lengths, enforce_sorted=False)

    x = packed(torch.randint(6, (5, 4)) if tokens else drawn(5, 4, 6))
    hx, resets = hidden(ours, 4, requires_grad=True), packed(torch.rand(5, 4) < 0.4)
    assert_same_results_and_gradients(ours, judge, x)
    assert_same_results_and_gradients(ours, judge, x, hx)
    assert_same_results_and_gradients(ours, judge, x, resets=resets)


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_cells_equal_the_reference(kind, tokens):
    ours, judge = pair(kind, 6, 18, builder=make_cell, dtype=F64)
    for n in (None, 1, 4, 30):
        rows = () if n is None else (n,)
        x = torch.randint(6, rows) if tokens else drawn(*rows, 6)
        assert_same_results_and_gradients(ours, judge, x)
        assert_same_results_and_gradients(ours, judge, x, hidden(ours, n, requires_grad=True))


@pytest.mark.parametrize("kind", ["lstm", "gru", "gru_after"])
def test_a_long_sequence_equals_the_reference(kind):
    ours, judge = pair(kind, 48, 64, dtype=F64)
    x = drawn(20, 16, 48)
    assert_same_results_and_gradients(ours, judge, x, atol=1e-11)  # sums of 320 terms
    assert_same_results_and_gradients(ours, judge, x.detach(), atol=1e-11)


@each_kind
def test_an_empty_batch_gives_empty_results_and_zero_gradients(kind):
    ours, judge = pair(kind, 6, 4, num_layers=2, bidirectional=True, learn_state=True, dtype=F64)
    for x in (drawn(3, 0, 6), torch.zeros(3, 0, dtype=torch.long)):
        for more in ({}, {"resets": torch.zeros(3, 0, dtype=torch.bool)}):
            assert_same_results_and_gradients(ours, judge, x, **more)
            assert not any(g.any() for g in all_gradients(ours, ours(x, **more)).values())


@each_kind
def test_inputs_need_not_be_contiguous(kind):
    ours, judge = pair(kind, 6, 18, dtype=F64)
    hx = mapped(lambda part: part.detach()[:, :1].expand(1, 4, 18).requires_grad_(), hidden(ours, 4))
    x = drawn(4, 6, 5).permute(2, 0, 1)
    assert_same_results_and_gradients(ours, judge, x, hx)
    assert_same_results_and_gradients(ours, judge, drawn(10, 4, 6)[::2], mapped(lambda part: part.mT.contiguous().mT, hx))
    tokens, resets = torch.randint(6, (4, 5)).t(), (torch.rand(4, 5) < 0.4).t()
    assert_same_results_and_gradients(ours, judge, tokens, hx, resets=resets)
    for module in (ours, judge):
        module.weight_hh_l0 = torch.nn.Parameter(judge.weight_hh_l0.detach().t().contiguous().t())
    assert_same_results_and_gradients(ours, judge, x)


def test_gradients_need_not_be_contiguous():
    ours, judge = pair("lstm", 3, 18, dtype=F64)
    x = drawn(5, 4, 3)
    for sent in (torch.randn(18, 4, 5, dtype=F64).permute(2, 1, 0), torch.randn((), dtype=F64).expand(5, 4, 18)):
        grads = [torch.autograd.grad(module(x)[0], list(module.parameters()), sent) for module in (ours, judge)]
        assert_same(*grads, rtol=1e-10, atol=1e-12)


@each_kind
def test_gradients_of_a_part_of_the_results_equal_the_reference(kind):
    """Where nothing comes back for an output its gradient is zero."""
    ours, judge = pair(kind, 3, 18, dtype=F64)
    x = drawn(5, 4, 3)
    for part in range(len(tensors(ours(x)))):
        grads = [torch.autograd.grad(scalar(tensors(module(x))[part]), [x, *module.parameters()]) for module in (ours, judge)]
        assert_same(*grads, rtol=1e-10, atol=1e-12)


@each_kind
def test_frozen_weights_get_no_gradient_and_the_others_keep_theirs(kind):
    ours, judge = pair(kind, 3, 18, dtype=F64)
    x = torch.randn(5, 4, 3, dtype=F64)
    names = [name for name, _ in ours.named_parameters()]
    for frozen in ([names[1]], names[2:], names[:2]):
        found = []
        for module in (ours, judge):
            for name, p in module.named_parameters():
                p.grad = None
                p.requires_grad_(name not in frozen)
            scalar(module(x)).backward()
            assert all((p.grad is None) is (name in frozen) for name, p in module.named_parameters())
            found.append([p.grad for p in module.parameters() if p.grad is not None])
        assert_same(*found, rtol=1e-10, atol=1e-12)
    ours.requires_grad_(False)
    assert not any(y.requires_grad for y in tensors(ours(x)))


@each_cell
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=["f64", "f32", "bf16"])
@pytest.mark.parametrize("t", [1, 2, 7])
def test_outputs_are_the_same_bits_with_and_without_gradients(cell, dtype, t):
    for source in ({}, {"symbols": 6}, {"features": 5}, {"features": 130}):
        problem = random_problem(cell, t=t, n=7, h=37, lengths=True, restart=1, dtype=dtype, **source)
        kept = values(scan(problem, "cpu"))
        with torch.no_grad():
            assert_same(values(scan(problem, "cpu")), [x.detach() for x in kept])
        with torch.inference_mode():
            assert_same(values(scan(problem, "cpu")), [x.detach() for x in kept])


@each_kind
def test_a_second_backward_pass_gives_the_same_bits(kind):
    module, x = make(kind, 3, 37, backend="cpu"), torch.randn(6, 7, 3)
    loss = scalar(module(x))
    first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    assert_same(torch.autograd.grad(loss, list(module.parameters()), retain_graph=True), first)
    assert_same(torch.autograd.grad(scalar(module(x)), list(module.parameters())), first)
    torch.autograd.grad(loss, list(module.parameters()))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, list(module.parameters()))


@each_kind
def test_an_output_edited_in_place_is_differentiated_as_edited(kind):
    ours, judge = pair(kind, 3, 18, dtype=F64)
    x, found = drawn(5, 4, 3), []
    for module in (ours, judge):
        # of the reference a copy: its last h is saved for tanh's derivative, and torch refuses to see it edited
        output, state = module(x) if module is ours else mapped(torch.clone, module(x))
        output.mul_(2).sin_()
        tensors(state)[-1].add_(output.sum())
        found.append(torch.autograd.grad(scalar([output, state]), [x, *module.parameters()]))
    assert_same(*found, rtol=1e-10, atol=1e-12)


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_a_weight_edited_before_the_backward_pass_raises(kind, tokens):
    module = make(kind, 3, 18, backend="cpu")
    x = torch.randint(3, (5, 4)) if tokens else torch.randn(5, 4, 3)
    for name in ("weight_hh_l0", "weight_ih_l0") if tokens else ("weight_hh_l0",):
        loss = scalar(module(x))
        with torch.no_grad():
            getattr(module, name).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@each_kind
def test_vectors_edited_before_the_backward_pass_do_not_disturb_it(kind):
    """The kernel's copy of them is what the forward pass saw."""
    module, x = make(kind, 3, 18, backend="cpu"), torch.randn(5, 4, 3)
    expected = torch.autograd.grad(scalar(module(x)), list(module.parameters()))
    loss = scalar(module(x))
    with torch.no_grad():
        for name in ("alpha_l0", "beta1_l0", "beta2_l0", "bias_l0"):
            getattr(module, name).add_(1)
    assert_same(torch.autograd.grad(loss, list(module.parameters())), expected)


@each_kind
def test_checkpointing_gives_the_same_gradients(kind):
    module, x = make(kind, 3, 18, backend="cpu"), drawn(5, 4, 3, dtype=F32)
    plain = torch.autograd.grad(scalar(module(x)), [x, *module.parameters()])
    again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert_same(torch.autograd.grad(scalar(again), [x, *module.parameters()]), plain)


# ---- narrow layers ----


@each_kind
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
@pytest.mark.parametrize("mode", ["module", "autocast"])
def test_narrow_layers_agree_with_float64(kind, tokens, mode):
    module = rounded_weights(make(kind, 6, 40, bidirectional=True, backend="cpu"))
    x, cost = torch.randint(6, (7, 9)) if tokens else torch.randn(7, 9, 6).to(BF16).float(), torch.randn(7, 9, 80).to(BF16)
    judge = judged(module, x, cost)
    if mode == "module":
        module, x = module.to(BF16), x if tokens else x.to(BF16)
    with torch.autocast("cpu", dtype=BF16, enabled=mode == "autocast"):
        output, state = module(x)
    assert {y.dtype for y in tensors([output, state])} == {BF16}
    grads = torch.autograd.grad((output * cost).sum(), list(module.parameters()))
    assert {g.dtype for g in grads} == {BF16 if mode == "module" else F32}
    for ours, expected in zip([output, *tensors(state), *grads], [judge[0], *judge[1], *judge[2]], strict=True):
        assert_near(ours, expected, 2e-2, "a value or gradient")


# ---- which backend runs ----


@each_kind
def test_plain_layers_and_cells_run_the_compiled_loop(kind, ran):
    x = torch.randn(3, 2, 6)
    make(kind, 6, 4)(x)
    make(kind, 6, 4, num_layers=2, bidirectional=True).eval()(torch.randint(6, (3, 2)))
    make_cell(kind, 6, 4)(x[0])
    make(kind, 6, 4, dtype=F64)(x.double())
    make(kind, 6, 4, dtype=BF16)(x.to(BF16))
    with torch.autocast("cpu", dtype=BF16):
        make(kind, 6, 4)(x)
    with torch.no_grad():
        make(kind, 6, 4)(pack_sequence([x[:, 0], x[:2, 1]]), resets=pack_sequence([x[:, 0, 0] > 0, x[:2, 1, 0] > 0]))
    assert ran == ["cpu"] * (1 + 4 + 1 + 4)


@each_kind
def test_a_backward_pass_is_compiled_and_a_differentiable_one_is_the_reference(kind, ran):
    module, x = make(kind, 6, 4, dtype=F64), drawn(3, 2, 6)
    output = module(x)[0]
    torch.autograd.grad(output.sum(), x, retain_graph=True)
    assert ran == ["cpu"]
    torch.autograd.grad(output.sum(), x, create_graph=True)
    assert ran == ["cpu", "reference"]
    torch.autograd.grad(output, x, torch.randn(2, *output.shape, dtype=F64), is_grads_batched=True)
    assert ran == ["cpu", "reference"]  # torch calls the compiled one for every row


@each_kind
def test_a_backward_pass_under_vmap_equals_one_for_each_row(kind):
    """The usual way to a Jacobian: the layer runs outside the transform, its backward pass inside."""
    module, x = make(kind, 6, 4, dtype=F64, backend="cpu"), drawn(3, 2, 6)
    output = module(x)[0]
    sent, wanted = torch.randn(4, *output.shape, dtype=F64), [x, *module.parameters()]
    together = torch.func.vmap(lambda g: torch.autograd.grad(output, wanted, g, retain_graph=True))(sent)
    for k, g in enumerate(sent):
        assert_same(
            [rows[k] for rows in together], torch.autograd.grad(output, wanted, g, retain_graph=True), rtol=1e-10, atol=1e-12
        )


@each_kind
def test_a_backward_pass_has_a_forward_derivative(kind):
    """Forward over reverse, the layer having run before: its backward pass is linear in what is sent back."""
    module, x = make(kind, 6, 4, dtype=F64, backend="cpu"), drawn(3, 2, 6)
    output = module(x)[0]
    sent, direction = (torch.randn_like(output) for _ in range(2))
    (expected,) = torch.autograd.grad(output, x, direction, retain_graph=True)
    with torch.autograd.forward_ad.dual_level():
        (found,) = torch.autograd.grad(output, x, torch.autograd.forward_ad.make_dual(sent, direction))
        tangent = torch.autograd.forward_ad.unpack_dual(found).tangent
    assert_same(tangent, expected, rtol=1e-10, atol=1e-12)


@each_kind
def test_transforms_that_look_through_operations_run_the_reference(kind, ran):
    module, x = make(kind, 6, 4), torch.randn(3, 2, 6)
    parameters = dict(module.named_parameters())
    torch.func.vmap(module, in_dims=1)(x)
    torch.func.grad(lambda x: module(x)[0].sum())(x)
    torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,))[0].sum())(parameters)
    torch.func.jvp(lambda x: module(x)[0], (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        module(torch.autograd.forward_ad.make_dual(x, x))
    assert set(ran) == {"reference"}
    module.backend = "cpu"
    with pytest.raises(ValueError, match="backend 'cpu' cannot run this: torch.func and forward-mode AD see through"):
        torch.func.vmap(module, in_dims=1)(x)


OUTSIDE = {
    "norm": {"norm": "layer"},
    "zoneout": {"zoneout": (0.1, 0.1)},
    "recurrent_dropout": {"recurrent_dropout": 0.2},
    "proj_size": {"proj_size": 2},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_compiled_loop_lacks_runs_the_reference_and_is_named(name, ran):
    x = torch.randn(3, 2, 6)
    make("lstm", 6, 4, **OUTSIDE[name])(x)
    assert ran == ["reference"]
    with pytest.raises(
        ValueError, match=f"backend 'cpu' cannot run this: {name} is not in the compiled loop; use backend='reference'"
    ):
        make("lstm", 6, 4, **OUTSIDE[name], backend="cpu")(x)


def test_other_dtypes_and_devices_run_the_reference_and_are_named(ran):
    half, meta = torch.randn(3, 2, 6, dtype=torch.float16), torch.empty(3, 2, 6, device="meta")
    make("lstm", 6, 4, dtype=torch.float16)(half)
    make("lstm", 6, 4, device="meta")(meta)
    with torch.autocast("cpu", dtype=torch.float16):
        make("lstm", 6, 4)(half.float())
    assert ran == ["reference"] * 3
    with pytest.raises(ValueError, match="it computes in float32, float64 and bfloat16, not in torch.float16"):
        make("lstm", 6, 4, dtype=torch.float16, backend="cpu")(half)
    with pytest.raises(ValueError, match="its tensors are on meta, not on the CPU"):
        make("lstm", 6, 4, device="meta", backend="cpu")(meta)
    problem = random_problem("rnn")
    with pytest.raises(ValueError, match="W x and U must have one dtype, got torch.float64 and torch.float32"):
        scan(replace(problem, u=problem.u.float()), "cpu")


@each_kind
def test_fake_tensors_take_the_shapes_of_real_ones(kind, ran):
    with FakeTensorMode():
        module = make(kind, 6, 4, num_layers=2, bidirectional=True, backend="cpu")
        fake = module(torch.randn(5, 3, 6))
        scalar(fake).backward()
        assert all(p.grad.shape == p.shape for p in module.parameters())
        with torch.no_grad():
            assert [y.shape for y in tensors(module(torch.randn(5, 3, 6)))] == [y.shape for y in tensors(fake)]
    real = make(kind, 6, 4, num_layers=2, bidirectional=True, backend="cpu")(torch.randn(5, 3, 6))
    assert [(y.shape, y.dtype) for y in tensors(fake)] == [(y.shape, y.dtype) for y in tensors(real)]
    assert ran == ["cpu"] * 12
    with FakeTensorMode():  # tokens have no values to look at
        assert make(kind, 6, 4, backend="cpu")(torch.randint(6, (5, 3)))[0].shape == (5, 3, 4)


@each_cell
def test_gradients_are_differentiated_again_with_everything_optional(cell):
    for symbols in (0, 3):
        problem = random_problem(cell, t=2, n=2, h=2, symbols=symbols, lengths=True, restart=1)
        named = operator.flatten(problem)
        wanted = [x for x in named.values() if x.requires_grad]

        def f(*wanted, named=named):
            given = iter(wanted)
            own = [next(given) if x.requires_grad else x for x in named.values()]
            return tuple(values(scan(operator.rebuild(own, " ".join(named), cell, "general", "tanh"), "cpu")))

        assert torch.autograd.gradcheck(f, wanted, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, wanted, fast_mode=True)


# ---- errors ----


@each_kind
@pytest.mark.parametrize("bad", [6, -1])
def test_tokens_beyond_the_table_are_named_whichever_way_they_go_in(kind, bad):
    """Four tokens of six symbols go in as flows, forty as a table."""
    module = make(kind, 6, 5, backend="cpu")
    for n in (2, 20):
        tokens = torch.tensor([[0, 3], [bad, 2]]).repeat(1, n // 2)
        with pytest.raises(IndexError, match="with input_size 6 takes tokens 0 to 5, got values from .* to"):
            module(tokens)
    with pytest.raises(IndexError, match="with input_size 6 takes tokens 0 to 5"):
        module(pack_sequence([torch.tensor([0, bad, 1, 2, 3, 4, 5]), torch.tensor([2])]))
    module(torch.tensor([[0, 3], [5, 2]]).repeat(1, 10))


def without_gpu():
    """What keeps the backends of every machine from running."""
    return {name: reason for name, reason in multint.backends().items() if "gpu" not in name}


@pytest.fixture
def unavailable(monkeypatch):
    """A machine on which no kernel can be built."""

    def library():
        raise build.Unavailable("no C++ compiler for the CPU kernel; install one")

    monkeypatch.setattr(build, "library", library)
    monkeypatch.setattr(cpu, "_library", None)


@pytest.mark.usefixtures("unavailable")
def test_without_a_kernel_its_reason_is_given_and_layers_run_the_reference(ran):
    reason = "no compiled kernel: no C++ compiler for the CPU kernel; install one"
    assert without_gpu() == {"exported": None, "cpu": reason, "operator": None, "reference": None}
    module, x = make("lstm", 48, 64, dtype=F64), drawn(20, 16, 48)
    output, _ = module(x)
    output.sum().backward()
    assert ran == ["reference"]
    module.backend = "cpu"
    with pytest.raises(ValueError, match=re.escape(f"backend 'cpu' cannot run this: {reason}")):
        module(x)


def test_backends_are_listed_with_what_keeps_them_from_running():
    assert without_gpu() == {name: None for name in BACKENDS if name != "gpu"}


def test_the_level_in_use_is_one_of_this_machines():
    assert cpu.level() in build.machine_levels()


# ---- the operators in a graph ----


def operands(problem, keep):
    """Arguments of cpu_forward."""
    p, anew = problem, problem.restart or State(None)
    restart = [None if part is None else part.expand_as(p.state.h).detach().requires_grad_() for part in anew]
    vectors = torch.stack(list(p.vectors)).detach().requires_grad_()
    return (
        p.wx,
        p.tokens,
        p.u,
        vectors,
        p.bias_hn,
        *p.state,
        p.lengths,
        p.resets,
        *restart,
        cpu.KINDS.index(p.cell.name),
        0,
        2,
        keep,
    )


def detached(args):
    return tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)


OPERANDS = {
    "rnn": {"cell": "rnn"},
    "lstm-lengths-resets": {"cell": "lstm", "lengths": True, "restart": 1},
    "lstm-tokens": {"cell": "lstm", "symbols": 4},
    "gru-tokens-lengths-resets": {"cell": "gru", "symbols": 4, "lengths": True, "restart": 3},
    "gru_after-resets": {"cell": "gru_after", "restart": 1},
    "gru-f32": {"cell": "gru", "dtype": F32},
}
each_operand = pytest.mark.parametrize("name", OPERANDS)


@pytest.mark.traced
@each_operand
def test_opcheck_of_the_forward_operator(name):
    problem = random_problem(**OPERANDS[name])
    torch.library.opcheck(torch.ops.multint.cpu_forward.default, operands(problem, keep=True))
    torch.library.opcheck(torch.ops.multint.cpu_forward.default, detached(operands(problem, keep=False)))


@pytest.mark.traced
@each_operand
def test_opcheck_of_the_backward_operator(name):
    *inputs, _ = detached(operands(random_problem(**OPERANDS[name]), keep=True))
    *results, uz, marks = torch.ops.multint.cpu_forward(*inputs, True)
    torch.library.opcheck(torch.ops.multint.cpu_backward.default, (*map(torch.randn_like, results), uz, marks, *inputs))


@pytest.mark.traced
@each_cell
def test_opcheck_of_the_layer_operator(cell):
    """The loop from x itself, which keeps nothing for a backward pass."""
    problem = random_problem(cell, features=6, lengths=True, restart=1)
    weight, _, *rest, _, _ = detached(operands(problem, keep=False))
    torch.library.opcheck(torch.ops.multint.cpu_layer.default, (problem.x.detach(), weight, *rest))


@pytest.mark.traced
@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
def test_opcheck_of_the_product(turns):
    torch.library.opcheck(torch.ops.multint.cpu_multiply.default, (drawn(3, 3), drawn(3, 3), *turns))


@pytest.mark.traced
@each_kind
def test_a_compiled_layer_is_the_compiled_loop_in_one_graph(kind):
    torch.compiler.reset()
    module, recorder = make(kind, 3, 18, dtype=F64), Recorder()
    compiled = torch.compile(module, fullgraph=True, backend=recorder)
    for t, n in ((5, 4), (7, 4), (9, 4), (30, 4)):
        assert_same_results_and_gradients(compiled, module, drawn(t, n, 3))
    assert {name.partition(".default")[0] for name in recorder.forward} == {"multint.cpu_forward", "multint.cpu_multiply"}
    assert {name.partition(".default")[0] for name in recorder.backward} == {"multint.cpu_backward", "multint.cpu_multiply"}
    assert recorder.inference and all("multint.cpu" in name for name in recorder.inference)
    # the first length and one graph for every other: each with and without gradients, and its backward pass
    assert recorder.graphs <= 6


@pytest.mark.traced
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_layer_on_tokens_serves_every_length_with_one_graph(training):
    torch.compiler.reset()
    module, recorder = make("lstm", 6, 18, num_layers=2, dtype=F64), Recorder()
    compiled = torch.compile(module, fullgraph=True, backend=recorder)
    with torch.set_grad_enabled(training):
        for t in (5, 6, 7, 11, 30):
            tokens, resets = torch.randint(6, (t, 4)), torch.rand(t, 4) < 0.3
            assert_same(compiled(tokens, resets=resets), module(tokens, resets=resets), rtol=1e-12, atol=1e-12)
    assert recorder.graphs <= (4 if training else 2)


@pytest.mark.traced
def test_inductor_gives_eagers_values_and_gradients():
    torch.compiler.reset()
    module = make("lstm", 3, 18)
    compiled = torch.compile(module, fullgraph=True)
    for t in (5, 8):
        x = drawn(t, 4, 3, dtype=F32)
        assert_same_results_and_gradients(compiled, module, x, hidden(module, 4, requires_grad=True), rtol=1e-4, atol=1e-5)


@pytest.mark.traced
def test_autocast_under_compile_equals_eager():
    torch.compiler.reset()
    module, x = make("lstm", 3, 18), torch.randn(5, 4, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=BF16):
        results = [f(x) for f in (compiled, module)]
    assert_same(*results, rtol=2e-2, atol=2e-2)
    grads = [torch.autograd.grad(scalar(result), list(module.parameters())) for result in results]
    assert {g.dtype for g in grads[0]} == {F32}
    for ours, judge in zip(*grads, strict=True):
        assert_near(ours, judge.double(), 2e-2, "a gradient")


# ---- threads and processes ----


def script(code, *args, seconds=100, **environment):
    """Run in a process of its own, where threads have not been set; what it prints."""
    code = f"from problems import *\nfrom test_cpu import *\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def busy_problems():
    """So much work in a step that the kernel shares it out (Loop::team), in every dtype."""
    yield random_problem("lstm", t=3, n=9, h=96, dtype=F32, lengths=True)
    yield random_problem("gru", t=3, n=10, h=100, dtype=BF16, features=30, restart=1)
    yield random_problem("gru_after", t=3, n=21, h=70, dtype=F64, symbols=5)


THREADS = """
for problem in busy_problems():
    torch.set_num_threads(1)
    judge = bits(problem)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert all(equal(bits(problem), judge) for _ in range(50)), (problem.cell.name, threads)
"""


def test_results_are_the_same_bits_in_every_run_on_one_and_on_two_threads():
    """Fast on idle cores; where others compute too, workers wait for their turn at every step."""
    script(THREADS, seconds=250)


TEAM = """
import os
def started():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(1)
problem = random_problem("lstm", t=4, n=20, h=70, dtype=F32)
small = random_problem("lstm", t=4, n=2, h=7, dtype=F32)
judge, before = bits(problem), started()
torch.set_num_threads(2)
with torch.no_grad():
    scan(small, "cpu")
    assert started() == before, "a small step is not worth a second worker"
    scan(problem, "cpu")
    assert started() == before + 1, "the kernel did not ask for a second worker"
# more threads than cores, and than there are vectors of units to share out; a pool of one for a team of many
narrow = random_problem("gru", t=3, n=300, h=17, dtype=F32)
torch.set_num_threads(1)
expected = bits(narrow)
for threads in (3, 8):
    torch.set_num_threads(threads)
    assert equal(bits(problem), judge) and equal(bits(narrow), expected), threads
a, b = torch.randn(60, 150), torch.randn(150, 70)
torch.set_num_threads(1)
product = torch.ops.multint.cpu_multiply(a, b, False, False)
torch.set_num_threads(8)
assert torch.equal(torch.ops.multint.cpu_multiply(a, b, False, False), product)
"""


def test_the_kernel_takes_as_many_threads_as_there_are_or_as_are_of_use():
    script(TEAM)


FEWER = """
problem = random_problem("lstm", t=4, n=20, h=70, dtype=F32)
torch.set_num_threads(1)
judge = bits(problem)
torch.set_num_threads(4)  # of which the pool gives two: each stands for two workers
assert equal(bits(problem), judge)
"""


def test_a_pool_with_fewer_threads_than_workers_gives_the_same_bits():
    script(FEWER, OMP_THREAD_LIMIT="2")


def test_two_python_threads_at_once_get_their_own_results():
    problems = [random_problem(cell, t=6, n=9, h=40, dtype=F32, symbols=symbols) for cell, symbols in (("lstm", 0), ("gru", 5))]
    judges, wrong = [bits(problem) for problem in problems], []
    start = threading.Barrier(4)

    def work(problem, judge):
        start.wait()
        wrong.extend(problem.cell.name for _ in range(100) if not equal(bits(problem), judge))

    running = [threading.Thread(target=work, args=both) for both in zip(problems * 2, judges * 2, strict=True)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert wrong == []


PYTHON_THREADS = """
torch.set_num_threads(2)
problems = list(busy_problems())[:2]
judges = [bits(problem) for problem in problems]
wrong = []
def work(problem, judge):
    wrong.extend(1 for _ in range(20) if not equal(bits(problem), judge))
running = [threading.Thread(target=work, args=both) for both in zip(problems, judges)]
[thread.start() for thread in running]
[thread.join() for thread in running]
assert not wrong
"""


def test_two_python_threads_with_two_workers_each_get_their_own_results():
    script(PYTHON_THREADS)


FIRST_USE = """
import warnings
warnings.simplefilter("error")
problem, failed, start = random_problem("lstm"), [], threading.Barrier(4)
def work():
    start.wait()
    try:
        bits(problem)
    except Exception as error:
        failed.append(error)
running = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in running]
[thread.join() for thread in running]
assert not failed, failed
"""


def test_a_first_use_by_several_threads_at_once_loads_the_kernel_once():
    script(FIRST_USE)


FORK = """
import os, time
torch.set_num_threads(int(sys.argv[1]))
problem = random_problem("lstm", t=4, n=20, h=64, dtype=F32)  # worth two workers of the kernel, and none of torch's

def results():
    found = values(scan(problem, "cpu"))
    if torch.backends.cuda.is_built():  # whose autograd does not survive a fork
        return [y.detach() for y in found]
    return [*found, *pulled(found, problem, [torch.ones_like(y) for y in found])]

judge = results()
child = os.fork()
if child == 0:
    os._exit(0 if equal(results(), judge) else 3)
until = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
    time.sleep(0.01)
if ended[0] == 0:
    os.kill(child, 9)
    os.waitpid(child, 0)
    sys.exit("the child hangs")
assert os.waitstatus_to_exitcode(ended[1]) == 0
assert equal(results(), judge), "the parent's results change"
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_computes_the_same(threads):
    """On one thread, whatever the parent had: libgomp's pool does not survive a fork, and large operations of torch hang there."""
    script(FORK, threads)


LOADER = """
from torch.utils.data import DataLoader

class Outputs(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, k):
        problem = list(busy_problems())[k]
        with torch.no_grad():
            return values(scan(problem, "cpu"))[0].float()

if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    here = [Outputs()[k] for k in range(3)]
    there = list(DataLoader(Outputs(), batch_size=None, num_workers=2, timeout=60))
    assert equal(there, here)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_workers_of_a_data_loader_compute_the_same(threads):
    script(LOADER, threads)


LEAK = """
import gc
torch.set_num_threads(1)
small = [
    random_problem(cell, t=2, n=2, h=5, dtype=dtype, symbols=symbols, lengths=bool(symbols), restart=symbols and 1)
    for cell in CELLS for dtype, symbols in ((F32, 0), (BF16, 3))
]
large = [random_problem("lstm", t=40, n=64, h=128, dtype=F32)]  # its buffers take some thirty megabytes

def resident():
    gc.collect()
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def left_behind(problems, warm_up, calls):
    for k in range(warm_up + calls):
        if k == warm_up:
            before = resident()
        bits(problems[k % len(problems)])
    return resident() - before

print(left_behind(small, 4_000, 10_000), left_behind(large, 25, 20))
"""


def test_ten_thousand_calls_leave_no_memory_behind():
    """A tensor forgotten by each of them would be some five megabytes, the smallest of the twenty large ones 26.

    The allocator may still grow by one of ten megabytes after the warm-up.
    """
    small, large = map(int, script(LEAK).split())
    assert small < 1024 and large < 16_384, "kB"


# ---- instruction sets ----

LEVEL = """
build.SHIPPED, build.best_level = Path("not shipped"), lambda: sys.argv[1]
torch.set_num_threads(1)
for cell in CELLS:
    for phi in PHIS[cell]:
        for dtype, tolerance in ((F64, 1e-10), (F32, 1e-5), (BF16, 2e-2)):
            for t, n, h, source in (
                (5, 7, 37, {}), (3, 2, 1, {}), (2, 3, 70, {"symbols": 4}), (12, 99, 20, {"features": 9}),
                (3, 5, 260, {"features": 40}),
            ):
                problem = random_problem(cell, "general", phi, t, n, h, **source, lengths=True, restart=n, dtype=dtype)
                assert_agrees(problem, tolerance, differentiate=phi != "relu" or dtype == F64)
                with spans(problem, 2):
                    assert_agrees(problem, tolerance, differentiate=phi != "relu" or dtype == F64)
a, b = torch.randn(50, 70, dtype=F64), torch.randn(70, 90, dtype=F64)
for dtype, tolerance in ((F64, 1e-14), (F32, 1e-6), (BF16, 4e-3)):
    left, right = a.to(dtype), b.to(dtype)
    for x, y, turns in ((left, right, (False, False)), (left.mT, right.mT, (True, True))):
        assert_near(torch.ops.multint.cpu_multiply(x, y, *turns), left.double() @ right.double(), tolerance, "the product")
assert cpu.level() == sys.argv[1]
"""
ALL_LEVELS = build.machine_levels()
# each is a build of half a minute: the narrowest beside this machine's own, all of them with HYPOTHESIS=explore
LEVELS = ALL_LEVELS[: ALL_LEVELS.index(build.best_level()) + 1][: None if os.environ.get("HYPOTHESIS") == "explore" else 1]


@pytest.mark.parametrize("level", LEVELS)
def test_every_instruction_set_of_this_cpu_agrees_with_the_reference(level):
    """Each is compiled into the cache, which takes half a minute on two cores, and found there until the sources change."""
    script(LEVEL, level, seconds=280)


# ---- under the compiler's sanitizers ----

BARRIER = r"""
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <thread>
#include <vector>
namespace {
#include "team.h"
}
// Every worker writes its own place, meets, reads all the others', meets; places are plain memory. A thread may be several workers.
bool right(int size, int threads, long rounds) {
  Team team(size);
  std::vector<long> places(size), agreed(size);
  const auto run = [&](int first, int last) {
    const Share share{team, first, last};
    for (long round = 1; round <= rounds; round++) {
      share.each([&](int w) { places[w] = round * (w + 1); });
      share.each([&](int w) {
        long sum = 0;
        for (int q = 0; q < size; q++) sum += places[q];
        agreed[w] += sum == round * size * (size + 1) / 2;
      });
    }
  };
  std::vector<std::thread> pool;
  for (int k = 0; k < threads; k++) pool.emplace_back(run, size * k / threads, size * (k + 1) / threads);
  for (auto& thread : pool) thread.join();
  for (long count : agreed)
    if (count != rounds) return std::printf("%d workers: %ld of %ld rounds\n", size, count, rounds), false;
  return true;
}
int main() { return !(right(2, 2, 10000) && right(3, 2, 1000) && right(4, 2, 1000) && right(3, 3, 300)); }
"""

LOOPS = r"""
#include "kernels_of.h"

#include <cstdio>
#include <thread>
#include <vector>

typedef std::vector<float> Floats;
Floats drawn(int64_t count, float scale = 1) {
  static uint32_t seed = 1;
  Floats x(count);
  for (float& value : x) value = scale * (float((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1);
  return x;
}
Threads pool(int most) {
  return {most, [](int team, void (*body)(int64_t, int64_t, void*), void* data) {
            std::vector<std::thread> threads;
            for (int w = 0; w < team; w++) threads.emplace_back(body, w, w + 1, data);
            for (auto& thread : threads) thread.join();
          }};
}
// outputs and gradients on one and on two threads
template <class Cell, bool TOKENS> bool same(CellKind kind, int64_t n, int64_t h, int64_t t = 3) {
  const int64_t G = Cell::gates * h, symbols = TOKENS ? 5 : 0, flows = (TOKENS ? symbols : t * n) * G, size = n * h;
  const Floats wx = drawn(flows), u = drawn(G * h, 0.1f), vectors = drawn(4 * G), bias = drawn(h), h0 = drawn(size);
  const Floats c0 = drawn(size), again_h = drawn(size), again_c = drawn(size), x = drawn(t * n * 7), w = drawn(G * 7);
  const Floats d_out = drawn(t * size), d_h = drawn(size), d_c = drawn(size);
  std::vector<int64_t> tokens(t * n), lengths(n);
  std::vector<char> resets(t * n);
  for (int64_t q = 0; q < t * n; q++) tokens[q] = q * 7 % 5, resets[q] = q % 3 == 0;
  for (int64_t b = 0; b < n; b++) lengths[b] = b % 4;
  const multint::Scan scan = {.cell = kind, .phi = PhiKind::tanh, .t = t, .n = n, .h = h, .span = 2, .wx = wx.data(),
                        .tokens = TOKENS ? tokens.data() : nullptr, .symbols = symbols, .u = u.data(), .vectors = vectors.data(),
                        .bias_hn = bias.data(), .h0 = h0.data(), .c0 = c0.data(), .lengths = lengths.data(),
                        .resets = reinterpret_cast<const bool*>(resets.data()), .restart_h = again_h.data(),
                        .restart_c = again_c.data()};
  std::vector<Floats> results[2];
  for (int k = 0; k < 2; k++) {
    for (int64_t count : {t * size, size, size, flows, G * h, 4 * G, h, size, size, size, size, t * size, size, size})
      results[k].emplace_back(count);
    std::vector<Floats>& y = results[k];
    Floats uz(t * n * G), marks((t + 1) / 2 * 2 * size);
    run<Cell, Tanh, float, TOKENS>(
        multint::Forward{.scan = scan, .outputs = y[0].data(), .h_n = y[1].data(), .c_n = y[2].data(), .uz = uz.data(),
                         .marks = marks.data()}, pool(k + 1));
    run<Cell, Tanh, float, TOKENS>(
        multint::Backward{.scan = scan, .uz = uz.data(), .marks = marks.data(), .d_outputs = d_out.data(), .d_h_n = d_h.data(),
                          .d_c_n = d_c.data(), .d_wx = y[3].data(), .d_u = y[4].data(), .d_vectors = y[5].data(),
                          .d_bias_hn = y[6].data(), .d_h0 = y[7].data(), .d_c0 = y[8].data(), .d_restart_h = y[9].data(),
                          .d_restart_c = y[10].data()}, pool(k + 1));
    if (TOKENS) continue;
    multint::Scan from_x = scan;
    from_x.wx = nullptr, from_x.x = x.data(), from_x.w = w.data(), from_x.i = 7;
    run<Cell, Tanh, float, TOKENS>(
        multint::Forward{.scan = from_x, .outputs = y[11].data(), .h_n = y[12].data(), .c_n = y[13].data()}, pool(k + 1));
  }
  if (results[0] != results[1]) std::printf("cell %d differs between one thread and two\n", int(kind));
  return results[0] == results[1];
}
// more of k than one block takes
bool same_product(bool tall) {
  const int64_t m = 30, n = 40, k = 2500;
  const Floats a = drawn(m * k), b = drawn(k * n);
  Floats c[2] = {Floats(m * n), Floats(m * n)};
  for (int q = 0; q < 2; q++)
    multiply<float>(multint::Matrices{.m = m, .n = n, .k = k, .tall = tall, .a = a.data(), .a_stride = tall ? m : k, .b = b.data(),
                                      .b_down = n, .b_across = 1, .c = c[q].data()}, pool(q + 1));
  return c[0] == c[1];
}
int main() {
  bool good = same_product(false) && same_product(true);
  good = good && same<lstm, false>(CellKind::lstm, 40, 37) && same<lstm, true>(CellKind::lstm, 40, 37);
  good = good && same<gru, false>(CellKind::gru, 50, 37) && same<gru, true>(CellKind::gru, 50, 37);
  good = good && same<gru_after, false>(CellKind::gru_after, 50, 37) && same<rnn, false>(CellKind::rnn, 150, 37);
  for (int64_t h : {1, 3, 4, 9, 18, 33})
    for (int64_t n : {1, 6, 99})
      good = good && same<lstm, true>(CellKind::lstm, n, h, 1) && same<gru, false>(CellKind::gru, n, h, 2) &&
             same<rnn, false>(CellKind::rnn, n, h, 5);
  return !good;
}
"""


def sanitized(folder, text, kind="thread"):
    """A program compiled with a sanitizer, and run: its exit status, None if there is no such sanitizer, and what it says."""
    (folder / "main.cpp").write_text(text)
    command = [*build.compiler(), "-std=c++20", "-O0", "-pthread", f"-fsanitize={kind}", f"-I{build.SOURCES}"]
    compiled = subprocess.run([*command, "main.cpp", "-o", "main"], cwd=folder, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        return None, compiled.stderr
    ran = subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def need_sanitizer(folder, kind="thread"):
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("no C++ compiler")
    status, said = sanitized(folder, "int main() { return 0; }", kind)
    if status != 0:
        pytest.skip(f"no {kind} sanitizer: {said.strip()[-200:]}")


def test_workers_that_meet_see_what_the_others_wrote_and_race_for_nothing(tmp_path):
    need_sanitizer(tmp_path)
    status, said = sanitized(tmp_path, BARRIER)
    assert status == 0, said


@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_the_loops_of_two_workers_are_clean_under_the_sanitizer(tmp_path, kind):
    """Forward and backward with lengths, resets and several spans: what they share is handed over where they meet."""
    need_sanitizer(tmp_path, kind)
    status, said = sanitized(tmp_path, LOOPS, kind)
    assert status == 0 and not said, said


def test_the_sanitizer_sees_workers_that_do_not_meet(tmp_path):
    """The judge of the tests before: without the barrier it must complain."""
    need_sanitizer(tmp_path)
    alone = BARRIER.replace("share.each([&](int w) { places[w] = round * (w + 1); });", "places[first] = round * (first + 1);")
    status, said = sanitized(tmp_path, alone)
    assert alone != BARRIER
    assert status != 0 and "data race" in said
