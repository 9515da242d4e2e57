"""benchmarks/gpu.py without a GPU: its lines, its settings, and what it reports. Speed is measured elsewhere."""

import importlib
from pathlib import Path

import pytest
import torch

PLACES = torch.backends.cuda.matmul, torch.backends.cudnn.rnn


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
        yield importlib.import_module("gpu")


def precisions():
    return [place.fp32_precision for place in PLACES]


@pytest.mark.parametrize("allowed, expected", [(True, "tf32"), (False, "ieee")])
def test_tf32_is_set_for_both_kinds_of_product_and_restored(gpu, allowed, expected):
    before = precisions()
    with gpu.tf32(allowed):
        assert precisions() == [expected, expected]
    assert precisions() == before
    with gpu.tf32(None):
        assert precisions() == before


def test_a_float32_line_is_as_exact_as_tf32_allows(gpu):
    line = next(line for line in gpu.lines(small=False) if line.dtype == "float32")
    with gpu.tf32(True):
        assert line.bound == 5e-3
    with gpu.tf32(False):
        assert line.bound == 1e-5
