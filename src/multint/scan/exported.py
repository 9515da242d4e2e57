"""How does a sequence of any length leave for torch.export and ONNX?

As one loop node: torch's ``scan`` operator around the reference step, which ONNX knows as ``Scan``. Used in evaluation mode alone:
torch 2.11 and 2.12 compute wrong gradients through that operator (pytorch#184528), and inductor refuses it in training (#195977).
"""

from dataclasses import replace

import torch
from torch import Tensor

from multint.cells import State
from multint.scan import operator, reference
from multint.scan.contract import Problem, Result


def why_not(problem: Problem) -> str | None:
    # the flag itself: torch 2.11 answers True to is_exporting() in every compiled graph
    if not torch.compiler._is_exporting_flag:
        return "only torch.export and ONNX export need the loop as a graph node"
    if problem.training:
        return "torch's scan operator may give wrong gradients; call .eval() before exporting"
    if problem.norm is not None and not problem.norm.timeless:
        return "batch norm has statistics for every step, counted in Python; use backend='reference', which unrolls the loop"
    return None


def run(problem: Problem) -> Result:
    from torch._higher_order_ops.scan import scan

    # an exported loop carries no gradient: better an error later than the operator's own backward
    # clone: a layer's share of hx is a view that starts at a multiple of the batch size, which the operator cannot trace
    views = ("h", "c", "restart_h", "restart_c")
    tensors = {name: x.detach().clone() if name in views else x.detach() for name, x in operator.flatten(problem).items()}
    alone = operator.rebuild(list(tensors.values()), " ".join(tensors), problem.cell.name, problem.form, problem.phi)
    problem = replace(alone, norm=problem.norm)
    wx, t = problem.flow(), torch.arange(problem.steps, device=problem.u.device)
    resets = wx.new_zeros((problem.steps, 1), dtype=torch.bool) if problem.resets is None else problem.resets

    def body(carry: tuple[Tensor, ...], xs: tuple[Tensor, Tensor, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        wx_t, reset, now = xs
        one = replace(
            problem,
            wx=wx_t.unsqueeze(0),
            tokens=None,
            x=None,
            state=State(*carry),
            resets=None if problem.resets is None else reset.unsqueeze(0),
            lengths=None if problem.lengths is None else (now < problem.lengths).long(),  # 1 or 0 steps of this one
        )
        # the operator forbids outputs that share memory with each other or with the carry
        after = tuple(part.clone() for part in reference.run(one).state if part is not None)
        return after, after[0].clone()

    start = tuple(part for part in problem.state if part is not None)
    carry, outputs = scan(body, start, (wx, resets, t))
    return Result(outputs, State(*carry))
