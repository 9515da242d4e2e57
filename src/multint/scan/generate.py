"""What do the equations say, for readers and for kernels?

Runs integration.py and cells.py on symbols that print as LaTeX, and what derive.py makes of them as C++ and Triton:
``python -m multint.scan.generate`` writes docs/equations.md, scan/csrc/cells.h and scan/gpu_cells.py. A test compares them with the
code.
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
        if name[0] == "k" and name[1:].isdigit():
            return f"k[{name[1:]}]"
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
    before, after = derive.prepared(d.step_back, (*(f"d_shift_{gate}" for gate in cell.gates), "d_h", "d_c"))
    out += [
        f"  static constexpr int coefficients = {len(before.outputs)};  // of step_back, which is linear in seed",
        *cpp_function(cell, "prepare(const Values<V>& x, V* k)", before),
        *cpp_function(cell, "apply(const V* k, const Pair<V>& seed, Values<V>& d)", after),
    ]
    if d.operand and d.operand_back:
        out += cpp_function(cell, "operand(const Values<V>& x, V& out)", d.operand)
        out += cpp_function(cell, "operand_back(const Values<V>& x, const V& seed, Values<V>& d)", d.operand_back, ("d_h",))
    return [*out, "};"]


def cpp_block() -> list[str]:
    """Eq. 4 for one gate: slope and shift, and their derivative."""
    forward, back = derive.block()
    inside = {name: f"p.{name}" for name in ("alpha", "beta1", "beta2", "b")}
    places = {"wx": "wx", "scale": "scale", "shift": "shift", "d_scale": "d_scale", "d_shift": "d_shift", "d_wx": "d_wx"}
    places |= inside | {f"d_{name}": f"d.{name}" for name in inside}
    out = ["template <class V> INLINE void block(const V& wx, const Block<V>& p, V& scale, V& shift) {"]
    for name, expression in derive.statements(forward, cpp_spell, places.__getitem__):
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


# ---- Triton ----

TRITON = {**CPP, "one minus": "1.0 - {}"}


def triton_spell(term: Term, args: list[str]) -> str:
    if term.op == "number":
        return f"{term.number!r}"
    if term.op in ("phi", "slope"):
        return f"{term.op}({args[0]}, PHI)"
    return TRITON[term.op].format(*args) if term.op in TRITON else f"{term.op}({args[0]})"


def triton_inputs(piece: Piece) -> list[str]:
    """The inputs a piece needs, in order, and PHI if it uses the RNN's nonlinearity."""
    phi = ["PHI"] if any(term.op == "phi" for term in derive.ordered(list(piece.outputs.values()))) else []
    return [name for name in piece.inputs if name in piece.used()] + phi


def triton_function(name: str, piece: Piece) -> list[str]:
    """A piece as a function from its inputs to a tuple of its outputs."""
    inputs = ", ".join(triton_inputs(piece)).replace("PHI", "PHI: tl.constexpr")
    lines = list(derive.statements(piece, triton_spell, str))
    body = [f"    {text} = {expression}" for text, expression in lines if text not in piece.outputs]
    ends = ", ".join(expression for text, expression in lines if text in piece.outputs)
    return ["", "", "@triton.jit", f"def {name}({inputs}):", *body, f"    return {ends}"]


def triton_call(name: str, piece: Piece, gate: str = "") -> str:
    """A line that calls a piece's function; with ``gate``, on that gate's values."""
    ends, inputs = (", ".join(name + gate for name in names) for names in (piece.outputs, triton_inputs(piece)))
    return f"    {ends} = {name}({inputs})".replace(f"PHI{gate}", "PHI")


@dataclass(frozen=True)
class Stage:
    """A kernel of one step: the piece it computes, and the gates whose product with U has just been formed when it runs."""

    name: str
    forward: Piece
    back: Piece
    fresh: tuple[str, ...]


def stages(d: Derived) -> list[Stage]:
    """The kernels of a cell's step, in the forward order. (Gradients of scale follow from those of shift at the end.)"""
    gates = d.cell.gates

    def without(piece: Piece, more: dict[str, Term]) -> Piece:
        ends = {name: term for name, term in piece.outputs.items() if not name.startswith(("d_scale", "d_bias"))}
        return Piece(piece.inputs, ends | more)

    back = without(d.step_back, {f"flow_{gate}": term for gate, term in d.after.items()})
    step = Stage(d.cell.name, d.step, back, gates if d.operand is None else gates[d.cell.shared :])
    if d.operand is None or d.operand_back is None:
        return [step]
    return [Stage(f"{d.cell.name}_operand", d.operand, without(d.operand_back, {}), gates[: d.cell.shared]), step]


def triton_header(name: str, arguments: str, flags: str) -> list[str]:
    return [
        "",
        "",
        '@triton.jit(do_not_specialize=["t", "n", "last"])',
        f"def {name}(",
        f"    t, n, last, {arguments},",
        f"    H: tl.constexpr, {flags}, PHI: tl.constexpr, TOKENS: tl.constexpr, LENGTHS: tl.constexpr,",
        "    RESETS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,",
        "):",
        "    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # of grids, the first axis alone may be long",
        "    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[None, :]",
        "    inside = (row < n) & (unit < H)",
        "    at = t.to(tl.int64) * n + row  # this step's place among all rows of all steps",
    ]


def triton_flows(d: Derived, piece: Piece) -> list[str]:
    """Loads of W x and the vectors, turned into scale and shift, for the gates a piece needs."""
    gh = f"{len(d.cell.gates)} * H"
    out = ["    if TOKENS:", "        source = tl.load(tokens + at, row < n, 0)", "    else:", "        source = at"]
    for k, gate in enumerate(d.cell.gates):
        if f"scale_{gate}" not in piece.used():
            continue
        out.append(f"    wx_{gate} = tl.load(wx + source * ({gh}) + {k} * H + unit, inside, 0.0).to(tl.float32)")
        for v, vector in enumerate(("alpha", "beta1", "beta2", "b")):
            out.append(f"    {vector}_{gate} = tl.load(vectors + ({v * len(d.cell.gates)} + {k}) * H + unit, unit < H, 0.0)")
        out.append(triton_call("block", derive.block()[0], f"_{gate}"))
    if "bias_hn" in piece.used():
        out.append("    bias_hn = tl.load(bias + unit, unit < H, 0.0)")
    return out


def triton_forward(d: Derived, stage: Stage) -> list[str]:
    gates, used = d.cell.gates, stage.forward.used()
    gh, width, first = f"{len(gates)} * H", f"{len(stage.fresh)} * H", gates.index(stage.fresh[0])
    last_stage, carries_c = "h_new" in stage.forward.outputs, "c_new" in stage.forward.outputs
    out = triton_header(
        f"{stage.name}_forward",
        "parts, uz, wx, tokens, vectors, bias, lengths, resets, restart_h, restart_c,\n"
        "    state_h, state_c, states_c, outputs, before, operands",
        "KEEP: tl.constexpr",
    )
    out += ["    now = (at if KEEP else row.to(tl.int64)) * H + unit"]
    out += triton_flows(d, stage.forward)
    for k, gate in enumerate(gates):
        if gate not in stage.fresh and f"uz_{gate}" not in used:
            continue
        place = f"(at if KEEP else row) * ({gh}) + {k} * H + unit"
        if gate not in stage.fresh:
            out.append(f"    uz_{gate} = tl.load(uz + {place}, inside, 0.0).to(tl.float32)")
            continue
        column = f"row * ({width}) + {k - first} * H + unit"
        out += [
            "    if PARTS == 1:",
            f"        uz_{gate} = tl.load(uz + {place}, inside, 0.0).to(tl.float32)",
            "    else:",
            f"        uz_{gate} = tl.load(parts + {column}, inside, 0.0).to(tl.float32)",
            "        for s in tl.static_range(1, PARTS):",
            f"            uz_{gate} += tl.load(parts + s * n * ({width}) + {column}, inside, 0.0).to(tl.float32)",
            f"        tl.store(uz + {place}, uz_{gate}.to(uz.dtype.element_ty), inside)",
        ]
    out += ["    here = row * H + unit"]
    needs_h = "h" in used
    if last_stage:
        out += ["    if LENGTHS:", "        alive = t < tl.load(lengths + row, row < n, 0)"]
    h_lines = ["    h = tl.load(state_h + here, inside, 0.0)"]
    reset_h = ["        h = tl.where(anew, tl.load(restart_h + here, inside, 0.0), h)"]
    out += ["    if RESETS:", "        anew = tl.load(resets + at, row < n, 0) != 0"]
    out += h_lines if needs_h else ["    if LENGTHS:", "        h = tl.load(state_h + here, inside, 0.0)"]
    out += ["    if RESETS:", *reset_h] if needs_h else ["    if LENGTHS and RESETS:", *reset_h]
    if carries_c:
        out += [
            "    c = tl.load(state_c + here, inside, 0.0)",
            "    if RESETS:",
            "        c = tl.where(anew, tl.load(restart_c + here, inside, 0.0), c)",
            "    if KEEP:  # for the backward pass",
            "        tl.store(states_c + now, c.to(states_c.dtype.element_ty), inside)",
        ]
    out.append(triton_call(stage.name + ("_step" if last_stage else ""), stage.forward))
    if not last_stage:
        return [*out, "    tl.store(operands + now, operand.to(operands.dtype.element_ty), inside)"]
    out += ["    if LENGTHS:", "        h_new = tl.where(alive, h_new, h)"]
    if carries_c:
        out += [
            "        c_new = tl.where(alive, c_new, c)",
            "    tl.store(state_c + here, c_new, inside)",
        ]
    out += [
        "    tl.store(state_h + here, h_new, inside" + ("" if needs_h else " & (LENGTHS or t == last)") + ")",
        "    tl.store(outputs + at * H + unit, h_new.to(outputs.dtype.element_ty), inside)",
        "    if RESETS:  # what goes into the next product",
        "        next = tl.load(resets + at + n, (row < n) & (t < last), 0) != 0",
        "        given = tl.where(next, tl.load(restart_h + here, inside, 0.0), h_new)",
        "        tl.store(before + (at + n) * H + unit, given.to(before.dtype.element_ty), inside & (t < last))",
    ]
    return out


def triton_backward(d: Derived, stage: Stage) -> list[str]:
    gates, piece = d.cell.gates, stage.back
    gh = f"{len(gates)} * H"
    first_stage, carries_c, direct = "d_h_new" in piece.inputs, "d_c_new" in piece.inputs, "d_h" in piece.outputs
    out = triton_header(
        f"{stage.name}_backward",
        "parts, d_outputs, uz, wx, tokens, vectors, bias, lengths, resets, first_h, outputs, before,\n"
        "    states_c, d_state_h, d_state_c, d_restart_h, d_restart_c, d_uz, d_shift, flows",
        "DIRECT: tl.constexpr",
    )
    out += triton_flows(d, piece)
    for k, gate in enumerate(gates):
        if f"uz_{gate}" in piece.used():
            out.append(f"    uz_{gate} = tl.load(uz + at * ({gh}) + {k} * H + unit, inside, 0.0).to(tl.float32)")
    out += ["    here = row * H + unit"]
    if "h" in piece.used():
        out += [
            "    if RESETS:",
            "        h = tl.load(before + at * H + unit, inside, 0.0).to(tl.float32)",
            "    else:",
            "        h = tl.load(outputs + (at - n) * H + unit, inside & (t > 0), 0.0).to(tl.float32)",
            "        h += tl.load(first_h + here, inside & (t == 0), 0.0)",
        ]
    if "c" in piece.used():
        out += ["    c = tl.load(states_c + at * H + unit, inside, 0.0).to(tl.float32)"]
    if first_stage:
        out += [
            "    if DIRECT:",
            "        carried = tl.load(d_state_h + here, inside, 0.0)",
            "    else:",
            "        carried = tl.load(d_state_h + here, inside & (t == last), 0.0)",
            "    for s in tl.static_range(PARTS):",
            "        carried += tl.load(parts + s * n * H + here, inside & (t < last), 0.0).to(tl.float32)",
        ]
        if carries_c:
            out += ["    d_c_new = tl.load(d_state_c + here, inside, 0.0)"]
        out += [
            "    if RESETS:  # what the next step began from was not this one's state",
            "        cut = tl.load(resets + at + n, (row < n) & (t < last), 0) != 0",
            "        old = tl.load(d_restart_h + here, inside, 0.0)",
            "        tl.store(d_restart_h + here, old + tl.where(cut, carried, 0.0), inside)",
            "        carried = tl.where(cut, 0.0, carried)",
        ]
        if carries_c:
            out += [
                "        old = tl.load(d_restart_c + here, inside, 0.0)",
                "        tl.store(d_restart_c + here, old + tl.where(cut, d_c_new, 0.0), inside)",
                "        d_c_new = tl.where(cut, 0.0, d_c_new)",
            ]
        out += ["    d_h_new = tl.load(d_outputs + at * H + unit, inside, 0.0).to(tl.float32) + carried"]
        seeds = ["h", "c"] if carries_c else ["h"]
        out += ["    if LENGTHS:", "        alive = t < tl.load(lengths + row, row < n, 0)"]
        out += [f"        passed_{part} = tl.where(alive, 0.0, d_{part}_new)" for part in seeds]
        out += [f"        d_{part}_new = tl.where(alive, d_{part}_new, 0.0)" for part in seeds]
        out.append(triton_call(f"{stage.name}_step_back", piece))
        if not direct:
            out += ["    d_h = tl.zeros((ROWS, UNITS), tl.float32)"]
        out += ["    if LENGTHS:", *(f"        d_{part} += passed_{part}" for part in seeds)]
        out += ["    if DIRECT:", "        tl.store(d_state_h + here, d_h, inside)"]
        if carries_c:
            out += ["    tl.store(d_state_c + here, d_c, inside)"]
    else:
        out += [
            "    d_operand = tl.zeros((ROWS, UNITS), tl.float32)",
            "    for s in tl.static_range(PARTS):",
            "        d_operand += tl.load(parts + s * n * H + here, inside, 0.0).to(tl.float32)",
            triton_call(f"{stage.name}_back", piece),
            "    tl.store(d_state_h + here, tl.load(d_state_h + here, inside, 0.0) + d_h, inside)",
        ]
    for k, gate in enumerate(gates):
        if f"d_uz_{gate}" not in piece.outputs:
            continue
        for name, value in (("d_uz", f"d_uz_{gate}"), ("d_shift", f"d_shift_{gate}")):
            out.append(f"    tl.store({name} + at * ({gh}) + {k} * H + unit, {value}.to({name}.dtype.element_ty), inside)")
        if f"flow_{gate}" in piece.outputs:
            out.append(f"    tl.store(flows + at * H + unit, flow_{gate}.to(flows.dtype.element_ty), inside)")
    return out


def triton_module() -> str:
    """scan/gpu_cells.py."""
    forward, back = derive.block()
    out = [
        '"""What does a GPU compute for one unit of one row at a step?',
        "",
        "Generated by `make equations` from cells.py and integration.py; a test compares it with them. Do not edit.",
        '"""',
        "# fmt: off",
        "# ruff: noqa",
        "# mypy: ignore-errors",
        "",
        "import triton",
        "import triton.language as tl",
        "",
        "from multint.scan.gpu_maths import phi, sigmoid, slope, tanh",
        *triton_function("block", forward),
        *triton_function("block_back", back),
    ]
    for cell in CELLS.values():
        d = derive.derive(cell)
        for stage in stages(d):
            last = "h_new" in stage.forward.outputs
            out += triton_function(stage.name + ("_step" if last else ""), stage.forward)
            out += triton_function(stage.name + ("_step_back" if last else "_back"), stage.back)
            out += triton_forward(d, stage)
            out += triton_backward(d, stage)
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "gpu_cells.py").write_text(triton_module(), encoding="utf-8")
    (here / "csrc" / "cells.h").write_text(header(), encoding="utf-8")
    (here.parents[2] / "docs" / "equations.md").write_text(page(), encoding="utf-8")
