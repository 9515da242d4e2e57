"""How do the two directions of a layer run at the same time on a GPU?"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from multint.scan import operator
from multint.scan.contract import Result

_thread = threading.local()
_Weight = TypeVar("_Weight", bound=Tensor | None)


def side_by_side(one: Callable[[], Result], two: Callable[[], Result], like: Tensor) -> list[Result]:
    """Results of two functions that do not depend on each other; on the GPU of ``like`` they run on two streams.

    Autograd runs a backward pass on the stream of its forward pass, so that too is side by side. It goes through what was done in
    reverse: the second comes first here, so that its parameters, for which this stream must wait, come last there.
    """
    if like.device.type != "cuda" or torch.compiler.is_compiling() or operator.transformed():
        return [one(), two()]
    here = torch.cuda.current_stream(like.device)
    there = _second_stream(here)
    there.wait_stream(here)
    _thread.home = here
    try:
        with torch.cuda.stream(there):
            second = two()
    finally:
        _thread.home = None
    first = one()
    here.wait_stream(there)
    for made in (second.outputs, *second.state):
        if made is not None:
            made.record_stream(here)  # or its memory could be given away on the other stream while it is read on this one
    return [first, second]


def at_home(weights: Sequence[_Weight]) -> list[_Weight]:
    """Parameters for use on the second stream, as views made on the first: there autograd adds up what they get from either."""
    home = getattr(_thread, "home", None)
    if home is None:
        return list(weights)
    with torch.cuda.stream(home):
        return [w if w is None else w.view_as(w) for w in weights]  # type: ignore[misc]


def _second_stream(home: torch.cuda.Stream) -> torch.cuda.Stream:
    """One for each stream of a caller and thread: another's work has no place in its captures."""
    known: dict[torch.cuda.Stream, torch.cuda.Stream] = _thread.__dict__.setdefault("second", {})
    if home not in known:
        known[home] = torch.cuda.Stream(home.device)
    return known[home]
