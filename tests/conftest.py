"""Settings every test shares."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

import multint
from multint.scan import BACKENDS

torch.set_num_threads(1)  # the suite runs in two processes
multint.backends()  # compiles the CPU kernel, if at all, before a test points its cache elsewhere

# the same examples every time, so that a failure belongs to the change at hand; HYPOTHESIS=explore draws new ones, and more
calm = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeat", max_examples=25, derandomize=True, **calm)
settings.register_profile("explore", max_examples=250, **calm)
settings.load_profile(os.environ.get("HYPOTHESIS", "repeat"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def compiled_loop():
    """For tests of the CPU loop; without one they are skipped with the reason."""
    reason = multint.backends()["cpu"]
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def ran(monkeypatch):
    """Names of the backends that have run, in order."""
    names = []
    for name, module in BACKENDS.items():

        def run(problem, name=name, real=module.run):
            names.append(name)
            return real(problem)

        monkeypatch.setattr(module, "run", run)
    return names
