"""What does a person type? ``multint data|recipes|train|evaluate|export|sweep|report|compare`` and the experiments' own commands.

Errors a user can cause are one line and exit code 2.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from multint.paper import experiments, numbers, session, sweeps
from multint.paper.experiment import Recipe, Shelf
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.record import Record
from multint.paper.runs import RunError, Stopped
from multint.paper.terminal import COUNT, SEED, options, watching


class Commands(click.Group):
    """The commands here and those of the experiments. Our own errors become one line and exit code 2, or that of a stopped run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_theirs()})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or _theirs().get(name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with one_line(ctx):  # --help lists the experiments' commands
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line(ctx):
            return super().invoke(ctx)


def _theirs() -> dict[str, click.Command]:
    """The experiments' own commands."""
    every = [command for name in experiments.names() for command in experiments.load(name).commands]
    return {command.name: command for command in reversed(every)}  # of two of one name the first counts


@contextmanager
def one_line(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except (RecipeError, RunError, DataError) as error:
        click.echo(f"multint: {error}", err=True)
        ctx.exit(Stopped.CODE if isinstance(error, Stopped) else 2)


def add(ctx: click.Context, option: click.Parameter, modules: tuple[str, ...]) -> None:
    """At once, since the modules may hold the command that follows."""
    experiments.added[:] = modules


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--experiment",
    multiple=True,
    metavar="MODULE",
    callback=add,
    expose_value=False,
    is_eager=True,  # before --help, which lists its commands
    help="A module with an experiment of yours.",
)
def main() -> None:
    """Multiplicative Integration: train, evaluate and report the paper's models."""


def own_options(name: str, words: Sequence[str]) -> dict[str, Any]:
    """An experiment's own options, from the words of the command line that no shared option took."""
    experiment = experiments.load(name)
    command = click.Command(f"{experiment.name}'s options", params=list(experiment.options))
    try:
        return dict(command.make_context(experiment.name, list(words)).params)
    except click.UsageError as error:
        known = ", ".join(option.opts[0] for option in experiment.options) or "none"
        raise RecipeError(f"{error.format_message()} Options of {experiment.name}: {known}") from error


def say(line: str) -> None:
    click.echo(line, err=True)


FURTHER = {"ignore_unknown_options": True}  # which the experiment's own options may be
further = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE EXPERIMENT]...")


# ---- data ----


@main.group()
def data() -> None:
    """Corpora: list them, get them, verify them."""


def _shelves() -> list[Shelf]:
    return [shelf for name in experiments.names() if (shelf := experiments.load(name).shelf) is not None]


def _shelf(name: str) -> Shelf:
    every = _shelves()
    found = next((shelf for shelf in every if name in shelf.names()), None)
    if found is None:
        raise DataError(f"no corpus {name!r}; there are {', '.join(known for shelf in every for known in shelf.names())}")
    return found


@data.command("list")
@options("data")
def data_list(data: Path | None) -> None:
    """Every corpus: size, licence, and whether it is here."""
    for line in (line for shelf in _shelves() for line in shelf.listing(data)):
        click.echo(line)


@data.command("get")
@click.argument("name")
@options("data")
def data_get(name: str, data: Path | None) -> None:
    """Download (if need be), check and prepare a corpus."""
    click.echo(_shelf(name).get(name, data))


@data.command("verify")
@click.argument("name")
@options("data")
def data_verify(name: str, data: Path | None) -> None:
    """Check all of a prepared corpus against its sums."""
    click.echo(_shelf(name).verify(name, data))


# ---- training ----


@main.command()
@click.argument("pattern", default="*")
def recipes(pattern: str) -> None:
    """All recipes, or those that match 'ptb-*': parameters, the paper's number, what the recipe is."""
    for name in experiments.matching(pattern):
        full, recipe = experiments.find(name)
        size = experiments.load(full.partition("/")[0]).size(recipe)
        paper = _paper("paper {}", recipe)
        click.echo(f"{full:36} {f'{size:,}' if size else '':>12} {paper:11} {recipe.cite or recipe.note}")


@main.command(context_settings=FURTHER)
@click.argument("recipe")
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--devices", default=1, show_default=True, type=COUNT, help="Processes on this machine (torchrun sets its own).")
@click.option("--nodes", default=1, show_default=True, type=COUNT)
@options("set", "data", "runs", "results", "device", "precision")
@further
def train(
    recipe: str, seed: int, changes: tuple[str, ...], data: Path | None, precision: str, words: tuple[str, ...], **where: Any
) -> None:
    """Train a recipe; the same command again continues it.

    The name of an experiment in place of a recipe trains on data of yours, which options of that experiment name.
    """
    job = session.job(recipe, seed, changes, own_options(experiments.of(recipe), words), data, precision)
    with watching() as watcher:
        record = session.train(job, **where, watcher=watcher)
    if record:
        click.echo(summary(record))


def _paper(words: str, one: Recipe | Record) -> str:
    """The paper's numbers for the row of a recipe or a record of its size, put into words."""
    printed = numbers.printed_for(one.row) if one.row and one.scale == "paper" else []
    return words.format(", ".join(printed)) if printed else ""


def summary(record: Record) -> str:
    by_unit: dict[str, list[str]] = {}
    for one in record.results:
        by_unit.setdefault(one.metric.unit, []).append(" ".join(filter(None, (one.protocol, f"{one.value:.3f}"))))
    results = ", ".join(f"{unit} {', '.join(values)}" for unit, values in by_unit.items())
    return (
        f"{record.run}: {record.main.split} {results} (valid {record.valid:.3f}){_paper('; the paper has {}', record)}; "
        f"{record.parameters:,} parameters, {record.updates:,} updates, {record.seconds:.0f} s"
    )


@main.command(context_settings=FURTHER)
@click.argument("run", type=click.Path(path_type=Path))
@options("data", "device")
@further
def evaluate(run: Path, data: Path | None, device: str, words: tuple[str, ...]) -> None:
    """Scores of a run's weights on the validation data, and its results, taken again."""
    for one in session.evaluate(run, data, device, own_options(session.experiment(run), words)):
        click.echo(f"{one.split:5} {one.protocol:7} {one.value:.4f} {one.metric.unit} over {one.n:,}")


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def export(run: Path, out: Path) -> None:
    """Write a trained model into one folder that needs no data and can be handed on: weights, configuration, card."""
    from multint.paper.export import export as write

    click.echo(f"{write(run, out)}: load it with multint.paper.session.load({str(out)!r})")


# ---- sweeps ----


@main.command(context_settings=FURTHER)
@click.argument("recipe")
@click.option("--grid", multiple=True, metavar="KEY=A,B,C", help="Values of one setting; several grids are crossed.")
@click.option("--seeds", default="0", show_default=True, help="Comma-separated.")
@click.option("--jobs", default=1, show_default=True, type=COUNT, help="Runs at a time.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Then no run is started, and those that go on stop at a checkpoint.")
@options("engine", "partition", "set", "data", "runs", "results", "device", "precision")
@further
def sweep(
    recipe: str,
    grid: tuple[str, ...],
    seeds: str,
    jobs: int,
    minutes: float | None,
    engine: str,
    partition: str | None,
    changes: tuple[str, ...],
    words: tuple[str, ...],
    **paths: Any,
) -> None:
    """Train recipes ('ptb-*' is all that start like this) over a grid, several at a time.

    Finished runs are not repeated, so the same command continues a sweep.
    """
    deadline = _deadline("--minutes", minutes and 60 * minutes, engine)
    more = list(itertools.takewhile(lambda word: not word.startswith("-"), words))  # further recipes come before options
    own = words[len(more) :]
    names = list(dict.fromkeys(name for pattern in (recipe, *more) for name in experiments.matching(pattern)))
    common = (*(f"--{name}={value}" for name, value in paths.items() if value is not None), *own)
    points = [sweeps.Point(name, seed, (*changes, *point), common) for point, seed in sweeps.points(grid, seeds) for name in names]
    given = {name: own_options(experiments.of(name), own) for name in names}

    def folder(one: sweeps.Point) -> Path:
        job = session.job(one.recipe, one.seed, one.changes, given[one.recipe], paths["data"], paths["precision"])
        return Path(paths["runs"] / session.run_name(job))

    folders = list(map(folder, points))  # before any is trained: a wrong value, or a corpus that is not there
    failed, left = sweeps.run(points, jobs, engine, partition, say, deadline)
    _sweep_table(folders, points)
    if failed:
        raise RunError(f"{failed} of {len(points)} runs failed; their messages are above, and the same command repeats them")
    if left:
        raise Stopped(f"{left} of {len(points)} runs are not finished; the same command continues them")


def _deadline(option: str, seconds: float | None, engine: str) -> float | None:
    """On the monotonic clock."""
    if seconds is None:
        return None
    if engine != "local":
        raise RecipeError(f"{option} is for runs on this machine; SLURM has limits of its own")
    return time.monotonic() + seconds


def _sweep_table(folders: Sequence[Path], points: Sequence[sweeps.Point]) -> None:
    """The finished runs, the best on validation first."""
    done = [
        (session.read(folder), point) for folder, point in zip(folders, points, strict=True) if (folder / "record.json").exists()
    ]
    lower = all(record.selected_by is None or record.selected_by.metric.lower for record, _ in done)
    for record, point in sorted(done, key=lambda row: (row[0].valid or 0.0) * (1 if lower else -1)):
        unit = "" if record.selected_by is None else record.selected_by.metric.unit
        click.echo(f"valid {record.valid:.4f} {unit}  {' '.join(point.changes)} seed={point.seed}  {record.run}")


@main.command()
@click.argument("row", nargs=-1)
@click.option(
    "--scale", type=click.Choice(["laptop", "paper"]), default="laptop", show_default=True, help="The size of the models."
)
@click.option("--seeds", default="0-2", show_default=True, help="A range or a list: 0-2 or 0,3,7.")
@click.option("--hours", type=click.FloatRange(min=0), help="Then no run is started, and those that go on stop at a checkpoint.")
@click.option("--jobs", type=COUNT, help="Runs at a time (default: one for every core, one on a GPU).")
@click.option("--dry-run", is_flag=True, help="Print the plan and train nothing.")
@options("engine", "partition", "data", "runs", "results", "device", "precision")
def reproduce(
    row: tuple[str, ...],
    scale: str,
    seeds: str,
    hours: float | None,
    jobs: int | None,
    dry_run: bool,
    engine: str,
    partition: str | None,
    **paths: Any,
) -> None:
    """Test the paper: train what its rows need, and build the report.

    ROW is a row or a pattern, as 'ptb-*' or 'text8-milstm'; all rows if none is given. An MI row brings its additive twin. Prints
    the plan first: the runs, those that are finished, and the time they take here. Finished runs are not repeated, so the same
    command continues.
    """
    from multint.paper import reproduce as plans

    deadline = _deadline("--hours", hours and 3600 * hours, engine)  # measuring counts too
    numbers = sweeps.seeds_of(seeds)
    cores = os.cpu_count() or 1
    at_a_time = jobs or (1 if paths["device"] == "cuda" or plans.has_gpu(paths["device"]) else cores)
    words = tuple(f"--{name}={value}" for name, value in paths.items() if value is not None)

    planned = plans.plan(row, scale, numbers, options=words, jobs=at_a_time, say=say, **paths)
    for line in plans.listing(planned, at_a_time):
        click.echo(line)
    if dry_run:
        return
    failed, left = plans.train(planned, at_a_time, engine, partition, say, deadline, sys.stderr.isatty())
    click.echo(f"report: {_report(paths['results'], paths['results'] / 'report.html')}")
    if failed:
        raise RunError(f"{failed} runs failed; their messages are above, and the same command repeats them")
    if left:
        raise Stopped(f"{left} runs are not finished; the same command continues them")


# ---- results ----


@main.command()
@options("results")
@click.option("--out", type=click.Path(path_type=Path), help="Page to write (default: RESULTS/report.html).")
@click.option("--refresh", multiple=True, type=click.Path(path_type=Path), help="Also renew the tables in this Markdown file.")
def report(results: Path, out: Path | None, refresh: tuple[Path, ...]) -> None:
    """One HTML page from the records, the paper's numbers beside ours."""
    click.echo(f"{_report(results, out or results / 'report.html', refresh)}")


def _report(results: Path, out: Path, refresh: Sequence[Path] = ()) -> Path:
    from multint.paper import report as page

    try:
        built = page.build(results, out)
        for path in refresh:
            page.refresh(path, results)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot write the report: {error}") from error
    for warning in built.warnings:
        click.echo(f"multint: {warning}", err=True)
    return built.page


@main.command()
@click.argument("run", nargs=-1, required=True, type=click.Path(path_type=Path))
def compare(run: tuple[Path, ...]) -> None:
    """Runs side by side: what differs in their settings, and how they did."""
    from multint.paper import report as page

    click.echo(page.compare([session.read(path) for path in run]))


if __name__ == "__main__":
    main()
