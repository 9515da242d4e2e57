"""The decoder finds OpenFst's shortest path, and says what it cannot decode."""

import math
import multiprocessing
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from decoding import LETTERS, SHORE, TINY, built, random_posteriors, said, shortest
from paths import is_increasing

from multint.paper.obtain import DataError
from multint.paper.speech.decode import Decoder, Search, decode, lattices, priors, word_times
from multint.paper.speech.utterances import SPACE, Units

pytest.importorskip("kaldifst")
pytest.importorskip("kaldilm")
pytest.importorskip("kaldi_decoder")

WIDE = Search(beam=1000.0, max_active=100_000, acoustic_scale=1.0)


@pytest.fixture(scope="module")
def shore(tmp_path_factory):
    return built(tmp_path_factory.mktemp("shore"), LETTERS, SHORE)


@pytest.mark.parametrize("topology", ["compact", "eesen", "strict"])
def test_a_wide_beam_finds_the_shortest_path(tmp_path, topology):
    graph = built(tmp_path, LETTERS, SHORE, topology)
    rng = np.random.default_rng(0)
    decoder = Decoder(graph, WIDE)
    for noise in (1.0, 2.0, 3.0):
        for text in ("SHE SELLS", "THE SEA SEES", "A SEAL"):
            posteriors = said(rng, LETTERS, text, noise=noise)
            words, cost, labels = shortest(graph, posteriors)
            found = decoder.best(posteriors)
            assert found.complete and found.cost == pytest.approx(cost, rel=1e-5)
            assert found.words == words
            assert found.acoustic == pytest.approx(-sum(posteriors[t, k - 1] for t, k in enumerate(labels)), rel=1e-5)


def test_what_was_said_is_decoded_with_the_times_of_its_words(shore):
    text = "SHE SEES SEA SHELLS"
    posteriors = said(np.random.default_rng(3), LETTERS, text, noise=0.3)
    found = Decoder(shore).best(posteriors)
    assert found.words == tuple(text.split()) and len(found.times) == 4 and is_increasing(found.times)
    spoken = posteriors.argmax(1)
    numbers = LETTERS.numbers
    for word, (start, end) in zip(found.words, found.times, strict=True):
        assert spoken[start] == numbers[word[0]] and spoken[end - 1] == numbers[word[-1]]
        assert [k for t, k in enumerate(spoken[start:end], start) if k and k != spoken[t - 1]] == [numbers[c] for c in word]


def test_the_acoustic_scale_weighs_acoustic_costs(shore):
    posteriors = said(np.random.default_rng(4), LETTERS, "THE SEA", noise=0.5)
    one, half = (Decoder(shore, Search(acoustic_scale=scale)).best(posteriors) for scale in (1.0, 0.5))
    assert one.words == half.words == ("THE", "SEA")
    assert half.acoustic == pytest.approx(one.acoustic / 2, rel=1e-4) and half.graph == pytest.approx(one.graph)


@pytest.mark.parametrize(
    "labels, times",
    [
        ("bAAbBsBb", ((1, 5), (6, 7))),
        ("sAbBBbB", ((1, 5), (6, 7))),  # no space between the words
        ("bbABBB", ((2, 5), (5, 6))),  # no blank between equal units: the first takes what it can
        ("AbbbBbsbbBs", ((0, 5), (9, 10))),
        ("ABsA", ()),
        ("AB", ()),
    ],
)
def test_times_of_words_are_those_of_their_labels(labels, times):
    numbers = {"b": 1, "s": 2, "A": 3, "B": 4}
    assert word_times(TINY, [numbers[c] for c in labels], ["AB", "B"]) == times


def test_times_of_a_word_that_is_one_unit():
    units = Units((SPACE, "A", "<NOISE>", "<UNK>"), whole=("<NOISE>",), unknown="<UNK>")
    assert word_times(units, [4, 4, 2, 1, 5, 3], ["<NOISE>", "<unk>", "A"]) == ((0, 2), (4, 5), (5, 6))


# ---- priors ----


def test_priors_are_counts_with_a_blank_around_every_label():
    found = priors([[1, 2, 2], [], [2]], 3)
    counts = np.array([4 + 1 + 2, 1, 3, 0])
    assert np.exp(found) == pytest.approx(counts / counts.sum()) and found[3] == -math.inf
    with pytest.raises(DataError, match="no label sequence"):
        priors([], 3)


def test_priors_are_divided_out_and_unseen_units_are_never_taken(shore):
    logs = priors([LETTERS.encode(text.split()) for text in SHORE], len(LETTERS))
    unseen = np.flatnonzero(np.isinf(logs))
    posteriors = random_posteriors(np.random.default_rng(0), 5, LETTERS)
    scores = Decoder(shore, Search(acoustic_scale=0.5, prior_scale=0.25), logs).scores(posteriors)
    seen = np.flatnonzero(np.isfinite(logs))
    assert len(unseen) and len(seen)
    assert scores[:, seen] == pytest.approx(0.5 * (posteriors[:, seen] - 0.25 * logs[seen]), rel=1e-5)
    assert (scores[:, unseen] == -1e4).all()
    without = Decoder(shore, Search(acoustic_scale=0.5, prior_scale=0.0), logs).scores(posteriors)
    assert without == pytest.approx(0.5 * posteriors, rel=1e-6)


# ---- what cannot be decoded ----


def test_no_frames_give_the_empty_hypothesis(shore):
    found = Decoder(shore).best(np.zeros((0, len(LETTERS) + 1), np.float32))
    assert found.words == () and not found.complete and found.cost == math.inf
    assert Decoder(shore).lattice(np.zeros((0, len(LETTERS) + 1))).nbest(5) == []


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x[:, :-1], r"shape \(9, 28\): the graph has 29 columns, a blank and 28 units"),
        (lambda x: x[0], r"shape \(29,\)"),
        (lambda x: np.where(np.arange(29) == 3, np.nan, x), "frame 0, column 3 is NaN"),
        (lambda x: np.where(np.arange(29) == 3, np.inf, x), "frame 0, column 3 is inf, no log-probability"),
        (lambda x: np.exp(x), "no log-probability: apply log_softmax first"),
    ],
)
def test_a_matrix_that_is_none_of_log_posteriors_is_refused(shore, change, message):
    posteriors = random_posteriors(np.random.default_rng(0), 9, LETTERS)
    with pytest.raises(ValueError, match=message):
        Decoder(shore).best(change(posteriors))
    with pytest.raises(ValueError, match=f"matrix 1: .*{message}"):
        list(decode(shore, [posteriors, change(posteriors)]))


def test_a_probability_of_zero_is_a_label_that_is_never_taken(shore):
    posteriors = said(np.random.default_rng(0), LETTERS, "THE SEA", noise=0.1)
    with np.errstate(divide="ignore"):
        certain = np.log(np.eye(len(LETTERS) + 1, dtype=np.float32)[posteriors.argmax(1)])
    assert np.isinf(certain).any()
    for found in (Decoder(shore).best(certain), *Decoder(shore).lattice(certain).nbest()):
        assert found.words == ("THE", "SEA") and found.acoustic == 0 and found.complete


def test_a_sentence_cut_short_is_given_as_it_is_and_not_complete(shore):
    posteriors = said(np.random.default_rng(0), LETTERS, "SHE SELLS SHELLS", peak=20, noise=0.1)
    sells = int(np.flatnonzero(posteriors.argmax(1) == LETTERS.numbers["L"])[0]) + 1  # "SHE SEL"
    for found in (
        Decoder(shore, Search(beam=5.0, max_active=3)).best(posteriors[:sells]),
        *Decoder(shore, Search(beam=5.0, max_active=3)).lattice(posteriors[:sells]).nbest(),
    ):
        assert not found.complete and found.words[0] == "SHE" and found.times == ()


@pytest.mark.parametrize(
    "wrong", [{"beam": 0.0}, {"max_active": 1}, {"acoustic_scale": -1.0}, {"lattice_beam": 0.0}, {"beam": math.nan}]
)
def test_a_search_without_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be above 0"):
        replace(Search(), **wrong)


def test_priors_of_another_size_are_refused(shore):
    with pytest.raises(ValueError, match=r"priors of shape \(3,\), for a blank and 28 units"):
        Decoder(shore, log_priors=[0.0, 0.0, 0.0])


def test_missing_wheels_are_named(shore, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldi_decoder", None)
    with pytest.raises(DataError, match=r"decoding needs kaldi-decoder and kaldifst: pip install 'multint\[speech\]'"):
        Decoder(shore).best(random_posteriors(np.random.default_rng(0), 2, LETTERS))


# ---- processes ----


def test_two_processes_give_what_one_gives_in_order(shore):
    rng = np.random.default_rng(7)
    matrices = [said(rng, LETTERS, SHORE[k % len(SHORE)], noise=2.0) for k in range(20)]
    search = Search(beam=8.0, max_active=100)
    one = list(decode(shore, matrices, search))
    assert list(decode(shore, iter(matrices), search, processes=2)) == one
    assert list(decode(shore, matrices[::-1], search))[::-1] == one
    assert len({found.words for found in one}) > 5
    with pytest.raises(ValueError, match=r"matrix 1: posteriors of shape \(1, 3\)"):
        list(decode(shore, [matrices[0], np.zeros((1, 3))], processes=2))


def test_lattices_come_back_from_processes_until_one_is_killed_which_is_an_error_that_says_so(shore):
    posteriors = said(np.random.default_rng(0), LETTERS, "THE SEA", noise=2.0)
    found = lattices(shore, (posteriors for _ in range(1000)), processes=2)
    (here,) = lattices(shore, [posteriors])
    assert next(found).nbest(3) == here.nbest(3)
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"matrix \d+: its process ended with exit code -9; if memory was short, use fewer"):
        list(found)


def test_no_processes_are_refused(shore):
    with pytest.raises(ValueError, match="cannot decode in 0 processes"):
        list(decode(shore, [], processes=0))
