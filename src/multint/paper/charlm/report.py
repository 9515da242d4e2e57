"""Section 3.2 in the report: claims on text8 and enwik8, and the rows beside the paper's."""

from collections.abc import Sequence

from multint.paper.numbers import BY_KEY, Row, printed, verdict
from multint.paper.records import Scores
from multint.paper.report.against import View
from multint.paper.report.claims import ahead
from multint.paper.report.section import Claim, Finding, Section, judged
from multint.paper.report.spelling import ours

PROTOCOLS = {
    "carried": "the state is carried along parallel streams of the test text",
    "reset": "the state starts from zero at every segment",
}
NOT_IN_PAPER = "not in the paper; "
BESIDE = {
    row.key: row
    for row in (
        Row("text8", "RNN", "bpc", None, key="text8-rnn", note=NOT_IN_PAPER + "the twin of MI-RNN"),
        Row("text8", "GRU", "bpc", None, key="text8-gru", note=NOT_IN_PAPER + "the twin of MI-GRU"),
        Row(
            "text8", "MI-GRU", "bpc", None, key="text8-migru", twin="text8-gru", note=NOT_IN_PAPER + "the third cell of Appendix A"
        ),
        Row("text8", "multiplicative RNN", "bpc", None, key="text8-mrnn", note=NOT_IN_PAPER + "a relative of §4"),
        Row("text8", "second-order RNN", "bpc", None, key="text8-second-order", note=NOT_IN_PAPER + "a relative of §4"),
        Row("hutter", "LSTM", "bpc", None, key="enwik8-lstm", note="not in the paper"),
    )
}


def sections(view: View) -> list[Section]:
    milstm, lstm, mirnn, enwik8 = (BY_KEY[key, "bpc"][0] for key in ("text8-milstm", "text8-lstm", "text8-mirnn", "enwik8-milstm"))
    own = BESIDE
    claims = (
        ahead(view, milstm, lstm),
        ahead(
            view, mirnn, own["text8-rnn"], "MI-RNN (1.52) performs best among RNNs without gates; the paper trains no additive RNN."
        ),
        ahead(view, own["text8-migru"], own["text8-gru"], "Not in the paper: MI-GRU is ahead of GRU on text8."),
        ahead(
            view,
            enwik8,
            own["enwik8-lstm"],
            "MI-LSTM (1.44) is the best on Hutter, ahead of others' LSTMs; the paper trains no LSTM.",
        ),
        *(_as_printed(view, row) for row in (mirnn, lstm, milstm, enwik8)),
    )
    note = (
        "Character models on text8 and on enwik8, the Hutter Prize's Wikipedia. The paper does not say whether it carried the "
        "state along the test text; with the state reset at every segment BPC is higher."
    )
    title, panels = "Character language models", ("text8", "hutter")
    return [Section(title, note, "§3.2", panels, claims, rows=tuple(own.values()), protocols=PROTOCOLS)]


def _as_printed(view: View, row: Row) -> Claim:
    """The claim that the paper's number can be had."""
    key = row.key or ""

    def judge(sides: Sequence[Scores]) -> Finding:
        return Finding(f"{ours(sides[0])} BPC", verdict(row, sides[0].mean) in ("better", "met"), (len(sides[0].values),))

    corpus = "text8" if row.panel == "text8" else "Hutter"
    text = f"{row.model} has a test BPC of {printed(row)} on {corpus}."
    counts = f"{printed(row)} or lower at the printed precision"
    return Claim("Table 1", text, counts, judged(view, row.panel, [key], "paper", "bpc", judge), None)
