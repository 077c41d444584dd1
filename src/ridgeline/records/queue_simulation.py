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


class AddedJob(Computed, frozen=True, kw_only=True):
    """What became of the one more job that was asked about."""

    num_gpus: int
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
    makespan_seconds: float
    """From the first submission to the last end."""
    utilisation: float
    """Work of all jobs over what the GPUs could have done in the makespan."""
    fairness: float
    """Jain's index of the mean bounded slowdowns of queues: 1 where all are slowed alike; of sizes
    of jobs where there is one queue."""
    interruptions: int
    lost_gpu_hours: float
    """Work done twice, and starting again."""
    cost_usd: float | None
    """GPU-hours of the makespan at the cluster's price; null without a price."""
    mean_wait_interval: Bounds | None
    """2.5 and 97.5 percentiles over redrawn traces; null where none were asked for."""
    p99_wait_interval: Bounds | None
    by_size: list[GroupWaits]
    by_queue: list[GroupWaits]
    timeline: QueueTimeline
    added: AddedJob | None


class QueueSimulation(Computed, frozen=True, kw_only=True):
    """A trace under several policies, side by side."""

    trace: str
    jobs: int
    left_out: int
    """Jobs too large for the cluster, where the run was to go on without them."""
    gpus: int
    nodes: int
    """None (0) where a pool only counts GPUs."""
    placement: str
    policies: list[SimulatedQueue]
    redrawn: int
    """Traces of the intervals."""
    notes: list[str]
