"""Does what was launched before become a graph, and only then? A recorder stands for the driver: nothing here needs a GPU."""

import contextlib
import ctypes
import itertools
import random
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch

from multint.scan import nvrtc, replay

CAPTURE = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphDestroy"]
EXCHANGE = "cuThreadExchangeStreamCaptureMode"
GLOBAL = 0  # the mode a thread begins with
HERE, THERE = 7, 8  # streams of the caller
DIRECT, REPLAYED = "directly", "replayed"


def stream(handle, device=0):
    return Mock(spec=torch.cuda.Stream, cuda_stream=handle, device_index=device, device=torch.device("cpu"))


class Driver:
    """Records what it is asked, and refuses what the real one would."""

    def __init__(self):
        self.calls, self.ran = [], []  # names; and (what, on which stream, how)
        self.failing = set()
        self.captures, self.graphs, self.executables = {}, {}, {}  # what each would run, by handle
        self.streams, self.workspaces = [], []
        self.caller_captures = False
        self.handles = itertools.count(1000)
        self.thread = threading.local()

    # ---- what stands for torch ----

    def current_stream(self, device=None):
        aside = getattr(self.thread, "stream", None)
        return stream(getattr(self.thread, "caller", HERE), device.index or 0) if aside is None else aside

    @contextlib.contextmanager
    def on_stream(self, aside):
        self.thread.stream = aside
        try:
            yield
        finally:
            self.thread.stream = None

    # ---- what stands for the driver ----

    def cuda(self, name, *args):
        self.calls.append(name)
        if name == "cuStreamEndCapture":  # which ends, whatever came of it
            captured = self.captures.pop(args[0].value)
        if name in self.failing:
            raise RuntimeError(f"{name}: refused")
        if name == EXCHANGE:
            mode, before = args[0]._obj, self.mode
            self.thread.mode, mode.value = mode.value, before
        elif name == "cuStreamCreate":
            self.streams.append(self._new(args[0]))
        elif name == "cuStreamBeginCapture_v2":
            assert args[0].value in self.streams, "a stream of others is captured"
            assert args[0].value not in self.captures
            assert args[1] == self.mode == nvrtc.CAPTURE_RELAXED
            self.captures[args[0].value] = []
        elif name == "cuStreamEndCapture":
            self.graphs[self._new(args[1])] = captured
        elif name == "cuGraphInstantiateWithFlags":
            assert args[2].value == 0
            self.executables[self._new(args[0])] = self.graphs[args[1].value]
        elif name == "cuGraphDestroy":
            del self.graphs[args[0].value]
        elif name == "cuGraphExecDestroy":
            del self.executables[args[0].value]
        else:
            assert name == "cuGraphLaunch"
            time.sleep(0)  # lets another thread destroy it, if it can
            assert args[0].value in self.executables, "a destroyed graph is launched"
            self.ran += [(what, args[1].value, REPLAYED) for what in self.executables[args[0].value]]

    def _new(self, into):
        into._obj.value = next(self.handles)
        return into._obj.value

    @property
    def mode(self):
        return getattr(self.thread, "mode", GLOBAL)

    # ---- what is launched ----

    def work(self, what):
        def directly(workspace):
            on = self.current_stream(torch.device("cuda", 0)).cuda_stream
            if on in self.captures:
                self.captures[on].append(what)
                self.workspaces.append(workspace)
            else:
                assert workspace is None
                self.ran.append((what, on, DIRECT))

        return directly

    def launch(self, what, times=1, on=HERE, device=0):
        """How it ran each time."""
        self.thread.caller, begin = on, len(self.ran)
        for _ in range(times):
            replay.launch(what, self.work(what), torch.device("cuda", device))
        assert {(name, where) for name, where, _ in self.ran[begin:]} == {(what, on)}
        return [how for *_, how in self.ran[begin:]]

    def kept(self):
        """The executables replay would launch."""
        return [graph.executable.value for graph in replay._graphs.values()]

    def assert_tidy(self):
        assert self.captures == self.graphs == {}
        assert self.mode == GLOBAL
        assert sorted(self.executables) == sorted(self.kept())


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(nvrtc, "cuda", driver.cuda)
    monkeypatch.setattr(torch.cuda, "current_stream", driver.current_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: driver.caller_captures)
    monkeypatch.setattr(torch.cuda, "stream", driver.on_stream)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: stream(handle))
    monkeypatch.setattr(replay, "_workspace_size", lambda device: 16)
    monkeypatch.setattr(replay, "_graphs", OrderedDict())
    monkeypatch.setattr(replay, "_counts", OrderedDict())
    monkeypatch.setattr(replay, "_places", {})
    return driver


# ----------------------------------------------------------------------------------------------------------------- counts


def test_the_third_time_is_captured_and_the_fourth_replayed(driver):
    assert driver.launch("a", 2) == [DIRECT, DIRECT]
    assert driver.calls == []
    assert driver.launch("a") == [DIRECT]
    assert driver.calls == [EXCHANGE, "cuStreamCreate", *CAPTURE, EXCHANGE]
    driver.assert_tidy()
    driver.calls.clear()
    assert driver.launch("a", 5) == [REPLAYED] * 5
    assert driver.calls == ["cuGraphLaunch"] * 5


def test_every_key_has_its_own_graph(driver):
    for what in "abc":
        assert driver.launch(what, 3) == [DIRECT] * 3
    for what in "cabbac":
        assert driver.launch(what) == [REPLAYED]
    driver.assert_tidy()


def test_another_stream_or_another_device_has_its_own_count(driver):
    assert driver.launch("a", 4)[-1] == REPLAYED
    assert driver.launch("a", 4, on=THERE) == [DIRECT] * 3 + [REPLAYED]
    assert driver.launch("a", 4, device=1) == [DIRECT] * 3 + [REPLAYED]
    assert driver.launch("a", on=HERE) == [REPLAYED]
    assert len(set(driver.kept())) == 3
    driver.assert_tidy()


def test_graphs_of_one_stream_share_a_place_and_those_of_two_do_not(driver):
    for what, on, device in [("a", HERE, 0), ("b", HERE, 0), ("a", THERE, 0), ("a", HERE, 1)]:
        driver.launch(what, 3, on, device)
    first, same, other, elsewhere = driver.workspaces
    assert first is same
    assert len({x.data_ptr() for x in (first, other, elsewhere)}) == 3
    assert len(driver.streams) == 3


def test_the_captured_call_gets_the_workspace_of_its_place_and_direct_calls_get_none(driver):
    given = []
    for _ in range(4):
        replay.launch("a", given.append, torch.device("cuda", 0))
    (place,) = replay._places.values()
    assert given[:3] == [None] * 3
    assert given[3] is place.workspace
    assert len(given) == 4
    assert (place.workspace.numel(), place.workspace.dtype) == (16, torch.uint8)


def test_while_the_callers_stream_is_captured_nothing_is_counted_or_replayed(driver):
    driver.caller_captures = True
    assert driver.launch("a", 10) == [DIRECT] * 10
    driver.caller_captures = False
    assert driver.launch("a", 4) == [DIRECT] * 3 + [REPLAYED]
    driver.caller_captures = True
    driver.calls.clear()
    assert driver.launch("a", 3) == [DIRECT] * 3
    assert driver.calls == []


def test_a_launch_that_fails_reaches_the_caller_and_is_not_counted(driver):
    def broken(workspace):
        raise RuntimeError("the CUDA driver answered error 700")

    for _ in range(5):
        with pytest.raises(RuntimeError, match="error 700"):
            replay.launch("a", broken, torch.device("cuda", 0))
    assert driver.calls == []
    assert driver.launch("a", 4) == [DIRECT] * 3 + [REPLAYED]


def test_a_graph_that_cannot_be_launched_reaches_the_caller_and_blocks_nobody(driver):
    driver.launch("a", 3)
    driver.failing = {"cuGraphLaunch"}
    with pytest.raises(RuntimeError, match="cuGraphLaunch: refused"):
        driver.launch("a")
    assert driver.launch("b", 3) == [DIRECT] * 3


# --------------------------------------------------------------------------------------------- what cannot be captured


@pytest.mark.parametrize(
    "failing",
    [
        {"cuStreamCreate"},
        {"cuStreamBeginCapture_v2"},
        {"cuStreamEndCapture"},
        {"cuGraphInstantiateWithFlags"},
    ],
)
def test_a_capture_that_fails_harms_nobody_and_is_never_tried_again(driver, failing):
    driver.failing = failing
    assert driver.launch("a", 3) == [DIRECT] * 3
    assert failing < set(driver.calls)
    driver.assert_tidy()
    driver.failing = set()
    driver.calls.clear()
    assert driver.launch("a", 10) == [DIRECT] * 10
    assert driver.calls == []
    assert driver.launch("b", 4) == [DIRECT] * 3 + [REPLAYED]
    driver.assert_tidy()


@pytest.mark.parametrize("failing", [set(), {"cuStreamEndCapture"}])
def test_what_refuses_to_be_captured_goes_on_being_launched(driver, failing):
    ran = []

    def directly(workspace):
        if workspace is not None:
            raise RuntimeError("multint: cuBLAS answered status 14")
        ran.append(driver.current_stream(torch.device("cuda", 0)).cuda_stream)

    driver.failing = failing
    for _ in range(10):
        replay.launch("a", directly, torch.device("cuda", 0))
    assert ran == [HERE] * 10
    assert [name for name in driver.calls if name in CAPTURE] == [*CAPTURE[:2], *(() if failing else CAPTURE[3:])]
    driver.assert_tidy()


def test_an_interrupt_ends_the_capture_and_reaches_the_caller(driver):
    def directly(workspace):
        if workspace is not None:
            raise KeyboardInterrupt

    for _ in range(2):
        replay.launch("a", directly, torch.device("cuda", 0))
    with pytest.raises(KeyboardInterrupt):
        replay.launch("a", directly, torch.device("cuda", 0))
    driver.assert_tidy()
    assert driver.launch("b", 4) == [DIRECT] * 3 + [REPLAYED]


def test_without_memory_for_a_workspace_launches_go_on_and_streams_are_not_made_again_and_again(driver, monkeypatch):
    def no_memory(device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(replay, "_workspace_size", no_memory)
    for what in "abcd":
        assert driver.launch(what, 5) == [DIRECT] * 5
    driver.assert_tidy()
    assert len(driver.streams) <= 1


# ------------------------------------------------------------------------------------------------------------- how many


def test_a_graph_in_use_survives_many_others_and_the_one_used_longest_ago_is_destroyed(driver, monkeypatch):
    monkeypatch.setattr(replay, "MOST_GRAPHS", 4)
    driver.launch("mine", 3)
    for what in range(4 * replay.MOST_GRAPHS):
        driver.launch(what, 3)
        assert driver.launch("mine") == [REPLAYED]
        driver.assert_tidy()
    assert driver.calls.count("cuGraphExecDestroy") == 4 * 4 - 3
    assert [key[-1] for key in replay._graphs] == [13, 14, 15, "mine"]
    assert driver.launch(13) == [REPLAYED]
    driver.launch("new", 3)  # takes the place of 14
    assert driver.launch(15) == driver.launch(13) == driver.launch("new") == [REPLAYED]
    assert driver.launch(14, 4) == [DIRECT] * 3 + [REPLAYED]  # counted anew
    driver.assert_tidy()


def test_what_is_seen_once_or_twice_pushes_no_graph_out_and_counts_are_bounded(driver, monkeypatch):
    monkeypatch.setattr(replay, "MOST_GRAPHS", 4)
    monkeypatch.setattr(replay, "MOST_COUNTS", 10)
    for what in "abcd":
        driver.launch(what, 3)
    for what in range(100):
        driver.launch(what, 1 + what % 2)
        assert len(replay._counts) <= 10
    for what in "abcd":
        assert driver.launch(what) == [REPLAYED]
    assert "cuGraphExecDestroy" not in driver.calls
    assert driver.launch(98, 3) == [DIRECT, DIRECT, REPLAYED]  # was seen once, and is remembered
    assert driver.launch(1, 4) == [DIRECT] * 3 + [REPLAYED]  # was seen twice, and forgotten


def test_what_is_seen_now_and_then_keeps_its_count_among_those_seen_once(driver, monkeypatch):
    monkeypatch.setattr(replay, "MOST_COUNTS", 10)
    for k in range(3):
        assert driver.launch("mine") == [DIRECT]
        for what in range(8):
            driver.launch((k, what))
    assert driver.launch("mine") == [REPLAYED]


# -------------------------------------------------------------------------------------------------------------- threads


def test_threads_that_share_keys_never_launch_a_destroyed_graph(driver, monkeypatch):
    monkeypatch.setattr(replay, "MOST_GRAPHS", 4)

    def run(seed):
        choose = random.Random(seed)
        for _ in range(1500):  # mostly a few keys, so that some are replayed before others push them out
            what = choose.choice(range(12) if choose.random() < 0.5 else range(3))
            replay.launch(what, driver.work(what), torch.device("cuda", 0))
            assert driver.mode == GLOBAL

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, seed) for seed in range(2)]:
            done.result()
    assert len(driver.ran) == 3000
    assert {how for *_, how in driver.ran} == {DIRECT, REPLAYED}
    assert "cuGraphExecDestroy" in driver.calls
    driver.assert_tidy()


def test_what_many_threads_see_at_the_same_time_leaves_no_graph_behind(driver):
    together = threading.Barrier(2 * replay.SIGHTINGS)  # all have found that there is no graph yet

    def directly(workspace):
        if workspace is None:
            together.wait(timeout=60)

    with ThreadPoolExecutor(together.parties) as pool:
        for done in [pool.submit(replay.launch, "a", directly, torch.device("cuda", 0)) for _ in range(together.parties)]:
            done.result()
    driver.assert_tidy()


# ---------------------------------------------------------------------------------------------------------- the workspace


@pytest.mark.parametrize(
    "capability, size", [((8, 0), 8 * 1024 + 128), ((8, 9), 8 * 1024 + 128), ((9, 0), 32 * 1024), ((10, 0), 32 * 1024)]
)
def test_the_workspace_is_as_large_as_torchs(monkeypatch, capability, size):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert replay._workspace_size(torch.device("cuda", 0)) == size * 1024


def test_handles_are_given_to_the_driver_as_pointers(driver, monkeypatch):
    given = {}  # a plain number would be cut to 32 bits
    monkeypatch.setattr(nvrtc, "cuda", lambda name, *args: (given.setdefault(name, args), driver.cuda(name, *args)))
    driver.launch("a", 4)
    for name, count in {"cuStreamBeginCapture_v2": 1, "cuStreamEndCapture": 1, "cuGraphDestroy": 1, "cuGraphLaunch": 2}.items():
        assert all(isinstance(x, ctypes.c_void_p) for x in given[name][:count]), name
