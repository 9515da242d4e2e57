"""With a beam that keeps everything the search is exact: all paths of labels are summed."""

import time
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import collapsed

from multint.paper.speech.beam import search


def sums(posteriors):
    """{label sequence: log-probability} over all paths."""
    found = defaultdict(lambda: -np.inf)
    for path in product(range(posteriors.shape[1]), repeat=len(posteriors)):
        labels = collapsed(path)
        found[labels] = np.logaddexp(found[labels], posteriors[np.arange(len(path)), list(path)].sum())
    return found


def posteriors_of(seed, frames, columns, sharpness=1.0):
    logits = sharpness * np.random.default_rng(seed).standard_normal((frames, columns))
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 4), st.sampled_from([0.3, 1.0, 3.0]))
def test_a_wide_beam_is_exact(seed, frames, columns, sharpness):
    posteriors = posteriors_of(seed, frames, columns, sharpness)
    judged = sums(posteriors)
    found = search(posteriors, beam=5000, n=5000)
    assert {one.ids for one in found} == judged.keys()
    assert [one.log_prob for one in found] == pytest.approx([judged[one.ids] for one in found], abs=1e-9)
    assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
    assert np.logaddexp.reduce([one.log_prob for one in found]) == pytest.approx(0, abs=1e-9)


def test_the_most_probable_sequence_is_not_always_that_of_the_best_path():
    posteriors = np.log([[0.6, 0.4], [0.6, 0.4]])
    (found,) = search(posteriors, beam=16)
    assert found.ids == (1,) and found.log_prob == pytest.approx(np.log(0.64))  # the best path is two blanks: 0.36


def test_a_narrow_beam_never_claims_more_than_there_is():
    for seed in range(20):
        posteriors = posteriors_of(seed, 5, 3)
        judged = sums(posteriors)
        for beam in (1, 2, 3, 5):
            for one in search(posteriors, beam, n=beam):
                assert one.log_prob <= judged[one.ids] + 1e-9


def test_a_beam_of_sixteen_finds_what_was_said():
    rng = np.random.default_rng(0)
    said = [3, 1, 1, 2, 3, 3, 1]
    frames = [k for label in said for k in (label, label, 0)]
    logits = rng.standard_normal((len(frames), 4))
    logits[np.arange(len(frames)), frames] += 5
    assert search(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[0].ids == tuple(said)


def test_impossible_labels_and_paths_are_left_out():
    with np.errstate(divide="ignore"):
        posteriors = np.log(np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    assert [(one.ids, round(np.exp(one.log_prob), 9)) for one in search(posteriors, n=9)] == [((1, 2), 1.0)]


def test_no_frames_are_the_empty_sequence():
    (found,) = search(np.zeros((0, 5)))
    assert found.ids == () and found.log_prob == 0


def test_equal_probabilities_give_the_same_result_every_time():
    posteriors = np.log(np.full((6, 4), 0.25))
    assert search(posteriors, 8, 8) == search(posteriors, 8, 8)


def test_five_hundred_frames_take_about_a_second_at_most():
    posteriors = posteriors_of(0, 500, 31)
    began = time.process_time()
    search(posteriors, beam=16)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "posteriors, options, message",
    [
        (np.zeros(3), {}, r"got shape \(3,\)"),
        (np.full((2, 2), np.nan), {}, "without NaN"),
        (np.full((2, 2), np.inf), {}, r"\+inf"),
        (np.zeros((2, 2)), {"n": 0}, "cannot list 0"),
        (np.zeros((2, 2)), {"beam": 2, "n": 3}, "cannot list 3 sequences from a beam of 2"),
    ],
)
def test_what_cannot_be_searched_is_refused(posteriors, options, message):
    with pytest.raises(ValueError, match=message):
        search(posteriors, **options)
