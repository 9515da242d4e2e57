"""Runs that are killed without warning and continued, and what they leave."""

import csv
import os
import random
import shutil
import signal
import time

import torch
from safetensors.torch import load_file


def in_a_child(action, kill_after=None):
    """Run ``action`` in a forked process, killed without warning after some seconds; returns whether it ended by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def killed_twenty_times(train, root, length):
    """Train a run of about so many seconds below ``root``, killed at 20 random moments, and to its end at last.

    Returns how many kills left a checkpoint.
    """
    moments, kills, late = random.Random(1), 0, 0
    while kills < 20:
        # late enough to get somewhere, early enough to be killed: a run that ends by itself starts again
        if in_a_child(train, moments.uniform(0.0, 0.3) * length):
            shutil.rmtree(root)
        else:
            kills += 1
            late += any(path.stem.isdigit() for path in root.rglob("*.safetensors"))
    train()
    return late


def final(runs):
    """Everything in the last checkpoint of the one run in a folder."""
    return load_file(max((p for p in runs.rglob("*.safetensors") if p.stem.isdigit()), key=lambda p: int(p.stem)))


def curve(root):
    """The rows of the curve of the one run below a folder, without their times."""
    (path,) = (root / "runs").rglob("curve.csv")
    with path.open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same_to_the_bit(one, other):
    """Weights, optimiser and generators of two runs, and their curves."""
    ours, theirs = final(one / "runs"), final(other / "runs")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert curve(one) == curve(other)
