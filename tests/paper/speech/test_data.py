"""Batches: every utterance once an epoch, in an order of its own, and no batch above its size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multint.paper.experiment import Team
from multint.paper.speech.corpus import Split
from multint.paper.speech.data import Batches, Plan, batch, needed
from multint.paper.speech.features import MEL, Form


def a_split(lengths: list[int]) -> Split:
    generator = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = tuple(tuple(int(i) for i in generator.integers(1, 5, size=max(1, n // 9))) for n in lengths)
    names = tuple(f"u{k}" for k in range(len(lengths)))
    frames = generator.standard_normal((int(starts[-1]), MEL)).astype(np.float16)
    return Split(names, names, tuple(() for _ in lengths), labels, starts, frames)


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(lengths, st.integers(1, 6), st.integers(30, 200), st.integers(0, 3))
def test_every_utterance_comes_once_an_epoch_and_batches_keep_their_limits(lengths, utterances, frames, epoch):
    split = a_split(lengths)
    cuts = Plan(utterances, frames).cut(split, list(range(len(split))), seed=1, epoch=epoch)
    assert sorted(i for cut in cuts for i in cut) == list(range(len(split)))
    for cut in cuts:
        assert len(cut) <= utterances
        assert len(cut) == 1 or max(lengths[i] for i in cut) * len(cut) <= frames


def test_the_order_depends_on_seed_and_epoch_alone():
    split, plan = a_split([5, 9, 30, 31, 12, 8, 40, 22]), Plan(2, 1000)
    every = list(range(8))
    assert plan.cut(split, every, 1, 2) == plan.cut(split, every, 1, 2)
    assert plan.cut(split, every, 1, 2) != plan.cut(split, every, 1, 3)
    assert plan.cut(split, every, 1, 2) != plan.cut(split, every, 2, 2)


def test_the_first_epoch_can_go_from_short_to_long():
    split = a_split([5, 9, 30, 31, 12, 8, 40, 22])
    plan = Plan(3, 1000, sorted_first=True)
    assert plan.cut(split, list(range(8)), 1, 0) == [[0, 5, 1], [4, 7, 2], [3, 6]]
    assert plan.cut(split, list(range(8)), 1, 1) != [[0, 5, 1], [4, 7, 2], [3, 6]]


def test_a_batch_has_the_longest_first_with_its_labels_in_that_order():
    split, form = a_split([20, 50, 30]), Form(stack=3)
    made = batch(split, [0, 1, 2], form)
    assert made.lengths.tolist() == [17, 10, 7] and made.x.shape == (17, 3, 360)
    assert made.labels.tolist() == [*split.labels[1], *split.labels[2], *split.labels[0]]
    assert made.counts.tolist() == [len(split.labels[k]) for k in (1, 2, 0)]
    torch.testing.assert_close(made.x[:10, 1], form(split.features(2)))
    assert not made.x[10:, 1].any()


def test_processes_share_every_batch():
    split = a_split([5, 9, 30, 31, 12, 8, 40])
    cuts = Plan(3, 1000).cut(split, list(range(7)), 0, 0)
    parts = [Batches(split, cuts, Form(), Team(rank, 2)) for rank in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == sum(len(cut) > 1 for cut in cuts)
    whole = Batches(split, [cut for cut in cuts if len(cut) > 1], Form(), Team())
    for k in range(len(whole)):
        assert sum(len(part[k].lengths) for part in parts) == len(whole[k].lengths)


@pytest.mark.parametrize("labels, steps", [((), 0), ((1,), 1), ((1, 2, 1), 3), ((1, 1), 3), ((2, 2, 2, 3), 6)])
def test_equal_neighbours_need_a_blank_between_them(labels, steps):
    assert needed(labels) == steps
    if labels:  # one step less and CTC has no way to write them
        for extra, possible in ((0, True), (-1, False)):
            log_probs = torch.randn(steps + extra, 1, 4).log_softmax(-1)
            loss = (
                torch.nn.functional.ctc_loss(
                    log_probs, torch.tensor([labels]), torch.tensor([steps + extra]), torch.tensor([len(labels)])
                )
                if steps + extra
                else torch.tensor(torch.inf)
            )
            assert torch.isfinite(loss) == possible
