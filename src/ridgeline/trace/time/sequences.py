"""Sequences of kernels that recur, and chains that could be one kernel: `kernel_sequences(trace)`.

A sequence is two kernels or more, one right after the other on one stream. It crosses no gap of a
millisecond or more, no copy and no fill, and no border of a CUDA graph: kernels of one launch of a
graph follow each other, others do not follow them.

All sequences of one length are numbered at once, from those that are one shorter, so that a million
kernels take a sort per length. Of the candidates the one that covers most time is taken first, and
its kernels are out of reach for the others: the times of the sequences add up to no more than the
time of all kernels. A sequence that only repeats a shorter one gives way to it.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Mask, Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.fusion import FusionCandidate, fusion_candidates
from ridgeline.trace.time.kernels import without_overruns
from ridgeline.trace.windows import GpuRecord, View, views

LARGEST_GAP_US = 1000.0
"""A stream that is idle for so long begins something new."""
LONGEST = 8
"""Kernels of the longest sequence that is looked for."""
_CANDIDATES = 4
"""For each row that is asked for, so many sequences of each length compete."""


class KernelSequence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels that follow each other again and again."""

    kernels: list[str]
    """Their names, in order."""
    length: int
    count: int
    """How often, without overlaps among these and with the sequences above."""
    total_us: float
    share: float
    """The share of the time of all kernels."""
    mean_us: float
    """The time of one, without the gaps between its kernels."""
    mean_gap_us: float
    """The gaps between the kernels of one."""
    first_us: float
    """When the first of them begins."""


class RankSequences(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What recurs on one GPU."""

    kernels: int
    kernels_us: float
    """The time of all kernels."""
    sequences: list[KernelSequence]
    candidates: list[FusionCandidate]
    """Chains of kernels that one kernel could do, the most worthwhile first."""


class _Chain(NamedTuple):
    """Kernels stream by stream, each by start."""

    rows: Ints
    names: Ints
    """Their names, numbered from zero."""
    us: Floats
    gaps_us: Floats
    """The time from each kernel's end to the start of the one after it."""
    follows: Mask
    """Does the kernel after it belong to the same stretch?"""


def kernel_sequences(
    trace: Trace, window: str = "trace", *, longest: int = LONGEST, top: int = 12
) -> list[RankSequences]:
    """The `top` sequences of up to `longest` kernels on each GPU, and the chains to fuse."""
    return [_sequences_of(view, longest, top) for view in views(trace, window)]


def _sequences_of(view: View, longest: int, top: int) -> RankSequences:
    chain = _chain(view)
    total = float(chain.us.sum())
    found = _best(view, chain, _frequent(chain, longest, top * _CANDIDATES), top)
    return RankSequences(
        **view.head(),
        kernels=len(chain.rows),
        kernels_us=total,
        sequences=found,
        candidates=fusion_candidates(view, chain.rows, chain.us, chain.follows)[:top],
    )


def _chain(view: View) -> _Chain:
    trace, gpu = view.trace, view.trace.gpu
    durations = without_overruns(view)
    order = np.lexsort((gpu.start_us[view.rows], gpu.stream[view.rows]))
    rows, us = view.rows[order], durations[order]
    start = gpu.start_us[rows]
    gaps = np.append(start[1:] - (start + us)[:-1], np.inf)
    follows = np.append(gpu.stream[rows][1:] == gpu.stream[rows][:-1], False)
    follows &= gaps < LARGEST_GAP_US
    kernels = gpu.kind[rows] == Kind.KERNEL
    follows[:-1] &= kernels[:-1] & kernels[1:]
    launch = _graph_launches(trace)[rows]
    follows[:-1] &= launch[:-1] == launch[1:]
    # What is left out ends a stretch, so nothing is joined over it.
    used = distinct(gpu.name[rows[kernels]])
    names = np.searchsorted(used, gpu.name[rows[kernels]]).astype(np.int64)
    return _Chain(
        rows[kernels], names, us[kernels], np.maximum(gaps, 0.0)[kernels], follows[kernels]
    )


def _graph_launches(trace: Trace) -> Ints:
    """The launch of the graph that each GPU event came with; ABSENT for all other events."""
    calls = launch_rows(trace)
    named = np.array(["GraphLaunch" in name for name in trace.names], bool)
    in_graph = (calls != ABSENT) & named[trace.host.name[calls]] if len(trace.host) else calls > 0
    in_graph |= trace.gpu.graph > 0
    # Without its launch in the trace, the correlation tells one replay from the next.
    return np.where(in_graph, trace.gpu.correlation + 1, ABSENT)


class _Candidate(NamedTuple):
    """A sequence by its first place in the chain, and the most time that it can cover."""

    us: float
    place: int
    length: int


def _frequent(chain: _Chain, longest: int, most: int) -> list[_Candidate]:
    """Sequences that occur twice or more: of each length those with most time, overlaps counted."""
    found: list[_Candidate] = []
    numbers, valid = chain.names, np.ones(len(chain.names), bool)
    ends = np.append(0.0, np.cumsum(chain.us))
    many = int(numbers.max(initial=0)) + 1
    for length in range(2, longest + 1):
        size = len(chain.names) - length + 1
        if size < 2:
            break
        valid = valid[:size] & chain.follows[length - 2 : length - 2 + size]
        places = np.flatnonzero(valid)
        keys = numbers[places] * many + chain.names[places + length - 1]
        order = np.argsort(keys, kind="stable")
        first = np.append(True, np.diff(keys[order]) != 0)[: len(order)]
        groups = np.cumsum(first) - 1
        numbers = np.full(size, ABSENT, np.int64)
        numbers[places[order]] = groups
        heads = places[order][first]
        counts = np.bincount(groups)
        times = np.bincount(groups, weights=(ends[places + length] - ends[places])[order])
        repeated = np.flatnonzero(counts > 1)
        if not len(repeated):
            break
        best = repeated[np.argsort(-times[repeated], kind="stable")[:most]]
        found += [
            _Candidate(float(times[group]), int(heads[group]), length)
            for group in best.tolist()
            if not _repeats(chain.names[heads[group] : heads[group] + length])
        ]
    return found


def _repeats(names: Ints) -> bool:
    """Is it a shorter sequence, or one kernel, several times over? Two of one kernel are not."""
    return any(
        len(names) % period == 0
        and len(names) > 2
        and bool((names[period:] == names[:-period]).all())
        for period in range(1, len(names) // 2 + 1)
    )


def _best(
    view: View, chain: _Chain, candidates: list[_Candidate], top: int
) -> list[KernelSequence]:
    """Sequences by the time that they cover, each kernel in one of them at most."""
    free = np.ones(len(chain.names), bool)
    waiting = [(-one.us, -one.length, one.place) for one in candidates]
    heapq.heapify(waiting)
    total = float(chain.us.sum())
    found: list[KernelSequence] = []
    while waiting and len(found) < top:
        _, length, place = heapq.heappop(waiting)
        places = _occurrences(chain, place, -length, free)
        within = places[:, None] + np.arange(-length)
        us = float(chain.us[within].sum())
        if len(places) < 2:
            continue
        if waiting and -us > waiting[0][0]:
            heapq.heappush(waiting, (-us, length, place))
            continue
        free[within] = False
        gaps = float(chain.gaps_us[within[:, :-1]].sum())
        names = view.trace.gpu.name[chain.rows[place : place - length]].tolist()
        found.append(
            KernelSequence(
                kernels=[view.trace.names[name] for name in names],
                length=-length,
                count=len(places),
                total_us=us,
                share=us / total if total > 0 else 0.0,
                mean_us=us / len(places),
                mean_gap_us=gaps / len(places),
                first_us=float(view.trace.gpu.start_us[chain.rows[places[0]]]),
            )
        )
    return found


def _occurrences(chain: _Chain, place: int, length: int, free: Mask) -> Ints:
    """Where the sequence at a place occurs among free kernels, without overlaps."""
    names = chain.names[place : place + length]
    places = np.flatnonzero(chain.names[: len(chain.names) - length + 1] == names[0])
    for offset in range(length):
        places = places[free[places + offset] & (chain.names[places + offset] == names[offset])]
        if offset < length - 1:
            places = places[chain.follows[places + offset]]
    # Overlaps are between neighbours: in each run of them every one that the last leaves room for.
    if len(places) < 2 or (np.diff(places) >= length).all():
        return places
    kept, end = [], -1
    for one in places.tolist():
        if one >= end:
            kept.append(one)
            end = one + length
    return np.array(kept, np.int64)
