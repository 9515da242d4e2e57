"""The engine "steps" of the GPU backend against the reference, without a GPU: its kernels run under Triton's interpreter."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interpreted import CHECKS

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
