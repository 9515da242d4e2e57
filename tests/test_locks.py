"""One process at a time holds a lock, and nobody after it has let go."""

import builtins
import os
import subprocess
import sys

import pytest

from multint.locks import locked

fcntl = pytest.importorskip("fcntl")

TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_free(path):
    return subprocess.run([sys.executable, "-c", TRY, str(path)], capture_output=True, check=False).returncode == 0


def test_a_lock_keeps_others_out_until_its_holder_is_done(tmp_path):
    path = tmp_path / "lock"
    with locked(path) as alone:
        assert alone
        assert not is_free(path)
    assert is_free(path)


def test_an_error_inside_frees_the_lock(tmp_path):
    path = tmp_path / "lock"
    with pytest.raises(ValueError, match="inside"), locked(path):
        raise ValueError("inside")
    assert is_free(path)


def test_a_child_forked_while_it_is_held_does_not_hold_it_on(tmp_path):
    """A child has the parent's files open: the workers of a loader live longer than the lock they were born under."""
    path = tmp_path / "lock"
    with locked(path):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent has looked
            os._exit(0)
        os.close(read)
    try:
        assert is_free(path)
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_without_locks_it_says_so(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock") as alone:
        assert not alone


def test_a_system_without_such_locks_says_so(tmp_path, monkeypatch):
    imported = builtins.__import__

    def without(name, *rest):
        if name == "fcntl":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with locked(tmp_path / "lock") as alone:
        assert not alone
