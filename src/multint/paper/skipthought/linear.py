"""How are hundreds of linear classifiers fitted at once, on parts of the same rows?

The evaluation of §3.4 fits a logistic regression for every fold, inner fold and strength: about 900 on each set. They share their
rows, so each step of all of them is one matrix product. The objective is liblinear's, in which the bias is regularised too.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from multint.shapes import Bool, Float

logger = logging.getLogger("multint")

SEED = 1234  # of every shuffle in the authors' evaluation
FOLDS = 10
STRENGTHS = tuple(2.0**k for k in range(9))  # C = 1, 2, 4 ... 256
TOLERANCE = 1e-5  # of the gradient, by liblinear's rule, whose own default is 1e-4
MOST, RENEW = 200, 40  # steps of one fit, and after how many the curvature is out of date


def biased(x: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
    """The rows with a constant feature of 1 after them, whose weight is the bias."""
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


# ---- logistic regression ----


def fit(
    x: Float[Tensor, "n d"],
    positive: Bool[Tensor, " n"],
    uses: Bool[Tensor, "n p"],
    strength: float,
    start: Float[Tensor, "d p"] | None = None,
    tolerance: float = TOLERANCE,
) -> Float[Tensor, "d p"]:
    r"""Weights of p classifiers; the one of column p sees the rows that it ``uses``.

    Each minimises :math:`\frac12 w\cdot w + C\sum_i \log(1+e^{-y_i w\cdot x_i})` by conjugate gradients. They are preconditioned
    with the inverse curvature of all rows, which is close to that of nine tenths of them.
    """
    problem = _Problem(x, positive.to(x.dtype), uses.to(x.dtype), strength)
    w = x.new_zeros(x.shape[1], uses.shape[1]) if start is None else start.clone()
    goal = problem.goal(tolerance)
    inverse = problem.inverse_curvature(w.mean(1))
    left = torch.arange(uses.shape[1], device=x.device)  # columns that are not fitted yet
    for _ in range(MOST // RENEW):
        left = _descend(problem, w, inverse, left, goal, RENEW)
        if not len(left):
            return w
        inverse = problem.inverse_curvature(w[:, left].mean(1))
    logger.warning("%d of %d classifiers with C = %g were not fitted exactly", len(left), uses.shape[1], strength)
    return w


class _Problem(NamedTuple):
    x: Tensor  # (n, d)
    y: Tensor  # (n,): 1 or 0
    uses: Tensor  # (n, p): 1 or 0
    strength: float

    def residual(self, z: Tensor, columns: Tensor) -> Tensor:
        """The loss's derivative by the outputs z."""
        return (z.sigmoid() - self.y[:, None]).mul_(self.uses[:, columns]).mul_(self.strength)

    def gradient(self, w: Tensor, z: Tensor, columns: Tensor) -> Tensor:
        return w + self.x.T @ self.residual(z, columns)

    def goal(self, tolerance: float) -> Tensor:
        """The norm of the gradient at which each fit ends: liblinear's, relative to the start at zero and to the rarer class."""
        everything = torch.arange(self.uses.shape[1], device=self.x.device)
        zero = self.x.new_zeros(len(self.x), self.uses.shape[1])
        first = (self.x.T @ self.residual(zero, everything)).norm(dim=0)
        rows, ones = self.uses.sum(0), self.y @ self.uses
        goal: Tensor = tolerance * torch.minimum(ones, rows - ones).clamp_min(1) / rows * first
        return goal

    def inverse_curvature(self, w: Tensor) -> Tensor:
        """Of a classifier that uses each row as often as the fits do on average."""
        p = (self.x @ w).sigmoid()
        weights = self.strength * p * (1 - p) * self.uses.mean(1)
        h = (self.x.T * weights) @ self.x
        most = h.diagonal().max()
        h.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(h)
        if failed:  # features of very different sizes: rounding left h with a direction of no curvature
            h.diagonal().add_(1e-4 * most)
            factor = torch.linalg.cholesky(h)
        inverse: Tensor = torch.cholesky_inverse(factor)
        return inverse


def _descend(problem: _Problem, w: Tensor, inverse: Tensor, columns: Tensor, goal: Tensor, most: int) -> Tensor:
    """Improve these columns of w in place; those that did not reach their goal."""
    now = w[:, columns]
    z = problem.x @ now
    direction: Tensor | None = None
    before: tuple[Tensor, Tensor] | None = None
    for _ in range(most):
        g = problem.gradient(now, z, columns)
        done = g.norm(dim=0) <= goal[columns]
        if done.any():
            w[:, columns[done]] = now[:, done]
            going = ~done
            columns, now, z, g = columns[going], now[:, going], z[:, going], g[:, going]
            if not len(columns):
                return columns
            if direction is not None and before is not None:
                direction, before = direction[:, going], (before[0][:, going], before[1][going])
        s = inverse @ g
        power = (g * s).sum(0)
        if direction is None or before is None:
            direction = -s
        else:  # Polak and Ribière, never below zero
            keep = ((power - (g * before[0]).sum(0)) / before[1]).clamp_min(0)
            direction = keep * direction - s
            uphill = (g * direction).sum(0) >= 0
            direction = torch.where(uphill, -s, direction)
        before = (s, power)
        ahead = problem.x @ direction
        step = _step(problem, now, z, direction, ahead, columns)
        now = now + step * direction
        z.add_(step * ahead)
    w[:, columns] = now
    return columns


def _step(problem: _Problem, w: Tensor, z: Tensor, direction: Tensor, ahead: Tensor, columns: Tensor, rounds: int = 3) -> Tensor:
    """How far to go, for each column: Newton's method along the line, which costs no product with x."""
    linear, square = (w * direction).sum(0), (direction * direction).sum(0)
    step = torch.zeros_like(linear)
    for _ in range(rounds):
        p = (z + step * ahead).sigmoid_()
        uses = problem.strength * problem.uses[:, columns] * ahead
        slope = linear + step * square + (uses * (p - problem.y[:, None])).sum(0)
        bend = square + (uses * ahead * (p - p * p)).sum(0)
        step = (step - slope / bend).clamp_min(0)
    return step


# ---- folds ----


def folds(n: int, count: int = FOLDS) -> list[slice]:
    """Rows cut into consecutive parts of equal size; the first ones have one row more where it does not come out even."""
    ends = np.cumsum([0, *(n // count + (k < n % count) for k in range(count))])
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def shuffled(n: int, seed: int = SEED) -> np.ndarray:
    """The order into which the authors' evaluation shuffles n rows."""
    order = np.arange(n)
    np.random.RandomState(seed).shuffle(order)
    return order


class Outcome(NamedTuple):
    """Accuracy, or F1, of each outer fold, and the strength that its inner folds chose."""

    scores: list[float]
    strengths: list[float]


def nested(
    x: Float[Tensor, "n d"], positive: Bool[Tensor, " n"], count: int = FOLDS, strengths: Sequence[float] = STRENGTHS
) -> Outcome:
    """Accuracies of nested cross-validation: the inner folds of nine tenths choose C, the last tenth is scored.

    Rows are cut in the order they have; shuffle them before.
    """
    x, tenths = narrowed(biased(x))[0], folds(len(x), count)
    outer = [np.delete(np.arange(len(x)), part) for part in tenths]
    tests = [[rows[part] for part in folds(len(rows), count)] for rows in outer]  # of the inner folds
    uses = torch.zeros(len(x), count * (count + 1), dtype=torch.bool)  # each outer fold, then its inner ones
    for o, rows in enumerate(outer):
        first = o * (count + 1)
        uses[rows, first : first + count + 1] = True
        for i, test in enumerate(tests[o]):
            uses[test, first + 1 + i] = False
    w = None
    inner, scores = np.zeros((2, count, len(strengths)))
    for c, strength in enumerate(strengths):
        w = fit(x, positive, uses, strength, w)
        right = ((x @ w > 0) == positive[:, None]).numpy()
        for o, part in enumerate(tenths):
            first = o * (count + 1)
            scores[o, c] = right[part, first].mean()
            inner[o, c] = np.mean([right[test, first + 1 + i].mean() for i, test in enumerate(tests[o])])
    best = inner.argmax(1)  # the first of equals
    return Outcome([float(scores[o, k]) for o, k in enumerate(best)], [float(strengths[k]) for k in best])


def narrowed(*parts: Tensor) -> list[Tensor]:
    """Rows with no more features than rows: turned into the space that the first part spans, which changes no classifier fitted on
    it."""
    n, d = parts[0].shape
    if d <= n:
        return list(parts)
    q = torch.linalg.qr(parts[0].T)[0]
    return [part @ q for part in parts]
