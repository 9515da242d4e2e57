"""Which processes and devices train? Fabric, process groups, and what several processes compute together."""

import atexit
import logging
import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from multint.paper.experiment import Sum, Team
from multint.paper.runs import RunError

PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed"}


def check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("no CUDA device is here: use --device cpu or auto")


def make_fabric(device: str = "auto", devices: int | str = 1, nodes: int = 1, precision: str = "fp32") -> Any:
    """A launched Fabric: device, precision and processes. Under torchrun it takes the processes that torchrun started."""
    from lightning.fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # it recommends precisions, which are the recipe's choice
    if precision not in PRECISIONS:
        raise RunError(f"unknown precision {precision!r}: use {' or '.join(PRECISIONS)}")
    if precision == "bf16":
        torch.set_float32_matmul_precision("high")
    check_device(device)
    accelerator = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_torchelastic_launched() and world > 1:
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        nodes = world // int(devices)
        _join("gloo" if accelerator == "cpu" else "nccl")
    # a learned initial state takes no part in the updates that continue from another state
    strategy = "ddp_find_unused_parameters_true" if int(devices) * nodes > 1 else "auto"
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, precision=PRECISIONS[precision], strategy=strategy)
    fabric.launch()
    return fabric


def _join(backend: str) -> None:
    """Form the process group here: after a lost worker, processes restarted by torchrun would read the addresses of dead ones."""
    from torch import distributed as dist

    if dist.is_initialized():
        return
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = torch._C._distributed_c10d.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group(
        backend,
        store=torch._C._distributed_c10d.PrefixStore(f"try{attempt}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    atexit.register(dist.destroy_process_group)  # as Fabric does for its own groups: gloo's threads must end before Python


def bare(model: nn.Module) -> nn.Module:
    """The model itself, without the wrappers of Fabric and DDP."""
    inner: Any = model
    while hasattr(inner, "_forward_module") or isinstance(inner, nn.parallel.DistributedDataParallel):
        inner = inner._forward_module if hasattr(inner, "_forward_module") else inner.module
    return inner  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _FabricTeam(Team):
    fabric: Any = None

    def mean(self, part: Sum) -> float:
        both = torch.tensor([part.total, part.count], dtype=torch.float64, device=self.fabric.device)
        return super().mean(Sum(*self.fabric.all_reduce(both, reduce_op="sum").tolist()))


def team(fabric: Any) -> Team:
    """The processes of a Fabric; their means are over all of them."""
    return _FabricTeam(fabric.global_rank, fabric.world_size, fabric)
