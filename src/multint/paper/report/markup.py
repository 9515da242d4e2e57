"""A table for either format, and as Markdown."""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = "—"


@dataclass(frozen=True)
class Cell:
    """Text of a cell and what it is: head (idle: nothing was run), unit, number, name, note, better, met, miss or none."""

    text: str
    kind: str = ""


EMPTY = Cell(NONE, "none")


def filled(text: str, kind: str) -> Cell:
    """A cell with this text, or an empty one."""
    return Cell(text, kind) if text else EMPTY


@dataclass(frozen=True)
class Table:
    """A table for either format. ``note`` stands under the title; rows begin with their heading."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Column(NamedTuple):
    """The title of a column, the kind of its cells, and their text for what a row is about."""

    title: str
    kind: str
    text: Callable[[Any], str]


def tabulated(title: str, note: str, columns: Sequence[Column], things: Iterable[Any]) -> Table:
    """A table with a row for each thing."""
    rows = tuple(tuple(filled(column.text(one), column.kind) for column in columns) for one in things)
    return Table(title, note, tuple(column.title for column in columns), rows)


def md(text: str) -> str:
    """Text that Markdown shows as it is, inside a table too."""
    safe = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", safe)


def md_grid(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    rows = list(rows)
    align = ["--:" if all(row[i].kind.startswith(("number", "none")) for row in rows) else "---" for i in range(len(header))]
    lines = [[md(text) for text in header], align, *([md(cell.text) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def md_table(table: Table, level: str = "###") -> str:
    return f"{level} {md(table.title)}\n\n{md(table.note)}\n\n{md_grid(table.header, table.rows)}"


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
