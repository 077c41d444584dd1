"""The jobs of a trace, as columns: when each was submitted, how long it runs, how much it asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.wants import PLAIN, JobWants


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs in the order of their submission; ties keep the order of the file.

    Every array has one entry per job.
    """

    names: tuple[str, ...]
    submit_seconds: NDArray[np.float64]
    duration_seconds: NDArray[np.float64]
    """How long a job runs once it has all its GPUs and is never interrupted."""
    num_gpus: NDArray[Any]
    """Whole numbers, but where jobs share GPUs; an elastic job's duration is that with so many."""
    queues: tuple[str, ...]
    """The tenant, virtual cluster or partition that a job belongs to."""
    priority: NDArray[np.int64]
    """Larger is more urgent."""
    wants: tuple[JobWants, ...] = ()
    """What else each asks for; empty where none asks for anything else."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpu_seconds(self) -> float:
        """The work of all jobs, in GPU-seconds."""
        return float(self.num_gpus @ self.duration_seconds)

    def chosen(self, places: Sequence[int] | NDArray[np.int64]) -> Jobs:
        """Some of the jobs, in the order of `places`."""
        at = np.asarray(places, dtype=np.int64)
        return Jobs(
            names=tuple(self.names[one] for one in at),
            submit_seconds=self.submit_seconds[at],
            duration_seconds=self.duration_seconds[at],
            num_gpus=self.num_gpus[at],
            queues=tuple(self.queues[one] for one in at),
            priority=self.priority[at],
            wants=tuple(self.wants[one] for one in at) if self.wants else (),
        )

    def of_queue(self, name: str) -> Jobs:
        """The jobs of one queue."""
        return self.chosen([place for place, one in enumerate(self.queues) if one == name])

    def redrawn(self, seed: int) -> Jobs:
        """Another trace like this one: blocks of consecutive jobs, with the gaps between them.

        Circular block bootstrap (Politis and Romano 1992) of a twentieth of the jobs a block, so
        that bursts and the habits of users within a block stay.
        """
        count = len(self)
        block = max(1, count // BLOCKS)
        starts = np.random.default_rng(seed).integers(0, count, -(-count // block))
        places = ((starts[:, None] + np.arange(block)) % count).ravel()[:count]
        gaps = np.diff(self.submit_seconds, prepend=self.submit_seconds[0])
        drawn = self.chosen(places)
        return replace(drawn, names=self.names, submit_seconds=np.cumsum(gaps[places]))

    def with_one_more(self, *, at_seconds: float, duration_seconds: float, num_gpus: int) -> Jobs:
        """The same jobs and another, which is called `the added job`."""
        place = int(np.searchsorted(self.submit_seconds, at_seconds, side="right"))
        queue = self.queues[max(0, place - 1)] if self.queues else ""
        return Jobs(
            names=(*self.names[:place], ADDED, *self.names[place:]),
            submit_seconds=np.insert(self.submit_seconds, place, at_seconds),
            duration_seconds=np.insert(self.duration_seconds, place, duration_seconds),
            num_gpus=np.asarray(np.insert(self.num_gpus, place, num_gpus)),
            queues=(*self.queues[:place], queue, *self.queues[place:]),
            priority=np.insert(self.priority, place, 0),
            wants=(*self.wants[:place], PLAIN, *self.wants[place:]) if self.wants else (),
        )


ADDED = "the added job"
BLOCKS = 20


def seed_of_redraw(seed: int, number: int) -> int:
    """A seed for one of the redrawn traces, so that two runs with other seeds share none."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def jobs_in_order(
    *,
    names: Sequence[str],
    submit_seconds: Sequence[float],
    duration_seconds: Sequence[float],
    num_gpus: Sequence[float],
    queues: Sequence[str] | None = None,
    priority: Sequence[int] | None = None,
    wants: Sequence[JobWants] = (),
) -> Jobs:
    """Jobs sorted by submission; those of one moment stay in the order in which they were given.

    >>> jobs = jobs_in_order(
    ...     names=["one", "two"], submit_seconds=[5, 0], duration_seconds=[60, 30], num_gpus=[1, 8]
    ... )
    >>> jobs.names, jobs.gpu_seconds
    (('two', 'one'), 300.0)
    """
    count = len(names)
    gpus = np.asarray(num_gpus, dtype=np.float64)
    unsorted = Jobs(
        names=tuple(names),
        submit_seconds=np.asarray(submit_seconds, dtype=np.float64),
        duration_seconds=np.asarray(duration_seconds, dtype=np.float64),
        num_gpus=gpus.astype(np.int64) if (gpus == np.floor(gpus)).all() else gpus,
        queues=tuple(queues) if queues is not None else ("",) * count,
        priority=np.asarray(priority if priority is not None else [0] * count, dtype=np.int64),
        wants=tuple(wants) if any(one != PLAIN for one in wants) else (),
    )
    return unsorted.chosen(np.argsort(unsorted.submit_seconds, kind="stable"))
