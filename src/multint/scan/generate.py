"""What do the equations say, for readers and for kernels?

Runs integration.py and cells.py on symbols that print as LaTeX and writes docs/equations.md:
``python -m multint.scan.generate docs/equations.md``. A test compares the page with the code.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multint import integration
from multint.cells import CELLS, Cell, State


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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m multint.scan.generate docs/equations.md")
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
