"""Recurrent batch norm, layer norm, weight noise, zoneout, recurrent dropout."""

import copy
import pickle
from functools import partial

import pytest
import torch
from helpers import unchecked
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

from multint import MIGRU, MILSTM, MIRNN, Norm, weight_noise
from multint.regularize import StepBatchNorm, batch_statistics, dropout_mask, estimating_population, use_statistics, zoneout_share

T, N, I, H = 5, 6, 3, 4
KINDS = {"rnn": MIRNN, "lstm": MILSTM, "gru": MIGRU, "gru_after": partial(MIGRU, reset_after=True)}
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


def random_layer(kind, **options):
    layer = kind(I, H, dtype=torch.float64, **options)
    for name, p in layer.named_parameters():
        if "norm" not in name:
            nn.init.uniform_(p, -1, 1)
    return layer


def whiten(x, gamma, eps=1e-5):
    return gamma * (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + eps)


def lstm_by_hand(layer, x, normal):
    """BN-LSTM (Cooijmans et al.) with the flows integrated by Eq. 4; ``normal(x, gamma)`` normalises one step."""
    p = {name.removesuffix("_l0"): value for name, value in layer.named_parameters()}
    h = c = x.new_zeros(x.shape[1], H)
    outputs = []
    for x_t in x:
        wx, uh = (normal(v, 0.1) for v in (x_t @ p["weight_ih"].T, h @ p["weight_hh"].T))
        pre = p["alpha"] * wx * uh + p["beta1"] * uh + p["beta2"] * wx + p["bias"]
        i, f, z, o = pre.chunk(4, -1)
        c = i.sigmoid() * z.tanh() + f.sigmoid() * c
        h = o.sigmoid() * torch.tanh(normal(c, 0.1) + p["norm_l0.c.beta"])
        outputs.append(h)
    return torch.stack(outputs)


def test_batch_norm_normalises_both_flows_at_every_step_and_the_cell_on_its_way_out():
    layer, x = random_layer(MILSTM, norm="batch"), torch.randn(T, N, I, dtype=torch.float64)
    nn.init.normal_(layer.norm_l0.c.beta)
    assert_close(layer(x)[0], lstm_by_hand(layer, x, whiten), **CLOSE)


def test_gamma_starts_at_a_tenth_and_only_the_cell_has_beta():
    norm = MILSTM(I, H, norm="batch").norm_l0
    for place in (norm.wx, norm.uh, norm.c):
        assert torch.equal(place.gamma, torch.full_like(place.gamma, 0.1))
    assert norm.wx.beta is None and norm.uh.beta is None and norm.c.beta.abs().max() == 0
    assert norm.total is None
    assert MIGRU(I, H, norm="batch").norm_l0.c is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("place", ["flows", "sum"])
def test_gradients_through_a_norm_are_right(kind, norm, place):
    layer = random_layer(KINDS[kind], norm=Norm(norm, place=place, gamma=0.5))
    x = torch.randn(3, 4, I, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], [x])
    layer(x)[0].sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_layer_norm_normalises_each_gate_over_its_units():
    layer, x = random_layer(MIRNN, norm=Norm("layer", gamma=0.7)), torch.randn(T, N, I, dtype=torch.float64)
    p = {name.removesuffix("_l0"): value for name, value in layer.named_parameters()}
    h, outputs = x.new_zeros(N, H), []
    for x_t in x:
        wx, uh = (0.7 * nn.functional.layer_norm(v, (H,)) for v in (x_t @ p["weight_ih"].T, h @ p["weight_hh"].T))
        h = torch.tanh(p["alpha"] * wx * uh + p["beta1"] * uh + p["beta2"] * wx + p["bias"])
        outputs.append(h)
    assert_close(layer(x)[0], torch.stack(outputs), **CLOSE)
    gru = random_layer(MIGRU, norm="layer")
    row, alone = gru(x)[0][:, 2], gru(x[:, 2:3])[0][:, 0]
    assert_close(row, alone, **CLOSE)


def test_after_the_sum_the_bias_survives_the_norm():
    layer, x = random_layer(MIRNN, norm=Norm("batch", place="sum")), torch.randn(1, N, I, dtype=torch.float64)
    p = {name.removesuffix("_l0"): value for name, value in layer.named_parameters()}
    wx = x[0] @ p["weight_ih"].T  # U h is zero at the first step
    assert_close(layer(x)[0][0], torch.tanh(whiten(p["beta2"] * wx, 0.1) + p["bias"]), **CLOSE)


def test_every_step_keeps_population_statistics_of_its_own():
    layer = random_layer(MIRNN, norm=Norm("batch", momentum=0.25))
    wx = layer.norm_l0.wx
    mean = torch.zeros(T, H, dtype=torch.float64)
    var = torch.ones(T, H, dtype=torch.float64)
    for _ in range(3):
        x = torch.randn(T, N, I, dtype=torch.float64)
        flow = x @ layer.weight_ih_l0.T
        mean += 0.25 * (flow.mean(1) - mean)
        var += 0.25 * (flow.var(1, unbiased=False) - var)
        layer(x)
    assert_close(wx.mean[:T], mean, **CLOSE)
    assert_close(wx.var[:T], var, **CLOSE)
    assert wx.count.tolist() == [3] * T + [0] * (100 - T)


def test_evaluation_uses_the_population_and_no_other_row_matters():
    layer = random_layer(MILSTM, norm="batch")
    for _ in range(3):
        layer(torch.randn(T, N, I, dtype=torch.float64))
    layer.eval()
    x = torch.randn(T, N, I, dtype=torch.float64)
    counts = layer.norm_l0.wx.count.clone()
    assert_close(layer(x)[0][:, 1], layer(x[:, 1:2])[0][:, 0], **CLOSE)
    assert torch.equal(layer.norm_l0.wx.count, counts)


def test_evaluation_can_use_the_batch_instead():
    layer, x = random_layer(MILSTM, norm="batch"), torch.randn(T, N, I, dtype=torch.float64)
    expected = layer(x)[0]
    layer.eval()
    use_statistics(layer, "batch")
    assert_close(layer(x)[0], expected, **CLOSE)
    use_statistics(layer, "population")
    assert (layer(x)[0] - expected).abs().max() > 1e-3


def test_steps_beyond_the_maximum_or_beyond_those_seen_use_the_last():
    norm = StepBatchNorm(Norm("batch", max_steps=3), H, H, 1.0, False, dtype=torch.float64)
    for t in range(5):
        norm(torch.randn(N, H, dtype=torch.float64) + t, t, None, slice(0, H))
    norm.eval()
    assert norm.mean.shape[0] == 3
    for t in (2, 3, 40):
        assert torch.equal(norm.recall(t, slice(0, H))[0], norm.mean[2])
    norm.count[2] = 0
    assert torch.equal(norm.recall(7, slice(0, H))[0], norm.mean[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["flows", "sum"])
def test_a_population_of_one_batch_gives_what_the_batch_gave(kind, place):
    layer = random_layer(KINDS[kind], norm=Norm("batch", place=place, gamma=0.5)).eval()
    x = torch.randn(T, N, I, dtype=torch.float64)
    with torch.no_grad(), estimating_population(layer):
        expected = layer(x)[0]
    assert_close(layer(x)[0], expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_rows_teaches_the_statistics_nothing(kind):
    layer = random_layer(KINDS[kind], norm="batch")
    layer(torch.randn(T, N, I, dtype=torch.float64))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    assert layer(torch.randn(T, 0, I, dtype=torch.float64))[0].shape == (T, 0, H)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_reset_parameters_begins_the_norms_anew_too():
    layer = random_layer(MILSTM, norm="batch")
    layer(torch.randn(T, N, I, dtype=torch.float64))
    nn.init.constant_(layer.norm_l0.uh.gamma, 7.0)
    layer.reset_parameters()
    assert layer.norm_l0.uh.gamma.max() == 0.1 and layer.norm_l0.uh.count.sum() == 0


@pytest.mark.parametrize("padding", [False, True])
def test_padded_rows_stay_out_of_the_statistics_unless_asked_in(padding):
    layer = random_layer(MIRNN, norm=Norm("batch", momentum=1.0, padding=padding))
    x, lengths = torch.randn(T, N, I, dtype=torch.float64), torch.tensor([5, 4, 4, 3, 2, 2])
    layer(pack_padded_sequence(x, lengths))
    flow = x @ layer.weight_ih_l0.T
    for t in range(T):
        alive = flow[t, lengths > t]
        rows = torch.cat([alive, alive.new_zeros(N - len(alive), H)]) if padding else alive
        assert_close(layer.norm_l0.wx.mean[t], rows.mean(0), **CLOSE)
        assert_close(layer.norm_l0.wx.var[t], rows.var(0, unbiased=False), **CLOSE)


def test_masked_statistics_are_those_of_the_rows_left():
    x, rows = torch.randn(N, H, dtype=torch.float64), torch.tensor([True, False, True, True, False, True])
    for ours, theirs in zip(batch_statistics(x, rows), batch_statistics(x[rows], None), strict=True):
        assert_close(ours, theirs, **CLOSE)


def test_population_estimates_are_the_mean_over_batches():
    layer = random_layer(MIGRU, norm="batch").eval()
    batches = [torch.randn(T, N, I, dtype=torch.float64) for _ in range(4)]
    layer.norm_l0.uh.mean.fill_(9.0)
    with torch.no_grad(), estimating_population(layer):
        for x in batches:
            layer(x)
    flows = torch.stack([x @ layer.weight_ih_l0.T for x in batches])
    assert_close(layer.norm_l0.wx.mean[:T], flows.mean(2).mean(0), **CLOSE)
    assert_close(layer.norm_l0.wx.var[:T], flows.var(2, unbiased=False).mean(0), **CLOSE)
    assert layer.norm_l0.uh.count[:T].tolist() == [4] * T, "a GRU's two groups of gates count as one batch"
    assert (layer.norm_l0.uh.mean[0] == 0).all(), "U h of the first step is zero, whatever was there before"
    assert not layer.norm_l0.wx.estimating and layer.norm_l0.wx.momentum == 0.05
    with pytest.raises(ValueError, match="Linear has no recurrent batch norm"), estimating_population(nn.Linear(1, 1)):
        pass


def test_a_normalised_layer_survives_saving_and_both_directions_have_norms(tmp_path):
    layer = random_layer(MILSTM, norm=Norm("batch", max_steps=7), num_layers=2, bidirectional=True)
    layer(torch.randn(T, N, I, dtype=torch.float64))
    torch.save(layer.state_dict(), tmp_path / "l.pt")
    other = random_layer(MILSTM, norm=Norm("batch", max_steps=7), num_layers=2, bidirectional=True)
    other.load_state_dict(torch.load(tmp_path / "l.pt", weights_only=True))
    x = torch.randn(T, N, I, dtype=torch.float64)
    assert torch.equal(layer.eval()(x)[0], other.eval()(x)[0])
    assert {name for name, _ in layer.named_children()} == {"norm_l0", "norm_l0_reverse", "norm_l1", "norm_l1_reverse"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "group"}, "Unknown norm 'group'. Select from 'batch' or 'layer'"),
        ({"place": "before"}, "Unknown place 'before'"),
        ({"max_steps": 0}, "max_steps must be a whole number greater than zero, got 0"),
        ({"max_steps": 2.5}, "max_steps must be a whole number greater than zero, got 2.5"),
        ({"eps": -1.0}, "eps must be at least 0, got -1.0"),
        ({"momentum": 1.5}, r"momentum must lie in \(0, 1\] or be None, got 1.5"),
    ],
)
@unchecked()
def test_a_wrong_norm_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Norm(**options)


@unchecked()
def test_wrong_statistics_are_named():
    with pytest.raises(ValueError, match="Unknown statistics 'none'. Select from 'population' or 'batch'"):
        use_statistics(MIRNN(I, H, norm="batch"), "none")


# ---- weight noise ----


def test_noise_disturbs_weights_only_and_only_inside():
    layer = MILSTM(I, H)
    clean = {name: p.detach().clone() for name, p in layer.named_parameters()}
    order = list(clean)
    with weight_noise(layer, 0.05):
        for name in order:
            assert torch.equal(getattr(layer, name), clean[name]) is not name.startswith("weight"), name
    assert [name for name, _ in layer.named_parameters()] == order
    for name, p in layer.named_parameters():
        assert isinstance(p, nn.Parameter) and torch.equal(p, clean[name])


def test_noise_has_the_stated_size_and_is_drawn_anew_for_every_update():
    layer, draws = nn.Linear(200, 200), []
    for _ in range(2):
        with weight_noise(layer, 0.05):
            draws.append(layer.weight.detach().clone())
    noise = [draw - layer.weight.detach() for draw in draws]
    assert all(abs(n.std().item() - 0.05) < 1e-3 and abs(n.mean().item()) < 1e-3 for n in noise)
    assert abs((noise[0] * noise[1]).mean().item()) < 1e-4


def test_gradients_of_a_noisy_pass_reach_the_clean_weights():
    layer = nn.Linear(3, 2, bias=False)
    x = torch.randn(4, 3)
    with weight_noise(layer, 0.3):
        noisy = layer.weight.detach().clone()
        loss = layer(x).pow(2).sum()
    loss.backward()
    assert_close(layer.weight.grad, 2 * (x @ noisy.T).T @ x)


def test_what_is_saved_inside_the_context_is_clean():
    model = nn.ModuleDict({"rnn": MIGRU(I, H), "out": nn.Linear(H, 2)})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with weight_noise(model, 1.0):
        inside = model.state_dict()
    for name, value in inside.items():
        assert torch.equal(value, before[name]), name


def test_inside_optimiser_clipping_and_loading_see_the_clean_weights():
    layer = nn.Linear(3, 2)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    with weight_noise(layer, 0.5):
        layer(torch.ones(4, 3)).sum().backward()
        assert torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0) > 0
        optimiser.step()
        layer.zero_grad()
        layer.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert torch.equal(layer.weight, torch.ones(2, 3)) and layer.weight.grad is None


def test_weights_that_modules_share_get_the_same_noise():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
    model["out"].weight = model["embed"].weight
    with weight_noise(model, 0.5):
        assert model["out"].weight is model["embed"].weight
        assert not torch.equal(model["out"].weight, next(model.parameters()))


def test_noise_on_noise_copies_and_parametrised_weights_are_refused():
    layer = nn.Linear(3, 2)
    with weight_noise(layer, 0.5):
        with pytest.raises(ValueError, match="already active on weight"), weight_noise(layer, 0.1):
            pass
        for copying in (copy.deepcopy, pickle.dumps):
            with pytest.raises(RuntimeError, match="leave it before copying or saving the module"):
                copying(layer)
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)
    torch.nn.utils.parametrizations.weight_norm(layer)
    with pytest.raises(ValueError, match="it is parametrised"), weight_noise(layer, 0.1):
        pass


def test_an_error_inside_leaves_clean_weights_behind():
    layer = MIRNN(I, H)
    clean = layer.weight_hh_l0
    with pytest.raises(KeyError), weight_noise(layer, 0.1):
        raise KeyError
    assert layer.weight_hh_l0 is clean


def test_noise_reaches_torch_nn_layers_too_and_a_generator_repeats_it():
    layer, x = nn.LSTM(I, H), torch.randn(T, N, I)
    clean = layer(x)[0]
    outputs = []
    for _ in range(2):
        with weight_noise(layer, 0.5, generator=torch.Generator().manual_seed(3)):
            outputs.append(layer(x)[0])
    assert torch.equal(outputs[0], outputs[1])
    assert (outputs[0] - clean).abs().max() > 1e-2
    assert torch.equal(layer(x)[0], clean)
    with pytest.raises(ValueError, match="sigma must be a finite number of at least 0, got -1.0"), weight_noise(layer, -1.0):
        pass


@pytest.mark.traced
@pytest.mark.parametrize("make", [lambda: MILSTM(I, H), lambda: nn.Linear(I, H)], ids=["MILSTM", "Linear"])
def test_a_compiled_model_is_disturbed_inside_and_clean_outside_however_often(make):
    torch.compiler.reset()
    model, x = make(), torch.randn(T, N, I)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)

    def outputs(module):
        found = module(x)
        return found[0] if isinstance(found, tuple) else found

    clean = outputs(model).detach()
    for _ in range(3):
        with weight_noise(model, 0.5):
            noisy = outputs(compiled)
            assert_close(noisy, outputs(model))
            (grad,) = torch.autograd.grad(noisy.square().sum(), next(model.parameters()))
            assert grad.abs().sum() > 0
        assert (noisy - clean).abs().max() > 1e-2
        assert_close(outputs(compiled), clean)


def test_weights_put_in_place_for_a_call_are_disturbed_too():
    layer, x = nn.Linear(3, 2, bias=False), torch.randn(4, 3)
    other = {"weight": torch.randn(2, 3, requires_grad=True)}
    with weight_noise(layer, 0.5):
        noise = layer.weight - layer._parameters["weight"]
        found = torch.func.functional_call(layer, other, (x,))
    assert_close(found, x @ (other["weight"] + noise).T)
    found.sum().backward()
    assert other["weight"].grad is not None


def test_a_module_may_have_noise_of_its_own():
    layer = nn.Linear(3, 2)
    layer._noise = 0.1
    with weight_noise(layer, 0.5):
        layer(torch.ones(3))
    assert layer._noise == 0.1


def test_a_disturbed_module_is_of_its_kind():
    layer = MILSTM(I, H)
    with weight_noise(layer, 0.5):
        assert isinstance(layer, MILSTM)
        assert (type(layer).__name__, repr(layer)) == ("MILSTM", repr(MILSTM(I, H)))
    assert type(layer) is MILSTM
    assert "_multint_noise" not in vars(layer)


# ---- zoneout and recurrent dropout ----


def test_zoneout_keeps_each_unit_of_h_and_c_with_its_own_probability():
    torch.manual_seed(1)
    layer = MILSTM(I, 500, zoneout=(0.3, 0.0))
    output, _ = layer(torch.randn(2, 20, I))
    kept = (output[1] == output[0]).float().mean().item()
    assert kept == pytest.approx(0.3, abs=0.02)
    assert (output[0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.02), "at the first step the old state is zero"


@pytest.mark.parametrize("kind", KINDS)
def test_in_evaluation_zoneout_mixes_old_and_new_in_its_proportion(kind):
    plain, zoned = KINDS[kind](I, H), KINDS[kind](I, H, zoneout=0.25).eval()
    zoned.load_state_dict(plain.state_dict())
    x = torch.randn(1, N, I)
    h = torch.randn(1, N, H)
    hx = (h, torch.randn(1, N, H)) if kind == "lstm" else h
    assert_close(zoned(x, hx)[0][0], 0.25 * h[0] + 0.75 * plain(x, hx)[0][0])


def test_recurrent_dropout_hides_the_same_units_from_u_at_every_step():
    layer = MIRNN(I, H, recurrent_dropout=0.5, integration="additive", nonlinearity="identity", bias=False)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(H))
        layer.weight_ih_l0.zero_()
    output, _ = layer(torch.zeros(3, N, I), torch.ones(1, N, H))
    assert set(output[0].unique().tolist()) == {0.0, 2.0}
    assert_close(output[2], output[0] ** 3)
    assert torch.equal(layer.eval()(torch.zeros(1, N, I), torch.ones(1, N, H))[0], torch.ones(1, N, H))


def test_masks_are_absent_where_they_do_nothing():
    like = torch.ones(1)
    assert zoneout_share(0.0, (2, 3, 4), like, True) is None
    assert dropout_mask(0.0, (3, 4), like, True) is None and dropout_mask(0.5, (3, 4), like, False) is None
    assert zoneout_share(0.2, (2, 3, 4), like, False).item() == pytest.approx(0.2)
