"""A file or folder has its final name only when it is complete."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from multint.publish import publish, remove_leftovers, replacing, temporary


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def synced(monkeypatch):
    """Inodes that were synced, in order."""
    inodes, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (inodes.append(os.fstat(handle).st_ino), sync(handle)))
    return inodes


def test_a_file_replaces_the_old_one_once_it_is_complete(tmp_path, synced):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as out:
        out.write(b"new")
        out.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and names(tmp_path) == ["file"]
    assert synced[0] == path.stat().st_ino and synced[-1] == tmp_path.stat().st_ino, "the content, then the name"


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "file"):
        pass
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_keeps_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def broken():
        with replacing(path) as out:
            out.write(b"new")
            raise error

    with pytest.raises(error):
        broken()
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]


def test_a_full_disk_keeps_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), replacing(path) as out:
        out.write(b"new")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]


def test_a_finished_folder_gets_its_name(tmp_path, synced):
    part = temporary(tmp_path / "folder")
    part.mkdir()
    (part / "file").write_bytes(b"content")
    publish(part, tmp_path / "folder")
    assert names(tmp_path) == ["folder"] and (tmp_path / "folder" / "file").read_bytes() == b"content"
    assert synced == [(tmp_path / "folder").stat().st_ino, tmp_path.stat().st_ino]


def test_a_file_system_that_cannot_sync_folders_is_good_enough(tmp_path, monkeypatch):
    sync = os.fsync

    def files_only(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", files_only)
    with replacing(tmp_path / "file") as out:
        out.write(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_many_writers_of_one_file_do_not_meet(tmp_path):
    def write(number):
        with replacing(tmp_path / "file") as out:
            out.write(b"%03d" % number * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    content = (tmp_path / "file").read_bytes()
    assert content == content[:3] * 10_000 and names(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from multint.publish import replacing
with replacing(Path(sys.argv[1])) as out:
    out.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_not_the_file_and_can_be_removed(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False, env={**os.environ, "PYTHONPATH": _path()})
    (left,) = names(tmp_path)
    assert left != "file"
    remove_leftovers(tmp_path, "other")
    assert names(tmp_path) == [left]
    remove_leftovers(tmp_path, "file")
    assert not names(tmp_path)


def _path():
    return os.pathsep.join(sys.path)


def test_leftovers_of_one_name_or_of_a_folder_are_removed(tmp_path):
    (temporary(tmp_path / "a[1]")).write_bytes(b"")
    temporary(tmp_path / "b").mkdir()
    (tmp_path / ".b.lock").touch()
    (tmp_path / "c.part").touch()
    remove_leftovers(tmp_path, "b")
    assert len(names(tmp_path)) == 3 and not [*tmp_path.glob(".b~*")]
    remove_leftovers(tmp_path, "a[1]")
    assert names(tmp_path) == [".b.lock", "c.part"]
    (tmp_path / ".curve.csv.123.part").touch()  # as earlier versions named them
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".b.lock", "c.part"]
