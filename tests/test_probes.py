"""§2.2 and §3.1: what the probes see equals what autograd and the equations say, and looking leaves no trace."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence

from multint import MIGRU, MILSTM, MIRNN, Norm
from multint.probes import flow_norms, gradient_norms, histogram, jacobian, jacobian_product, saturation
from multint.related import MogrifierLSTM, SecondOrderRNN

F64 = torch.float64


def scatter(module):
    """Random values in all parameters, so that none sits at 0 or 1."""
    with torch.no_grad():
        for p in module.parameters():
            p.uniform_(-0.7, 0.7)
    return module


def close(a, b, tol):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


# ---- dC/dh_t ----

LAYERS = [
    (nn.RNN, {}),
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 4, "num_layers": 2}),
    (nn.GRU, {"num_layers": 2}),
    (MIRNN, {"nonlinearity": "identity"}),
    (MIRNN, {"integration": "simple", "num_layers": 2}),
    (MILSTM, {}),
    (MIGRU, {}),
    (SecondOrderRNN, {}),
    (MogrifierLSTM, {"rounds": 2}),
]


def hidden(layer, n):
    h, size = layer.hidden_size, getattr(layer, "proj_size", 0) or layer.hidden_size
    parts = [torch.randn(layer.num_layers, n, k, dtype=F64) for k in (size, h)]
    return tuple(parts) if "LSTM" in type(layer).__name__ else parts[0]


def by_hand(layer, x, hx, cost, t):
    """dC/dh_t of the last layer: continue from a copy of the state after t steps, costs of earlier outputs being constant."""
    with torch.no_grad():
        before, state = layer(x[:t], hx) if t else (x.new_zeros(0, *x.shape[1:2], 0), hx)
    parts = [p.clone().requires_grad_() for p in (state if isinstance(state, tuple) else (state,))]
    if t < len(x):
        after, _ = layer(x[t:], tuple(parts) if len(parts) > 1 else parts[0])
    else:
        after = parts[0][-1:][:0]
    whole = torch.cat([*([before[:-1], parts[0][-1:]] if t else []), after])
    (grad,) = torch.autograd.grad(cost(whole).sum(), parts[0])
    return grad[-1].norm(dim=-1)


@pytest.mark.parametrize("kind, extra", LAYERS)
def test_gradient_norms_equal_those_of_a_sequence_continued_by_hand(kind, extra):
    layer = scatter(kind(5, 7, dtype=F64, **extra))
    x, hx = torch.randn(12, 3, 5, dtype=F64), hidden(layer, 3)
    weight = torch.randn(12, 1, layer(x)[0].shape[-1], dtype=F64)

    def last(outputs):
        return outputs[-1].square().sum(-1)

    def every(outputs):
        return (outputs * weight).sum((0, 2))

    for cost in (last, every):
        found = gradient_norms(layer, x, cost, at=(10, 0, 1, 5, 12), hx=hx)
        assert found.at == (10, 0, 1, 5, 12) and found.norms.shape == (5, 3)
        for k, t in enumerate(found.at):
            close(found.norms[k], by_hand(layer, x, hx, cost, t), 1e-10)
            assert found.norms[k].min() > 0


def test_gradient_norms_of_lin_rnn_are_powers_of_u():
    layer = scatter(nn.RNN(5, 7, dtype=F64)).requires_grad_(False)
    lin = MIRNN(5, 7, nonlinearity="identity", integration="additive", dtype=F64).requires_grad_(False)
    lin.weight_hh_l0.copy_(layer.weight_hh_l0)
    v = torch.randn(7, dtype=F64)
    found = gradient_norms(lin, torch.randn(50, 3, 5, dtype=F64), lambda outputs: outputs[-1] @ v)
    for k, t in enumerate((0, 1, 5, 10)):
        expected = (torch.linalg.matrix_power(layer.weight_hh_l0.t(), 50 - t) @ v).norm()
        close(found.norms[k], expected.expand(3), 1e-9)


def test_gradient_norms_see_what_has_vanished_far():
    """1e-25 is a float32, its square is not."""
    layer = MIRNN(3, 4, nonlinearity="identity", integration="additive")
    with torch.no_grad():
        layer.weight_hh_l0.copy_(1e-5 * torch.eye(4))
    found = gradient_norms(layer, torch.randn(6, 2, 3), lambda outputs: outputs[-1].sum(-1), at=(1,))
    torch.testing.assert_close(found.norms, torch.full((1, 2), 2e-25), rtol=1e-4, atol=0.0)


def test_gradient_norms_offer_both_averages():
    found = gradient_norms(scatter(MIRNN(5, 7, dtype=F64)), torch.randn(12, 4, 5, dtype=F64), lambda outputs: outputs[-1].sum(-1))
    close(found.mean_log, found.norms.log().mean(1), 1e-14)
    close(found.log_mean, found.norms.mean(1).log(), 1e-14)
    assert (found.log_mean > found.mean_log).all()  # Jensen


@pytest.mark.parametrize("kind", [nn.LSTM, MILSTM, MIRNN])
def test_gradient_norms_read_the_layouts_a_layer_reads(kind):
    layer, first = (kind(5, 7, 2, batch_first=b, dtype=F64) for b in (False, True))
    first.load_state_dict(scatter(layer).state_dict())
    x = torch.randn(12, 3, 5, dtype=F64)
    usual = gradient_norms(layer, x, lambda outputs: outputs[-1].square().sum(-1)).norms
    close(gradient_norms(first, x.transpose(0, 1), lambda outputs: outputs[:, -1].square().sum(-1)).norms, usual, 1e-12)
    alone = gradient_norms(layer, x[:, 1], lambda outputs: outputs[-1].square().sum())
    close(alone.norms, usual[:, 1:2], 1e-12)
    summed = gradient_norms(layer, x, lambda outputs: outputs[-1].square().sum())
    close(summed.norms, usual, 1e-12)


def test_gradient_norms_read_tokens_and_a_learned_state():
    layer = scatter(MILSTM(5, 7, learn_state=True, dtype=F64))
    tokens = torch.randint(5, (12, 3))
    hx = tuple(p.detach().unsqueeze(1).expand(1, 3, 7) for p in (layer.h0, layer.c0))
    ours = gradient_norms(layer, tokens, lambda outputs: outputs[-1].square().sum(-1))
    theirs = gradient_norms(layer, F.one_hot(tokens, 5).to(F64), lambda outputs: outputs[-1].square().sum(-1), hx=hx)
    close(ours.norms, theirs.norms, 1e-12)


def test_gradient_norms_look_at_any_layer_of_a_stack():
    layer = scatter(nn.RNN(5, 7, 2, dtype=F64))
    x, hx = torch.randn(6, 3, 5, dtype=F64), torch.randn(2, 3, 7, dtype=F64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x, hx)[0][-1].sum(), hx)
    for depth in (0, 1, -1, -2):
        found = gradient_norms(layer, x, lambda outputs: outputs[-1].sum(-1), at=[0], hx=hx, depth=depth)
        close(found.norms[0], grad[depth].norm(dim=-1), 1e-12)
    with pytest.raises(IndexError, match="depth 2 is outside a stack of 2 layers"):
        gradient_norms(layer, x, lambda outputs: outputs[-1].sum(-1), at=[0], depth=2)


def test_gradient_norms_name_wrong_use():
    x = torch.randn(12, 3, 5)

    def cost(outputs):
        return outputs[-1].sum(-1)

    with pytest.raises(ValueError, match="LSTM is bidirectional"):
        gradient_norms(nn.LSTM(5, 7, bidirectional=True), x, cost)
    with pytest.raises(ValueError, match=r"steps from 0, the initial state, to 12, the last; got \[0, 13\]"):
        gradient_norms(nn.LSTM(5, 7), x, cost, at=(0, 13))
    with pytest.raises(ValueError, match=r"one value for each of 3 examples, or their sum as a scalar; got \(12, 3, 7\)"):
        gradient_norms(nn.LSTM(5, 7), x, lambda outputs: outputs)
    with pytest.raises(ValueError, match="does not depend on the outputs"):
        gradient_norms(nn.LSTM(5, 7), x, lambda outputs: torch.ones(3))
    with pytest.raises(ValueError, match="recurrent batch norm .* cannot be cut in time"):
        gradient_norms(MILSTM(5, 7, norm="batch"), x, cost)
    with pytest.raises(TypeError, match="PackedSequence"):
        gradient_norms(nn.LSTM(5, 7), pack_sequence([x[:, 0]]), cost)


# ---- Jacobians ----


def check_closed_form(layer, x, hx=None):
    for t, n in ((None, None), (6, 4), (3, 1), (5, 0)):
        closed, automatic = (f(layer, x, hx, t=t, n=n) for f in (jacobian_product, jacobian))
        assert closed.shape == automatic.shape == (3, 7, 7)
        close(closed, automatic, 1e-10)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity"])
def test_equation_5_is_the_jacobian_of_the_additive_rnn(nonlinearity):
    layer = scatter(MIRNN(5, 7, nonlinearity=nonlinearity, integration="additive", dtype=F64))
    check_closed_form(layer, torch.randn(9, 3, 5, dtype=F64), torch.randn(1, 3, 7, dtype=F64))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_equation_5_is_the_jacobian_of_torch_nn_rnn(nonlinearity):
    check_closed_form(scatter(nn.RNN(5, 7, 2, nonlinearity, dtype=F64)), torch.randn(9, 3, 5, dtype=F64))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity"])
def test_equation_6_is_the_jacobian_of_the_simple_mi_rnn(nonlinearity):
    layer = scatter(MIRNN(5, 7, nonlinearity=nonlinearity, integration="simple", dtype=F64))
    check_closed_form(layer, torch.randn(9, 3, 5, dtype=F64), torch.randn(1, 3, 7, dtype=F64))


@pytest.mark.parametrize("form", ["gated", "general"])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity"])
def test_equation_6_with_its_footnote_is_the_jacobian_of_the_other_forms(form, nonlinearity):
    layer = scatter(MIRNN(5, 7, nonlinearity=nonlinearity, integration=form, dtype=F64))
    check_closed_form(layer, torch.randn(9, 3, 5, dtype=F64), torch.randn(1, 3, 7, dtype=F64))
    check_closed_form(layer, torch.randint(5, (9, 3)))


def test_equation_6_as_printed_has_time_from_left_to_right_and_derivatives_transposed():
    layer = scatter(MIRNN(5, 7, integration="simple", dtype=F64))
    x, h = torch.randn(2, 1, 5, dtype=F64), torch.randn(7, dtype=F64)
    w, u, b = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), layer.bias_l0.detach()
    product = torch.eye(7, dtype=F64)
    state = h
    for k in range(2):
        wx = w @ x[k, 0]
        slope = 1 - torch.tanh(wx * (u @ state) + b) ** 2
        product = product @ u.t() @ torch.diag(wx) @ torch.diag(slope)
        state = torch.tanh(wx * (u @ state) + b)
    usual = torch.func.jacrev(lambda start: layer(x, start.reshape(1, 1, 7))[0][-1, 0])(h)
    found = jacobian_product(layer, x, h.reshape(1, 1, 7))[0]
    close(found, product, 1e-12)
    close(found, usual.t(), 1e-12)


def test_equation_6_holds_in_every_layer_of_a_stack():
    layer = scatter(MIRNN(5, 7, 3, batch_first=True, learn_state=True, dtype=F64))
    x = torch.randn(3, 9, 5, dtype=F64)
    for depth in (0, 1, 2):
        close(jacobian_product(layer, x, n=4, depth=depth), jacobian(layer, x, n=4, depth=depth), 1e-10)
    with pytest.raises(IndexError, match="depth 3 is outside a stack of 3 layers"):
        jacobian_product(layer, x, depth=3)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, MILSTM, MIGRU, MogrifierLSTM])
def test_jacobian_of_any_layer_carries_gradients_from_step_to_step(kind):
    layer = scatter(kind(5, 7, dtype=F64))
    x, v = torch.randn(9, 3, 5, dtype=F64), torch.randn(7, dtype=F64)
    expected = gradient_norms(layer, x[:6], lambda outputs: outputs[-1] @ v, at=[2]).norms[0]
    close((jacobian(layer, x, t=6, n=4) @ v).norm(dim=-1), expected, 1e-12)


def test_jacobians_of_an_unbatched_sequence_are_a_batch_of_one():
    layer = scatter(MIRNN(5, 7, dtype=F64))
    x = torch.randn(9, 3, 5, dtype=F64)
    for f in (jacobian, jacobian_product):
        close(f(layer, x[:, 1]), f(layer, x)[1:2], 1e-12)


def test_jacobians_name_wrong_use():
    x = torch.randn(9, 3, 5)
    with pytest.raises(TypeError, match=r"Eq\. 5 and 6 are for MIRNN and nn\.RNN, got LSTM; jacobian\(\) takes any layer"):
        jacobian_product(nn.LSTM(5, 7), x)
    for extra in ({"norm": "layer"}, {"zoneout": 0.5}, {"recurrent_dropout": 0.5}):
        with pytest.raises(ValueError, match="know no norm, zoneout or recurrent dropout; jacobian"):
            jacobian_product(MIRNN(5, 7, **extra), x)
    for f in (jacobian, jacobian_product):
        with pytest.raises(ValueError, match="of 9 steps, t must lie in 0 to 9 and n in 0 to t; got t=4 and n=5"):
            f(MIRNN(5, 7), x, t=4, n=5)
        with pytest.raises(ValueError, match="MIRNN is bidirectional"):
            f(MIRNN(5, 7, bidirectional=True), x)


# ---- activations ----


def test_saturation_is_the_share_beyond_the_edge():
    h = torch.tensor([-0.95, 0.2, 0.9, 0.91, -0.05, 1.0]).reshape(3, 2, 1)
    assert saturation(h) == 3 / 6
    assert saturation(h, edge=0.1) == 5 / 6


def test_histogram_counts_every_activation_and_its_shares():
    h = torch.tanh(2 * torch.randn(11, 7, 33, dtype=F64))
    found = histogram(h)
    assert found.edges.shape == (201,) and found.counts.shape == (200,) and int(found.counts.sum()) == h.numel()
    assert torch.equal(found.counts.double(), torch.histogram(h, 200, range=(-1.0, 1.0)).hist)
    assert found.saturated == saturation(h) == (h.abs() > 0.9).double().mean().item()
    assert found.near_zero == (h.abs() < 0.1).double().mean().item()


def test_histograms_of_batches_add_up():
    h = torch.tanh(torch.randn(11, 7, 33))
    parts, whole = histogram(h[:4], bins=20) + histogram(h[4:], bins=20), histogram(h, bins=20)
    assert torch.equal(parts.counts, whole.counts)
    assert abs(parts.saturated - whole.saturated) < 1e-12 and abs(parts.near_zero - whole.near_zero) < 1e-12
    with pytest.raises(ValueError, match="20 and 10 bins with unequal edges do not add up"):
        histogram(h, bins=20) + histogram(h, bins=10)


def test_histogram_refuses_what_it_would_not_count():
    with pytest.raises(ValueError, match=r"\|h\| = 3 lie outside \[-1, 1\]; pass a larger reach"):
        histogram(torch.tensor([3.0]))
    assert histogram(torch.tensor([3.0]), bins=2, reach=3.0).counts.tolist() == [0, 1]
    with pytest.raises(ValueError, match="nan"):
        histogram(torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="bins and reach must be greater than zero, got 0"):
        histogram(torch.tensor([0.5]), bins=0)


# ---- the flows ----


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU, MIRNN, MILSTM, MIGRU])
def test_flow_norms_equal_the_products_written_out(kind):
    layer = scatter(kind(5, 7, 2, dtype=F64))
    x, hx = torch.randn(6, 3, 5, dtype=F64), hidden(layer, 3)
    flows = flow_norms(layer, x, hx)
    assert [flow.name for flow in flows] == ["l0", "l1"]
    for k, flow in enumerate(flows):
        w, u = getattr(layer, f"weight_ih_l{k}").detach(), getattr(layer, f"weight_hh_l{k}").detach()
        below = x if k == 0 else through_first(layer, x, hx)
        for t in range(6):
            state = layer(x[:t], hx)[1] if t else hx
            h = (state[0] if isinstance(state, tuple) else state)[k].detach()
            close(flow.wx[t], (below[t] @ w.t()).unflatten(-1, (-1, 7)).norm(dim=-1), 1e-12)
            close(flow.uh[t], (h @ u.t()).unflatten(-1, (-1, 7)).norm(dim=-1), 1e-12)


def through_first(layer, x, hx):
    """Outputs of the first layer of a stack."""
    states = [layer(x[: t + 1], hx)[1] for t in range(len(x))]
    return torch.stack([(s[0] if isinstance(s, tuple) else s)[0] for s in states]).detach()


@pytest.mark.parametrize("kind", [nn.LSTM, MILSTM])
def test_flow_norms_of_both_directions_follow_the_inputs_steps(kind):
    layer = scatter(kind(5, 7, bidirectional=True, batch_first=True, dtype=F64))
    x = torch.randn(3, 6, 5, dtype=F64)
    forward, reverse = flow_norms(layer, x)
    assert (forward.name, reverse.name, reverse.gates) == ("l0", "l0_reverse", ("i", "f", "z", "o"))
    outputs = layer(x)[0].detach()
    close(reverse.wx, (x.transpose(0, 1) @ layer.weight_ih_l0_reverse.t()).unflatten(-1, (4, 7)).norm(dim=-1).detach(), 1e-12)
    after = (outputs[:, 1:, 7:] @ layer.weight_hh_l0_reverse.t()).detach().transpose(0, 1)
    close(reverse.uh[:-1], after.unflatten(-1, (4, 7)).norm(dim=-1), 1e-12)
    assert reverse.uh[-1].abs().max() == 0  # reading backwards it begins at the last step, from zero


def test_flow_norms_read_tokens_and_unbatched_input():
    layer, tokens = scatter(MIRNN(5, 7, dtype=F64)), torch.randint(5, (6, 3))
    ours, theirs = flow_norms(layer, tokens)[0], flow_norms(layer, F.one_hot(tokens, 5).to(F64))[0]
    close(ours.wx, theirs.wx, 1e-12)
    close(ours.uh, theirs.uh, 1e-12)
    close(flow_norms(layer, tokens[:, 1])[0].uh, ours.uh[:, 1:2], 1e-12)


def test_flow_norms_name_wrong_use():
    x = torch.randn(6, 3, 5)
    with pytest.raises(TypeError, match=r"reads W and U of MIRNN, .*; got SecondOrderRNN"):
        flow_norms(SecondOrderRNN(5, 7), x)
    with pytest.raises(TypeError, match="PackedSequence"):
        flow_norms(MIRNN(5, 7), pack_sequence([x[:, 0]]))
    with pytest.raises(ValueError, match=r"MIRNN in training mode would update its batch statistics; call eval\(\) first"):
        flow_norms(MIRNN(5, 7, norm=Norm("batch", max_steps=6)), x)
    assert flow_norms(MIRNN(5, 7, norm=Norm("batch", max_steps=6)).eval(), x)[0].wx.shape == (6, 3, 1)


# ---- looking leaves no trace ----


@pytest.mark.parametrize("kind", [nn.RNN, MIRNN])
@pytest.mark.parametrize("training", [True, False])
def test_probes_leave_layer_gradients_mode_and_generator_alone(kind, training):
    layer = scatter(kind(5, 7, 2)).train(training)
    x, before = torch.randn(6, 3, 5), copy.deepcopy(layer.state_dict())
    attributes, generator = set(vars(layer)), torch.get_rng_state()
    with torch.no_grad():  # as in an evaluation loop
        gradient_norms(layer, x, lambda outputs: outputs[-1].sum(-1), at=(0, 2))
        jacobian(layer, x, n=2)
        jacobian_product(layer, x, n=2)
        flow_norms(layer, x)
    assert all(p.grad is None and p.requires_grad for p in layer.parameters())
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert layer.training is training and set(vars(layer)) == attributes
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_mask_drawn_anew_for_every_piece_is_refused():
    layer = MIRNN(3, 4, recurrent_dropout=0.5)
    with pytest.raises(ValueError, match="draws a dropout mask for every piece of a cut sequence; call eval"):
        gradient_norms(layer, torch.randn(6, 2, 3), lambda y: y[-1].sum(-1), at=(0, 2))
    gradient_norms(layer.eval(), torch.randn(6, 2, 3), lambda y: y[-1].sum(-1), at=(0, 2))
