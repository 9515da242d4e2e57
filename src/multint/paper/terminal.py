"""What do commands share? Options, and how a run is shown while it goes on."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from multint.paper.experiment import Task
from multint.paper.runs import Progress
from multint.paper.sweeps import MOST_SEED

SEED = click.IntRange(0, MOST_SEED)
COUNT = click.IntRange(min=1)


def options(*names: str) -> Callable[[Any], Any]:
    """The options several commands share."""
    path = click.Path(path_type=Path)
    known = {
        "data": click.option("--data", type=path, help="Folder with corpora (default: MULTINT_DATA)."),
        "runs": click.option("--runs", type=path, default=Path("runs"), help="Where run folders go."),
        "results": click.option("--results", type=path, default=Path("results"), help="Where records go."),
        "device": click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto"),
        "set": click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Override any setting of the recipe."),
        "engine": click.option("--engine", type=click.Choice(["local", "submitit"]), default="local", help="submitit: SLURM."),
        "partition": click.option("--partition", help="SLURM partition, with --engine submitit."),
        "precision": click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32"),
    }

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = known[name](command)
        return command

    return decorate


@contextmanager
def watching() -> Iterator[Any]:
    """A bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.rich.stop()


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Lines:
    """Plain lines for logs: one at every evaluation."""

    last = ""

    def start(self, task: Task, progress: Progress) -> None:
        self.task = task

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None:
        self.last = f", {self.going(loss, speed, left)}"

    def going(self, loss: float, speed: float, left: float) -> str:
        return f"train {loss:.3f} {self.task.loss_unit}, {speed:,.0f} {self.task.work_unit}/s, {clock(left)} left"

    def evaluated(self, progress: Progress, scores: dict[str, float]) -> None:
        units = {metric.name: metric.unit for metric in self.task.metrics}
        valid = ", ".join(f"{value:.3f} {units[name]}" for name, value in scores.items())
        self.say(f"update {progress.update}, epoch {progress.epoch}: valid {valid}{self.last}")

    def say(self, line: str) -> None:
        click.echo(line, err=True)


class Bar(Lines):
    """A live line with epoch, loss, speed and time left; a line at every evaluation stays."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich

        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
        self.rich = Rich(*columns, console=Console(stderr=True), transient=True)
        self.bar = self.rich.add_task("epoch 0", total=1.0, text="")
        self.rich.start()

    def start(self, task: Task, progress: Progress) -> None:
        super().start(task, progress)
        self.before, self.began = progress.seconds, time.monotonic()

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None:
        spent = self.before + time.monotonic() - self.began
        share = spent / (spent + left) if spent + left > 0 else 1.0
        text = self.going(loss, speed, left)
        self.rich.update(self.bar, completed=share, description=f"epoch {progress.epoch} update {progress.update}", text=text)

    def say(self, line: str) -> None:
        self.rich.console.print(line, markup=False, highlight=False)
