"""On which books are sentence encoders trained, and where do they come from?"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from multint.paper import obtain
from multint.paper.obtain import DataError, Where, data_folder
from multint.paper.skipthought.books import Books, Form
from multint.paper.sources import File, Source

PAPERS = "bookcorpus"  # the corpus of the paper


@dataclass(frozen=True, kw_only=True)
class BookSource(Source):
    """A corpus of books.

    Args:
        sentences: how many it has.
        names: of files whose sums nobody publishes.
        form, mark: as in ``books.Books``.
        lines: of its files.
    """

    sentences: int
    form: Form = "books"
    names: tuple[str, ...] = ()
    mark: str = ""
    lines: int | None = None


CORPORA: Mapping[str, BookSource] = MappingProxyType(
    {
        source.name: source
        for source in (
            BookSource(
                name="books-275",
                folder="books",
                files=(File("books.txt", 192_739_219, "2286a532e7fa2434aff8e510d5cbe0f1aeb7ecfcf5a2043acd32273a22b9fdaa"),),
                licence="public domain in the USA; mark-up of ELTeC, removed here, CC BY 4.0",
                obtain="275 novels before 1930 of ELTeC-eng and Project Gutenberg, a paragraph a line, '=== ID' before each book",
                detail="275 public-domain books",
                stands_for=PAPERS,
                sentences=2_021_000,
                mark="=== ",
            ),
            BookSource(
                name=PAPERS,
                folder="bookcorpus",
                files=(),
                licence="its books belong to their authors; its makers no longer give it away",
                obtain="books_large_p1.txt and books_large_p2.txt, one sentence a line, tokens with spaces between them",
                detail="11,038 books of Zhu et al. (2015)",
                sentences=74_004_228,
                names=("books_large_p1.txt", "books_large_p2.txt"),
                form="tokens",
                lines=74_004_228,
            ),
        )
    }
)


def load(name: str, data: Where | None = None) -> Books:
    """A corpus by name. Its files need not be there once it is prepared."""
    if name not in CORPORA:
        raise DataError(f"unknown corpus {name!r}; there are {', '.join(CORPORA)}")
    source = CORPORA[name]
    said = (name, *(file.sha256 for file in source.files), *(str(source.lines),))
    only = source.files[0] if source.files else None
    return Books(
        name,
        tuple(_paths(source, data)),
        hashlib.sha256(" ".join(said).encode()).hexdigest(),
        source.form,
        source.stands_for,
        lines=source.lines,
        size=only.bytes if only else None,
        content=only.sha256 if only else None,
        mark=source.mark,
    )


def _paths(source: BookSource, data: Where | None) -> list[Path]:
    """The files of a corpus that are here."""
    listed = [copy.path for file in source.files if (copy := obtain.local(source, file, data))]
    folders = [top / source.folder for top in (data_folder(data), obtain.user_folder())]
    endings = ("", *obtain.PACKED)
    plain = [next((p for f in folders for end in endings if (p := f / (name + end)).is_file()), None) for name in source.names]
    return [*listed, *(path for path in plain if path)]


def absent(name: str, data: Where | None = None) -> str:
    """What is lacking of a corpus, with the way out; "" if nothing is."""
    source = CORPORA[name]
    needed = [file.name for file in source.files] + list(source.names)
    if len(_paths(source, data)) == len(needed):
        return ""
    others = [other.name for other in CORPORA.values() if other.stands_for == name]
    instead = f", or take {' or '.join(others)}, which stands for it" if others else ""
    place = data_folder(data) / source.folder
    return f"{name}: no {' and '.join(needed)} in {place}; obtain it yourself ({source.obtain}) and put it there{instead}"
