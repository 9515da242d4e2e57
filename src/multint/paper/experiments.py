"""Which experiments are there? A list of module names; a module is imported when one of its recipes or commands is used.

A user's own experiment is found through the entry point group ``multint.experiments``, or named with ``--experiment MODULE``.
"""

import importlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import entry_points

from multint.paper.experiment import Experiment, Recipe
from multint.paper.overrides import RecipeError

BUILT_IN = {  # in the order of the paper's sections
    "exploratory": "multint.paper.exploratory.plugin",
    "charlm": "multint.paper.charlm.plugin",
    "speech": "multint.paper.speech.plugin",
    "skipthought": "multint.paper.skipthought.plugin",
    "reader": "multint.paper.reader.plugin",
}
GROUP = "multint.experiments"
added: list[str] = []  # modules named with --experiment


def modules() -> dict[str, str]:
    """Modules by the name of their experiment; those added come first and must be imported to be named."""
    found = {_imported(module).name: module for module in added}
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **installed, **found}


def names() -> list[str]:
    return list(modules())


def load(name: str) -> Experiment:
    known = modules()
    if name not in known:
        raise RecipeError(f"no experiment {name!r}; there are {', '.join(known)}; name the module of another with --experiment")
    found = _imported(known[name])
    if found.name != name:
        raise RecipeError(f"the entry point {name!r} is of the experiment {found.name!r}; they need the same name")
    return found


@cache
def _imported(module: str) -> Experiment:
    path, _, attribute = module.partition(":")
    try:
        found = getattr(importlib.import_module(path), attribute or "EXPERIMENT", None)
    except ImportError as error:
        way_out = "install its package, or run python -m multint.paper in the folder of its file"
        raise RecipeError(f"cannot import the experiment {path}: {error}; {way_out}") from error
    if not isinstance(found, Experiment):
        raise RecipeError(f"{path} has no {attribute or 'EXPERIMENT'} that is a multint.paper.experiment.Experiment")
    return found


def recipes(only: Iterable[str] | None = None) -> dict[str, Recipe]:
    """All recipes by their full names, of some experiments or of all."""
    return {name: recipe for one in (names() if only is None else only) for name, recipe in load(one).named()}


def _within(pattern: str) -> list[str]:
    """The experiments a recipe's name may belong to: the one it names, else all."""
    first = pattern.partition("/")[0]
    return [first] if "/" in pattern and first in modules() else names()


def find(name: str) -> tuple[str, Recipe]:
    """A recipe by name, with or without its experiment; an experiment's own name stands for its recipe for the user's data."""
    if name.startswith("-"):
        raise RecipeError(f"name a recipe before the options of its experiment, got {name!r} first")
    if name in modules():
        own = load(name).own
        if own is None:
            raise RecipeError(f"{name} is an experiment, not a recipe; its recipes: multint recipes '{name}/*'")
        return name, own
    known = recipes(_within(name))
    for full in known:
        if name in (full, full.partition("/")[2]):
            return full, known[full]
    raise RecipeError(f"no recipe {name!r}; there are {', '.join(known)}")


def of(name: str) -> str:
    """The experiment that a recipe belongs to."""
    return find(name)[0].partition("/")[0]


def matching(pattern: str) -> list[str]:
    """The recipes a pattern stands for: ``ptb-*`` all that start like this; a name stands for itself.

    >>> matching("text8-m*")
    ['charlm/text8-mirnn', 'charlm/text8-milstm', 'charlm/text8-migru', 'charlm/text8-mrnn']
    """
    known = recipes(_within(pattern))
    found = [name for name in known if fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[2], pattern)]
    return found or [find(pattern)[0]]  # which says what there is
