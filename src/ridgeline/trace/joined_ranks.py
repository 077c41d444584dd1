"""What ranks brought to the critical path, on one clock, with the collectives they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.rank_path import RankPath
from ridgeline.trace.ranks import Job, Matched, job


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A matched collective; one rank waits in it for another."""

    matched: Matched
    events: tuple[int, ...]
    """For each of its ranks the place among the rank's collectives."""

    @property
    def arrived_us(self) -> float:
        """When the last rank came, on the common clock."""
        return float(self.matched.start_us.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRanks:
    """Ranks on one clock."""

    paths: Sequence[RankPath]
    shift_us: tuple[float, ...]
    origin_us: float
    end_us: float
    last: int
    """Position of the rank that ends last."""
    meetings: Sequence[Meeting]
    warnings: tuple[str, ...]


def joined_ranks(paths: Sequence[RankPath]) -> JoinedRanks:
    """Match collectives, align clocks, and find the window."""
    working = [position for position, path in enumerate(paths) if len(path.walks)]
    if len(paths) > 1 and working:
        whole = job([path.collectives for path in paths])
    else:
        whole = Job(shift_us=(0.0,) * len(paths), clock_offset_us=(0.0,) * len(paths),
                    matched=(), missing_ranks=(), warnings=())  # fmt: skip
    warnings = list(whole.warnings)
    if len(paths) > 1 and working and not whole.matched:
        warnings.append("no collective joins the ranks: the path is that of the one that ends last")
    ends = {p: float(paths[p].walks.time_us[-1]) + whole.shift_us[p] for p in working}
    begins = [paths[p].walks.origin_us + whole.shift_us[p] for p in working]
    return JoinedRanks(
        paths=paths,
        shift_us=whole.shift_us,
        origin_us=min(begins, default=0.0),
        end_us=max(ends.values(), default=0.0),
        last=max(ends, key=lambda position: (ends[position], position), default=0),
        meetings=[_meeting(paths, one) for one in whole.matched],
        warnings=tuple(warnings),
    )


def _meeting(paths: Sequence[RankPath], matched: Matched) -> Meeting:
    places = tuple(
        int(np.searchsorted(paths[position].collectives.rows, event))
        for position, event in zip(matched.positions, matched.events, strict=True)
    )
    return Meeting(matched=matched, events=places)
