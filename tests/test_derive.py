"""What kernels are generated from: every piece, evaluated on numbers, is the step on tensors and autograd's derivative of it."""

import pytest
import torch
from helpers import unchecked
from torch.testing import assert_close

from multint.cells import CELLS, State
from multint.integration import Vectors, integrate
from multint.scan import Problem, build, derive, generate, reference
from multint.scan.derive import ONE, ZERO, value

PHI = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda x: x}
SLOPE = {"tanh": lambda y: 1 - y * y, "relu": lambda y: (y > 0).double(), "identity": torch.ones_like}
EXACT = {"rtol": 1e-12, "atol": 1e-12}

each_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
PAIRS = {f"{cell.name}-{phi}": (cell, phi) for cell in CELLS.values() for phi in PHI if phi == "tanh" or cell.name == "rnn"}
each_phi = pytest.mark.parametrize("cell, phi", PAIRS.values(), ids=list(PAIRS))


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def evaluate(term, inputs, phi="tanh"):
    """A term as a number, given those of its inputs."""
    x = [evaluate(arg, inputs, phi) for arg in term.args]
    operations = {
        "input": lambda: inputs[term.name],
        "number": lambda: torch.tensor(term.number, dtype=torch.float64),
        "+": lambda: x[0] + x[1],
        "*": lambda: x[0] * x[1],
        "one minus": lambda: 1 - x[0],
        "minus": lambda: -x[0],
        "sigmoid": lambda: x[0].sigmoid(),
        "tanh": lambda: x[0].tanh(),
        "phi": lambda: PHI[phi](x[0]),
        "slope": lambda: SLOPE[phi](x[0]),
    }
    return operations[term.op]()


def outputs(piece, inputs, phi="tanh"):
    return {name: evaluate(term, inputs, phi) for name, term in piece.outputs.items()}


def leaves(cell, size=7):
    """Everything a step may see, for some units of one row."""
    names = ["h", "c", "bias_hn", *(f"{part}_{gate}" for gate in cell.gates for part in ("scale", "shift", "uz"))]
    return {name: drawn(size).requires_grad_() for name in names}


def on_tensors(cell, x, phi):
    """The step on tensors, every U z a leaf; and what went into a second product."""
    operands = []

    def pre(gate, source, after=None):
        if source is not x["h"]:
            operands.append(source)
        uz = x[f"uz_{gate}"] if after is None else after * (x[f"uz_{gate}"] + x["bias_hn"])
        return x[f"scale_{gate}"] * uz + x[f"shift_{gate}"]

    new = cell.step(pre, State(x["h"], x["c"]), reference.TensorMaths(PHI[phi]))
    return {"h_new": new.h, "c_new": new.c}, {"operand": operands[0]} if operands else {}


def assert_pulls_back_as_autograd_does(piece, values, x, phi):
    seeds = {name: drawn(*y.shape) for name, y in values.items()}
    found = outputs(piece, x | {f"d_{name}": seed for name, seed in seeds.items()}, phi)
    expected = torch.autograd.grad(
        list(values.values()), list(x.values()), list(seeds.values()), allow_unused=True, retain_graph=True
    )
    assert set(found) == {f"d_{name}" for name, g in zip(x, expected, strict=True) if g is not None}
    for name, g in zip(x, expected, strict=True):
        if g is not None:
            assert_close(found[f"d_{name}"].detach(), g, **EXACT, msg=lambda m, name=name: f"gradient of {name}: {m}")


@each_phi
def test_the_pieces_of_a_step_are_the_step_and_its_gradients(cell, phi):
    d, x = derive.derive(cell), leaves(cell)
    state, operand = on_tensors(cell, x, phi)
    state = {name: state[name] for name in d.step.outputs}
    assert set(state) == {f"{part}_new" for part in cell.carries}
    assert_close(outputs(d.step, x, phi), state, **EXACT)
    assert_pulls_back_as_autograd_does(d.step_back, state, x, phi)
    assert (d.operand is None) is (d.operand_back is None) is (not operand)
    if operand:
        assert_close(outputs(d.operand, x, phi), operand, **EXACT)
        assert_pulls_back_as_autograd_does(d.operand_back, operand, x, phi)


@each_phi
def test_a_derivative_in_two_pieces_is_the_derivative(cell, phi):
    back, x = derive.derive(cell).step_back, leaves(cell)
    seeds = {f"d_{part}_new": drawn(7) for part in cell.carries}
    wanted = (*(f"d_shift_{gate}" for gate in cell.gates), "d_h", "d_c")
    before, after = derive.prepared(back, wanted)
    assert not any(name.endswith("_new") for name in before.used())
    assert after.used() <= {*before.outputs, *seeds}
    found = outputs(after, outputs(before, x, phi) | seeds, phi)
    expected = outputs(back, x | seeds, phi)
    assert set(found) == {name for name in wanted if name in expected}
    for name, y in found.items():
        assert_close(y, expected[name], **EXACT)


def test_an_lstm_is_prepared_by_six_coefficients():
    before, _ = derive.prepared(derive.derive(CELLS["lstm"]).step_back, ("d_shift_i", "d_shift_f", "d_shift_z", "d_shift_o", "d_c"))
    assert len(before.outputs) == 6


@each_cell
def test_pieces_joined_by_matrix_products_are_a_step_of_the_reference(cell):
    h, d = 3, derive.derive(cell)
    gates, rows = {gate: slice(k * h, (k + 1) * h) for k, gate in enumerate(cell.gates)}, len(cell.gates) * h
    wx, u, vectors, state = drawn(rows), drawn(rows, h), Vectors(*(drawn(rows) for _ in range(4))), State(drawn(1, h), drawn(1, h))
    bias_hn = drawn(h) if "bias_hn" in d.step.used() else None
    x = {"h": state.h[0], "c": state.c[0], "bias_hn": bias_hn}
    for gate, own in gates.items():
        x[f"scale_{gate}"] = vectors.alpha[own] * wx[own] + vectors.beta1[own]
        x[f"shift_{gate}"] = vectors.beta2[own] * wx[own] + vectors.b[own]
    for k, (gate, own) in enumerate(gates.items()):  # the gates of the second product come last
        x[f"uz_{gate}"] = u[own] @ (x["h"] if k < cell.shared else outputs(d.operand, x)["operand"])
    problem = Problem(cell, "general", wx.view(1, 1, rows), u, vectors, state, bias_hn=bias_hn)
    expected = reference.step(problem, 0, wx.view(1, rows), state, None)
    for name, found in outputs(d.step, x).items():
        assert_close(found, getattr(expected, name[0])[0], **EXACT)


@unchecked()  # symbols are no tensors
def test_the_affine_form_is_equation_4():
    _, scale, shift = derive.affine()
    numbers = {name: drawn(5) for name in ("wx", "uz", "alpha", "beta1", "beta2", "b")}
    whole = evaluate(scale, numbers) * numbers["uz"] + evaluate(shift, numbers)
    assert_close(whole, integrate(**numbers), **EXACT)
    assert not any(term.name == "uz" for term in derive.ordered([scale, shift]))


def test_a_value_that_is_used_twice_gets_both_gradients():
    x, y = value("x"), value("y")
    product = x * y
    found = derive.pull_back([(product * product + x, ONE)], [x, y])
    at = {"x": torch.tensor(3.0, dtype=torch.float64), "y": torch.tensor(-2.0, dtype=torch.float64)}
    assert [evaluate(g, at).item() for g in found] == [2 * 3 * 4 + 1, 2 * 9 * -2]


def test_zeros_and_ones_leave_no_operations_behind():
    x = value("x")
    assert x + ZERO is x and ZERO + x is x
    assert x * ONE is x and ONE * x is x
    assert x * ZERO is ZERO and ZERO * x is ZERO
    assert derive.negative(ZERO) is ZERO


def test_statements_name_every_value_before_it_is_used():
    """Run as Python, the lines a kernel is printed from give the value of the term they came from."""
    spelled = {
        "+": "{} + {}",
        "*": "{} * {}",
        "one minus": "1 - {}",
        "minus": "-{}",
        "sigmoid": "{}.sigmoid()",
        "tanh": "{}.tanh()",
    }
    cell = CELLS["lstm"]
    piece, x = derive.derive(cell).step_back, {name: x.detach() for name, x in leaves(cell).items()}
    places = x | {"d_h_new": drawn(7), "d_c_new": drawn(7)}
    names = dict(places)
    made = []
    for name, expression in derive.statements(piece, lambda term, args: spelled[term.op].format(*args), str):
        names[name] = eval(expression, {}, names)
        made.append(name)
    assert len(made) == len(set(made)), "a name stands for one value"
    assert_close({name: names[name] for name in piece.outputs}, outputs(piece, places), **EXACT)


@unchecked()  # Eq. 4 runs on symbols here
def test_the_header_of_the_kernels_is_what_the_code_prints():
    path = build.SOURCES / "cells.h"
    assert path.read_text(encoding="utf-8") == generate.header(), "run `make equations`"


@unchecked()
def test_the_triton_kernels_are_fresh():
    path = build.SOURCES.with_name("gpu_cells.py")
    assert path.read_text(encoding="utf-8") == generate.triton_module(), "run `make equations`"
