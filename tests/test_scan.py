"""The wall between maths and speed: every backend against the reference, outputs and every gradient."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from multint.cells import CELLS, State
from multint.integration import FORMS, Vectors
from multint.scan import BACKENDS, Problem, exported, operator, reference, scan

T, N, H = 5, 3, 4


def random_problem(
    cell, form="general", t=T, n=N, h=H, p=None, tokens=False, features=0, lengths=False, resets=False, hold=False, drop=False
):
    """A problem with everything in it random; every floating tensor asks for its gradient. With ``features`` x itself is given."""

    def r(*shape):
        return torch.randn(*shape, dtype=torch.float64).requires_grad_()

    cell = CELLS[cell]
    rows, out = len(cell.gates) * h, p or h
    state = State(r(n, out), r(n, h) if "c" in cell.carries else None)
    return Problem(
        cell,
        form,
        r(6, rows) if tokens else r(rows, features) if features else r(t, n, rows),
        r(rows, out),
        Vectors(**{name: r(rows) for name in (*FORMS[form], "b")}),
        state,
        tokens=torch.randint(6, (t, n)) if tokens else None,
        x=r(t, n, features) if features else None,
        bias_hn=r(h) if cell.name == "gru_after" else None,
        weight_hr=r(p, h) if p else None,
        lengths=torch.randint(1, t + 1, (n,)) if lengths else None,
        resets=torch.rand(t, n) < 0.4 if resets else None,
        restart=State(r(1, out), None if state.c is None else r(1, h)) if resets else None,
        hold=State(torch.rand(t, n, out, dtype=torch.float64)) if hold else None,
        drop=torch.rand(n, out, dtype=torch.float64) if drop else None,
    )


def values(result):
    return [result.outputs, *(part for part in result.state if part is not None)]


def assert_same_outputs_and_gradients(run, problem, rtol=1e-12):
    ours, judge = values(run(problem)), values(reference.run(problem))
    for a, b in zip(ours, judge, strict=True):
        assert_close(a, b, rtol=rtol, atol=rtol)
    leaves = {name: x for name, x in operator.flatten(problem).items() if x.requires_grad}
    cost = [torch.randn_like(x) for x in judge]
    grads = [torch.autograd.grad(outputs, list(leaves.values()), cost, allow_unused=True) for outputs in (ours, judge)]
    for name, a, b in zip(leaves, *grads, strict=True):
        a, b = (torch.zeros_like(leaves[name]) if g is None else g for g in (a, b))
        assert_close(a, b, rtol=rtol, atol=rtol, msg=lambda m, name=name: f"gradient of {name}: {m}")


ALL = {"lengths": True, "resets": True, "hold": True, "drop": True}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, ALL, {"tokens": True, "t": 1, "n": 1, "h": 1}, {"features": 3}])
def test_operator_agrees_with_reference(cell, form, options):
    assert_same_outputs_and_gradients(operator.run, random_problem(cell, form, **options))


def test_operator_agrees_with_reference_on_a_projected_lstm():
    assert_same_outputs_and_gradients(operator.run, random_problem("lstm", p=2, **ALL))


@pytest.mark.traced
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("source", [{}, {"tokens": True}, {"features": 3}], ids=["flow", "tokens", "features"])
def test_the_exported_loop_agrees_with_reference(cell, source):
    problem = random_problem(cell, lengths=True, resets=True, **source)
    for ours, judge in zip(values(exported.run(problem)), values(reference.run(problem)), strict=True):
        assert_close(ours, judge, rtol=1e-12, atol=1e-12)
        assert not ours.requires_grad, "torch's loop operator is never differentiated"


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("source", [{"tokens": True}, {"features": 3}], ids=["tokens", "features"])
def test_flatten_and_rebuild_are_inverse(cell, source):
    problem = random_problem(cell, **source, **ALL)
    tensors = operator.flatten(problem)
    again = operator.rebuild(list(tensors.values()), " ".join(tensors), cell, problem.form, problem.phi)
    for name, tensor in operator.flatten(again).items():
        assert tensor is tensors[name], name


def test_an_explicit_backend_raises_its_reason_instead_of_falling_back():
    problem = random_problem("rnn")
    with pytest.raises(ValueError, match="backend 'operator' cannot run this: only torch.compile"):
        scan(problem, "operator")
    with pytest.raises(ValueError, match="backend 'exported' cannot run this: only torch.export"):
        scan(problem, "exported")
    with pytest.raises(
        ValueError, match="Unknown backend 'cudnn'. Select from 'auto', 'exported', 'cpu', 'gpu', 'operator', 'reference'"
    ):
        scan(problem, "cudnn")
    with pytest.raises(ValueError, match="backend 'cpu' cannot run this: zoneout is not in the compiled loop"):
        scan(random_problem("rnn", hold=True), "cpu")
    assert_close(scan(problem).outputs, scan(problem, "reference").outputs)


def test_every_backend_is_two_functions():
    for module in BACKENDS.values():
        assert callable(module.why_not) and callable(module.run)


def test_large_pre_activations_stay_finite():
    """Products make large values: tanh and sigmoid must not overflow on the way."""
    problem = random_problem("lstm")
    problem = replace(problem, wx=(problem.wx * 1e6).detach().requires_grad_())
    result = reference.run(problem)
    grads = torch.autograd.grad(result.outputs.sum(), [problem.wx, problem.u])
    assert result.outputs.isfinite().all() and all(g.isfinite().all() for g in grads)


IMPORT = """
import sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import multint
spent = time.perf_counter() - start
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names - {"multint", "torch"}), round(spent, 3))
"""


def test_import_adds_nothing_but_torch():
    result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("[] "), result.stdout
