"""How does a sequence that was launched before, on the same memory, cost one launch?

A training loop gets the same memory from torch's allocator iteration after iteration. What is launched on exactly the same
addresses for the third time is therefore captured as a CUDA graph, and from then on that graph is launched in its place: the same
kernels with the same arguments, so nothing is copied. Whatever cannot be captured goes on being launched.
"""

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from ctypes import c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from multint.scan import nvrtc

SIGHTINGS = 3  # before a graph is worth its making
MOST_GRAPHS = 256
MOST_COUNTS = 4096  # of what was seen once or twice: lengths that never come again must not push graphs out
NEVER = -1

Launch = Callable[[Tensor | None], None]  # launches on the current stream, with this workspace for cuBLAS or with torch's own


@dataclass(frozen=True)
class Place:
    """Where the graphs of one stream are captured."""

    stream: torch.cuda.Stream  # ours alone: what another thread launched on it meanwhile would be captured too
    workspace: Tensor  # cuBLAS's: torch gives its own away now and then, and no two graphs may use one at a time


@dataclass(frozen=True)
class Graph:
    executable: c_void_p
    place: Place  # keeps the workspace

    def launch(self, stream: int) -> None:
        nvrtc.cuda("cuGraphLaunch", self.executable, c_void_p(stream))

    def destroy(self) -> None:
        nvrtc.cuda("cuGraphExecDestroy", self.executable)  # after launches under way, the driver sees to it


_graphs: "OrderedDict[Hashable, Graph]" = OrderedDict()  # the one used last comes last
_counts: "OrderedDict[Hashable, int]" = OrderedDict()
_places: dict[tuple[int, int], Place] = {}
_lock = threading.Lock()


def launch(key: Hashable, directly: Launch, device: torch.device) -> None:
    """Call ``directly``, or launch the graph of what it did for the same key, which holds all that it depends on."""
    here = torch.cuda.current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        directly(None)
        return
    key = (here.cuda_stream, device.index, key)
    with _lock:
        graph = _graphs.get(key)
        if graph is not None:
            _graphs.move_to_end(key)
            graph.launch(here.cuda_stream)
            return
    directly(None)
    with _lock:
        _note(key, directly, here)


def _note(key: Hashable, directly: Launch, here: torch.cuda.Stream) -> None:
    """Count one more sighting, and make a graph if it is time."""
    if key in _graphs:
        return  # made for another thread while this one launched
    count = _counts.pop(key, 0)
    if count != NEVER and count + 1 < SIGHTINGS:
        _counts[key] = count + 1
    else:
        graph = None if count == NEVER else _captured(directly, here)
        if graph is None:
            _counts[key] = NEVER
        else:
            _graphs[key] = graph
    while len(_counts) > MOST_COUNTS:
        _counts.popitem(last=False)
    while len(_graphs) > MOST_GRAPHS:
        _graphs.popitem(last=False)[1].destroy()


def _captured(directly: Launch, here: torch.cuda.Stream) -> Graph | None:
    """A graph of what ``directly`` launches; None if it cannot be captured, which costs speed and nothing else: it has run."""
    graph, executable = c_void_p(), c_void_p()
    with nvrtc.outside_capture():  # of another thread, which this must not break
        try:
            place = _place(here)
            stream = c_void_p(place.stream.cuda_stream)
            with torch.cuda.stream(place.stream):
                nvrtc.cuda("cuStreamBeginCapture_v2", stream, nvrtc.CAPTURE_RELAXED)
                try:
                    directly(place.workspace)
                finally:
                    nvrtc.cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
            nvrtc.cuda("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        except RuntimeError:
            return None
        finally:
            if graph.value:
                nvrtc.cuda("cuGraphDestroy", graph)
    return Graph(executable, place)


def _place(here: torch.cuda.Stream) -> Place:
    name = (here.device_index, here.cuda_stream)
    if name not in _places:
        workspace = torch.empty(_workspace_size(here.device), dtype=torch.uint8, device=here.device)
        handle = c_void_p()
        nvrtc.cuda("cuStreamCreate", ctypes.byref(handle), 1)  # which does not wait for the default stream
        _places[name] = Place(torch.cuda.ExternalStream(handle.value or 0, here.device), workspace)
    return _places[name]


def _workspace_size(device: torch.device) -> int:
    """As torch chooses it, so that cuBLAS chooses as it does there."""
    return 32 << 20 if torch.cuda.get_device_capability(device)[0] >= 9 else (8 << 20) + (128 << 10)
