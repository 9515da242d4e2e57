"""On CUDA: captured updates against eager ones, the checks of test_capture.py with real graphs, and continuing."""

from importlib.util import find_spec

import pytest
import torch
from test_capture import Given, OneKey, Swapping, updates
from toy import SHORT, Carried, Example, Lengths, fit, stopping

from multint.paper import capture
from multint.paper.capture import CudaRecorder
from multint.paper.experiment import Team, mapped, tensors
from multint.paper.runs import RunError, Stopped

LACKING = [name for name in ("lightning", "safetensors") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(bool(LACKING), reason=f"needs {' and '.join(LACKING)}, of the extra multint[paper]"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # over tens of updates; a capture may select another kernel


def on_gpu(tree):
    return mapped(torch.Tensor.cuda, tree)


def both(task, **settings):
    """An eager and a captured update on the GPU with the optimiser that ``engine.fit`` asks for."""
    rate = {"lr": torch.tensor(0.01, device="cuda"), "capturable": True, "fused": True}
    return updates(task, device="cuda", recorder=CudaRecorder, **rate, **settings)


def assert_close(ours, theirs):
    pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
    assert pairs
    for one, other in pairs:
        torch.testing.assert_close(one, other, **CLOSE)


def trained_alike(task, count=40, **settings):
    eager, captured, log = both(task, **settings)
    states = [None, None]
    batches = task.epoch(0, Team())
    for position in range(count):
        batch = on_gpu(batches[position % len(batches)])
        if task.begins(position):
            states = [task.initial_state(batch)] * 2
        done = eager(batch, states[0]), captured(batch, states[1])
        assert_close(done[1], done[0])
        states = [one.state for one in done]
    assert_close(dict(captured.update.model.state_dict()), dict(eager.model.state_dict()))
    return captured, log


@pytest.mark.parametrize(
    "task, graphs",
    [(Carried(1), 1), (Carried(2), 2), (Carried(7), 2), (Given(3), 1), (Lengths(), 4), (Lengths(carry=True), 8), (Swapping(), 1)],
    ids=["no state", "carried for two", "carried for seven", "given", "lengths", "lengths carried", "swapped"],
)
def test_captured_updates_train_as_eager_ones(task, graphs):
    captured, log = trained_alike(task, 150 if isinstance(task, Lengths) else 40)
    assert len(captured.graphs) == graphs and log == []


def test_a_learned_initial_state_gets_its_gradient_in_every_graph():
    task = Lengths()
    _, captured, _ = both(task)
    for batch in task.epoch(0, Team()) * 2:
        before = captured.update.model.h0.detach().clone()
        captured(on_gpu(batch), None)
        assert not torch.equal(before, captured.update.model.h0)
    assert len(captured.graphs) == 4


def test_beyond_the_bound_batches_run_eagerly_and_the_log_says_so_once():
    captured, log = trained_alike(Lengths(), 60, most=2)
    assert len(captured.graphs) == 2 and len(log) == 1


def test_a_batch_without_a_key_runs_eagerly_between_graphs():
    class Sometimes(Carried):
        def capture_key(self, batch):
            self.calls = getattr(self, "calls", 0) + 1
            return None if self.calls % 4 == 0 else super().capture_key(batch)

    captured, _ = trained_alike(Sometimes(every=5))
    assert len(captured.graphs) == 2


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_batch_of_another_shape_than_its_key_is_an_error_with_both_shapes(steps):
    task = OneKey()
    _, captured, _ = both(task)
    label = torch.tensor([0, 1, 2, 0])
    for _ in range(5):
        captured(on_gpu(Example(torch.randn(3, 4, 2), label)), None)
    with pytest.raises(RunError, match=rf"batch of .*\({steps}, 4, 2\).* has the capture_key of one of .*\(3, 4, 2\)"):
        captured(on_gpu(Example(torch.randn(steps, 4, 2), label)), None)


def log(root):
    return (root / "toy" / "log.txt").read_text()


@pytest.mark.parametrize("task", [lambda: Carried(7), lambda: Carried(1), lambda: Lengths(carry=True), Lengths])
def test_the_loop_trains_the_same_with_and_without_graphs(tmp_path, monkeypatch, task):
    _, captured = fit(task(), tmp_path / "captured", device="cuda")
    assert "each update is one CUDA graph" in log(tmp_path / "captured")
    monkeypatch.setattr(capture, "why_not", lambda fabric: "switched off")
    _, eager = fit(task(), tmp_path / "eager", device="cuda")
    assert "no CUDA graph: switched off" in log(tmp_path / "eager")
    assert_close(dict(captured.state_dict()), dict(eager.state_dict()))


def test_a_continued_run_ends_with_the_same_weights(tmp_path):
    _, straight = fit(Lengths(carry=True), tmp_path / "straight", device="cuda")
    for after in (19, 24):
        with pytest.raises(Stopped):
            fit(stopping(Lengths(carry=True), after), tmp_path / "parts", device="cuda")
    progress, parts = fit(Lengths(carry=True), tmp_path / "parts", device="cuda")
    assert_close(dict(parts.state_dict()), dict(straight.state_dict()))
    assert progress.update == SHORT.updates


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("carry", ["carry=false", "carry=true"])
def test_character_models_train_the_same_with_and_without_graphs(text, tmp_path, monkeypatch, cell, carry):
    from safetensors.torch import load_file

    from multint.paper import session

    tiny = ["hidden=32", "batch=4", "length=10", "evaluation_streams=4", "schedule.updates=40", "schedule.evaluate_every=20"]
    job = session.job("charlm", 0, [*tiny, f"cell={cell}", carry], {"text": text})
    for name in ("captured", "eager"):
        session.train(job, tmp_path / name, tmp_path / name, device="cuda")
        monkeypatch.setattr(capture, "why_not", lambda fabric: "switched off")
    captured, eager = (load_file(*(tmp_path / name).rglob("000000040.safetensors")) for name in ("captured", "eager"))
    for name, value in eager.items():
        if name.startswith("model."):
            torch.testing.assert_close(captured[name], value, **CLOSE, msg=lambda m, name=name: f"{name}: {m}")
