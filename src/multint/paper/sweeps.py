"""How are many runs trained?

Each point of a grid is one ``multint train`` command, so a sweep continues where it stopped and any machine takes a share: a pool
of local processes, or SLURM through submitit.
"""

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multint.paper.overrides import RecipeError
from multint.paper.runs import SHARED, Stopped, handling, shared

Point = tuple[tuple[str, ...], int]  # overrides and seed
MOST_SEED = 2**32 - 1


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
    for number in numbers:
        if not 0 <= number <= MOST_SEED:
            raise RecipeError(f"--seeds takes numbers from 0 to {MOST_SEED}, got {number}")
    return [(point, seed) for point in itertools.product(*axes) for seed in numbers]


def command(recipe: str, seed: int, changes: Iterable[str], common: Sequence[str]) -> list[str]:
    sets = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "multint.paper", "train", recipe, f"--seed={seed}", *sets, *common]


class Asked:
    """Whether a sweep was asked to end, and the runs it hands that on to: each has a session of its own, so it is asked once."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.to_end, self.under_way = False, set[subprocess.Popen[str]]()

    def __call__(self, *_: Any) -> None:
        self.to_end = True
        for process in list(self.under_way):
            process.terminate()

    @contextmanager
    def listening(self) -> Iterator["Asked"]:
        # what whoever began the sweep ignores (nohup, a job in the background) stays ignored
        with handling((number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN), self):
            yield self

    def begin(self, words: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(words, env=env, start_new_session=True, **pipes)
        self.under_way.add(process)
        if self.to_end:  # in the meantime
            process.terminate()
        return process


def execute(words: Sequence[str], at_a_time: int = 1, deadline: float | None = None, asked: Asked | None = None) -> tuple[int, str]:
    """One run in a process of its own, one of several on this machine: its exit code and last line.

    At ``deadline``, on the monotonic clock, or when the sweep is asked to end, it is asked to stop; after that none is begun.
    """
    asked = asked or Asked()
    if asked.to_end or (deadline is not None and time.monotonic() >= deadline):
        return Stopped.CODE, "not begun"
    env = {**os.environ, SHARED: str(max(at_a_time, shared()))}  # beside other sweeps, whoever began them knows how many there are
    with asked.begin(words, env) as process:
        try:
            out, err = process.communicate(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if not asked.to_end:  # or it has been asked, and twice would be at once
                process.terminate()
            out, err = process.communicate()
        finally:
            asked.under_way.discard(process)
    lines = (out if process.returncode == 0 else err).strip().splitlines()
    # SIGTERM before the run listened: nothing was lost
    return Stopped.CODE if process.returncode == -signal.SIGTERM else process.returncode, lines[-1] if lines else ""


def run(
    commands: Sequence[list[str]],
    jobs: int,
    engine: str,
    partition: str | None,
    say: Callable[[str], None],
    deadline: float | None = None,
) -> tuple[int, int]:
    """Train them all; returns how many failed, and how many are left for another sitting."""
    failed = left = 0
    for k, (code, line) in enumerate(_results(commands, jobs, engine, partition, deadline), 1):
        left += code == Stopped.CODE
        failed += code not in (0, Stopped.CODE)
        say(f"[{k}/{len(commands)}] {'' if code in (0, Stopped.CODE) else 'failed: '}{line}")
    return failed, left


def _results(
    commands: Sequence[list[str]], jobs: int, engine: str, partition: str | None, deadline: float | None
) -> Iterator[tuple[int, str]]:
    if engine == "local":
        at_a_time = min(jobs, len(commands))
        with Asked().listening() as asked, ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(functools.partial(execute, at_a_time=at_a_time, deadline=deadline, asked=asked), commands)
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
