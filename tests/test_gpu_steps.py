"""The engine "steps" of the GPU backend against the reference, without a GPU: its kernels run under Triton's interpreter."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from interpreted import CHECKS

from multint.cells import CELLS, State
from multint.integration import Vectors
from multint.scan import Problem, gpu_steps

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.xdist_group("interpreted"),
]


def interpreted():
    """What tests/interpreted.py says."""
    ran = subprocess.run(
        [sys.executable, "interpreted.py"],
        cwd=Path(__file__).parent,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    said = dict(map(json.loads, ran.stdout.splitlines()))
    died = [f"the process ended with {ran.returncode} before: {ran.stderr[-2000:]}"]
    return {name: said.get(name, died) for name in CHECKS}


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Made once for all workers: the first to come runs it, the others wait for its file."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "interpreted"
    file = folder / "report.json"
    if not _first(folder):
        while not file.exists():
            time.sleep(0.2)
    else:
        (folder / "unfinished").write_text(json.dumps(interpreted()))
        (folder / "unfinished").rename(file)
    return json.loads(file.read_text())


def _first(folder):
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


@pytest.mark.parametrize("name", CHECKS)
def test_kernels_under_the_interpreter_equal_the_reference(name, report):
    assert report[name] == []


def test_more_values_than_its_kernels_count_are_refused():
    rows, h = gpu_steps.MOST_VALUES // 512, 512
    u, wx = torch.empty(4 * h, h, device="meta"), torch.empty(2, rows, 4 * h, device="meta")

    def why_not(n):
        state = torch.empty(n, h, device="meta")
        return gpu_steps.why_not(Problem(CELLS["lstm"], "general", wx[:, :n], u, Vectors(), State(state, state)))

    assert "divide the batch" in why_not(rows)
    assert "divide the batch" not in (why_not(rows - 1) or "")
