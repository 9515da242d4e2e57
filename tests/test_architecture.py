"""Imports go one way: the table of rooms in docs/design.md, held by reading the source."""

import ast
import re
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "multint"

LIBRARY = {"integration", "cells", "scan", "start", "regularize", "layers", "convert", "related", "probes"}
# room -> the rooms it may import. `shapes`, `locks` and `publish` are open to all; "public" stands for the names of multint itself.
MAY_IMPORT = {
    "shapes": set(),
    "locks": set(),
    "publish": set(),
    "integration": set(),
    "cells": set(),
    "scan": {"integration", "cells"},
    "start": set(),
    "regularize": set(),
    "layers": {"integration", "cells", "scan", "start", "regularize"},
    "convert": {"layers"},
    "probes": {"layers", "convert", "scan"},
    "related": {"layers", "integration", "cells", "scan", "start"},
    "__init__": LIBRARY,
    "paper.__init__": set(),
    "paper.experiment": set(),
    "paper.sources": set(),
    "paper.obtain": {"paper.sources"},
    "paper.prepared": {"paper.obtain"},
    "paper.overrides": {"paper.experiment"},
    "paper.experiments": {"paper.experiment", "paper.overrides"},
    "paper.runs": set(),
    "paper.products": set(),
    "paper.processes": {"paper.experiment", "paper.runs"},
    "paper.capture": {"paper.experiment", "paper.runs"},
    "paper.engine": {"paper.capture", "paper.experiment", "paper.processes", "paper.products", "paper.runs"},
    "paper.record": {"paper.experiment"},
    "paper.session": {
        "public",
        "paper.engine",
        "paper.experiment",
        "paper.experiments",
        "paper.obtain",
        "paper.overrides",
        "paper.processes",
        "paper.products",
        "paper.record",
        "paper.runs",
    },
    "paper.export": {"paper.record", "paper.runs", "paper.session"},
    "paper.sweeps": {"paper.experiments", "paper.overrides", "paper.runs"},
    "paper.terminal": {"paper.experiment", "paper.runs", "paper.sweeps"},
    "paper.reproduce": {
        "paper.engine",
        "paper.experiment",
        "paper.experiments",
        "paper.numbers",
        "paper.obtain",
        "paper.overrides",
        "paper.processes",
        "paper.record",
        "paper.runs",
        "paper.session",
        "paper.sweeps",
    },
    "paper.numbers": set(),
    "paper.records": {"paper.experiment", "paper.record"},
    "paper.figures": set(),
    "paper.report": {
        "paper.experiment",
        "paper.experiments",
        "paper.figures",
        "paper.numbers",
        "paper.overrides",
        "paper.record",
        "paper.records",
    },
    "paper.charlm": {
        "public",
        "related",
        "paper.experiment",
        "paper.numbers",
        "paper.obtain",
        "paper.overrides",
        "paper.prepared",
        "paper.record",
        "paper.records",
        "paper.report",
        "paper.session",
        "paper.sources",
        "paper.terminal",
    },
    "paper.speech": {
        "public",
        "paper.experiment",
        "paper.obtain",
        "paper.overrides",
        "paper.prepared",
        "paper.records",
        "paper.report",
        "paper.session",
        "paper.sources",
        "paper.terminal",
    },
    "paper.skipthought": {
        "public",
        "paper.experiment",
        "paper.figures",
        "paper.numbers",
        "paper.obtain",
        "paper.overrides",
        "paper.prepared",
        "paper.record",
        "paper.records",
        "paper.report",
        "paper.runs",  # an encoder that no run trained leaves a record too
        "paper.session",
        "paper.sources",
        "paper.terminal",
    },
    "paper.reader": {
        "public",
        "regularize",
        "paper.experiment",
        "paper.figures",
        "paper.numbers",
        "paper.obtain",
        "paper.overrides",
        "paper.prepared",
        "paper.record",
        "paper.records",
        "paper.report",
        "paper.session",
        "paper.sources",
        "paper.terminal",
    },
    "paper.exploratory": {
        "public",
        "probes",
        "paper.charlm",
        "paper.experiment",
        "paper.figures",
        "paper.numbers",
        "paper.overrides",
        "paper.record",
        "paper.records",
        "paper.report",
    },
    "paper.__main__": {
        "paper.experiment",
        "paper.experiments",
        "paper.export",
        "paper.numbers",
        "paper.obtain",
        "paper.overrides",
        "paper.record",
        "paper.report",
        "paper.reproduce",
        "paper.runs",
        "paper.session",
        "paper.sweeps",
        "paper.terminal",
    },
}
EXPERIMENTS = ("charlm", "exploratory", "speech", "skipthought", "reader")
# From outside the standard library: the library takes torch alone; sympy comes with torch and serves the generator. The paper wing
# trains on machines that have what stands here and no more; the rest is imported by the function that needs it.
# Triton comes with torch's CUDA wheels; only files that are loaded once a GPU is to be used import it.
TRITON = {"gpu_cells.py", "gpu_maths.py", "gpu_finish.py", "gpu_steps.py"}
PAPER_ALWAYS = {"torch", "numpy", "click"}
PAPER_LAZY = {"lightning", "safetensors", "rich", "matplotlib", "jinja2", "requests", "submitit"}
SPEECH_LAZY = {"kaldifst", "kaldi_decoder", "kaldilm", "soundfile"}  # multint[speech]
TEXT_LAZY = {"nltk", "syntok"}  # multint[skipthought]


def room_of(path: Path) -> str:
    parts = [part.removesuffix(".py") for part in path.relative_to(SRC).parts]
    return ".".join(parts[:2]) if parts[0] == "paper" else parts[0]


def room_named(name: str) -> str:
    """The room an imported name lives in: "multint.paper.charlm.data.Corpus" → "paper.charlm"."""
    parts = name.split(".")[1:]
    if parts[:1] == ["paper"]:
        return ".".join(parts[:2])
    return parts[0] if parts and ((SRC / parts[0]).is_dir() or (SRC / f"{parts[0]}.py").exists()) else "public"


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Dotted names a file imports; without ``everywhere`` only those imported when it is loaded."""
    tree = ast.parse(path.read_text())
    later = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) or (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test))
    ]
    inside = set() if everywhere else {id(n) for block in later for n in ast.walk(block)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(SRC.rglob("*.py"))
each = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))


@each
def test_rooms_import_only_what_the_table_allows(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"{room} is a new room: give it a row"
    allowed = MAY_IMPORT[room] | {room, "shapes", "locks", "publish"}
    for name in imports(path):
        if name.partition(".")[0] == "multint":
            assert room_named(name) in allowed, f"{room} may not import {name}"


@each
def test_files_import_from_outside_only_what_their_wing_has(path):
    def outside(names):
        return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"multint"}

    if room_of(path).startswith("paper"):
        assert outside(imports(path, everywhere=False)) <= PAPER_ALWAYS
        lazy = PAPER_LAZY | {"paper.speech": SPEECH_LAZY, "paper.skipthought": TEXT_LAZY}.get(room_of(path), set())
        assert outside(imports(path)) <= PAPER_ALWAYS | lazy
    else:
        extra = {"shapes.py": {"jaxtyping"}, "generate.py": {"sympy"}}.get(path.name, set())
        if path.name in TRITON:
            extra = {"triton"}
        assert outside(imports(path)) <= {"torch"} | extra


SHARED = [path for path in sorted((SRC / "paper").rglob("*.py")) if room_of(path).partition(".")[2] not in EXPERIMENTS]


@pytest.mark.parametrize("path", SHARED, ids=lambda p: str(p.relative_to(SRC)))
def test_no_room_but_the_list_names_an_experiment(path):
    """As a word; "speech" and "reader", which are English too, as the start of a recipe's name."""
    if path.name != "experiments.py":
        named = re.findall(r"""\b(charlm|exploratory|skipthought)\b|["'](speech|reader)/""", path.read_text())
        assert not named, path


def test_no_two_rooms_import_each_other():
    used: dict[str, set[str]] = {}
    for path in FILES:
        if path.name != "__init__.py" or room_of(path) != "__init__":
            names = {name for name in imports(path) if name.startswith("multint.")}
            used.setdefault(room_of(path), set()).update(map(room_named, names))
    both = {(a, b) for a in used for b in used[a] if a < b and a in used.get(b, set())}
    assert not both


@each
def test_functions_of_the_wing_have_at_most_60_lines(path):
    if room_of(path).startswith("paper"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path.name}: {node.name}"
