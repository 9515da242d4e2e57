"""Appendix A, gate by gate: the layers against equations typed out here on scalars, and the cells on symbols."""

import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from multint import MIGRU, MILSTM, MIRNN
from multint.cells import CELLS, State

T, N, I, H = 4, 2, 3, 5


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def random_layer(kind, **options):
    """A layer whose every parameter is random: zeros hide products."""
    layer = kind(I, H, dtype=torch.float64, **options)
    for p in layer.parameters():
        torch.nn.init.uniform_(p, -1, 1)
    return layer


class Scalar:
    """Eq. 4 for unit j of gate k, one number at a time, straight from a layer's parameters."""

    def __init__(self, layer, x, h):
        self.p = {name.removesuffix("_l0"): p.detach().tolist() for name, p in layer.named_parameters()}
        self.x, self.h = x.tolist(), h

    def uz(self, k, j, source):
        return sum(u * s for u, s in zip(self.p["weight_hh"][k * H + j], source, strict=True))

    def pre(self, k, j, source=None, uz=None):
        row = k * H + j
        wx = sum(w * x for w, x in zip(self.p["weight_ih"][row], self.x, strict=True))
        uz = self.uz(k, j, self.h if source is None else source) if uz is None else uz
        return self.p["alpha"][row] * wx * uz + self.p["beta1"][row] * uz + self.p["beta2"][row] * wx + self.p["bias"][row]


def expected_sequence(layer, x, step, parts):
    """Runs ``step(scalar, state) -> state`` on lists of numbers."""
    outputs = torch.zeros(T, N, H, dtype=torch.float64)
    for n in range(N):
        state = tuple([0.0] * H for _ in range(parts))
        for t in range(T):
            state = step(Scalar(layer, x[t, n], state[0]), state)
            outputs[t, n] = torch.tensor(state[0], dtype=torch.float64)
    return outputs


@pytest.mark.parametrize("nonlinearity, phi", [("tanh", math.tanh), ("relu", lambda v: max(v, 0.0)), ("identity", lambda v: v)])
def test_section_2_2_mi_rnn_step(nonlinearity, phi):
    layer, x = random_layer(MIRNN, nonlinearity=nonlinearity), torch.randn(T, N, I, dtype=torch.float64)

    def step(s, state):
        return ([phi(s.pre(0, j)) for j in range(H)],)

    assert_close(layer(x)[0], expected_sequence(layer, x, step, 1), rtol=1e-12, atol=1e-12)


def test_appendix_a1_mi_lstm_step():
    layer, x = random_layer(MILSTM), torch.randn(T, N, I, dtype=torch.float64)

    def step(s, state):
        i, f, z, o = ([g(s.pre(k, j)) for j in range(H)] for k, g in enumerate((sigma, sigma, math.tanh, sigma)))
        c = [i[j] * z[j] + f[j] * state[1][j] for j in range(H)]
        return [o[j] * math.tanh(c[j]) for j in range(H)], c

    assert_close(layer(x)[0], expected_sequence(layer, x, step, 2), rtol=1e-12, atol=1e-12)


def test_appendix_a2_mi_gru_step_resets_before_u():
    layer, x = random_layer(MIGRU), torch.randn(T, N, I, dtype=torch.float64)

    def step(s, state):
        h = state[0]
        r, z = ([sigma(s.pre(k, j)) for j in range(H)] for k in (0, 1))
        n = [math.tanh(s.pre(2, j, source=[r[i] * h[i] for i in range(H)])) for j in range(H)]
        return ([(1 - z[j]) * h[j] + z[j] * n[j] for j in range(H)],)

    assert_close(layer(x)[0], expected_sequence(layer, x, step, 1), rtol=1e-12, atol=1e-12)


def test_mi_gru_step_with_reset_after_u():
    layer, x = random_layer(MIGRU, reset_after=True), torch.randn(T, N, I, dtype=torch.float64)

    def step(s, state):
        h = state[0]
        r, z = ([sigma(s.pre(k, j)) for j in range(H)] for k in (0, 1))
        inside = [r[j] * (s.uz(2, j, h) + s.p["bias_hn"][j]) for j in range(H)]
        n = [math.tanh(s.pre(2, j, uz=inside[j])) for j in range(H)]
        return ([(1 - z[j]) * h[j] + z[j] * n[j] for j in range(H)],)

    assert_close(layer(x)[0], expected_sequence(layer, x, step, 1), rtol=1e-12, atol=1e-12)


# ---- mistakes seen in public implementations; each would pass a test of shapes ----


def test_the_reset_gate_reaches_the_candidate():
    """A GRU whose candidate ignores r has no gradient for r's parameters."""
    for reset_after in (False, True):
        layer, x = random_layer(MIGRU, reset_after=reset_after), torch.randn(T, N, I, dtype=torch.float64)
        layer(x)[0].sum().backward()
        assert layer.weight_hh_l0.grad[:H].abs().max() > 1e-6
        assert layer.alpha_l0.grad[:H].abs().max() > 1e-6


def test_gates_stay_between_zero_and_one():
    """A GRU whose gates lack the sigmoid leaves [-1, 1] when its gates' biases are large; ours is a convex mean of tanh values."""
    layer = random_layer(MIGRU)
    with torch.no_grad():
        layer.bias_l0[: 2 * H] = 50.0
    assert layer(torch.randn(50, N, I, dtype=torch.float64))[0].abs().max() <= 1.0


def test_the_input_gate_multiplies_the_block_input():
    """An LSTM that adds them, sigma(i) + tanh(z), does not forget its input when i is shut."""
    layer, x = random_layer(MILSTM), torch.randn(T, N, I, dtype=torch.float64)
    with torch.no_grad():
        layer.bias_l0[:H] = -1e4
    assert layer(x)[0].abs().max() < 1e-12


@pytest.mark.parametrize("kind", [MIRNN, MILSTM, MIGRU])
def test_alpha_and_beta_start_as_stated_not_at_random(kind):
    layer = kind(I, H)
    for name in ("alpha_l0", "beta1_l0", "beta2_l0"):
        assert torch.equal(getattr(layer, name), torch.ones_like(getattr(layer, name)))
    assert layer.bias_l0.abs().max() == 0


@pytest.mark.parametrize("kind", [MIRNN, MILSTM, MIGRU])
def test_the_recurrence_reaches_the_first_step(kind):
    """A layer fed a whole sequence against one state does not let the first input change the last output."""
    layer, x = random_layer(kind), torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    layer(x)[0][-1].sum().backward()
    assert x.grad[0].abs().max() > 1e-9


# ---- the same lines on symbols ----


class Symbols:
    """cells.Maths on sympy."""

    def __init__(self, sympy):
        self.phi = self.tanh = sympy.tanh
        self.sigmoid = lambda x: 1 / (1 + sympy.exp(-x))
        self.settle = self.project = lambda x: x


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_differentiated_as_symbols_as_autograd_does(name):
    """What kernels are generated from: forward and derivative of one unit by sympy equal torch's to 1e-12."""
    sympy = pytest.importorskip("sympy")
    cell = CELLS[name]
    names = [f"a_{g}" for g in cell.gates] + ["h", "c"]
    symbols = dict(zip(names, sympy.symbols(names), strict=True))

    def symbolic_pre(gate, source, after=None):
        return symbols[f"a_{gate}"] * source * (1 if after is None else after)

    new = cell.step(symbolic_pre, State(symbols["h"], symbols["c"]), Symbols(sympy))
    values = {k: torch.randn((), dtype=torch.float64, requires_grad=True) for k in names}

    def pre(gate, source, after=None):
        return values[f"a_{gate}"] * source * (1 if after is None else after)

    from multint.scan.reference import TensorMaths

    got = cell.step(pre, State(values["h"], values["c"]), TensorMaths(torch.tanh))
    at = {symbols[k]: v.item() for k, v in values.items()}
    for part in cell.carries:
        expression = getattr(new, part)
        assert float(expression.subs(at)) == pytest.approx(getattr(got, part).item(), rel=1e-12)
        grads = torch.autograd.grad(getattr(got, part), list(values.values()), retain_graph=True, allow_unused=True)
        for k, g in zip(names, grads, strict=True):
            derivative = float(sympy.diff(expression, symbols[k]).subs(at))
            assert derivative == pytest.approx(0.0 if g is None else g.item(), rel=1e-11, abs=1e-13)


@pytest.mark.traced
def test_the_page_of_equations_is_what_the_code_prints():
    from multint.scan.generate import page

    path = Path(__file__).parents[1] / "docs" / "equations.md"
    assert path.read_text(encoding="utf-8") == page(), "run `make equations`"
