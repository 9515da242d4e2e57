"""Does this GPU multiply matrices rightly?

It need not: with 18 or 52 of an H200's 132 multiprocessors, which is what NVIDIA's MPS gives a process for 15 or 40 percent, cuBLAS
of CUDA 13.0 returns wrong products without a word, and training on them looks like a bad model. So before anything is trained or
scored on a GPU, torch's products with each matrix of the model are tried, forwards, backwards and for its gradient, with the
rows its task names, on whole numbers, whose sums are exact in every precision and order. What our own kernels multiply is not.
"""

import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ROWS = 4096  # weighed at a time, in float64
SPREAD = 10  # standard deviation of a sum, at most: bfloat16 has every whole number up to 256

Multiply = Callable[[Tensor, Tensor], Tensor]


def fault(model: nn.Module, rows: Iterable[int], device: torch.device, multiply: Multiply = torch.matmul) -> str | None:
    """What is wrong with products of the model's sizes and so many rows, and the way out; under autocast, in its precision."""
    for n in sorted(set(rows)):
        for a, b in operands(model, n, device):
            wrong = wrong_rows(a, b, multiply)
            if wrong:
                what = f"of {tuple(a.shape)} times {tuple(b.shape)}, in whole numbers, {wrong} of {len(a)} rows came out wrong"
                return f"this device cannot multiply: {what}. {way_out(device)}"
    if device.type == "cuda":
        torch.cuda.empty_cache()  # others share the device
    return None


def way_out(device: torch.device) -> str:
    if device.type != "cuda":
        return f"Use another than {device} (--device)"
    has = torch.cuda.get_device_properties(device).multi_processor_count
    share = os.environ.get(PERCENTAGE)
    given = f"; {PERCENTAGE}={share}" if share else ""
    seen = "on an H200, shares of 12, 25 and 50 percent are right under MPS, 15 and 40 are not"
    return f"With {has} multiprocessors{given} cuBLAS may be wrong: try another share of the GPU, or all of it ({seen})"


def operands(model: nn.Module, n: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """x Wᵀ, y W and yᵀ x for each matrix W of a model that is not just looked up in, x and y with n rows."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    shapes = dict.fromkeys(tuple(p.shape) for p in model.parameters() if p.dim() == 2 and id(p) not in tables)
    for o, i in shapes:
        generator = torch.Generator(device).manual_seed(o * i + n)
        density = min(0.125, SPREAD / max(n, o, i) ** 0.5)
        x, w, y = (_whole(shape, density, generator) for shape in ((n, i), (o, i), (n, o)))
        yield x, w.t()
        yield y, w
        yield y.t(), x


def _whole(shape: tuple[int, int], density: float, generator: torch.Generator) -> Tensor:
    """-1, 0 and 1."""
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return (drawn < density / 2).float() - (drawn > 1 - density / 2).float()


def wrong_rows(a: Tensor, b: Tensor, multiply: Multiply = torch.matmul) -> int:
    """How many rows of a product of whole numbers have another sum, with random weights, than can be had without a product."""
    generator = torch.Generator(a.device).manual_seed(b.shape[1])
    weights = torch.randint(1, 100, (b.shape[1],), generator=generator, device=a.device, dtype=torch.float64)
    expected = weighed(a, weighed(b, weights))
    return int((weighed(multiply(a, b), weights) != expected).sum())


def weighed(x: Tensor, weights: Tensor) -> Tensor:
    """The sum of each row, in float64."""
    return torch.cat([(part.double() * weights).sum(1) for part in x.split(ROWS)])
