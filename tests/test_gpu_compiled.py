"""The kernels of the engine "steps" compiled for GPUs that are not here: Triton and its assembler need none."""

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch
from interpreted import inputs_of, narrowed
from problems import F32, random_problem

from multint.cells import CELLS
from multint.scan import gpu_steps, walk

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.traced,  # Triton reads the sources of what it compiles, as the shape checker would have changed them
]

# A100, consumer Ampere, Ada, Hopper, Blackwell, consumer Blackwell
CAPABILITIES = (80, 86, 89, 90, 100, 120)
TYPES = {F32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64", torch.uint8: "*u8"}
PROBLEMS = {
    "features": {"features": 16},
    "tokens": {"symbols": 7, "lengths": True, "restart": 5},
}


@functools.cache
def launches(cell, problem, dtype, keep=True, h=256):
    """Every kernel that a training step launches, or without ``keep`` a forward pass alone, with what it is launched on."""
    p = narrowed(inputs_of(random_problem(cell=cell, t=3, n=5, h=h, dtype=F32, **PROBLEMS[problem])), dtype)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "walk", lambda actions, steps: found.extend(a for a in actions if isinstance(a, walk.Launch)))
        made = gpu_steps.forward(p, keep)
        if not keep:
            return found
        wanted = frozenset(["wx", "u", "vectors", "h"] + (["x"] if p.x is not None else []))
        gpu_steps.backward(p, made.kept, made.outputs, (torch.zeros_like(made.outputs), None, None), wanted)
    return found


def compiled(launch, capability):
    """Triton's object for a launch on another GPU, on memory that is aligned as torch's is."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, signature, attributes = launch.kernel.arg_names, dict.fromkeys(launch.flags, "constexpr"), {}
    for k, (name, value) in enumerate(zip(names, (0, *launch.arguments), strict=False)):
        signature[name] = "i32" if isinstance(value, int) else TYPES[value.dtype]
        if not isinstance(value, int):
            attributes[(k,)] = [["tt.divisibility", 16]]
    constants = {(names.index(name),): value for name, value in launch.flags.items()}
    source = ASTSource(launch.kernel, {name: signature[name] for name in names}, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": launch.warps})


def spilled(launch, capability):
    """Bytes that the assembler puts aside for want of registers."""
    import triton

    made = compiled(launch, capability)
    assert made.asm["cubin"], launch.kernel.__name__
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = folder / ("ptxas-blackwell" if capability >= 100 else "ptxas")
    architecture = re.search(r"\.target (sm_\w+)", made.asm["ptx"])[1]
    command = [assembler, "-v", f"--gpu-name={architecture}", "-o", "/dev/null", "/dev/stdin"]
    said = subprocess.run(command, input=made.asm["ptx"], capture_output=True, text=True, check=True).stderr
    found = re.findall(r"(\d+) bytes spill", said)
    assert found, said
    return sum(map(int, found))


def kernels(cell):
    """Those of a training step: stage by stage, and what is left to do at the end, of gru_after in two parts."""
    stages = ["gru_operand", "gru"] if cell == "gru" else [cell]
    backward = [f"{stage}_backward" for stage in reversed(stages)]
    return [f"{stage}_forward" for stage in stages] + backward + ["finish"] * (2 if cell == "gru_after" else 1)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("cell", CELLS)
def test_kernels_compile_for_every_gpu_since_ampere_without_spills(cell, problem, capability):
    found = [(launch.kernel.__name__, spilled(launch, capability)) for launch in launches(cell, problem, torch.bfloat16)]
    assert found == [(name, 0) for name in kernels(cell)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_kernels_compile_in_every_dtype(cell, dtype):
    found = [(launch.kernel.__name__, spilled(launch, CAPABILITIES[0])) for launch in launches(cell, "tokens", dtype)]
    assert found == [(name, 0) for name in kernels(cell)]


@pytest.mark.parametrize("cell", CELLS)
def test_kernels_compile_where_no_gradient_is_to_come(cell):
    found = [(launch.kernel.__name__, spilled(launch, 90)) for launch in launches(cell, "tokens", torch.bfloat16, keep=False)]
    assert found == [(name, 0) for name in kernels(cell) if name.endswith("forward")]
