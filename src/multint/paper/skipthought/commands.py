"""What can be typed about sentence encoders: options for the user's own books, and ``transfer``, ``encode``, ``nearest``."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

from multint.paper import record
from multint.paper.experiment import Result
from multint.paper.obtain import DataError, one_line
from multint.paper.record import Data as Of
from multint.paper.record import Record
from multint.paper.runs import append_line, digest, environment
from multint.paper.skipthought import transfer
from multint.paper.skipthought.encoder import Encoder
from multint.paper.skipthought.encoders import KINDS, named, together, trained
from multint.paper.skipthought.labelled import Data
from multint.paper.terminal import COUNT, options
from multint.publish import replacing

PATH = click.Path(path_type=Path)
OPTIONS = (
    click.Option(["--books"], type=PATH, help="Train on these books: a folder, an archive or a file of running text."),
    click.Option(["--sentences"], type=PATH, help="Train on files of one sentence a line instead."),
    click.Option(["--tokens"], type=PATH, help="Train on files of one sentence a line, with spaces between its tokens, instead."),
)


# ---- transfer ----


@click.command("transfer")
@click.option(
    "--encoder", "encoders", multiple=True, required=True, metavar="ENCODER", help=f"{KINDS}. Several are put side by side."
)
@click.option("--tasks", default=",".join(transfer.TASKS), show_default=True, help="Comma-separated.")
@click.option(
    "--vectors", type=PATH, help="Word vectors for words that a run does not know: GloVe's text, word2vec's text or binary."
)
@click.option("--record", "name", metavar="NAME", help="Put the results among the records, under this name.")
@options("data", "results")
def transfer_command(
    encoders: tuple[str, ...], tasks: str, vectors: Path | None, name: str | None, data: Path | None, results: Path
) -> None:
    """Score a sentence encoder on the tasks of Table 2: SICK, MSRP, MR, CR, SUBJ, MPQA.

    A function takes a list of texts and gives an array with one row for each.
    """
    wanted = [task.strip() for task in tasks.split(",")]
    sets, began = Data(data), time.perf_counter()
    encode = together([named(one, sets, wanted, vectors) for one in encoders])
    found = transfer.evaluate(encode, sets, wanted, lambda line: click.echo(line, err=True))
    for line in table(found):
        click.echo(line)
    if name is not None:
        click.echo(f"recorded as {write(name, encoders, vectors, found, time.perf_counter() - began, results)}")


def table(found: Sequence[Result]) -> list[str]:
    """A line for every result."""
    return [f"{one.dataset:5} {one.metric.unit:7} {one.value:8.4f}  over {one.n:,} {one.protocol}".rstrip() for one in found]


def write(name: str, encoders: Sequence[str], vectors: Path | None, found: Sequence[Result], seconds: float, results: Path) -> str:
    """Append the results of an encoder that no run trained to the records; the name they have there."""
    where = environment()
    said = {"encoder": " + ".join(encoders), "vectors": None if vectors is None else vectors.name}
    one = Record(
        run=f"skipthought/{name}-{digest(said)}",
        recipe=f"skipthought/{name}",
        data=Of("the tasks alone"),
        results=tuple(dataclasses.replace(result, value=round(result.value, 5)) for result in found),
        commit=where["commit"],
        dirty=where["dirty"],
        device=where["device"],
        shared=where["shared"],
        versions={key: where[key] for key in ("python", "torch")},
        seconds=round(seconds, 1),
        config=said,
    )
    try:
        results.mkdir(parents=True, exist_ok=True)
        append_line(results / record.RECORDS, record.line(one))
    except OSError as error:
        raise DataError(f"cannot write the record under {results}: {one_line(error)}; choose another with --results") from error
    return one.run


# ---- encode ----


def loaded(run: Path, vectors: Path | None, device: str, texts: Sequence[str]) -> Encoder:
    """The encoder of a run on a device, with vectors for further words of these texts."""
    from multint.paper.skipthought import text
    from multint.paper.skipthought import vectors as files

    encoder = trained(run)
    if vectors is not None:
        tokens = {token for one in texts for token in text.words(one)}
        wanted = tokens | {token.lower() for token in tokens} | set(encoder.words)
        click.echo(f"{encoder.expand(files.read(vectors, wanted.__contains__)):,} words are known to both", err=True)
    return encoder.to("cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, one sentence each."""
    from multint.paper.skipthought.books import LINE, decoded

    try:
        body, odd = decoded(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {one_line(error)}") from error
    lines = LINE.split(body)
    lines = lines[:-1] if lines[-1] == "" else lines
    empty = sum(not line.strip() for line in lines)
    for count, what in (
        (odd, "bytes are not UTF-8 and are read as Windows-1252"),
        (empty, "lines are empty; their vectors are zero"),
    ):
        if count:
            click.echo(f"{path}: {count:,} {what}", err=True)
    return lines


def vectors_of(encoder: Encoder, lines: Sequence[str], eos: bool, precision: str) -> NDArray[np.float32]:
    """The vectors of lines, with progress and the share of words that the encoder does not know."""
    device = encoder.embedding.weight.device.type
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        found: NDArray[np.float32] = encoder.encode(lines, eos=eos, progress=shown(len(lines))).numpy()
    return found


def shown(total: int) -> Callable[[int], None]:
    """A line on a terminal that counts sentences; elsewhere one at the end."""
    began, last, live = time.monotonic(), 0.0, sys.stderr.isatty()

    def progress(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if (live and now - last > 0.2) or done == total:
            last = now
            speed = done / max(now - began, 1e-9)
            click.echo(f"\r{done:,} of {total:,} sentences, {speed:,.0f}/s  ", err=True, nl=done == total)

    return progress


@click.command("encode")
@click.argument("run", type=PATH)
@click.argument("file", type=PATH)
@click.option("--out", type=PATH, help="Where vectors go: .npy or .safetensors (default: FILE.npy).")
@click.option("--eos", is_flag=True, help="Read the end after each sentence, as in training and for SICK.")
@click.option("--vectors", type=PATH, help="Word vectors for words that the run does not know.")
@options("device", "precision")
def encode_command(run: Path, file: Path, out: Path | None, eos: bool, vectors: Path | None, device: str, precision: str) -> None:
    """Write the vectors of sentences, one of a line. RUN is a run's folder or an exported one."""
    out = out or file.with_name(f"{file.name}.npy")
    if out.suffix not in (".npy", ".safetensors"):
        raise DataError(f"vectors are written to a file that ends in .npy or .safetensors, not {out}")
    lines = read_lines(file)
    found = vectors_of(loaded(run, vectors, device, lines), lines, eos, precision)
    try:
        with replacing(out) as target:
            if out.suffix == ".npy":
                np.save(target, found, allow_pickle=False)
            else:
                from safetensors.numpy import save

                target.write(save({"vectors": found}))
    except OSError as error:
        raise DataError(f"cannot write {out}: {one_line(error)}") from error
    click.echo(f"{out}: {found.shape[0]:,} vectors of {found.shape[1]:,} numbers")


@click.command("nearest")
@click.argument("run", type=PATH)
@click.argument("file", type=PATH)
@click.argument("query")
@click.option("--count", default=5, show_default=True, type=COUNT, help="How many sentences to show.")
@click.option("--vectors", type=PATH, help="Word vectors for words that the run does not know.")
@options("device", "precision")
def nearest_command(run: Path, file: Path, query: str, count: int, vectors: Path | None, device: str, precision: str) -> None:
    """The sentences of FILE, one a line, whose vectors are nearest to that of QUERY, by their cosine."""
    lines = read_lines(file)
    found = vectors_of(loaded(run, vectors, device, [*lines, query]), [*lines, query], False, precision)
    cosines = found[:-1] @ found[-1]
    for place in np.argsort(-cosines, kind="stable")[:count]:
        click.echo(f"{cosines[place]:.3f}  {lines[place]}")


COMMANDS = (transfer_command, encode_command, nearest_command)
