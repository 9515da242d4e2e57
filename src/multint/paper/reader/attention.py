r"""How is attention computed in few passes over its arrays?

.. math::
    m_t = \tanh(x_t + k + \langle y_t, w\rangle),\quad p = \mathrm{softmax}_t(v\cdot m_t),\quad r = \sum_t p_t\, y_t,\quad
    \bar y = \frac{1}{T}\sum_t y_t

There is little to compute here, so the time goes into reading and writing arrays of all steps. Only m is such an array, and every
sum is a product of matrices for each row of the batch. The derivative is written out: autograd would make six more arrays.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from multint.shapes import Bool, Float


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, y: Tensor, w: Tensor, v: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = y.transpose(0, 1)  # n t d
        m = (x + k).add_(torch.bmm(rows, w.unsqueeze(-1)).transpose(0, 1)).tanh_()
        scores = (m @ v).float().masked_fill_(~inside, -torch.inf)
        p, share = scores.softmax(0), inside / inside.sum(0)
        r, mean = torch.bmm(torch.stack([p, share]).to(y.dtype).permute(2, 0, 1), rows).unbind(1)
        ctx.save_for_backward(m, y, w, v, p, share)
        return r, mean, p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dr: Tensor, dmean: Tensor, dp: Tensor) -> tuple[Tensor | None, ...]:
        m, y, w, v, p, share = ctx.saved_tensors
        rows = y.transpose(0, 1)
        dp = dp + torch.bmm(rows, dr.unsqueeze(-1)).squeeze(-1).t()
        de = (p * (dp - (p * dp).sum(0))).to(y.dtype)
        dx = torch.ops.aten.tanh_backward(de.unsqueeze(-1) * v, m)
        ds = dx.sum(-1)
        dw = torch.bmm(ds.t().unsqueeze(1), rows).squeeze(1)
        dv = (de.reshape(1, -1) @ m.flatten(0, 1)).squeeze(0)
        weights = torch.stack([ds, p.to(y.dtype), share.to(y.dtype)], -1).transpose(0, 1)
        dy = torch.bmm(weights, torch.stack([w, dr, dmean], 1)).transpose(0, 1)
        return dx, dx.sum(0), dy, dw, dv, None


def look(
    x: Float[Tensor, "t n d"],
    k: Float[Tensor, "n d"],
    y: Float[Tensor, "t n d"],
    w: Float[Tensor, "n d"],
    v: Float[Tensor, " d"],
    inside: Bool[Tensor, "t n"],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], Float[Tensor, "t n"]]:
    """r, the mean of y, and p, of the steps inside alone; each row has one at least."""
    x, k, w, v = (part.to(y.dtype) for part in (x, k, w, v))
    return _Look.apply(x, k, y, w, v, inside)  # type: ignore[no-any-return,no-untyped-call]
