"""How are many runs trained?

Each point of a grid is one ``multint train`` command, so a sweep continues where it stopped. A pool of local processes runs
them, or SLURM through submitit.
"""

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multint.paper import experiments
from multint.paper.overrides import RecipeError
from multint.paper.runs import SHARED, Stopped, handling, shared

MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Point:
    """One run: ``options`` are further words of its command."""

    recipe: str
    seed: int
    changes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        sets = [word for change in self.changes for word in ("--set", change)]
        modules = [word for module in experiments.added for word in ("--experiment", module)]
        return [sys.executable, "-m", "multint.paper", *modules, "train", self.recipe, f"--seed={self.seed}", *sets, *self.options]


def points(grid: Sequence[str], seeds: str) -> list[tuple[tuple[str, ...], int]]:
    """The crossed values of every ``key=a,b,c``, each with every seed."""
    axes = []
    for axis in grid:
        key, equals, values = axis.partition("=")
        if not equals or not all(values.split(",")):
            raise RecipeError(f"--grid takes key=a,b,c, got {axis!r}")
        axes.append([f"{key}={value}" for value in values.split(",")])
    return [(point, seed) for point in itertools.product(*axes) for seed in seeds_of(seeds)]


def seeds_of(text: str) -> list[int]:
    """The seeds of ``0-2`` or ``0,3,7``.

    >>> seeds_of("0-2,7")
    [0, 1, 2, 7]
    """
    numbers: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise RecipeError(f"--seeds takes whole numbers with commas between, or a range as 0-2, got {text!r}")
        numbers += range(int(low), int(high or low) + 1)
    for number in numbers:
        if number > MOST_SEED:
            raise RecipeError(f"--seeds takes numbers from 0 to {MOST_SEED}, got {number}")
    return numbers


class Signals:
    """Signals that ask a sweep to end, and the runs that it forwards them to: each has a process session of its own."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.stopping, self.running = False, set[subprocess.Popen[str]]()

    def __call__(self, *_: Any) -> None:
        self.stopping = True
        for process in list(self.running):
            process.terminate()

    @contextmanager
    def listening(self) -> Iterator["Signals"]:
        # a signal that the sweep's own parent ignores (nohup, a background job) stays ignored
        with handling((number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN), self):
            yield self

    def start(self, words: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(words, env=env, start_new_session=True, **pipes)
        self.running.add(process)
        if self.stopping:  # the signal came while the process started
            process.terminate()
        return process


def execute(
    words: Sequence[str], at_a_time: int = 1, deadline: float | None = None, signals: Signals | None = None
) -> tuple[int, str]:
    """One run in a process of its own, one of several on this machine: its exit code and last line.

    At ``deadline``, on the monotonic clock, or at a signal, the run stops at a checkpoint; after that none is started.
    """
    signals = signals or Signals()
    if signals.stopping or (deadline is not None and time.monotonic() >= deadline):
        return Stopped.CODE, "not started"
    threads = str(max(1, (os.cpu_count() or 1) // at_a_time))
    env = {"OMP_NUM_THREADS": threads, **os.environ, SHARED: str(max(at_a_time, shared()))}
    with signals.start(words, env) as process:
        try:
            out, err = process.communicate(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if not signals.stopping:  # a second signal would end it without a checkpoint
                process.terminate()
            out, err = process.communicate()
        finally:
            signals.running.discard(process)
    lines = (out if process.returncode == 0 else err).strip().splitlines()
    # SIGTERM before the run listened: nothing was lost
    return Stopped.CODE if process.returncode == -signal.SIGTERM else process.returncode, lines[-1] if lines else ""


def run(
    points: Sequence[Point],
    jobs: int,
    engine: str,
    partition: str | None,
    say: Callable[[str], None],
    deadline: float | None = None,
) -> tuple[int, int]:
    """Train them all; returns how many failed, and how many are left for another session."""
    failed = left = 0
    commands = [point.command for point in points]
    results = _here(commands, jobs, deadline) if engine == "local" else _submitted(commands, jobs, partition)
    for k, (code, line) in enumerate(results, 1):
        left += code == Stopped.CODE
        failed += code not in (0, Stopped.CODE)
        say(f"[{k}/{len(commands)}] {'' if code in (0, Stopped.CODE) else 'failed: '}{line}")
    return failed, left


def _here(commands: Sequence[list[str]], jobs: int, deadline: float | None) -> Iterator[tuple[int, str]]:
    at_a_time = min(jobs, len(commands))
    with Signals().listening() as signals, ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(functools.partial(execute, at_a_time=at_a_time, deadline=deadline, signals=signals), commands)


def _submitted(commands: Sequence[list[str]], jobs: int, partition: str | None) -> Iterator[tuple[int, str]]:
    try:
        import submitit
    except ImportError:
        raise RecipeError("--engine submitit needs the package submitit: pip install submitit") from None
    executor = submitit.AutoExecutor(folder=Path("runs") / "submitit")  # SLURM where there is one, else this machine
    executor.update_parameters(timeout_min=24 * 60, slurm_array_parallelism=jobs)
    if partition is not None:
        executor.update_parameters(slurm_partition=partition)
    for job in executor.map_array(execute, commands):
        yield _result(job)


def _result(job: Any) -> tuple[int, str]:
    """What ``execute`` returned in a job of submitit."""
    try:
        code, line = job.result()
    except RuntimeError as error:  # the job was killed, or its time was over
        return 1, str(error).partition("\n")[0]
    return code, line
