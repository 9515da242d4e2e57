"""Does this GPU multiply matrices rightly?

It need not: with 18 or 52 of an H200's 132 multiprocessors, which is what NVIDIA's MPS gives a process for 15 or 40 percent, cuBLAS
of CUDA 13.0 returns wrong products without a word, and training on them looks like a bad model. So before a run the products of its
model are tried with whole numbers, whose sums are exact in every precision and order.
"""

import math
import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from multint.paper.runs import RunError

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MOST_ROWS = 4096
DENSITY = 1 / 8  # of values that are not zero: sums of 10,000 products then stay far below 256, which bfloat16 still has exactly

Multiply = Callable[[Tensor, Tensor], Tensor]
Size = tuple[int, int, int]  # rows, terms, columns


def check(model: nn.Module, rows: Iterable[int], device: torch.device, multiply: Multiply = torch.matmul) -> None:
    """Refuse a device on which a product of the model's sizes is wrong, with so many rows; under autocast, in its precision."""
    for n, k, m in sizes(model, rows):
        wrong = wrong_rows((n, k, m), device, multiply)
        if wrong:
            what = f"of ({n}, {k}) times ({k}, {m}), in whole numbers, {wrong} of {n} rows came out wrong"
            raise RunError(f"this device cannot multiply: {what}. {way_out(device)}; nothing was trained")


def way_out(device: torch.device) -> str:
    share = os.environ.get(PERCENTAGE)
    if share is None or device.type != "cuda":
        return f"Use another than {device} (--device), or another version of torch"
    has = torch.cuda.get_device_properties(device).multi_processor_count
    seen = "on an H200 12, 25 and 50 are right, 15 and 40 are not"
    return f"{PERCENTAGE}={share} leaves it {has} multiprocessors, and with some cuBLAS is wrong: unset it or try another ({seen})"


def sizes(model: nn.Module, rows: Iterable[int]) -> list[Size]:
    """Of the products with each matrix of a model: forwards, backwards, and for its gradient."""
    found: dict[Size, None] = {}
    for n in sorted({min(n, MOST_ROWS) for n in rows}):
        for columns, terms in (p.shape for p in model.parameters() if p.dim() == 2):
            found |= {(n, terms, columns): None, (n, columns, terms): None, (columns, n, terms): None}
    return list(found)


def wrong_rows(size: Size, device: torch.device, multiply: Multiply = torch.matmul) -> int:
    """How many rows of a product of whole numbers have another sum, with random weights, than can be had without a product."""
    n, k, m = size
    generator = torch.Generator(device).manual_seed(math.prod(size))
    a, b = (_whole(shape, generator, device) for shape in ((n, k), (k, m)))
    weights = torch.randint(1, 100, (m,), generator=generator, device=device, dtype=torch.float64)
    expected = (a * (b * weights).sum(1)).sum(1)
    found = (multiply(a.float(), b.float()).double() * weights).sum(1)
    return int((found != expected).sum())


def _whole(shape: tuple[int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    """-1, 0 and 1."""
    drawn = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    return (drawn < DENSITY / 2).double() - (drawn > 1 - DENSITY / 2).double()
