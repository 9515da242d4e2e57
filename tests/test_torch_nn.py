"""The facts PyTorch's test_nn states about RNN, LSTM, GRU and their cells, stated about ours; and equality with nn itself."""

import copy
import io
import pickle
from itertools import product

import pytest
import torch
from helpers import (
    KINDS,
    OUR_CELLS,
    OURS,
    THEIR_CELLS,
    THEIRS,
    assert_same,
    gradients,
    hidden,
    make,
    make_cell,
    scalar,
    tensors,
    unchecked,
)
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from multint import MIGRU, MILSTM, MIRNN

each_kind = pytest.mark.parametrize("kind", KINDS)
LIKE_NN = {"rnn": {}, "rnn-relu": {"nonlinearity": "relu"}, "lstm": {}, "lstm-proj": {"proj_size": 2}, "gru_after": {}}


def beside_nn(name, cell=False, integration="general", **kwargs):
    """A module of nn and ours with its state_dict, both float64."""
    kind = name.partition("-")[0]
    theirs = (THEIR_CELLS if cell else THEIRS)[kind](4, 5, dtype=torch.float64, **LIKE_NN[name], **kwargs)
    more = {"reset_after": True} if kind == "gru_after" else {}
    ours = (OUR_CELLS if cell else OURS)[kind](
        4, 5, dtype=torch.float64, integration=integration, **more, **LIKE_NN[name], **kwargs
    )
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


# ---- nn's own numbers ----


def assert_equal_to_nn(ours, theirs, call, *inputs):
    """Results, and the gradients of the inputs, W, U and biases: b's is that of bias_ih, and of bias_hh where b replaced it."""
    result, expected = call(ours), call(theirs)
    assert_same(result, expected, rtol=1e-12, atol=1e-12)
    found, wanted = gradients(ours, result, *inputs), gradients(theirs, expected, *inputs)
    flip = {}
    if hasattr(ours, "reset_after"):  # nn's z keeps the old state where the paper's takes the new
        sign = torch.ones(3 * ours.hidden_size, dtype=torch.float64)
        sign[ours.hidden_size : 2 * ours.hidden_size] = -1
        flip = {"bias": sign}
        if ours.integration == "additive":
            flip |= {"weight_ih": sign.unsqueeze(-1), "weight_hh": sign.unsqueeze(-1)}
    for name, theirs_is in wanted.items():
        base = name.partition("_l")[0]
        if base == "bias_hh":
            continue
        ours_is = found[name.replace("bias_ih", "bias")]
        assert_same(ours_is * flip.get(base.replace("bias_ih", "bias"), 1), theirs_is, rtol=1e-12, atol=1e-12)
        if base == "bias_ih" and hasattr(ours, "reset_after"):
            inside = found[name.replace("bias_ih", "bias_hn")]
            assert_same(inside, wanted[name.replace("bias_ih", "bias_hh")][2 * ours.hidden_size :], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("integration", ["additive", "general"])
@pytest.mark.parametrize("name", LIKE_NN)
@pytest.mark.parametrize("layers, bidirectional, bias", [(1, False, True), (1, True, False), (2, False, False), (2, True, True)])
def test_nn_state_dict_loaded_into_ours_computes_nn(name, integration, layers, bidirectional, bias):
    for batch_first, packed in product((False, True), repeat=2):
        ours, theirs = beside_nn(
            name, integration=integration, num_layers=layers, bidirectional=bidirectional, bias=bias, batch_first=batch_first
        )
        x = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
        hx = hidden(theirs, 3, requires_grad=True)

        def call(module, x=x, hx=hx, packed=packed):
            given = pack_padded_sequence(x, torch.tensor([2, 3, 1]), module.batch_first, enforce_sorted=False) if packed else x
            return module(given, hx)

        assert_equal_to_nn(ours, theirs, call, x, *tensors(hx))


@pytest.mark.parametrize("integration", ["additive", "general"])
@pytest.mark.parametrize("name", ["rnn", "rnn-relu", "lstm", "gru_after"])
@pytest.mark.parametrize("bias", [True, False])
def test_nn_cell_state_dict_loaded_into_ours_computes_nn(name, integration, bias):
    ours, theirs = beside_nn(name, cell=True, integration=integration, bias=bias)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    hx = hidden(theirs, 3, requires_grad=True)
    assert_equal_to_nn(ours, theirs, lambda m: m(x, hx), x, *tensors(hx))


# ---- shapes, names, views ----


@each_kind
def test_parameters_have_nn_names_and_shapes(kind):
    """All but nn's two biases, of which ours has one, and the MI vectors, which nn lacks."""
    kwargs = {"num_layers": 2, "bidirectional": True} | ({"proj_size": 2} if kind == "lstm" else {})
    ours, theirs = (dict(m.named_parameters()) for m in (make(kind, 4, 5, **kwargs), THEIRS[kind](4, 5, **kwargs)))
    weights = {name: p.shape for name, p in theirs.items() if name.startswith("weight")}
    assert {name: p.shape for name, p in ours.items() if name.startswith("weight")} == weights
    gates = {"rnn": 1, "lstm": 4}.get(kind, 3)
    for name, p in ours.items():
        assert name in weights or p.shape == ((5,) if name.startswith("bias_hn") else (gates * 5,))
    bases = {name.partition("_l")[0] for name in ours} - {"weight_ih", "weight_hh", "weight_hr"}
    assert bases == {"alpha", "beta1", "beta2", "bias"} | ({"bias_hn"} if kind == "gru_after" else set())


@each_kind
def test_weights_start_within_one_over_the_root_of_the_width(kind):
    module = OURS[kind](4, 25)
    for name, p in module.named_parameters():
        if name.startswith("weight"):
            assert p.abs().max() <= 0.2
            assert p.abs().max() > 0.15


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_outputs_have_nn_shapes_and_strides(kind, batch_first, bidirectional):
    kwargs = {"num_layers": 2, "batch_first": batch_first, "bidirectional": bidirectional}
    x = torch.randn(2, 3, 4)
    for ours, theirs in zip(tensors(make(kind, 4, 5, **kwargs)(x)), tensors(THEIRS[kind](4, 5, **kwargs)(x)), strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


@each_kind
def test_last_state_does_not_share_memory_with_the_output(kind):
    module = make(kind, 4, 5)
    with torch.no_grad():
        output, state = module(torch.randn(3, 2, 4))
    before = output.clone()
    for part in tensors(state):
        part.fill_(7.0)
    assert_same(output, before)


@each_kind
def test_last_state_is_layer_major_and_the_reverse_half_ends_at_the_first_step(kind):
    module = make(kind, 4, 5, num_layers=2, bidirectional=True)
    output, state = module(torch.randn(3, 2, 4))
    h = tensors(state)[0]
    assert_same([h[2], h[3]], [output[-1, :, :5], output[0, :, 5:]])


def test_positional_arguments_follow_nn():
    rnn = MIRNN(4, 5, 2, "relu", False, True, 0.5, True, "cpu", torch.float64)
    assert (rnn.num_layers, rnn.nonlinearity, rnn.bias, rnn.batch_first, rnn.dropout) == (2, "relu", False, True, 0.5)
    assert rnn.bidirectional and rnn.weight_ih_l0.dtype == torch.float64
    lstm = MILSTM(4, 5, 2, False, True, 0.5, True, 3, "cpu", torch.float64)
    assert (lstm.num_layers, lstm.bias, lstm.batch_first, lstm.dropout, lstm.proj_size) == (2, False, True, 0.5, 3)
    gru = MIGRU(4, 5, 2, False, True, 0.5, True, "cpu", torch.float64)
    assert (gru.num_layers, gru.bias, gru.batch_first, gru.dropout) == (2, False, True, 0.5)
    for ours, theirs in ((rnn, nn.RNN), (lstm, nn.LSTM), (gru, nn.GRU)):
        other = theirs(4, 5, 2, *(["relu"] if theirs is nn.RNN else []), False, True, 0.5, True)
        assert repr(ours).startswith("MI" + repr(other).split(", proj")[0].rstrip(")").split(", num_layers")[0])


def test_repr_shows_what_nn_shows():
    kwargs = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True}
    assert repr(MILSTM(5, 7, **kwargs)) == "MI" + repr(nn.LSTM(5, 7, **kwargs))
    assert repr(MILSTM(5, 7, proj_size=3)) == "MI" + repr(nn.LSTM(5, 7, proj_size=3))
    assert repr(MIGRU(5, 7)) == "MI" + repr(nn.GRU(5, 7))


# ---- hidden states and packed sequences ----


@each_kind
def test_no_initial_state_is_zeros(kind):
    module = make(kind, 4, 5, num_layers=2)
    x = torch.randn(3, 2, 4)
    zeros = torch.zeros(2, 2, 5)
    assert_same(module(x, (zeros, zeros) if kind == "lstm" else zeros), module(x))


@unchecked()
def test_lstm_takes_hx_as_a_list():
    module = make("lstm", 4, 5)
    x, hx = torch.randn(3, 2, 4), hidden(module, 2)
    assert_same(module(x, list(hx)), module(x, hx))


@each_kind
def test_projected_or_not_default_state_fits_unbatched_input(kind):
    for kwargs in ({}, {"proj_size": 2}) if kind == "lstm" else ({},):
        module = make(kind, 4, 5, num_layers=2, batch_first=True, **kwargs)
        x = torch.randn(3, 4)
        output, state = module(x.unsqueeze(0))
        assert_same(module(x), [output.squeeze(0), *(t.squeeze(1) for t in tensors(state))])


@each_kind
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_rows_equal_each_row_alone(kind, bidirectional):
    module = make(kind, 4, 5, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    rows = [torch.randn(t, 4, dtype=torch.float64) for t in (2, 4, 1)]
    hx = hidden(module, 3)
    packed, state = module(pack_sequence(rows, enforce_sorted=False), hx)
    padded, lengths = pad_packed_sequence(packed)
    for k, row in enumerate(rows):
        alone, last = module(row, tuple(p[:, k] for p in hx) if kind == "lstm" else hx[:, k])
        assert_same([padded[: lengths[k], k], *(p[:, k] for p in tensors(state))], [alone, *tensors(last)], rtol=1e-12, atol=1e-13)
        assert not padded[lengths[k] :, k].any()


@each_kind
@pytest.mark.parametrize("sorted_already", [True, False])
def test_packed_output_keeps_batch_sizes_and_indices(kind, sorted_already):
    rows = [torch.randn(t, 4) for t in ((4, 2, 1) if sorted_already else (2, 4, 1))]
    packed = pack_sequence(rows, enforce_sorted=sorted_already)
    output, _ = make(kind, 4, 5, batch_first=True)(packed)
    assert isinstance(output, PackedSequence)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    for name in ("sorted_indices", "unsorted_indices"):
        ours, theirs = getattr(output, name), getattr(packed, name)
        assert ours is theirs or torch.equal(ours, theirs)


@each_kind
def test_packed_tokens_equal_packed_one_hot(kind):
    module = make(kind, 6, 5, dtype=torch.float64)
    rows = [torch.randint(6, (t,)) for t in (2, 4, 1)]
    one_hot = [nn.functional.one_hot(row, 6).double() for row in rows]
    assert_same(
        module(pack_sequence(rows, enforce_sorted=False)),
        module(pack_sequence(one_hot, enforce_sorted=False)),
        rtol=1e-12,
        atol=1e-12,
    )


@each_kind
def test_zero_rows_run_forward_and_back(kind):
    module = make(kind, 4, 5, num_layers=2, bidirectional=True)
    x = torch.randn(3, 0, 4, requires_grad=True)
    output, state = module(x)
    assert output.shape == (3, 0, 10)
    assert all(part.shape == (4, 0, 5) for part in tensors(state))
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert all(not p.grad.any() for p in module.parameters())


@each_kind
def test_a_cell_without_rows_runs_forward_and_back(kind):
    cell = make_cell(kind, 4, 5)
    x = torch.randn(0, 4, requires_grad=True)
    result = tensors(cell(x))
    assert all(t.shape == (0, 5) for t in result)
    result[0].sum().backward()
    assert x.grad.shape == (0, 4)


@pytest.mark.parametrize("part", [0, 1])
def test_lstm_cell_backward_with_one_output_alone(part):
    cell = make_cell("lstm", 4, 5)
    cell(torch.randn(3, 4))[part].sum().backward()
    assert cell.weight_ih.grad.abs().max() > 0


@each_kind
def test_a_cell_stepped_along_a_sequence_is_the_layer(kind):
    layer, cell = make(kind, 4, 5, dtype=torch.float64), make_cell(kind, 4, 5, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in layer.state_dict().items()})
    x, hx = torch.randn(3, 2, 4, dtype=torch.float64), None
    outputs = []
    for row in x:
        hx = cell(row, hx)
        outputs.append(hx[0] if kind == "lstm" else hx)
    assert_same(layer(x)[0], torch.stack(outputs), rtol=1e-12, atol=1e-13)


# ---- dropout ----


@each_kind
def test_dropout_acts_between_layers_in_training_alone(kind):
    module = make(kind, 4, 30, num_layers=2, dropout=0.5)
    x = torch.randn(3, 2, 4)
    assert not torch.equal(module(x)[0], module(x)[0])
    torch.manual_seed(1)
    first = module(x)[0]
    torch.manual_seed(1)
    assert_same(module(x)[0], first)
    module.eval()
    assert_same(module(x), module(x))


@each_kind
def test_dropout_of_one_hides_the_lower_layer(kind):
    module = make(kind, 4, 5, num_layers=2, dropout=1.0)
    a, b = module(torch.randn(3, 2, 4)), module(torch.randn(3, 2, 4))
    assert_same(a[0], b[0])


@each_kind
def test_changed_dropout_takes_effect(kind):
    module = make(kind, 4, 30, num_layers=2)
    x = torch.randn(3, 2, 4)
    before = module(x)[0]
    module.dropout = 0.5
    assert not torch.equal(module(x)[0], before)
    module.dropout = 0.0
    assert_same(module(x)[0], before)


# ---- weights that change ----


@each_kind
def test_a_replaced_weight_takes_effect(kind):
    module, other = make(kind, 4, 5), make(kind, 4, 5)
    x = torch.randn(3, 2, 4)
    for name, p in other.named_parameters():
        setattr(module, name, nn.Parameter(p.detach().clone()))
    assert_same(module(x), other(x))
    assert all(a is b for a, b in zip(module._flat_weights, module.parameters(), strict=True))
    assert [w for names in module.all_weights for w in names] == module._flat_weights


@each_kind
def test_a_weight_deleted_and_set_again_as_a_tensor_takes_effect(kind):
    module = make(kind, 4, 5, num_layers=2)
    x = torch.randn(3, 2, 4)
    expected = module(x)
    weight = module.weight_hh_l0
    del module.weight_hh_l0
    with pytest.raises(AttributeError, match="weight_hh_l0"):
        module(x)
    module.weight_hh_l0 = weight.detach().clone()
    assert_same(module(x), expected)
    assert "weight_hh_l0" not in dict(module.named_parameters())


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@each_kind
@pytest.mark.parametrize(
    "wrap, changes",
    [
        (lambda m: parametrizations.weight_norm(m, "weight_hh_l0"), False),
        (lambda m: nn.utils.weight_norm(m, "weight_hh_l0"), False),
        (lambda m: parametrizations.spectral_norm(m, "weight_hh_l0"), True),
        (lambda m: prune.l1_unstructured(m, "weight_hh_l0", amount=0.5), True),
    ],
    ids=["weight_norm", "old_weight_norm", "spectral_norm", "prune"],
)
def test_reparametrised_weights_are_used_and_differentiated_through(kind, wrap, changes):
    x, module = torch.randn(3, 2, 4), make(kind, 4, 5)
    plain = module(x)
    wrap(module)
    result = module(x)
    scalar(result).backward()
    assert all(p.grad is not None for p in module.parameters())
    assert torch.allclose(tensors(result)[0], tensors(plain)[0], rtol=1e-5, atol=1e-6) is not changes


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
def test_a_parametrised_weight_is_drawn_anew_and_one_that_cannot_be_is_named(kind, builder):
    name = "weight_hh_l0" if builder is make else "weight_hh"
    module = builder(kind, 4, 5)
    parametrizations.weight_norm(module, name)
    module.mine = nn.LayerNorm(5)  # a child that is none of the layer's
    before = getattr(module, name).detach().clone()
    module.reset_parameters()
    after = getattr(module, name)
    assert not torch.equal(after, before)
    assert after.abs().max() <= 5**-0.5 * (1 + 1e-5)
    old = nn.utils.weight_norm(builder(kind, 4, 5), name)
    with pytest.raises(RuntimeError, match=f"{name} is no parameter of its own"):
        old.reset_parameters()


@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
def test_autocast_leaves_doubles_alone(kind, builder):
    module, x = builder(kind, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    x = x if builder is make else x[0]
    expected = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(module(x), expected)


@each_kind
def test_flatten_parameters_changes_nothing(kind):
    module = make(kind, 4, 5)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    module.flatten_parameters()
    assert_same(list(before.values()), [p.detach() for p in module.parameters()])


@each_kind
def test_tied_layers_share_one_gradient(kind):
    a, b = make(kind, 5, 5, dtype=torch.float64), make(kind, 5, 5, dtype=torch.float64)
    b.weight_hh_l0 = a.weight_hh_l0
    x = torch.randn(2, 2, 5, dtype=torch.float64)
    scalar(b(a(x)[0])).backward()
    assert b.weight_hh_l0.grad is a.weight_hh_l0.grad


@each_kind
def test_a_weight_edited_between_forward_and_backward_raises(kind):
    module = make(kind, 4, 5)
    loss = scalar(module(torch.randn(3, 2, 4)))
    with torch.no_grad():
        module.weight_hh_l0.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_kind
def test_inplace_edit_of_output_then_backward(kind):
    """B.3's inplace_edit_of_output, where nn.LSTM fails."""
    module, x = make(kind, 4, 5, num_layers=2, bidirectional=True, dtype=torch.float64), torch.randn(3, 2, 4, dtype=torch.float64)
    output, state = module(x)
    expected = gradients(module, [output * 2.0, state])
    output, state = module(x)
    output.mul_(2.0)
    assert_same(list(gradients(module, [output, state]).values()), list(expected.values()))


# ---- copies, files, memory ----


@each_kind
def test_state_dict_saved_is_loaded_with_weights_only_and_by_assignment(kind):
    module = make(kind, 4, 5, num_layers=2, bidirectional=True)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    copied, assigned = (make(kind, 4, 5, num_layers=2, bidirectional=True, device=device) for device in ("cpu", "meta"))
    copied.load_state_dict(state)
    assigned.load_state_dict(state, assign=True)
    x = torch.randn(3, 2, 4)
    for twin in (copied, assigned, pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert_same(twin(x), module(x))


@each_kind
def test_a_whole_module_is_no_plain_data_to_torch_load(kind):
    file = io.BytesIO()
    torch.save(make(kind, 4, 5), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file, weights_only=True)


@each_kind
def test_a_copy_owns_its_weights(kind):
    module = make(kind, 4, 5)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight_hh_l0.zero_()
    assert module.weight_hh_l0.any()


@each_kind
def test_inference_mode_and_no_grad_give_the_same_values(kind):
    module, x = make(kind, 4, 5), torch.randn(3, 2, 4)
    expected = module(x)
    with torch.inference_mode():
        assert_same(module(x), [t.detach() for t in tensors(expected)])
        assert tensors(module(x))[0].is_inference()
    with torch.no_grad():
        assert not tensors(module(x))[0].requires_grad


@each_kind
def test_checkpoint_gives_the_same_gradients(kind):
    module, x = make(kind, 4, 5, num_layers=2, dropout=0.5), torch.randn(3, 2, 4, requires_grad=True)
    torch.manual_seed(3)
    expected = gradients(module, module(x), x)
    torch.manual_seed(3)
    assert_same(list(gradients(module, checkpoint(module, x, use_reentrant=False), x).values()), list(expected.values()))


@each_kind
def test_forward_and_backward_hooks_fire(kind):
    module, seen = make(kind, 4, 5), []
    module.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    module.register_forward_hook(lambda m, args, result: seen.append("post"))
    module.register_full_backward_hook(lambda m, gi, go: seen.append("back"))
    scalar(module(torch.randn(3, 2, 4, requires_grad=True))).backward()
    assert seen == ["pre", "post", "back"]


@each_kind
def test_repeats_are_bitwise_equal_with_deterministic_algorithms(kind):
    module, x = make(kind, 4, 5, num_layers=2, bidirectional=True), torch.randn(3, 2, 4, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        runs = [list(gradients(module, module(x), x).values()) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(*runs)


@each_kind
def test_backward_twice_through_a_retained_graph(kind):
    module = make(kind, 4, 5, num_layers=2)
    loss = scalar(module(torch.randn(3, 2, 4)))
    leaves = list(module.parameters())
    assert_same(torch.autograd.grad(loss, leaves, retain_graph=True), torch.autograd.grad(loss, leaves))


@each_kind
def test_backward_in_eval_mode(kind):
    module = make(kind, 4, 5).eval()
    scalar(module(torch.randn(3, 2, 4))).backward()
    assert all(p.grad is not None for p in module.parameters())


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_run_forward_and_back(kind, dtype):
    module = make(kind, 4, 5, num_layers=2, dtype=dtype)
    result = module(torch.randn(3, 2, 4, dtype=dtype))
    assert {t.dtype for t in tensors(result)} == {dtype}
    scalar(result).backward()
    assert {p.grad.dtype for p in module.parameters()} == {dtype}


@each_kind
def test_expanded_and_strided_hidden_states(kind):
    module, x = make(kind, 4, 5, num_layers=2, dtype=torch.float64), torch.randn(3, 2, 4, dtype=torch.float64)
    one = hidden(module, 1)
    expanded = tuple(p.expand(-1, 2, -1) for p in one) if kind == "lstm" else one.expand(-1, 2, -1)
    copied = tuple(p.contiguous() for p in expanded) if kind == "lstm" else expanded.contiguous()
    assert_same(module(x, expanded), module(x, copied))
