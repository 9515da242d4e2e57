"""Which experiments are there, and what trains their recipes?"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from multint.paper.charlm import task as charlm
from multint.paper.charlm.recipes import RECIPES as CHARLM
from multint.paper.charlm.recipes import CharLM
from multint.paper.exploratory.recipes import RECIPES as EXPLORATORY
from multint.paper.exploratory.task import ProbedTask

RECIPES: dict[str, CharLM] = {**CHARLM, **EXPLORATORY}
TASKS: dict[str, type[charlm.CharTask]] = {"charlm": charlm.CharTask, "exploratory": ProbedTask}


def job(
    name: str, seed: int, changes: Sequence[str], text: Path | None, as_bytes: bool, data: Path | None, precision: str
) -> charlm.Job:
    """The job a command line describes: a recipe by name, with or without its experiment, or any text with ``charlm``."""
    return charlm.job(name, seed, changes, text, as_bytes, data, precision, RECIPES)


def train(job: charlm.Job, runs: Path, results: Path, **settings: Any) -> dict[str, Any]:
    """Train, or continue, or if it is done just look: the record of the run."""
    return charlm.train(job, runs, results, kind=TASKS[job.name.partition("/")[0]], **settings)


def named(pattern: str) -> list[str]:
    """The recipes a pattern stands for: ``ptb-*`` all that begin so; a name stands for itself, and ``charlm`` for any text.

    >>> named("text8-m*")
    ['charlm/text8-mirnn', 'charlm/text8-milstm', 'charlm/text8-migru', 'charlm/text8-mrnn']
    """
    if pattern == "charlm":
        return [pattern]
    found = [name for name in RECIPES if fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[2], pattern)]
    return found or [charlm.full(pattern, RECIPES)]  # which says what there is
