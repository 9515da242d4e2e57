"""The discs of WSJ become si284, dev93 and eval92, spelled with Eesen's 59 units. The discs here are small, in the same layout."""

import logging
import os

import pytest
from recordings import SHORTEN, noise, sph2pipe, sphere

from multint.paper.obtain import DataError
from multint.paper.speech import audio, wsj
from multint.paper.speech.listing import TEST, TRAIN, VALID
from multint.paper.speech.utterances import SPACE

LISTS = {
    ("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx"): [
        "11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1",
        "11_1_1:wsj0/si_tr_s/01i/01ic0202.wv1",
        "11_2_1:wsj0/si_tr_s/401/401c0201.wv1",
        "11_2_1:wsj0/si_tr_s/40a/40ac0203.wv1",
    ],
    ("13-34.1", "wsj1/doc/indices/si_tr_s.ndx"): ["13_1_1:wsj1/si_tr_s/46l/46lc0204.wv1"],
    ("13-34.1", "wsj1/doc/indices/h1_p0.ndx"): [
        "13_16_1:wsj1/si_dt_20/4k0/4k0c0301.wv1",
        "13_16_1: wsj1/si_dt_20/4k0/4k0c030a.wv1",
    ],
    ("11-13.1", "wsj0/doc/indices/test/nvp/si_et_20.ndx"): ["11_14_1:wsj0/si_et_20/440/440c0201"],
}
DOTS = {
    ("11-13.1", "wsj0/transcrp/dots/si_tr_s/01i/01ic0200.dot"): [
        r"The sale of the hotels is part of Holiday\'s strategy [door_slam>] to sell (01ic0201)",
        "[loud_breath] a frobnicated *hotel* .PERIOD (01ic0202)",
        "",
    ],
    ("11-13.1", "wsj0/transcrp/dots/si_tr_s/401/401c0200.dot"): ["Left out (401c0201)"],
    ("11-13.1", "wsj0/transcrp/dots/si_tr_s/40a/40ac0200.dot"): ["Only ~ (40ac0203)", "Not in any list (40ac0204)"],
    ("13-34.1", "wsj1/trans/wsj1/si_tr_s/46l/46lc0200.dot"): ["<and> sell --dash the hotel (46lc0204)"],
    ("13-34.1", "wsj1/trans/wsj1/si_dt_20/4k0/4k0c0300.dot"): [
        "Frobnicate it (4k0c0301)",
        "I\\. B\\. M\\. [misc_noise] (4k0c030a)",
    ],
    ("11-14.1", "wsj0/si_et_20/440/440c0200.dot"): ["The hotel [cough/] operator [/cough] (440c0201)"],
}
COUNTS = {TRAIN: 4, VALID: 2, TEST: 1}
KNOWN = "THE SALE OF HOTELS HOTEL IS PART HOLIDAY'S STRATEGY TO SELL A .PERIOD ONLY AND -DASH".split()  # noqa: SIM905


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="latin-1")


def fill(place):
    """All files of the discs; ``place`` says where a disc is."""
    for (disc, path), lines in LISTS.items():
        write(place(disc) / path, [f";; File: {path}", ";;", *lines])
        for k, line in enumerate(lines):
            number, file = line.replace(" ", "").split(":")
            file = file if file.endswith(".wv1") else f"{file}.wv1"
            wave = place(number.replace("_", "-", 1).replace("_", ".")) / file
            wave.parent.mkdir(parents=True, exist_ok=True)
            sphere(wave, noise(320, seed=k), SHORTEN if file.endswith("4k0c0301.wv1") else "pcm")
    for (disc, path), lines in DOTS.items():
        write(place(disc) / path, lines)


@pytest.fixture
def top(tmp_path):
    fill(lambda disc: tmp_path / ("LDC93S6B" if disc.startswith("11") else "LDC94S13B") / disc)
    return tmp_path


@pytest.fixture
def dictionary(tmp_path):
    """A small dictionary in the form of cmudict 0.7a, with all of its characters and no others."""
    path = tmp_path / "cmudict.0.7a"
    lines = [f"{word}  AH0 B" for word in KNOWN] + ["SELL(2)  S EH0 L", "THE(1)  DH IY0"]
    odd = sorted(wsj.CHARACTERS - set("".join(KNOWN)))
    write(path, [";;; # CMUdict", *lines, f"{''.join(odd)}  K", "(PAREN  P", "BABAR's  B"])
    return path


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(wsj, "COUNTS", COUNTS)


def names(speech):
    return {split: [one.name for one in ones] for split, ones in speech.splits.items()}


NAMES = {TRAIN: ["01ic0201", "01ic0202", "40ac0203", "46lc0204"], VALID: ["4k0c0301", "4k0c030a"], TEST: ["440c0201"]}


# ---- the corpus ----


def test_the_lists_of_the_discs_make_the_splits(top, dictionary, small, caplog):
    speech = wsj.load([top / "LDC93S6B", top / "LDC94S13B"], dictionary)
    assert names(speech) == NAMES and speech.name == "wsj"
    assert [one.speaker for one in speech.splits[TRAIN]] == ["01i", "01i", "40a", "46l"]
    assert speech.splits[TEST][0].audio == (top / "LDC93S6B" / "11-14.1" / "wsj0" / "si_et_20" / "440" / "440c0201.wv1",)
    assert speech.splits[TRAIN][3].audio == (top / "LDC94S13B" / "13-1.1" / "wsj1" / "si_tr_s" / "46l" / "46lc0204.wv1",)
    assert not caplog.records


def test_words_of_training_that_the_dictionary_lacks_are_unknown_and_others_keep_theirs(top, dictionary, small, caplog):
    caplog.set_level(logging.INFO)
    words = {one.name: " ".join(one.words) for ones in wsj.load([top], dictionary).splits.values() for one in ones}
    assert words == {
        "01ic0201": "THE SALE OF THE HOTELS IS PART OF HOLIDAY'S STRATEGY TO SELL",
        "01ic0202": "<NOISE> A <UNK> <UNK> .PERIOD",
        "40ac0203": "ONLY",
        "46lc0204": "AND SELL -DASH THE HOTEL",
        "4k0c0301": "FROBNICATE IT",
        "4k0c030a": "I. B. M. <NOISE>",
        "440c0201": "THE HOTEL OPERATOR",
    }
    assert "2 of 23 words of train are not in the dictionary (*HOTEL*, FROBNICATED)" in caplog.text


def test_labels_are_numbers_of_59_units(top, dictionary, small):
    speech = wsj.load([top], dictionary)
    assert len(speech.units) == 59 and speech.units == wsj.UNITS
    assert speech.units.symbols[:4] == ("<NOISE>", "<SPOKEN_NOISE>", SPACE, "<UNK>")
    number = speech.units.numbers
    noise, a, unknown, *_ = speech.splits[TRAIN][1].words
    assert speech.units.encode((noise, a, unknown)) == [1, 3, number["A"], 3, 4]
    assert speech.units.encode(("it's",))[0] == 4, "no unit for small letters other than s"
    for ones in speech.splits.values():
        for one in ones:
            assert speech.units.words(speech.units.encode(one.words)) == tuple("<UNK>" if "*" in w else w for w in one.words)


def test_the_audio_is_heard_plain_or_compressed(top, dictionary, small, monkeypatch):
    monkeypatch.setenv("PATH", f"{sph2pipe(top / 'programs')}{os.pathsep}{os.environ['PATH']}")
    for ones in wsj.load([top], dictionary).splits.values():
        for one in ones:
            assert audio.samples(one).shape == (320,)


def upper(path):
    """Rename everything below a folder to capital letters."""
    for found in sorted(path.rglob("*"), reverse=True):
        found.rename(found.with_name(found.name.upper()))


def test_a_copy_with_names_in_capital_letters_is_the_same_corpus(top, dictionary, small):
    upper(top / "LDC94S13B" / "13-16.1")
    upper(top / "LDC94S13B" / "13-34.1")
    speech = wsj.load([top], dictionary)
    assert names(speech) == NAMES
    assert speech.splits[VALID][0].audio[0].name == "4K0C0301.WV1"


def test_discs_may_be_named_with_underscores_and_be_links(top, dictionary, small, tmp_path):
    first = wsj.load([top], dictionary)
    discs = [*top.glob("LDC*/*")]
    (tmp_path / "links").mkdir()
    for disc in discs:
        (tmp_path / "links" / disc.name.replace("-", "_")).symlink_to(disc)
    assert wsj.load([tmp_path / "links"], dictionary).sha256 == first.sha256


def test_discs_joined_in_one_folder_are_the_same_corpus(top, dictionary, small, tmp_path_factory):
    joined = tmp_path_factory.mktemp("joined")
    fill(lambda disc: joined)
    assert wsj.load([joined], dictionary).sha256 == wsj.load([top], dictionary).sha256


# ---- what is missing ----


def test_another_number_of_utterances_than_the_official_one_is_refused(top, dictionary, caplog):
    with pytest.raises(DataError) as error:
        wsj.load([top], dictionary)
    wrong = "wsj: train has 4 utterances, not 37,416, valid has 2 utterances, not 503, test has 1 utterances, not 333"
    assert str(error.value) == f"{wrong}; complete the discs of LDC93S6B and LDC94S13B"
    assert names(wsj.load([top], dictionary, anyway=True)) == NAMES
    assert caplog.messages == [wrong]


def test_a_missing_disc_is_named_or_its_utterances_are_left_out(top, dictionary, small, caplog):
    (top / "LDC93S6B" / "11-2.1").rename(top / "gone")
    with pytest.raises(DataError, match=r"no folders of the discs 11-2.1; complete the discs of LDC93S6B and LDC94S13B"):
        wsj.load([top], dictionary)
    assert names(wsj.load([top], dictionary, anyway=True)) == {**NAMES, TRAIN: ["01ic0201", "01ic0202", "46lc0204"]}
    assert "wsj: train utterances without audio, 1 of 4: 40ac0203" in caplog.text


def test_the_disc_of_the_lists_is_needed_even_anyway(top, dictionary, small, tmp_path):
    (top / "LDC93S6B" / "11-13.1").rename(top / "gone")
    for anyway in (False, True):
        with pytest.raises(DataError, match="no folders of the discs 11-13.1; complete"):
            wsj.load([top], dictionary, anyway=anyway)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no folders of the discs 13-34.1; complete"):
        wsj.load([tmp_path / "empty"], dictionary)
    with pytest.raises(DataError, match=r"none: there is no such folder; give the folders of LDC93S6B and LDC94S13B"):
        wsj.load([tmp_path / "none"], dictionary)


def test_a_missing_list_is_named(top, dictionary, small):
    (top / "LDC94S13B" / "13-34.1" / "wsj1" / "doc" / "indices" / "h1_p0.ndx").unlink()
    with pytest.raises(DataError, match=r"13-34.1/wsj1/doc/indices/h1_p0.ndx: there is no such list of utterances"):
        wsj.load([top], dictionary)


def test_an_utterance_without_transcript_is_named_or_left_out(top, dictionary, small, caplog):
    (top / "LDC94S13B" / "13-34.1" / "wsj1" / "trans" / "wsj1" / "si_tr_s" / "46l" / "46lc0200.dot").unlink()
    with pytest.raises(DataError, match="wsj: train utterances without a line in a .dot file, 1 of 4: 46lc0204; complete"):
        wsj.load([top], dictionary)
    assert names(wsj.load([top], dictionary, anyway=True))[TRAIN] == NAMES[TRAIN][:3]
    assert "46lc0204; left out" in caplog.text


def test_lines_of_another_form_are_named(top, dictionary, small):
    dot = top / "LDC93S6B" / "11-14.1" / "wsj0" / "si_et_20" / "440" / "440c0200.dot"
    dot.write_text("The hotel (440c02)\n")
    with pytest.raises(DataError, match=r"440c0200.dot, line 1: expected words and \(utterance\), got 'The hotel \(440c02\)'"):
        wsj.load([top], dictionary)
    index = top / "LDC93S6B" / "11-13.1" / "wsj0" / "doc" / "indices" / "test" / "nvp" / "si_et_20.ndx"
    index.write_text(";;\nwsj0/si_et_20/440/440c0201\n")
    with pytest.raises(DataError, match=r"si_et_20.ndx, line 2: expected a disc and a file, got 'wsj0/"):
        wsj.load([top], dictionary)


def test_of_two_transcripts_the_first_is_taken(top, dictionary, small, caplog):
    write(top / "LDC93S6B" / "11-14.1" / "more" / "440c0200.dot", ["Nothing (440c0201)"])
    assert wsj.load([top], dictionary).splits[TEST][0].words == ("NOTHING",), "in the order of paths"
    assert "utterances with two different transcripts, of which the first is taken: 440c0201" in caplog.text


# ---- transcripts ----


@pytest.mark.parametrize(
    "said, words",
    [
        ("Of course there isn\\'t any guarantee [misc_noise]", "OF COURSE THERE ISN'T ANY GUARANTEE <NOISE>"),
        ("I\\. B\\. M\\.", "I. B. M."),
        ("slam [<door_slam] shut [door_slam>] now", "SLAM SHUT NOW"),
        ("[phone_ring/] and [/phone_ring] go", "AND GO"),
        ("wait . then cut ~", "WAIT THEN CUT"),
        ("<and> <isn't> said", "AND ISN'T SAID"),
        ("one --dash two -DASH", "ONE -DASH TWO -DASH"),
        ("five %percent three .point two \\.POINT", "FIVE PERCENT THREE POINT TWO POINT"),
        (',COMMA "DOUBLE-QUOTE ?QUESTION-MARK .PERIOD', ',COMMA "DOUBLE-QUOTE ?QUESTION-MARK .PERIOD'),
        ("re:structuring *mispronounced* par- (pa)rtial", "RE:STRUCTURING *MISPRONOUNCED* PAR- (PA)RTIAL"),
        ("<two words>", "<TWO WORDS>"),
        ("", ""),
        (". ~ [<tap]", ""),
    ],
)
def test_transcripts_are_written_as_kaldi_and_eesen_write_them(said, words):
    assert wsj.normalised(said) == tuple(words.split())


# ---- the dictionary ----


def test_words_come_once_and_without_the_numbers_of_pronunciations(dictionary):
    words = wsj.words(dictionary)
    assert words[: len(KNOWN)] == tuple(KNOWN) and words[-2:] == ("(PAREN", "BABAR's")
    assert len(set(words)) == len(words) == len(KNOWN) + 3


def test_another_dictionary_is_refused_with_the_difference_or_gives_its_own_units(top, dictionary, small, caplog):
    write(dictionary, [*(f"{word}  AH0" for word in KNOWN), "DÉJÀ  D"])
    with pytest.raises(DataError) as error:
        wsj.load([top], dictionary)
    text = str(error.value)
    assert (
        text.startswith('wsj: the dictionary is not cmudict 0.7a: it lacks ! " # %')
        and " and it also has À É; so there are " in text
    )
    assert "units and not 59; take the one of https://svn.code.sf.net/" in text
    speech = wsj.load([top], dictionary, anyway=True)
    assert "É" in speech.units.symbols and len(speech.units) != 59
    assert "the dictionary is not cmudict 0.7a" in caplog.text


def test_a_missing_dictionary_says_where_to_get_it(top, tmp_path, small):
    with pytest.raises(DataError, match=r"none: the dictionary cmudict 0.7a is not there; get it from https://svn.code.sf.net"):
        wsj.load([top], tmp_path / "none")
