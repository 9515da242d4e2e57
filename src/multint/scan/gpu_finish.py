"""What is left to do for all steps at once, after the backward pass has walked through them?"""
# mypy: ignore-errors

import triton
import triton.language as tl

from multint.scan.gpu_cells import block_back


@triton.jit(do_not_specialize=["t", "rows"])
def finish(
    t, rows, d, flows, wx, tokens, vectors, sums,
    EACH: tl.constexpr, GH: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr, FLOW_ROW: tl.constexpr,
    TOKENS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Turn gradients of the shifts, d, into those of W x, in place, and sum those of the four vectors over EACH rows a program.

    The columns are FIRST to FIRST + COLUMNS of GH; ``flows`` is what their scale multiplied: U z, or U z after the reset.
    """
    column = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = column < COLUMNS
    place = FIRST + column
    alpha = tl.load(vectors + place, inside, 0.0)[None, :]
    beta2 = tl.load(vectors + 2 * GH + place, inside, 0.0)[None, :]
    s_alpha = tl.zeros((BR, BC), tl.float32)
    s_beta1 = tl.zeros((BR, BC), tl.float32)
    s_beta2 = tl.zeros((BR, BC), tl.float32)
    s_b = tl.zeros((BR, BC), tl.float32)
    begin = tl.program_id(1).to(tl.int64) * EACH
    for k in range(0, EACH, BR):
        row = begin + k + tl.arange(0, BR)
        alive = (row < rows)[:, None] & inside[None, :]
        d_shift = tl.load(d + row[:, None] * GH + place[None, :], alive, 0.0).to(tl.float32)
        flow = tl.load(flows + row[:, None] * FLOW_ROW + column[None, :], alive, 0.0).to(tl.float32)
        source = row
        if TOKENS:
            source = tl.load(tokens + row, row < rows, 0)
        x = tl.load(wx + source[:, None] * GH + place[None, :], alive, 0.0).to(tl.float32)
        d_wx, d_alpha, d_beta1, d_beta2, d_b = block_back(x, alpha, beta2, d_shift * flow, d_shift)
        tl.store(d + row[:, None] * GH + place[None, :], d_wx.to(d.dtype.element_ty), alive)
        s_alpha += d_alpha
        s_beta1 += d_beta1
        s_beta2 += d_beta2
        s_b += d_b
    slot = sums + tl.program_id(1) * (4 * GH) + place
    tl.store(slot, tl.sum(s_alpha, 0), inside)
    tl.store(slot + GH, tl.sum(s_beta1, 0), inside)
    tl.store(slot + 2 * GH, tl.sum(s_beta2, 0), inside)
    tl.store(slot + 3 * GH, tl.sum(s_b, 0), inside)
