"""The engine "steps" on CPU tensors, under Triton's interpreter: prints, a line of JSON for each check, what is wrong with it.

A process of its own (see test_gpu_steps.py), since TRITON_INTERPRET changes triton for all who have imported it.
"""

import json
import os
import sys
import traceback
from dataclasses import fields, replace

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from problems import F32, F64, PHIS, random_problem

from multint.cells import CELLS, State
from multint.integration import Vectors, as_general
from multint.scan import Problem, gpu_engine, reference

TOLERANCE = {F32: 1e-5, torch.bfloat16: 1e-2}  # a few steps of a few units leave little to average
ENDS = ("outputs", "h")  # of which alone a gradient comes
PARTS = {"flow": {}, "tokens": {"symbols": 7, "h": 7}, "x": {"features": 6, "h": 7}}
CHECKS = {
    **{f"{cell}-{phi}": {"cell": cell, "phi": phi} for cell in CELLS for phi in PHIS[cell]},
    **{f"{cell}-{part}-lengths": {"cell": cell, "lengths": True, **PARTS[part]} for cell in CELLS for part in PARTS},
    **{f"{cell}-{part}-resets": {"cell": cell, "restart": 5, **PARTS[part]} for cell in CELLS for part in PARTS},
    **{f"{cell}-of-one": {"cell": cell, "t": 1, "n": 1, "h": 1} for cell in CELLS},
    **{f"{cell}-of-one-features": {"cell": cell, "t": 1, "n": 1, "h": 7, "features": 3} for cell in CELLS},
    **{f"{cell}-one-row": {"cell": cell, "t": 4, "n": 1, "h": 17, "features": 3} for cell in CELLS},
    **{f"{cell}-many-rows": {"cell": cell, "t": 2, "n": 70, "h": 9, "lengths": True, "restart": 70} for cell in CELLS},
    **{f"{cell}-many-units": {"cell": cell, "t": 2, "n": 3, "h": 131, "symbols": 3} for cell in CELLS},
    **{f"{cell}-fresh": {"cell": cell, "features": 6, "h": 7, "fresh": True} for cell in CELLS},
    "lstm-fresh-resets": {"cell": "lstm", "restart": 5, "fresh": True},
    "lstm-turned": {"cell": "lstm", "restart": 5, "turned": True},
    "gru-turned": {"cell": "gru", "features": 6, "lengths": True, "restart": 5, "turned": True},
    "lstm-everything": {"cell": "lstm", "t": 4, "symbols": 3, "lengths": True, "restart": 5},
    "gru_after-without-bias": {"cell": "gru_after", "bias_hn": None},
    **{f"{cell}-only-{end}": {"cell": cell, "features": 6, "only": end} for cell in CELLS for end in ENDS},
    **{f"{cell}-only-outputs-lengths": {"cell": cell, "features": 6, "lengths": True, "only": "outputs"} for cell in CELLS},
    **{f"{cell}-{part}-recompute": {"cell": cell, "recompute": True, **PARTS[part]} for cell in CELLS for part in PARTS},
    **{
        f"{cell}-resets-recompute": {"cell": cell, "recompute": True, "lengths": True, "restart": 5, "features": 6}
        for cell in CELLS
    },
    **{f"{cell}-fresh-recompute": {"cell": cell, "recompute": True, "fresh": True, "features": 6, "h": 7} for cell in CELLS},
    **{f"{cell}-of-one-recompute": {"cell": cell, "recompute": True, "t": 1, "n": 1, "h": 1} for cell in CELLS},
    **{f"{cell}-bfloat16": {"cell": cell, "features": 8, "h": 24, "lengths": True, "restart": 5, "narrow": True} for cell in CELLS},
}


def inputs_of(problem):
    """What gpu.py makes of a problem in float32."""
    p, anew = problem, problem.restart or State(None)
    vectors = torch.stack([v.detach() for v in as_general(p.form, p.vectors, p.u.shape[0], p.u)])
    drawn = (p.wx, p.tokens, p.x, p.u, vectors, p.bias_hn, *p.state, p.lengths, p.resets, *anew)
    return gpu_engine.Inputs(p.cell.name, p.phi, *(None if y is None else y.detach() for y in drawn))


def judged(p, costs):
    """Outputs, last states and gradients of every input by name, of the reference in float64."""
    names = [field.name for field in fields(gpu_engine.Gradients) if getattr(p, field.name) is not None]
    wide = {name: getattr(p, name).to(F64).requires_grad_() for name in names}
    own = replace(p, **wide)
    problem = Problem(
        CELLS[p.cell],
        "general",
        own.wx,
        own.u,
        Vectors(*own.vectors.unbind()),
        State(own.h, own.c),
        p.phi,
        tokens=p.tokens,
        x=own.x,
        bias_hn=own.bias_hn,
        lengths=p.lengths,
        resets=p.resets,
        restart=None if p.resets is None else State(own.restart_h, own.restart_c),
    )
    result = reference.run(problem)
    outputs = [result.outputs, *(part for part in result.state if part is not None)]
    sent = [torch.zeros_like(y) if cost is None else cost.to(F64) for y, cost in zip(outputs, costs, strict=False)]
    found = torch.autograd.grad(outputs, list(wide.values()), sent, allow_unused=True, materialize_grads=True)
    return outputs, dict(zip(names, found, strict=True))


def differs(what, ours, judge, like, bound, least=0.0):
    if ours is None or ours.shape != judge.shape or ours.dtype != like.dtype:
        return [f"{what} is {ours if ours is None else (ours.shape, ours.dtype)}, not {(judge.shape, like.dtype)}"]
    away, size = (ours.to(F64) - judge).norm().item(), max(judge.norm().item(), least)
    return [] if away <= bound * size else [f"{what} is off by {away / (size or 1):.1e} of its norm"]  # not a number: off too


def turned(p):
    """The same problem with its matrices and states stored in the other order."""
    parts = ("wx", "x", "u", "h", "c", "restart_h", "restart_c")
    return replace(p, **{name: getattr(p, name).mT.contiguous().mT for name in parts if getattr(p, name) is not None})


def narrowed(p, dtype=torch.bfloat16):
    """The same problem as a layer of this dtype has it: matrices and inputs are narrow, vectors and states are not."""
    parts = ("wx", "x", "u")
    return replace(p, **{name: getattr(p, name).to(dtype) for name in parts if getattr(p, name) is not None})


def shared(others, results):
    """Whether a result lies in the memory of another, or of one of the others."""
    places = [y.untyped_storage().data_ptr() for y in results]
    return len(set(places)) < len(places) or bool(set(places) & {y.untyped_storage().data_ptr() for y in others})


def unwanted(grads, wanted):
    others = [field.name for field in fields(grads) if field.name not in wanted]
    return [f"gradient of {name}, which nobody wants" for name in others if getattr(grads, name) is not None]


def complaints(t=3, n=5, h=12, **options):
    """What is wrong with one problem."""
    from multint.scan import gpu_steps

    fresh, without = options.pop("fresh", False), "bias_hn" in options and options.pop("bias_hn") is None
    drawn = {name: value for name, value in options.items() if name not in ("turned", "narrow", "only", "recompute")}
    problem = random_problem(**drawn, t=t, n=n, h=h, dtype=F32, seed=3)
    p = inputs_of(replace(problem, bias_hn=None) if without else problem)
    if fresh:
        zeros = torch.zeros_like(p.h)  # one for both, as fused.tensors makes them
        p = replace(p, h=zeros, c=None if p.c is None else zeros, fresh=True)
    if options.get("turned"):
        p = turned(p)
    if options.get("narrow"):
        p = narrowed(p)
    p = replace(p, recompute=options.get("recompute", False))
    bound = TOLERANCE[p.u.dtype]
    costs = [torch.randn(t, n, h).to(p.u.dtype), torch.randn(n, h), None if p.c is None else torch.randn(n, h)]
    if "only" in options:
        costs = [cost if end == options["only"] else None for end, cost in zip(("outputs", "h", "c"), costs, strict=True)]
    judge, expected = judged(p, costs)
    if (reason := gpu_steps.why_not(problem)) is not None:
        return [f"the engine does not take it: {reason}"]

    ours, alone = gpu_steps.forward(p, True), gpu_steps.forward(p, False)
    found = []
    for said, result in (("", ours), (" without a gradient", alone)):
        for (what, like), b in zip({"outputs": p.u, "h": p.h, "c": p.c}.items(), judge, strict=False):
            found += differs(what + said, getattr(result, what), b, like, bound, 0.1 * b.numel() ** 0.5)
    if [(tuple(y.shape), y.dtype) for y in ours.kept] != [(tuple(shape), dtype) for shape, dtype in gpu_steps.kept(p)]:
        found.append(f"kept {[(tuple(y.shape), y.dtype) for y in ours.kept]}, but says {gpu_steps.kept(p)}")
    gates = p.u.shape[0] // h
    if p.recompute and gates > 1 and any(y.shape[-1] == gates * gpu_steps._width(h, p.u.dtype) for y in ours.kept):
        found.append("kept a value for every gate, to form it anew")
    given = [y for y in vars(p).values() if isinstance(y, torch.Tensor)]
    results = [y for y in (ours.outputs, ours.h, ours.c) if y is not None]
    if shared([*given, *ours.kept], results):
        found.append("a result is in memory of an input or of what is kept")
    if len(alone.kept) > 0:
        found.append("kept something without a gradient to come")

    grads = gpu_steps.backward(p, ours.kept, ours.outputs, tuple(costs), frozenset(expected))
    least = 0.1 * max(x.norm().item() for x in (*judge, *expected.values()))  # sums that cancel keep the roundings of their terms
    for name, b in expected.items():
        found += differs(f"gradient of {name}", getattr(grads, name), b, getattr(p, name), bound, least)
        if getattr(grads, name) is not None and getattr(grads, name).storage_offset() != 0:
            found.append(f"gradient of {name} is a part of something larger")
    found += unwanted(grads, expected)
    for name in expected if n == 5 and p.resets is not None else ["u"]:  # some checks are enough for all of them
        one = gpu_steps.backward(p, ours.kept, ours.outputs, tuple(costs), frozenset([name]))
        found += differs(f"gradient of {name} alone", getattr(one, name), expected[name], getattr(p, name), bound, least)
        found += unwanted(one, {name})
    return found


def checked(name):
    """Complaints of one check; whatever it raises is one of them, and does not keep the next from being made."""
    torch.manual_seed(0)
    try:
        return complaints(**CHECKS[name])
    except Exception:
        return [traceback.format_exc(limit=-6)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CHECKS:
        print(json.dumps([name, checked(name)]), flush=True)  # at once: a kernel that writes beside its tensors may end the process
