"""Starting values: the presets the paper states, ranges, orthogonal U."""

import math

import pytest
import torch
from helpers import unchecked

from multint import MIGRU, MILSTM, MIRNN, PRESETS, MILSTMCell, Start
from multint.integration import FORMS

H = 50


@pytest.mark.parametrize(
    "name, values",
    [
        ("text8-rnn", (2.0, 0.5, 0.5, 0.0)),
        ("text8-lstm", (1.0, 0.5, 0.5, 0.0)),
        ("hutter-lstm", (1.0, 1.0, 1.0, 0.0)),
        ("skipthought-gru", (1.0, 1.0, 1.0, 0.0)),
        ("reader-lstm", (1.0, 1.0, 1.0, 0.0)),
    ],
)
def test_presets_fill_the_vectors_as_section_3_states(name, values):
    kind = {"rnn": MIRNN, "lstm": MILSTM, "gru": MIGRU}[name.partition("-")[2]]
    layer = kind(3, H, num_layers=2, bidirectional=True, start=name)
    for suffix in ("_l0", "_l0_reverse", "_l1", "_l1_reverse"):
        for vector, value in zip(("alpha", "beta1", "beta2", "bias"), values, strict=True):
            assert (getattr(layer, vector + suffix) == value).all()
    assert set(PRESETS) == {"text8-rnn", "text8-lstm", "hutter-lstm", "skipthought-gru", "reader-lstm"}


def test_r_w_and_r_u_are_the_ranges_of_the_scaling_experiment():
    layer = MIRNN(40, H, start=Start(r_w=0.6, r_u=0.02))
    assert 0.55 < layer.weight_ih_l0.abs().max() <= 0.6
    assert 0.019 < layer.weight_hh_l0.abs().max() <= 0.02


def test_without_ranges_the_weights_start_as_in_torch_nn():
    layer = MILSTM(40, H, proj_size=7)
    for weight in (layer.weight_ih_l0, layer.weight_hh_l0, layer.weight_hr_l0):
        assert 0.9 / math.sqrt(H) < weight.abs().max() <= 1 / math.sqrt(H)


def test_orthogonal_u_is_orthogonal_gate_by_gate():
    layer = MIGRU(3, 8, dtype=torch.float64, start=Start(orthogonal=True))
    for gate in layer.weight_hh_l0.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert (layer.weight_hh_l0[:8] - layer.weight_hh_l0[8:16]).abs().max() > 0.01, "independent draws"


def test_orthogonal_u_in_half_precision():
    u = MIRNN(3, 8, dtype=torch.bfloat16, start=Start(orthogonal=True)).weight_hh_l0.float()
    torch.testing.assert_close(u @ u.T, torch.eye(8), rtol=0, atol=0.02)


def test_a_gate_can_have_values_of_its_own_and_the_others_the_default():
    layer = MILSTMCell(3, 4, start=Start(alpha={"z": 2.0}, b={"f": 1.0}))
    assert layer.bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    assert layer.alpha.tolist() == [1.0] * 8 + [2.0] * 4 + [1.0] * 4
    assert MILSTMCell(3, 1, start=Start(beta1={"f": 0.5}, beta2={})).beta1.tolist() == [1.0, 0.5, 1.0, 1.0]


def test_the_simple_form_never_starts_dead():
    """Eq. 2 from h0 = 0 and b = 0 stays at zero with zero gradient for W and U, so b is drawn like the weights."""
    layer = MIRNN(3, H, integration="simple")
    layer(torch.randn(4, 2, 3))[0].sum().backward()
    assert layer.weight_hh_l0.grad.abs().max() > 0
    assert 0 < layer.bias_l0.abs().max() <= 1 / math.sqrt(H)
    dead = MIRNN(3, H, integration="simple", start=Start(r_b=0.0))
    output, _ = dead(torch.randn(4, 2, 3))
    output.sum().backward()
    assert output.abs().max() == 0 and dead.weight_hh_l0.grad.abs().max() == 0


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_its_own_vectors_and_no_others(form):
    names = {name.removesuffix("_l0") for name, _ in MILSTM(3, 4, integration=form).named_parameters()}
    assert names == {"weight_ih", "weight_hh", "bias", *FORMS[form]}


def test_reset_parameters_draws_anew_and_a_seed_repeats_it():
    torch.manual_seed(5)
    layer = MIGRU(3, 4, learn_state=True, start="text8-rnn")
    first = {k: v.clone() for k, v in layer.state_dict().items()}
    layer.reset_parameters()
    assert not torch.equal(layer.weight_ih_l0, first["weight_ih_l0"])
    torch.manual_seed(5)
    layer.reset_parameters()
    assert all(torch.equal(v, first[k]) for k, v in layer.state_dict().items())


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: MIRNN(3, 4, start="text9"), ValueError, "Unknown start 'text9'. Select from 'text8-rnn', .*or pass a Start"),
        (lambda: MIRNN(3, 4, start={"alpha": 1}), TypeError, "start should be a Start, the name of a preset or None, got: dict"),
        (lambda: Start(r_w=-0.1), ValueError, "r_w must be a finite number of at least 0, got -0.1"),
        (lambda: Start(alpha=math.nan), ValueError, "alpha must be finite, got nan"),
        (lambda: Start(r_u=math.nan), ValueError, "r_u must be a finite number of at least 0, got nan"),
        (lambda: MIGRU(3, 4, start=Start(b={"f": 1.0})), ValueError, "Start names gate 'f'; this cell has 'r', 'z', 'n'"),
    ],
)
@unchecked()
def test_wrong_starts_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
