"""Graphs accept what enumeration says, are kept in a cache, and are never half there."""

import json
import os
import signal
import sys

import grams
import numpy as np
import pytest
from decoding import SHORE, TINY, built, random_posteriors, shortest
from killing import in_a_child
from paths import all_hypotheses

from multint.paper.obtain import DataError
from multint.paper.speech import graph
from multint.paper.speech.transducers import TOPOLOGIES
from multint.paper.speech.utterances import SPACE, Units

pytest.importorskip("kaldifst")
pytest.importorskip("kaldilm")

SENTENCES = ["A B", "B AB A", "AB AB", "A", "BA A A", "A BA", "B A AB"]
SPELLINGS = {word: tuple(TINY.numbers[c] for c in word) for word in ("A", "B", "AB", "BA")}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_shortest_path_is_the_best_of_all_label_paths(tmp_path, topology, order):
    graph = built(tmp_path, TINY, SENTENCES, topology, order)
    table = grams.read(tmp_path / "lm.arpa")
    rng = np.random.default_rng(order)
    for frames in (1, 2, 3, 4):
        scores = 3 * random_posteriors(rng, frames, TINY)
        judged = all_hypotheses(scores, topology, SPELLINGS, TINY.numbers[SPACE], table, order)
        words, cost, _ = shortest(graph, scores)
        # minimisation rounds costs of arcs to 1/1024
        assert cost == pytest.approx(min(judged.values()), abs=0.02)
        assert judged[words] == pytest.approx(cost, abs=0.02)


@pytest.mark.parametrize("topology, complete", [("compact", True), ("strict", True), ("eesen", False)])
def test_blanks_alone_are_the_empty_sentence_but_not_for_eesen(tmp_path, topology, complete):
    graph = built(tmp_path, TINY, SENTENCES, topology)
    scores = np.full((3, 4), -1e4, np.float32)
    scores[:, 0] = 0
    words, cost, labels = shortest(graph, scores)
    assert (cost < 100) == complete
    assert not complete or (words == () and labels == [1, 1, 1])


def test_the_unknown_word_is_heard_where_a_unit_stands_for_it(tmp_path):
    units = Units((SPACE, "A", "B", "<UNK>"), unknown="<UNK>")
    graph = built(tmp_path, units, ["A <unk> B", "<unk> A", "B"])
    assert graph.words == ("<eps>", "<unk>", "A", "B", "#0", "<s>", "</s>")
    scores = np.log(np.full((3, 5), 0.01, np.float32))
    scores[[0, 1, 2], [2, 4, 3]] = 0
    assert shortest(graph, scores)[0] == ("A", "<unk>", "B")


# ---- the cache ----


@pytest.fixture
def made(tmp_path):
    return built(tmp_path, TINY, SENTENCES)


def build_again(made, say=lambda _: None, **changes):
    options = {"units": TINY, "words": None, "arpa": made.folder.parents[1] / "lm.arpa", "topology": "compact"} | changes
    return graph.build(options["units"], options["words"], options["arpa"], made.folder.parent, options["topology"], say)


def test_a_graph_comes_from_the_cache_the_second_time(made):
    said, tlg = [], made.tlg.read_bytes()
    again = build_again(made, said.append)
    assert again.folder == made.folder and again.words == made.words and again.about == made.about
    assert len(said) == 1 and said[0].startswith("from the cache: graph-")
    assert again.tlg.read_bytes() == tlg
    assert {path.name for path in made.folder.iterdir()} == {"TLG.fst", "words.txt", "graph.json"}
    loaded = graph.load(made.folder)
    assert (loaded.units, loaded.words, loaded.topology) == (TINY, made.words, "compact")


def test_another_ingredient_makes_another_graph(made, tmp_path, monkeypatch):
    (tmp_path / "other.arpa").write_bytes((tmp_path / "lm.arpa").read_bytes() + b"\n")
    folders = [
        made.folder,
        build_again(made, topology="strict").folder,
        build_again(made, words=["A", "B"]).folder,
        build_again(made, words=["B", "A"]).folder,
        build_again(made, units=Units((SPACE, "B", "A"))).folder,
        build_again(made, arpa=tmp_path / "other.arpa").folder,
    ]
    monkeypatch.setattr(graph.metadata, "version", lambda name: "9")
    folders.append(build_again(made).folder)
    assert len(set(folders)) == 7


def test_every_stage_is_said_with_its_size_and_seconds(tmp_path):
    said = []
    graph = built(tmp_path, TINY, SENTENCES, say=said.append)
    stages = ["words", "G", "L∘G", "determinised", "minimised", "T∘LG", "written"]
    assert [line.partition(":")[0] for line in said if line.endswith(" s")] == stages
    assert list(graph.about["seconds"]) == stages
    assert (graph.about["states"], graph.about["bytes"]) == (graph.about["states"], graph.tlg.stat().st_size)
    assert str(graph).startswith(f"{graph.folder.name}: 4 words, compact, ")


@pytest.mark.parametrize("stage", ["words", "G", "determinised", "T∘LG", "written"])
def test_a_build_that_is_killed_leaves_no_graph_and_the_next_one_succeeds(made, stage):
    def killed(line):
        if line.startswith(f"{stage}:"):
            os.kill(os.getpid(), signal.SIGKILL)

    cache = made.folder.parent
    before = {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}
    assert not in_a_child(lambda: build_again(made, killed, topology="strict"))
    left = {path.name for path in cache.iterdir() if not path.name.endswith(".lock")} - before
    assert len(left) == 1 and left.pop().endswith(".part")
    again = build_again(made, topology="strict")
    assert {path.name for path in cache.iterdir() if not path.name.endswith(".lock")} == before | {again.folder.name}


def test_a_build_that_fails_leaves_nothing(made, monkeypatch):
    def interrupted(line):
        if line.startswith("minimised:"):
            raise KeyboardInterrupt

    before = sorted(path.name for path in made.folder.parent.iterdir())
    with pytest.raises(KeyboardInterrupt):
        build_again(made, interrupted, topology="strict")
    names = sorted(path.name for path in made.folder.parent.iterdir() if not path.name.endswith(".lock"))
    assert names == [name for name in before if not name.endswith(".lock")]


def damage_tlg(folder):
    (folder / "TLG.fst").write_bytes((folder / "TLG.fst").read_bytes()[:-1])


def damage_words(folder):
    (folder / "words.txt").write_text((folder / "words.txt").read_text().replace("AB", "BB"))


def damage_format(folder):
    about = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps(about | {"format": 0}))


def remove_note(folder):
    (folder / "graph.json").unlink()


@pytest.mark.parametrize("damage", [damage_tlg, damage_words, damage_format, remove_note])
def test_a_damaged_graph_is_refused_and_built_again(made, damage):
    tlg, said = made.tlg.read_bytes(), []
    damage(made.folder)
    with pytest.raises(DataError, match="is no complete graph .* build it again"):
        graph.load(made.folder)
    again = build_again(made, said.append)
    assert again.tlg.read_bytes() == tlg and again.words == made.words
    assert "building it" in said[0] and any(line.startswith("written: ") for line in said)


# ---- what goes in ----


def test_a_compressed_language_model_makes_the_same_graph(made, tmp_path):
    import gzip

    (tmp_path / "lm.arpa.gz").write_bytes(gzip.compress((tmp_path / "lm.arpa").read_bytes()))
    assert build_again(made, arpa=tmp_path / "lm.arpa.gz").tlg.read_bytes() == made.tlg.read_bytes()


def test_words_that_cannot_be_spelled_are_left_out_and_said(tmp_path):
    said = []
    graph = built(tmp_path, TINY, [*SENTENCES, "A X", "XY"], say=said.append)
    assert graph.words[1:-3] == ("A", "AB", "B", "BA")
    assert "2 words cannot be spelled with these units and are left out, such as X XY" in said


def test_given_words_limit_the_graph(made):
    graph = build_again(made, words=["BA", "A", "A", "ZZ"])
    assert graph.words == ("<eps>", "BA", "A", "#0", "<s>", "</s>")


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"topology": "ctc"}, ValueError, "no topology 'ctc'"),
        ({"units": Units(("A", "B"))}, ValueError, "these units have no <SPACE>"),
        ({"words": ["A B"]}, ValueError, "'A B' cannot be a word"),
        ({"words": ["#0"]}, ValueError, "'#0' cannot be a word"),
        ({"words": ["BB"]}, DataError, "none of its 1-grams is among the 1 words"),
        ({"units": Units((SPACE, "X"))}, DataError, "none of its 1-grams is among the 0 words"),
    ],
)
def test_what_makes_no_graph_is_refused_with_the_reason(made, changes, error, message):
    with pytest.raises(error, match=message):
        build_again(made, **changes)


def test_a_language_model_that_is_missing_or_damaged_is_named(made, tmp_path):
    with pytest.raises(DataError, match=r"cannot build a graph of .*none\.arpa"):
        build_again(made, arpa=tmp_path / "none.arpa")
    cut = tmp_path / "cut.arpa"
    cut.write_text((tmp_path / "lm.arpa").read_text()[:-8])
    with pytest.raises(DataError, match=r"cut\.arpa, line"):
        build_again(made, arpa=cut)


def test_a_failure_of_kaldilm_is_an_error_and_not_the_end(made, monkeypatch):
    monkeypatch.setattr(graph, "_ARPA_TO_FST", "import os, sys; sys.stderr.write('no memory'); os.abort()")
    with pytest.raises(DataError, match=r"kaldilm cannot make a transducer of it \(no memory\)"):
        build_again(made, topology="strict")


@pytest.mark.parametrize("wheel", ["kaldifst", "kaldilm"])
def test_a_missing_wheel_is_named(made, monkeypatch, wheel):
    monkeypatch.setitem(sys.modules, wheel, None)
    with pytest.raises(DataError, match=r"needs kaldifst and kaldilm: pip install 'multint\[speech\]'"):
        build_again(made, topology="strict")


def test_a_larger_graph_prefers_sentences_of_its_text(tmp_path):
    from decoding import LETTERS, said

    graph = built(tmp_path, LETTERS, SHORE)
    for text in SHORE:
        scores = said(np.random.default_rng(1), LETTERS, text)
        assert shortest(graph, scores)[0] == tuple(text.split())
