"""On CUDA: parity with cuDNN's layers, and what they refuse there."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

from multint import MIGRU, MILSTM, MIRNN, MILSTMCell, convert

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PAIRS = [(nn.RNN, MIRNN), (nn.LSTM, MILSTM), (nn.GRU, MIGRU)]
each = pytest.mark.parametrize("theirs, ours", PAIRS)


def hidden(kind, *shape, **options):
    h = torch.randn(*shape, device="cuda", **options)
    return (h, torch.randn_like(h)) if kind in (nn.LSTM, MILSTM) else h


@each
@pytest.mark.parametrize("packed", [False, True])
def test_converted_layers_equal_cudnn_in_float64(theirs, ours, packed):
    layer = theirs(5, 7, num_layers=2, bidirectional=True, device="cuda", dtype=torch.float64)
    twin = convert(layer)
    assert type(twin) is ours
    x = torch.randn(6, 4, 5, device="cuda", dtype=torch.float64)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([3, 6, 1, 4]), enforce_sorted=False)
    a, b = twin(x)[0], layer(x)[0]
    assert_close(a.data if packed else a, b.data if packed else b, rtol=1e-12, atol=1e-12)


@each
def test_double_backward_on_cuda(theirs, ours):
    layer = ours(3, 4, device="cuda", dtype=torch.float64)
    x = torch.randn(3, 2, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], [x])


@each
def test_backward_in_evaluation_mode_on_cuda(theirs, ours):
    layer = ours(3, 4, device="cuda").eval()
    layer(torch.randn(3, 2, 3, device="cuda"))[0].sum().backward()
    assert layer.weight_hh_l0.grad.isfinite().all()


@each
def test_hx_need_not_be_contiguous_on_cuda(theirs, ours):
    layer, x = ours(3, 4, device="cuda"), torch.randn(3, 2, 3, device="cuda")
    h = torch.randn(1, 4, 2, device="cuda").transpose(1, 2)
    wide = torch.randn(1, 1, 4, device="cuda").expand(1, 2, 4)
    for part in (h, wide):
        hx = (part, part) if ours is MILSTM else part
        same = (part.contiguous(), part.contiguous()) if ours is MILSTM else part.contiguous()
        assert_close(layer(x, hx)[0], layer(x, same)[0])


@each
def test_batched_gradients_and_jacobians_on_cuda(theirs, ours):
    layer, x = ours(3, 4, device="cuda", dtype=torch.float64), torch.randn(3, 2, 3, device="cuda", dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda x: layer(x)[0])(x)
    x.requires_grad_()
    y = layer(x)[0]
    basis = torch.eye(y.numel(), device="cuda", dtype=y.dtype).view(-1, *y.shape)
    (batched,) = torch.autograd.grad(y, x, basis, is_grads_batched=True)
    assert_close(batched.view_as(jacobian), jacobian)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_on_cuda_gives_the_dtype_that_was_asked_for(theirs, ours, dtype):
    layer, x = ours(8, 16, device="cuda"), torch.randn(5, 4, 8, device="cuda")
    expected = layer(x)[0]
    with torch.autocast("cuda", dtype):
        y = layer(x)[0]
    assert y.dtype == dtype
    assert_close(y.float(), expected, rtol=0, atol=3e-2)
    y.float().sum().backward()
    assert layer.weight_ih_l0.grad.dtype == torch.float32


def test_cells_run_on_cuda():
    cell = nn.LSTMCell(3, 4, device="cuda", dtype=torch.float64)
    twin = convert(cell)
    assert type(twin) is MILSTMCell
    x = torch.randn(2, 3, device="cuda", dtype=torch.float64)
    assert_close(twin(x), cell(x), rtol=1e-12, atol=1e-12)


@each
def test_mixed_devices_are_named(theirs, ours):
    layer = ours(3, 4, device="cuda")
    with pytest.raises(RuntimeError, match="found input tensor at cpu and parameter tensor at cuda:0"):
        layer(torch.randn(3, 2, 3))
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device"):
        layer(torch.randn(3, 2, 3, device="cuda"), (torch.zeros(1, 2, 4),) * 2 if ours is MILSTM else torch.zeros(1, 2, 4))


@each
def test_a_cuda_graph_captures_the_layer(theirs, ours):
    layer, x = ours(8, 16, device="cuda"), torch.randn(5, 4, 8, device="cuda")
    with torch.no_grad():
        expected = layer(x)[0]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            layer(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)[0]
        graph.replay()
    assert torch.equal(y, expected)


@pytest.mark.traced
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@each
def test_compile_without_graph_breaks_on_cuda(theirs, ours):
    layer = ours(8, 16, device="cuda")
    fast = torch.compile(layer, fullgraph=True)
    for t in (4, 6, 9):
        x = torch.randn(t, 3, 8, device="cuda")
        a, b = fast(x)[0], layer(x)[0]
        assert_close(a, b, rtol=1e-4, atol=1e-5)
        weights = list(layer.parameters())
        for g, e in zip(torch.autograd.grad(a.sum(), weights), torch.autograd.grad(b.sum(), weights), strict=True):
            assert_close(g, e, rtol=1e-3, atol=1e-4)
