"""How is a cell carried along a sequence, fast? One contract, several backends.

A backend is a module with ``why_not(problem) -> str | None`` and ``run(problem) -> Result``. ``"auto"`` takes the first that
answers None; an explicit choice raises its reason. Nothing falls back in silence.
"""

from types import ModuleType

from multint.scan import cpu, exported, gpu, operator, reference
from multint.scan.contract import PHI, Norms, Problem, Result, StepNorm
from multint.scan.streams import borrow, side_by_side

BACKENDS: dict[str, ModuleType] = {"exported": exported, "cpu": cpu, "gpu": gpu, "operator": operator, "reference": reference}

__all__ = [
    "BACKENDS",
    "PHI",
    "Norms",
    "Problem",
    "Result",
    "StepNorm",
    "backends",
    "borrow",
    "check_backend",
    "scan",
    "side_by_side",
]


def backends() -> dict[str, str | None]:
    """Every backend by name, with the reason why this machine cannot run it, or None if it can; so too the parts it has.

    >>> backends()["reference"] is None
    True
    """
    found = {}
    for name, module in BACKENDS.items():
        found[name] = module.missing() if hasattr(module, "missing") else None
        parts = getattr(module, "ENGINES", {}) | getattr(module, "HELPERS", {})
        found |= {f"{name}: {part}": own.missing() for part, own in parts.items()}
    return found


def check_backend(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"backend should be of type str, got: {type(name).__name__}")
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"Unknown backend {name!r}. Select from {', '.join(map(repr, ('auto', *BACKENDS)))}.")
    return name


def scan(problem: Problem, backend: str = "auto") -> Result:
    """Carry ``problem.cell`` along the sequence on the named backend."""
    if check_backend(backend) == "auto":
        module = next(module for module in BACKENDS.values() if module.why_not(problem) is None)
    else:
        module = BACKENDS[backend]
        reason = module.why_not(problem)
        if reason is not None:
            raise ValueError(f"backend {backend!r} cannot run this: {reason}")
    result: Result = module.run(problem)
    return result
