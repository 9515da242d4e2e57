"""Hundreds of classifiers fitted at once are those that liblinear finds one by one."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from multint.paper.skipthought import linear


def made_up(n, d, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    x = F.normalize(torch.randn(n, d, generator=draw, dtype=dtype) + 0.5, dim=1)
    outputs = x @ torch.randn(d, generator=draw, dtype=dtype) * 6
    return x, outputs - outputs.median() + torch.randn(n, generator=draw, dtype=dtype) > 0


def by_newton(x, positive, strength):
    """One classifier, slowly: Newton's method on one sum over rows."""
    w = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(30):
        p = (x @ w).sigmoid()
        gradient = w + strength * sum((p[i] - float(positive[i])) * x[i] for i in range(len(x)))
        curvature = torch.eye(len(w), dtype=x.dtype) + strength * sum(
            p[i] * (1 - p[i]) * torch.outer(x[i], x[i]) for i in range(len(x))
        )
        w = w - torch.linalg.solve(curvature, gradient)
    return w


@pytest.mark.parametrize("strength", [1.0, 16.0, 256.0])
def test_every_column_is_the_classifier_of_the_rows_it_uses(strength):
    x, positive = made_up(60, 5)
    x = linear.biased(x)
    uses = torch.rand(60, 4) < 0.8
    found = linear.fit(x, positive, uses, strength, tolerance=1e-10)
    for column in range(4):
        rows = uses[:, column]
        torch.testing.assert_close(found[:, column], by_newton(x[rows], positive[rows], strength), rtol=1e-6, atol=1e-6)


def test_a_start_elsewhere_ends_at_the_same_place():
    x, positive = made_up(60, 5)
    uses = torch.ones(60, 2, dtype=torch.bool)
    start = torch.randn(5, 2, dtype=torch.float64)
    one, other = (linear.fit(x, positive, uses, 8.0, begin, tolerance=1e-10) for begin in (None, start))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_features_of_very_different_sizes_are_fitted_too():
    x, positive = made_up(80, 6, dtype=torch.float32)
    x = x * torch.tensor([1e4, 1e-4, 1, 1, 1, 1])
    uses = torch.ones(80, 1, dtype=torch.bool)
    found = linear.fit(x, positive, uses, 256.0)
    judge = by_newton(x.double(), positive, 256.0)
    assert (((x @ found)[:, 0] > 0) == (x.double() @ judge > 0)).float().mean() > 0.98


def test_a_fit_that_does_not_end_is_said(caplog, monkeypatch):
    monkeypatch.setattr(linear, "MOST", linear.RENEW)
    x, positive = made_up(60, 5)
    linear.fit(x, positive, torch.ones(60, 3, dtype=torch.bool), 1.0, tolerance=1e-30)
    assert "3 of 3 classifiers with C = 1 were not fitted exactly" in caplog.text


def test_folds_are_consecutive_and_the_first_have_a_row_more():
    assert linear.folds(23, 10)[:4] == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11)]
    assert linear.folds(23, 10)[-1] == slice(21, 23)


def test_more_features_than_rows_change_nothing():
    x, positive = made_up(40, 90)
    narrow, others = linear.narrowed(x, x[:7])
    assert narrow.shape == (40, 40)
    uses = torch.ones(40, 1, dtype=torch.bool)
    wide, small = (linear.fit(part, positive, uses, 4.0, tolerance=1e-10) for part in (x, narrow))
    torch.testing.assert_close(x[:7] @ wide, others @ small)


# ---- the judge ----


def the_slow_way(x, y, count, strengths):
    """Nested folds with scikit-learn, one classifier after the other."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold

    def score(train, test, strength):
        fitted = LogisticRegression(C=strength, solver="liblinear", tol=1e-8, max_iter=10_000).fit(x[train], y[train])
        return fitted.score(x[test], y[test])

    scores, picked = [], []
    for train, test in KFold(count).split(x):
        inner = [np.mean([score(train[a], train[b], strength) for a, b in KFold(count).split(train)]) for strength in strengths]
        picked.append(strengths[int(np.argmax(inner))])
        scores.append(score(train, test, picked[-1]))
    return scores, picked


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nested_folds_are_those_of_liblinear(dtype):
    pytest.importorskip("sklearn", reason="scikit-learn judges the classifiers")
    x, positive = made_up(151, 12, dtype=dtype)
    strengths = (1.0, 8.0, 64.0)
    outcome = linear.nested(x, positive, 5, strengths)
    scores, picked = the_slow_way(x.double().numpy(), positive.numpy(), 5, strengths)
    assert outcome.scores == pytest.approx(scores, abs=1e-12)
    assert outcome.strengths == picked


def test_rows_are_shuffled_as_the_authors_shuffle_them():
    shuffle = pytest.importorskip("sklearn.utils", reason="scikit-learn has the authors' shuffle").shuffle
    folds = pytest.importorskip("sklearn.model_selection").KFold
    assert linear.shuffled(37).tolist() == shuffle(np.arange(37), random_state=1234).tolist()
    theirs = [test.tolist() for _, test in folds(10, shuffle=True, random_state=1234).split(np.zeros(37))]
    order = linear.shuffled(37)
    assert [sorted(order[part].tolist()) for part in linear.folds(37)] == theirs
