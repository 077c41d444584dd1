"""How long a job would wait if it were submitted now, from what a cluster is doing.

Nobody knows how long running jobs still run: it is drawn from the runs that have ended, of those
that lasted longer than the job has by now (where none did, the longest again), and is cut where the
job's time limit ends it. So are the times of those that wait. Each drawing is played on the nodes
there are, those that run first, then those that wait in their order, then the job; the 10th to 90th
percentile of its waits is the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.queue_now import AskedNow, HeldNow, QueueNow
from ridgeline.queue.simulate import play_queue, unfit_jobs

DRAWN = 200
FEWEST = 5
"""Ended runs without which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWait:
    """The wait of one job."""

    num_gpus: int
    p10_seconds: float
    p50_seconds: float
    p90_seconds: float
    running: int
    """Workloads that hold GPUs."""
    ahead: int
    """Workloads that wait before it."""
    ended: int
    """Runs that the times are drawn from."""


def expected_wait(
    queue: QueueNow, num_gpus: int, *, limit_seconds: float | None = None, seed: int = 0
) -> ExpectedWait:
    """The wait of a job that is submitted now.

    Args:
        queue: What runs and waits, and runs that have ended.
        num_gpus: GPUs of the job.
        limit_seconds: Its time limit, by which the cluster plans; None: it has none.
        seed: Of what is drawn.

    Raises:
        InputError: Too few runs have ended to say anything, or the job fits no empty cluster.
    """
    sizes = queue.node_gpus
    if not sizes:
        raise InputError("--state: no node with GPUs takes jobs; nothing can be said of waiting")
    ended = np.array(sorted(queue.ended_seconds))
    if len(ended) < FEWEST:
        raise InputError(
            f"--state: {len(ended)} runs with GPUs have ended, {FEWEST} are needed to say how long"
            f" others run; {queue.cure}"
        )
    groups = {size: sizes.count(size) for size in sorted(set(sizes), reverse=True)}
    cluster = QueuedCluster(nodes=[NodeGroup(count=n, gpus=size) for size, n in groups.items()])
    running = sorted(queue.running, key=lambda one: (-one.num_gpus, -one.age_seconds))
    mine = AskedNow(num_gpus=num_gpus, limit_seconds=limit_seconds)
    waiting = [*queue.waiting, mine]
    asked = [one.num_gpus for one in running] + [one.num_gpus for one in waiting]
    random = np.random.default_rng(seed)
    waits = []
    for _ in range(DRAWN):
        lasts = [_left(ended, one, random) for one in running]
        lasts += [_lasts(ended, one, random) for one in waiting]
        if limit_seconds is not None:
            lasts[-1] = limit_seconds
        jobs = jobs_in_order(
            names=[str(one) for one in range(len(asked))], submit_seconds=[0.0] * len(asked),
            duration_seconds=lasts, num_gpus=asked,
        )  # fmt: skip
        unfit = set(unfit_jobs(jobs, cluster))
        if len(asked) - 1 in unfit:
            raise InputError(
                f"--state: the run asks for {num_gpus:,} GPUs, which the empty cluster of"
                f" {sum(sizes):,} does not have in one piece; ask for fewer"
            )
        kept = [place for place in range(len(asked)) if place not in unfit]
        waits.append(play_queue(jobs.chosen(kept), cluster, queue.policy).first_start_seconds[-1])
    low, middle, high = np.percentile(waits, [10, 50, 90])
    return ExpectedWait(
        num_gpus=num_gpus,
        p10_seconds=float(low),
        p50_seconds=float(middle),
        p90_seconds=float(high),
        running=len(running),
        ahead=len(queue.waiting),
        ended=len(ended),
    )


def _left(ended: NDArray[np.float64], job: HeldNow, random: np.random.Generator) -> float:
    """Time that a job of this age still runs, as one of those that lasted longer."""
    longer: Sequence[float] = ended[ended > job.age_seconds].tolist()
    drawn = float(random.choice(longer)) - job.age_seconds if longer else float(ended[-1])
    if job.limit_seconds is None:
        return drawn
    return min(drawn, max(0.0, job.limit_seconds - job.age_seconds))


def _lasts(ended: NDArray[np.float64], job: AskedNow, random: np.random.Generator) -> float:
    drawn = float(random.choice(ended))
    return drawn if job.limit_seconds is None else min(drawn, job.limit_seconds)
