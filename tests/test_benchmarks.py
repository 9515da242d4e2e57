"""benchmarks/gpu.py without a GPU: its lines, its settings, and what it reports. Speed is measured elsewhere."""

import argparse
import importlib
from pathlib import Path

import pytest
import torch

FLOAT32 = "float32 as torch has it"
PLACES = torch.backends.cuda.matmul, torch.backends.cudnn.rnn


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
        yield importlib.import_module("gpu")


def precisions():
    return [place.fp32_precision for place in PLACES]


def selected(gpu, regex, **options):
    given = {"device": "cpu", "repeats": 1, "allow_reference": True, **options}
    lines = [line for line in gpu.lines(small=True) if regex in line.title]
    assert lines
    return lines[0], argparse.Namespace(**given)


@pytest.mark.parametrize("slow", [False, True])
def test_every_line_has_a_title_of_its_own(gpu, slow):
    titles = [line.title for line in gpu.lines(small=False, slow=slow)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_parts_together_are_all_lines(gpu, n):
    lines = gpu.lines(small=False)
    assert [line for k in range(1, n + 1) for line in gpu.part(lines, k, n)] == lines


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/x", "-1/2"])
def test_a_part_that_does_not_exist_is_refused(gpu, text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a part"):
        gpu.a_part(text)


def test_a_seed_draws_the_same_shapes_within_the_limits(gpu):
    shapes = gpu.drawn(20261119, count=200)
    assert shapes == gpu.drawn(20261119, count=200) != gpu.drawn(20261120, count=200)
    for shape in shapes:
        assert 11 <= shape.t <= 256 and 1 <= shape.n <= 256 and 32 <= shape.h == shape.i <= 2048


def test_drawn_lines_train_and_infer_in_both_precisions_without_a_limit(gpu):
    lines = [line for line in gpu.lines(small=False) if "drawn" in line.name]
    assert {line.dtype for line in lines} == {"bfloat16", FLOAT32}
    assert {line.name.split()[0] for line in lines} == {"training", "inference"}
    assert all(line.limit is None for line in lines)


@pytest.mark.parametrize("allowed, expected", [(True, "tf32"), (False, "ieee")])
def test_tf32_is_set_for_both_kinds_of_product_and_restored(gpu, allowed, expected):
    before = precisions()
    with gpu.tf32(allowed):
        assert precisions() == [expected, expected]
    assert precisions() == before
    with gpu.tf32(None):
        assert precisions() == before


def test_a_float32_line_is_as_exact_as_tf32_allows(gpu):
    line = next(line for line in gpu.lines(small=False) if line.dtype == FLOAT32)
    with gpu.tf32(True):
        assert line.bound == 5e-3
    with gpu.tf32(False):
        assert line.bound == 1e-5


@pytest.mark.parametrize(
    "title", ["inference MILSTM / nn.LSTM eager, float32", "inference MILSTM / nn.LSTM captured", "training MILSTM / nn.LSTM"]
)
def test_a_line_is_measured_without_a_gpu(gpu, title):
    line, given = selected(gpu, title)
    row = gpu.measure(line, given)
    assert row["benchmark"] == line.name and float(row["ratio"]) > 0


def test_an_inference_step_has_no_gradients(gpu):
    line, given = selected(gpu, "inference")
    for side in vars(line.build(given.device)).values():
        if side is not None:
            (output,) = side.step()
            assert not output.requires_grad and not side.layer.training and side.leaves == {}


def test_a_line_that_disagrees_has_no_row_and_fails_the_run(gpu, monkeypatch):
    line, given = selected(gpu, "inference")
    monkeypatch.setattr(gpu, "disagreement", lambda side: (1.0, "output 0"))
    reason = gpu.measure(line, given)
    assert "disagrees" in reason
    with pytest.raises(SystemExit):
        gpu.common.go([(line.title, line)], lambda line: reason, None)


def test_jax_that_is_not_installed_skips_its_lines_and_fails_nothing(gpu, monkeypatch, capsys):
    line, given = selected(gpu, "JAX")
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    gpu.common.go([(line.title, line)], lambda line: gpu.measure(line, given), None)
    assert "skipped: jax is not installed" in capsys.readouterr().out
