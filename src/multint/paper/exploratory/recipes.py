"""Every model of §3.1 on Penn Treebank's characters, one typed row each, on both spellings of the corpus."""

from dataclasses import replace

from multint import Start
from multint.paper.charlm.recipes import SMALL, CharLM, additive
from multint.paper.experiment import Schedule

# §3.1: hidden 2048, length 50, Adam 1e-4, weights U(-.02, .02). Batch 64, clipping at 1 and shuffled segments are those of the same
# laboratory's recurrent batch norm code; {2, .5, .5, 0} is the paper's text8 setting, its PTB values being searched and not given.
# Halving is §3.2's rule, better on validation than none; 30 epochs are what the whole table may cost (docs/exploratory.md).
PTB = CharLM(
    corpus="ptb-a",
    cell="rnn",
    hidden=2048,
    start=Start(2.0, 0.5, 0.5, 0.0, r_w=SMALL, r_u=SMALL),
    length=50,
    batch=64,
    schedule=Schedule(lr=1e-4, epochs=30, stop_after=None),
)
MIRNN = replace(PTB, row="ptb-mirnn", twin="exploratory/ptb-rnn", scale="paper", cite="Table 1, left: MI-RNN, r_W=.02, 1.39")
RNN = additive(MIRNN, row="ptb-rnn", cite="Table 1, top left: RNN, r_W=.02, 1.69", note="")
MILSTM = replace(
    PTB,
    cell="lstm",
    hidden=1000,  # the width of the LSTMs others report here
    start=Start(1.0, 0.5, 0.5, 0.0, r_w=SMALL, r_u=SMALL),  # as the paper's MI-LSTM on text8
    row="ptb-milstm",
    twin="exploratory/ptb-lstm",
    scale="paper",
    note="the paper has no LSTM here",
)
SCALES = ("0.02", "0.1", "0.3", "0.6")  # of W; the first is the start of every other recipe
ALPHAS, BETAS = ("0", "0.5", "1", "2", "4"), ("0.5", "1")  # the search over starting values: β1 = β2, b = 0


def scaled(name: str) -> tuple[str, ...]:
    """The recipes or rows of one model over the four scales of W.

    >>> scaled("ptb-rnn")
    ('ptb-rnn', 'ptb-rnn-rw0.1', 'ptb-rnn-rw0.3', 'ptb-rnn-rw0.6')
    """
    return tuple(name if r == SCALES[0] else f"{name}-rw{r}" for r in SCALES)


def scales() -> dict[str, CharLM]:
    """Table 1, top left: U stays at U(-.02, .02), W is drawn from U(-r, r)."""
    printed = {"ptb-rnn": ("1.65", "1.57", "1.54"), "ptb-mirnn": ("1.40", "1.40", "1.41")}
    found = {}
    for name, base in (("ptb-rnn", RNN), ("ptb-mirnn", MIRNN)):
        for r, row, value in zip(SCALES[1:], scaled(name)[1:], printed[name], strict=True):
            start, twin = replace(base.start, r_w=float(r)), base.twin and f"{base.twin}-rw{r}"
            found[row] = replace(base, start=start, row=row, twin=twin, cite=f"Table 1, top left: r_W={r}, {value}")
    return found


def grid_point(alpha: str, beta: str) -> str:
    """The recipe that starts at {α, β, β, 0}; {2, .5, .5, 0} is MI-RNN's own start.

    >>> grid_point("0.5", "1"), grid_point("2", "0.5")
    ('ptb-mirnn-a0.5-b1', 'ptb-mirnn')
    """
    return "ptb-mirnn" if (alpha, beta) == ("2", "0.5") else f"ptb-mirnn-a{alpha}-b{beta}"


def grid() -> dict[str, CharLM]:
    """The search over {α, β1, β2, b}, which the paper made and does not print: β1 = β2, b = 0. {2, .5, .5, 0} is ptb-mirnn."""
    points = {grid_point(alpha, beta): (float(alpha), float(beta)) for beta in BETAS for alpha in ALPHAS}
    note = "one point of the search over the starting values"
    return {
        name: replace(PTB, start=replace(PTB.start, alpha=alpha, beta1=beta, beta2=beta), twin="exploratory/ptb-rnn", note=note)
        for name, (alpha, beta) in points.items()
        if name != "ptb-mirnn"
    }


_A = {
    "ptb-rnn": RNN,
    "ptb-mirnn": MIRNN,
    **scales(),
    "ptb-linrnn": replace(RNN, nonlinearity="identity", row="ptb-linrnn", cite="§3.1: lin-RNN, over 2"),
    "ptb-linmirnn": replace(
        MIRNN,
        nonlinearity="identity",
        row="ptb-linmirnn",
        twin="exploratory/ptb-linrnn",
        cite="Table 1, bottom left: linear MI-RNN 1.48",
    ),
    "ptb-simple": replace(
        MIRNN, integration="simple", start=replace(PTB.start, r_b=SMALL), row="ptb-simple", cite="Fig. 1b: MI-RNN-simple"
    ),
    "ptb-lstm": additive(MILSTM, row="ptb-lstm", note=MILSTM.note),
    "ptb-milstm": MILSTM,
}


def _on_b(recipe: CharLM) -> CharLM:
    twin = recipe.twin and recipe.twin.replace("/ptb-", "/ptb-b-")
    return replace(recipe, corpus="ptb-b", twin=twin, cite="", note="on the other spelling of the corpus")


# Of .001, .002, .004 and .008, the rates with the lowest validation BPC after two epochs (docs/exploratory.md).
LAPTOP_RATES = {"additive": 4e-3, "simple": 8e-3, "general": 8e-3}  # the last as searched, Eq. 2 has that of Eq. 4


def laptop(recipe: CharLM) -> CharLM:
    """The row in small: an eighth of the units, six epochs with a rate that falls linearly."""
    schedule = replace(recipe.schedule, lr=LAPTOP_RATES[recipe.integration], epochs=6, linear=True)
    twin = recipe.twin and recipe.twin.replace("/", "/laptop-")
    return replace(recipe, hidden=256, schedule=schedule, twin=twin, scale="laptop", cite="", note="laptop: 256 units")


RECIPES: dict[str, CharLM] = {
    **_A,
    **grid(),
    **{name.replace("ptb-", "ptb-b-"): _on_b(recipe) for name, recipe in _A.items()},
    **{f"laptop-{name}": laptop(recipe) for name, recipe in _A.items() if recipe.cell == "rnn"},
}
