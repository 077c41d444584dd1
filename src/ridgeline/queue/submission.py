"""What one more run would do: the trace played with it and without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.errors import InputError
from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.fitting import fitting_jobs
from ridgeline.queue.jobs import ADDED, Jobs
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.records.queue_submission import DelayedJob, QueueSubmission, SubmissionEffect

_SHOWN = 10
_LATER_SECONDS = 1e-6


def submitted(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    *,
    num_gpus: int,
    duration_seconds: float,
    trace: str = "",
    skip_unfit: bool = False,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> QueueSubmission:
    """Play a trace with one more run in the middle of it, and without.

    Args:
        jobs: The trace.
        cluster: Where it runs.
        policies: Names of policies.
        num_gpus: GPUs of the run.
        duration_seconds: How long it runs.
        trace: The trace's name in the answer.
        skip_unfit: Leave out jobs that the empty cluster has no GPUs for, instead of refusing.
        seed: Draws the failures of nodes, the same for both.
        on_progress: Told what is being played.

    Raises:
        InputError: A job, or the run, does not fit the empty cluster.
    """
    jobs = fitting_jobs(jobs, cluster, skip_unfit=skip_unfit)
    at = float(jobs.submit_seconds[len(jobs) // 2])
    more = jobs.with_one_more(at_seconds=at, duration_seconds=duration_seconds, num_gpus=num_gpus)
    if unfit_jobs(more, cluster):
        raise InputError(
            f"--submit: the run asks for {num_gpus:,} GPUs, which the empty cluster of"
            f" {cluster.num_gpus:,} does not have in one piece; give a larger cluster"
        )
    found = []
    for policy in policies:
        on_progress(f"{policy}: with the run and without")
        found.append(_effect(jobs, more, cluster, policy, seed))
    return QueueSubmission(
        trace=trace,
        jobs=len(jobs),
        gpus=cluster.num_gpus,
        num_gpus=num_gpus,
        duration_seconds=duration_seconds,
        submit_seconds=at,
        policies=found,
    )


def _effect(
    jobs: Jobs, more: Jobs, cluster: QueuedCluster, policy: str, seed: int
) -> SubmissionEffect:
    place = more.names.index(ADDED)
    with_it = play_queue(more, cluster, policy, seed=seed).first_start_seconds
    without = play_queue(jobs, cluster, policy, seed=seed).first_start_seconds
    later = np.delete(with_it, place) - without
    order = np.argsort(-later, kind="stable")[:_SHOWN]
    queues = np.array(jobs.queues)
    return SubmissionEffect(
        policy=policy,
        wait_seconds=float(with_it[place] - more.submit_seconds[place]),
        delayed_jobs=int((later > _LATER_SECONDS).sum()),
        earlier_jobs=int((later < -_LATER_SECONDS).sum()),
        mean_change_seconds=float(later.mean()),
        by_queue={
            name: float(later[queues == name].mean()) for name in dict.fromkeys(jobs.queues)
        },
        most_delayed=[
            DelayedJob(
                job=jobs.names[one], queue=jobs.queues[one], num_gpus=int(jobs.num_gpus[one]),
                later_seconds=float(later[one]),
            )
            for one in order
            if later[one] > _LATER_SECONDS
        ],
    )  # fmt: skip
