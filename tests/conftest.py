"""Settings every test shares."""

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # the suite runs in two processes

settings.register_profile("multint", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("multint")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
