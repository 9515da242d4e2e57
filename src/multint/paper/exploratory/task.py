"""What is seen inside a character model of §3.1 while it learns and once it has learned."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint.paper.charlm import task as charlm
from multint.paper.charlm.data import gather
from multint.paper.charlm.model import CharModel
from multint.paper.charlm.recipes import MI, CharLM
from multint.paper.charlm.task import WINDOW, CharTask
from multint.paper.overrides import RecipeError
from multint.probes import FlowNorms, GradientNorms, Histogram, flow_norms, gradient_norms, histogram

STEPS = (0, 1, 5, 10)  # t of ∂C/∂h_t: the text of §3.1 has 0, 5, 10, the caption of Fig. 1 has 1, 5, 10
SEGMENTS = 2000  # of the training set, the same for every model and epoch
TOGETHER = 500  # segments differentiated at a time


def check(recipe: CharLM) -> None:
    charlm.check(recipe)
    if recipe.cell not in MI:
        raise RecipeError(f"the flows of cell={recipe.cell} cannot be told apart; exploratory recipes take {', '.join(MI)}")


class ProbedTask(CharTask):
    """A character task that also says how gradients travel back, at every evaluation, and how its units are used, at the end."""

    observed = tuple(f"{kind}_dh{t}" for kind in ("mean_log", "log_mean") for t in STEPS)

    @cached_property
    def segments(self) -> tuple[Tensor, Tensor]:
        """Training characters (length, SEGMENTS) drawn once, and the one character after each segment."""
        tokens, length = self.tokens("train"), self.recipe.length
        starts = torch.randint(len(tokens) - length, (SEGMENTS,), generator=torch.Generator().manual_seed(0))
        window = gather(tokens, starts, length + 1).to(self.device)
        return window[:-1], window[-1]

    def observe(self, model: nn.Module) -> dict[str, float]:
        """Fig. 1a: log of the norm of dC/dh_t, C the loss of the last character alone, averaged in both ways."""
        assert isinstance(model, CharModel)
        x, y = self.segments
        at = tuple(t for t in STEPS if t <= len(x))
        parts = []
        for k in range(0, x.shape[1], TOGETHER):
            last = y[k : k + TOGETHER]

            def cost(outputs: Tensor, last: Tensor = last) -> Tensor:
                return F.cross_entropy(model.out(outputs[-1]), last, reduction="none")

            parts.append(gradient_norms(model.core, x[:, k : k + TOGETHER], cost, at).norms)
        found = GradientNorms(at, torch.cat(parts, 1).double())
        both = {"mean_log": found.mean_log.tolist(), "log_mean": found.log_mean.tolist()}
        return {f"{kind}_dh{t}": round(value, 4) for kind, values in both.items() for t, value in zip(at, values, strict=True)}

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, Any]:
        """Fig. 1c-d and §3.1's scales over the whole validation set: activations, and the norms of both flows into each gate."""
        assert isinstance(model, CharModel)
        with torch.random.fork_rng([] if self.device.type == "cpu" else [self.device]):
            torch.manual_seed(self.seed)  # as the engine does before it builds
            beginner = self.build().to(self.device).eval()
        gates, end = self.flows(model)
        found: dict[str, Any] = {"flows": {"gates": list(gates), "start": self.flows(beginner)[1], "end": end}}
        if self.recipe.cell != "rnn" or self.recipe.nonlinearity == "tanh":  # else activations have no bounds
            seen = self.activations(model)
            counts = {"reach": float(seen.edges[-1]), "counts": seen.counts.tolist()}
            found |= {"histogram": counts, "saturated": round(seen.saturated, 5), "near_zero": round(seen.near_zero, 5)}
        return found

    def windows(self, model: CharModel) -> Iterator[tuple[Tensor, Any, Tensor, Tensor]]:
        """The validation set in pieces: tokens, the state before them, the outputs, and which of them count."""
        state = None
        for window in self.streams("valid").windows(WINDOW):
            x, _, counts = (part.to(self.device) for part in window)
            outputs, after = model.core(x, state)
            yield x, state, outputs, counts
            state = after

    def activations(self, model: CharModel) -> Histogram:
        parts = [histogram(outputs[counts].float()) for _, _, outputs, counts in self.windows(model)]
        return sum(parts[1:], parts[0])

    def flows(self, model: CharModel) -> tuple[tuple[str, ...], dict[str, list[float]]]:
        """The gates' names, and for each the mean over all steps of the norms of W x and U h."""
        totals, steps = torch.zeros(2, 1, dtype=torch.float64, device=self.device), 0
        for x, state, _, counts in self.windows(model):
            one: FlowNorms = flow_norms(model.core, x, state)[-1]
            totals = totals + torch.stack([one.wx[counts].double().sum(0), one.uh[counts].double().sum(0)])
            steps += int(counts.sum())
        wx, uh = (totals / steps).tolist()
        return one.gates, {"wx": [round(v, 5) for v in wx], "uh": [round(v, 5) for v in uh]}
