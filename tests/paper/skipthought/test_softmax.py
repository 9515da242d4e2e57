"""The loss over a large vocabulary beside torch's own, which holds all logits."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from multint.paper.skipthought.softmax import NOTHING, summed_cross_entropy


def problem(m=23, d=7, v=41, dtype=torch.float32):
    h, weight, bias = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((m, d), (v, d), (v,)))
    target = torch.randint(v, (m,))
    target[::5] = NOTHING
    return (h, weight, bias), target


def gradients(loss, parts):
    return torch.autograd.grad(3.0 * loss, parts)


@pytest.mark.parametrize("most", [1, 41 * 5, 10**6])
def test_loss_and_gradients_are_torchs(most):
    parts, target = problem()
    loss = summed_cross_entropy(*parts, target, most)
    expected = F.cross_entropy(F.linear(*parts).double(), target, reduction="sum")
    torch.testing.assert_close(loss, expected.float())
    for ours, theirs in zip(gradients(loss, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_double_precision_keeps_its_products():
    parts, target = problem(dtype=torch.float64)
    loss = summed_cross_entropy(*parts, target, 100)
    expected = F.cross_entropy(F.linear(*parts), target, reduction="sum")
    for ours, theirs in zip(gradients(loss, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_large_logits_are_no_problem():
    parts, target = problem()
    loss = summed_cross_entropy(1e3 * parts[0], parts[1], parts[2], target)
    assert loss.isfinite() and all(part.isfinite().all() for part in gradients(loss, parts))


def test_under_autocast_the_products_are_in_bfloat16_and_gradients_in_float32():
    parts, target = problem(m=64)
    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_cross_entropy(*parts, target, 500)
    found = gradients(loss, parts)
    expected = F.cross_entropy(F.linear(*parts), target, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    for ours, theirs in zip(found, gradients(expected, parts), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(part, torch.Tensor):
                self.found = max(self.found, part.numel())
        return out


def test_no_tensor_holds_all_logits_forwards_or_backwards():
    m, d, v = 400, 3, 50
    parts, target = problem(m, d, v)
    with Largest() as ours:
        summed_cross_entropy(*parts, target, 10 * v).backward()
    assert ours.found <= max(10 * v, m * d)
    with Largest() as plain:
        F.cross_entropy(F.linear(*parts), target, reduction="sum").backward()
    assert plain.found >= m * v


def test_without_gradients_none_are_formed():
    parts, target = problem()
    with torch.no_grad():
        loss = summed_cross_entropy(*parts, target)
    assert not loss.requires_grad
    (h, *rest), target = problem()
    only = summed_cross_entropy(h, *(part.detach() for part in rest), target)
    (found,) = torch.autograd.grad(only, [h])
    (expected,) = torch.autograd.grad(F.cross_entropy(F.linear(h, *rest), target, reduction="sum"), [h])
    torch.testing.assert_close(found, expected)
