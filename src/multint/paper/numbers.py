"""What did the paper get?

Tables 1 and 2 row by row, as printed, and what section 3.1 says in words. A row of the authors' own carries the recipe that repeats
it; a row they took from other work is ``cited``. Rows with no value are ours alone: twins and relatives the paper lacks. Where a
number is ambiguous the note says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Metric:
    """How a number is read: its name, which way is better, and how many decimals the paper prints."""

    label: str
    lower: bool
    digits: int
    meaning: str


@dataclass(frozen=True)
class Panel:
    """One of the small tables that make up Tables 1 and 2, and the corpus and split its numbers are taken on."""

    table: int
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
        recipe: what repeats it here.
        over: recipes whose results this number is the standard deviation of.
        repeats: the number stands in another panel and the same runs fill both; it is counted there.
    """

    table: int
    panel: str
    model: str
    metric: str
    value: float | None
    cited: bool = False
    recipe: str | None = None
    note: str = ""
    over: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True)
class Variant:
    """Another public spelling of a corpus: no stand-in, and not the same characters.

    Args:
        of: the corpus of the paper's rows.
        named: what recipes on that corpus are named after.
        factor: BPC on this one over BPC on that one, for the same total bits.
    """

    of: str
    named: str
    label: str
    factor: float


@dataclass(frozen=True)
class Claim:
    """Something section 3.1 says in words.

    Args:
        counts: what has to be seen for the claim to be confirmed.
        needs: recipes it is judged by, without ``PTB``.
    """

    key: str
    place: str
    says: str
    counts: str
    needs: tuple[str, ...]


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "bpc": Metric("BPC", True, 2, "bits per character"),
        "std": Metric("std of BPC", True, 3, "standard deviation of the BPC over the four scales"),
        "cer": Metric("CER %", True, 1, "character error rate, no language model"),
        "wer": Metric("WER %", True, 1, "word error rate, trigram language model"),
        "r": Metric("r", False, 4, "Pearson correlation"),
        "rho": Metric("ρ", False, 4, "Spearman correlation"),
        "mse": Metric("MSE", True, 4, "mean squared error on the scale 1 to 5"),
        "acc": Metric("Acc %", False, 1, "accuracy"),
        "f1": Metric("F1 %", False, 1, "F1 of the positive class"),
        "mr": Metric("MR %", False, 1, "accuracy on movie reviews"),
        "cr": Metric("CR %", False, 1, "accuracy on customer reviews"),
        "subj": Metric("SUBJ %", False, 1, "accuracy on subjectivity"),
        "mpqa": Metric("MPQA %", False, 1, "accuracy on opinion polarity"),
        "error": Metric("Val. Err.", True, 4, "share of validation questions answered wrongly, minimum of the curve"),
    }
)

PANELS: Mapping[str, Panel] = MappingProxyType(
    {
        "scale": Panel(1, "Scale of W, character Penn Treebank", "PTB", "Table 1, top left; §3.1", "ptb-a"),
        "wsj": Panel(1, "Speech recognition, WSJ", "WSJ", "Table 1, top right; §3.3", "wsj"),
        "ptb": Panel(1, "Penn Treebank", "PTB", "Table 1, bottom left; §3.1", "ptb-a"),
        "text8": Panel(1, "text8", "text8", "Table 1, bottom middle; §3.2", "text8"),
        "hutter": Panel(1, "Hutter Prize Wikipedia", "Hutter", "Table 1, bottom right; §3.2", "enwik8"),
        "sick": Panel(2, "Semantic relatedness, SICK", "SICK", "Table 2, top left; §3.4", "bookcorpus"),
        "msrp": Panel(2, "Paraphrase detection, MSRP", "MSRP", "Table 2, top right; §3.4", "bookcorpus"),
        "classification": Panel(2, "Classification", "", "Table 2, bottom left; §3.4", "bookcorpus"),
        "reader": Panel(2, "Attentive reader", "Reader", "Table 2, bottom right; §3.5", "cnn", split="valid"),
    }
)

VARIANTS: Mapping[str, Variant] = MappingProxyType({"ptb-b": Variant("ptb-a", "ptb", "variant B", 1.0085)})

PTB = "exploratory/ptb-"  # the recipes of §3.1 begin so
SCALES = ("0.02", "0.1", "0.3", "0.6")
ALPHAS, BETAS = ("0", "0.5", "1", "2", "4"), ("0.5", "1")  # the search over starting values: β1 = β2, b = 0

MIKOLOV = "Mikolov et al. 2012"
KIROS = "Kiros et al. 2015"
COOIJMANS = "Cooijmans et al. 2016"
NOT_IN_PAPER = "not in the paper; "
SAME_RUNS = "; the runs of r_W = 0.02"


def _cited(panel: str, model: str, note: str, **values: float | None) -> Iterable[Row]:
    return (Row(PANELS[panel].table, panel, model, metric, value, True, None, note) for metric, value in values.items())


def _own(panel: str, model: str, recipe: str, note: str = "", **values: float | None) -> Iterable[Row]:
    return (Row(PANELS[panel].table, panel, model, metric, value, False, recipe, note) for metric, value in values.items())


def _scaled(name: str) -> tuple[str, ...]:
    return tuple(name if r == SCALES[0] else f"{name}-rw{r}" for r in SCALES)  # .02 is everybody's start


def _scale(model: str, recipe: str, bpc: tuple[float, ...], std: float, note: str) -> Iterable[Row]:
    recipes = _scaled(recipe)
    for r, value, one in zip(SCALES, bpc, recipes, strict=True):
        yield from _own("scale", f"{model}, r_W = {r}", one, bpc=value)
    yield Row(1, "scale", f"{model}, all four", "std", std, note=note, over=recipes)


ROWS: tuple[Row, ...] = (
    # the two printed stds do not follow one convention, so ours are given in both
    *_scale("RNN", PTB + "rnn", (1.69, 1.65, 1.57, 1.54), 0.06, "the printed values give 0.060 (population), 0.070 (sample)"),
    *_scale("MI-RNN", PTB + "mirnn", (1.39, 1.40, 1.40, 1.41), 0.008, "the printed values give 0.007 (population), 0.008 (sample)"),
    *_cited("wsj", "DRNN+CTCbeamsearch", "Hannun et al. 2014", cer=10.0, wer=14.1),
    *_cited("wsj", "Encoder-Decoder", "Bahdanau et al. 2015", cer=6.4, wer=9.3),
    *_cited("wsj", "LSTM+CTCbeamsearch", "Graves and Jaitly 2014", cer=9.2, wer=8.7),
    *_cited("wsj", "Eesen", "Miao et al. 2015; the paper gives no CER", cer=None, wer=7.3),
    *_own("wsj", "LSTM+CTC+WFST", "speech/lstm", cer=6.5, wer=8.7),
    *_own("wsj", "MI-LSTM+CTC+WFST", "speech/milstm", cer=6.0, wer=8.2),
    *_cited("ptb", "RNN", MIKOLOV, bpc=1.42),
    *_cited("ptb", "HF-MRNN", MIKOLOV, bpc=1.41),
    *_cited("ptb", "RNN+stabilization", "Krueger and Memisevic 2015", bpc=1.48),
    Row(1, "ptb", "MI-RNN", "bpc", 1.39, recipe=PTB + "mirnn", note="printed in both panels" + SAME_RUNS, repeats=True),
    *_own("ptb", "linear MI-RNN", PTB + "linmirnn", bpc=1.48),
    *_own("ptb", "linear RNN", PTB + "linrnn", "§3.1 says “over 2”; no number is printed", bpc=None),
    Row(1, "ptb", "RNN", "bpc", 1.69, recipe=PTB + "rnn", note="printed in the panel on the scale of W" + SAME_RUNS, repeats=True),
    *_own("ptb", "MI-RNN-simple", PTB + "simple", "Eq. 2; a curve in Fig. 1b, no number is printed", bpc=None),
    *_own("ptb", "LSTM", PTB + "lstm", NOT_IN_PAPER + "the twin of MI-LSTM", bpc=None),
    *_own("ptb", "MI-LSTM", PTB + "milstm", NOT_IN_PAPER + "a gated relative of MI-RNN", bpc=None),
    *_cited("text8", "RNN+smoothReLu", "Pachitariu and Sahani 2013", bpc=1.55),
    *_cited("text8", "HF-MRNN", MIKOLOV, bpc=1.54),
    *_own("text8", "MI-RNN", "charlm/text8-mirnn", bpc=1.52),
    *_own("text8", "LSTM", "charlm/text8-lstm", bpc=1.51),
    *_own("text8", "MI-LSTM", "charlm/text8-milstm", bpc=1.44),
    *_own("text8", "RNN", "charlm/text8-rnn", NOT_IN_PAPER + "the twin of MI-RNN", bpc=None),
    *_own("text8", "GRU", "charlm/text8-gru", NOT_IN_PAPER + "the twin of MI-GRU", bpc=None),
    *_own("text8", "MI-GRU", "charlm/text8-migru", NOT_IN_PAPER + "the third cell of Appendix A", bpc=None),
    *_own("text8", "multiplicative RNN", "charlm/text8-mrnn", NOT_IN_PAPER + "a relative of §4", bpc=None),
    *_own("text8", "second-order RNN", "charlm/text8-second-order", NOT_IN_PAPER + "a relative of §4", bpc=None),
    *_cited("hutter", "stacked-LSTM", "Graves 2013, on another split of the data", bpc=1.67),
    *_cited("hutter", "GF-LSTM", "Chung et al. 2015", bpc=1.58),
    *_cited("hutter", "grid-LSTM", "Kalchbrenner et al. 2015", bpc=1.47),
    *_own("hutter", "MI-LSTM", "charlm/enwik8-milstm", bpc=1.44),
    *_own("hutter", "LSTM", "charlm/enwik8-lstm", NOT_IN_PAPER + "the twin of MI-LSTM", bpc=None),
    *_cited("sick", "uni-skip", KIROS, r=0.8477, rho=0.7780, mse=0.2872),
    *_cited("sick", "bi-skip", KIROS, r=0.8405, rho=0.7696, mse=0.2995),
    *_cited("sick", "combine-skip", KIROS, r=0.8584, rho=0.7916, mse=0.2687),
    *_own("sick", "uni-skip", "skipthought/uni-skip", r=0.8436, rho=0.7735, mse=0.2946),
    *_own("sick", "MI-uni-skip", "skipthought/mi-uni-skip", r=0.8588, rho=0.7952, mse=0.2679),
    *_cited("msrp", "uni-skip", KIROS, acc=73.0, f1=81.9),
    *_cited("msrp", "bi-skip", KIROS, acc=71.2, f1=81.2),
    *_cited("msrp", "combine-skip", KIROS, acc=73.0, f1=82.0),
    *_own("msrp", "uni-skip", "skipthought/uni-skip", acc=74.0, f1=81.9),
    *_own("msrp", "MI-uni-skip", "skipthought/mi-uni-skip", acc=74.0, f1=82.1),
    *_cited("classification", "uni-skip", KIROS, mr=75.5, cr=79.3, subj=92.1, mpqa=86.9),
    *_cited("classification", "bi-skip", KIROS, mr=73.9, cr=77.9, subj=92.5, mpqa=83.3),
    *_cited("classification", "combine-skip", KIROS, mr=76.5, cr=80.1, subj=93.6, mpqa=87.1),
    *_own("classification", "uni-skip", "skipthought/uni-skip", mr=75.9, cr=80.1, subj=93.0, mpqa=87.0),
    *_own("classification", "MI-uni-skip", "skipthought/mi-uni-skip", mr=77.9, cr=82.3, subj=93.3, mpqa=88.1),
    *_cited("reader", "LSTM", COOIJMANS, error=0.5033),
    *_cited("reader", "BN-LSTM", COOIJMANS, error=0.4951),
    *_cited("reader", "BN-everywhere", COOIJMANS, error=0.5000),
    *_own("reader", "LSTM", "reader/lstm", error=0.5053),
    *_own("reader", "MI-LSTM", "reader/milstm", error=0.4721),
    *_own("reader", "MI-LSTM+BN", "reader/milstm-bn", error=0.4685),
    *_own("reader", "MI-LSTM+BN-everywhere", "reader/milstm-bn-everywhere", error=0.4644),
)


def _by_recipe(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[Row, ...]]:
    found: dict[tuple[str, str], tuple[Row, ...]] = {}
    for row in rows:
        if row.recipe:
            found[row.recipe, row.metric] = (*found.get((row.recipe, row.metric), ()), row)
    return found


BY_RECIPE: Mapping[tuple[str, str], tuple[Row, ...]] = MappingProxyType(_by_recipe(ROWS))

STEPS = (0, 1, 5, 10)  # t of ∂C/∂h_t: the text of §3.1 has 0, 5, 10, the caption of Fig. 1 has 1, 5, 10
GRADIENT = 1e-4  # where the norms of lin-RNN stay, §3.1
FAR = 0.5  # "a lot smaller", "much more robust": less than this much of the other; the paper gives no bound
APART = 0.02  # "almost no effect": the printed BPCs of MI-RNN are this far apart

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "grow",
        "Fig. 1a",
        "The gradient norms of lin-MI-RNN increase rapidly and soon exceed those of lin-RNN by a large margin.",
        "higher after the last epoch at t = 1, 5 and 10",
        ("linrnn", "linmirnn"),
    ),
    Claim(
        "flat",
        "Fig. 1a",
        "The gradient norms of lin-RNN stay close to zero (≈ 10⁻⁴) and their changes over time are almost negligible.",
        "within a factor of ten of 10⁻⁴ after every epoch but the first, at t = 1, 5 and 10",
        ("linrnn",),
    ),
    Claim("linear-mi", "§3.1.1", "lin-MI-RNN has a test BPC of 1.48.", "1.48 or lower at the printed precision", ("linmirnn",)),
    Claim("linear", "§3.1.1", "lin-RNN performs rather poorly: a test BPC of over 2.", "above 2", ("linrnn",)),
    Claim(
        "saturated",
        "Fig. 1c",
        "Most activations of the vanilla RNN are saturated, with values around ±1.",
        "|h| > 0.9 for more than half of them",
        ("rnn",),
    ),
    Claim(
        "unsaturated",
        "Fig. 1d",
        "Most activations of MI-RNN are not saturated ...",
        "|h| > 0.9 for less than half of them",
        ("mirnn",),
    ),
    Claim("around-zero", "Fig. 1d", "... with values around 0.", "more of them with |h| < 0.1 than with |h| > 0.9", ("mirnn",)),
    Claim(
        "flows",
        "§3.1.2",
        "After training, W x is a lot smaller than U h in magnitude, in both models.",
        "‖Wx‖ less than half of ‖Uh‖ in both",
        ("rnn", "mirnn"),
    ),
    Claim(
        "improves",
        "Table 1, §3.1.2",
        "The vanilla RNN improves as the scale of W grows.",
        "test BPC falls at every step",
        _scaled("rnn"),
    ),
    Claim(
        "spread",
        "Table 1, §3.1.2",
        "MI-RNN is much more robust to the scale of W: std 0.008 against 0.06.",
        "std over the four scales less than half of the RNN's",
        _scaled("rnn") + _scaled("mirnn"),
    ),
    Claim(
        "level",
        "Table 1, §3.1.2",
        "The scale of W has almost no effect on the final performance of MI-RNN.",
        "the four test BPCs at most 0.02 apart, as the printed ones",
        _scaled("mirnn"),
    ),
    Claim(
        "every-scale",
        "Table 1",
        "MI-RNN is ahead of the RNN at every scale of W.",
        "lower test BPC at all four",
        _scaled("rnn") + _scaled("mirnn"),
    ),
    Claim(
        "both",
        "Fig. 1b, §3.1.3",
        "MI-RNN-simple (Eq. 2) and MI-RNN-general (Eq. 4) are both much better than the vanilla RNN (Eq. 1).",
        "lower validation and test BPC, both of them",
        ("rnn", "simple", "mirnn"),
    ),
    Claim(
        "faster",
        "Fig. 1b, §3.1.3",
        "MI-RNN-general converges faster than MI-RNN-simple.",
        "needs fewer epochs for the best validation BPC of the vanilla RNN; epochs to 2 BPC are told beside",
        ("rnn", "simple", "mirnn"),
    ),
    Claim(
        "result",
        "Table 1, §3.1.3",
        "MI-RNN-general has a test BPC of 1.39.",
        "1.39 or lower at the printed precision, from {2, .5, .5, 0}",
        ("mirnn",),
    ),
)


def grid(alpha: str, beta: str) -> str:
    """The recipe that starts at {α, β, β, 0}; {2, .5, .5, 0} is MI-RNN's own start.

    >>> grid("0.5", "1"), grid("2", "0.5")
    ('exploratory/ptb-mirnn-a0.5-b1', 'exploratory/ptb-mirnn')
    """
    return f"{PTB}mirnn" if (alpha, beta) == ("2", "0.5") else f"{PTB}mirnn-a{alpha}-b{beta}"


def metric(name: str) -> Metric:
    """The metric of that name; a name the paper does not use is shown as it is, to three decimals, lower taken as better."""
    return METRICS.get(name, Metric(name, True, 2, name))


def printed(row: Row) -> str:
    """The number as the paper prints it.

    >>> printed(BY_RECIPE["exploratory/ptb-mirnn-rw0.1", "bpc"][0])
    '1.40'
    """
    if row.value is None:
        return "—"
    return repr(row.value) if row.metric == "std" else f"{row.value:.{metric(row.metric).digits}f}"


def verdict(row: Row, ours: float) -> str:
    """``better``, ``met`` (equal at the printed precision) or ``miss``; "" where the paper prints no number.

    >>> (row,) = BY_RECIPE["charlm/text8-milstm", "bpc"]
    >>> verdict(row, 1.4399), verdict(row, 1.43), verdict(row, 1.46), verdict(row, float("nan"))
    ('met', 'better', 'miss', 'miss')
    """
    if row.value is None:
        return ""
    how = metric(row.metric)
    gap = round(ours, how.digits) - row.value
    if abs(gap) < 10**-how.digits / 2:
        return "met"
    return "better" if (gap < 0 if how.lower else gap > 0) else "miss"
