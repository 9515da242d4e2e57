"""Which words are most probable, given the outputs of an acoustic model and a decoding graph? A beam search by kaldi-decoder.

A matrix of posteriors has a row for each frame and columns for the blank and each unit: natural logarithms of probabilities. The
search adds costs, negative logarithms: those of the graph (language model and optional spaces) and acoustic ones,
``acoustic_scale * -(log posterior - prior_scale * log prior)``. Results depend on the matrix alone, not on the number of processes.
"""

import contextlib
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
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
AHEAD = 4  # results a process may be ahead of the one that is wanted next
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
            yield _result(number, _tried(work, matrix))
        return
    workers = [_Worker(what, graph.folder, search, log_priors) for _ in range(processes)]
    try:
        yield from _in_order(workers, matrices)
    finally:
        for worker in workers:
            worker.end()


def _in_order(workers: Sequence["_Worker"], matrices: Iterable[ArrayLike]) -> Iterator[Any]:
    """Results in the order of the matrices. Each worker has one matrix at a time, so no pipe can fill up in both directions."""
    rest = enumerate(matrices)
    busy: dict[Any, tuple[_Worker, int]] = {}  # by connection
    found: dict[int, Any] = {}
    done = 0
    while True:
        idle = [worker for worker in workers if worker.connection not in busy]
        room = AHEAD * len(workers) - len(found) - len(busy)
        for worker, (number, matrix) in zip(idle[: max(room, 0)], rest, strict=False):
            worker.send(number, np.asarray(matrix))
            busy[worker.connection] = worker, number
        if not busy and done not in found:
            return
        while done not in found:
            for connection in wait(list(busy)):
                worker, number = busy.pop(connection)
                found[number] = worker.receive(number)
        yield _result(done, found.pop(done))
        done += 1


def _tried(work: Callable[[ArrayLike], Any], matrix: ArrayLike) -> Any:
    """The result, or the error."""
    try:
        return work(matrix)
    except Exception as error:
        return error


def _result(number: int, found: Any) -> Any:
    if isinstance(found, ValueError):
        raise ValueError(f"matrix {number}: {found}") from found
    if isinstance(found, Exception):
        raise found
    return found


class _Worker:
    """A process with a decoder, and the pipe to it. The pipe breaks when the process ends, however that happens."""

    def __init__(self, what: str, folder: Path, search: Search, log_priors: ArrayLike | None) -> None:
        context = _context()
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, what, folder, search, log_priors), daemon=True)
        self.process.start()
        there.close()

    def send(self, number: int, matrix: NDArray[Any]) -> None:
        with self._watched(number):
            self.connection.send(matrix)

    def receive(self, number: int) -> Any:
        with self._watched(number):
            return self.connection.recv()

    @contextlib.contextmanager
    def _watched(self, number: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join(5)
            way_out = "if memory was short, use fewer processes: each has the graph in memory"
            raise DataError(f"matrix {number}: its process ended with exit code {self.process.exitcode}; {way_out}") from error

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _context() -> Any:
    """How processes start. A fork server imports this module once, for all workers that follow."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _serve(connection: Connection, what: str, folder: Path, search: Search, log_priors: ArrayLike | None) -> None:
    """Decode what comes through a pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    work = getattr(Decoder(load(folder), search, log_priors), what)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_tried(work, connection.recv()))
