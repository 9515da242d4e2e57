"""A captured update: which graph, which buffers, what is copied in and out. On every machine, with a stand-in for CUDA's graphs."""

import pytest
import torch
from replay import Replay
from torch import nn
from toy import Carried, Example, Lengths, fit, stopping

from multint.paper import capture, engine
from multint.paper.capture import Captured, form
from multint.paper.experiment import Loss, Schedule, Task, Team, mapped, tensors
from multint.paper.runs import RunError, Stopped


class Alone:
    """What an update needs of Fabric, on one device."""

    def backward(self, loss):
        loss.backward()

    def clip_gradients(self, model, optimizer, max_norm, error_if_nonfinite):
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def updates(task, most=16, device="cpu", recorder=Replay, **adam):
    """An eager and a captured update of equal models, and the lines of the log."""
    made, log = [], []
    for _ in range(2):
        torch.manual_seed(0)
        model = task.build().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **adam)
        made.append(engine.Update(Alone(), task, model, optimizer, 1.0))
    captured = Captured(made[1], task.capture_key, recorder(), log.append)
    captured.MOST = most
    return made[0], captured, log


def assert_equal(ours, theirs):
    pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
    assert pairs
    for one, other in pairs:
        assert torch.equal(one, other)


def trained_alike(task, count=40, **settings):
    """Train both ways, hand the state on and restart as the engine does, compare everything after every update."""
    eager, captured, log = updates(task, **settings)
    states = [None, None]
    batches = task.epoch(0, Team())
    for position in range(count):
        batch = batches[position % len(batches)]
        if task.begins(position):
            states = [task.initial_state(batch)] * 2
        done = eager(batch, states[0]), captured(batch, states[1])
        assert_equal(done[1], done[0])
        states = [one.state for one in done]
        assert_equal(dict(captured.update.model.state_dict()), dict(eager.model.state_dict()))
    return captured, log


class Given(Carried):
    """Starts from a state that the batch decides."""

    def initial_state(self, batch):
        x = batch["x"]
        return {"layers": (x[:1, :, :1].expand(1, x.shape[1], 5).contiguous(), [x.new_ones(1, x.shape[1])]), "kind": "gru"}


@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_carried_state_goes_on_and_restarts_as_without_graphs(every):
    captured, log = trained_alike(Carried(every))
    assert len(captured.graphs) == (1 if every == 1 else 2), "one from the model's own initial state, one from a state"
    assert log == []


def test_a_given_initial_state_and_a_carried_one_share_a_graph():
    captured, _ = trained_alike(Given(every=3))
    assert len(captured.graphs) == 1


@pytest.mark.parametrize("carry", [False, True])
def test_every_shape_has_a_graph_of_its_own(carry):
    task = Lengths(carry=carry)
    captured, _ = trained_alike(task, 150)
    assert len(captured.graphs) == 4 * (1 + carry)
    seen = {key[0][0][0][0] for key in captured.graphs}
    assert seen == set(task.lengths), "batches of length 1 too"


def test_a_learned_initial_state_gets_its_gradient_in_every_graph():
    task = Lengths()
    _, captured, _ = updates(task)
    for batch in task.epoch(0, Team()) * 2:
        before = captured.update.model.h0.detach().clone()
        captured(batch, None)
        assert not torch.equal(before, captured.update.model.h0)
    assert len(captured.graphs) == 4


def test_the_first_updates_of_a_shape_run_eagerly_and_count():
    task = Carried(every=1)
    _, captured, _ = updates(task)
    for position, batch in enumerate(task.epoch(0, Team())[:5]):
        captured(batch, None)
        assert len(captured.graphs) == (position >= captured.WARM)
    assert captured.update.optimizer.state_dict()["state"][0]["step"] == 5


def test_beyond_the_bound_batches_run_eagerly_and_the_log_says_so_once():
    captured, log = trained_alike(Lengths(), 60, most=2)
    assert len(captured.graphs) == 2
    assert log == ["2 CUDA graphs are recorded, the most there may be; batches of other shapes run eagerly"]


def test_a_batch_without_a_key_runs_eagerly():
    class Sometimes(Carried):
        def capture_key(self, batch):
            return None if batch["x"][0, 0, 0] > 0 else super().capture_key(batch)

    captured, _ = trained_alike(Sometimes(every=5))
    assert captured.graphs

    class Never(Carried):
        def capture_key(self, batch):
            return None

    captured, log = trained_alike(Never())
    assert not captured.graphs and log == []


class OneKey(Lengths):
    def capture_key(self, batch):
        return "one"


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_batch_of_another_shape_than_its_key_is_an_error_with_both_shapes(steps):
    task = OneKey()
    _, captured, _ = updates(task)
    x, label = torch.randn(3, 4, 2), torch.tensor([0, 1, 2, 0])
    for _ in range(5):
        captured(Example(x, label), None)
    before = mapped(torch.clone, dict(captured.update.model.state_dict()))
    with pytest.raises(RunError, match=rf"batch of .*\({steps}, 4, 2\).* has the capture_key of one of .*\(3, 4, 2\)"):
        captured(Example(torch.randn(steps, 4, 2), label), None)
    with pytest.raises(RunError, match="float64.* has the capture_key of one of .*float32"):
        captured(Example(x.double(), label), None)
    assert_equal(dict(captured.update.model.state_dict()), before)


def test_a_part_that_is_no_tensor_and_not_in_the_key_is_an_error():
    class Weighted(Lengths):
        def loss(self, model, batch, state):
            loss, state = super().loss(model, batch[0], state)
            return Loss(batch[1] * loss.value, loss.total, loss.count), state

    task = Weighted()
    _, captured, _ = updates(task)
    batch = task.example(0, 0, Team())
    for _ in range(5):
        captured((batch, 2.0), None)
    with pytest.raises(RunError, match=r"3\.0.* has the capture_key of one of .*2\.0.*parts that are no tensors"):
        captured((batch, 3.0), None)


class Swapping(Task):
    """Hands its two states back in the other order, the batch itself as the third."""

    def build(self):
        return nn.Linear(2, 2)

    def epoch(self, number, team):
        draw = torch.Generator().manual_seed(number)
        return [torch.randn(3, 2, generator=draw) for _ in range(20)]

    def begins(self, position):
        return position == 0

    def initial_state(self, batch):
        return batch + 1, batch - 1, batch

    def loss(self, model, batch, state):
        first, second, last = state
        value = (model(batch + first + last) - second).pow(2).mean()
        return Loss(value, value, batch), (second, first, batch)


def test_a_state_made_of_the_inputs_themselves_is_no_buffer():
    captured, _ = trained_alike(Swapping())
    assert len(captured.graphs) == 1


def test_the_form_of_a_tree_tells_structure_shape_dtype_and_other_leaves():
    x = torch.zeros(2, 3)
    trees = [None, x, (x,), [x], {"a": x}, {"b": x}, {"a": (x, None)}, x[:1], x.double(), (x, 1), (x, 2), Example(x, x)]
    assert len({form(tree) for tree in trees}) == len(trees)
    assert form({"a": x}) == form({"a": torch.ones(2, 3)})


# ---- in the loop ----


@pytest.fixture
def standing_in(monkeypatch):
    """The engine captures on this machine, whatever it has."""
    monkeypatch.setattr(capture, "why_not", lambda fabric: None)
    monkeypatch.setattr(capture, "CudaRecorder", Replay)


def as_with_graphs(kind):
    """The task with an optimiser that both ways can use on the CPU."""

    class Fused(kind):
        def optimizer(self, parameters, schedule, **how):
            return torch.optim.Adam(parameters, lr=torch.tensor(schedule.lr), fused=True)

    return Fused


@pytest.mark.parametrize("kind, options", [(Carried, {"dropout": 0.3}), (Lengths, {"carry": True}), (Lengths, {})])
def test_the_loop_trains_the_same_with_and_without_graphs(tmp_path, request, kind, options):
    schedule = Schedule(lr=0.01, updates=120, evaluate_every=20, halve_after=1)
    eager, one = fit(as_with_graphs(kind)(**options), tmp_path / "eager", schedule)
    assert "no CUDA graph: CUDA graphs need a CUDA device, this is cpu" in (tmp_path / "eager" / "toy" / "log.txt").read_text()
    request.getfixturevalue("standing_in")
    captured, other = fit(as_with_graphs(kind)(**options), tmp_path / "captured", schedule)
    assert "each update is one CUDA graph" in (tmp_path / "captured" / "toy" / "log.txt").read_text()
    assert_equal(dict(other.state_dict()), dict(one.state_dict()))
    assert (captured.best, captured.lr, captured.best_update) == (eager.best, eager.lr, eager.best_update)
    assert captured.lr < schedule.lr, "the rate that graphs read was halved"


def test_with_graphs_a_continued_run_ends_with_the_same_weights(tmp_path, standing_in):
    kind = as_with_graphs(Lengths)
    _, straight = fit(kind(carry=True), tmp_path / "straight")
    for after in (19, 24):
        with pytest.raises(Stopped):
            fit(stopping(kind(carry=True), after), tmp_path / "parts")
    _, parts = fit(kind(carry=True), tmp_path / "parts")
    assert_equal(dict(parts.state_dict()), dict(straight.state_dict()))
