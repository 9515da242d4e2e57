"""The page of errors shows every utterance, the worst first, and nothing of the words as mark-up."""

from multint.paper.speech import alignment
from multint.paper.speech.alignment import Heard


def test_the_worst_utterance_comes_first_and_each_error_is_marked():
    page = alignment.page("Errors", "WER 50 %", [Heard("good", ["A", "B"], ["A", "B"]), Heard("bad", ["A", "B"], ["X", "B", "C"])])
    assert page.index("bad: 2 of 2 words wrong") < page.index("good: 0 of 2 words wrong")
    assert page.count('class="pair substituted"') == 1 and page.count('class="pair inserted"') == 1
    assert page.count('class="pair right"') == 3


def test_words_are_text_not_mark_up(tmp_path):
    alignment.write(tmp_path / "page.html", "T<i>tle", "S&P", [Heard("<u>", ["<NOISE>"], ["&"])])
    page = (tmp_path / "page.html").read_text()
    assert "<NOISE>" not in page and "&lt;NOISE&gt;" in page and "&lt;u&gt;" in page and "T&lt;i&gt;tle" in page
