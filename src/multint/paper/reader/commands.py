"""What can be typed about the reader alone: an option for questions of the user's, ``read`` and ``questions``."""

import tarfile
from io import BytesIO
from pathlib import Path

import click

from multint.paper import session
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError
from multint.paper.reader import asking, corpora, heat, questions
from multint.paper.reader.model import AttentiveReader
from multint.paper.reader.questions import Malformed, Question
from multint.paper.terminal import COUNT, options
from multint.publish import replacing

OPTIONS = (
    click.Option(
        ["--questions"],
        type=click.Path(path_type=Path),
        help="Train on this folder or archive of .question files instead of the recipe's corpus.",
    ),
)


@click.command("read")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--document", required=True, type=click.Path(path_type=Path), help="Running text, or a .question file.")
@click.option("--question", help="A sentence with @placeholder where the answer belongs; a .question file has its own.")
@click.option("--top", default=5, show_default=True, type=COUNT, help="Answers to list.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write a page with the attention over the document.")
def read_command(run: Path, document: Path, question: str | None, top: int, page: Path | None) -> None:
    """Answer a question about a document, and show where the reader looked. RUN is a run's folder or an exported one."""
    model = session.load(run)
    if not isinstance(model, AttentiveReader):
        raise RecipeError(f"{run} is not a reader; read answers questions with one")
    try:
        reply = asking.answer(model, _given(document, question, model.vocabulary.entities))
    except (Malformed, OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot ask about {document}: {error}") from error
    for line in heat.terminal(reply, top):
        click.echo(line)
    if page is not None:
        page.write_text(heat.page(reply, top), encoding="utf-8")
        click.echo(f"page: {page}")


def _given(document: Path, question: str | None, entities: int) -> Question:
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".question":
        if question is not None:
            raise RecipeError("a .question file has its own question; leave --question out")
        return questions.read(text)
    if question is None:
        raise RecipeError("ask something: --question 'a sentence with @placeholder where the answer belongs'")
    return asking.asked(text, question, entities)


@click.command("questions")
@click.argument("corpus")
@click.argument("out", type=click.Path(path_type=Path))
@options("data")
def questions_command(corpus: str, out: Path, data: Path | None) -> None:
    """Write a corpus of questions as an archive of .question files, the form of Hermann et al. OUT ends in .tar or .tar.gz."""
    how = {".tar": "w", ".gz": "w:gz"}.get(out.suffix)
    if how is None:
        raise RecipeError(f"the archive {out} should end in .tar or .tar.gz")
    folders = {split: folder for folder, split in corpora.FOLDERS.items()}
    count = 0
    with replacing(out) as file, tarfile.open(fileobj=file, mode=how) as archive:  # type: ignore[call-overload]
        for item in corpora.load(corpus, data).items():
            if isinstance(item.what, Question):
                content = questions.written(item.what).encode()
                info = tarfile.TarInfo(f"{corpus}/questions/{folders[item.split]}/{item.name}")
                info.size = len(content)
                archive.addfile(info, BytesIO(content))
                count += 1
    click.echo(f"{out}: {count:,} questions")


COMMANDS = (read_command, questions_command)
