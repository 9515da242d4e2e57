"""Trained torch.nn layers become MI layers that compute the same function."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

from multint import MIGRU, MILSTM, MIRNN, MIGRUCell, MILSTMCell, MIRNNCell, convert

EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Tagger(nn.Module):
    """A model of several recurrent layers of every kind, a cell, and things between them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, proj_size=5)
        self.middle = nn.Sequential(nn.Linear(10, 9), nn.Tanh())
        self.parts = nn.ModuleDict(
            {"gru": nn.GRU(9, 7, num_layers=2, bidirectional=True), "rnn": nn.RNN(14, 4, nonlinearity="relu")}
        )
        self.cell = nn.GRUCell(4, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, tokens, lengths):
        x, _ = self.lstm(pack_padded_sequence(self.embed(tokens), lengths, enforce_sorted=False))
        x, _ = nn.utils.rnn.pad_packed_sequence(x)
        x, _ = self.parts["gru"](self.middle(x))
        x, _ = self.parts["rnn"](x)
        return self.out(self.cell(x[-1], torch.zeros(x.shape[1], 3, dtype=x.dtype)))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_model_of_several_layers_computes_the_same_function():
    model = Tagger().double().eval()
    tokens, lengths = torch.randint(11, (6, 4)), torch.tensor([3, 6, 1, 4])
    twin = convert(model)
    assert isinstance(twin.lstm, MILSTM) and isinstance(twin.parts["gru"], MIGRU) and isinstance(twin.parts["rnn"], MIRNN)
    assert isinstance(twin.cell, MIGRUCell)
    assert not twin.training
    assert isinstance(model.lstm, nn.LSTM), "the given model is left alone"
    assert_close(twin(tokens, lengths), model(tokens, lengths), **EXACT)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}])
def test_gradients_of_the_shared_weights_and_the_input_are_the_same(kind, options):
    layer = kind(5, 7, dtype=torch.float64, **options)
    twin = convert(layer)
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 3, 7 * (2 if options.get("bidirectional") else 1), dtype=torch.float64)
    theirs = torch.autograd.grad((layer(x)[0] * y).sum(), [x, *(p for n, p in layer.named_parameters() if n.startswith("weight"))])
    ours = torch.autograd.grad((twin(x)[0] * y).sum(), [x, *(p for n, p in twin.named_parameters() if n.startswith("weight"))])
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, **EXACT)


@pytest.mark.parametrize("kind, twin", [(nn.RNNCell, MIRNNCell), (nn.LSTMCell, MILSTMCell), (nn.GRUCell, MIGRUCell)])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_compute_the_same_step(kind, twin, bias):
    cell = kind(5, 7, bias=bias, dtype=torch.float64)
    mi = convert(cell)
    assert type(mi) is twin
    x, h = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    hx = (h, torch.randn_like(h)) if kind is nn.LSTMCell else h
    assert_close(mi(x, hx), cell(x, hx), **EXACT)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_training_turns_alpha_on(kind):
    twin = convert(kind(5, 7))
    optimiser = torch.optim.Adam(twin.parameters(), lr=1e-2)
    assert twin.alpha_l0.abs().max() == 0
    twin(torch.randn(4, 3, 5))[0].pow(2).sum().backward()
    optimiser.step()
    assert (twin.alpha_l0 != 0).all()


def test_negating_w_and_u_instead_of_the_vectors_would_not_be_the_same_gru():
    """The product term is even in (W, U): only the update gate's vectors may carry the sign."""
    gru = nn.GRU(5, 7, dtype=torch.float64)
    twin = convert(gru)
    assert torch.equal(twin.weight_ih_l0, gru.weight_ih_l0) and torch.equal(twin.weight_hh_l0, gru.weight_hh_l0)
    assert torch.equal(twin.beta1_l0, torch.cat([torch.ones(7), -torch.ones(7), torch.ones(7)]).double())
    assert_close(twin.bias_hn_l0, gru.bias_hh_l0[14:])


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("integration", ["additive", "general"])
def test_a_state_dict_of_torch_nn_loads_directly(name, integration):
    theirs = getattr(nn, name)(5, 7, num_layers=2, dtype=torch.float64)
    after = {"reset_after": True} if name == "GRU" else {}
    ours = {"RNN": MIRNN, "LSTM": MILSTM, "GRU": MIGRU}[name](5, 7, 2, dtype=torch.float64, integration=integration, **after)
    saved = theirs.state_dict()
    keys = set(saved)
    ours.load_state_dict(saved)
    assert set(saved) == keys, "the given state_dict is left alone"
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    assert_close(ours(x)[0], theirs(x)[0], **EXACT)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("integration", ["additive", "simple", "gated", "general"])
@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_our_own_state_dict_is_never_taken_for_torch_nns(bias, integration, reset_after, plain):
    one, other = (MIGRU(5, 7, bias=bias, integration=integration, reset_after=reset_after) for _ in range(2))
    ambiguous = plain and reset_after and not bias and integration == "additive"
    with pytest.warns(UserWarning, match="taken for our own") if ambiguous else nullcontext():
        other.load_state_dict(dict(one.state_dict()) if plain else one.state_dict())
    for name, p in one.state_dict().items():
        assert torch.equal(p, other.state_dict()[name])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "options, reason",
    [
        ({"integration": "simple", "reset_after": True}, "integration='simple' cannot compute"),
        ({"integration": "gated", "reset_after": True}, "integration='gated' cannot compute"),
        ({"integration": "additive"}, "build the layer with reset_after=True"),
        ({}, "build the layer with reset_after=True"),
    ],
)
def test_a_form_that_cannot_compute_the_function_refuses_the_state_dict(options, reason, bias, strict):
    ours = MIGRU(5, 7, bias=bias, **options)
    with pytest.raises(RuntimeError, match=reason):
        ours.load_state_dict(nn.GRU(5, 7, bias=bias).state_dict(), strict=strict)


@pytest.mark.parametrize("integration", ["additive", "general"])
def test_part_of_a_state_dict_changes_that_part_alone(integration):
    layer = MIGRU(5, 7, reset_after=True, integration=integration)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    missing = layer.load_state_dict({"weight_hh_l0": torch.ones(21, 7)}, strict=False).missing_keys
    assert set(missing) == set(before) - {"weight_hh_l0"}
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items() if name != "weight_hh_l0")
    assert torch.equal(layer.weight_hh_l0, torch.ones(21, 7))


def test_a_state_dict_that_could_be_either_is_taken_for_ours_with_a_warning():
    layer = MIGRU(5, 7, bias=False, reset_after=True, integration="additive")
    with pytest.warns(UserWarning, match="taken for our own"):
        layer.load_state_dict(dict(nn.GRU(5, 7, bias=False).state_dict()))


def test_converting_draws_no_random_numbers():
    layer = nn.LSTM(5, 7)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    convert(layer)
    assert torch.equal(torch.rand(3), expected)


def test_a_frozen_bias_stays_frozen():
    layer = nn.LSTM(5, 7)
    layer.bias_ih_l0.requires_grad_(False)
    layer.bias_hh_l0.requires_grad_(False)
    twin = convert(layer)
    assert not twin.bias_l0.requires_grad and twin.alpha_l0.requires_grad and twin.weight_ih_l0.requires_grad


def test_in_place_keeps_weight_objects_and_tied_modules():
    shared = nn.LSTM(4, 4)
    model = nn.ModuleList([shared, shared, nn.Linear(4, 4)])
    before = shared.weight_hh_l0
    assert convert(model, inplace=True) is model
    assert model[0] is model[1]
    assert model[0].weight_hh_l0 is before


def test_frozen_layers_stay_frozen_and_dropout_and_mode_are_kept():
    frozen = nn.LSTM(4, 4, num_layers=2, dropout=0.3).requires_grad_(False).eval()
    twin = convert(frozen)
    assert not any(p.requires_grad for p in twin.parameters())
    assert twin.dropout == 0.3 and not twin.training
    with pytest.warns(UserWarning, match="dropout option"):
        single = nn.GRU(4, 4, dropout=0.5)
    assert convert(single).dropout == 0.5  # no second warning: warnings are errors here


class Odd(nn.LSTM):
    pass


def parametrised():
    layer = nn.LSTM(3, 4)
    parametrize.register_parametrization(layer, "weight_hh_l0", nn.Identity())
    return layer


def pruned():
    return prune.random_unstructured(nn.GRU(3, 4), "weight_hh_l0", 0.5)


def burdened():
    layer = nn.LSTM(3, 4)
    layer.register_buffer("steps", torch.zeros(1))
    return layer


def hooked():
    layer = nn.RNN(3, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


def patched():
    layer = nn.GRU(3, 4)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Odd(3, 4), "subclass of nn.LSTM"),
        (parametrised, "parametrised; call torch.nn.utils.parametrize.remove_parametrizations"),
        (pruned, "weight_hh_l0 is not a plain parameter"),
        (hooked, "hooks"),
        (patched, "forward of its own"),
        (burdened, "holds steps besides its weights"),
    ],
)
def test_what_cannot_be_converted_is_named_with_its_path_and_reason(make, reason):
    model = nn.ModuleDict({"first": nn.LSTM(2, 2), "inner": nn.Sequential(nn.Identity(), make())})
    with pytest.raises(ValueError, match=rf"cannot convert inner\.1 \(.*\): .*{reason}"):
        convert(model, inplace=True)
    assert type(model["first"]) is nn.LSTM, "nothing is changed when something cannot be"


def test_a_model_without_recurrent_layers_comes_back_as_it_is():
    model = nn.Sequential(nn.Linear(2, 3), MILSTM(3, 4))
    twin = convert(model)
    assert type(twin[1]) is MILSTM
    assert copy.deepcopy(model).state_dict().keys() == twin.state_dict().keys()
