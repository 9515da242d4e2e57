"""Every malformed construction or call gives one clear error, of nn's type where nn has one."""

import re
import warnings

import pytest
import torch
from helpers import KINDS, OUR_CELLS, OURS, THEIR_CELLS, THEIRS, hidden, make, make_cell, unchecked
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from multint import MIGRU, MILSTM, MIRNN, MIRNNCell, Norm, Start

each_kind = pytest.mark.parametrize("kind", KINDS)
KINDS_OF_NN = ("rnn", "lstm", "gru")
each_nn_kind = pytest.mark.parametrize("kind", KINDS_OF_NN)


def raised(call):
    """The exception a call ends in."""
    with pytest.raises(Exception) as found:
        call()
    return found.value


def both_raise(type_, message, theirs, ours):
    """nn raises the type, ours the type with the message."""
    assert isinstance(raised(theirs), type_)
    with pytest.raises(type_, match=re.escape(message)):
        ours()


# ---- weights that do not fit ----

REPLACED = {
    "weight_ih_l0": (28, 6),
    "weight_hh_l0": (20, 7),
    "alpha_l0": (8,),
    "bias_l0": (29,),
    "h0": (1, 9),
    "c0": (2, 7),
    "weight_hh_l1_reverse": (28, 9),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_a_weight_of_another_shape_is_named_before_a_kernel_reads_it(name, backend, tokens):
    deep = {"num_layers": 2, "bidirectional": True} if "l1" in name else {}
    layer = MILSTM(5, 7, learn_state=True, backend=backend, **deep)
    expected = tuple(layer.get_parameter(name).shape)
    setattr(layer, name, nn.Parameter(torch.randn(REPLACED[name])))
    x = torch.randint(5, (6, 3)) if tokens else torch.randn(6, 3, 5)
    message = f"MILSTM: {name} must have shape {expected}, got {REPLACED[name]}"
    for grad in (False, True):
        with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match=re.escape(message)):
            layer(x)


@each_kind
def test_a_weight_of_another_shape_in_a_cell_or_a_call_is_named(kind):
    cell, layer, x = make_cell(kind, 5, 7), make(kind, 5, 7), torch.randn(3, 5)
    rows = cell.weight_hh.shape[0]
    message = re.escape(f"must have shape {(rows, 7)}, got {(rows - 1, 7)}")
    with pytest.raises(RuntimeError, match=message):
        torch.func.functional_call(layer, {"weight_hh_l0": torch.randn(rows - 1, 7)}, (x.unsqueeze(0),))
    cell.weight_hh = nn.Parameter(torch.randn(rows - 1, 7))
    with pytest.raises(RuntimeError, match=message):
        cell(x)


@each_kind
def test_resets_on_another_device_are_named(kind):
    with pytest.raises(RuntimeError, match="found resets at meta and parameter tensor at cpu"):
        make(kind, 5, 7)(torch.randn(6, 3, 5), resets=torch.zeros(6, 3, dtype=torch.bool, device="meta"))


@unchecked()
def test_options_of_another_kind_are_named():
    with pytest.raises(ValueError, match="zoneout should be .* the probability of an element being kept, got 2"):
        MILSTM(3, 4, zoneout=2)
    with pytest.raises(TypeError, match="backend should be of type str, got: list"):
        MILSTM(3, 4, backend=[])
    with pytest.raises(ValueError, match="max_steps must be a whole number greater than zero, got True"):
        Norm(max_steps=True)
    with pytest.raises(ValueError, match="gamma must be a finite number or None, got nan"):
        Norm(gamma=float("nan"))
    assert MILSTM(3, 4, zoneout=[0.1, 0.2]).zoneout == (0.1, 0.2)


# ---- constructors, as nn ----

CONSTRUCTORS = [
    ({"input_size": 0}, ValueError, "input_size must be greater than zero"),
    ({"input_size": -1}, ValueError, "input_size must be greater than zero, got -1"),
    ({"hidden_size": 0}, ValueError, "hidden_size must be greater than zero"),
    ({"hidden_size": -2}, ValueError, "hidden_size must be greater than zero, got -2"),
    ({"num_layers": 0}, ValueError, "num_layers must be greater than zero"),
    ({"num_layers": -1}, ValueError, "num_layers must be greater than zero, got -1"),
    ({"input_size": 4.0}, TypeError, "input_size should be of type int, got: float"),
    ({"hidden_size": "5"}, TypeError, "hidden_size should be of type int, got: str"),
    ({"bias": 1}, TypeError, "bias should be of type bool, got: int"),
    ({"batch_first": 0}, TypeError, "batch_first should be of type bool, got: int"),
    ({"dropout": True}, ValueError, "dropout should be a number in range [0, 1] representing the probability"),
    ({"dropout": 1.5}, ValueError, "dropout should be a number in range [0, 1] representing the probability"),
    ({"dropout": -0.1}, ValueError, "dropout should be a number in range [0, 1] representing the probability"),
    ({"dropout": "0.5"}, ValueError, "dropout should be a number in range [0, 1] representing the probability"),
    ({"unknown": 1}, TypeError, "unknown"),
]


@each_nn_kind
@pytest.mark.parametrize("kwargs, type_, message", CONSTRUCTORS, ids=lambda v: str(v) if isinstance(v, dict) else "")
@unchecked()
def test_a_malformed_constructor_raises_as_nn_does(kind, kwargs, type_, message):
    sizes = {"input_size": 4, "hidden_size": 5} | kwargs
    both_raise(type_, message, lambda: THEIRS[kind](**sizes), lambda: OURS[kind](**sizes))


@unchecked()
def test_proj_size_raises_as_in_nn():
    for size, message in (
        (5, "proj_size has to be smaller than hidden_size"),
        (-1, "proj_size should be a positive integer or zero"),
    ):
        both_raise(ValueError, message, lambda: nn.LSTM(4, 5, proj_size=size), lambda: MILSTM(4, 5, proj_size=size))  # noqa: B023
    with pytest.raises(TypeError, match="proj_size should be of type int, got: float"):
        MILSTM(4, 5, proj_size=2.0)
    for theirs, ours in ((nn.RNN, MIRNN), (nn.GRU, MIGRU)):
        message = "proj_size argument is only supported for LSTM, not RNN or GRU"
        both_raise(ValueError, message, lambda: theirs(4, 5, proj_size=2), lambda: ours(4, 5, proj_size=2))  # noqa: B023


def test_unknown_nonlinearity_lists_the_choices():
    both_raise(
        ValueError,
        "Unknown nonlinearity 'gelu'. Select from 'tanh'",
        lambda: nn.RNN(4, 5, nonlinearity="gelu"),
        lambda: MIRNN(4, 5, nonlinearity="gelu"),
    )
    with pytest.raises(ValueError, match="Unknown nonlinearity 'gelu'. Select from 'tanh', 'relu' or 'identity'"):
        MIRNNCell(4, 5, nonlinearity="gelu")


@each_nn_kind
def test_dropout_with_one_layer_warns_as_nn_does(kind):
    message = (
        "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater than 1"
    )
    for cls in (THEIRS[kind], OURS[kind]):
        with pytest.warns(UserWarning, match=message):
            cls(4, 5, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OURS[kind](4, 5, num_layers=2, dropout=0.5)


# ---- constructors, ours alone ----


@each_kind
@pytest.mark.parametrize(
    "kwargs, type_, message",
    [
        ({"integration": "sum"}, ValueError, "Unknown integration 'sum'. Select from 'additive', 'simple', 'gated' or 'general'."),
        ({"start": "ptb"}, ValueError, "Unknown start 'ptb'. Select from 'text8-rnn'"),
        ({"start": 1.0}, TypeError, "start should be a Start, the name of a preset or None, got: float"),
        ({"norm": "group"}, ValueError, "Unknown norm 'group'. Select from 'batch' or 'layer'."),
        ({"backend": "cuda"}, ValueError, "Unknown backend 'cuda'. Select from 'auto'"),
        ({"zoneout": 1.5}, ValueError, "zoneout should be a number in range [0, 1]"),
        ({"zoneout": -0.5}, ValueError, "zoneout should be a number in range [0, 1]"),
        ({"zoneout": (0.1, 0.1, 0.1)}, ValueError, "probabilities, got (0.1, 0.1, 0.1)"),
        ({"recurrent_dropout": 2.0}, ValueError, "recurrent_dropout should be a number in range [0, 1]"),
        ({"learn_state": 1}, TypeError, "learn_state should be of type bool, got: int"),
        ({"start": Start(b={"q": 1.0})}, ValueError, "Start names gate 'q'; this cell has"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
@unchecked()
def test_our_own_arguments_are_checked(kind, kwargs, type_, message):
    with pytest.raises(type_, match=re.escape(message)):
        OURS[kind](4, 5, **kwargs)


@unchecked()
def test_reset_after_is_a_bool():
    with pytest.raises(TypeError, match="reset_after should be of type bool, got: int"):
        MIGRU(4, 5, reset_after=1)


@unchecked()
def test_start_and_norm_check_their_own_values():
    for call, message in (
        (lambda: Start(r_w=-1.0), "r_w must be a finite number of at least 0, got -1.0"),
        (lambda: Start(r_u=float("nan")), "r_u must be a finite number of at least 0, got nan"),
        (lambda: Norm("group"), "Unknown norm 'group'. Select from 'batch' or 'layer'"),
        (lambda: Norm(place="gates"), "Unknown place 'gates' for a norm. Select from 'flows' or 'sum'"),
        (lambda: Norm(max_steps=0), "max_steps must be a whole number greater than zero, got 0"),
        (lambda: Norm(momentum=0.0), "momentum must lie in (0, 1] or be None, got 0.0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


# ---- calls, as nn ----

CALLS = {
    "features": (lambda m: m(torch.randn(3, 2, 6)), RuntimeError, "input.size(-1) must be equal to input_size. Expected 4, got 6"),
    "features unbatched": (
        lambda m: m(torch.randn(3, 6)),
        RuntimeError,
        "input.size(-1) must be equal to input_size. Expected 4, got 6",
    ),
    "rank 4": (lambda m: m(torch.randn(1, 3, 2, 4)), ValueError, "Expected input to be 2D or 3D, got 4D instead"),
    "rank 1": (lambda m: m(torch.randn(4)), ValueError, "Expected input to be 2D or 3D, got 1D instead"),
    "dtype": (
        lambda m: m(torch.randn(3, 2, 4, dtype=torch.float64)),
        ValueError,
        "RNN input dtype (torch.float64) does not match weight dtype (torch.float32). Convert input: input.to(torch.float32)",
    ),
    "no steps": (lambda m: m(torch.randn(0, 2, 4)), RuntimeError, "Expected sequence length to be larger than 0"),
    "hx batch": (lambda m: m(torch.randn(3, 2, 4), hidden(m, 3)), RuntimeError, "size (1, 2, 5), got [1, 3, 5]"),
    "hx 2-D": (lambda m: m(torch.randn(3, 2, 4), hidden(m)), RuntimeError, "For batched 3-D input, hx"),
    "hx 3-D": (lambda m: m(torch.randn(3, 4), hidden(m, 1)), RuntimeError, "For unbatched 2-D input, hx"),
    "hx width": (
        lambda m: m(torch.randn(3, 2, 4), hidden(THEIRS["lstm" if "LSTM" in type(m).__name__ else "rnn"](4, 6), 2)),
        RuntimeError,
        "size (1, 2, 5), got [1, 2, 6]",
    ),
    "hx layers": (
        lambda m: m(torch.randn(3, 2, 4), hidden(THEIRS["lstm" if "LSTM" in type(m).__name__ else "rnn"](4, 5, 2), 2)),
        RuntimeError,
        "size (1, 2, 5), got [2, 2, 5]",
    ),
}


@each_nn_kind
@pytest.mark.parametrize("case", CALLS)
@unchecked()
def test_a_malformed_call_raises_as_nn_does(kind, case):
    call, type_, message = CALLS[case]
    both_raise(type_, message, lambda: call(THEIRS[kind](4, 5)), lambda: call(OURS[kind](4, 5)))


def test_shape_errors_name_the_part_of_an_lstm_state():
    module, x = make("lstm", 4, 5), torch.randn(3, 2, 4)
    good, bad = torch.zeros(1, 2, 5), torch.zeros(1, 2, 6)
    for hx, message in (
        ((bad, good), "Expected hidden[0] size (1, 2, 5), got [1, 2, 6]"),
        ((good, bad), "Expected hidden[1] size (1, 2, 5), got [1, 2, 6]"),
    ):
        both_raise(RuntimeError, message, lambda: nn.LSTM(4, 5)(x, hx), lambda: module(x, hx))  # noqa: B023
    both_raise(
        RuntimeError,
        "For batched 3-D input, hx and cx should also be 3-D but got (2-D, 2-D) tensors",
        lambda: nn.LSTM(4, 5)(x, (good[0], good[0])),
        lambda: module(x, (good[0], good[0])),
    )


@each_kind
@unchecked()
def test_hx_wrong_container_clear_error(kind):
    """B.3: nn.LSTM ends in an IndexError, nn.RNN and nn.GRU in an AttributeError; ours name what is expected."""
    module, x = make(kind, 4, 5), torch.randn(3, 2, 4)
    h = torch.zeros(1, 2, 5)
    expected = re.escape("expects hx to be a pair of tensors (h_0, c_0)" if kind == "lstm" else "expects hx to be one tensor h_0")
    wrong = [h, (h,), (h, h, h), "zeros", (h, None)] if kind == "lstm" else [(h, h), [h], 0.0]
    for hx in wrong:
        with pytest.raises(TypeError, match=expected):
            module(x, hx)


@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
def test_hx_wrong_dtype_clear_error(kind, builder):
    """B.3: on the CPU nn speaks of mat1 and mat2, or of mkldnn."""
    module = builder(kind, 4, 5)
    x = torch.randn(*((3, 2, 4) if builder is make else (2, 4)))
    with pytest.raises(
        RuntimeError, match=r"not the same dtype, found input tensor with torch\.float32 and hidden .* torch\.float64"
    ):
        module(x, hidden(module, 2, dtype=torch.float64))


@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
def test_mixed_devices_are_named(kind, builder):
    module = builder(kind, 4, 5)
    x = torch.randn(*((3, 2, 4) if builder is make else (2, 4)))
    with pytest.raises(RuntimeError, match="Input and parameter tensors are not at the same device, found input tensor at meta"):
        module(x.to("meta"))
    hx = hidden(module, 2)
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device, .* hidden tensor at meta"):
        module(x, tuple(part.to("meta") for part in hx) if kind == "lstm" else hx.to("meta"))


def test_one_part_of_an_lstm_state_elsewhere_is_named():
    module, x = make("lstm", 4, 5), torch.randn(3, 2, 4)
    h, c = hidden(module, 2)
    with pytest.raises(RuntimeError, match="hidden tensor at meta"):
        module(x, (h, c.to("meta")))
    with pytest.raises(RuntimeError, match=r"hidden tensor with torch\.float64"):
        module(x, (h, c.double()))


# ---- packed sequences ----


@each_kind
def test_packed_wrong_input_size_message(kind):
    """B.3: nn.LSTM says only that mat1 and mat2 cannot be multiplied."""
    packed = pack_sequence([torch.randn(3, 6), torch.randn(1, 6)])
    message = "input.size(-1) must be equal to input_size. Expected 4, got 6"
    assert isinstance(raised(lambda: THEIRS[kind](4, 5)(packed)), RuntimeError)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        make(kind, 4, 5)(packed)


@each_kind
def test_packed_data_of_wrong_rank_or_dtype(kind):
    module = make(kind, 4, 5)
    with pytest.raises(ValueError, match="Expected packed data of shape"):
        module(pack_sequence([torch.randn(3, 2, 4)]))
    with pytest.raises(ValueError, match="Expected packed data of shape"):
        module(pack_sequence([torch.randn(3)]))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        module(pack_sequence([torch.randn(3, 4, dtype=torch.float64)]))


@each_kind
def test_packed_hx_of_the_wrong_batch(kind):
    packed = pack_sequence([torch.randn(3, 4), torch.randn(1, 4)])
    both_raise(
        RuntimeError,
        "size (1, 2, 5), got [1, 3, 5]",
        lambda: THEIRS[kind](4, 5)(packed, hidden(THEIRS[kind](4, 5), 3)),
        lambda: make(kind, 4, 5)(packed, hidden(make(kind, 4, 5), 3)),
    )


def test_bad_lengths_never_reach_a_layer():
    """Zero, negative and NaN lengths: torch refuses to pack them."""
    x = torch.randn(3, 2, 4)
    for lengths in (torch.tensor([3, 0]), torch.tensor([3, -1]), torch.tensor([3.0, float("nan")])):
        with pytest.raises(RuntimeError, match=r"[Ll]ength|lengths"):
            pack_padded_sequence(x, lengths, enforce_sorted=False)


@each_kind
def test_batch_sizes_that_do_not_add_up(kind):
    """A PackedSequence made by hand, of which torch checks nothing."""
    packed = PackedSequence(torch.randn(5, 4), torch.tensor([2, 2]))
    with pytest.raises(ValueError, match=r"batch_sizes of a packed input must add up to its 5 steps, got \[2, 2\]"):
        make(kind, 4, 5)(packed)


@each_kind
def test_batch_sizes_that_increase(kind):
    packed = PackedSequence(torch.randn(5, 4), torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"batch_sizes of a packed input must not increase.*got \[2, 3\]"):
        make(kind, 4, 5)(packed)


@each_kind
def test_a_cell_names_a_wrong_size_before_a_wrong_device(kind):
    """As torch.nn's cells do: the size is wrong on every device."""
    for cell in (make_cell(kind, 4, 5), THEIR_CELLS[kind](4, 5)):
        with pytest.raises(RuntimeError, match="input has inconsistent input_size: got 6 expected 4"):
            cell(torch.empty(3, 6, device="meta"))


# ---- tokens and resets ----


@each_kind
@pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
@pytest.mark.parametrize("bad", [6, -1])
def test_tokens_out_of_range_name_the_range(kind, builder, bad):
    module = builder(kind, 6, 5)
    tokens = torch.tensor([0, 3, bad]) if builder is make_cell else torch.tensor([[0, 3], [bad, 2]])
    with pytest.raises(IndexError, match=f"with input_size 6 takes tokens 0 to 5, got values from {min(0, bad)} to {max(3, bad)}"):
        module(tokens)


@each_kind
def test_packed_tokens_out_of_range_name_the_range(kind):
    with pytest.raises(IndexError, match="with input_size 6 takes tokens 0 to 5"):
        make(kind, 6, 5)(pack_sequence([torch.tensor([0, 6, 1]), torch.tensor([2])]))


@each_kind
def test_float_tokens_are_told_their_dtype(kind):
    with pytest.raises(RuntimeError, match="tokens must have dtype torch.int64, .*torch.uint8, this is torch.float32"):
        make(kind, 6, 5)(torch.tensor([[0.0, 3.0], [1.0, 2.0]]))


@each_kind
def test_tokens_of_the_wrong_rank_are_told_so(kind):
    with pytest.raises(ValueError, match=r"Expected tokens of torch\.int64 to be 1D or 2D, got 3D instead"):
        make(kind, 6, 5)(torch.zeros(3, 2, 6, dtype=torch.long))


@each_kind
def test_bool_input_is_no_token(kind):
    with pytest.raises((ValueError, RuntimeError, TypeError), match=r"torch\.bool"):
        make(kind, 6, 5)(torch.zeros(3, 2, 6, dtype=torch.bool))


@each_kind
@unchecked()
def test_malformed_resets_are_named(kind):
    module, x = make(kind, 4, 5), torch.randn(3, 2, 4)
    with pytest.raises(TypeError, match=r"resets should be a bool tensor, got: torch\.float32"):
        module(x, resets=torch.zeros(3, 2))
    for shape in ((2, 3), (3,), (3, 2, 1)):
        with pytest.raises(RuntimeError, match=re.escape("Expected resets of shape (3, 2), one for each step")):
            module(x, resets=torch.zeros(shape, dtype=torch.bool))
    packed = pack_sequence([torch.randn(3, 4), torch.randn(1, 4)])
    marks = pack_sequence([torch.zeros(3, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)])
    with pytest.raises(TypeError, match="got packed resets for an input that is not packed"):
        module(x, resets=marks)
    with pytest.raises(ValueError, match="resets of a packed input must be packed with the same lengths"):
        module(packed, resets=torch.zeros(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="resets of a packed input must be packed with the same lengths"):
        module(packed, resets=pack_sequence([torch.zeros(3, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)]))


# ---- cells ----

CELL_CALLS = {
    "features": (lambda m, hx: m(torch.randn(3, 6)), RuntimeError, "input has inconsistent input_size: got 6 expected 4"),
    "rank 3": (lambda m, hx: m(torch.randn(1, 3, 4)), ValueError, "Expected input to be 1D or 2D, got 3D instead"),
    "hx rank": (lambda m, hx: m(torch.randn(3, 4), hx(3, 1, 5)), ValueError, "to be 1D or 2D, got 3D instead"),
    "hx batch": (
        lambda m, hx: m(torch.randn(3, 4), hx(2, 5)),
        RuntimeError,
        "Input batch size 3 doesn't match hidden0 batch size 2",
    ),
    "hx width": (
        lambda m, hx: m(torch.randn(3, 4), hx(3, 6)),
        RuntimeError,
        "hidden0 has inconsistent hidden_size: got 6, expected 5",
    ),
}


@each_nn_kind
@pytest.mark.parametrize("case", CELL_CALLS)
def test_a_malformed_cell_call_raises_as_nn_does(kind, case):
    call, type_, message = CELL_CALLS[case]

    def hx(*shape):
        return (torch.zeros(shape), torch.zeros(shape)) if kind == "lstm" else torch.zeros(shape)

    both_raise(type_, message, lambda: call(THEIR_CELLS[kind](4, 5), hx), lambda: call(OUR_CELLS[kind](4, 5), hx))


@each_nn_kind
@unchecked()
def test_a_cell_names_negative_sizes(kind):
    for sizes in ((-4, 5), (4, -5)):
        raised(lambda: THEIR_CELLS[kind](*sizes))  # noqa: B023
        with pytest.raises(ValueError, match=r"_size must be greater than zero, got -"):
            OUR_CELLS[kind](*sizes)


@each_kind
@unchecked()
def test_a_cell_names_a_wrong_container(kind):
    cell, h = make_cell(kind, 4, 5), torch.zeros(3, 5)
    with pytest.raises(TypeError, match="expects hx to be"):
        cell(torch.randn(3, 4), h if kind == "lstm" else (h, h))


@each_kind
def test_a_cell_names_a_state_batched_unlike_its_input(kind):
    cell = make_cell(kind, 4, 5)
    with pytest.raises(RuntimeError, match="For unbatched input, hx should be 1D"):
        cell(torch.randn(4), hidden(cell, 1))
    with pytest.raises(RuntimeError, match="For batched input, hx should be 2D"):
        cell(torch.randn(1, 4), hidden(cell))


# ---- backends ----


def test_an_explicit_backend_that_cannot_run_says_why():
    for backend, reason in (("operator", "only torch.compile and torch.export"), ("exported", "only torch.export and ONNX export")):
        with pytest.raises(ValueError, match=f"backend '{backend}' cannot run this: {reason}"):
            MIRNN(4, 5, backend=backend)(torch.randn(3, 2, 4))


def test_packed_resets_in_another_order_are_refused():
    layer, steps = make("rnn", 3, 4), [torch.zeros(k, dtype=torch.bool) for k in (3, 2)]
    rows = [torch.randn(k, 3) for k in (3, 2)]
    x = pack_sequence(rows, enforce_sorted=False)
    layer(x, resets=pack_sequence(steps, enforce_sorted=False))
    layer(pack_sequence(rows), resets=pack_sequence(steps, enforce_sorted=False))  # the same order, told or not
    with pytest.raises(ValueError, match="packed with the same lengths in the same order"):
        layer(x, resets=pack_sequence(steps[::-1], enforce_sorted=False))
