"""What a cluster would do with a trace of jobs: the JSON contract of `ridgeline queue simulate`.

Waiting is from submission to the first start; completion (JCT) from submission to the end. The
P50 and P99 of n sorted values are those at place n/2 and 0.99 n, rounded down.
"""

from __future__ import annotations

from ridgeline.records.finite import Computed

Bounds = tuple[float, float]
"""Low and high end of an interval."""


class GroupWaits(Computed, frozen=True, kw_only=True):
    """How long the jobs of one size or one queue wait."""

    group: str
    """The name of the queue, or GPUs as `1`, `2-4`, `5-8`."""
    jobs: int
    gpu_hours: float
    mean_wait_seconds: float
    p50_wait_seconds: float
    p99_wait_seconds: float
    mean_completion_seconds: float


class QueueTimeline(Computed, frozen=True, kw_only=True):
    """The cluster over time: means over stretches of one length."""

    stretch_seconds: float
    busy_gpus: list[float]
    waiting_jobs: list[float]
    fragmented_gpus: list[float]
    """Idle GPUs that the typical job cannot use; empty where a pool only counts GPUs."""


class AddedJob(Computed, frozen=True, kw_only=True):
    """What became of the one more job that was asked about."""

    num_gpus: float
    duration_seconds: float
    submit_seconds: float
    wait_seconds: float
    others_mean_wait_change_seconds: float
    """How much longer the others wait on average because of it."""


class SimulatedQueue(Computed, frozen=True, kw_only=True):
    """All jobs under one policy."""

    policy: str
    title: str
    mean_wait_seconds: float
    p50_wait_seconds: float
    p99_wait_seconds: float
    mean_completion_seconds: float
    p50_completion_seconds: float
    p99_completion_seconds: float
    makespan_seconds: float
    """From the first submission to the last end."""
    utilisation: float
    """Work of all jobs over what the GPUs could have done in the makespan."""
    held_until_last_submission: float | None
    """The share of all GPUs that jobs held from the first submission to the last, whatever became
    of it: one long job at the end, which the makespan counts, is left out; null where all jobs came
    at once."""
    fairness: float
    """Jain's index of the mean bounded slowdowns of queues: 1 where all are slowed alike; of sizes
    of jobs where there is one queue."""
    unfairly_treated_share: float
    """Jobs that ended later than in a part of the cluster of their own: an equal share for all that
    ask at the time (finish-time fairness above 1: Mahajan et al., Themis, NSDI 2020)."""
    p99_finish_time_fairness: float
    """Completion over that in such a part."""
    fragmented_share: float | None
    """F(M) of Weng et al., ATC 2023, over time: idle GPUs that the typical job cannot use, of all;
    null where a pool only counts GPUs."""
    interruptions: int
    lost_gpu_hours: float
    """Work done twice, and starting again."""
    wasted_gpu_hours: float
    """All that GPUs were held for beyond the work: what was lost; jobs that lie apart or share, and
    are slower for it; elastic jobs beyond what scales; gangs of which some ranks wait."""
    stuck_jobs: int
    """Jobs that wait for each other for good; figures of time are those of the others."""
    cost_usd: float | None
    """GPU-hours of the makespan at the cluster's price, of spot nodes while they were there; null
    without a price."""
    mean_wait_interval: Bounds | None
    """2.5 and 97.5 percentiles over redrawn traces; null where none were asked for."""
    p99_wait_interval: Bounds | None
    intervals: dict[str, Bounds]
    """Percentiles 2.5 and 97.5 of the other figures, by name."""
    completion_seconds: list[float]
    """The completion of each job that ended, in the order of submission; of many, every n-th."""
    by_size: list[GroupWaits]
    by_queue: list[GroupWaits]
    timeline: QueueTimeline
    added: AddedJob | None


class SpotMix(Computed, frozen=True, kw_only=True):
    """The trace on a cluster of which some nodes are spot capacity, under one policy."""

    policy: str
    spot_share: float
    """The share of the nodes that is spot capacity."""
    cost_usd: float
    mean_completion_seconds: float
    p99_wait_seconds: float
    interruptions: int
    lost_gpu_hours: float


class QueueSimulation(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="queue-simulation"
):
    """A trace under several policies, side by side."""

    trace: str
    jobs: int
    left_out: int
    """Jobs that the empty cluster does not hold, where the run was to go on without them."""
    gpus: int
    nodes: int
    """None (0) where a pool only counts GPUs."""
    placement: str
    policies: list[SimulatedQueue]
    mixes: list[SpotMix]
    """More and more of the nodes as spot capacity; empty where that was not asked."""
    redrawn: int
    """Traces of the intervals."""
    notes: list[str]
