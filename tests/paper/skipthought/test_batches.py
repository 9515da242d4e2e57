"""Batches of one length, lengths in turn, each triple once an epoch."""

from collections import Counter

import numpy as np
import pytest
import torch
from sentences_made_up import made_up

from multint.paper.experiment import Team
from multint.paper.skipthought.corpus import LIMIT
from multint.paper.skipthought.data import EOS, SPECIAL, UNKNOWN, Batches, Turns, scattered
from multint.paper.skipthought.softmax import NOTHING

CORPUS = made_up()


def words_of(column, vocabulary=1000):
    found = column.tolist()
    return found[: found.index(EOS)]


def sentence(corpus, number):
    return (corpus.tokens[corpus.starts[number] : corpus.starts[number + 1]].astype(int) + SPECIAL).tolist()


# ---- order ----


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 1000])
def test_a_scattering_is_a_permutation_that_its_key_decides(count):
    every = np.arange(count)
    one = scattered(every, count, (3, 1))
    assert sorted(one) == every.tolist()
    assert (scattered(every[::-1], count, (3, 1)) == one[::-1]).all()
    if count > 100:
        other = scattered(every, count, (3, 2))
        assert (one != other).mean() > 0.9 and (one != every).mean() > 0.9
        assert abs(np.corrcoef(every, one)[0, 1]) < 0.15


def test_lengths_take_turns_until_they_are_used_up():
    turns = Turns((0, 3, 0, 10, 1), 2, seed=0, epoch=0)  # batches: two of length 1, five of 3, one of 4
    order = [turns[k] for k in range(len(turns))]
    assert len(order) == 8
    assert {length for length, _ in order[:3]} == {1, 3, 4}
    assert {length for length, _ in order[3:5]} == {1, 3}
    assert [length for length, _ in order[5:]] == [3, 3, 3]
    assert Counter(order) == Counter([(1, 0), (1, 1), (4, 0), *((3, k) for k in range(5))])
    assert [length for length, _ in order[3:5]] == [length for length, _ in order[:3] if length != 4]
    with pytest.raises(IndexError, match="an epoch has 8 batches, asked for number 8"):
        turns[8]


def test_the_order_of_lengths_differs_between_epochs():
    orders = {tuple(Turns([0] + [1] * 20, 4, 0, epoch).lengths) for epoch in range(3)}
    assert len(orders) == 3


# ---- batches ----


def test_an_epoch_has_every_triple_once():
    batches = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    every = [batches.sentences(k) for k in range(len(batches))]
    assert sorted(np.concatenate(every)) == sorted(CORPUS.middles)
    assert all(1 <= len(part) <= 4 for part in every)


def test_a_batch_has_sentences_of_one_length_and_their_neighbours():
    batches = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    for position in range(len(batches)):
        batch, numbers = batches[position], batches.sentences(position)
        assert batch.x.shape[0] == int(batch.last) + 1 and (batch.x[-1] == EOS).all() and (batch.x[:-1] != EOS).all()
        for column, number in enumerate(numbers):
            assert words_of(batch.x[:, column]) == sentence(CORPUS, number)
            assert words_of(batch.after.words[:, column]) == sentence(CORPUS, number + 1)
            assert words_of(batch.before.words[:, column]) == sentence(CORPUS, number - 1)


def test_every_word_and_one_end_of_a_target_counts():
    batches = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    batch, numbers = batches[0], batches.sentences(0)
    wanted = Counter(batch.after.wanted.tolist())
    assert wanted == Counter([word for number in numbers for word in [*sentence(CORPUS, number + 1), EOS]])
    assert torch.equal(batch.after.words.flatten()[batch.after.at], batch.after.wanted)


def test_words_outside_the_vocabulary_are_unknown():
    few = Batches(CORPUS, 10, 4, seed=1, epoch=0, team=Team())
    many = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    for position in range(5):
        expected = many[position].x
        expected[expected >= 10] = UNKNOWN
        assert torch.equal(few[position].x, expected)


def test_fixed_shapes_hold_the_same_predictions():
    free = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    fixed = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team(), fixed=True, even=True)
    for position in range(len(free)):
        one, other = free[position], fixed[position]
        assert other.x.shape[0] % 2 == 0 and other.after.words.shape[0] == LIMIT
        steps = one.x.shape[0]
        assert torch.equal(other.x[:steps], one.x) and (other.x[steps:] == EOS).all() and int(other.last) == steps - 1
        counts = other.before.wanted != NOTHING
        assert Counter(other.before.wanted[counts].tolist()) == Counter(one.before.wanted.tolist())
        assert other.before.at.tolist() == list(range(other.before.words.numel()))


def test_processes_share_every_batch():
    whole = Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team())
    parts = [Batches(CORPUS, 1000, 4, seed=1, epoch=0, team=Team(rank, 2)) for rank in range(2)]
    position = next(k for k in range(len(whole)) if whole[k].x.shape[1] == 4)
    for rank in range(2):
        assert torch.equal(parts[rank][position].x, whole[position].x[:, rank::2])


def test_a_batch_depends_on_seed_epoch_and_position_alone():
    def batches(seed=1, epoch=0):
        return Batches(CORPUS, 1000, 4, seed=seed, epoch=epoch, team=Team())

    assert all(torch.equal(batches()[k].x, batches()[k].x) for k in (3, 0, 7))
    assert any(
        batches()[k].x.shape != batches(epoch=1)[k].x.shape or not torch.equal(batches()[k].x, batches(epoch=1)[k].x)
        for k in range(9)
    )
    assert [batches().sentences(k).tolist() for k in range(9)] != [batches(seed=2).sentences(k).tolist() for k in range(9)]
