"""Which words are most probable, given the outputs of an acoustic model and a decoding graph? A beam search by kaldi-decoder.

A matrix of posteriors has a row for each frame and columns for the blank and each unit: natural logarithms of probabilities. The
search adds costs, negative logarithms: those of the graph (language model and optional spaces) and acoustic ones,
``acoustic_scale * -(log posterior - prior_scale * log prior)``. Results depend on the matrix alone, not on the number of processes.
"""

import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from itertools import islice
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multint.paper.obtain import DataError
from multint.paper.speech.graph import Graph, load
from multint.paper.speech.lattice import NOTHING, Hypothesis, Lattice, Network, Search, lattice
from multint.paper.speech.utterances import BLANK, SPACE, Units

__all__ = ["Decoder", "Hypothesis", "Lattice", "Search", "decode", "lattices", "priors", "word_times"]

IMPOSSIBLE = -1e4  # stands for the logarithm of zero: such a label costs more than any beam
ROUNDING = 1e-3  # by which a log-probability may be above zero
WAITING = 4  # matrices a process may have in front of it
DEFAULT = Search()


def priors(labels: Iterable[Sequence[int]], units: int) -> NDArray[np.float64]:
    """Log priors of the blank and the units, from label sequences of training with a blank around and between labels, as in Eesen.

    A unit that no sequence has gets -inf: the search never takes it.
    """
    counts = np.zeros(units + 1)
    for sequence in labels:
        counts += np.bincount(np.asarray(sequence, np.int64), minlength=units + 1)
        counts[BLANK] += len(sequence) + 1
    if not counts.any():
        raise DataError("no label sequence to count priors in")
    with np.errstate(divide="ignore"):
        logs: NDArray[np.float64] = np.log(counts / counts.sum())
    return logs


class Decoder:
    """A graph in memory, and how it is searched.

    Args:
        log_priors: of the blank and each unit (see ``priors``); they are divided out of the posteriors, unless their scale is 0.
    """

    def __init__(self, graph: Graph, search: Search = DEFAULT, log_priors: ArrayLike | None = None) -> None:
        self.graph, self.search = graph, search
        self.log_priors = None if log_priors is None else np.asarray(log_priors, np.float64)
        if self.log_priors is not None and self.log_priors.shape != (len(graph.units) + 1,):
            raise ValueError(f"priors of shape {self.log_priors.shape}, for a blank and {len(graph.units)} units")

    def scores(self, posteriors: ArrayLike) -> NDArray[np.float32]:
        """Acoustic scores, the negative of the costs. -inf, a probability of zero, becomes very low; NaN and +inf are errors."""
        values, columns = np.asarray(posteriors), len(self.graph.units) + 1
        if values.ndim != 2 or values.shape[1] != columns:
            raise ValueError(
                f"posteriors of shape {values.shape}: the graph has {columns} columns, a blank and {columns - 1} units"
            )
        if np.isnan(values).any():
            row, column = np.argwhere(np.isnan(values))[0]
            raise ValueError(f"the posterior of frame {row}, column {column} is NaN")
        if values.size and values.max() > ROUNDING:
            row, column = np.unravel_index(values.argmax(), values.shape)
            raise ValueError(f"frame {row}, column {column} is {values.max():.4g}, no log-probability: apply log_softmax first")
        scores = values.astype(np.float64)
        if self.log_priors is not None and self.search.prior_scale:
            known = np.isfinite(self.log_priors)
            scores[:, known] -= self.search.prior_scale * self.log_priors[known]
            scores[:, ~known] = -np.inf
        return np.maximum(self.search.acoustic_scale * scores, IMPOSSIBLE).astype(np.float32)

    def best(self, posteriors: ArrayLike) -> Hypothesis:
        """The best path. Without frames it is empty and not complete."""
        scores = self.scores(posteriors)
        if not len(scores):
            return NOTHING
        kaldi_decoder, kaldifst = _kaldi()
        most = self.search.max_active
        options = kaldi_decoder.FasterDecoderOptions(beam=self.search.beam, max_active=most, min_active=min(20, most - 1))
        decoder = kaldi_decoder.FasterDecoder(self._tlg, options)  # a used one may break ties in another way
        decoder.decode(kaldi_decoder.DecodableCtc(scores))
        complete = decoder.reached_final()
        found, path = decoder.get_best_path()
        if not found:
            return NOTHING
        _, labels, numbers, weight = kaldifst.get_linear_symbol_sequence(path)
        words = tuple(self.graph.words[number] for number in numbers)
        times = word_times(self.graph.units, labels, words) if complete else ()
        return Hypothesis(words, weight.value1, weight.value2, times, complete)

    def lattice(self, posteriors: ArrayLike) -> Lattice:
        """The paths within the lattice beam. Without frames, or without a path, it is empty."""
        scores = self.scores(posteriors)
        if not len(scores):
            return Lattice.empty(self.search.acoustic_scale)
        return lattice(self._network, self.graph.words, scores, self.search)

    @cached_property
    def _tlg(self) -> Any:
        _, kaldifst = _kaldi()
        tlg = kaldifst.StdConstFst.read(str(self.graph.tlg))
        if tlg is None:
            raise DataError(f"cannot read {self.graph.tlg}: build it again")
        return tlg

    @cached_property
    def _network(self) -> Network:
        return Network.read(self.graph.tlg)


def _kaldi() -> tuple[Any, Any]:
    try:
        import kaldi_decoder  # type: ignore[import-untyped]
        import kaldifst  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("decoding needs kaldi-decoder and kaldifst: pip install 'multint[speech]'") from error
    return kaldi_decoder, kaldifst


def word_times(units: Units, labels: Sequence[int], words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """First frame of each word, and the one after its last, in a path of labels that spells the words.

    Label 1 is the blank, label k + 1 is unit k.
    A word lasts from the first frame whose label is its first unit to the last frame whose label is its last unit. CTC gives a unit
    a frame or two somewhere in its sound, so these are no borders of sounds. Where equal units follow each other without a blank,
    the first takes all frames that it can.
    """
    numbers = units.numbers
    blank, space = "\\u0101*", re.escape(chr(0x101 + numbers[SPACE]))
    between = f"{blank}(?:{space}+{blank})?"
    spelled = [units.spelled(word) or () for word in words]
    patterns = [f"({blank.join(re.escape(chr(0x101 + numbers[unit])) + '+' for unit in spelling)})" for spelling in spelled]
    match = re.fullmatch(between + "".join(pattern + between for pattern in patterns), "".join(chr(0x100 + n) for n in labels))
    return tuple(match.span(k) for k in range(1, len(words) + 1)) if match else ()


# ---- several processes ----


def decode(
    graph: Graph,
    matrices: Iterable[ArrayLike],
    search: Search = DEFAULT,
    log_priors: ArrayLike | None = None,
    processes: int = 1,
) -> Iterator[Hypothesis]:
    """The best path of each matrix, in order. Each process has the graph in memory; a few matrices are read ahead."""
    return _decoded("best", graph, matrices, search, log_priors, processes)


def lattices(
    graph: Graph,
    matrices: Iterable[ArrayLike],
    search: Search = DEFAULT,
    log_priors: ArrayLike | None = None,
    processes: int = 1,
) -> Iterator[Lattice]:
    """The lattice of each matrix, as ``decode``."""
    return _decoded("lattice", graph, matrices, search, log_priors, processes)


def _decoded(
    what: str, graph: Graph, matrices: Iterable[ArrayLike], search: Search, log_priors: ArrayLike | None, processes: int
) -> Iterator[Any]:
    if processes < 1:
        raise ValueError(f"cannot decode in {processes} processes")
    if processes == 1:
        work = getattr(Decoder(graph, search, log_priors), what)
        for number, matrix in enumerate(matrices):
            with _numbered(number):
                found = work(matrix)
            yield found
        return
    pool = ProcessPoolExecutor(processes, _context(), _start, (graph.folder, search, log_priors))
    waiting: deque[Future[Any]] = deque()
    done = 0
    try:
        rest = iter(matrices)
        while True:
            with _numbered(done):
                for matrix in islice(rest, WAITING * processes - len(waiting)):
                    waiting.append(pool.submit(_work, what, np.asarray(matrix)))
                if not waiting:
                    return
                found = waiting.popleft().result()
            yield found
            done += 1
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _context() -> Any:
    """How processes start. A fork server imports this module once, for all pools that follow."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextlib.contextmanager
def _numbered(number: int) -> Iterator[None]:
    """Errors say which matrix they are about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"matrix {number}: {error}") from error
    except BrokenProcessPool as error:
        why = "a decoding process was ended, perhaps for lack of memory: each has the graph in memory, so use fewer processes"
        raise DataError(f"matrix {number}: {why}") from error


_DECODERS: list[Decoder] = []  # of this process, in a pool


def _start(folder: Path, search: Search, log_priors: ArrayLike | None) -> None:
    _DECODERS.append(Decoder(load(folder), search, log_priors))


def _work(what: str, matrix: NDArray[Any]) -> Any:
    return getattr(_DECODERS[0], what)(matrix)
