"""Every reader of §3.5, one typed row each, and its twins.

What the paper states is cited in ``cite``; a number it does not give carries the reason. The paper follows the code of Cooijmans et
al. of March 2016 in all but the block and the clipping.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from multint import Start
from multint.paper.experiment import Recipe, Schedule
from multint.paper.reader.model import Shape

ENDS = {None: "", "lstm": "-bn", "everywhere": "-bn-everywhere"}  # of names, by norm


@dataclass(frozen=True)
class Reader(Recipe):
    """One row: a corpus, a model, a schedule. Settings of the model are those of ``model.Shape``.

    Args:
        sentences: of a document that are shown, those that share most with the question; None: all.
        words: of the vocabulary, the most frequent ones; None: all that occur twice.
        longest: tokens of a document.
        permute: give the entities new numbers in every batch of training.
        population: batches whose statistics are averaged after training.
    """

    corpus: str
    hidden: int = 128
    integration: str = "general"
    start: Start = field(default_factory=Start)
    gain: float = 0.05
    spread: float | None = None
    norm: str | None = None
    gamma: float = 0.1
    max_steps: int = 400
    padding: bool = True
    dropout: float = 0.5
    readout: str = "vocabulary"
    similarity: bool = True
    sentences: int | None = 4
    words: int | None = None
    longest: int = 400
    batch: int = 64
    permute: bool = True
    population: int = 100

    def __post_init__(self) -> None:
        for name in ("hidden", "max_steps", "sentences", "words", "longest", "batch", "population"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than zero, got {value}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must be a number from 0 to 1, got {self.dropout}")
        _ = self.shape  # refuses a wrong name

    @property
    def shape(self) -> Shape:
        return Shape(**{one.name: getattr(self, one.name) for one in fields(Shape)})

    @property
    def multiplies(self) -> bool:
        return self.integration != "additive"

    @property
    def label(self) -> str:
        return ("milstm" if self.multiplies else "lstm") + ENDS[self.norm]

    @property
    def twin_label(self) -> str | None:
        return self.label.removeprefix("mi") if self.multiplies else None

    def idle(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if not self.multiplies or self.integration == "simple":
            vectors = ("alpha", "beta1", "beta2")
            found |= {f"start.{name}": f"integration={self.integration} has no such vector" for name in vectors}
        found |= {f"start.{name}": "W and U begin as orthogonal matrices times gain" for name in ("r_w", "r_u", "orthogonal")}
        if self.norm is None:
            found |= dict.fromkeys(("gamma", "max_steps", "padding", "population"), "norm=none has no statistics")
        if self.schedule.linear:
            found |= {f"schedule.{name}": "the rate falls linearly" for name in ("halve_after", "min_lr")}
        return found


# §3.5 and the code it follows: 240 units everywhere, Adam 8e-5 in batches of 64, dropout one half, validation every 1,000 updates.
# The curves of the code end at 800,000 updates; 200,000 is a quarter of that. The paper's number is the minimum of the curve. MI is
# not clipped.
CNN = Reader(
    corpus="cnn",
    hidden=240,
    schedule=Schedule(lr=8e-5, clip=None, epochs=1000, updates=200_000, evaluate_every=1000, halve_after=None, stop_after=None),
    row="reader-milstm",
    twin="reader/reader-lstm",
    scale="paper",
    cite="Table 2, bottom right: MI-LSTM 0.4721",
)
CLIP = 10.0  # of the additive readers, as in the code

# The row in small, on the stand-in for CNN. Rate, gain and spread: docs/reader.md.
LAPTOP = replace(
    CNN,
    corpus="wikicloze",
    hidden=128,
    words=5000,
    gain=0.5,
    spread=0.1,
    schedule=Schedule(lr=2e-3, clip=None, epochs=4, evaluate_every=500, linear=True, stop_after=None),
    twin="reader/laptop-reader-lstm",
    scale="laptop",
    cite="",
    note="laptop: 128 units and 5,000 words on WikiCloze, a stand-in for CNN",
)

# The quick check. Its six places keep their numbers, since there is no name to hide.
BABI = replace(
    LAPTOP,
    corpus="babi-1",
    hidden=64,
    words=None,
    sentences=None,
    gain=1.0,
    spread=0.5,
    dropout=0.0,
    permute=False,
    schedule=Schedule(lr=2e-3, clip=None, epochs=12, linear=True, stop_after=None),
    row=None,
    twin="reader/babi-lstm",
    scale="",
    note="a quick check on task 1 of bAbI, not an experiment of the paper",
)


def additive(recipe: Reader, **changes: object) -> Reader:
    """The twin without multiplication, equal in all else but the clipping."""
    said: dict[str, object] = {"twin": None, "cite": ""}
    said["row"] = recipe.row and recipe.row.replace("milstm", "lstm")
    schedule = replace(recipe.schedule, clip=CLIP)
    return replace(recipe, integration="additive", **{"schedule": schedule, **said, **changes})  # type: ignore[arg-type]


CITED = {"lstm": "LSTM 0.5053", "milstm-bn": "MI-LSTM+BN 0.4685", "milstm-bn-everywhere": "MI-LSTM+BN-everywhere 0.4644"}


def _rows(prefix: str, recipe: Reader) -> dict[str, Reader]:
    """The six readers of a size: with and without the product, and each with the norms."""
    found: dict[str, Reader] = {}
    for norm, end in ENDS.items():
        row = None if recipe.row is None else recipe.row + end
        # as the paper compares them: it has no additive reader with batch norm of its own
        mi = replace(recipe, norm=norm, row=row, twin=f"reader/{prefix}-lstm")
        for name, one in ((f"lstm{end}", additive(mi)), (f"milstm{end}", mi)):
            cite = f"Table 2, bottom right: {CITED[name]}" if recipe.cite and name in CITED else one.cite if not end else ""
            found[f"{prefix}-{name}"] = replace(one, cite=cite)
    return found


def _wide(recipe: Reader, end: str, twin: str | None) -> Reader:
    """With 512 units, as a line of the paper's source that was not printed."""
    note = "512 units, which the paper's source has and its print has not"
    return replace(recipe, hidden=512, row=f"{recipe.row}-512", twin=twin, cite="", note=note + end)


# What a run on the user's own questions starts from.
OWN = replace(LAPTOP, corpus="own", row=None, twin=None, scale="", note="")

STAND_IN = replace(CNN, corpus="wikicloze", cite="", note="on WikiCloze, a stand-in for CNN")

RECIPES: dict[str, Reader] = {
    "babi-lstm": additive(BABI),
    "babi-milstm": BABI,
    **_rows("reader", CNN),
    "reader-lstm-512": _wide(additive(CNN), "", None),
    "reader-milstm-512": _wide(CNN, "", "reader/reader-lstm-512"),
    **_rows("wikicloze", STAND_IN),
    **_rows("laptop-reader", LAPTOP),
}
