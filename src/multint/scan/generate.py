"""What do the equations say, for readers and for kernels?

Runs integration.py and cells.py on symbols that print as LaTeX, and what derive.py makes of them as C++:
``python -m multint.scan.generate`` writes docs/equations.md and scan/csrc/cells.h. A test compares both with the code.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multint import integration
from multint.cells import CELLS, Cell, State
from multint.scan import derive
from multint.scan.derive import Derived, Piece, Term


@dataclass(frozen=True)
class Tex:
    """A LaTeX expression. ``loose`` ones need brackets inside a product; ``gate`` marks the block of a gate."""

    text: str
    loose: bool = False
    gate: str | None = None

    def __add__(self, other: "Tex") -> "Tex":
        return Tex(f"{self.text} + {other.text}", loose=True)

    def __rsub__(self, other: int) -> "Tex":
        return Tex(f"{other} - {self.tight}", loose=True)

    def __mul__(self, other: "Tex") -> "Tex":
        return Tex(f"{self.tight} \\odot {other.tight}")

    @property
    def tight(self) -> str:
        return f"({self.text})" if self.loose else self.text


def forms() -> dict[str, Tex]:
    """Eq. 1 to 4, printed by the functions that compute them."""
    wx, uz = Tex(r"\mathbf{W}x"), Tex(r"\mathbf{U}z")
    alpha, beta1, beta2, b = (Tex(s) for s in (r"\alpha", r"\beta_1", r"\beta_2", "b"))
    call: dict[str, Callable[..., Any]] = vars(integration)
    return {
        "additive": call["additive"](wx, uz, b),
        "simple": call["simple"](wx, uz, b),
        "gated": call["gated"](wx, uz, beta1, beta2, b),
        "general": call["general"](wx, uz, alpha, beta1, beta2, b),
    }


SYMBOLS = {"n": r"\tilde{h}"}  # the paper's name of the GRU's candidate
INDEX = {"n": "h"}  # and its subscript


@dataclass
class TexMaths:
    """cells.Maths that writes a line for every gate and for the cell, and goes on with its symbol."""

    lines: list[str] = field(default_factory=list)

    def line(self, symbol: str, text: str) -> Tex:
        self.lines.append(f"{symbol} &= {text}")
        return Tex(symbol)

    def apply(self, function: str, x: Tex) -> Tex:
        text = f"{function}\\left({x.text}\\right)"
        return Tex(text) if x.gate is None else self.line(f"{SYMBOLS.get(x.gate, x.gate)}_t", text)

    def phi(self, x: Tex) -> Tex:
        return self.apply(r"\phi", x)

    def sigmoid(self, x: Tex) -> Tex:
        return self.apply(r"\sigma", x)

    def tanh(self, x: Tex) -> Tex:
        return self.apply(r"\tanh", x)

    def settle(self, c: Tex) -> Tex:
        return self.line("c_t", c.text)

    def project(self, h: Tex) -> Tex:
        return h


def pre(gate: str, source: Tex, after: Tex | None = None) -> Tex:
    """Eq. 4 for one gate, as LaTeX."""
    k = INDEX.get(gate, gate)
    uz = Tex(f"\\mathbf{{U}}_{k} {source.text}" if not source.text.count("\\odot") else f"\\mathbf{{U}}_{k}({source.text})")
    if after is not None:
        uz = Tex(f"{after.text} \\odot ({uz.text} + b'_{k})", loose=True)
    block: Callable[..., Any] = integration.integrate
    vectors = (Tex(f"\\alpha_{k}"), Tex(f"\\beta_{{{k},1}}"), Tex(f"\\beta_{{{k},2}}"), Tex(f"b_{k}"))
    return Tex(block(Tex(f"\\mathbf{{W}}_{k} x_t"), uz, *vectors).text, gate=gate)


def lines(cell: Cell) -> list[str]:
    """The equations of one step, in the order the cell computes them."""
    m = TexMaths()
    new = cell.step(pre, State(Tex("h_{t-1}"), Tex("c_{t-1}")), m)
    if new.h.text != "h_t":
        m.line("h_t", new.h.text)
    return m.lines


TITLES = {
    "rnn": "MI-RNN (§2.2)",
    "lstm": "MI-LSTM (Appendix A.1)",
    "gru": "MI-GRU (Appendix A.2)",
    "gru_after": "MI-GRU with `reset_after=True`",
}
NOTES = {
    "rnn": "$\\phi$ is tanh, relu or, for the paper's lin-RNN and lin-MI-RNN, the identity.",
    "lstm": "Stored gate order: i, f, z, o (PyTorch writes g for z).",
    "gru": "The paper's last line, with its two misprints corrected ([errata](errata.md)). Stored gate order: r, z, n.",
    "gru_after": "The reset acts on the finished product, as in `torch.nn.GRU`, which also has a bias $b'_h$ inside it.",
}


def page() -> str:
    """docs/equations.md."""
    out = [
        "# Equations",
        "",
        "Printed by `make equations` from `integration.py` and `cells.py`: what stands here is what runs.",
        "",
    ]
    out += ["## The block (§2.1)", "", "| equation | `integration=` | argument of $\\phi$ |", "|---|---|---|"]
    for k, (name, tex) in enumerate(forms().items(), 1):
        out.append(f"| {k} | `{name}` | ${tex.text}$ |")
    out += [
        "",
        "For k sources A, B, ... the block is $\\sum_{a<c} \\alpha_{ac} \\odot A \\odot C + \\sum_a \\beta_a \\odot A + b$.",
        "",
    ]
    for name, cell in CELLS.items():
        body = " \\\\\n".join(lines(cell))
        out += [f"## {TITLES[name]}", "", NOTES[name], "", "$$", "\\begin{aligned}", body, "\\end{aligned}", "$$", ""]
    return "\n".join(out)


# ---- C++ ----

CPP = {"+": "{} + {}", "*": "{} * {}", "one minus": "1 - {}", "minus": "-{}"}


def cpp_spell(term: Term, args: list[str]) -> str:
    if term.op == "number":
        return f"V{{}} + {term.number:g}"
    if term.op in ("phi", "slope"):
        return f"Phi::{term.op}({args[0]})"
    return CPP[term.op].format(*args) if term.op in CPP else f"{term.op}({args[0]})"


def cpp_place(cell: Cell) -> Callable[[str], str]:
    """Where a kernel keeps a named value: ``uz_f`` is x.uz[1], its gradient d.uz[1]."""

    def place(name: str) -> str:
        if name in ("h_new", "c_new"):
            return f"out.{name[0]}"
        if name in ("d_h_new", "d_c_new"):
            return f"seed.{name[2]}"
        if name in ("operand", "d_operand"):
            return {"operand": "out", "d_operand": "seed"}[name]
        base, holder = (name[2:], "d") if name.startswith("d_") else (name, "x")
        part, _, gate = base.partition("_")
        return f"{holder}.{part}[{cell.gates.index(gate)}]" if gate in cell.gates else f"{holder}.{base}"

    return place


def cpp_function(cell: Cell, head: str, piece: Piece, also: tuple[str, ...] = ()) -> list[str]:
    """A function body; ``also`` are gradients that stay zero and must still be written."""
    place = cpp_place(cell)
    body, ends = [], {place(name) for name in piece.outputs}
    for name, expression in derive.statements(piece, cpp_spell, place):
        body.append(f"    {name} = {expression};" if name in ends else f"    const V {name} = {expression};")
    body += [f"    {place(name)} = V{{}};" for name in also if name not in piece.outputs]
    return [f"  template <class Phi, class V> INLINE void {head} {{", *body, "  }"]


def cpp_cell(d: Derived) -> list[str]:
    cell = d.cell

    def mask(piece: Piece | None) -> int:
        return 0 if piece is None else sum(1 << k for k, gate in enumerate(cell.gates) if f"d_uz_{gate}" in piece.outputs)

    def yes(flag: bool) -> str:
        return "true" if flag else "false"

    pieces = (d.step, d.operand) if d.operand else (d.step,)
    out = [
        f"struct {cell.name} {{  // {' '.join(cell.gates)}",
        f"  static constexpr int gates = {len(cell.gates)}, shared = {cell.shared};  // all, and those of the first product",
        f"  static constexpr bool carries_c = {yes('c' in cell.carries)};",
        f"  static constexpr bool uses_h = {yes(any('h' in piece.used() for piece in pieces))};",
        f"  static constexpr bool inner_bias = {yes('bias_hn' in d.step.used())};",
        f"  static constexpr unsigned step_gates = {mask(d.step_back)}, operand_gates = {mask(d.operand_back)};",
        *cpp_function(cell, "step(const Values<V>& x, Pair<V>& out)", d.step),
        *cpp_function(
            cell,
            "step_back(const Values<V>& x, const Pair<V>& seed, Values<V>& d)",
            d.step_back,
            tuple(f"d_{part}" for part in cell.carries),
        ),
    ]
    if d.operand and d.operand_back:
        out += cpp_function(cell, "operand(const Values<V>& x, V& out)", d.operand)
        out += cpp_function(cell, "operand_back(const Values<V>& x, const V& seed, Values<V>& d)", d.operand_back, ("d_h",))
    return [*out, "};"]


def cpp_block() -> list[str]:
    """Eq. 4 for one gate: slope and shift, and their derivative."""
    x, scale, shift = derive.affine()
    inside = {name: f"p.{name}" for name in ("alpha", "beta1", "beta2", "b")}
    places = {"wx": "wx", "scale": "scale", "shift": "shift", "d_scale": "d_scale", "d_shift": "d_shift", "d_wx": "d_wx"}
    places |= inside | {f"d_{name}": f"d.{name}" for name in inside}
    seeds = {name: derive.value(name) for name in ("d_scale", "d_shift")}
    found = derive.pull_back([(scale, seeds["d_scale"]), (shift, seeds["d_shift"])], list(x.values()))
    back = Piece(x | seeds, {f"d_{name}": g for name, g in zip(x, found, strict=True)})
    out = ["template <class V> INLINE void block(const V& wx, const Block<V>& p, V& scale, V& shift) {"]
    for name, expression in derive.statements(Piece(x, {"scale": scale, "shift": shift}), cpp_spell, places.__getitem__):
        out.append(f"  {'' if name in places.values() else 'const V '}{name} = {expression};")
    out += [
        "}",
        "// adds to the gradients of the vectors, which every step and row share",
        "template <class V> INLINE void block_back(",
        "    const V& wx, const Block<V>& p, const V& d_scale, const V& d_shift, V& d_wx, Block<V>& d) {",
    ]
    for name, expression in derive.statements(back, cpp_spell, places.__getitem__):
        sign = "+=" if name.startswith("d.") else "="
        out.append(f"  {'' if name in places.values() else 'const V '}{name} {sign} {expression};")
    return [*out, "}"]


def header() -> str:
    """scan/csrc/cells.h."""
    out = [
        "// Generated by `make equations` from cells.py and integration.py; a test compares it with them. Do not edit.",
        "#pragma once",
        '#include "lanes.h"',
        "",
        "// what one unit of one row sees at a step: per gate, Eq. 4 as scale * uz + shift; and the state before it",
        "template <class V> struct Values { V scale[4], shift[4], uz[4], h, c, bias_hn; };",
        "template <class V> struct Pair { V h, c; };",
        "template <class V> struct Block { V alpha, beta1, beta2, b; };",
        "",
        *cpp_block(),
        "",
    ]
    for cell in CELLS.values():
        out += [*cpp_cell(derive.derive(cell)), ""]
    return "\n".join(out)


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "csrc" / "cells.h").write_text(header(), encoding="utf-8")
    (here.parents[2] / "docs" / "equations.md").write_text(page(), encoding="utf-8")
