"""A device that multiplies wrongly is found out."""

import pytest
import torch
from torch import nn

from multint.paper import engine, products
from multint.paper.runs import RunError

CPU = torch.device("cpu")
MODEL = nn.Sequential(nn.Embedding(5, 24), nn.Linear(24, 40))


def one_tile_off(a, b):
    out = torch.matmul(a, b)
    out[-1, -1] += 1
    return out


def overflowing(a, b):
    return torch.matmul(a, b).index_fill_(1, torch.tensor([0]), float("nan"))


@pytest.mark.parametrize("size", [(1, 1, 1), (64, 2048, 130), (7, 10_000, 3)])
@pytest.mark.parametrize("narrow", [None, torch.bfloat16, torch.float16])
def test_right_products_pass_in_every_precision(size, narrow):
    with torch.autocast("cpu", narrow, enabled=narrow is not None):
        assert products.wrong_rows(size, CPU) == 0


def test_the_numbers_are_not_all_zero():
    a = products._whole((64, 64), torch.Generator().manual_seed(0), CPU)
    assert set(a.unique().tolist()) == {-1, 0, 1} and 0.05 < float(a.abs().mean()) < 0.25


def test_a_single_value_that_is_off_is_seen():
    assert products.wrong_rows((64, 32, 130), CPU, one_tile_off) == 1
    assert products.wrong_rows((64, 32, 130), CPU, overflowing) == 64


def test_every_matrix_is_tried_forwards_backwards_and_for_its_gradient():
    assert set(products.sizes(MODEL[1], [3, 9])) == {(n, 24, 40) for n in (3, 9)} | {(n, 40, 24) for n in (3, 9)} | {
        (40, n, 24) for n in (3, 9)
    }
    assert max(n for n, _, _ in products.sizes(MODEL, [10**9])) == products.MOST_ROWS


def test_the_message_names_the_product_and_the_way_out(monkeypatch):
    with pytest.raises(
        RunError, match=r"of \(3, 24\) times \(24, 5\).* 1 of 3 rows .*another than cpu \(--device\).*nothing was trained"
    ):
        products.check(MODEL, [3], CPU, one_tile_off)
    products.check(MODEL, [3], CPU)
    monkeypatch.setenv(products.PERCENTAGE, "15")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"multi_processor_count": 18}))
    assert "PERCENTAGE=15 leaves it 18 multiprocessors" in products.way_out(torch.device("cuda"))


def test_a_run_on_a_gpu_tries_its_products_before_it_trains(monkeypatch):
    """With the sizes of its batch, in its precision."""
    tried = []
    monkeypatch.setattr(products, "check", lambda *given: tried.append((*given, torch.is_autocast_enabled("cpu"))))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)  # for the whole process
    fit = engine._Fit.__new__(engine._Fit)
    fit.fabric, fit.model, fit.p, fit.rank, fit.world = engine.make_fabric("cpu", precision="bf16"), MODEL, engine.Progress(), 0, 1
    fit.task = type("Task", (), {"epoch": lambda *_: [(torch.zeros(7, 3),)], "size": lambda _, batch: batch[0].numel()})()
    fit.try_products()
    assert tried == [(MODEL, (7, 3, 21), CPU, True)]
