"""A data folder of Kaldi becomes utterances; what it lacks is named; its commands are not run."""

import pytest
from recordings import noise, written

from multint.paper.obtain import DataError
from multint.paper.speech import audio, kaldi
from multint.paper.speech.kaldi import Recording
from multint.paper.speech.listing import LETTERS, TEST, TRAIN, VALID
from multint.paper.speech.utterances import SPACE, Units, Utterance

NAMES = [f"s{speaker}-{k}" for speaker in range(3) for k in range(2)]  # s0 trains, s1 validates, s2 tests


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    """Six utterances of three speakers, with a list for each split."""
    top = tmp_path / "corpus"
    (top / "audio").mkdir(parents=True)
    for name in NAMES:
        (top / "audio" / f"{name}.wav").write_bytes(name.encode())
    write(top / "wav.scp", [f"{name} audio/{name}.wav" for name in NAMES])
    write(top / "text", [f"{name} IT'S {'ABCDEF'[k]}" for k, name in enumerate(NAMES)])
    write(top / "utt2spk", [f"{name} {name[:2]}" for name in NAMES])
    for k, split in enumerate(("train", "dev", "test")):
        write(top / f"{split}.list", NAMES[2 * k : 2 * k + 2])
    return top


def edit(path, old, new):
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


def names(speech):
    return {split: [one.name for one in ones] for split, ones in speech.splits.items()}


BY_LIST = {TRAIN: NAMES[:2], VALID: NAMES[2:4], TEST: NAMES[4:]}


# ---- splits ----


def test_lists_make_the_splits(folder):
    speech = kaldi.load(folder)
    assert names(speech) == BY_LIST and speech.name == "corpus" and speech.units == LETTERS and not speech.own
    one = speech.splits[VALID][1]
    assert (one.speaker, one.words, one.audio) == ("s1", ("IT'S", "D"), (folder / "audio" / "s1-1.wav",))
    assert (one.start, one.end, one.channel) == (0.0, None, None)
    assert kaldi.load(folder, "named", Units((SPACE, *"'ITSABCDEFG")), own=True).name == "named"


@pytest.mark.parametrize("valid", ["valid", "dev"])
def test_folders_make_the_splits_too(folder, tmp_path, valid):
    divided = tmp_path / "divided"
    for split, part in (("train", NAMES[:2]), (valid, NAMES[2:4]), ("test", NAMES[4:])):
        for file in ("wav.scp", "text", "utt2spk"):
            write(divided / split / file, [line for line in (folder / file).read_text().splitlines() if line.split()[0] in part])
    (folder / "audio").rename(divided / "audio")  # paths are relative to the folder above
    speech = kaldi.load(divided)
    assert names(speech) == BY_LIST
    assert speech.splits[TEST][0].audio == (divided / "audio" / "s2-0.wav",)


def test_the_way_the_splits_are_given_does_not_change_the_digest(folder):
    digest = kaldi.load(folder).sha256
    (folder / "dev.list").rename(folder / "valid.list")
    assert kaldi.load(folder).sha256 == digest


def test_a_folder_without_splits_says_what_it_needs(folder):
    (folder / "test.list").unlink()
    with pytest.raises(DataError, match=r"has no utterance of test; it needs wav.scp with train.list and test.list beside it, or"):
        kaldi.load(folder)
    (folder / "wav.scp").unlink()
    with pytest.raises(DataError, match="has no utterance of train and test"):
        kaldi.load(folder)


def test_a_list_with_an_unknown_utterance_is_refused(folder, caplog):
    edit(folder / "test.list", "s2-1", "s9-9")
    with pytest.raises(DataError, match=r"test.list has utterances that are not in wav.scp and text: s9-9; correct the list"):
        kaldi.load(folder)
    assert names(kaldi.load(folder, anyway=True))[TEST] == ["s2-0"]
    assert "utterances in no list: 1" in caplog.text


# ---- a development split where there is none ----


def speakers_of(splits):
    return {split: {one.speaker for one in ones} for split, ones in splits.items()}


def test_without_a_development_list_speakers_are_taken_out_of_train(folder, caplog):
    caplog.set_level("INFO")
    (folder / "dev.list").unlink()
    many = [f"t{speaker:02d}-{k}" for speaker in range(20) for k in range(5)]
    for name in many:
        (folder / "audio" / f"{name}.wav").write_bytes(b"x")
    write(folder / "train.list", many)
    for file, value in (("wav.scp", "audio/{}.wav"), ("text", "WORDS {}"), ("utt2spk", "{0:.3}")):
        with (folder / file).open("a") as out:
            out.writelines(f"{name} {value.format(name if file != 'text' else 'HERE')}\n" for name in many)
    speech = kaldi.load(folder)
    assert {split: len(ones) for split, ones in speech.splits.items()} == {TRAIN: 90, VALID: 10, TEST: 2}
    speakers = speakers_of(speech.splits)
    assert len(speakers[VALID]) == 2 and not speakers[VALID] & speakers[TRAIN]
    assert "no development split is given; it takes 10 utterances of train, spoken by t" in caplog.text
    write(folder / "train.list", many[::-1])
    assert speakers_of(kaldi.load(folder).splits) == speakers, "the order of the list does not matter"


def test_a_single_speaker_gives_utterances_and_a_large_one_is_not_taken():
    alone = [Utterance(f"u{k}", "s", (), ()) for k in range(30)]
    kept, valid = kaldi.carved("mine", alone)
    assert len(valid) == 3 and len(kept) == 27 and [u for u in alone if u not in valid] == kept
    for large in "abcdefgh":
        mixed = [Utterance(f"u{k}", large if k else "small", (), ()) for k in range(30)]
        assert {u.speaker for u in kaldi.carved("mine", mixed)[0]} >= {large}
    kept, valid = kaldi.carved("mine", alone[:2])
    assert len(kept) == len(valid) == 1


# ---- files ----


def test_segments_cut_recordings(folder):
    write(folder / "wav.scp", ["tape audio/s0-0.wav", "other audio/s0-1.wav"])
    write(folder / "segments", [f"{name} tape {k}.5 {k + 1}.25" for k, name in enumerate(NAMES[:5])] + ["s2-1 other 3 -1"])
    speech = kaldi.load(folder)
    first, last = speech.splits[TRAIN][1], speech.splits[TEST][1]
    assert (first.audio, first.start, first.end) == ((folder / "audio" / "s0-0.wav",), 1.5, 2.25)
    assert (last.audio, last.start, last.end) == ((folder / "audio" / "s0-1.wav",), 3.0, None)


def test_a_segment_is_heard(folder):
    x = noise(16_000)
    written(folder / "tape.wav", x)
    write(folder / "wav.scp", ["tape tape.wav"])
    write(folder / "segments", [f"{name} tape {k / 10} {k / 10 + 0.1}" for k, name in enumerate(NAMES)])
    heard = audio.samples(kaldi.load(folder).splits[VALID][0])
    assert abs(heard - x[3200:4800]).max() < 2**-15


@pytest.mark.parametrize(
    "line, fault",
    [
        ("s0-0 tape 1.0", "s0-0: expected a recording, a start and an end in seconds, got 'tape 1.0'"),
        ("s0-0 tape one 2.0", "s0-0: expected a recording, a start and an end in seconds, got 'tape one 2.0'"),
        ("s0-0 nothing 1.0 2.0", "s0-0: the recording nothing is not in .*wav.scp; add it there"),
    ],
)
def test_a_wrong_line_of_segments_is_named(folder, line, fault):
    write(folder / "wav.scp", ["tape audio/s0-0.wav"])
    write(folder / "segments", [line])
    with pytest.raises(DataError, match=f"segments, {fault}"):
        kaldi.load(folder)


def test_without_utt2spk_every_utterance_is_its_own_speaker(folder):
    (folder / "utt2spk").unlink()
    assert [one.speaker for one in kaldi.load(folder).splits[TRAIN]] == NAMES[:2]


@pytest.mark.parametrize(
    "file, old, new, what",
    [
        ("wav.scp", "s0-1 audio/s0-1.wav\n", "", "audio in wav.scp or segments"),
        ("text", "s0-1 IT'S B\n", "", "transcript in text"),
        ("utt2spk", "s0-1 s0\n", "", "speaker in utt2spk"),
        ("utt2spk", "s0-1 s0\n", "s0-1\n", "speaker in utt2spk"),
    ],
)
def test_an_utterance_that_a_file_lacks_is_named_or_left_out(folder, caplog, file, old, new, what):
    edit(folder / file, old, new)
    edit(folder / "train.list", "s0-1\n", "")
    with pytest.raises(DataError) as error:
        kaldi.load(folder)
    assert str(error.value) == f"corpus: utterances without {what} of {folder}: s0-1; complete the file"
    assert names(kaldi.load(folder, anyway=True)) == {**BY_LIST, TRAIN: ["s0-0"]}
    assert f"utterances without {what} of {folder}: s0-1; left out" in caplog.text


def test_an_empty_transcript_is_an_utterance_without_words(folder):
    edit(folder / "text", "s2-1 IT'S F\n", "s2-1\n")
    assert kaldi.load(folder).splits[TEST][1].words == ()


def test_missing_files_double_lines_and_other_encodings_are_named(folder):
    edit(folder / "test.list", "s2-1", "s0-0")
    with pytest.raises(DataError, match="utterances that are there more than once: s0-0"):
        kaldi.load(folder)
    edit(folder / "wav.scp", "s0-1 ", "s0-0 ")
    with pytest.raises(DataError, match=r"wav.scp: s0-0 comes more than once; keep one of its lines"):
        kaldi.load(folder)
    (folder / "wav.scp").write_bytes("s0-0 café.wav\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"wav.scp is not UTF-8 \(.* at byte 8\); convert it"):
        kaldi.load(folder)
    write(folder / "wav.scp", ["s0-0 a.wav"])
    (folder / "text").unlink()
    with pytest.raises(DataError, match=r"text: there is no such file; a data folder of Kaldi has wav.scp and text"):
        kaldi.load(folder)


def test_white_space_and_line_ends_of_another_system_do_not_matter(folder):
    digest = kaldi.load(folder).sha256
    for file in ("wav.scp", "text", "utt2spk", "train.list"):
        lines = (folder / file).read_text().splitlines()
        (folder / file).write_bytes("".join("\t ".join(line.split()) + " \r\n\r\n" for line in lines).encode())
    assert kaldi.load(folder).sha256 == digest


# ---- paths and commands ----


@pytest.mark.parametrize(
    "spec, expected",
    [
        ("a.wav", Recording("a.wav")),
        ("/elsewhere/a b.wav", Recording("/elsewhere/a b.wav")),
        ("cat a.wav |", Recording("a.wav")),
        ("flac -c -d -s 'x y.flac' |", Recording("x y.flac")),
        ("/opt/bin/flac -dcs a.flac|", Recording("a.flac")),
        ("flac --decode --stdout --silent a.flac |", Recording("a.flac")),
        ("sph2pipe -f wav -p a.wv1 |", Recording("a.wv1")),
        ("/kaldi/tools/sph2pipe_v2.5/sph2pipe -f wav -p -c 2 a.sph |", Recording("a.sph", 1)),
        ("sox a.wav -t wav - |", Recording("a.wav")),
        ("sox -V1 a.mp3 -r 16000 -c 1 -b 16 -t wav - |", Recording("a.mp3")),
        ("sox a.wav -t wav - remix 1 |", Recording("a.wav", 0)),
    ],
)
def test_a_path_or_a_command_that_decodes_one_file_is_that_file(tmp_path, spec, expected):
    got = kaldi.recording(spec, tmp_path, "u")
    assert got == Recording(tmp_path / expected.path, expected.channel)


@pytest.mark.parametrize(
    "spec",
    [
        "rm a.wav |",
        "cat a.wav b.wav |",
        "cat |",
        "|",
        "cat a.wav | sox - -t wav - |",
        "cat a.wav; touch ran |",
        "cat $(touch ran) |",
        "cat `touch ran` |",
        "cat < a.wav |",
        "cat *.wav |",
        "flac -c -s a.flac |",
        "flac -d -c --skip=1 a.flac |",
        "sph2pipe -f wav -t 0:1 a.sph |",
        "sph2pipe -f wav -c 3 a.sph |",
        "sph2pipe -f wav |",
        "sox a.wav -t wav - speed 0.9 |",
        "sox a.wav b.wav -t wav - |",
        "sox -t wav - remix 1 |",
        "sox a.wav -t wav - remix 1,2 |",
        "cat 'a.wav |",
        "ffmpeg -i a.mp4 -f wav - |",
    ],
)
def test_any_other_command_is_refused_and_not_run(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        kaldi.recording(spec, tmp_path, "u")
    assert f"wav.scp, u: the command {spec!r} is not run; only sph2pipe, flac -d, sox and cat of one file" in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_a_line_without_a_path_is_named(folder):
    edit(folder / "wav.scp", "s0-1 audio/s0-1.wav", "s0-1")
    with pytest.raises(DataError, match=r"wav.scp, s0-1: no path; complete the line"):
        kaldi.load(folder)


def test_a_relative_path_may_be_relative_to_the_working_folder(folder, tmp_path, monkeypatch):
    (folder / "audio").rename(tmp_path / "elsewhere")
    edit(folder / "wav.scp", " audio/", " elsewhere/")
    assert kaldi.load(folder).splits[TRAIN][0].audio == (tmp_path / "elsewhere" / "s0-0.wav",)  # the folder above
    (tmp_path / "deep" / "elsewhere").mkdir(parents=True)
    (tmp_path / "elsewhere").rename(tmp_path / "deep" / "elsewhere" / "moved")
    edit(folder / "wav.scp", " elsewhere/", " elsewhere/moved/")
    with pytest.raises(DataError, match="utterances without audio, 2 of 2: "):
        kaldi.load(folder)
    monkeypatch.chdir(tmp_path / "deep")
    assert len(kaldi.load(folder).splits[TRAIN]) == 2


def test_the_file_of_a_command_is_heard(folder):
    x = noise(1000)
    written(folder / "a.flac", x)
    edit(folder / "wav.scp", "s0-0 audio/s0-0.wav", "s0-0 flac -c -d -s a.flac |")
    one = kaldi.load(folder).splits[TRAIN][0]
    assert abs(audio.samples(one) - x).max() < 2**-15
