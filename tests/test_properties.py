"""What holds for every shape, length and dtype: equalities between two ways to ask for the same thing."""

import warnings
from itertools import pairwise

import torch
from helpers import KINDS, assert_same, make, scalar, tensors, unchecked
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multint.integration import FORMS

SIZES = st.integers(1, 5)


@st.composite
def layers(draw, kinds=KINDS, dtypes=(torch.float64,), **fixed):
    """A random layer."""
    kind = draw(st.sampled_from(kinds))
    kwargs = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "integration": draw(st.sampled_from(sorted(FORMS))),
        "learn_state": draw(st.booleans()),
        "dtype": draw(st.sampled_from(dtypes)),
    }
    if kind == "rnn":
        kwargs["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    hidden_size = draw(SIZES)
    if kind == "lstm" and hidden_size > 1 and draw(st.booleans()):
        kwargs["proj_size"] = draw(st.integers(1, hidden_size - 1))
    torch.manual_seed(draw(st.integers(0, 1000)))
    with unchecked():  # the shape checker draws from `random`, which hypothesis forbids here
        return make(kind, draw(SIZES), hidden_size, **(kwargs | fixed))


STEPS, ROWS = st.integers(1, 6), st.integers(0, 4)


def drawn(layer, t, n):
    """A random input of t steps and n rows, time first."""
    return torch.randn(t, n, layer.input_size, dtype=layer.weight_ih_l0.dtype)


def ordered(layer, x):
    """Time first to the layer's own order, or back."""
    return x.transpose(0, 1) if layer.batch_first else x


def rows_of(state, rows):
    """Some rows of a hidden state, in nn's form."""
    return tuple(part[:, rows] for part in state) if isinstance(state, tuple) else state[:, rows]


@given(layers(dtypes=(torch.float32, torch.float64, torch.bfloat16)), STEPS, ROWS)
def test_shapes_and_dtypes_are_those_of_nn(layer, t, n):
    output, state = layer(ordered(layer, drawn(layer, t, n)))
    width = layer.proj_size or layer.hidden_size
    directions = 2 if layer.bidirectional else 1
    assert ordered(layer, output).shape == (t, n, directions * width)
    parts = tensors(state)
    assert parts[0].shape == (layer.num_layers * directions, n, width)
    assert parts[-1].shape == (layer.num_layers * directions, n, layer.hidden_size if len(parts) == 2 else width)
    assert {part.dtype for part in [output, *parts]} == {layer.weight_ih_l0.dtype}
    assert all(torch.isfinite(part).all() for part in [output, *parts])


@given(layers(), STEPS)
def test_zero_rows_give_zero_gradients(layer, t):
    scalar(layer(ordered(layer, drawn(layer, t, 0)))).backward()
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


@given(layers(), st.lists(STEPS, min_size=1, max_size=4))
def test_a_packed_row_equals_the_row_alone(layer, lengths):
    x = drawn(layer, max(lengths), len(lengths))
    packed = pack_padded_sequence(ordered(layer, x), torch.tensor(lengths), layer.batch_first, enforce_sorted=False)
    output, state = layer(packed)
    padded, _ = pad_packed_sequence(output)
    for k, length in enumerate(lengths):
        alone, last = layer(x[:length, k])
        found = [padded[:length, k], *(part[:, k] for part in tensors(state))]
        assert_same(found, [alone, *tensors(last)], rtol=1e-10, atol=1e-12)


@given(layers(), STEPS, st.integers(1, 4))
def test_a_row_does_not_depend_on_the_others(layer, t, n):
    x = drawn(layer, t, n)
    together, alone = layer(ordered(layer, x)), layer(ordered(layer, x[:, :1]))
    found = [ordered(layer, together[0])[:, :1], *tensors(rows_of(together[1], slice(0, 1)))]
    assert_same(found, [ordered(layer, alone[0]), *tensors(alone[1])], rtol=1e-10, atol=1e-12)


@given(layers(batch_first=False), st.data())
def test_resets_equal_splitting_the_sequence(layer, data):
    t = data.draw(STEPS)
    marks = torch.tensor(data.draw(st.lists(st.booleans(), min_size=t, max_size=t)))
    x = drawn(layer, t, 1).squeeze(1)
    output, _ = layer(x, resets=marks)
    cuts = sorted({0, t} | set(marks.nonzero().flatten().tolist()))
    pieces = [layer(x[a:b])[0] for a, b in pairwise(cuts)]
    assert_same(output, torch.cat(pieces), rtol=1e-10, atol=1e-12)


@given(layers(), STEPS, ROWS)
def test_tokens_equal_one_hot(layer, t, n):
    tokens = torch.randint(layer.input_size, (t, n))
    one_hot = F.one_hot(tokens, layer.input_size).to(layer.weight_ih_l0.dtype)
    assert_same(layer(ordered(layer, tokens)), layer(ordered(layer, one_hot)), rtol=1e-12, atol=1e-12)


@given(layers(batch_first=False), STEPS, ROWS)
def test_batch_first_equals_transposed(layer, t, n):
    x = drawn(layer, t, n)
    output, state = layer(x)
    layer.batch_first = True
    again, same = layer(x.transpose(0, 1))
    assert_same([output, state], [again.transpose(0, 1), same])


@given(layers(), STEPS)
def test_unbatched_equals_a_batch_of_one(layer, t):
    x = drawn(layer, t, 1)
    output, state = layer(ordered(layer, x))
    assert_same(layer(x.squeeze(1)), [ordered(layer, output).squeeze(1), *(part.squeeze(1) for part in tensors(state))])


@given(layers(bidirectional=False), STEPS, STEPS, st.integers(1, 4))
def test_a_sequence_in_two_calls_that_hand_on_hx_equals_one_call(layer, before, after, n):
    x = drawn(layer, before + after, n)
    output, state = layer(ordered(layer, x))
    first, hx = layer(ordered(layer, x[:before]))
    second, last = layer(ordered(layer, x[before:]), hx)
    assert_same(
        [ordered(layer, output), state], [torch.cat([ordered(layer, first), ordered(layer, second)]), last], rtol=1e-10, atol=1e-12
    )


@given(layers(num_layers=1, bidirectional=True, learn_state=False, batch_first=False), STEPS, st.integers(1, 4))
def test_the_reverse_half_is_a_forward_layer_on_flipped_input(layer, t, n):
    kind = {"MIRNN": "rnn", "MILSTM": "lstm"}.get(
        type(layer).__name__, "gru_after" if getattr(layer, "reset_after", False) else "gru"
    )
    more = {"proj_size": layer.proj_size} if kind == "lstm" else {"nonlinearity": layer.nonlinearity} if kind == "rnn" else {}
    forward = make(
        kind, layer.input_size, layer.hidden_size, bias=layer.bias, integration=layer.integration, dtype=torch.float64, **more
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # without metadata and bias a GRU's weights might be nn's; they are ours
        forward.load_state_dict({k.removesuffix("_reverse"): v for k, v in layer.state_dict().items() if k.endswith("_reverse")})
    x = drawn(layer, t, n)
    output, state = layer(x)
    flipped, last = forward(x.flip(0))
    half = output[..., output.shape[-1] // 2 :]
    assert_same([half, *(part[1:] for part in tensors(state))], [flipped.flip(0), *tensors(last)], rtol=1e-12, atol=1e-12)


@given(layers(), STEPS, st.integers(1, 3))
def test_gradients_of_bidirectional_resets_and_lengths_are_finite(layer, t, n):
    x = drawn(layer, t, n).requires_grad_()
    resets = torch.rand(t, n) < 0.5
    scalar(layer(ordered(layer, x), resets=ordered(layer, resets))).backward()
    assert all(torch.isfinite(p.grad).all() for p in [x, *layer.parameters()])
