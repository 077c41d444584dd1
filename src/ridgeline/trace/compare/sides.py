"""One side of a comparison: the ranks of a job, or several repeats of the job.

The traces of a side that have different ranks are one run; those that have the same rank, or none,
are repeats of it, in the order in which they were given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.compare.times import (
    OperatorWork,
    Path,
    RankTimes,
    WorkTimes,
    sum_of_times,
    sum_of_work,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRepeats:
    """What is held against another: repeats of a job, each with a trace per rank."""

    jobs: tuple[tuple[RankTimes, ...], ...]
    """The runs, each with its ranks in order."""
    whole: RankTimes
    """All of it together."""

    @classmethod
    def of(cls, traces: Sequence[RankTimes]) -> JobRepeats:
        """The side that some traces make.

        Raises:
            InputError: a rank is there more often than another.
        """
        ranks: dict[int | None, list[RankTimes]] = {}
        for trace in traces:
            ranks.setdefault(trace.rank, []).append(trace)
        repeats = {rank: len(own) for rank, own in ranks.items()}
        fewest, most = min(repeats.values()), max(repeats.values())
        if fewest != most:
            few, many = (
                next(rank for rank, own in repeats.items() if own == count)
                for count in (fewest, most)
            )
            raise InputError(
                f"{ranks[many][-1].file}: the {most}. trace of rank {many}, where rank {few} has "
                f"{fewest}; give whole runs of a job, with a trace of every rank"
            )
        jobs = tuple(
            tuple(own[number] for _, own in sorted(ranks.items(), key=lambda one: one[0] or 0))
            for number in range(most)
        )
        return cls(jobs=jobs, whole=joint_times(traces))

    @property
    def ranks(self) -> tuple[JobRepeats, ...]:
        """Each rank alone, with its repeats."""
        return tuple(JobRepeats.of(own) for own in zip(*self.jobs, strict=True))


def joint_times(traces: Sequence[RankTimes]) -> RankTimes:
    """The work of several traces as if it were that of one; it has no steps and no window."""
    if len(traces) == 1:
        return traces[0]
    kernels: dict[str, list[WorkTimes]] = {}
    operators: dict[Path, list[OperatorWork]] = {}
    classes: dict[str, list[WorkTimes]] = {}
    following: Counter[tuple[str, str]] = Counter()
    for trace in traces:
        for name, times in trace.kernels.items():
            kernels.setdefault(name, []).append(times)
        for path, work in trace.operators.items():
            operators.setdefault(path, []).append(work)
        for name, times in trace.classes.items():
            classes.setdefault(name, []).append(times)
        following.update(trace.following)
    devices = {trace.device for trace in traces}
    return RankTimes(
        file=f"{traces[0].file} and {len(traces) - 1} more",
        rank=traces[0].rank if len({trace.rank for trace in traces}) == 1 else None,
        device=devices.pop() if len(devices) == 1 else None,
        on_gpu=any(trace.on_gpu for trace in traces),
        kernels={name: sum_of_times(own) for name, own in kernels.items()},
        classes={name: sum_of_times(own) for name, own in classes.items()},
        operators={path: sum_of_work(own) for path, own in operators.items()},
        following=dict(following),
        step_lengths_us=np.zeros(0),
        window_us=0.0,
        noise=None,
        idle_us=sum(trace.idle_us for trace in traces),
    )
