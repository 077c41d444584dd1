"""Answers `ridgeline queue simulate`: several policies on one trace, and what they do to whom.

How many nodes had better be spot capacity is answered by the trace on mixes of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.queue.cluster import NodeGroup, QueuedCluster, SpotTerms, check_queued_cluster
from ridgeline.queue.elastic import check_elastic
from ridgeline.queue.figures import (
    at_share,
    every_nth,
    figures_of,
    group_waits,
    interval,
    intervals_of,
    mean_of,
    queue_groups,
    size_groups,
    timeline_of,
)
from ridgeline.queue.fitting import fitting_jobs
from ridgeline.queue.jobs import ADDED, Jobs, jobs_in_order, seed_of_redraw
from ridgeline.queue.policies import find_policy
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.records.queue_simulation import AddedJob, QueueSimulation, SimulatedQueue, SpotMix


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAsked:
    """One more job, to ask what it would do to everyone."""

    num_gpus: int
    duration_seconds: float
    submit_seconds: float | None = None
    """Counted from the first submission of the trace; None: in the middle of it."""


def simulate_queue(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    *,
    trace: str = "",
    redrawn: int = 0,
    skip_unfit: bool = False,
    mixed: bool = False,
    added: JobAsked | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _line: None,
) -> QueueSimulation:
    """Play a trace under each policy.

    Args:
        jobs: The trace.
        cluster: Where it runs.
        policies: Names of policies, each played by itself.
        trace: Its name in the answer.
        redrawn: How many traces of jobs drawn with replacement the intervals rest on.
        skip_unfit: Leave out jobs that the empty cluster has no GPUs for, instead of refusing.
        mixed: Whether to try more and more of the nodes as spot capacity.
        added: One more job to ask about.
        seed: Draws the failures of nodes and the redrawn traces.
        notes: Remarks of whoever read the trace.
        on_progress: Told what is being played.

    Raises:
        InputError: A policy is unknown, the cluster makes no sense, or a job does not fit.
    """
    check_queued_cluster(cluster, "the cluster")
    for name in policies:
        find_policy(name)
    check_elastic(jobs)
    fitting = fitting_jobs(jobs, cluster, skip_unfit=skip_unfit)
    if added is not None and not _holds(cluster, added):
        raise InputError(
            f"--add asks for {added.num_gpus:,} GPUs, which the empty cluster of"
            f" {cluster.num_gpus:,} does not have in one piece; ask for fewer"
        )
    found = []
    for name in policies:
        on_progress(f"{name}: {len(fitting):,} jobs")
        asked = None if added is None else _asked(fitting, cluster, name, added, seed)
        found.append(_judged(fitting, cluster, name, redrawn, seed, asked, on_progress))
    return QueueSimulation(
        trace=trace,
        jobs=len(fitting),
        left_out=len(jobs) - len(fitting),
        gpus=cluster.num_gpus,
        nodes=cluster.num_nodes,
        placement=cluster.placement if cluster.nodes else "",
        policies=found,
        mixes=spot_mixes(fitting, cluster, policies, seed, on_progress) if mixed else [],
        redrawn=redrawn,
        notes=list(notes),
    )


def _holds(cluster: QueuedCluster, added: JobAsked) -> bool:
    alone = jobs_in_order(
        names=[ADDED], submit_seconds=[0.0], duration_seconds=[added.duration_seconds],
        num_gpus=[added.num_gpus],
    )  # fmt: skip
    return not unfit_jobs(alone, cluster)


def _judged(
    jobs: Jobs,
    cluster: QueuedCluster,
    policy: str,
    redrawn: int,
    seed: int,
    added: AddedJob | None,
    on_progress: Callable[[str], None],
) -> SimulatedQueue:
    def progress(done: int, total: int) -> None:
        on_progress(f"{policy}: {done:,} of {total:,} jobs")

    played = play_queue(jobs, cluster, policy, seed=seed, on_progress=progress)
    seen = figures_of(jobs, cluster, played)
    waits, completions = seen.waits[seen.ended], seen.completions[seen.ended]
    drawn = []
    for number in range(1, redrawn + 1):
        on_progress(f"{policy}: redrawn trace {number} of {redrawn}")
        own = seed_of_redraw(seed, number)
        other = jobs.redrawn(own)
        again = play_queue(other, cluster, policy, seed=own)
        drawn.append(figures_of(other, cluster, again))
    return SimulatedQueue(
        policy=policy,
        title=find_policy(policy)[0].title,
        mean_wait_seconds=mean_of(waits),
        p50_wait_seconds=at_share(waits, 0.5),
        p99_wait_seconds=at_share(waits, 0.99),
        mean_completion_seconds=mean_of(completions),
        p50_completion_seconds=at_share(completions, 0.5),
        p99_completion_seconds=at_share(completions, 0.99),
        makespan_seconds=seen.makespan_seconds,
        utilisation=seen.utilisation,
        held_until_last_submission=seen.held_until_last_submission,
        fairness=seen.fairness,
        unfairly_treated_share=float((seen.finish_time_fairness > 1.0 + 1e-9).mean()),
        p99_finish_time_fairness=at_share(seen.finish_time_fairness, 0.99),
        fragmented_share=seen.fragmented_share,
        interruptions=int(played.interruptions.sum()),
        lost_gpu_hours=seen.lost_gpu_hours,
        wasted_gpu_hours=seen.wasted_gpu_hours,
        stuck_jobs=int((~seen.ended).sum()),
        cost_usd=seen.cost_usd,
        mean_wait_interval=interval([mean_of(one.waits[one.ended]) for one in drawn]),
        p99_wait_interval=interval([at_share(one.waits[one.ended], 0.99) for one in drawn]),
        intervals=intervals_of(drawn),
        completion_seconds=every_nth(completions),
        by_size=group_waits(size_groups(jobs), jobs, seen.waits, seen.completions),
        by_queue=group_waits(queue_groups(jobs), jobs, seen.waits, seen.completions),
        timeline=timeline_of(played),
        added=added,
    )


def _asked(jobs: Jobs, cluster: QueuedCluster, policy: str, asked: JobAsked, seed: int) -> AddedJob:
    """Play the trace with and without one more job."""
    at = asked.submit_seconds
    if at is None:
        at = float(jobs.submit_seconds[len(jobs) // 2])
    more = jobs.with_one_more(
        at_seconds=at, duration_seconds=asked.duration_seconds, num_gpus=asked.num_gpus
    )
    place = more.names.index(ADDED)
    played = play_queue(more, cluster, policy, seed=seed)
    before = play_queue(jobs, cluster, policy, seed=seed).first_start_seconds
    last = float(played.moments[-1])
    others = np.minimum(np.delete(played.first_start_seconds, place), last)
    return AddedJob(
        num_gpus=asked.num_gpus,
        duration_seconds=asked.duration_seconds,
        submit_seconds=at,
        wait_seconds=float(min(played.first_start_seconds[place], last) - at),
        others_mean_wait_change_seconds=float((others - np.minimum(before, last)).mean()),
    )


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def spot_mixes(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    seed: int,
    on_progress: Callable[[str], None],
) -> list[SpotMix]:
    """Cost and completion with more and more of the nodes as spot; those that hold all jobs.

    Raises:
        InputError: The cluster lacks nodes, prices or an offer of spot capacity.
    """
    offer = cluster.spot_offer
    if offer is None or not cluster.nodes:
        raise InputError(
            "--spot-mix needs [[nodes]] and a [spot_offer] in the cluster file, with"
            " interruptions_per_hour, return_hours and gpu_hour_price"
        )
    if any(cluster.price_of(group) is None for group in cluster.nodes):
        raise InputError("--spot-mix needs gpu_hour_price, of the cluster or of all its nodes")
    found = []
    for policy in policies:
        for share in SHARES:
            mixed = mixed_cluster(cluster, share)
            if unfit_jobs(jobs, mixed):
                continue
            on_progress(f"{policy}: {share:.0%} of the nodes as spot")
            played = play_queue(jobs, mixed, policy, seed=seed)
            seen = figures_of(jobs, mixed, played)
            assert seen.cost_usd is not None
            found.append(
                SpotMix(
                    policy=policy,
                    spot_share=share,
                    cost_usd=seen.cost_usd,
                    mean_completion_seconds=mean_of(seen.completions[seen.ended]),
                    p99_wait_seconds=at_share(seen.waits[seen.ended], 0.99),
                    interruptions=int(played.interruptions.sum()),
                    lost_gpu_hours=seen.lost_gpu_hours,
                )
            )
    return found


def mixed_cluster(cluster: QueuedCluster, share: float) -> QueuedCluster:
    """The cluster with a share of the nodes of every group as spot."""
    offer = cluster.spot_offer
    assert offer is not None
    terms = SpotTerms(
        interruptions_per_hour=offer.interruptions_per_hour, return_hours=offer.return_hours
    )
    groups: list[NodeGroup] = []
    for group in cluster.nodes:
        spot = round(share * group.count) if group.spot is None else 0
        if group.count > spot:
            groups.append(msgspec.structs.replace(group, count=group.count - spot))
        if spot:
            groups.append(
                msgspec.structs.replace(
                    group, count=spot, spot=terms, gpu_hour_price=offer.gpu_hour_price
                )
            )
    return msgspec.structs.replace(cluster, nodes=groups)
