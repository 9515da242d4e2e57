"""How is an update repeated as one CUDA graph?

A graph repeats recorded operations on fixed memory, and replaying it costs one launch. So every shape of batch and state has a
graph with input buffers of its own: inputs are copied into the buffers, the graph is replayed, and the outputs are read where it
writes them. A ``Recorder`` records a graph; with a stand-in for it the tests need no GPU.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from multint.paper.experiment import Batch, State, mapped, tensors
from multint.paper.runs import RunError

Outputs = Any  # a tree of tensors


@runtime_checkable
class Recorder(Protocol):
    stream: Any  # for updates that are not replayed; None: the current one

    def record(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Repeats the function's operations. Its outputs are valid until the next replay of anything this recorder recorded."""


class CudaRecorder:
    """CUDA graphs that share their memory, since only one runs at a time."""

    def __init__(self) -> None:
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = function()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def why_not(fabric: Any) -> str | None:
    """Why the updates of these processes cannot be CUDA graphs."""
    if fabric.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, this is {fabric.device.type}"
    if fabric.world_size > 1:
        return "gradients are exchanged between processes"
    return None


def form(tree: Any) -> str:
    """The structure of a tree, with dtype and shape of its tensors and all its other leaves."""
    return repr(mapped(lambda part: (part.dtype, tuple(part.shape)), tree))


class Captured:
    """An update that is recorded once for each key of a batch and form of a state, and then replayed.

    Args:
        update: maps a batch and a state to a tree of tensors; ``update.optimizer`` is its optimiser.
        key: of a batch; batches with the same key have the same shapes. None: the batch is not captured.
        note: writes a line to the log.
    """

    WARM = 3  # first updates of a graph that run eagerly: kernels are compiled, and the optimiser creates its state
    MOST = 16  # graphs

    def __init__(
        self, update: Any, key: Callable[[Batch], Hashable | None], recorder: Recorder, note: Callable[[str], None]
    ) -> None:
        self.update, self.key, self.recorder, self.note = update, key, recorder, note
        self.graphs: dict[Hashable, _Recorded] = {}
        self.warmed: Counter[Hashable] = Counter()
        self.full = False

    def __call__(self, batch: Batch, state: State) -> Outputs:
        of_batch = self.key(batch)
        if of_batch is None:
            return self.eager(batch, state)
        key = (of_batch, form(state))
        if key not in self.graphs:
            if not self.ready(key):
                return self.eager(batch, state)
            self.graphs[key] = _Recorded(self.update, batch, state, self.recorder)
        return self.graphs[key](batch, state)

    def ready(self, key: Hashable) -> bool:
        """Whether to record the update now."""
        if len(self.graphs) == self.MOST:
            if not self.full:
                self.note(f"{self.MOST} CUDA graphs are recorded, the most there may be; batches of other shapes run eagerly")
            self.full = True
            return False
        self.warmed[key] += 1
        return self.warmed[key] > self.WARM

    def eager(self, batch: Batch, state: State) -> Outputs:
        """The update on the side stream, which is where a recording needs the first ones."""
        stream = self.recorder.stream
        if stream is None:
            return self.update(batch, state)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.update(batch, state)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs


class _Recorded:
    """A recorded update with its input buffers."""

    def __init__(self, update: Any, batch: Batch, state: State, recorder: Recorder) -> None:
        self.buffers = mapped(torch.clone, (batch, state))
        self.form = form(batch)
        memory = {part.untyped_storage().data_ptr() for part in tensors(self.buffers)}

        def apart(part: Tensor) -> Tensor:
            """An output outside the buffers, or the next input would overwrite it."""
            return part.clone() if part.untyped_storage().data_ptr() in memory else part

        update.optimizer.zero_grad()  # gradients from outside the graph are freed outside it
        self.replay = recorder.record(lambda: mapped(apart, update(*self.buffers)))

    def __call__(self, batch: Batch, state: State) -> Outputs:
        if form(batch) != self.form:
            raise RunError(
                f"a batch of {form(batch)} has the capture_key of one of {self.form}: batches with one key must have the same "
                "shapes and the same parts that are no tensors; let Task.capture_key tell them apart, or return None"
            )
        for buffer, new in zip(tensors(self.buffers), tensors((batch, state)), strict=True):
            buffer.copy_(new, non_blocking=True)
        return self.replay()
