"""A device that multiplies wrongly is found out."""

import pytest
import torch
from torch import nn

from multint.paper import engine, processes, products, session
from multint.paper.charlm import task
from multint.paper.experiment import Team
from multint.paper.runs import RunError

CPU = torch.device("cpu")
MODEL = nn.Sequential(nn.Embedding(5, 24), nn.Linear(24, 40))


def one_value_off(a, b):
    out = torch.matmul(a, b)
    out[-1, -1] += 1
    return out


def overflowing(a, b):
    return torch.matmul(a, b).index_fill_(1, torch.tensor([0]), float("nan"))


@pytest.mark.parametrize("o, i, n", [(1, 1, 1), (130, 2048, 64), (3, 7, 20_000)])
@pytest.mark.parametrize("narrow", [None, torch.bfloat16, torch.float16])
def test_right_products_pass_in_every_precision(o, i, n, narrow):
    with torch.autocast("cpu", narrow, enabled=narrow is not None):
        assert products.fault(nn.Linear(i, o), [n], CPU) is None


def test_every_matrix_is_tried_forwards_backwards_and_for_its_gradient_but_no_table():
    tried = [(a.shape, b.shape) for a, b in products.operands(MODEL, 3, CPU)]
    assert tried == [((3, 24), (24, 40)), ((3, 40), (40, 24)), ((40, 3), (3, 24))]
    for a, b in products.operands(MODEL, 200, CPU):
        assert set(a.unique().tolist()) == set(b.unique().tolist()) == {-1, 0, 1}
        assert 1 < float((a @ b).abs().max()) < 256, "which bfloat16 has exactly"


def test_a_single_value_that_is_off_is_seen():
    a, b = next(products.operands(MODEL, products.ROWS + 9, CPU))
    assert products.wrong_rows(a, b) == 0
    assert products.wrong_rows(a, b, one_value_off) == 1
    assert products.wrong_rows(a, b, overflowing) == len(a)


def test_the_message_names_the_product_and_the_way_out(monkeypatch):
    said = products.fault(MODEL, [9, 3], CPU, one_value_off)
    assert said.startswith("this device cannot multiply: of (3, 24) times (24, 40), in whole numbers, 1 of 3 rows came out wrong.")
    assert said.endswith("Use another than cpu (--device)")
    monkeypatch.setenv(products.PERCENTAGE, "15")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"multi_processor_count": 18}))
    assert "18 multiprocessors; CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=15" in products.way_out(torch.device("cuda"))


def fitting(world=1, others=0.0):
    """A fit that is about to check products, among other processes with so many faults."""
    fit = engine._Fit.__new__(engine._Fit)
    fit.fabric, fit.module, fit.world = processes.make_fabric("cpu"), MODEL, world
    fit.task = type("Task", (), {"product_rows": lambda _, world: {6 // world}})()
    fit.fabric.all_reduce = lambda x, reduce_op: x + others
    return fit


def test_a_device_that_is_wrong_ends_all_processes(monkeypatch):
    tried = []
    monkeypatch.setattr(products, "fault", lambda model, rows, device: tried.append((model, rows, device)))
    fitting().check_products()
    fitting(world=2).check_products()
    assert tried == [(MODEL, {6}, CPU), (MODEL, {3}, CPU)]
    with pytest.raises(RunError, match="of 2 processes 1 have a device that cannot multiply.*nothing was trained in this session"):
        fitting(world=2, others=1.0).check_products()
    monkeypatch.setattr(products, "fault", lambda *_: "mine is wrong")
    with pytest.raises(RunError, match="mine is wrong; nothing"):
        fitting(world=2, others=1.0).check_products()


@pytest.mark.parametrize("carry", ["carry=true", "carry=false"])
def test_a_task_names_the_rows_of_training_and_of_scoring(text, monkeypatch, carry):
    settings = ["hidden=4", "batch=4", "length=10", "evaluation_streams=3", carry]
    own = task.CharTask(session.job("charlm", 0, settings, {"text": text}), CPU)
    model = own.build()
    seen = set()
    model.core.register_forward_pre_hook(lambda _, args: seen.add(args[0].shape[1]))
    model.out.register_forward_pre_hook(lambda _, args: seen.add(args[0].shape[:-1].numel()))
    own.loss(model, own.epoch(0, Team())[0], None)
    for split in ("valid", "test"):
        for protocol in (own.carried, own.reset):
            protocol(model, split, Team())
    named = own.product_rows(1)
    assert {4, 40, 3, 600} <= named & seen
    assert len(seen - named) <= 6, f"except for the last of each: {sorted(seen - named)}"
    assert own.product_rows(2) > {2, 20, 400}
