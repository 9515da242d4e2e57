"""torch.func, higher derivatives, autocast, meta and fake tensors, DDP: what nn's layers pass, and what they fail today."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import KINDS, OURS, assert_same, hidden, make, make_cell, scalar, tensors
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.nn.parallel import DistributedDataParallel

from multint import MILSTM

each_kind = pytest.mark.parametrize("kind", KINDS)
each_builder = pytest.mark.parametrize("builder", [make, make_cell], ids=["layer", "cell"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def example(builder, kind, t=3, n=2, dtype=torch.float64, **kwargs):
    """A layer or cell and an input for it."""
    module = builder(kind, 2, 3, dtype=dtype, **kwargs)
    return module, torch.randn(*((t, n, 2) if builder is make else (n, 2)), dtype=dtype)


# ---- vmap ----


@each_kind
@each_builder
def test_vmap_over_inputs(kind, builder):
    module, _ = example(builder, kind)
    x = torch.randn(4, *((3, 2, 2) if builder is make else (2, 2)), dtype=torch.float64)
    expected = [module(row) for row in x]
    for k, row in enumerate(expected):
        assert_same([t[k] for t in tensors(vmap(module)(x))], row, rtol=1e-12, atol=1e-12)


@each_kind
def test_vmap_over_unbatched_inputs_and_hidden_states(kind):
    module = make(kind, 2, 3, num_layers=2, bidirectional=True, dtype=torch.float64)
    x, hx = torch.randn(3, 4, 2, dtype=torch.float64), hidden(module, 4)
    output, state = vmap(module, in_dims=1, out_dims=1)(x, hx)
    assert_same([output, state], module(x, hx), rtol=1e-12, atol=1e-12)


@each_kind
def test_vmap_over_tokens(kind):
    module = make(kind, 5, 3, dtype=torch.float64)
    tokens = torch.randint(5, (4, 3, 2))
    assert_same(vmap(module)(tokens)[0], torch.stack([module(row)[0] for row in tokens]), rtol=1e-12, atol=1e-12)


@each_kind
@each_builder
def test_vmap_ensemble(kind, builder):
    modules = [builder(kind, 2, 3, dtype=torch.float64) for _ in range(3)]
    _, x = example(builder, kind)
    parameters, buffers = stack_module_state(modules)
    base = copy.deepcopy(modules[0]).to("meta")
    result = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    for k, module in enumerate(modules):
        assert_same([t[k] for t in tensors(result)], module(x), rtol=1e-12, atol=1e-12)


@each_kind
@each_builder
def test_vmap_per_sample_grads(kind, builder):
    module, x = example(builder, kind, n=3)
    axis = 1 if builder is make else 0
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters, row):
        return scalar(functional_call(module, parameters, (row,)))

    per_sample = vmap(grad(loss), in_dims=(None, axis))(parameters, x)
    for k, row in enumerate(x.unbind(axis)):
        one = torch.autograd.grad(scalar(module(row)), list(module.parameters()))
        assert_same([g[k] for g in per_sample.values()], one, rtol=1e-10, atol=1e-12)


# ---- derivatives ----


@each_kind
@each_builder
@each_dtype
def test_forward_mode_ad_equals_reverse_mode(kind, builder, dtype):
    """B.3's forward_mode_ad, float32 included, where nn.LSTM fails."""
    module, x = example(builder, kind, dtype=dtype)
    v = torch.randn_like(x)
    value, tangent = jvp(lambda x: scalar(module(x)), (x,), (v,))
    x.requires_grad_()
    expected = scalar(module(x))
    (g,) = torch.autograd.grad(expected, x)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    assert_same([value, tangent], [expected.detach(), (g * v).sum()], **tolerance)


@each_kind
@each_builder
def test_forward_mode_ad_through_dual_parameters(kind, builder):
    module, x = example(builder, kind, dtype=torch.float32)
    names = list(dict(module.named_parameters()))
    values = tuple(p.detach() for p in module.parameters())
    directions = tuple(torch.randn_like(v) for v in values)
    _, tangent = jvp(lambda *p: scalar(functional_call(module, dict(zip(names, p, strict=True)), (x,))), values, directions)
    found = torch.autograd.grad(scalar(module(x)), list(module.parameters()))
    expected = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
    torch.testing.assert_close(tangent, expected, rtol=1e-4, atol=1e-5)


@each_kind
@each_builder
def test_jacrev_equals_jacfwd(kind, builder):
    module, x = example(builder, kind)

    def first(x):
        return tensors(module(x))[0]

    assert_same(jacrev(first)(x), jacfwd(first)(x), rtol=1e-11, atol=1e-13)


@each_kind
@each_builder
@each_dtype
def test_hessian_is_symmetric_and_equals_double_backward(kind, builder, dtype):
    module, x = example(builder, kind, t=2, n=1, dtype=dtype)
    h = hessian(lambda x: scalar(module(x)))(x).reshape(x.numel(), x.numel())
    x.requires_grad_()
    (g,) = torch.autograd.grad(scalar(module(x)), x, create_graph=True)
    rows = torch.stack([torch.autograd.grad(e, x, retain_graph=True)[0].flatten() for e in g.flatten()])
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    assert h.abs().max() > 1e-3
    assert_same([h, h], [h.T, rows], **tolerance)


@each_kind
@each_builder
def test_batched_grad_equals_one_backward_for_each_row(kind, builder):
    module, x = example(builder, kind)
    output = tensors(module(x))[0]
    vectors = torch.randn(4, *output.shape, dtype=output.dtype)
    leaves = list(module.parameters())
    together = torch.autograd.grad(output, leaves, vectors, is_grads_batched=True, retain_graph=True)
    for k, v in enumerate(vectors):
        one = torch.autograd.grad(output, leaves, v, retain_graph=True)
        assert_same([g[k] for g in together], one, rtol=1e-11, atol=1e-13)


@each_kind
def test_gradient_penalty_trains_through_double_backward(kind):
    module, x = example(make, kind)
    x.requires_grad_()
    (g,) = torch.autograd.grad(scalar(module(x)), x, create_graph=True)
    g.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    assert module.weight_hh_l0.grad.abs().max() > 0


@each_kind
def test_func_grad_of_functional_call_equals_backward(kind):
    module, x = example(make, kind)
    parameters = dict(module.named_parameters())
    found = grad(lambda p: scalar(functional_call(module, p, (x,))))(parameters)
    assert_same(list(found.values()), torch.autograd.grad(scalar(module(x)), list(parameters.values())), rtol=1e-12, atol=1e-12)


@each_kind
def test_functional_call_replaces_every_parameter(kind):
    module, other = make(kind, 2, 3), make(kind, 2, 3)
    x = torch.randn(3, 2, 2)
    assert_same(functional_call(module, dict(other.named_parameters()), (x,)), other(x))


# ---- autocast ----


@each_kind
@each_builder
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_runs_in_the_narrow_dtype_and_keeps_full_precision_gradients(kind, builder, narrow):
    """B.3's autocast_fp16 on CPU, where nn.LSTM fails; nn.GRU ignores autocast there."""
    module, x = example(builder, kind, dtype=torch.float32)
    with torch.autocast("cpu", dtype=narrow):
        result = module(x)
    assert {t.dtype for t in tensors(result)} == {narrow}
    scalar(result).backward()
    assert {p.grad.dtype for p in module.parameters()} == {torch.float32}
    assert_same([t.float() for t in tensors(result)], module(x), rtol=0.05, atol=0.05)


@each_kind
def test_autocast_takes_narrow_and_full_hidden_states(kind):
    module = make(kind, 2, 3, num_layers=2)
    x = torch.randn(3, 2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            output, state = module(x, hidden(module, 2, dtype=dtype))
            assert {t.dtype for t in tensors([output, state])} == {torch.bfloat16}
            module(x.to(dtype), state)


def test_autocast_switched_off_inside_leaves_float32():
    module = make("lstm", 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert module(torch.randn(3, 2, 2))[0].dtype == torch.float32


# ---- meta and fake tensors ----


@each_kind
@each_builder
def test_meta_device_constructs_and_runs_without_memory(kind, builder):
    module = builder(kind, 2, 3, device="meta")
    x = torch.empty(*((5, 4, 2) if builder is make else (4, 2)), device="meta")
    real = builder(kind, 2, 3)(torch.zeros(x.shape))
    assert [(t.device.type, t.shape) for t in tensors(module(x))] == [("meta", t.shape) for t in tensors(real)]


@each_kind
def test_fake_tensors_flow_forward_and_back(kind):
    with FakeTensorMode():
        module = OURS[kind](2, 3, num_layers=2, bidirectional=True)
        output, _ = module(torch.randn(5, 4, 2))
        output.sum().backward()
        assert output.shape == (5, 4, 6)
        assert all(p.grad.shape == p.shape for p in module.parameters())


# ---- DDP ----


def _one_rank(rank, port_file, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    module = torch.load(f"{folder}/module.pt", weights_only=False)
    x = torch.load(f"{folder}/x.pt")
    ddp = DistributedDataParallel(module)
    output, _ = ddp(x[:, 2 * rank : 2 * rank + 2])
    output.square().mean().backward()
    if rank == 0:
        torch.save([p.grad for p in module.parameters()], f"{folder}/grads.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ddp_with_two_processes_gives_the_gradients_of_the_joined_batch(tmp_path):
    module = MILSTM(2, 3, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(3, 4, 2, dtype=torch.float64)
    torch.save(module, tmp_path / "module.pt")
    torch.save(x, tmp_path / "x.pt")
    mp.spawn(_one_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    module(x)[0].square().mean().backward()
    assert_same(torch.load(tmp_path / "grads.pt"), [p.grad for p in module.parameters()], rtol=1e-12, atol=1e-14)
