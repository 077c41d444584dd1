"""Which rank arrives last at collectives, and what waiting for it costs: `stragglers(ranks)`.

    transfer    last end − last start: what the links needed once everybody was there
    skew wait   last start − own start: what a rank stood waiting for the last one

Bandwidths follow nccl-tests (doc/PERFORMANCE.md): algorithm = bytes / transfer, bus = that times
the factor of the collective, so that it compares with the link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from ridgeline.trace.communication.collectives import bus_factor, kind_of, message_bytes
from ridgeline.trace.communication.matching import (
    AlignedRanks,
    MatchedCollective,
    RankCollectives,
    align_ranks,
)
from ridgeline.trace.intervals import measure, union


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank waited, and made others wait."""

    rank: int
    file: str
    last_arrivals: int
    """Collectives in which it came last."""
    skew_wait_us: float
    """Spent waiting for others."""
    caused_wait_us: float
    """Spent by all others on waiting for it."""
    communication_us: float
    clock_offset_us: float


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One collective across ranks."""

    name: str
    ranks: int
    start_us: float
    """First arrival, from the start of the first trace's columns."""
    transfer_us: float
    skew_us: float
    """From the first arrival to the last."""
    last_rank: int
    bytes: int | None
    algorithm_bytes_per_second: float | None
    bus_bytes_per_second: float | None


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """Who is late, and what it costs."""

    ranks: list[RankWait]
    collectives: list[CollectiveRow]
    matched: int
    transfer_us: float
    """The sum over all collectives."""
    skew_us: float
    """Sum over collectives of the longest wait."""
    waited_us: float
    """The waits of all ranks together."""
    worst_rank: int | None
    """The one that others waited for the longest."""
    message_histogram: dict[str, int]
    """Upper bound of the size in bytes (powers of two) → number of messages."""
    missing_ranks: list[int]
    warnings: list[str]


def stragglers(ranks: Sequence[RankCollectives], aligned: AlignedRanks | None = None) -> Stragglers:
    """Who arrives last, and how much of communication is waiting; `aligned` saves the matching."""
    found = align_ranks(ranks) if aligned is None else aligned
    names = [rank.name(position) for position, rank in enumerate(ranks)]
    late: dict[int, int] = defaultdict(int)
    waits: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    inside: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one in found.matched:
        late[one.last] += 1
        until = one.start_us + one.wait_us
        for position, start, end, waited in zip(
            one.positions, one.start_us.tolist(), one.end_us.tolist(), until.tolist(), strict=True
        ):
            waits[one.last, position].append((start, waited))
            inside[position].append((start, end))
    waited = {
        position: _together(span for (_, by), spans in waits.items() if by == position
                            for span in spans)
        for position in range(len(ranks))
    }  # fmt: skip
    caused = {
        position: sum(_together(spans) for (last, _), spans in waits.items() if last == position)
        for position in range(len(ranks))
    }
    rows = [
        RankWait(
            rank=names[position], file=rank.file, last_arrivals=late[position],
            skew_wait_us=waited[position], caused_wait_us=caused[position],
            communication_us=_together(inside[position]),
            clock_offset_us=found.clock_offset_us[position],
        )
        for position, rank in enumerate(ranks)
    ]  # fmt: skip
    worst = max(rows, key=lambda row: row.caused_wait_us, default=None)
    collectives = [_row(one, names) for one in found.matched]
    return Stragglers(
        ranks=sorted(rows, key=lambda row: -row.caused_wait_us),
        collectives=collectives,
        matched=len(found.matched),
        transfer_us=sum(row.transfer_us for row in collectives),
        skew_us=sum(row.skew_us for row in collectives),
        waited_us=sum(waited.values()),
        worst_rank=worst.rank if worst is not None and worst.caused_wait_us > 0 else None,
        message_histogram=_histogram(collectives),
        missing_ranks=list(found.missing_ranks),
        warnings=list(found.warnings),
    )


def _together(spans: Iterable[tuple[float, float]]) -> float:
    """How long these last: a send and a receive that stand beside each other wait once."""
    times = np.array(list(spans)).reshape(-1, 2)
    return measure(union(times[:, 0], times[:, 1]))


def _row(one: MatchedCollective, names: Sequence[int]) -> CollectiveRow:
    size = None if one.collective is None else message_bytes(one.collective)
    algorithm = bus = None
    if size and one.transfer_us > 0 and one.collective is not None:
        algorithm = size / (one.transfer_us * 1e-6)
        ranks = one.collective.group_size or len(one.positions)
        factor = bus_factor(kind_of(one.collective.name), ranks)
        bus = None if factor is None else algorithm * factor
    return CollectiveRow(
        name=one.name if one.collective is None else one.collective.name,
        ranks=len(one.positions),
        start_us=float(one.start_us.min()),
        transfer_us=one.transfer_us,
        skew_us=float(one.start_us.max() - one.start_us.min()),
        last_rank=names[one.last],
        bytes=size,
        algorithm_bytes_per_second=algorithm,
        bus_bytes_per_second=bus,
    )


def _histogram(rows: Sequence[CollectiveRow]) -> dict[str, int]:
    sizes = [row.bytes for row in rows if row.bytes]
    counts: dict[int, int] = defaultdict(int)
    for size in sizes:
        counts[1 << (size - 1).bit_length()] += 1
    return {str(bound): counts[bound] for bound in sorted(counts)}
