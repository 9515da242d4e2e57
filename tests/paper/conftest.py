"""Small runs for the tests of the paper wing: a text of a few kB, caches and results in a folder of their own."""

import random

import pytest
from corpora import Server

from multint.scan import build


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working folder with caches of its own. Processes that a test starts share the compiled CPU loop."""
    kernels = build.cache_folder()
    (tmp_path / "cache").mkdir()
    if kernels.is_dir():
        (tmp_path / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MULTINT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path


@pytest.fixture
def text(home):
    """20 kB of a made-up language."""
    words = ["mo", "rela", "tin", "sa", "keru", "vo", "ista", "na"]
    choose = random.Random(0)
    path = home / "corpus.txt"
    path.write_text(" ".join(choose.choice(words) for _ in range(5000)))
    return path


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder, and no way to the user's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MULTINT_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MULTINT_CACHE", raising=False)
    return folder


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("requests")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server({}).running() as running:
        yield running
