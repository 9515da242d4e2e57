"""What is the loss over a large vocabulary, without the logits of all words at once?

The logits of 2,048 predictions over 20,000 words take 164 MB, and so do their probabilities and their gradient. Here predictions
are worked on in parts: the gradient of a part is formed while its logits are there, so each product is computed once, and nothing
of that size is kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from multint.shapes import Float, Int

MOST = 1 << 22  # logits at a time, in float32: 16 MiB
NOTHING = -100  # a target that does not count, as in torch


def summed_cross_entropy(
    h: Float[Tensor, "m d"],
    weight: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"],
    target: Int[Tensor, " m"],
    most: int = MOST,
) -> Float[Tensor, ""]:
    r"""The sum of :math:`-\log\,\mathrm{softmax}(Wh+b)_{target}` in float32; under autocast the products are in its type."""
    loss: Tensor = _Summed.apply(h, weight, bias, target, max(1, most // len(weight)))  # type: ignore[no-untyped-call]
    return loss


class _Summed(torch.autograd.Function):
    """Forms the gradients in the forward pass; the backward pass scales them. It has no second derivative."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, target: Tensor, rows: int) -> Tensor:
        kind = h.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        with torch.autocast(kind, enabled=False):
            differentiate = any(ctx.needs_input_grad[:3])
            loss, gradients = _in_parts(h.to(low), weight.to(low), bias.to(low), target, rows, differentiate)
        ctx.save_for_backward(
            *(part.to(like.dtype) for part, like in zip(gradients, (h, weight, bias), strict=True)) if differentiate else ()
        )
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:3]
        return (*((part * grad if need else None) for part, need in zip(ctx.saved_tensors, needed, strict=True)), None, None)


def _in_parts(
    h: Tensor, weight: Tensor, bias: Tensor, target: Tensor, rows: int, differentiate: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss, and the gradients of h, weight and bias."""
    loss = torch.zeros((), device=h.device, dtype=torch.float32)
    dh = torch.zeros_like(h)
    dweight, dbias = (torch.zeros_like(part, dtype=torch.promote_types(part.dtype, torch.float32)) for part in (weight, bias))
    for part in range(0, len(h), rows):
        mine, wanted = h[part : part + rows], target[part : part + rows, None]
        counts = wanted != NOTHING
        wanted = wanted.clamp_min(0)
        logits = torch.addmm(bias, mine, weight.T).float()
        lse = logits.logsumexp(1, keepdim=True)
        loss += ((lse - logits.gather(1, wanted)) * counts).sum()
        if not differentiate:
            continue
        p = logits.sub_(lse).exp_()
        p.scatter_add_(1, wanted, torch.full_like(lse, -1.0)).mul_(counts)
        dbias += p.sum(0)
        g = p.to(h.dtype)
        torch.mm(g, weight, out=dh[part : part + rows])
        dweight += g.T @ mine
    return loss, (dh, dweight, dbias)
