"""How are many runs trained?

Each point of a grid is one ``multint train`` command, so a sweep continues where it stopped and any machine takes a share: a pool
of local processes, or SLURM through submitit.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from multint.paper.overrides import RecipeError
from multint.paper.runs import SHARED

Point = tuple[tuple[str, ...], int]  # overrides and seed


def points(grid: Sequence[str], seeds: str) -> list[Point]:
    """The crossed values of every ``key=a,b,c``, each with every seed."""
    axes = []
    for axis in grid:
        key, equals, values = axis.partition("=")
        if not equals or not all(values.split(",")):
            raise RecipeError(f"--grid takes key=a,b,c, got {axis!r}")
        axes.append([f"{key}={value}" for value in values.split(",")])
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise RecipeError(f"--seeds takes whole numbers with commas between, got {seeds!r}") from None
    return [(point, seed) for point in itertools.product(*axes) for seed in numbers]


def command(recipe: str, seed: int, changes: Iterable[str], common: Sequence[str]) -> list[str]:
    sets = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "multint.paper", "train", recipe, f"--seed={seed}", *sets, *common]


def execute(words: Sequence[str], at_a_time: int = 1) -> tuple[int, str]:
    """One run in a process of its own, one of several on this machine: its exit code and last line."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, SHARED: str(at_a_time)})
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def run(commands: Sequence[list[str]], jobs: int, engine: str, partition: str | None, say: Callable[[str], None]) -> int:
    """Train them all; returns how many failed."""
    failed = 0
    for k, (code, line) in enumerate(_results(commands, jobs, engine, partition), 1):
        failed += code != 0
        say(f"[{k}/{len(commands)}] {'' if code == 0 else 'failed: '}{line}")
    return failed


def _results(commands: Sequence[list[str]], jobs: int, engine: str, partition: str | None) -> Iterator[tuple[int, str]]:
    if engine == "local":
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(execute, commands, itertools.repeat(min(jobs, len(commands))))
        return
    try:
        import submitit
    except ImportError:
        raise RecipeError("--engine submitit needs the package submitit: pip install submitit") from None
    executor = submitit.AutoExecutor(folder=Path("runs") / "submitit")  # SLURM where there is one, else this machine
    executor.update_parameters(timeout_min=24 * 60, slurm_array_parallelism=jobs)
    if partition is not None:
        executor.update_parameters(slurm_partition=partition)
    for job in executor.map_array(execute, commands):
        yield job.result()
