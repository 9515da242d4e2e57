"""What did the paper get? Tables 1 and 2 row by row, as printed, and what its figures show.

A row of the authors' own has a key, which recipes that repeat it carry as ``row``; a row they took from other work is ``cited``.
Where a number is ambiguous the note says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Printed:
    """How a metric is printed: its name, which direction is better, and how many decimals the paper gives."""

    label: str
    lower: bool
    digits: int
    meaning: str

    @property
    def arrow(self) -> str:
        return f"{self.label} {'↓' if self.lower else '↑'}"


@dataclass(frozen=True)
class Panel:
    """One of the small tables that make up Tables 1 and 2, and the corpus and split its numbers are taken on."""

    table: int
    section: str
    title: str
    short: str
    place: str
    corpus: str
    split: str = "test"


@dataclass(frozen=True)
class Row:
    """One number of the paper.

    Args:
        value: as printed; None where the paper prints none.
        cited: taken by the paper from other work; the note names it.
        key: what recipes that repeat the row carry.
        twin: key of the additive row it is compared with; None for a row that is additive itself.
        over: keys of the rows whose results this number is the standard deviation of.
        population: the formula of that standard deviation that the printed values follow; else it is the sample formula.
        repeats: the number stands in another panel and the same runs fill both; it is counted there.
    """

    panel: str
    model: str
    metric: str
    value: float | None
    cited: bool = False
    key: str | None = None
    twin: str | None = None
    note: str = ""
    over: tuple[str, ...] = ()
    population: bool = False
    repeats: bool = False

    @property
    def digits(self) -> int:
        """Decimals of the printed number."""
        own = self.over and self.value is not None
        return len(repr(self.value).partition(".")[2]) if own else METRICS[self.metric].digits


@dataclass(frozen=True)
class Picture:
    """One part of the paper's Figure 2: validation curves of some rows."""

    name: str
    section: str
    title: str
    x: str
    y: str
    caption: str


METRICS: Mapping[str, Printed] = {
    "bpc": Printed("BPC", True, 2, "bits per character"),
    "std": Printed("std of BPC", True, 3, "standard deviation of the BPC over the four scales"),
    "cer": Printed("CER %", True, 1, "character error rate, no language model"),
    "wer": Printed("WER %", True, 1, "word error rate, trigram language model"),
    "r": Printed("r", False, 4, "Pearson correlation"),
    "rho": Printed("ρ", False, 4, "Spearman correlation"),
    "mse": Printed("MSE", True, 4, "mean squared error on the scale 1 to 5"),
    "acc": Printed("Acc %", False, 1, "accuracy"),
    "f1": Printed("F1 %", False, 1, "F1 of the positive class"),
    "mr": Printed("MR %", False, 1, "accuracy on movie reviews"),
    "cr": Printed("CR %", False, 1, "accuracy on customer reviews"),
    "subj": Printed("SUBJ %", False, 1, "accuracy on subjectivity"),
    "mpqa": Printed("MPQA %", False, 1, "accuracy on opinion polarity"),
    "error": Printed("Val. Err.", True, 4, "share of validation questions answered wrongly, minimum of the curve"),
}

SECTIONS: Mapping[str, str] = {
    "§3.1": "Exploratory experiments",
    "§3.2": "Character language models",
    "§3.3": "Speech recognition",
    "§3.4": "Skip-thought vectors",
    "§3.5": "Attentive reader",
}

PANELS: Mapping[str, Panel] = {
    "scale": Panel(1, "§3.1", "Scale of W, character Penn Treebank", "PTB", "Table 1, top left", "ptb-a"),
    "wsj": Panel(1, "§3.3", "Speech recognition, WSJ", "WSJ", "Table 1, top right", "wsj"),
    "ptb": Panel(1, "§3.1", "Penn Treebank", "PTB", "Table 1, bottom left", "ptb-a"),
    "text8": Panel(1, "§3.2", "text8", "text8", "Table 1, bottom middle", "text8"),
    "hutter": Panel(1, "§3.2", "Hutter Prize Wikipedia", "Hutter", "Table 1, bottom right", "enwik8"),
    "sick": Panel(2, "§3.4", "Semantic relatedness, SICK", "SICK", "Table 2, top left", "bookcorpus"),
    "msrp": Panel(2, "§3.4", "Paraphrase detection, MSRP", "MSRP", "Table 2, top right", "bookcorpus"),
    "classification": Panel(2, "§3.4", "Classification", "", "Table 2, bottom left", "bookcorpus"),
    "reader": Panel(2, "§3.5", "Attentive reader", "Reader", "Table 2, bottom right", "cnn", split="valid"),
}

PICTURES = (
    Picture(
        "figure-2a",
        "§3.4",
        "Figure 2a: SICK relatedness while training",
        "updates",
        "MSE on SICK",
        "MSE curves of uni-skip (ours) and MI-uni-skip (ours) on the semantic relatedness task on the SICK dataset.",
    ),
    Picture(
        "figure-2b",
        "§3.5",
        "Figure 2b: attentive reader while training",
        "training",
        "validation error",
        "Validation error curves of the attentive reader: LSTM, MI-LSTM, BN-LSTM and MI-LSTM+BN.",
    ),
)

MIKOLOV = "Mikolov et al. 2012"
KIROS = "Kiros et al. 2015"
COOIJMANS = "Cooijmans et al. 2016"
SAME_RUNS = "; the runs of r_W = 0.02"
STDS = "the printed values give"
RNNS = ("ptb-rnn", "ptb-rnn-rw0.1", "ptb-rnn-rw0.3", "ptb-rnn-rw0.6")
MIRNNS = ("ptb-mirnn", "ptb-mirnn-rw0.1", "ptb-mirnn-rw0.3", "ptb-mirnn-rw0.6")


def _cited(panel: str, model: str, note: str, **values: float | None) -> Iterable[Row]:
    return (Row(panel, model, metric, value, cited=True, note=note) for metric, value in values.items())


def _own(panel: str, model: str, key: str, twin: str | None = None, **values: float | None) -> Iterable[Row]:
    return (Row(panel, model, metric, value, key=key, twin=twin) for metric, value in values.items())


ROWS: tuple[Row, ...] = (
    *_own("scale", "RNN, r_W = 0.02", "ptb-rnn", bpc=1.69),
    *_own("scale", "RNN, r_W = 0.1", "ptb-rnn-rw0.1", bpc=1.65),
    *_own("scale", "RNN, r_W = 0.3", "ptb-rnn-rw0.3", bpc=1.57),
    *_own("scale", "RNN, r_W = 0.6", "ptb-rnn-rw0.6", bpc=1.54),
    # the two printed standard deviations do not follow one formula, so ours are given by both and judged by the one that fits
    Row("scale", "RNN, all four", "std", 0.06, over=RNNS, note=f"{STDS} 0.060 (population), 0.070 (sample)", population=True),
    *_own("scale", "MI-RNN, r_W = 0.02", "ptb-mirnn", "ptb-rnn", bpc=1.39),
    *_own("scale", "MI-RNN, r_W = 0.1", "ptb-mirnn-rw0.1", "ptb-rnn-rw0.1", bpc=1.40),
    *_own("scale", "MI-RNN, r_W = 0.3", "ptb-mirnn-rw0.3", "ptb-rnn-rw0.3", bpc=1.40),
    *_own("scale", "MI-RNN, r_W = 0.6", "ptb-mirnn-rw0.6", "ptb-rnn-rw0.6", bpc=1.41),
    Row("scale", "MI-RNN, all four", "std", 0.008, twin="ptb-rnn", over=MIRNNS, note=f"{STDS} 0.007 (population), 0.008 (sample)"),
    *_cited("wsj", "DRNN+CTCbeamsearch", "Hannun et al. 2014", cer=10.0, wer=14.1),
    *_cited("wsj", "Encoder-Decoder", "Bahdanau et al. 2015", cer=6.4, wer=9.3),
    *_cited("wsj", "LSTM+CTCbeamsearch", "Graves and Jaitly 2014", cer=9.2, wer=8.7),
    *_cited("wsj", "Eesen", "Miao et al. 2015; the paper gives no CER", cer=None, wer=7.3),
    *_own("wsj", "LSTM+CTC+WFST", "wsj-lstm", cer=6.5, wer=8.7),
    *_own("wsj", "MI-LSTM+CTC+WFST", "wsj-milstm", "wsj-lstm", cer=6.0, wer=8.2),
    *_cited("ptb", "RNN", MIKOLOV, bpc=1.42),
    *_cited("ptb", "HF-MRNN", MIKOLOV, bpc=1.41),
    *_cited("ptb", "RNN+stabilization", "Krueger and Memisevic 2015", bpc=1.48),
    Row("ptb", "MI-RNN", "bpc", 1.39, key="ptb-mirnn", twin="ptb-rnn", note="printed in both panels" + SAME_RUNS, repeats=True),
    *_own("ptb", "linear MI-RNN", "ptb-linmirnn", "ptb-linrnn", bpc=1.48),
    Row("ptb", "RNN", "bpc", 1.69, key="ptb-rnn", note="printed in the panel on the scale of W" + SAME_RUNS, repeats=True),
    *_cited("text8", "RNN+smoothReLu", "Pachitariu and Sahani 2013", bpc=1.55),
    *_cited("text8", "HF-MRNN", MIKOLOV, bpc=1.54),
    *_own("text8", "MI-RNN", "text8-mirnn", "text8-rnn", bpc=1.52),
    *_own("text8", "LSTM", "text8-lstm", bpc=1.51),
    *_own("text8", "MI-LSTM", "text8-milstm", "text8-lstm", bpc=1.44),
    *_cited("hutter", "stacked-LSTM", "Graves 2013, on another split of the data", bpc=1.67),
    *_cited("hutter", "GF-LSTM", "Chung et al. 2015", bpc=1.58),
    *_cited("hutter", "grid-LSTM", "Kalchbrenner et al. 2015", bpc=1.47),
    *_own("hutter", "MI-LSTM", "enwik8-milstm", "enwik8-lstm", bpc=1.44),
    *_cited("sick", "uni-skip", KIROS, r=0.8477, rho=0.7780, mse=0.2872),
    *_cited("sick", "bi-skip", KIROS, r=0.8405, rho=0.7696, mse=0.2995),
    *_cited("sick", "combine-skip", KIROS, r=0.8584, rho=0.7916, mse=0.2687),
    *_own("sick", "uni-skip", "uni-skip", r=0.8436, rho=0.7735, mse=0.2946),
    *_own("sick", "MI-uni-skip", "mi-uni-skip", "uni-skip", r=0.8588, rho=0.7952, mse=0.2679),
    *_cited("msrp", "uni-skip", KIROS, acc=73.0, f1=81.9),
    *_cited("msrp", "bi-skip", KIROS, acc=71.2, f1=81.2),
    *_cited("msrp", "combine-skip", KIROS, acc=73.0, f1=82.0),
    *_own("msrp", "uni-skip", "uni-skip", acc=74.0, f1=81.9),
    *_own("msrp", "MI-uni-skip", "mi-uni-skip", "uni-skip", acc=74.0, f1=82.1),
    *_cited("classification", "uni-skip", KIROS, mr=75.5, cr=79.3, subj=92.1, mpqa=86.9),
    *_cited("classification", "bi-skip", KIROS, mr=73.9, cr=77.9, subj=92.5, mpqa=83.3),
    *_cited("classification", "combine-skip", KIROS, mr=76.5, cr=80.1, subj=93.6, mpqa=87.1),
    *_own("classification", "uni-skip", "uni-skip", mr=75.9, cr=80.1, subj=93.0, mpqa=87.0),
    *_own("classification", "MI-uni-skip", "mi-uni-skip", "uni-skip", mr=77.9, cr=82.3, subj=93.3, mpqa=88.1),
    *_cited("reader", "LSTM", COOIJMANS, error=0.5033),
    *_cited("reader", "BN-LSTM", COOIJMANS, error=0.4951),
    *_cited("reader", "BN-everywhere", COOIJMANS, error=0.5000),
    *_own("reader", "LSTM", "reader-lstm", error=0.5053),
    *_own("reader", "MI-LSTM", "reader-milstm", "reader-lstm", error=0.4721),
    *_own("reader", "MI-LSTM+BN", "reader-milstm-bn", "reader-lstm", error=0.4685),
    *_own("reader", "MI-LSTM+BN-everywhere", "reader-milstm-bn-everywhere", "reader-lstm", error=0.4644),
)


BY_KEY: Mapping[tuple[str, str], tuple[Row, ...]] = {
    (one.key, one.metric): tuple(row for row in ROWS if (row.key, row.metric) == (one.key, one.metric)) for one in ROWS if one.key
}


def printing(name: str, unit: str = "", lower: bool | None = None) -> Printed:
    """How a metric is printed; one that the paper does not use: by its unit, to three decimals. ``lower`` sets the direction."""
    how = METRICS.get(name, Printed(unit or name, True, 2, name))
    return how if lower is None else replace(how, lower=lower)


def printed(row: Row) -> str:
    """The number as the paper prints it.

    >>> printed(BY_KEY["ptb-mirnn-rw0.1", "bpc"][0])
    '1.40'
    """
    return "—" if row.value is None else f"{row.value:.{row.digits}f}"


def printed_for(key: str) -> list[str]:
    """The paper's numbers for a row, with their metrics where there are several.

    >>> printed_for("ptb-mirnn"), printed_for("wsj-lstm"), printed_for("ptb-lstm")
    (['1.39'], ['CER % 6.5', 'WER % 8.7'], [])
    """
    rows = {(row.metric, printed(row)): row for row in ROWS if row.key == key and row.value is not None}
    several = len({metric for metric, _ in rows}) > 1
    return [f"{METRICS[metric].label} {text}" if several else text for metric, text in rows]


def verdict(row: Row, ours: float) -> str:
    """``better``, ``met`` (equal at the printed precision) or ``miss``; "" where the paper prints no number.

    >>> (row,) = BY_KEY["text8-milstm", "bpc"]
    >>> verdict(row, 1.4399), verdict(row, 1.43), verdict(row, 1.46), verdict(row, float("nan"))
    ('met', 'better', 'miss', 'miss')
    """
    if row.value is None:
        return ""
    gap = round(ours, row.digits) - row.value
    if abs(gap) < 10**-row.digits / 2:
        return "met"
    return "better" if (gap < 0 if METRICS[row.metric].lower else gap > 0) else "miss"
