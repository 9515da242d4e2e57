"""The commands of speech as a person types them: train on tones, decode, transcribe, language models, graphs."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tones import WORDS, kaldi_folder, spoken, write_wav

from multint.paper.__main__ import main

pytest.importorskip("kaldi_decoder", reason="decoding needs kaldi-decoder: pip install 'multint[speech]'")

SMALL = ("hidden=16", "layers=1", "stack=2", "noise=0", "utterances=8", "schedule.epochs=25", "schedule.lr=0.02", "start.alpha=0.5")


def multint(*words: str, code: int = 0):
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTINT_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def run(place):
    """A model of tones, trained by the command."""
    corpus = kaldi_folder(place / "corpus", (48, 8, 12))
    settings = [word for change in SMALL for word in ("--set", change)]
    multint("train", "speech", "--speech", corpus, "--device", "cpu", *settings)
    (folder,) = (place / "runs" / "speech").iterdir()
    return folder


@pytest.fixture(scope="module")
def a_graph(place, run):
    text = place / "text.txt"
    text.write_text("\n".join(f"{a} {b}" for a in WORDS for b in WORDS) + "\n")
    multint("lm", "train", text, "--out", place / "tones.arpa")
    return multint("graph", "build", "--arpa", place / "tones.arpa", "--units", run).stdout.strip()


def test_training_records_errors_with_and_without_the_graph(run, place):
    record = json.loads((place / "results" / "runs.jsonl").read_text())
    found = {(one["metric"]["name"], one["protocol"]): one["value"] for one in record["results"]}
    assert list(found) == [("cer", "greedy"), ("wer", "graph"), ("wer", "greedy")]
    assert found["cer", "greedy"] < 10 and found["wer", "graph"] <= found["wer", "greedy"]
    measured = record["measured"]
    assert measured["graph"]["language"] == "transcripts" and len(measured["graph"]["tried"]) == 9
    counted = measured["test"]["graph"]["words"]
    assert len(counted["errors"]) == 12
    assert 100 * sum(counted["errors"]) / sum(counted["lengths"]) == pytest.approx(found["wer", "graph"], abs=1e-4)


def test_evaluate_repeats_the_record(run, place):
    record = json.loads((place / "results" / "runs.jsonl").read_text())
    shown = multint("evaluate", run).output
    for one in record["results"]:
        assert f"{one['value']:.3f}" in shown or f"{one['value']:.4f}" in shown


def test_decode_counts_errors_and_writes_what_was_heard(run, place, a_graph):
    shown = multint("decode", run, "--graph", a_graph, "--jobs", 1, "--out", place / "heard.jsonl", "--html", place / "page.html")
    assert "corpus test: WER " in shown.stdout and "substituted" in shown.stdout
    lines = [json.loads(line) for line in (place / "heard.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and set(lines[0]) == {"name", "said", "heard"}
    assert sum(line["said"] == line["heard"][0] for line in lines) >= 9
    page = (place / "page.html").read_text()
    assert page.count("<section>") == 12 and lines[0]["name"] in page


@pytest.mark.parametrize("how", [("--greedy",), ("--prefix-beam", "8"), ("--acoustic-scale", "0.7", "--prior-scale", "0.3")])
def test_decode_in_other_ways(run, how):
    assert "WER" in multint("decode", run, "--split", "valid", "--jobs", 1, *how).stdout


def test_several_hypotheses_are_different(run, place, a_graph):
    multint("decode", run, "--graph", a_graph, "--acoustic-scale", 0.5, "--nbest", 3, "--jobs", 1, "--out", place / "many.jsonl")
    lines = [json.loads(line)["heard"] for line in (place / "many.jsonl").read_text().splitlines()]
    assert all(len(set(many)) == len(many) <= 3 for many in lines) and any(len(many) > 1 for many in lines)


def test_transcribe_writes_words_with_times(run, place, a_graph):
    write_wav(place / "talk.wav", spoken(("BAD", "BE", "DAB"), np.random.default_rng(3)))
    assert multint("transcribe", run, place / "talk.wav").stdout.strip()
    shown = json.loads(multint("transcribe", run, place / "talk.wav", "--graph", a_graph, "--json").stdout)
    assert shown["text"] == " ".join(word["word"] for word in shown["words"])
    starts = [word["start"] for word in shown["words"]]
    assert starts == sorted(starts) and all(word["start"] < word["end"] for word in shown["words"])


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_transcribed(run, place):
    write_wav(place / "good.wav", spoken(("BE",), np.random.default_rng(4)))
    (place / "bad.wav").write_bytes(b"RIFF nothing")
    result = multint("transcribe", run, place / "bad.wav", place / "good.wav", code=2)
    assert "good.wav:" in result.stdout and "bad.wav" in result.stderr and "1 of 2 files could not be read" in result.stderr


def test_a_language_model_says_how_well_it_fits(place, a_graph):
    assert multint("lm", "fit", place / "tones.arpa", place / "text.txt").stdout.startswith("perplexity ")


@pytest.mark.parametrize(
    "words, message",
    [
        (("decode", "RUN", "--split", "nothing"), "has no split 'nothing'; there are train, valid, test"),
        (("decode", "RUN", "--graph", "nowhere"), "nowhere is no complete graph"),
        (("lm", "train", "nothing.txt", "--out", "x.arpa"), "nothing.txt"),
        (("lm", "train", "text.txt", "--out", "x.arpa", "--prune", "2", "--prune", "1"), "prun"),
        (("graph", "build", "--arpa", "nothing.arpa", "--units", "RUN"), "nothing.arpa"),
        (("train", "speech", "--speech", "nowhere"), "unknown corpus 'nowhere', and no such folder"),
    ],
)
def test_wrong_input_is_one_line_with_the_thing_in_it(run, a_graph, words, message):
    result = multint(*(str(run) if word == "RUN" else word for word in words), code=2)
    assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_an_exported_recogniser_needs_no_data(run, place):
    multint("export", run, place / "model")
    shown = [multint("transcribe", folder, place / "talk.wav").stdout for folder in (place / "model", run)]
    assert shown[0] == shown[1] != ""


def test_the_report_has_a_table_of_recognition_errors(run, place):
    multint("report")
    assert "Recognition errors" in (place / "results" / "report.html").read_text()
