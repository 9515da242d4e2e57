"""Imports go one way: the table of rooms in docs/design.md, held by reading the source."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "multint"

# room -> the rooms it may import. `shapes` holds notation only and is open to all.
MAY_IMPORT = {
    "shapes": set(),
    "integration": set(),
    "cells": set(),
    "scan": {"integration", "cells"},
    "start": set(),
    "regularize": set(),
    "layers": {"integration", "cells", "scan", "start", "regularize"},
    "convert": {"layers"},
    "probes": {"layers", "convert", "scan"},
    "related": {"layers", "integration", "cells", "scan", "start"},
    "__init__": {"integration", "scan", "start", "regularize", "layers", "convert", "related", "probes"},
}
# what the library may import from outside the standard library; sympy comes with torch and is used by the generator alone
OUTSIDE = {"torch", "multint"}
STANDARD = {"ast", "collections", "contextlib", "copy", "dataclasses", "functools", "itertools", "math", "numbers", "pathlib"}
STANDARD |= {"sys", "types", "typing", "warnings"}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_rooms_import_only_what_the_table_allows(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"{room} is a new room: give it a row"
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top != "multint":
            continue
        other = rest.partition(".")[0]
        allowed = MAY_IMPORT[room] | {room, "shapes"}
        assert other in allowed or (SRC / other).exists() is (SRC / f"{other}.py").exists() is False, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_the_library_needs_torch_alone(path):
    tops = {name.partition(".")[0] for name in imports(path)}
    extra = {"jaxtyping"} if path.name == "shapes.py" else {"sympy"} if path.name == "generate.py" else set()
    assert tops <= OUTSIDE | STANDARD | extra, f"{path.name} imports {tops - OUTSIDE - STANDARD}"
