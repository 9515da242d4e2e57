"""What several test files need: our layers beside torch.nn's, hidden states in nn's form, tensors out of nested results."""

from contextlib import contextmanager

import jaxtyping
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from multint import MIGRU, MILSTM, MIRNN, MIGRUCell, MILSTMCell, MIRNNCell

KINDS = ("rnn", "lstm", "gru", "gru_after")
OURS = {"rnn": MIRNN, "lstm": MILSTM, "gru": MIGRU, "gru_after": MIGRU}
OUR_CELLS = {"rnn": MIRNNCell, "lstm": MILSTMCell, "gru": MIGRUCell, "gru_after": MIGRUCell}
THEIRS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU, "gru_after": nn.GRU}
THEIR_CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell, "gru_after": nn.GRUCell}


def _extra(kind):
    return {"reset_after": True} if kind == "gru_after" else {}


def scatter(module):
    """Draw every parameter anew, so that none sits at a value (0 or 1) which hides a product."""
    with torch.no_grad():
        for p in module.parameters():
            p.uniform_(-0.8, 0.8)
    return module


def make(kind, *args, **kwargs):
    """A layer of ours with random parameters throughout."""
    return scatter(OURS[kind](*args, **_extra(kind), **kwargs))


def make_cell(kind, *args, **kwargs):
    return scatter(OUR_CELLS[kind](*args, **_extra(kind), **kwargs))


def hidden(module, n=None, *, seed=1, dtype=None, requires_grad=False):
    """A random hx for a layer or cell of nn or ours: n rows, or unbatched."""
    generator = torch.Generator().manual_seed(seed)
    h, proj = module.hidden_size, getattr(module, "proj_size", 0)
    rows = () if n is None else (n,)
    lead = (module.num_layers * (2 if module.bidirectional else 1),) if hasattr(module, "num_layers") else ()
    sizes = (proj or h, h) if "LSTM" in type(module).__name__ else (h,)
    drawn = [torch.randn(*lead, *rows, size, generator=generator) for size in sizes]
    parts = [x.to(dtype or next(module.parameters()).dtype).requires_grad_(requires_grad) for x in drawn]
    return tuple(parts) if len(parts) == 2 else parts[0]


def tensors(result):
    """The floating point tensors of a nested result, packed sequences by their data."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, PackedSequence):
        return [result.data]
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in tensors(part)]
    return []


def mapped(f, result):
    """``result`` with f applied to its floating point tensors."""
    if isinstance(result, torch.Tensor):
        return f(result) if result.is_floating_point() else result
    if isinstance(result, PackedSequence):
        return PackedSequence(f(result.data), *result[1:])
    if isinstance(result, (tuple, list)):
        return type(result)(mapped(f, part) for part in result)
    return result


def scalar(result):
    """A loss in which every element has its own weight: a plain sum is blind to transposed or shifted gradients."""
    return sum(
        (t * torch.arange(1, t.numel() + 1, dtype=t.dtype, device=t.device).reshape(t.shape).sin()).sum() for t in tensors(result)
    )


def gradients(module, result, *inputs):
    """Gradients of ``scalar(result)`` for the inputs and all parameters, by name."""
    named = {**{f"input {k}": x for k, x in enumerate(inputs)}, **dict(module.named_parameters())}
    found = torch.autograd.grad(scalar(result), list(named.values()))
    return dict(zip(named, found, strict=True))


def assert_same(ours, theirs, **tolerance):
    """Nested results are equal, tensor by tensor; exactly so unless rtol and atol are given."""
    ours, theirs = tensors(ours), tensors(theirs)
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 0, "atol": 0}))


@contextmanager
def unchecked():
    """A test's calls meet our own errors, or run at full speed: the shape checker, where it is on, stands aside."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
