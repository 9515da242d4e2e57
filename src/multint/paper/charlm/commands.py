"""What can be typed about character models alone: options for a text of the user's, ``sample`` and ``demo``."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

from multint.paper import session
from multint.paper.charlm.model import CharModel, sample
from multint.paper.charlm.recipes import RECIPES
from multint.paper.overrides import RecipeError
from multint.paper.record import Record
from multint.paper.terminal import COUNT, SEED, options, watching

OPTIONS = (
    click.Option(["--text"], type=click.Path(path_type=Path), help="Train on this file instead of the recipe's corpus."),
    click.Option(["--bytes", "as_bytes"], is_flag=True, help="Read --text as bytes, not as UTF-8."),
)


def write(
    folder: Path, prompt: str, length: int, temperature: float = 0.8, top_k: int | None = None, seed: int = 0
) -> Iterator[str]:
    """The prompt, then ``length`` symbols as they are drawn, from a run or an exported model."""
    model = session.load(folder)
    if not isinstance(model, CharModel) or model.alphabet is None:
        raise RecipeError(f"{folder} is not a character model; sample writes text with one")
    ids = torch.as_tensor(model.alphabet.encode(prompt)) if prompt else torch.zeros(1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    drawn = sample(model, ids, temperature=temperature, top_k=top_k, generator=generator)
    shown = ids.tolist() if prompt else []
    yield from model.alphabet.decoded(itertools.chain(shown, itertools.islice(drawn, length)))


@click.command("sample")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="Text to begin with.")
@click.option("--length", default=400, show_default=True, type=click.IntRange(min=0))
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0, 1e6))
@click.option("--top-k", type=COUNT)
@click.option("--seed", default=0, show_default=True, type=SEED)
def sample_command(run: Path, prompt: str, length: int, temperature: float, top_k: int | None, seed: int) -> None:
    """Write text with a trained model of characters, as it comes. RUN is a run's folder or an exported one."""
    for piece in write(run, prompt, length, temperature, top_k, seed):
        click.echo(piece, nl=False)
    click.echo()


DEMO = ("demo-rnn", "demo-mirnn", "demo-lstm", "demo-milstm")
NAMES = {"demo-rnn": "RNN", "demo-mirnn": "MI-RNN", "demo-lstm": "LSTM", "demo-milstm": "MI-LSTM"}


@click.command("demo")
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--results", type=click.Path(path_type=Path), default=Path("runs/demo"), help="Where its records go.")
@options("set", "runs")
def demo_command(seed: int, changes: tuple[str, ...], runs: Path, results: Path) -> None:
    """An RNN and an LSTM beside their MI twins on the text that ships with Python: curves, a table, two samples."""
    from multint.paper import report

    torch.set_num_threads(1)  # the products of a step are small: threads would wait for each other
    click.echo("Two RNNs and two LSTMs learn to predict the next character of Python's documentation. One of each multiplies (MI).")
    found: dict[str, Record] = {}
    for name in DEMO:
        job = session.job(f"charlm/{name}", seed, changes)
        recipe: Any = job.recipe
        click.echo(f"\n{NAMES[name]}: {recipe.hidden} units, learning rate {recipe.schedule.lr:g}")
        with watching() as watcher:
            one = session.train(job, runs, results, device="cpu", watcher=watcher)
        assert one is not None  # there is one process
        found[name] = one
    click.echo(f"\n{'':8} test BPC  parameters  seconds")
    for name, one in found.items():
        click.echo(f"{NAMES[name]:8} {one.main.value:8.3f} {one.parameters:11,} {one.seconds:8.0f}")
    samples = {name: "".join(write(runs / found[name].run, "The ", 300, 0.7)) for name in ("demo-rnn", "demo-mirnn")}
    for name, text in samples.items():
        click.echo(f"\n--- {NAMES[name]} writes:\n{text}")
    words = sentence(found)
    click.echo(f"\n{words}")
    focus = report.Focus([one.run for one in found.values()], {found[name].run: text for name, text in samples.items()}, words)
    click.echo(f"report: {report.build(results, results / 'report.html', focus).page}")


def sentence(found: dict[str, Record]) -> str:
    """What the four results mean."""
    values = {name: one.main.value for name, one in found.items()}
    parts = [f"{NAMES[name]} {value:.3f}" for name, value in values.items()]
    gaps = [
        f"the {NAMES[mi]} is {abs(gap):.3f} {'better' if gap < 0 else 'worse'} than the {NAMES[plain]}"
        for plain, mi in (("demo-rnn", "demo-mirnn"), ("demo-lstm", "demo-milstm"))
        for gap in [values[mi] - values[plain]]
    ]
    return (
        f"Bits per character on held-out text: {', '.join(parts)}. With this seed {' and '.join(gaps)}, each at the learning rate "
        "that served it best. The two LSTMs are level over three seeds; the RNNs are not."
    )


COMMANDS = (sample_command, demo_command)
assert set(DEMO) <= set(RECIPES)
