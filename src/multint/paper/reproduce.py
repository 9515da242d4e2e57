"""How is the paper tested with one command? Plan the runs that its rows need, predict their time, then train them as a sweep."""

import csv
import functools
import heapq
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multint.paper import engine, experiments, numbers, processes, record, session, sweeps
from multint.paper.experiment import Batches, Job, Recipe, Task, Team, mapped
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.runs import processor

LEAST = 2.0  # seconds of updates that are measured
SLOW = 1.0  # seconds: a longer update is measured once, without its validation; a longer validation is measured in part
WARM = 5  # updates before the clock starts: kernels are compiled, graphs recorded
PARTS = 4  # a validation is measured on one part of so many first
SCORING = 1.1  # the factor for evaluation where it is not measured


@dataclass(frozen=True)
class Planned:
    """One run of the plan. ``seconds`` is the time it still takes; ``missing`` says what data it lacks."""

    row: str
    point: sweeps.Point
    folder: Path | None
    finished: bool = False
    seconds: float = 0.0
    measured: bool = False  # by some updates, not from an earlier run
    missing: str = ""


def rows(patterns: Sequence[str], scale: str) -> dict[str, list[str]]:
    """Recipes of a scale by the row they repeat, in the paper's order, with their twins.

    A row may have several, for several corpora. Patterns match rows or recipes, as "ptb-*"; without patterns, every row. A twin
    without a row goes by its own name.
    """
    every = experiments.recipes()
    known = {name: recipe for name, recipe in every.items() if recipe.row and recipe.scale == scale}

    def wanted(name: str) -> bool:
        words = (str(known[name].row), name, name.partition("/")[2])
        return not patterns or any(fnmatchcase(word, pattern) for pattern in patterns for word in words)

    needs = {name: known[name] for name in known if wanted(name)}
    if not needs:
        there = ", ".join(dict.fromkeys(str(recipe.row) for recipe in known.values()))
        raise RecipeError(f"no row of scale {scale} matches {', '.join(patterns)}; there are {there}")
    for recipe in list(needs.values()):
        if recipe.twin in every:
            needs.setdefault(recipe.twin, every[recipe.twin])
    sections = experiments.names()
    order = list(dict.fromkeys([*(row.key for row in numbers.ROWS if row.key), *(recipe.row for recipe in known.values())]))
    sides = {recipe.twin: recipe.row for recipe in needs.values()}

    def place(name: str) -> tuple[int, int]:
        return sections.index(name.partition("/")[0]), order.index(needs[name].row or sides[name])

    found: dict[str, list[str]] = {}
    for name in sorted(needs, key=place):
        found.setdefault(needs[name].row or name, []).append(name)
    return found


def available(names: Sequence[str], data: Path | None, precision: str) -> tuple[str, str]:
    """The first recipe whose data is here, or what the first lacks."""
    faults = [_missing(name, data, precision) for name in names]
    ready = [name for name, fault in zip(names, faults, strict=True) if not fault]
    return (ready[0], "") if ready else (names[0], faults[0])


def _missing(name: str, data: Path | None, precision: str) -> str:
    try:
        session.job(name, data=data, precision=precision)
    except DataError as error:
        return str(error)
    return ""


def plan(
    patterns: Sequence[str],
    scale: str,
    seeds: Sequence[int],
    *,
    runs: Path,
    results: Path,
    data: Path | None,
    device: str,
    precision: str,
    options: tuple[str, ...],
    jobs: int,
    say: Callable[[str], None],
) -> list[Planned]:
    """Every run that the rows need, row by row. The time of a run is that of earlier ones, else measured."""
    known = _seconds_of(results, precision, jobs)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    found = []
    for row, names in rows(patterns, scale).items():
        name, missing = available(names, data, precision)
        if missing:
            found.append(Planned(row, sweeps.Point(name, 0), None, missing=missing))
            continue
        predicted: tuple[float, bool] | None = None
        for seed in seeds:
            point = sweeps.Point(name, seed, (), options)
            job = session.job(name, seed, data=data, precision=precision)
            folder = runs / session.run_name(job)
            finished = (folder / "record.json").exists()
            if not finished and predicted is None:
                if name in known:
                    predicted = statistics.median(known[name]), False
                else:
                    say(f"measuring {name}")
                    predicted = measure(job, device, threads), True
            seconds, measured = (0.0, False) if finished or predicted is None else predicted
            found.append(Planned(row, point, folder, finished, seconds * (1 - done(folder, job.recipe)), measured))
    return found


def _seconds_of(results: Path, precision: str, jobs: int) -> dict[str, list[float]]:
    """Seconds that runs of unchanged recipes took on this device, so many at a time."""
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    found: dict[str, list[float]] = {}
    for one in record.read(results)[0]:
        same = (one.device, one.precision, one.shared) == (here, precision, jobs)
        if same and not one.changed and one.seconds is not None:
            found.setdefault(one.recipe, []).append(one.seconds)
    return found


def measure(job: Job, device: str, threads: int) -> float:
    """Seconds a run takes here, from a few updates and a part of a validation."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured(job, device)
    finally:
        torch.set_num_threads(before)


def _measured(job: Job, device: str) -> float:
    fabric = processes.make_fabric(device, 1, 1, job.precision)
    schedule = job.recipe.schedule
    task = experiments.load(job.experiment).task(job, fabric.device)
    prepared = engine.prepare(task, schedule, fabric)
    batches = task.epoch(0, Team())
    per_epoch = len(batches) if isinstance(batches, Sized) else None
    updates = schedule.most(per_epoch)
    each = _update_seconds(task, prepared.step, batches, per_epoch, fabric.device)
    if each > SLOW:
        return SCORING * each * updates
    prepared.model.eval()
    valid = PARTS * _valid_seconds(task, prepared.model, PARTS)
    if valid < SLOW:
        valid = _valid_seconds(task, prepared.model, 1)
    evaluations = updates / (schedule.evaluate_every or per_epoch or updates)
    return updates * each + (evaluations + 2) * valid  # the results take about two more


def _update_seconds(task: Task, step: Any, batches: Batches, per_epoch: int | None, device: torch.device) -> float:
    """Seconds of an update, after those in which kernels are compiled."""

    def there(part: torch.Tensor) -> torch.Tensor:
        return part.to(device)

    state, count, began = None, 0, 0.0
    while count < WARM or time.perf_counter() - began < LEAST:
        position = count % per_epoch if per_epoch else count
        batch = mapped(there, batches[position])
        state = step(batch, mapped(there, task.initial_state(batch)) if task.begins(position) else state).state
        if device.type == "cuda":
            torch.cuda.synchronize()
        count += 1
        if count == 2 and time.perf_counter() - began > SLOW:
            return time.perf_counter() - began
        if count in (1, WARM):  # the first one is much slower than the second
            began = time.perf_counter()
    return (time.perf_counter() - began) / (count - WARM)


@torch.no_grad()
def _valid_seconds(task: Task, model: nn.Module, parts: int) -> float:
    """Seconds of the validation, of one part of so many."""
    began = time.perf_counter()
    task.scores(model, "valid", Team(0, parts))
    return time.perf_counter() - began


def has_gpu(device: str) -> bool:
    return device != "cpu" and torch.cuda.is_available()


def done(folder: Path, recipe: Recipe) -> float:
    """The share of a run that is trained, by its curve; less than 1 until it has a record."""
    if (folder / "record.json").exists():
        return 1.0
    try:
        with (folder / "curve.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
        by_updates = float(last["update"]) / recipe.schedule.updates if recipe.schedule.updates else 0.0
        return min(0.99, max(by_updates, float(last["epoch"]) / recipe.schedule.epochs))
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        return 0.0


def listing(planned: Sequence[Planned], jobs: int) -> Iterator[str]:
    """The plan as lines: row, recipe, finished and missing runs, the time they take."""
    for row in dict.fromkeys(one.row for one in planned):
        mine = [one for one in planned if one.row == row]
        first = mine[0]
        if first.missing:
            yield f"{row:24} {first.point.recipe:36} left out: {first.missing}"
            continue
        ready = sum(one.finished for one in mine)
        how = "" if ready == len(mine) else " (measured)" if any(one.measured for one in mine) else " (as earlier runs took)"
        time_left = spell(sum(one.seconds for one in mine))
        yield f"{row:24} {first.point.recipe:36} {ready} of {len(mine)} seeds finished, {time_left} left{how}"
    left = to_train(planned)
    yield f"{len(left)} runs to train, {jobs} at a time: about {spell(together([one.seconds for one in left], jobs))}"


def to_train(planned: Sequence[Planned]) -> list[Planned]:
    return [one for one in planned if not one.finished and not one.missing]


def together(seconds: Sequence[float], jobs: int) -> float:
    """Seconds until all runs have ended, when each starts as soon as one of so many places is free."""
    places = [0.0] * jobs
    for one in seconds:
        heapq.heapreplace(places, places[0] + one)
    return max(places)


def spell(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def train(
    planned: Sequence[Planned],
    jobs: int,
    engine: str,
    partition: str | None,
    say: Callable[[str], None],
    deadline: float | None,
    bar: bool,
) -> tuple[int, int]:
    """Train what is missing, with one display for all; how many runs failed and how many are not finished."""
    left = to_train(planned)
    if not left:
        return 0, 0
    with _display(left, jobs) if bar else nullcontext(say) as shown:
        return sweeps.run([one.point for one in left], jobs, engine, partition, shown, deadline)


@contextmanager
def _display(left: Sequence[Planned], jobs: int) -> Iterator[Callable[[str], None]]:
    """A bar over the predicted time of all runs; the curves that the runs write move it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    known = experiments.recipes()
    console = Console(stderr=True)
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)
    total = sum(one.seconds for one in left) or 1.0
    task = bar.add_task("training", total=total)
    before = shares(left, known)
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            now = shares(left, known)
            ahead = [one.seconds * (1 - y) / (1 - x) for one, x, y in zip(left, before, now, strict=True)]
            text = f"{now.count(1.0)} of {len(left)} runs finished, about {spell(together(ahead, jobs))} left"
            bar.update(task, completed=total - sum(ahead), description=text)

    thread = threading.Thread(target=follow, daemon=True)
    with bar:
        thread.start()
        try:
            yield functools.partial(console.print, markup=False, highlight=False)
        finally:
            ended.set()
            thread.join()


def shares(left: Sequence[Planned], known: Mapping[str, Recipe]) -> list[float]:
    """The share of every run that is trained."""
    return [done(one.folder, known[one.point.recipe]) if one.folder else 0.0 for one in left]
