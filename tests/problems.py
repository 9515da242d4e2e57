"""What every backend is judged on: random problems and layers, and their results beside the reference's in float64."""

import copy

import torch
from helpers import assert_same, make, mapped, scalar, tensors
from hypothesis import strategies as st
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from multint.cells import CELLS, State
from multint.integration import FORMS, Vectors
from multint.scan import PHI, Problem, operator, reference, scan

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
PHIS = {cell: PHI if cell == "rnn" else ("tanh",) for cell in CELLS}


# ---- problems ----


def random_problem(
    cell,
    form="general",
    phi="tanh",
    t=5,
    n=3,
    h=4,
    symbols=0,
    features=0,
    lengths=False,
    restart=0,
    dtype=F64,
    state=None,
    seed=0,
    device="cpu",
):
    """A problem with everything in it random; every floating tensor asks for its gradient.

    Its input is W x, or with ``symbols`` tokens, or with ``features`` x itself; ``restart`` are rows of that, 0 for no resets;
    ``state`` is the dtype of what is not stored narrow under autocast. Drawn on the CPU: the same values on every device.
    """
    generator = torch.Generator().manual_seed(seed)

    def r(*shape, dtype=dtype, scale=1.0):
        return (torch.randn(*shape, generator=generator, dtype=F64) * scale).to(dtype).to(device).requires_grad_()

    def parts(rows):
        return State(r(rows, h, dtype=state or dtype), r(rows, h, dtype=state or dtype) if "c" in cell.carries else None)

    cell = CELLS[cell]
    rows = len(cell.gates) * h
    return Problem(
        cell,
        form,
        r(symbols, rows) if symbols else r(rows, features, scale=features**-0.5) if features else r(t, n, rows),
        r(rows, h, scale=0.5 / h**0.5),  # or the recurrence is chaotic, and the last digit decides
        Vectors(**{name: r(rows, dtype=state or dtype) for name in (*FORMS[form], "b")}),
        parts(n),
        phi,
        tokens=torch.randint(symbols, (t, n), generator=generator).to(device) if symbols else None,
        x=r(t, n, features) if features else None,
        bias_hn=r(h, dtype=state or dtype) if cell.name == "gru_after" else None,
        lengths=torch.randint(t + 1, (n,), generator=generator).to(device) if lengths else None,
        resets=(torch.rand(t, n, generator=generator) < 0.4).to(device) if restart else None,
        restart=parts(restart) if restart else None,
    )


def trained_problem(cell, t, n, h, features, dtype, seed=0, device="cpu"):
    """A layer's problem as training meets it: weights within 1 / sqrt(h), vectors about {1, 1, 1, 0}, a state in float32."""
    generator = torch.Generator().manual_seed(seed)

    def r(*shape, about=0.0, scale=1.0, dtype=dtype):
        return (about + scale * (2 * torch.rand(*shape, generator=generator) - 1)).to(dtype).to(device).requires_grad_()

    cell = CELLS[cell]
    rows, vectors = len(cell.gates) * h, {"scale": 0.1, "dtype": F32}
    return Problem(
        cell,
        "general",
        r(rows, features, scale=h**-0.5),
        r(rows, h, scale=h**-0.5),
        Vectors(*(r(rows, about=about, **vectors) for about in (1.0, 1.0, 1.0, 0.0))),
        State(r(n, h, dtype=F32), r(n, h, dtype=F32) if "c" in cell.carries else None),
        x=r(t, n, features),
        bias_hn=r(h, **vectors) if cell.name == "gru_after" else None,
    )


SMALL = st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(1, 70))
MANY_ROWS = st.tuples(st.integers(1, 3), st.sampled_from([95, 96, 97, 130, 193, 201, 230]), st.integers(1, 40))
OPTIONS = {
    "form": st.sampled_from(sorted(FORMS)),
    "source": st.sampled_from([{}, {}, {"symbols": 1}, {"symbols": 7}, {"features": 1}, {"features": 7}, {"features": 40}]),
    "lengths": st.booleans(),
    "resets": st.sampled_from(["none", "from one row", "from n rows"]),
    "seed": st.integers(0, 1000),
}


@st.composite
def drawn_problems(draw, phis=PHI, cells=tuple(CELLS), **fixed):
    """Options of random_problem, which is called in the test: the shape checker may draw from `random`."""
    cell = draw(st.sampled_from(cells))
    t, n, h = draw(st.one_of(SMALL, SMALL, SMALL, MANY_ROWS))
    chosen = {name: draw(option) for name, option in OPTIONS.items()}
    source = chosen.pop("source")
    chosen["restart"] = {"none": 0, "from one row": 1, "from n rows": n}[chosen.pop("resets")]
    chosen["phi"] = draw(st.sampled_from(phis)) if cell == "rnn" else "tanh"
    return {"cell": cell, "t": t, "n": n, "h": h, **source, **chosen, **fixed}


def values(result):
    return [result.outputs, *(part for part in result.state if part is not None)]


def leaves(problem):
    return {name: x for name, x in operator.flatten(problem).items() if x.requires_grad}


def widened(problem):
    """The same problem in float64: the judge of narrower ones."""
    found = operator.flatten(problem)
    wide = [x.detach().to(F64).requires_grad_() if x.is_floating_point() else x for x in found.values()]
    return operator.rebuild(wide, " ".join(found), problem.cell.name, problem.form, problem.phi)


# ---- the judge ----


def assert_near(ours, judge, tolerance, what, least=0.0):
    """Equal to within a share of the judge's norm, or of ``least`` if that is more."""
    away, size = (ours.to(F64) - judge).norm().item(), max(judge.norm().item(), least)
    assert ours.shape == judge.shape, what
    assert away <= tolerance * size, f"{what} is off by {away / (size or 1):.1e} of its norm, {tolerance:.0e} is allowed"


def pulled(results, problem, costs):
    """Gradients of every leaf."""
    costs = [cost.to(y.dtype) for cost, y in zip(costs, results, strict=True)]
    return torch.autograd.grad(results, list(leaves(problem).values()), costs, allow_unused=True, materialize_grads=True)


# of values about one in size: what a norm counts as at least, since narrow values near zero have few digits
SHARES = {F64: 0.0, F32: 0.1, F16: 0.1, BF16: 0.5}


def assert_agrees(problem, tolerance, backend="cpu", differentiate=True, share=None):
    """Outputs and every gradient are the reference's in float64; with ``share=0`` each to within its own norm, however small."""
    wide, share = widened(problem), SHARES[problem.u.dtype] if share is None else share
    ours, judge = values(scan(problem, backend)), values(reference.run(wide))
    with torch.no_grad():
        without = values(scan(problem, backend))
    for what, a, alone, b in zip(("outputs", "last h", "last c")[: len(judge)], ours, without, judge, strict=True):
        least = share * b.numel() ** 0.5
        assert_near(a, b, tolerance, what, least)
        assert_near(alone, b, tolerance, f"{what} without a gradient", least)
    if not differentiate:
        return
    generator = torch.Generator().manual_seed(1)
    costs = [torch.randn(y.shape, generator=generator).to(y.dtype).to(y.device) for y in ours]
    found, expected = pulled(ours, problem, costs), pulled(judge, wide, costs)
    # sums that cancel keep the roundings of their terms, and slopes of saturated units those of 1 - y^2
    least = share * max(x.norm().item() for x in (*costs, *expected))
    for (name, x), a, b in zip(leaves(problem).items(), found, expected, strict=True):
        assert a.dtype == x.dtype
        assert_near(a, b, tolerance, f"gradient of {name}", least)


def bits(problem, backend="cpu"):
    """Outputs and gradients."""
    found = values(scan(problem, backend))
    return [*found, *torch.autograd.grad([y.sin().sum() for y in found], list(leaves(problem).values()))]


def equal(ours, judge):
    return all(torch.equal(a, b) for a, b in zip(ours, judge, strict=True))


# ---- layers ----


def pair(kind, *args, backend="cpu", builder=make, **kwargs):
    """A layer of the backend, and the same one of the reference."""
    ours = builder(kind, *args, backend=backend, **kwargs)
    judge = copy.deepcopy(ours)
    judge.backend = "reference"
    return ours, judge


def all_gradients(module, result, *inputs, **options):
    """Gradients of ``scalar(result)`` by name, for the inputs that ask for one and all parameters; zero for those not used."""
    named = {f"input {k}": x for k, x in enumerate(tensors(inputs)) if x.requires_grad}
    named |= {name.removeprefix("_orig_mod."): p for name, p in module.named_parameters()}  # as a compiled module calls its own
    found = torch.autograd.grad(scalar(result), list(named.values()), allow_unused=True, materialize_grads=True, **options)
    return dict(zip(named, found, strict=True))


def assert_same_results_and_gradients(ours, judge, *inputs, rtol=1e-10, atol=1e-12, **more):
    found, expected = ours(*inputs, **more), judge(*inputs, **more)
    assert_same(found, expected, rtol=rtol, atol=atol)
    with torch.no_grad():
        assert_same(ours(*inputs, **more), mapped(torch.detach, expected), rtol=rtol, atol=atol)
    grads = [all_gradients(module, result, *inputs) for module, result in ((ours, found), (judge, expected))]
    torch.testing.assert_close(*grads, rtol=rtol, atol=atol)


def judged(module, x, cost):
    """Outputs and gradients in float64, from the values the narrow module starts with."""
    judge = copy.deepcopy(module).double()
    judge.backend = "reference"
    output, state = judge(x.double() if x.is_floating_point() else x)
    return output, tensors(state), torch.autograd.grad((output * cost.double()).sum(), list(judge.parameters()))


def rounded_weights(module, dtype=BF16):
    """What autocast makes of the weights is what they are already."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.startswith("weight_hh"):
                p.mul_(0.5)
            p.copy_(p.to(dtype).to(p.dtype))
    return module


class Recorder:
    """A compiler that leaves the graphs as they are and writes down which operators of ours are in them."""

    def __init__(self):
        self.forward, self.backward, self.inference, self.graphs = set(), set(), set(), 0

    def into(self, names):
        def compile(graph, inputs):
            self.graphs += 1
            names.update(name for node in graph.graph.nodes if "multint" in (name := str(node.target)))
            return make_boxed_func(graph.forward)

        return compile

    def __call__(self, graph, inputs):
        backend = aot_autograd(
            fw_compiler=self.into(self.forward),
            bw_compiler=self.into(self.backward),
            inference_compiler=self.into(self.inference),
        )
        return backend(graph, inputs)
