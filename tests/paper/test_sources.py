"""Every corpus of characters says what it is, and the numbers agree with each other."""

import re

import pytest

from multint.paper import sources
from multint.paper.charlm.corpora import CORPORA, PTB_FILES
from multint.paper.sources import Address

ALL = pytest.mark.parametrize("source", CORPORA.values(), ids=CORPORA)
LINES = (42_068, 3_370, 3_761)  # of ptb.{train,valid,test}.txt


@ALL
def test_a_source_is_complete(source):
    assert source.licence and source.obtain and source.detail
    assert len(source.files) in (0, 1, 3)
    for file in source.files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.bytes > 0
        assert file.addresses and len({address.url for address in file.addresses}) == len(file.addresses)
        for address in file.addresses:
            assert re.match("https?://[^ ]+/[^ /]+$", address.url)
            assert address.sha256 is None or re.fullmatch("[0-9a-f]{64}", address.sha256)


@ALL
def test_the_parts_add_up_to_the_files(source):
    if not source.files:
        assert source.counts is None, "what comes with Python has no fixed size"
        return
    dropped = {None: 0, "leading": sum(LINES), "both": 2 * sum(LINES)}[source.trim]
    assert sum(source.counts) == sum(file.bytes for file in source.files) - dropped
    if len(source.files) == 1:
        train, valid, test = source.counts
        assert valid == test == (train + valid + test) // 20


def test_each_variant_of_the_treebank_drops_its_spaces():
    for file, lines, a, b in zip(PTB_FILES, LINES, CORPORA["ptb-a"].counts, CORPORA["ptb-b"].counts, strict=True):
        assert (a, b) == (file.bytes - lines, file.bytes - 2 * lines)


def test_a_stand_in_is_named_as_one():
    assert {name: s.stands_for for name, s in CORPORA.items() if s.stands_for} == {
        "text8-74M": "text8",
        "text8-5M": "text8",
        "enwik8-5M": "enwik8",
    }
    for name, whole in (("text8-74M", "text8"), ("text8-5M", "text8"), ("enwik8-5M", "enwik8")):
        (part,), (longer,) = CORPORA[name].files, CORPORA[whole].files
        assert longer.name in part.head_of and part.bytes < longer.bytes


def test_the_shared_room_has_no_corpus_of_its_own():
    assert not [name for name, value in vars(sources).items() if isinstance(value, (sources.Source, sources.File, Address))]


def test_a_download_is_named_after_the_path_of_its_address():
    assert Address("https://example.org/v1/all.tar.gz?download=1#top").name == "all.tar.gz"
