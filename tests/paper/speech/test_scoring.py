"""Edit distances beside a slow one and beside jiwer; intervals beside what is known of them."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multint.paper.speech.scoring import align, bootstrap, bootstrap_difference, characters, distance, edits

tokens = st.lists(st.sampled_from("abc"), max_size=7)


def slow(a: tuple, b: tuple) -> int:
    @cache
    def d(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return d(len(a), len(b))


@given(tokens, tokens)
def test_the_distance_is_the_least_number_of_edits(a, b):
    assert distance(a, b) == slow(tuple(a), tuple(b)) == edits(a, b).total


@given(tokens, tokens)
def test_an_alignment_reads_as_both_sides_and_costs_the_distance(a, b):
    pairs = align(a, b)
    assert [p.said for p in pairs if p.said is not None] == a
    assert [p.heard for p in pairs if p.heard is not None] == b
    assert sum(p.said != p.heard for p in pairs) == slow(tuple(a), tuple(b))


def test_counts_agree_with_jiwer():
    jiwer = pytest.importorskip("jiwer", reason="the judge is jiwer: pip install jiwer")
    generator = np.random.default_rng(0)
    words = np.array(["THE", "CAT", "SAT", "ON", "A", "MAT"])
    for _ in range(50):
        said, heard = (list(words[generator.integers(6, size=generator.integers(1, 12))]) for _ in range(2))
        ours, theirs = edits(said, heard), jiwer.process_words(" ".join(said), " ".join(heard))
        assert ours.total == theirs.substitutions + theirs.deletions + theirs.insertions
        assert ours.total / ours.length == pytest.approx(theirs.wer)
        a, b = characters(said), characters(heard)
        assert distance(a, b) / len(a) == pytest.approx(jiwer.cer(a, b))


def test_the_kinds_of_edits_are_told_apart():
    assert edits("abcd", "axcde") == (1, 0, 1, 4)
    assert edits("abc", "") == (0, 3, 0, 3)
    assert edits([], ["a"]) == (0, 0, 1, 0)


def test_an_interval_covers_the_rate_and_is_as_wide_as_theory_says():
    generator = np.random.default_rng(1)
    lengths = np.full(400, 10)
    wrong = generator.binomial(10, 0.2, 400)
    low, high = bootstrap(wrong, lengths)
    rate = 100 * wrong.sum() / lengths.sum()
    assert low < rate < high
    assert high - low == pytest.approx(2 * 1.96 * 100 * np.sqrt(0.2 * 0.8 / 4000), rel=0.15)


def test_a_difference_on_the_same_utterances_is_known_better_than_two_rates():
    generator = np.random.default_rng(2)
    lengths = np.full(300, 20)
    hard = generator.uniform(0, 0.8, 300)  # utterances differ much, models little
    one, other = (generator.binomial(20, p) for p in (hard, hard * 0.9))
    low, high = bootstrap_difference(one, other, lengths)
    apart = [bootstrap(e, lengths) for e in (one, other)]
    assert 0 < low < high
    assert high - low < 0.7 * sum(b.high - b.low for b in apart) / 2
    assert bootstrap_difference(one, other, lengths) == bootstrap_difference(one, other, lengths)
