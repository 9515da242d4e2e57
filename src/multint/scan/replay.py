"""How does a sequence that was launched before, on the same memory, cost one launch?

A training loop gets the same memory from torch's allocator iteration after iteration. What is launched on exactly the same
addresses for the third time is therefore captured as a CUDA graph, and from then on that graph is launched in its place: the same
kernels with the same arguments, so nothing is copied and nothing is kept alive.
"""

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from ctypes import c_void_p
from dataclasses import dataclass

import torch

from multint.scan import nvrtc

SIGHTINGS = 3  # before a graph is worth its making
MOST = 64  # graphs and counts that are remembered
NEVER = -1


@dataclass(frozen=True)
class Graph:
    executable: c_void_p

    def launch(self, stream: int) -> None:
        nvrtc.cuda("cuGraphLaunch", self.executable, c_void_p(stream))


_seen: "OrderedDict[Hashable, int | Graph]" = OrderedDict()
_capturing: dict[tuple[int, int], torch.cuda.Stream] = {}
_lock = threading.Lock()


def launch(key: Hashable, directly: Callable[[], None], device: torch.device) -> None:
    """Call ``directly``, which launches kernels on the current stream, or launch the graph of what it did for the same key.

    The key holds every address and number the kernels get.
    """
    here = torch.cuda.current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        directly()
        return
    key = (here.cuda_stream, device.index, key)
    found = _seen.get(key, 0)
    if isinstance(found, Graph):
        found.launch(here.cuda_stream)
        return
    directly()
    with _lock:
        if found != NEVER:
            _seen[key] = _captured(directly, here) if found + 1 >= SIGHTINGS else found + 1
        _seen.move_to_end(key)
        while len(_seen) > MOST:
            _, old = _seen.popitem(last=False)
            if isinstance(old, Graph):
                nvrtc.cuda("cuGraphExecDestroy", old.executable)  # the driver waits with it for launches under way


def _captured(directly: Callable[[], None], here: torch.cuda.Stream) -> Graph | int:
    """A graph of what ``directly`` launches, or NEVER if it cannot be captured."""
    # torch's default stream cannot be captured; and cuBLAS has a workspace to each stream, which no two graphs may use at a time
    place = (here.device_index, here.cuda_stream)
    if place not in _capturing:
        _capturing[place] = torch.cuda.Stream(here.device)
    aside = _capturing[place]
    graph, executable = c_void_p(), c_void_p()
    with torch.cuda.stream(aside):
        torch.cuda.current_blas_handle()  # makes that workspace
        stream = c_void_p(aside.cuda_stream)
        nvrtc.cuda("cuStreamBeginCapture_v2", stream, nvrtc.CAPTURE_RELAXED)
        try:
            directly()
        finally:
            ended = nvrtc.driver().cuStreamEndCapture(stream, ctypes.byref(graph))
        if ended or nvrtc.driver().cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)):
            return NEVER
        nvrtc.cuda("cuGraphDestroy", graph)
    return Graph(executable)
