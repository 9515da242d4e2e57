"""On CUDA: the captured iteration against the eager one, and continuing from a checkpoint."""

from importlib.util import find_spec

import pytest
import torch

from multint.paper import engine
from multint.paper.charlm import task

LACKING = [name for name in ("lightning", "safetensors") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(bool(LACKING), reason=f"needs {' and '.join(LACKING)}, of the extra multint[paper]"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]
TINY = ["hidden=32", "batch=4", "length=10", "evaluation_streams=4", "schedule.updates=40", "schedule.evaluate_every=20"]


def trained(text, root, *changes):
    from safetensors.torch import load_file

    said = []

    class Listener(engine.Silent):
        def say(self, line):
            said.append(line)

    job = task.job("charlm", 0, [*TINY, *changes], text, False, None, "fp32")
    task.train(job, root / "runs", root / "results", device="cuda", watcher=Listener())
    return load_file(*(root / "runs").rglob("000000040.safetensors")), said


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("carry", ["carry=false", "carry=true"])
def test_the_captured_iteration_trains_as_the_eager_one(text, tmp_path, monkeypatch, cell, carry):
    captured, said = trained(text, tmp_path / "captured", f"cell={cell}", carry)
    assert said[0] == "the training iteration is one CUDA graph"
    monkeypatch.setattr(engine, "why_not_capture", lambda fabric: "asked not to")
    eager, said = trained(text, tmp_path / "eager", f"cell={cell}", carry)
    assert said[0] == "no CUDA graph: asked not to"
    for name, value in eager.items():
        if name.startswith("model."):
            torch.testing.assert_close(captured[name], value, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
