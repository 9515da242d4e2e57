"""How do the two directions of a layer run at the same time on a GPU, and which rule makes it safe?

The reverse direction runs on a second stream, and so does its backward pass: autograd runs it on the stream of the forward pass.
One rule makes that safe: **a tensor that one stream allocated and the other stream uses is recorded on the stream that uses it**
(``Tensor.record_stream``). Without that, the caching allocator hands its memory out on the first stream as soon as Python or
autograd drops it, while the second stream may still read it. Three kinds of tensors cross:

- what the second direction reads (``borrow``), which autograd also keeps for the backward pass on the second stream;
- what it returns (``side_by_side``);
- gradients, in both directions, which autograd's engine records itself.

Everything else stays on the stream that allocated it. The order of the work is ``wait_stream`` at both ends and autograd's events.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from multint.scan import operator
from multint.scan.contract import Result

_thread = threading.local()
_Borrowed = TypeVar("_Borrowed", bound=Tensor | None)


def side_by_side(one: Callable[[], Result], two: Callable[[], Result], like: Tensor) -> list[Result]:
    """Results of two functions that do not depend on each other; on the GPU of ``like``, ``two`` runs on a second stream.

    ``two`` passes every tensor that it reads through ``borrow``.
    """
    if why_one_stream(like) is not None:
        second = two()  # in the order of two streams: random numbers do not depend on how many there are
        return [one(), second]
    here = torch.cuda.current_stream(like.device)
    there = _second_stream(here)
    there.wait_stream(here)
    try:
        # second in the backward pass, which goes through the graph in reverse: this stream waits for its parameters' gradients last
        _thread.home = here
        try:
            with torch.cuda.stream(there):
                second = two()
        finally:
            _thread.home = None
        first = one()
    finally:
        here.wait_stream(there)  # after an error too: what ``two`` reads may be freed now
    _record((second.outputs, *second.state), here)
    return [first, second]


def why_one_stream(like: Tensor) -> str | None:
    """Why the directions run one after the other; None if each has a stream."""
    if like.device.type != "cuda":
        return f"tensors on {like.device} have no streams"
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return "a tracer sees one stream"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "hooks of saved tensors (checkpointing) may make them again on another stream than the one that reads them"
    return operator.transformed()


def borrow(tensors: Sequence[_Borrowed]) -> list[_Borrowed]:
    """Tensors of the first stream for use on the second, where this is called; on the first stream they are returned as they are.

    They come as views made on the first stream: there autograd adds up the gradients that they get from both.
    """
    home = getattr(_thread, "home", None)
    if home is None:
        return list(tensors)
    if torch.is_grad_enabled():  # else they are held until the first stream has waited for the second
        _record(tensors, torch.cuda.current_stream(home.device))
    with torch.cuda.stream(home):
        return [x.view_as(x) if x is not None and x.requires_grad else x for x in tensors]  # type: ignore[misc]


def _record(tensors: Iterable[Tensor | None], stream: torch.cuda.Stream) -> None:
    for x in tensors:
        if x is not None:
            x.record_stream(stream)


def _second_stream(home: torch.cuda.Stream) -> torch.cuda.Stream:
    """One for each stream of a caller and thread: other work on it would take part in its captures."""
    known: dict[torch.cuda.Stream, torch.cuda.Stream] = _thread.__dict__.setdefault("second", {})
    if home not in known:
        known[home] = torch.cuda.Stream(home.device)
    return known[home]
