"""The checks PyTorch runs on every entry of its module_db, run on our classes with the inputs that module_db draws for nn's."""

import copy
import io
from functools import partial

import pytest
import torch
from helpers import assert_same, mapped, scalar, scatter, tensors, unchecked
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from multint import MIGRU, MILSTM, MIRNN, MIGRUCell, MILSTMCell, MIRNNCell

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

OURS = {
    nn.RNN: {"MIRNN": MIRNN},
    nn.LSTM: {"MILSTM": MILSTM},
    nn.GRU: {"MIGRU": MIGRU, "MIGRU-reset_after": partial(MIGRU, reset_after=True)},
    nn.RNNCell: {"MIRNNCell": MIRNNCell},
    nn.LSTMCell: {"MILSTMCell": MILSTMCell},
    nn.GRUCell: {"MIGRUCell": MIGRUCell, "MIGRUCell-reset_after": partial(MIGRUCell, reset_after=True)},
}
ENTRIES = [pytest.param(info, ours, id=name) for info in module_db for name, ours in OURS.get(info.module_cls, {}).items()]

each_entry = pytest.mark.parametrize("info, ours", ENTRIES)
in_both_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def samples(info, *, dtype=torch.float32, requires_grad=False, training=False, device="cpu"):
    """module_db's inputs for an entry: packed sequences too, where its function can draw them."""
    more = {"with_packed_sequence": True} if info.module_cls in (nn.RNN, nn.GRU) else {}
    drawn = info.module_inputs_func(info, device, dtype, requires_grad, training, **more)
    return [s for s in drawn if s.forward_input is not None]


def build(ours, sample, *, dtype=torch.float32, training=False, **kwargs):
    module = ours(*sample.constructor_input.args, **sample.constructor_input.kwargs, **kwargs)
    return module.to(dtype).train(training)


def call(module, sample):
    return module(*sample.forward_input.args, **sample.forward_input.kwargs)


def is_packed(sample):
    return isinstance(sample.forward_input.args[0], PackedSequence)


def row_by_row(module, packed):
    """A packed batch as the layer sees it one sequence at a time; module_db has no reference for packed input."""
    results = [module(x.unsqueeze(0 if module.batch_first else 1)) for x in unpack_sequence(packed)]
    outputs = pack_sequence([y.squeeze(0 if module.batch_first else 1) for y, _ in results])
    return outputs, torch.cat([h for _, h in results], 1)


def test_module_db_has_an_entry_for_each_of_our_classes():
    assert len(ENTRIES) == 8


@each_entry
@in_both_modes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_equals_the_reference_and_keeps_the_dtype(info, ours, training, dtype):
    for sample in samples(info, dtype=dtype, training=training):
        module = build(ours, sample, dtype=dtype, training=training)
        result = call(module, sample)
        if is_packed(sample):
            expected = row_by_row(module, sample.forward_input.args[0])
        else:
            expected = sample.reference_fn(module, *sample.forward_input.args)
        assert_same(result, expected, rtol=1e-5, atol=1e-6)
        assert {t.dtype for t in [*tensors(result), *module.parameters(), *module.buffers()]} == {dtype}


@each_entry
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_factory_kwargs_reach_every_parameter(info, ours, device, dtype):
    for sample in samples(info):
        module = build(ours, sample, dtype=dtype, device=device)
        direct = ours(*sample.constructor_input.args, **sample.constructor_input.kwargs, device=device, dtype=dtype)
        for m in (module, direct):
            assert {(p.device.type, p.dtype) for p in m.parameters()} == {(device, dtype)}


@each_entry
def test_repr_and_str_name_the_class_and_the_sizes(info, ours):
    for sample in samples(info):
        module = build(ours, sample)
        assert repr(module) == str(module)
        assert repr(module).startswith(f"{type(module).__name__}({module.input_size}, {module.hidden_size}")


@each_entry
@in_both_modes
def test_saved_and_copied_modules_compute_the_same(info, ours, training):
    for sample in samples(info, training=training):
        module = build(ours, sample, training=training)
        expected = call(module, sample)
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        for twin in (torch.load(file, weights_only=False), copy.deepcopy(module)):
            assert_same(call(twin, sample), expected)


@each_entry
def test_state_dict_makes_the_round_trip(info, ours):
    for sample in samples(info):
        module, other = build(ours, sample), build(ours, sample)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert_same(call(other, sample), call(module, sample))


def strided(x):
    """The same values, not contiguous."""
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    spread = x.detach().repeat_interleave(2, -1)[..., ::2]
    assert spread.numel() < 2 or not spread.is_contiguous()
    return spread.requires_grad_(x.requires_grad)


@each_entry
@in_both_modes
def test_non_contiguous_inputs_and_parameters_give_the_same_outputs_and_gradients(info, ours, training):
    for sample in samples(info, dtype=torch.float64, requires_grad=True, training=training):
        module = build(ours, sample, dtype=torch.float64, training=training)
        args = sample.forward_input.args
        expected = module(*args)
        leaves = [*tensors(args), *module.parameters()]
        expected_grads = torch.autograd.grad(scalar(expected), leaves)
        spread = mapped(strided, args)
        with torch.no_grad():
            for p in module.parameters():
                p.set_(strided(p.detach()))
        result = module(*spread)
        assert_same(result, expected, rtol=1e-12, atol=1e-12)
        assert_same(
            torch.autograd.grad(scalar(result), [*tensors(spread), *module.parameters()]), expected_grads, rtol=1e-12, atol=1e-12
        )


def as_function(ours, sample):
    """The module as a function of one vector, which holds its inputs and parameters, and that vector.

    One vector makes gradcheck's fast mode two forward passes instead of two for each tensor. Inputs are made small: module_db draws
    up to 9, where tanh saturates, so that zero would be compared with zero, and products under relu explode.
    """
    module = scatter(build(ours, sample, dtype=torch.float64, training=True))  # biases of zero would put relu on its kink
    args, names = sample.forward_input.args, [name for name, _ in module.named_parameters()]
    leaves = [*(t.detach() / 8 for t in tensors(args)), *(p.detach() for p in module.parameters())]

    def function(vector):
        parts = iter(p.view_as(leaf) for p, leaf in zip(vector.split([x.numel() for x in leaves]), leaves, strict=True))
        given = mapped(lambda _: next(parts), args)
        result = torch.func.functional_call(module, dict(zip(names, parts, strict=True)), given)
        return torch.cat([t.flatten() for t in tensors(result)])

    return function, torch.cat([x.flatten() for x in leaves]).requires_grad_()


@each_entry
@unchecked()
def test_gradcheck(info, ours):
    for sample in samples(info, dtype=torch.float64, training=True):
        assert torch.autograd.gradcheck(*as_function(ours, sample), fast_mode=True, check_forward_ad=True)


@each_entry
@unchecked()
def test_gradgradcheck(info, ours):
    for sample in samples(info, dtype=torch.float64, training=True):
        assert torch.autograd.gradgradcheck(*as_function(ours, sample), fast_mode=True)


@each_entry
@unchecked()
def test_gradcheck_of_every_element_with_batched_and_forward_mode_gradients(info, ours):
    """The slow mode, on a sample that is given hx."""
    sample = samples(info, dtype=torch.float64, training=True)[1]
    assert torch.autograd.gradcheck(*as_function(ours, sample), check_batched_grad=True, check_forward_ad=True)


@each_entry
def test_train_and_eval_modes_agree_without_dropout(info, ours):
    for sample in samples(info):
        module = build(ours, sample)
        assert_same(call(module.train(), sample), call(module.eval(), sample))


@pytest.mark.parametrize("ours", [MIRNN, MILSTM, MIGRU])
def test_train_and_eval_modes_differ_with_dropout(ours):
    module = ours(2, 8, num_layers=2, dropout=0.5)
    x = torch.randn(3, 2, 2)
    assert not torch.equal(module(x)[0], module.eval()(x)[0])


@each_entry
@pytest.mark.parametrize("swap", [True, False])
def test_to_moves_dtype_and_keeps_gradients_and_identity(info, ours, swap):
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        for sample in samples(info, requires_grad=True)[:4]:
            module = build(ours, sample)
            scalar(call(module, sample)).backward()
            before = {name: (p, p.detach().clone(), p.grad.clone()) for name, p in module.named_parameters()}
            module.to(torch.float64)
            for name, p in module.named_parameters():
                was, value, grad = before[name]
                assert p is was
                assert_same([p.detach(), p.grad], [value.double(), grad.double()])
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@each_entry
def test_to_empty_gives_a_meta_module_memory(info, ours):
    for sample in samples(info):
        module = build(ours, sample, device="meta")
        module.to_empty(device="cpu")
        assert {p.device.type for p in module.parameters()} == {"cpu"}
        module.reset_parameters()
        assert all(torch.isfinite(t).all() for t in tensors(call(module, sample)))


@each_entry
def test_share_memory(info, ours):
    module = build(ours, samples(info)[0])
    module.share_memory()
    assert all(p.is_shared() for p in module.parameters())


@each_entry
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@unchecked()
def test_malformed_calls_raise_what_module_db_expects(info, ours, dtype):
    errors = info.module_error_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    assert errors
    for error in errors:
        sample = error.module_error_input
        if error.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(error.error_type, match=error.error_regex):
                ours(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        else:
            module = build(ours, sample, dtype=dtype)
            with pytest.raises(error.error_type, match=error.error_regex):
                call(module, sample)
