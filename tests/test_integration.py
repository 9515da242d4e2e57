"""The block: Eq. 1-4, the identities between them, and the form for k sources."""

from itertools import combinations

import pytest
import torch
from helpers import unchecked
from torch.testing import assert_close

from multint import MultiplicativeIntegration, integrate, pairwise
from multint.integration import FORMS, Vectors, additive, as_general, combine, gated, general, simple

D, N = 7, 5


@pytest.fixture
def flows():
    return torch.randn(2, N, D, dtype=torch.float64)


@pytest.fixture
def vectors():
    return Vectors(*torch.randn(4, D, dtype=torch.float64))


def test_equation_1_is_the_sum(flows, vectors):
    wx, uz = flows
    for j in range(D):
        assert_close(additive(wx, uz, vectors.b)[:, j], wx[:, j] + uz[:, j] + vectors.b[j])


def test_equation_2_is_the_product(flows, vectors):
    wx, uz = flows
    for j in range(D):
        assert_close(simple(wx, uz, vectors.b)[:, j], wx[:, j] * uz[:, j] + vectors.b[j])


def test_equation_3_is_the_product_of_shifted_flows(flows, vectors):
    wx, uz = flows
    _, beta1, beta2, b = vectors
    for j in range(D):
        assert_close(gated(wx, uz, beta1, beta2, b)[:, j], (wx[:, j] + beta1[j]) * (uz[:, j] + beta2[j]) + b[j])


def test_equation_4_scales_uz_by_beta1_and_wx_by_beta2(flows, vectors):
    wx, uz = flows
    alpha, beta1, beta2, b = vectors
    for j in range(D):
        expected = alpha[j] * wx[:, j] * uz[:, j] + beta1[j] * uz[:, j] + beta2[j] * wx[:, j] + b[j]
        assert_close(integrate(wx, uz, *vectors)[:, j], expected)
    assert general is integrate


def test_alpha_zero_and_beta_one_is_the_additive_block(flows, vectors):
    wx, uz = flows
    zero, one = torch.zeros(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    assert_close(integrate(wx, uz, zero, one, one, vectors.b), additive(wx, uz, vectors.b), rtol=1e-15, atol=1e-15)


def test_alpha_zero_alone_is_not_the_additive_block(flows, vectors):
    """The paper's footnote needs beta1 = beta2 = 1."""
    wx, uz = flows
    zero = torch.zeros(D, dtype=torch.float64)
    assert (integrate(wx, uz, zero, vectors.beta1, vectors.beta2, vectors.b) - additive(wx, uz, vectors.b)).abs().max() > 0.1


def test_equation_3_is_equation_4_with_alpha_one_and_b_absorbing_beta1_beta2(flows, vectors):
    wx, uz = flows
    _, beta1, beta2, b = vectors
    one = torch.ones(D, dtype=torch.float64)
    assert_close(gated(wx, uz, beta1, beta2, b), integrate(wx, uz, one, beta1, beta2, b + beta1 * beta2), rtol=1e-14, atol=1e-14)


def test_equation_4_is_equation_3_with_alpha_folded_into_w(flows, vectors):
    wx, uz = flows
    alpha, beta1, beta2, b = vectors
    folded = gated(alpha * wx, uz, beta1, beta2 / alpha, b - beta1 * beta2 / alpha)
    assert_close(folded, integrate(wx, uz, *vectors), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_every_form_is_equation_4_with_its_own_vectors(form, bias, flows, vectors):
    wx, uz = flows
    kept = {name: getattr(vectors, name) for name in FORMS[form]} | ({"b": vectors.b} if bias else {})
    given = Vectors(**kept)
    assert_close(combine(form, wx, uz, given), integrate(wx, uz, *as_general(form, given, D, wx)), rtol=1e-14, atol=1e-14)


def test_equation_2_from_zero_state_and_zero_bias_stays_at_zero(flows):
    wx, _ = flows
    assert simple(wx, torch.zeros_like(wx), torch.zeros(D, dtype=torch.float64)).abs().max() == 0


def test_pairwise_at_two_sources_is_equation_4(flows, vectors):
    wx, uz = flows
    alpha, beta1, beta2, b = vectors
    two = pairwise([wx, uz], alpha.unsqueeze(0), torch.stack([beta2, beta1]), b)
    assert_close(two, integrate(wx, uz, *vectors), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_pairwise_sums_every_pair_once_and_every_source_once(k):
    flows = torch.randn(k, N, D, dtype=torch.float64)
    alpha, beta, b = (torch.randn(s, D, dtype=torch.float64) for s in (k * (k - 1) // 2, k, 1))
    expected = b[0].expand(N, D).clone()
    for row, (a, c) in enumerate(combinations(range(k), 2)):
        expected += alpha[row] * flows[a] * flows[c]
    for a in range(k):
        expected += beta[a] * flows[a]
    assert_close(pairwise(list(flows), alpha, beta, b[0]), expected, rtol=1e-13, atol=1e-13)


def test_the_module_is_pairwise_on_its_own_maps():
    block = MultiplicativeIntegration([3, 4, 2], D, dtype=torch.float64)
    for p in block.parameters():
        torch.nn.init.normal_(p)
    xs = [torch.randn(N, n, dtype=torch.float64) for n in (3, 4, 2)]
    mapped = [x @ flow.weight.T for x, flow in zip(xs, block.flows, strict=True)]
    assert_close(block(*xs), pairwise(mapped, block.alpha, block.beta, block.bias))
    assert torch.autograd.gradcheck(block, [x.requires_grad_() for x in xs])


@unchecked()
def test_the_module_takes_whole_numbers_as_starting_values():
    block = MultiplicativeIntegration([3, 4], D, alpha=2, beta=1, b=0)
    assert block.alpha.dtype == torch.float32 and (block.alpha == 2).all()


def test_a_block_built_without_memory_begins_like_any_other():
    block = MultiplicativeIntegration([3, 4], D, alpha=2.0, beta=0.5, b=-1.0, device="meta").to_empty(device="cpu")
    for parameter in block.parameters():
        parameter.data.fill_(float("nan"))
    block.reset_parameters()
    for parameter, value in ((block.alpha, 2), (block.beta, 0.5), (block.bias, -1)):
        assert (parameter == value).all()
    assert all(flow.weight.abs().max() <= flow.in_features**-0.5 for flow in block.flows)


def test_the_module_broadcasts_leading_axes_as_a_transducer_joiner_needs():
    block = MultiplicativeIntegration([3, 4], D, bias=False)
    a, c = torch.randn(2, 6, 1, 3), torch.randn(2, 1, 5, 4)
    joint = block(a, c)
    assert joint.shape == (2, 6, 5, D)
    assert_close(joint[1, 4, 2], block(a[1, 4, 0], c[1, 0, 2]))
    assert repr(block).startswith("MultiplicativeIntegration(\n  [3, 4], 7, bias=False")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MultiplicativeIntegration([3], 4), "two or more sources, got sizes \\[3\\]"),
        (lambda: MultiplicativeIntegration([3, 0], 4), "greater than zero, got \\[3, 0\\]"),
        (lambda: MultiplicativeIntegration([3, 2], 4)(torch.ones(3)), "joins 2 inputs, got 1"),
        (lambda: MultiplicativeIntegration([3, 2], 4)(torch.ones(3), torch.ones(5)), "input 1 must have 2 features, got 5"),
        (lambda: pairwise([torch.ones(2, 4)], torch.ones(1, 4), torch.ones(1, 4)), "two or more flows, got 1"),
        (lambda: pairwise([torch.ones(2, 4)] * 3, torch.ones(2, 4), torch.ones(3, 4)), "3 pairs, alpha has 2 rows"),
        (lambda: pairwise([torch.ones(2, 4)] * 3, torch.ones(3, 4), torch.ones(2, 4)), "need 3 rows of beta, got 2"),
    ],
)
def test_wrong_sources_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
