"""How is the paper tested with one command? A plan of the runs that its rows need, with their time; then a sweep of them."""

import csv
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from multint.paper import engine, experiments, numbers, processes, record, session, sweeps
from multint.paper.experiment import Job, Recipe, Team
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.runs import processor

LEAST = 2.0  # seconds of updates that are measured
SLOW = 1.0  # seconds of an update, beyond which its validation is not measured
WARM = 5  # updates before the clock starts: kernels are compiled, graphs recorded
PARTS = 4  # a validation is measured on one part of so many
SCORING = 1.1  # what evaluation adds to the updates where it is not measured


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
    """Recipes of a scale by the row they repeat, in the paper's order; the first whose data is here is trained.

    Patterns match rows or recipes, as "ptb-*"; none at all means every row.
    """
    known = {name: recipe for name, recipe in experiments.recipes().items() if recipe.row and recipe.scale == scale}
    sections = experiments.names()
    order = list(dict.fromkeys([*(row.key for row in numbers.ROWS if row.key), *(str(recipe.row) for recipe in known.values())]))

    def place(item: tuple[str, Recipe]) -> tuple[int, int]:
        return sections.index(item[0].partition("/")[0]), order.index(str(item[1].row))

    found: dict[str, list[str]] = {}
    for name, recipe in sorted(known.items(), key=place):
        words = (str(recipe.row), name, name.partition("/")[2])
        if not patterns or any(fnmatchcase(word, pattern) for pattern in patterns for word in words):
            found.setdefault(str(recipe.row), []).append(name)
    if not found:
        there = ", ".join(dict.fromkeys(str(recipe.row) for recipe in known.values()))
        raise RecipeError(f"no row of scale {scale} matches {', '.join(patterns)}; there are {there}")
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
    threads: int,
    say: Callable[[str], None],
) -> list[Planned]:
    """Every run that the rows need, row by row."""
    known = _seconds_of(results)
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


def _seconds_of(results: Path) -> dict[str, list[float]]:
    """What runs of the recipes as they stand took on this device, alone or sharing it."""
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    found: dict[str, list[float]] = {}
    for one in record.read(results)[0]:
        if one.device == here and not one.changed and one.seconds is not None:
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
    task = experiments.load(job.experiment).task(job, fabric.device)
    prepared = engine.prepare(task, job.recipe.schedule, fabric)
    batches = task.epoch(0, Team())
    per_epoch = len(batches) if isinstance(batches, Sized) else None
    state, count, began = None, 0, 0.0
    while count < WARM or time.perf_counter() - began < LEAST:
        batch = fabric.to_device(batches[count % per_epoch if per_epoch else count])
        state = prepared.step(batch, task.initial_state(batch) if task.begins(count) else state).state
        count += 1
        if fabric.device.type == "cuda":
            torch.cuda.synchronize()
        if count == WARM:
            began = time.perf_counter()
    each = (time.perf_counter() - began) / (count - WARM)
    updates = job.recipe.schedule.most(per_epoch)
    if each > SLOW:
        return SCORING * each * updates
    began = time.perf_counter()
    prepared.model.eval()
    with torch.no_grad():
        task.scores(prepared.model, "valid", Team(0, PARTS))
    valid = PARTS * (time.perf_counter() - began)
    evaluations = updates / (job.recipe.schedule.evaluate_every or per_epoch or updates)
    return updates * each + (evaluations + 2) * valid  # the results take about two more


def has_gpu(device: str) -> bool:
    return device != "cpu" and torch.cuda.is_available()


def done(folder: Path, recipe: Recipe) -> float:
    """The share of a run that its curve shows as trained."""
    try:
        with (folder / "curve.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
        updates, epochs = recipe.schedule.updates, recipe.schedule.epochs
        return min(1.0, float(last["update"]) / updates if updates else float(last["epoch"]) / epochs)
    except (OSError, IndexError, KeyError, ValueError):
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
        left = spell(sum(one.seconds for one in mine))
        yield f"{row:24} {first.point.recipe:36} {ready} of {len(mine)} seeds finished, {left} left{how}"
    total = sum(one.seconds for one in planned)
    count = sum(not one.finished and not one.missing for one in planned)
    yield f"{count} runs to train, {jobs} at a time: about {spell(total / max(1, min(jobs, count)))}"


def spell(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def train(planned: Sequence[Planned], jobs: int, say: Callable[[str], None], deadline: float | None, bar: bool) -> tuple[int, int]:
    """Train what is missing, with one display for all; how many runs failed and how many are not finished."""
    left = [one for one in planned if not one.finished and not one.missing]
    if not left:
        return 0, 0
    with _display(left) if bar else _silent() as shown:
        return sweeps.run([one.point for one in left], jobs, "local", None, shown or say, deadline)


@contextmanager
def _silent() -> Iterator[None]:
    yield None


@contextmanager
def _display(left: Sequence[Planned]) -> Iterator[Callable[[str], None]]:
    """A bar over the predicted time of all runs, moved by the curves that the runs write."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    total = sum(one.seconds for one in left) or 1.0
    weights = {one.folder: one.seconds / total for one in left if one.folder is not None}
    found: Mapping[str, Recipe] = experiments.recipes()
    ended = threading.Event()
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    task: Any = bar.add_task("training", total=1.0)

    def follow() -> None:
        while not ended.wait(1.0):
            finished = sum(one.folder is not None and (one.folder / "record.json").exists() for one in left)
            shares = {one.folder: done(one.folder, found[one.point.recipe]) for one in left if one.folder is not None}
            share = sum(weights[folder] * part for folder, part in shares.items())
            bar.update(task, completed=share, description=f"{finished} of {len(left)} runs finished")

    thread = threading.Thread(target=follow, daemon=True)
    with bar:
        thread.start()
        try:
            yield bar.console.print
        finally:
            ended.set()
            thread.join()
