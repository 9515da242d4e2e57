"""Every recogniser of §3.3, one typed row each, and its twins.

What the paper states is cited in ``cite``; a number it does not give carries the reason. How words are decoded is no part of a
recipe: one trained model can be decoded with several language models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from multint import Start
from multint.paper.experiment import Recipe, Schedule
from multint.paper.speech.features import Form


@dataclass(frozen=True)
class Recogniser(Recipe):
    """One row: a corpus, a model, a schedule.

    Args:
        noise: standard deviation of the Gaussian noise on every weight matrix, drawn for each update.
        utterances, frames: most in a batch; frames count padding and are those of the audio, before stacking.
        sorted_first: the first epoch goes from short utterances to long ones.
    """

    corpus: str
    hidden: int = 192
    layers: int = 3
    bidirectional: bool = True
    integration: str = "general"
    start: Start = field(default_factory=Start)
    dropout: float = 0.0
    noise: float = 0.05
    deltas: bool = True
    stack: int = 3
    utterances: int = 16
    frames: int = 25_000
    sorted_first: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "stack", "utterances", "frames"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than zero, got {getattr(self, name)}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must be a number from 0 to 1, got {self.dropout}")
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    @property
    def form(self) -> Form:
        return Form(self.deltas, self.stack)

    @property
    def multiplies(self) -> bool:
        return self.integration != "additive"

    @property
    def label(self) -> str:
        return "milstm" if self.multiplies else "lstm"

    @property
    def twin_label(self) -> str | None:
        return "lstm" if self.multiplies else None

    def idle(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if not self.multiplies or self.integration == "simple":
            vectors = ("alpha", "beta1", "beta2")
            found |= {f"start.{name}": f"integration={self.integration} has no such vector" for name in vectors}
        if self.schedule.linear:
            found |= {f"schedule.{name}": "the rate falls linearly" for name in ("halve_after", "min_lr")}
        return found


EESEN = 0.1  # all weights of Eesen begin in U(-.1, .1)

# §3.3: data and model as in Eesen, 4 bidirectional layers of 320 units, Adam 1e-4, weight noise .05. The paper does not give the
# start {alpha, beta1, beta2, b}, the batch or the number of epochs. Batches are Eesen's (10 utterances, 25,000 frames), the rate is
# halved when the validation CER has not improved for two epochs.
WSJ = Recogniser(
    corpus="wsj",
    hidden=320,
    layers=4,
    start=Start(1.0, 1.0, 1.0, 0.0, r_w=EESEN, r_u=EESEN),
    stack=1,
    utterances=10,
    sorted_first=True,
    schedule=Schedule(lr=1e-4, clip=1.0, epochs=60, halve_after=2, stop_after=8),
    row="wsj-milstm",
    twin="speech/wsj-lstm",
    scale="paper",
    cite="Table 1, top right: MI-LSTM+CTC+WFST, CER 6.0, WER 8.2",
)

# The start of MI in stacked layers: the noise on W and the larger W x of stacked frames reach U h through alpha (docs/speech.md).
QUARTER = Start(0.25, 1.0, 1.0, 0.0, r_w=EESEN, r_u=EESEN)

# The paper's size on the corpus that can be had: frames stacked by three.
MINI = replace(
    WSJ,
    corpus="mini-librispeech",
    start=QUARTER,
    stack=3,
    utterances=16,
    schedule=Schedule(lr=4e-3, clip=1.0, epochs=12, linear=True, stop_after=None),
    twin="speech/minilibri-lstm",
    cite="",
    note="on mini-LibriSpeech, 5.3 hours, a stand-in for WSJ; frames stacked by 3",
)

# The row in small. Rates and starts have the lowest validation CER of those tried (docs/speech.md).
LAPTOP = replace(
    MINI,
    hidden=192,
    layers=3,
    twin="speech/laptop-wsj-lstm",
    scale="laptop",
    note="laptop: 3 layers of 192 units on mini-LibriSpeech, 5.3 hours, a stand-in for WSJ; frames stacked by 3",
)

# The quick check: digits in strings.
DIGITS = replace(
    MINI,
    corpus="fsdd-strings",
    hidden=96,
    layers=2,
    noise=0.0,
    schedule=Schedule(lr=4e-3, clip=1.0, epochs=30, linear=True, stop_after=None),
    row=None,
    twin="speech/digits-lstm",
    scale="",
    note="a quick check on strings of digits, not an experiment of the paper",
)


def additive(recipe: Recogniser, **changes: object) -> Recogniser:
    """The twin without multiplication, equal in all else."""
    said: dict[str, object] = {"twin": None, "cite": "", "note": recipe.note, "start": WSJ.start}  # of which it has b, r_w and r_u
    said["row"] = recipe.row and recipe.row.replace("milstm", "lstm")
    return replace(recipe, integration="additive", **{**said, **changes})  # type: ignore[arg-type]


def open_forget(recipe: Recogniser) -> Recogniser:
    """The additive twin whose forget gates start open, b = 1: a setting of the twin's search."""
    plain = additive(recipe, row=None, scale="", note=f"forget gates open at the start; {recipe.note}")
    return replace(plain, start=replace(plain.start, b={"f": 1.0}))


# What a run on the user's own data starts from.
OWN = replace(LAPTOP, corpus="own", row=None, twin=None, scale="", note="")

RECIPES: dict[str, Recogniser] = {
    "digits-lstm": additive(DIGITS),
    "digits-milstm": DIGITS,
    "wsj-lstm": additive(WSJ, cite="Table 1, top right: LSTM+CTC+WFST, CER 6.5, WER 8.7"),
    "wsj-milstm": WSJ,
    "minilibri-lstm": additive(MINI),
    "minilibri-milstm": MINI,
    "laptop-wsj-lstm": additive(LAPTOP),
    "laptop-wsj-lstm-open": open_forget(LAPTOP),
    "laptop-wsj-milstm": LAPTOP,
}
