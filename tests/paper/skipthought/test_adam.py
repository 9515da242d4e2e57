"""Adam as the authors coded it, beside its formula with plain numbers."""

import math

import pytest
import torch
from torch import nn

from multint.paper.skipthought.adam import AuthorsAdam


@pytest.mark.parametrize("capturable", [False, True])
def test_each_update_follows_the_authors_formula(capturable):
    p = nn.Parameter(torch.tensor([0.5, -2.0], dtype=torch.float64))
    rate = torch.tensor(0.01) if capturable else 0.01
    adam = AuthorsAdam([p], lr=rate, capturable=capturable)
    values, m, v = p.tolist(), [0.0, 0.0], [0.0, 0.0]
    for t in range(1, 6):
        grads = [math.sin(t), 0.1 * t]
        p.grad = torch.tensor(grads, dtype=torch.float64)
        adam.step()
        lr = 0.01 * math.sqrt(1 - 0.001**t) / (1 - 0.1**t)
        for k, g in enumerate(grads):
            m[k] = 0.1 * g + 0.9 * m[k]
            v[k] = 0.001 * g * g + 0.999 * v[k]
            values[k] -= lr * m[k] / (math.sqrt(v[k]) + 1e-8)
        assert p.tolist() == pytest.approx(values, rel=1e-5)


def test_the_first_updates_are_several_times_as_long_as_adams():
    steps = {}
    for kind in (AuthorsAdam, torch.optim.Adam):
        p = nn.Parameter(torch.zeros(3))
        optimiser = kind([p], lr=1e-3)
        for t in range(1, 101):
            before = p.detach().clone()
            p.grad = torch.ones(3)
            optimiser.step()
            if t in (1, 10, 100):
                steps.setdefault(t, []).append(float((p.detach() - before).norm()))
    ratios = {t: ours / theirs for t, (ours, theirs) in steps.items()}
    assert ratios == pytest.approx({1: 3.5, 10: 6.5, 100: 3.2}, rel=0.02)


def test_a_state_that_is_saved_and_loaded_goes_on_with_the_same_bits():
    def train(steps, saved=None):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        adam = AuthorsAdam(model.parameters())
        if saved:
            model.load_state_dict(saved[0])
            adam.load_state_dict(saved[1])
        for t in steps:
            adam.zero_grad()
            model(torch.full((1, 3), float(t))).pow(2).sum().backward()
            adam.step()
        return model.state_dict(), adam.state_dict()

    whole, half = train(range(6)), train(range(3))
    again = train(range(3, 6), half)
    assert all(torch.equal(whole[0][key], again[0][key]) for key in whole[0])


def test_a_parameter_without_gradient_stays_as_it_is():
    p, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = AuthorsAdam([p, frozen])
    p.grad = torch.ones(2)
    assert adam.step(lambda: 7.0) == 7.0
    assert frozen.tolist() == [1.0, 1.0] and p.tolist() != [1.0, 1.0]
