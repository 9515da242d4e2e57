"""What does a person type? ``multint demo|data|recipes|train|evaluate|sample|sweep|report|compare``.

Errors a user can cause are one line and exit code 2.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from multint.paper.overrides import RecipeError
from multint.paper.runs import Progress, RunError, Stopped, read_json
from multint.paper.sweeps import MOST_SEED

SEED = click.IntRange(0, MOST_SEED)
COUNT = click.IntRange(min=1)


class OneLine(click.Group):
    """Turns our own errors into one line and exit code 2, or that of a run that was asked to stop."""

    def invoke(self, ctx: click.Context) -> Any:
        from multint.paper.fetch import DataError

        try:
            return super().invoke(ctx)
        except (RecipeError, RunError, DataError) as error:
            click.echo(f"multint: {error}", err=True)
            ctx.exit(Stopped.CODE if isinstance(error, Stopped) else 2)


def options(*names: str) -> Callable[[Any], Any]:
    """The options several commands share."""
    known = {
        "data": click.option("--data", type=click.Path(path_type=Path), help="Folder with corpora (default: MULTINT_DATA)."),
        "runs": click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Where run folders go."),
        "results": click.option("--results", type=click.Path(path_type=Path), default=Path("results"), help="Where records go."),
        "device": click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto"),
        "set": click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Override any setting of the recipe."),
        "text": click.option("--text", type=click.Path(path_type=Path), help="Train on this file instead of the recipe's corpus."),
        "bytes": click.option("--bytes", "as_bytes", is_flag=True, help="Read --text as bytes, not as UTF-8."),
        "precision": click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32"),
    }

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = known[name](command)
        return command

    return decorate


@click.group(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Multiplicative Integration: train, evaluate and report the paper's models."""


# ---- data ----


@main.group()
def data() -> None:
    """Corpora: list them, get them, verify them."""


@data.command("list")
@options("data")
def data_list(data: Path | None) -> None:
    """Every corpus: size, licence, and whether it is here."""
    from multint.paper import fetch

    for line in fetch.listing(data):
        click.echo(line)


@data.command("get")
@click.argument("name")
@options("data")
def data_get(name: str, data: Path | None) -> None:
    """Download (if need be), check and prepare a corpus."""
    from multint.paper import fetch

    corpus = fetch.prepare(name, data, download=True)
    click.echo(corpus)


@data.command("verify")
@click.argument("name")
@options("data")
def data_verify(name: str, data: Path | None) -> None:
    """Check the whole of a prepared corpus against its sums."""
    from multint.paper import fetch

    click.echo(fetch.verify(name, data))


# ---- training ----


@main.command()
def recipes() -> None:
    """All recipes: the row of the paper each one is, its size, the paper's number."""
    from multint.paper.charlm.task import count
    from multint.paper.experiments import RECIPES

    for name, recipe in RECIPES.items():
        size = count(recipe)
        shown = f"{size:,}" if size else ""
        paper = "" if recipe.paper is None else f"paper {recipe.paper:.2f}"
        click.echo(f"{name:30} {recipe.corpus:12} {shown:>12} {paper:11} {recipe.cite or recipe.note}")


@main.command()
@click.argument("recipe")
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--devices", default=1, show_default=True, type=COUNT, help="Processes on this machine (torchrun sets its own).")
@click.option("--nodes", default=1, show_default=True, type=COUNT)
@options("set", "text", "bytes", "data", "runs", "results", "device", "precision")
def train(
    recipe: str,
    seed: int,
    devices: int,
    nodes: int,
    changes: tuple[str, ...],
    text: Path | None,
    as_bytes: bool,
    data: Path | None,
    runs: Path,
    results: Path,
    device: str,
    precision: str,
) -> None:
    """Train a recipe; the same command again continues it. `train charlm --text FILE` takes any text."""
    from multint.paper import experiments

    job = experiments.job(recipe, seed, changes, text, as_bytes, data, precision)
    with watching() as watcher:
        record = experiments.train(job, runs, results, device=device, devices=devices, nodes=nodes, watcher=watcher)
    if record:
        click.echo(summary(record))


def summary(record: dict[str, Any]) -> str:
    protocols = ", ".join(f"{name} {value:.3f}" for name, value in record["protocols"].items())
    paper = "" if record["paper"] is None else f"; the paper has {record['paper']:.2f}"
    return (
        f"{record['run']}: test {record['metric'].upper()} {protocols} (valid {record['valid']:.3f}){paper}; "
        f"{record['parameters']:,} parameters, {record['updates']:,} updates, {record['seconds']:.0f} s"
    )


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@options("data", "device")
def evaluate(run: Path, data: Path | None, device: str) -> None:
    """Validation and test scores of a run's best checkpoint, by the carried-state and the reset protocol."""
    from multint.paper.charlm import task

    for line in task.evaluate(run, data, device):
        click.echo(line)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="Text to begin with.")
@click.option("--length", default=400, show_default=True, type=click.IntRange(min=0))
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0, 1e6))
@click.option("--top-k", type=COUNT)
@click.option("--seed", default=0, show_default=True, type=SEED)
@options("data")
def sample(run: Path, prompt: str, length: int, temperature: float, top_k: int | None, seed: int, data: Path | None) -> None:
    """Write text with a trained model, as it comes."""
    from multint.paper.charlm import task

    for piece in task.write(run, prompt, length, temperature, top_k, seed, data):
        click.echo(piece, nl=False)
    click.echo()


# ---- sweeps ----


@main.command()
@click.argument("recipe", nargs=-1, required=True)
@click.option("--grid", multiple=True, metavar="KEY=A,B,C", help="Values of one setting; several grids are crossed.")
@click.option("--seeds", default="0", show_default=True, help="Comma-separated.")
@click.option("--jobs", default=1, show_default=True, type=COUNT, help="Runs at a time.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Then no run is begun, and those under way stop at a checkpoint.")
@click.option("--engine", type=click.Choice(["local", "submitit"]), default="local", help="submitit sends runs to SLURM.")
@click.option("--partition", help="SLURM partition, with --engine submitit.")
@options("set", "text", "bytes", "data", "runs", "results", "device", "precision")
def sweep(
    recipe: tuple[str, ...],
    grid: tuple[str, ...],
    seeds: str,
    jobs: int,
    minutes: float | None,
    engine: str,
    partition: str | None,
    changes: tuple[str, ...],
    **paths: Any,
) -> None:
    """Train recipes ('ptb-*' is all that begin so) over a grid, several at a time.

    Finished runs are not repeated, so the same command continues a sweep.
    """
    from multint.paper import experiments, sweeps

    names = list(dict.fromkeys(name for pattern in recipe for name in experiments.named(pattern)))
    points = [(name, point, seed) for point, seed in sweeps.points(grid, seeds) for name in names]
    as_bytes = paths.pop("as_bytes")
    common = [f"--{name}={value}" for name, value in paths.items() if value is not None] + ["--bytes"] * as_bytes
    commands = [sweeps.command(name, seed, [*changes, *point], common) for name, point, seed in points]
    if minutes is not None and engine != "local":
        raise RecipeError("--minutes is for runs on this machine; SLURM has limits of its own")
    # before any is trained: a wrong value, or a corpus that is not there
    names_of = [
        experiments.job(name, seed, [*changes, *point], paths["text"], as_bytes, paths["data"], paths["precision"]).run
        for name, point, seed in points
    ]
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    failed, left = sweeps.run(commands, jobs, engine, partition, lambda line: click.echo(line, err=True), deadline)
    done = []
    for run, (_, point, seed) in zip(names_of, points, strict=True):
        if (paths["runs"] / run / "record.json").exists():
            done.append((read_json(paths["runs"] / run / "record.json"), point, seed))
    for record, point, seed in sorted(done, key=lambda row: row[0]["valid"]):
        click.echo(f"valid {record['valid']:.4f}  {record['metric'].upper()}  {' '.join(point)} seed={seed}  {record['run']}")
    if failed:
        raise RunError(f"{failed} of {len(commands)} runs failed; their messages are above, and the same command repeats them")
    if left:
        raise Stopped(f"{left} of {len(commands)} runs are not finished; the same command continues them")


# ---- results ----


@main.command()
@options("results")
@click.option("--out", type=click.Path(path_type=Path), help="Page to write (default: RESULTS/report.html).")
@click.option("--refresh", multiple=True, type=click.Path(path_type=Path), help="Also renew the tables in this Markdown file.")
def report(results: Path, out: Path | None, refresh: tuple[Path, ...]) -> None:
    """One HTML page from the records, the paper's numbers beside ours."""
    from multint.paper import report as page

    try:
        built = page.build(results, out or results / "report.html")
        for path in refresh:
            page.refresh(path, results)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot write the report: {error}") from error
    for warning in built.warnings:
        click.echo(f"multint: {warning}", err=True)
    click.echo(f"{built.page}")


@main.command()
@click.argument("run", nargs=-1, required=True, type=click.Path(path_type=Path))
def compare(run: tuple[Path, ...]) -> None:
    """Runs side by side: what differs in their settings, and how they did."""
    from multint.paper import report as page

    click.echo(page.compare([read_json(path / "record.json") for path in run]))


@main.command()
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--results", type=click.Path(path_type=Path), default=Path("runs/demo"), help="Where its records go.")
@options("set", "runs")
def demo(seed: int, changes: tuple[str, ...], runs: Path, results: Path) -> None:
    """An LSTM and an MI-LSTM of equal size on the text that ships with Python: a table, a sample of each, the report."""
    import torch

    from multint.paper import report as page
    from multint.paper.charlm import task

    torch.set_num_threads(1)  # a step's products are small: on a busy machine threads would wait for each other
    records = []
    for name in ("charlm/demo-lstm", "charlm/demo-milstm"):
        job = task.job(name, seed, changes, None, False, None, "fp32")
        click.echo(f"{name}: {job.recipe.cell} of {job.recipe.hidden} units, {job.recipe.integration} integration")
        with watching() as watcher:
            records.append(task.train(job, runs, results, device="cpu", watcher=watcher))
    click.echo(page.compare(records))
    for record in records:
        click.echo(f"\n--- {record['recipe']} writes:")
        for piece in task.write(runs / record["run"], "The ", 300, 0.7, None, seed, None):
            click.echo(piece, nl=False)
        click.echo()
    first, second = (record["value"] for record in records)
    by = abs(first - second)
    verdict = f"the {'MI-LSTM' if second < first else 'LSTM'} is better by {by:.3f}" if by >= 0.0005 else "level"
    click.echo(f"\ntest BPC: LSTM {first:.3f}, MI-LSTM {second:.3f}: {verdict} on this seed, each at its own best rate")
    click.echo(f"report: {page.build(results, results / 'report.html').page}")


# ---- progress ----


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

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None:
        self.last = f"train {loss:.3f} BPC, {speed:,.0f} chars/s, {clock(left)} left"

    def evaluated(self, progress: Progress, valid: float) -> None:
        self.say(f"update {progress.update}, epoch {progress.epoch}: valid {valid:.3f}, {getattr(self, 'last', '')}")

    def say(self, line: str) -> None:
        click.echo(line, err=True)


class Bar:
    """A live line with epoch, loss, speed and time left."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich

        self.rich = Rich(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), transient=True)
        self.task = self.rich.add_task("epoch 0", total=1.0, text="")
        self.rich.start()
        self.began = time.monotonic()
        self.before: float | None = None  # seconds of earlier sittings

    def update(self, progress: Progress, loss: float, speed: float, left: float) -> None:
        self.before = progress.seconds if self.before is None else self.before  # every save adds this sitting's
        spent = self.before + time.monotonic() - self.began
        text = f"{loss:.3f} BPC  {speed:,.0f} chars/s  {clock(left)} left"
        share = spent / (spent + left) if spent + left > 0 else 1.0
        self.rich.update(self.task, completed=share, description=f"epoch {progress.epoch} update {progress.update}", text=text)

    def evaluated(self, progress: Progress, valid: float) -> None:
        self.say(f"update {progress.update}, epoch {progress.epoch}: valid {valid:.3f} BPC")

    def say(self, line: str) -> None:
        self.rich.console.print(line)


if __name__ == "__main__":
    main()
