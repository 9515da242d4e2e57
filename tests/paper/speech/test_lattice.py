"""A lattice has all word sequences near the best: enumeration and Kaldi's own lattices are the judges."""

import math

import grams
import numpy as np
import pytest
from decoding import LETTERS, SHORE, TINY, built, random_posteriors, said
from paths import all_hypotheses
from test_graph import SENTENCES, SPELLINGS

from multint.paper.obtain import DataError
from multint.paper.speech.decode import Decoder, Search
from multint.paper.speech.lattice import Lattice, Network, lattice
from multint.paper.speech.utterances import SPACE

pytest.importorskip("kaldifst")
pytest.importorskip("kaldilm")
pytest.importorskip("kaldi_decoder")

WIDE = Search(beam=1000.0, max_active=100_000, acoustic_scale=1.0, lattice_beam=12.0)


@pytest.fixture(scope="module")
def shore(tmp_path_factory):
    return built(tmp_path_factory.mktemp("shore"), LETTERS, SHORE)


@pytest.mark.parametrize("topology", ["compact", "eesen", "strict"])
def test_a_lattice_has_all_word_sequences_near_the_best_with_their_costs(tmp_path, topology):
    graph = built(tmp_path, TINY, SENTENCES, topology, order=2)
    table, network = grams.read(tmp_path / "lm.arpa"), Network.read(graph.tlg)
    rng = np.random.default_rng(1)
    for frames in (1, 3, 4):
        scores = 2 * random_posteriors(rng, frames, TINY)
        judged = all_hypotheses(scores, topology, SPELLINGS, TINY.numbers[SPACE], table, 2)
        found = lattice(network, graph.words, scores, WIDE).nbest(1000)
        assert [one.cost for one in found] == sorted(one.cost for one in found)
        assert len({one.words for one in found}) == len(found)
        for one in found:
            assert one.cost == pytest.approx(judged[one.words], abs=0.02) and one.complete
        limit = found[0].cost + WIDE.lattice_beam
        assert {words for words, cost in judged.items() if cost < limit - 0.05} <= {one.words for one in found}


def kaldi_nbest(graph, scores, search, n):
    """Different word sequences and their costs in Kaldi's own lattice, and its number of arcs."""
    import kaldi_decoder
    import kaldifst

    config = kaldi_decoder.LatticeSimpleDecoderConfig(beam=search.beam, lattice_beam=search.lattice_beam)
    tlg = kaldifst.StdConstFst.read(str(graph.tlg))  # the decoder does not keep it alive
    decoder = kaldi_decoder.LatticeSimpleDecoder(tlg, config)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    _, raw = decoder.get_raw_lattice()
    found = {}
    for path in kaldifst.lattice_to_nbest(raw, n=n):
        _, _, words, cost = kaldifst.get_linear_symbol_sequence(path)
        key = tuple(graph.words[w] for w in words)
        found[key] = min(found.get(key, math.inf), cost.value1 + cost.value2)
    return found, sum(len(line.split()) > 2 for line in raw.to_str().splitlines())


def test_a_lattice_is_as_large_and_as_good_as_kaldi_s(shore):
    search = Search(beam=12.0, max_active=100_000, acoustic_scale=1.0, lattice_beam=6.0)
    for text in SHORE[:3]:
        posteriors = said(np.random.default_rng(2), LETTERS, text, noise=2.0)
        ours = Decoder(shore, search).lattice(posteriors)
        theirs, arcs = kaldi_nbest(shore, posteriors, search, 300)
        assert len(ours.arcs) == pytest.approx(arcs, rel=0.01)
        best = sorted(theirs.items(), key=lambda pair: pair[1])[:3]
        for found, (words, cost) in zip(ours.nbest(3), best, strict=False):
            assert found.words == words and found.cost == pytest.approx(cost, abs=1e-3)


def test_the_best_of_a_lattice_is_the_best_path(shore):
    decoder = Decoder(shore)
    for text in SHORE:
        posteriors = said(np.random.default_rng(5), LETTERS, text, noise=2.0)
        one, (other,) = decoder.best(posteriors), decoder.lattice(posteriors).nbest()
        assert one.words == other.words and one.complete == other.complete
        assert (one.graph, one.acoustic) == pytest.approx((other.graph, other.acoustic), abs=1e-2)


def test_another_acoustic_scale_is_that_of_a_search_with_it(shore):
    posteriors = said(np.random.default_rng(6), LETTERS, "SO IF THE SEA SEES", noise=2.5)
    found = Decoder(shore, Search(acoustic_scale=0.9, lattice_beam=15.0)).lattice(posteriors)
    for scale in (0.5, 0.7, 1.2):
        (rescaled,) = found.nbest(acoustic_scale=scale)
        searched = Decoder(shore, Search(acoustic_scale=scale)).best(posteriors)
        assert rescaled.words == searched.words and rescaled.cost == pytest.approx(searched.cost, abs=1e-2)


def test_few_active_states_still_give_a_path(shore):
    posteriors = said(np.random.default_rng(6), LETTERS, SHORE[0], noise=2.0)
    narrow = Decoder(shore, Search(max_active=20)).lattice(posteriors)
    wide = Decoder(shore).lattice(posteriors)
    assert 0 < len(narrow.arcs) < len(wide.arcs) and wide.nbest()[0].cost <= narrow.nbest()[0].cost + 1e-6


def test_the_search_leaves_nothing_behind(shore):
    network = Network.read(shore.tlg)
    posteriors = said(np.random.default_rng(8), LETTERS, SHORE[1], noise=2.0)
    first = lattice(network, shore.words, posteriors, Search())
    for values in (network.costs, *network.ahead):
        assert (values == np.inf).all()
    again = lattice(network, shore.words, posteriors, Search())
    assert np.array_equal(first.arcs, again.arcs) and np.array_equal(first.costs, again.costs)


def by_hand(arcs, ends):
    """A lattice of (from, to, word, graph, acoustic)."""
    words = ("", *"ABCD")
    table = np.array([(a, b, words.index(w)) for a, b, w, _, _ in arcs])
    return Lattice(words, table, np.array([x[3:] for x in arcs], float), np.array(ends, float), 0, 0.5, True)


def test_equal_words_by_several_paths_are_listed_once_with_the_cheapest():
    inf = math.inf
    made = by_hand(
        [(0, 1, "A", 1, 1), (0, 2, "", 0, 1), (2, 1, "A", 0, 0.5), (1, 3, "B", 1, 0), (1, 3, "C", 0, 4), (0, 3, "D", 9, 0)],
        [inf, inf, inf, 2],
    )
    assert [(one.words, one.graph, one.acoustic) for one in made.nbest(9)] == [
        (("A", "B"), 3, 1.5),
        (("A", "C"), 2, 5.5),
        (("D",), 11, 0),
    ]
    assert [one.words for one in made.nbest(2)] == [("A", "B"), ("A", "C")]
    assert made.nbest(1, acoustic_scale=5.0)[0].words == ("D",)
    with pytest.raises(ValueError, match="cannot list 0"):
        made.nbest(0)


def test_a_graph_whose_arcs_are_not_sorted_is_refused(tmp_path):
    import kaldifst

    unsorted = kaldifst.compile("0 1 2 1\n0 1 0 0\n1")
    path = tmp_path / "unsorted.fst"
    for sort, fails in ((lambda fst: None, True), (lambda fst: kaldifst.arcsort(fst, "ilabel"), False)):
        sort(unsorted)
        assert kaldifst.StdConstFst(unsorted).write(str(path))
        if fails:
            with pytest.raises(DataError, match="its arcs are not sorted by label"):
                Network.read(path)
        else:
            assert Network.read(path).silent.tolist() == [1, 0]


def test_a_file_that_is_no_graph_is_refused(tmp_path, shore):
    content = shore.tlg.read_bytes()
    for wrong in (b"", b"hello world", content[:200], content.replace(b"const", b"vectr", 1)):
        path = tmp_path / "wrong.fst"
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"wrong\.fst is no graph that can be searched"):
            Network.read(path)
