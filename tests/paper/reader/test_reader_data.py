"""Batches of questions: groups by length, shapes, permuted entities, processes."""

import itertools

import numpy as np
import pytest
import torch
from asked import corpus

from multint.paper.experiment import Team
from multint.paper.obtain import DataError
from multint.paper.reader import data as data_module
from multint.paper.reader.corpus import Split, prepare
from multint.paper.reader.data import Plan, Reading, edges, groups, in_turn
from multint.paper.reader.vocabulary import FIRST, NIL, Vocabulary


def of_lengths(lengths, question_lengths, entities=5) -> Reading:
    """Question i is of random tokens."""
    draw = np.random.default_rng(0)
    size = FIRST + entities + 7
    parts = []
    for each in (lengths, question_lengths):
        starts = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
        parts += [draw.integers(1, size, starts[-1]).astype(np.int32), starts]
    answers = draw.integers(FIRST, FIRST + entities, len(lengths)).astype(np.int32)
    whole = Vocabulary(entities, tuple("abcdefg"))
    return Reading.of(Split(parts[0], parts[1], parts[2], parts[3], answers), whole, whole, 400)


def test_the_edges_have_the_least_padding_there_can_be():
    """Beside trying all of them."""
    draw = np.random.default_rng(0)
    for most, least in ((1, 1), (2, 1), (3, 4), (4, 9)):
        sizes = np.unique(draw.integers(1, 40, 8))
        counts = draw.integers(1, 9, len(sizes))

        def cost(ends, sizes=sizes, counts=counts, least=least):
            place = np.searchsorted(ends, sizes)
            per = np.bincount(place, counts, len(ends))
            return float(per @ np.array(ends)) if (per >= least).all() else np.inf

        every = [e for k in range(1, most + 1) for e in itertools.combinations(sizes.tolist(), k) if e[-1] == sizes[-1]]
        best = min(map(cost, every))
        found = edges(sizes, counts, most, least)
        assert (cost(found) == best) if found else best == np.inf
    assert edges(np.array([3, 5]), np.array([2, 2]), 4, 5) == []


def test_every_question_is_in_one_group_that_it_fits_into():
    draw = np.random.default_rng(1)
    lengths, question_lengths = draw.integers(5, 90, 500), draw.integers(3, 20, 500)
    found = groups(lengths, question_lengths, 16)
    assert 2 < len(found) <= data_module.DOCUMENTS * data_module.QUESTIONS
    assert sorted(np.concatenate([group.picked for group in found])) == list(range(500))
    for group in found:
        assert len(group.picked) >= 16
        assert group.shape == (lengths[group.picked].max(), question_lengths[group.picked].max())


def test_a_batch_holds_its_questions_with_padding_behind_them():
    reading = of_lengths([3, 5, 1], [2, 4, 4])
    batch = reading.batch(np.array([1, 0]))
    assert batch.document.shape == (5, 2) and batch.question.shape == (4, 2)
    assert batch.document[:, 0].tolist() == reading.split.document(1).tolist()
    assert batch.document[:, 1].tolist() == [*reading.split.document(0).tolist(), NIL, NIL]
    assert batch.question[2:, 1].tolist() == [NIL, NIL]
    assert batch.answer.tolist() == reading.split.answers[[1, 0]].tolist()
    wide = reading.batch(np.array([2]), (6, 7))
    assert wide.document.shape == (6, 1) and wide.question.shape == (7, 1)


def test_a_long_document_is_cut():
    reading = of_lengths([9, 2], [3, 3])
    short = Reading(reading.split, reading.entities, reading.table, 4)
    assert short.batch(np.array([0, 1])).document[:, 0].tolist() == reading.split.document(0)[:4].tolist()


def test_entities_get_new_numbers_in_document_question_and_answer_alike():
    reading = of_lengths([30] * 64, [10] * 64)
    order = np.array([3, 0, 4, 1, 2])
    plain, new = reading.batch(np.arange(64)), reading.batch(np.arange(64), None, order)
    for one, two in zip(plain, new, strict=True):
        entity = (one >= FIRST) & (one < FIRST + 5)
        assert torch.equal(two[~entity], one[~entity])
        assert torch.equal(two[entity], FIRST + torch.from_numpy(order)[one[entity] - FIRST])
    assert torch.equal(reading.batch(np.arange(64)).document, plain.document)  # the table is left as it was


def test_an_epoch_depends_on_its_number_and_the_seed_alone():
    reading = of_lengths(np.arange(200) % 17 + 4, np.arange(200) % 5 + 3)
    plan = Plan(reading, 8, seed=3)
    one, again, other = plan.epoch(1, Team()), Plan(reading, 8, seed=3).epoch(1, Team()), plan.epoch(2, Team())
    assert len(one) == len(other) >= 200 // 8 - 16
    assert all(torch.equal(a, b) for k in (0, 5, 5, len(one) - 1) for a, b in zip(one[k], again[k], strict=True))
    picked = [i for part, _ in one.drawn for i in part]
    assert len(set(picked)) == len(picked) == 8 * len(one)
    assert [tuple(p) for p, _ in one.drawn] != [tuple(p) for p, _ in other.drawn]
    shapes = {(tuple(one[k].document.shape), tuple(one[k].question.shape)) for k in range(len(one))}
    assert len(shapes) <= 16


def test_entities_are_permuted_in_every_batch_or_not_at_all():
    reading = of_lengths([20] * 40, [6] * 40)
    drawn, plain = Plan(reading, 20, 0).epoch(0, Team()), Plan(reading, 20, 0, permute=False).epoch(0, Team())
    assert all(torch.equal(a.document >= FIRST + 5, b.document >= FIRST + 5) for a, b in zip(drawn, plain, strict=True))
    assert not torch.equal(drawn[0].document, plain[0].document)
    orders = [np.random.default_rng([0, 0, k]).permutation(5) for k in (0, 1)]
    assert not np.array_equal(*orders)


def test_processes_share_every_batch():
    reading = of_lengths(np.arange(100) % 9 + 3, [4] * 100)
    plan = Plan(reading, 10, 0)
    whole, parts = plan.epoch(0, Team()), [plan.epoch(0, Team(rank, 2)) for rank in (0, 1)]
    for k in range(len(whole)):
        a, b = (part[k] for part in parts)
        assert a.document.shape == b.document.shape == (whole[k].document.shape[0], 5)
        assert torch.equal(whole[k].document[:, 0::2], a.document) and torch.equal(whole[k].answer[1::2], b.answer)
    with pytest.raises(DataError, match="cannot be shared evenly by 3 processes"):
        plan.epoch(0, Team(0, 3))
    with pytest.raises(DataError, match="100 training questions are less than one batch of 101"):
        Plan(reading, 101, 0).epoch(0, Team())


def test_in_turn_has_every_question_once_in_batches_of_equal_size():
    reading = of_lengths(np.arange(70) % 11 + 3, [4] * 70)
    parts = in_turn(reading, 32)
    assert [len(part) for part in parts] == [24, 23, 23]
    assert sorted(np.concatenate(parts)) == list(range(70))
    lengths = np.concatenate([reading.lengths[part] for part in parts])
    assert (np.diff(lengths) >= 0).all()


def test_batches_of_a_corpus_of_files(home):
    found = prepare(corpus(home / "house"))
    reading = Reading.of(found.splits["train"], found.vocabulary, found.vocabulary, 400)
    batches = Plan(reading, 16, 0).epoch(0, Team())
    assert len(batches) == 10
    for batch in batches:
        there = (batch.document == batch.answer).any(0)
        assert there.all() and ((batch.answer >= FIRST) & (batch.answer < FIRST + 6)).all()
