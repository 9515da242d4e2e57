"""What can be typed about sentence encoders: ``transfer`` scores any of them."""

from collections.abc import Sequence
from pathlib import Path

import click

from multint.paper.experiment import Result
from multint.paper.skipthought import transfer
from multint.paper.skipthought.encoders import KINDS, named, together
from multint.paper.skipthought.labelled import Data
from multint.paper.terminal import options


@click.command("transfer")
@click.option(
    "--encoder", "encoders", multiple=True, required=True, metavar="ENCODER", help=f"{KINDS}. Several are put side by side."
)
@click.option("--tasks", default=",".join(transfer.TASKS), show_default=True, help="Comma-separated.")
@options("data")
def transfer_command(encoders: tuple[str, ...], tasks: str, data: Path | None) -> None:
    """Score a sentence encoder on the tasks of Table 2: SICK, MSRP, MR, CR, SUBJ, MPQA.

    A function takes a list of texts and gives an array with one row for each.
    """
    wanted = [name.strip() for name in tasks.split(",")]
    sets = Data(data)
    encode = together([named(name, sets, wanted) for name in encoders])
    found = transfer.evaluate(encode, sets, wanted, lambda line: click.echo(line, err=True))
    for line in table(found):
        click.echo(line)


def table(found: Sequence[Result]) -> list[str]:
    """A line for every result."""
    return [f"{one.dataset:5} {one.metric.unit:7} {one.value:8.4f}  over {one.n:,} {one.protocol}".rstrip() for one in found]
