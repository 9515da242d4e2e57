"""What must a kernel compute at one step, forwards and backwards?

Runs cells.py and integration.py on symbols and differentiates what they did, in reverse: the gate equations stay written once.
Eq. 4 is linear in the flow U z, so a kernel needs only ``scale * uz + shift``; for token input both are tables over the symbols.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multint import integration
from multint.cells import Cell, State


@dataclass(frozen=True, eq=False)
class Term:
    """A value of one step: an input, a number, or an operation on other terms."""

    op: str
    args: tuple["Term", ...] = ()
    name: str = ""  # of an input, or a hint for the reader of the generated code
    number: float = 0.0

    def __add__(self, other: "Term") -> "Term":
        if self is ZERO:
            return other
        return self if other is ZERO else Term("+", (self, other))

    def __mul__(self, other: "Term") -> "Term":
        if self is ZERO or other is ZERO:
            return ZERO
        if self is ONE:
            return other
        return self if other is ONE else Term("*", (self, other))

    def __rsub__(self, other: int) -> "Term":
        assert other == 1, "cells subtract from one only"
        return Term("one minus", (self,))


ZERO, ONE = Term("number", number=0.0), Term("number", number=1.0)


def value(name: str) -> Term:
    return Term("input", name=name)


def negative(x: Term) -> Term:
    return ZERO if x is ZERO else Term("minus", (x,))


# each operation's own derivative: from (the term, the gradient of its value) to the gradients of its arguments
PULL: dict[str, Callable[[Term, Term], tuple[Term, ...]]] = {
    "+": lambda y, g: (g, g),
    "*": lambda y, g: (g * y.args[1], g * y.args[0]),
    "one minus": lambda y, g: (negative(g),),
    "minus": lambda y, g: (negative(g),),
    "sigmoid": lambda y, g: (g * (y * (1 - y)),),
    "tanh": lambda y, g: (g * (1 - y * y),),
    "phi": lambda y, g: (g * Term("slope", (y,)),),
}


def ordered(ends: list[Term]) -> list[Term]:
    """Every term the ends need, arguments first."""
    seen: dict[int, Term] = {}

    def visit(term: Term) -> None:
        if id(term) not in seen:
            for arg in term.args:
                visit(arg)
            seen[id(term)] = term

    for end in ends:
        visit(end)
    return list(seen.values())


def pull_back(seeds: list[tuple[Term, Term]], inputs: list[Term]) -> list[Term]:
    """Reverse mode: gradients of the inputs, given (value, gradient of that value) pairs."""
    gradient: dict[int, Term] = {}
    for y, g in seeds:
        gradient[id(y)] = gradient.get(id(y), ZERO) + g
    for y in reversed(ordered([y for y, _ in seeds])):
        g = gradient.get(id(y), ZERO)
        if y.op in PULL and g is not ZERO:
            for arg, part in zip(y.args, PULL[y.op](y, g), strict=True):
                gradient[id(arg)] = gradient.get(id(arg), ZERO) + part
    return [gradient.get(id(x), ZERO) for x in inputs]


class Symbols:
    """cells.Maths on symbols."""

    def sigmoid(self, x: Term) -> Term:
        return Term("sigmoid", (x,), name=x.name.removeprefix("a_"))

    def tanh(self, x: Term) -> Term:
        return Term("tanh", (x,), name=x.name.removeprefix("a_"))

    def phi(self, x: Term) -> Term:
        return Term("phi", (x,), name="y")

    def settle(self, c: Term) -> Term:
        return c

    def project(self, h: Term) -> Term:
        return h


def affine() -> tuple[dict[str, Term], Term, Term]:
    """Eq. 4 as ``scale * uz + shift``: its inputs by name, its slope in U z and its value at U z = 0."""
    names = ("wx", "alpha", "beta1", "beta2", "b")
    x = {name: value(name) for name in names}
    block: Callable[..., Any] = integration.integrate
    uz = value("uz")
    whole = block(x["wx"], uz, x["alpha"], x["beta1"], x["beta2"], x["b"])
    (scale,) = pull_back([(whole, ONE)], [uz])
    shift = block(x["wx"], ZERO, x["alpha"], x["beta1"], x["beta2"], x["b"])
    return x, scale, shift


@dataclass(frozen=True)
class Piece:
    """A function to generate: some values of a step, or their gradients, from its inputs."""

    inputs: Mapping[str, Term]
    outputs: Mapping[str, Term]  # by the name of the place they are written to

    def used(self) -> set[str]:
        """Names of the inputs that matter."""
        return {term.name for term in ordered(list(self.outputs.values())) if term.op == "input"}


def block() -> tuple[Piece, Piece]:
    """Eq. 4 of one gate: slope and shift, and from their gradients those of W x and the vectors."""
    x, scale, shift = affine()
    seeds = {name: value(name) for name in ("d_scale", "d_shift")}
    found = pull_back([(scale, seeds["d_scale"]), (shift, seeds["d_shift"])], list(x.values()))
    back = Piece(x | seeds, {f"d_{name}": g for name, g in zip(x, found, strict=True)})
    return Piece(x, {"scale": scale, "shift": shift}), back


@dataclass(frozen=True)
class Derived:
    """One cell, taken apart at its matrix products."""

    cell: Cell
    step: Piece  # the new state, from every U z
    step_back: Piece
    operand: Piece | None  # what goes into a second product: r * h in the paper's GRU
    operand_back: Piece | None
    after: Mapping[str, Term]  # by gate, what its scale multiplies where that is not U z itself: r * (U h + b) after the reset


def derive(cell: Cell) -> Derived:
    """Trace a cell's step and differentiate it."""
    x = {name: value(name) for name in ("h", "c", "bias_hn")}
    for gate in cell.gates:
        x |= {f"{part}_{gate}": value(f"{part}_{gate}") for part in ("scale", "shift", "uz")}
    second: list[Term] = []
    scaled: dict[str, Term] = {}

    def pre(gate: str, source: Term, after: Term | None = None) -> Term:
        if source is not x["h"]:
            second.append(source)
        uz = x[f"uz_{gate}"]
        if after is not None:
            uz = scaled[gate] = after * (uz + x["bias_hn"])
        total = x[f"scale_{gate}"] * uz + x[f"shift_{gate}"]
        return Term(total.op, total.args, name=f"a_{gate}")

    new = cell.step(pre, State(x["h"], x["c"]), Symbols())
    state = {"h_new": new.h} | ({"c_new": new.c} if "c" in cell.carries else {})
    return Derived(
        cell,
        Piece(x, state),
        _back(x, state),
        Piece(x, {"operand": second[0]}) if second else None,
        _back(x, {"operand": second[0]}) if second else None,
        scaled,
    )


def _back(x: dict[str, Term], outputs: dict[str, Term]) -> Piece:
    seeds = {f"d_{name}": value(f"d_{name}") for name in outputs}
    found = pull_back([(y, seeds[f"d_{name}"]) for name, y in outputs.items()], list(x.values()))
    return Piece(x | seeds, {f"d_{name}": g for name, g in zip(x, found, strict=True) if g is not ZERO})


def prepared(piece: Piece, wanted: tuple[str, ...]) -> tuple[Piece, Piece]:
    """A derivative in two pieces: coefficients that can be known before the gradients come in, and the sums of gradients with them.

    A derivative is linear in the gradients ``d_..._new``, so each of its values is one of a few such sums times a coefficient.
    """
    seeds = {name: term for name, term in piece.inputs.items() if name.endswith("_new")}
    coefficients: dict[str, Term] = {}
    known: dict[int, str] = {}
    found: dict[int, tuple[Term, Term] | None] = {id(term): (term, ONE) for term in seeds.values()}

    def whole(part: tuple[Term, Term]) -> Term:
        base, factor = part
        if factor is ONE:
            return base
        if id(factor) not in known:
            known[id(factor)] = f"k{len(coefficients)}"
            coefficients[known[id(factor)]] = factor
        return base * value(known[id(factor)])

    def split(term: Term) -> tuple[Term, Term] | None:
        """A sum of gradients and its coefficient; None for what does not depend on them."""
        if id(term) not in found:
            parts = [split(arg) for arg in term.args]
            if all(part is None for part in parts):
                found[id(term)] = None
            elif term.op == "+":
                left, right = (part for part in parts if part is not None)
                found[id(term)] = (whole(left) + whole(right), ONE)
            elif term.op == "minus":
                assert parts[0] is not None
                found[id(term)] = (parts[0][0], negative(parts[0][1]))
            else:
                assert term.op == "*", f"{term.op} is not linear"
                own, other = (0, 1) if parts[0] is not None else (1, 0)
                part = parts[own]
                assert part is not None and parts[other] is None, "a product of gradients"
                found[id(term)] = (part[0], part[1] * term.args[other])
        return found[id(term)]

    ends = {}
    for name in wanted:
        if name in piece.outputs:
            part = split(piece.outputs[name])
            assert part is not None
            ends[name] = whole(part)
    return Piece(piece.inputs, coefficients), Piece({name: value(name) for name in coefficients} | seeds, ends)


# ---- printing ----


def statements(piece: Piece, spell: Callable[[Term, list[str]], str], place: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """(name, expression) of every intermediate value in order, then of every output; ``place`` names inputs and outputs."""
    text: dict[int, str] = {}
    taken: set[str] = set()
    for term in ordered(list(piece.outputs.values())):
        if term.op == "input":
            text[id(term)] = place(term.name)
            continue
        expression = spell(term, [text[id(arg)] for arg in term.args])
        name = term.name if term.name and term.name not in taken else f"t{len(taken)}"
        taken.add(name)
        text[id(term)] = name
        yield name, expression
    for name, term in piece.outputs.items():
        yield place(name), text[id(term)]
