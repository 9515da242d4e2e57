"""Every corpus of speech says what it is, is read from its folder, and is refused with a way out where it is not there."""

import os
import re
from dataclasses import replace
from types import MappingProxyType

import pytest

from multint.paper.obtain import DataError
from multint.paper.speech import corpora, wsj
from multint.paper.speech.corpora import CORPORA
from multint.paper.speech.listing import TEST, TRAIN, VALID

REAL = os.environ.get("MULTINT_DATA")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No way to the user's own data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MULTINT_DATA", raising=False)


def kaldi_folder(top, speakers):
    """Two utterances of each speaker of each split."""
    top.mkdir(parents=True)
    lines = {"wav.scp": [], "text": [], "utt2spk": [], **{f"{split}.list": [] for split in speakers}}
    for split, some in speakers.items():
        for name, speaker in ((f"{speaker}-{k}", speaker) for speaker in some for k in range(2)):
            (top / f"{name}.wav").write_bytes(b"x")
            lines["wav.scp"].append(f"{name} {name}.wav")
            lines["text"].append(f"{name} HELLO")
            lines["utt2spk"].append(f"{name} {speaker}")
            lines[f"{split}.list"].append(name)
    for file, content in lines.items():
        (top / file).write_text("\n".join(content) + "\n")
    return top


SPEAKERS = {"train": ("8", "9"), "dev": ("1867", "5789"), "test": ("118",)}


@pytest.fixture
def mini(tmp_path):
    return kaldi_folder(tmp_path / "data" / "speech-minilibrispeech", SPEAKERS)


def counted(monkeypatch, name, train, valid, test):
    """Let a corpus have another known number of utterances."""
    counts = MappingProxyType({TRAIN: train, VALID: valid, TEST: test})
    monkeypatch.setattr(corpora, "CORPORA", {**CORPORA, name: replace(CORPORA[name], counts=counts)})


# ---- what is known ----


@pytest.mark.parametrize("source", CORPORA.values(), ids=CORPORA)
def test_a_source_is_complete(source):
    assert source.licence and source.obtain and source.detail and source.folder and not source.files
    assert source.addresses and all(re.match("https://[^ ]+", address) for address in source.addresses)
    assert list(source.counts) == [TRAIN, VALID, TEST] and min(source.counts.values()) > 100
    assert corpora.units(source.name) is source.units
    assert source.stands_for == (None if source.name == "wsj" else "wsj")


def test_sizes_are_the_official_ones():
    assert tuple(CORPORA["wsj"].counts.values()) == (37_416, 503, 333) and len(CORPORA["wsj"].units) == 59
    assert {name: len(source.units) for name, source in CORPORA.items() if name != "wsj"} == {
        "fsdd-strings": 16,
        "mini-librispeech": 28,
        "speechocean762": 28,
        "librispeech-100": 28,
    }
    assert corpora.units("/a/folder") is None


# ---- what is read ----


def test_a_corpus_is_found_by_name_in_the_data_folder_or_the_users_own(mini, tmp_path, monkeypatch):
    counted(monkeypatch, "mini-librispeech", 4, 4, 2)
    speech = corpora.load("mini-librispeech", tmp_path / "data")
    assert (speech.name, speech.stands_for, speech.own) == ("mini-librispeech", "wsj", False)
    monkeypatch.setenv("MULTINT_DATA", str(tmp_path / "data"))
    assert corpora.load("mini-librispeech") == speech
    (tmp_path / "home").mkdir()
    (tmp_path / "data").rename(tmp_path / "home" / "multint")
    assert corpora.load("mini-librispeech").sha256 == speech.sha256


def test_another_number_of_utterances_is_refused_or_noted(mini, tmp_path, caplog):
    wrong = "mini-librispeech: train has 4 utterances, not 1,101, valid has 4 utterances, not 179, test has 2 utterances, not 239"
    with pytest.raises(DataError) as error:
        corpora.load("mini-librispeech", tmp_path / "data")
    way_out = f"complete {mini} (train-clean-5.tar.gz, unpacked there: https://www.openslr.org/31/)"
    assert str(error.value) == f"{wrong}; {way_out}"
    assert len(corpora.load("mini-librispeech", tmp_path / "data", anyway=True).splits[TRAIN]) == 4
    assert caplog.messages == [wrong]


def test_mini_librispeech_as_it_is_published_is_divided_by_the_same_speakers(mini, tmp_path, monkeypatch):
    counted(monkeypatch, "mini-librispeech", 4, 4, 2)
    from_lists = corpora.load("mini-librispeech", tmp_path / "data")
    for speaker in (speaker for some in SPEAKERS.values() for speaker in some):
        chapter = tmp_path / "other" / "speech-minilibrispeech" / "LibriSpeech" / "train-clean-5" / speaker / "7"
        chapter.mkdir(parents=True)
        (chapter / f"{speaker}-7.trans.txt").write_text(f"{speaker}-0 HELLO\n{speaker}-1 HELLO\n")
        for k in range(2):
            (chapter / f"{speaker}-{k}.flac").write_bytes(b"x")
    published = corpora.load("mini-librispeech", tmp_path / "other")
    for split in (TRAIN, VALID, TEST):
        assert {one.name for one in published.splits[split]} == {one.name for one in from_lists.splits[split]}
    assert published.sha256 != from_lists.sha256, "flac files are other files"


def test_wsj_finds_its_dictionary_beside_the_discs(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(wsj, "load", lambda folders, dictionary, anyway: asked.append((folders, dictionary, anyway)) or 1 / 0)
    folder = tmp_path / "wsj"
    folder.mkdir()
    (folder / "cmudict").mkdir()
    expected = [([folder], folder / "cmudict.0.7a", True)]
    for name in ("cmudict-0.7b", "cmudict/cmudict.0.7a", "cmudict.0.7a"):  # each is better than the one before
        with pytest.raises(ZeroDivisionError):
            corpora.load("wsj", tmp_path, anyway=len(asked) == 0)
        (folder / name).touch()
        expected.append(([folder], folder / name, False))
    with pytest.raises(ZeroDivisionError):
        corpora.load("wsj", tmp_path)
    assert asked == expected


def test_a_folder_of_the_users_is_a_corpus_too(tmp_path):
    folder = kaldi_folder(tmp_path / "mine", SPEAKERS)
    for given in (folder, str(folder)):
        speech = corpora.load(given)
        assert (speech.name, speech.own, speech.stands_for) == ("mine", True, None)


# ---- what is not there ----


def test_a_corpus_that_is_not_there_says_how_to_obtain_it_and_what_stands_for_it(mini, tmp_path):
    for name, source in CORPORA.items():
        with pytest.raises(DataError) as error:
            corpora.load(name, tmp_path / "nothing")
        text = str(error.value)
        assert text.startswith(
            f"{name}: no folder {tmp_path / 'nothing' / source.folder}; obtain it yourself ({source.obtain}: https://"
        )
        assert text.endswith("and put it there") and "\n" not in text
    with pytest.raises(DataError, match="and put it there, or take mini-librispeech, which stands for it"):
        corpora.load("wsj", tmp_path / "data")


def test_an_unknown_name_lists_what_is_known(tmp_path):
    with pytest.raises(DataError, match=r"unknown corpus 'timit', and no such folder: known are fsdd-strings, mini-librispeech, "):
        corpora.load("timit", tmp_path)


# ---- the real corpora ----


@pytest.mark.parametrize("name", CORPORA)
def test_a_real_corpus_is_complete(name, caplog):
    if REAL is None or corpora.found(CORPORA[name], REAL) is None:
        pytest.skip(f"{name} is not in MULTINT_DATA")
    speech = corpora.load(name, REAL)
    assert not caplog.records and speech.units == CORPORA[name].units
    speakers = {split: {one.speaker for one in ones} for split, ones in speech.splits.items()}
    apart = not (speakers[TRAIN] | speakers[VALID]) & speakers[TEST] and not speakers[TRAIN] & speakers[VALID]
    assert apart == (name != "fsdd-strings"), "only strings of digits share their speakers"
    for word in {word for ones in speech.splits.values() for one in ones for word in one.words}:
        assert speech.units.words(speech.units.encode((word,))) == (word,)
