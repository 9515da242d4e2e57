"""Adam as the skip-thought authors coded it: its correction of the bias takes 0.1 and 0.001 to the power of the step, not 0.9 and
0.999, and so does next to nothing after the first update. Early steps are several times as long as Adam's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class AuthorsAdam(torch.optim.Optimizer):
    """The rule of their code. With ``capturable`` the count of steps is on the device, as CUDA graphs need it."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float | Tensor = 2e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        capturable: bool = False,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "capturable": capturable})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            given: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if given:
                self._update(given, group)
        return loss

    def _begin(self, p: Tensor, capturable: bool) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device if capturable else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        return state

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._begin(p, group["capturable"]) for p in parameters]
        grads = [p.grad for p in parameters if p.grad is not None]
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        keep, keep_square = group["betas"]
        for state in states:
            state["step"] += 1
        step = states[0]["step"]  # the same for all
        size = group["lr"] * (1 - (1 - keep_square) ** step).sqrt() / (1 - (1 - keep) ** step)
        torch._foreach_lerp_(means, grads, 1 - keep)
        torch._foreach_mul_(squares, keep_square)
        torch._foreach_addcmul_(squares, grads, grads, 1 - keep_square)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates: Any = torch._foreach_div(means, roots)
        torch._foreach_mul_(updates, -size if group["capturable"] else -float(size))
        torch._foreach_add_(parameters, updates)
