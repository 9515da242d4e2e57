"""Which word sequences are nearly as good as the best? A beam search that keeps all paths near the best, in numpy.

kaldi-decoder's own search for lattices has no limit on the states it keeps, so it takes minutes for a sentence where posteriors are
soft. This one has. It goes through the frames twice: forwards for the cost of reaching each state, and backwards for the cost of
going on to the end, which says what lies on a path within the lattice beam.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multint.paper.obtain import DataError, one_line

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """How thoroughly, and with which weights, is searched? The defaults are Eesen's.

    Args:
        beam: paths that cost so much more than the best are given up.
        max_active: at most so many states are followed from one frame to the next.
        acoustic_scale: weight of acoustic costs against those of the graph.
        prior_scale: weight of the priors, where there are any.
        lattice_beam: paths that cost so much more than the best are left out of a lattice.
    """

    beam: float = 17.0
    max_active: int = 5000
    acoustic_scale: float = 0.9
    prior_scale: float = 1.0
    lattice_beam: float = 8.0

    def __post_init__(self) -> None:
        if not (self.beam > 0 and self.lattice_beam > 0 and self.acoustic_scale > 0 and self.max_active > 1):
            raise ValueError(f"beams and the acoustic scale must be above 0, max_active above 1, not {self}")


@dataclass(frozen=True)
class Hypothesis:
    """What was recognised.

    Args:
        words: as they are spelled in the graph.
        graph, acoustic: costs, the acoustic one scaled.
        times: first frame of each word and the one after its last (see ``decode.word_times``); empty where it is not known.
        complete: whether the path ends where a sentence may end. If no path within the beam does, the best one is given as it is.
    """

    words: tuple[str, ...]
    graph: float
    acoustic: float
    times: tuple[tuple[int, int], ...] = ()
    complete: bool = True

    @property
    def cost(self) -> float:
        return self.graph + self.acoustic


NOTHING = Hypothesis((), math.inf, math.inf, (), False)


# ---- the graph as arrays ----

_MAGIC, _HEADER = 2125659606, "<iiQqqq"  # of OpenFst's files; the header ends with start, states, arcs
_STATE = np.dtype([("final", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("silent", "<u4"), ("mute", "<u4")])
_ARC = np.dtype([("label", "<i4"), ("word", "<i4"), ("weight", "<f4"), ("to", "<i4")])


@dataclass(frozen=True, eq=False)
class Network:
    """A graph. The arcs of state s are ``first[s]`` to ``first[s + 1]``; those without a label are the first ``silent[s]`` of them.

    Args:
        final: cost of ending in a state; inf where no path may end.
        label, word, weight, to: of each arc; 0 is no label or no word.
        costs, ahead: a number a state, all inf between two uses.
    """

    start: int
    final: NDArray[np.float32]
    first: Ints
    silent: Ints
    label: NDArray[np.int32]
    word: NDArray[np.int32]
    weight: NDArray[np.float32]
    to: Ints
    costs: Floats
    ahead: tuple[Floats, Floats]

    @classmethod
    def read(cls, path: Path) -> "Network":
        """From an OpenFst file of type "const" whose arcs are sorted by label."""
        try:
            with path.open("rb") as file:
                (magic,) = struct.unpack("<i", file.read(4))
                kinds = [file.read(struct.unpack("<i", file.read(4))[0]) for _ in range(2)] if magic == _MAGIC else []
                version, flags, _, start, size, count = struct.unpack(_HEADER, file.read(struct.calcsize(_HEADER)))
                if kinds != [b"const", b"standard"] or version != 2 or flags:
                    raise ValueError(f"magic number {magic}, type {kinds}, version {version}, flags {flags}")
                states, arcs = np.fromfile(file, _STATE, size), np.fromfile(file, _ARC, count)
                if len(states) < size or len(arcs) < count or start < 0:
                    raise ValueError(f"{len(states):,} of {size:,} states, {len(arcs):,} of {count:,} arcs, start {start}")
                place = np.arange(count) - np.repeat(states["first"].astype(np.int64), states["arcs"])
                if not np.array_equal(place < np.repeat(states["silent"], states["arcs"]), arcs["label"] == 0):
                    raise ValueError("its arcs are not sorted by label")
        except (OSError, ValueError, struct.error, MemoryError) as error:
            raise DataError(f"{path} is no graph that can be searched ({one_line(error)}); build it again") from error
        costs, *ahead = (np.full(size, np.inf) for _ in range(3))
        return cls(
            start=start,
            final=states["final"].copy(),
            first=np.append(states["first"], count).astype(np.int64),
            silent=states["silent"].astype(np.int64),
            label=arcs["label"].copy(),
            word=arcs["word"].copy(),
            weight=arcs["weight"].copy(),
            to=arcs["to"].astype(np.int64),
            costs=costs,
            ahead=(ahead[0], ahead[1]),
        )

    def labelled(self, states: Ints) -> tuple[Ints, Ints]:
        """The arcs with a label that leave states, and the place in ``states`` that each leaves."""
        return _ranges(self.first[states] + self.silent[states], self.first[states + 1])

    def unlabelled(self, states: Ints) -> tuple[Ints, Ints]:
        return _ranges(self.first[states], self.first[states] + self.silent[states])


def _ranges(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers from first to end of each range, and the range each is in."""
    sizes = end - first
    return np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()), np.repeat(np.arange(len(sizes)), sizes)


# ---- search ----


@dataclass(frozen=True, eq=False)
class _Frame:
    """The states in front of a frame and the costs of reaching them."""

    states: Ints
    costs: Floats


def _forward(network: Network, scores: NDArray[np.float32], search: Search) -> list[_Frame]:
    """What is kept in front of each frame, and after the last."""
    costs = network.costs
    frames = []
    costs[network.start] = 0.0
    states = _closed(network, np.array([network.start]), math.inf)
    for row in scores:
        frames.append(frame := _kept(costs, states, search))
        arcs, place = network.labelled(frame.states)
        new = frame.costs[place] + network.weight[arcs] - row[network.label[arcs] - 1]
        limit = new.min(initial=math.inf) + search.beam
        near = new < limit
        to, new = network.to[arcs[near]], new[near]
        np.minimum.at(costs, to, new)
        states = _closed(network, np.unique(to[costs[to] == new]), limit)
    frames.append(_Frame(states, costs[states]))
    costs[states] = math.inf
    return frames


def _kept(costs: Floats, states: Ints, search: Search) -> _Frame:
    """The states within the beam, and at most so many; ``costs`` is cleared."""
    here = costs[states]
    costs[states] = math.inf
    limit = here.min(initial=math.inf) + search.beam
    if len(here) > search.max_active:
        limit = min(limit, np.partition(here, search.max_active - 1)[search.max_active - 1])
    near = here <= limit
    return _Frame(states[near], here[near])


def _closed(network: Network, states: Ints, limit: float) -> Ints:
    """States and those reached from them without a label, for less than a limit; their costs are in ``network.costs``."""
    costs, found, new = network.costs, [states], states
    while len(new):
        arcs, place = network.unlabelled(new)
        cost, to = costs[new][place] + network.weight[arcs], network.to[arcs]
        better = (cost < limit) & (cost < costs[to])
        cost, to = cost[better], to[better]
        np.minimum.at(costs, to, cost)
        new = np.unique(to)
        found.append(new)
    return np.unique(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class _Links:
    """Arcs of the graph from a state to a state, and their acoustic costs."""

    source: Ints
    target: Ints
    arcs: Ints
    acoustic: Floats


@dataclass(frozen=True, eq=False)
class _Slice:
    """What lies within the lattice beam in front of a frame: states, arcs between them, arcs to the states of the next slice."""

    states: Ints
    silent: _Links
    onward: _Links


_NONE = np.zeros(0, np.int64)
_NO_LINKS = _Links(_NONE, _NONE, _NONE, np.zeros(0))


def _backward(network: Network, frames: Sequence[_Frame], scores: NDArray[np.float32], ends: Floats, limit: float) -> list[_Slice]:
    """The slices in front of all frames and after the last. ``ends`` are the costs of ending in the last states."""
    ahead, later = network.ahead
    ahead[frames[-1].states] = ends
    slices = [_slice(network, frames[-1], ahead, limit, _NO_LINKS)]
    for t in range(len(scores) - 1, -1, -1):
        ahead, later = later, ahead
        frame = frames[t]
        arcs, place = network.labelled(frame.states)
        to, acoustic = network.to[arcs], -scores[t, network.label[arcs] - 1].astype(np.float64)
        cost = network.weight[arcs] + acoustic + later[to]
        near = frame.costs[place] + cost <= limit
        source = frame.states[place[near]]
        np.minimum.at(ahead, source, cost[near])
        later[frames[t + 1].states] = math.inf
        slices.append(_slice(network, frame, ahead, limit, _Links(source, to[near], arcs[near], acoustic[near])))
    ahead[frames[0].states] = math.inf
    return slices[::-1]


def _slice(network: Network, frame: _Frame, ahead: Floats, limit: float, onward: _Links) -> _Slice:
    """Complete ``ahead``, the costs of going on from the states of a frame, by their arcs without a label; keep what is near."""
    arcs, place = network.unlabelled(frame.states)
    source, to, weight = frame.states[place], network.to[arcs], network.weight[arcs].astype(np.float64)
    while (weight + ahead[to] < ahead[source]).any():
        np.minimum.at(ahead, source, weight + ahead[to])
    near = frame.costs[place] + weight + ahead[to] <= limit
    silent = _Links(source[near], to[near], arcs[near], np.zeros(int(near.sum())))
    return _Slice(frame.states[frame.costs + ahead[frame.states] <= limit], silent, onward)


def lattice(network: Network, words: Sequence[str], scores: NDArray[np.float32], search: Search) -> "Lattice":
    """All paths within the lattice beam of the best, among those that the beam search reaches.

    It holds the states of all frames: 16 bytes each, so 128 MB for 16 seconds with 5000 states a frame.

    Args:
        words: by their number in the graph.
        scores: (t, k), the negative acoustic cost of each label.
    """
    frames = _forward(network, scores, search)
    last = frames[-1]
    ends = network.final[last.states].astype(np.float64)
    complete = bool(np.isfinite(ends).any())
    if not complete:
        ends = np.zeros(len(ends))
    limit = float((last.costs + ends).min(initial=math.inf)) + search.lattice_beam
    if not math.isfinite(limit):
        return Lattice.empty(search.acoustic_scale)
    slices = _backward(network, frames, scores, ends, limit)
    final = ends[np.searchsorted(last.states, slices[-1].states)]
    return _joined(network, words, slices, final, search.acoustic_scale, complete)


def _joined(
    network: Network, words: Sequence[str], slices: Sequence[_Slice], final: Floats, scale: float, complete: bool
) -> "Lattice":
    base = np.cumsum([0, *(len(one.states) for one in slices)])
    arcs, costs = [], []
    for t, one in enumerate(slices):
        following = slices[t + 1].states if t + 1 < len(slices) else one.states
        for links, there, states in ((one.silent, base[t], one.states), (one.onward, base[t + 1], following)):
            # on the very limit rounding may have kept an arc and not its end
            kept = np.isin(links.source, one.states) & np.isin(links.target, states)
            source = base[t] + np.searchsorted(one.states, links.source[kept])
            target = there + np.searchsorted(states, links.target[kept])
            arcs.append(np.stack([source, target, network.word[links.arcs[kept]]], axis=1))
            costs.append(np.stack([network.weight[links.arcs[kept]], links.acoustic[kept]], axis=1))
    joined, ends = np.concatenate(arcs), np.full(base[-1], np.inf)
    ends[base[-2] :] = final
    used, places = np.unique(np.append(0, joined[:, 2]), return_inverse=True)
    joined[:, 2] = places[1:]
    start = int(np.searchsorted(slices[0].states, network.start))
    return Lattice(tuple(words[w] for w in used), joined, np.concatenate(costs), ends, start, scale, complete)


# ---- lattices ----

_Entry = tuple[float, float, int]  # cost in the graph, acoustic cost, number of the words before


@dataclass(frozen=True, eq=False)
class Lattice:
    """Paths of words, with their costs.

    Args:
        words: by the numbers of the arcs; number 0 is no word.
        arcs: from, to, word (arcs, 3).
        costs: of the graph, and acoustic (arcs, 2).
        ends: cost of ending in each state; inf where no path ends.
        start: the first state.
        scale: of the acoustic costs.
        complete: whether its paths end where a sentence may end.
    """

    words: tuple[str, ...]
    arcs: Ints
    costs: Floats
    ends: Floats
    start: int
    scale: float
    complete: bool

    @classmethod
    def empty(cls, scale: float) -> "Lattice":
        return cls(("",), np.zeros((0, 3), np.int64), np.zeros((0, 2)), np.full(1, np.inf), 0, scale, False)

    def nbest(self, n: int = 1, acoustic_scale: float | None = None) -> list[Hypothesis]:
        """The n most probable word sequences, or fewer, each once and with its best path, best first.

        Args:
            acoustic_scale: another one than in the search. Eesen takes the best of several; a lattice has what is near the best
                under its own scale, so under a distant one the true best may be missing.
        """
        if n < 1:
            raise ValueError(f"cannot list {n} word sequences")
        ratio = 1.0 if acoustic_scale is None else acoustic_scale / self.scale
        histories = _Histories()
        into: defaultdict[int, list[int]] = defaultdict(list)
        for arc, to in enumerate(self.arcs[:, 1].tolist()):
            into[to].append(arc)
        arcs, costs, ends = self.arcs.tolist(), (self.costs * [1.0, ratio]).tolist(), self.ends.tolist()
        best: dict[int, list[_Entry]] = {}
        finals: list[_Entry] = []
        for state in self._order(into):
            entries = [(0.0, 0.0, 0)] if state == self.start else []
            for arc in into[state]:
                (source, _, word), (graph, acoustic) = arcs[arc], costs[arc]
                entries += [(g + graph, a + acoustic, histories.longer(h, word)) for g, a, h in best[source]]
            best[state] = _distinct(entries, n)
            if ends[state] < math.inf:
                finals += [(g + ends[state], a, h) for g, a, h in best[state]]
        return [
            Hypothesis(tuple(self.words[w] for w in histories.words(h)), g, a, (), self.complete)
            for g, a, h in _distinct(finals, n)
        ]

    def _order(self, into: Mapping[int, Sequence[int]]) -> Iterator[int]:
        """The states, each after those that arcs come from."""
        sources, targets = self.arcs[:, 0].tolist(), self.arcs[:, 1].tolist()
        waits = [len(into[state]) for state in range(len(self.ends))]
        leaving: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in zip(sources, targets, strict=True):
            leaving[source].append(target)
        ready = [state for state, number in enumerate(waits) if not number]
        while ready:
            yield (state := ready.pop())
            for target in leaving[state]:
                waits[target] -= 1
                if not waits[target]:
                    ready.append(target)


def _distinct(entries: Sequence[_Entry], n: int) -> list[_Entry]:
    """The n cheapest with different words, cheapest first."""
    found: dict[int, _Entry] = {}
    for entry in sorted(entries, key=lambda e: e[0] + e[1]):
        if entry[2] not in found:
            found[entry[2]] = entry
            if len(found) == n:
                break
    return list(found.values())


class _Histories:
    """Word sequences by number; number 0 is the empty one."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = [(0, 0)]  # of all words but the last, and the last
        self.numbers: dict[tuple[int, int], int] = {}

    def longer(self, history: int, word: int) -> int:
        if not word:
            return history
        number = self.numbers.setdefault((history, word), len(self.pairs))
        if number == len(self.pairs):
            self.pairs.append((history, word))
        return number

    def words(self, history: int) -> list[int]:
        found = []
        while history:
            history, word = self.pairs[history]
            found.append(word)
        return found[::-1]
