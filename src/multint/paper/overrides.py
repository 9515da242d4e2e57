"""How does a command line change a recipe?

``key=value`` with the recipe's own field names, ``schedule.lr=0.002`` or just ``lr=0.002`` for those inside; a wrong key lists the
right ones.
"""

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from multint.paper.experiment import SAID, Recipe

T = TypeVar("T")


class RecipeError(Exception):
    """What is wrong with a recipe's name or an override, in one line."""


def keys(recipe: Any, prefix: str = "") -> list[str]:
    """All settings, dotted: the fields that training depends on."""
    out = []
    for f in fields(recipe):
        if isinstance(recipe, Recipe) and f.name in SAID:
            continue
        value = getattr(recipe, f.name)
        out += keys(value, f"{prefix}{f.name}.") if is_dataclass(value) else [prefix + f.name]
    return out


def spelled(recipe: Any, changes: Iterable[str]) -> tuple[str, ...]:
    """The changes with their keys in full: ``lr=0.1`` is ``schedule.lr=0.1`` where only one setting is called lr."""
    out = []
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise RecipeError(f"--set takes key=value, got {change!r}")
        inside = [name for name in keys(recipe) if name.endswith(f".{key.strip()}")]
        known = key.strip() in keys(recipe) or len(inside) != 1
        out.append(f"{key.strip() if known else inside[0]}={text.strip()}")
    return tuple(out)


def effective(recipe: Recipe, changes: Iterable[str]) -> tuple[str, ...]:
    """The changes, spelled out, that give another recipe: a value that it has already is no change. A setting that does nothing in
    the changed recipe is refused.
    """
    after = apply(recipe, changes)
    last = {change.partition("=")[0]: change for change in spelled(recipe, changes)}
    found = {key: change for key, change in last.items() if attrgetter(key)(recipe) != attrgetter(key)(after)}
    idle = after.idle()
    for key, change in found.items():
        if key in idle:
            raise RecipeError(f"{change} changes nothing: {idle[key]}; leave it out")
    return tuple(found.values())


def apply(recipe: T, changes: Iterable[str]) -> T:
    """The recipe with every ``key=value`` set."""
    for change in spelled(recipe, changes):
        key, _, text = change.partition("=")
        if key not in keys(recipe):
            raise RecipeError(f"no setting {key!r}; there are {', '.join(keys(recipe))}")
        try:
            recipe = _set(recipe, key.split("."), text)
        except ValueError as error:
            raise RecipeError(f"{key}={text!r}: {error}") from error
    return recipe


def _set(node: Any, path: list[str], text: str) -> Any:
    name, *rest = path
    value = _set(getattr(node, name), rest, text) if rest else parse(text, get_type_hints(type(node))[name])
    return replace(node, **{name: value})


def parse(text: str, kind: Any) -> Any:
    """A value of the field's type from its spelling."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and text.lower() == "none":
            return None
        for option in arguments:
            a_mapping = isinstance(get_origin(option), type) and issubclass(get_origin(option), Mapping)
            if option is not type(None) and not a_mapping:
                return parse(text, option)
    if origin is tuple:
        return tuple(parse(part.strip(), arguments[0]) for part in text.strip("()").split(","))
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected {'a whole number' if kind is int else 'a number'}") from None
    return text


def rebuilt(recipe: T, settings: Mapping[str, Any]) -> T:
    """The recipe with settings from a run's JSON; what they do not name stays as it is."""
    found: dict[str, Any] = {}
    for f in fields(recipe):  # type: ignore[arg-type]
        if f.name in settings:
            now, value = getattr(recipe, f.name), settings[f.name]
            found[f.name] = rebuilt(now, value) if is_dataclass(now) else tuple(value) if isinstance(value, list) else value
    unknown = sorted(set(settings) - set(found))
    if unknown:
        raise ValueError(f"{type(recipe).__name__} has no setting {', '.join(unknown)}")
    return replace(recipe, **found)  # type: ignore[type-var]
