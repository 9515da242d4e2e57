"""Batches: a pure function of (seed, epoch, position), and every character counted once."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from multint.paper.charlm import data
from multint.paper.charlm.data import (
    DataError,
    Segments,
    Streams,
    evaluation_segments,
    evaluation_streams,
    gather,
    resident,
)

sizes = st.integers(2, 400)
lengths, widths, seeds, epochs = st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32), st.integers(0, 50)


def counted(size):
    """Tokens that tell their own place (modulo 251, a prime no length divides)."""
    return (np.arange(size) % 251).astype(np.uint8)


def plans(length, batch, seed):
    return [Segments(length, batch, seed), Streams(length, batch)]


def fits(plan, size):
    try:
        plan.plan(size, 0)
    except DataError:
        return False
    return True


@given(sizes, lengths, widths, seeds, epochs)
def test_a_batch_asked_alone_is_the_batch_met_in_order(size, length, batch, seed, epoch):
    tokens = counted(size)
    for plan in plans(length, batch, seed):
        assume(fits(plan, size))
        in_order = list(plan.batches(tokens, epoch))
        for position in range(len(in_order)):
            alone = type(plan)(*([length, batch, seed] if isinstance(plan, Segments) else [length, batch])).batches(tokens, epoch)[
                position
            ]
            assert all(torch.equal(a, b) for a, b in zip(alone, in_order[position], strict=True))
        assert len(in_order) == len(plan.batches(tokens, epoch + 1)), "an epoch is as long as any other"


def table(starts):
    """All of a plan at once."""
    return torch.stack([*starts])


@given(st.integers(1, 3000), st.integers(0, 9))
def test_a_computed_order_meets_every_place_once(count, seed):
    keys = np.random.PCG64(seed).random_raw(4)
    places = data.permuted(np.arange(count), count, keys)
    assert sorted(places.tolist()) == [*range(count)]
    some = range(0, count, 1 + count // 50)
    assert [places[k] for k in some] == [int(data.permuted(np.array([k]), count, keys)[0]) for k in some], "asked alone or together"


@given(sizes, lengths, seeds, epochs)
def test_an_order_too_long_to_keep_meets_each_segment_once_too(size, length, seed, epoch):
    assume(size > length)
    with mock.patch.object(data, "TABLE", 4):
        starts = table(Segments(length, 1, seed).plan(size, epoch)).flatten().sort().values
    assert torch.equal(starts, int(starts[0]) + length * torch.arange(len(starts)))


def test_a_corpus_of_any_size_needs_the_same_memory_for_its_order():
    tracemalloc.start()
    plan = Segments(50, 64).plan(10**12, 0)
    first = [plan[p] for p in (0, 1, len(plan) - 1)]
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 64 * 2**20 and all(int(row.max()) < 10**12 for row in first)


@given(sizes, lengths, widths, seeds, epochs)
def test_y_is_x_one_character_later(size, length, batch, seed, epoch):
    tokens = counted(size)
    for plan in plans(length, batch, seed):
        assume(fits(plan, size))
        starts = table(plan.plan(size, epoch))
        for position, (x, y) in enumerate(plan.batches(tokens, epoch)):
            assert x.shape == y.shape == (length, batch) and x.dtype == y.dtype == torch.int64
            for column in range(batch):
                first = int(starts[position, column])
                assert x[:, column].tolist() == tokens[first : first + length].tolist()
                assert y[:, column].tolist() == tokens[first + 1 : first + 1 + length].tolist()


@given(sizes, lengths, seeds, epochs)
def test_an_epoch_meets_each_segment_once(size, length, seed, epoch):
    assume(size > length)
    starts = table(Segments(length, 1, seed).plan(size, epoch)).flatten().sort().values
    offset = int(starts[0])
    assert 0 <= offset < length
    assert torch.equal(starts, offset + length * torch.arange(len(starts))), "side by side, none twice"
    assert size - 1 - len(starts) * length < 2 * length, "no more than two segments' worth is left out at the ends"


@given(lengths, widths, st.integers(10, 400))
def test_streams_go_on_where_the_window_before_ended(length, batch, size):
    assume(fits(Streams(length, batch), size))
    starts = table(Streams(length, batch).plan(size))
    assert (starts.diff(dim=0) == length).all()
    each = (size - 1) // batch
    assert starts[0].tolist() == [each * column for column in range(batch)]
    assert len(starts) == each // length and int(starts.max()) + length < size


@given(sizes, lengths, st.integers(1, 4), st.integers(1, 3), seeds, epochs)
def test_shards_join_to_the_whole_batch(size, length, share, world, seed, epoch):
    tokens = counted(size)
    for plan in plans(length, share * world, seed):
        assume(fits(plan, size))
        shards = [plan.shard(rank, world).batches(tokens, epoch) for rank in range(world)]
        for position, (x, y) in enumerate(plan.batches(tokens, epoch)):
            assert torch.equal(torch.cat([shard[position][0] for shard in shards], dim=1), x)
            assert torch.equal(torch.cat([shard[position][1] for shard in shards], dim=1), y)
        assert {len(shard) for shard in shards} == {len(plan.batches(tokens, epoch))}


def test_epochs_and_seeds_differ_in_order_and_offset():
    orders = {tuple(table(Segments(7, 3, seed).plan(500, epoch)).flatten().tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert {int(table(Segments(7, 1).plan(500, epoch)).min()) for epoch in range(100)} == set(range(7))


def test_the_order_is_the_same_on_every_machine():
    """These numbers may never change: they are what resuming a run rests on."""
    assert table(Segments(5, 4, seed=3).plan(60, epoch=2)).tolist() == [[16, 46, 36, 21], [11, 41, 31, 26]]


@pytest.mark.parametrize("plan", plans(5, 4, 1), ids=["segments", "streams"])
def test_one_tensor_on_a_device_gives_the_same_batches(plan):
    tokens = np.arange(300, dtype=np.uint16) + 40_000
    tokens.flags.writeable = False
    whole = resident(tokens, "cpu")
    for (x, y), (u, v) in zip(plan.batches(tokens, 3), plan.batches(whole, 3), strict=True):
        assert torch.equal(x, u) and torch.equal(y, v)
    assert resident(counted(9), "cpu").dtype == torch.uint8
    assert gather(whole, torch.tensor([0, 7]), 3).tolist() == [[40000, 40007], [40001, 40008], [40002, 40009]]


def test_batches_are_a_sequence():
    batches = Segments(5, 4).batches(counted(200), 0)
    assert torch.equal(batches[-1][0], batches[len(batches) - 1][0])
    assert [len(x) for x, _ in batches[1:3]] == [5, 5]
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_which_positions_begin_anew():
    assert [Segments(5, 4).begins(p) for p in range(3)] == [True] * 3
    assert [Streams(5, 4).begins(p) for p in range(3)] == [True, False, False]
    assert [Streams(5, 4, renew=2).begins(p) for p in range(5)] == [True, False, True, False, True]


def test_the_protocols_have_the_updates_of_the_paper_s_tables():
    assert len(Segments(50, 64).plan(5_059_550, 0)) == 1581
    assert len(Segments(180, 128).plan(90_000_000, 0)) == 3906
    assert len(Streams(100, 100).plan(90_000_000)) == 8999, "the last character of the last window has no successor"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Segments(50, 4).plan(50, 0), r"50 characters are less than one sequence of 50 \+ 1; use shorter sequences"),
        (
            lambda: Segments(50, 64).plan(1000, 0),
            "1,000 characters make 19 sequences of 50, less than one batch of 64; use a smaller",
        ),
        (lambda: Streams(50, 64).plan(1000), "1,000 characters in 64 streams leave 15 each, less than one window of 50; use fewer"),
        (lambda: Streams(50, 64).plan(0), "0 characters in 64 streams leave 0 each"),
        (lambda: Segments(50, 64).shard(0, 3), "a batch of 64 cannot be shared evenly by 3 processes; make it a multiple of 3"),
        (lambda: Segments(50, 64).shard(4, 4), "rank 4 is not one of 4 processes"),
        (lambda: Segments(0, 4), "length must be at least 1, got 0"),
        (lambda: Streams(5, 0), "batch must be at least 1, got 0"),
        (lambda: evaluation_streams(counted(5), 5), "5 characters cannot be cut into 5 streams"),
        (lambda: evaluation_streams(counted(1)), "1 characters leave nothing to predict"),
        (lambda: evaluation_segments(counted(9), 0), "length must be at least 1, got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_the_smallest_text_makes_one_segment():
    (pair,) = Segments(5, 1).batches(counted(6), 0)
    assert [part.flatten().tolist() for part in pair] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]


# ---- evaluation ----


def predictions(evaluation, length):
    """(input, target) of every prediction that counts, and how many there are."""
    seen = []
    for x, y, counts in evaluation.windows(length):
        assert x.shape == y.shape == counts.shape and x.shape[1] == evaluation.streams
        seen += zip(x[counts].tolist(), y[counts].tolist(), strict=True)
    return seen


@given(st.integers(2, 250), st.integers(1, 30), st.integers(1, 20))
def test_streams_predict_every_character_but_the_first_exactly_once(size, streams, window):
    assume(streams < size)
    evaluation = evaluation_streams(np.arange(size, dtype=np.uint8), streams)
    assert sorted(predictions(evaluation, window)) == [(i, i + 1) for i in range(size - 1)]
    assert evaluation.predicted == size - 1
    assert evaluation.lengths.max() - evaluation.lengths.min() <= 1


@given(st.integers(2, 250), st.integers(1, 30), st.integers(1, 9))
def test_segments_predict_every_character_but_the_first_exactly_once(size, length, batch):
    evaluation = evaluation_segments(resident(np.arange(size, dtype=np.uint8), "cpu"), length)
    seen = []
    for first in range(0, evaluation.streams, batch):
        part = evaluation.columns(first, first + batch)
        assert part.steps <= length
        seen += predictions(part, length)
    assert sorted(seen) == [(i, i + 1) for i in range(size - 1)]
    assert evaluation.predicted == size - 1 and evaluation.starts.tolist() == list(range(0, size - 1, length))


def test_one_stream_is_the_text_itself():
    tokens = counted(100)
    x, y, counts = evaluation_streams(tokens).rows(0, 1000)
    assert x[:, 0].tolist() == tokens[:-1].tolist() and y[:, 0].tolist() == tokens[1:].tolist() and counts.all()


def test_padding_is_at_the_end_of_the_shorter_streams_alone():
    evaluation = evaluation_streams(counted(12), 4)  # 11 predictions: 3, 3, 3, 2
    _, _, counts = evaluation.rows(0, evaluation.steps)
    assert counts.sum(0).tolist() == [3, 3, 3, 2] and (counts.sum(), evaluation.predicted) == (11, 11)
