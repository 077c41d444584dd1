"""What one more run would do to everyone: the JSON of `ridgeline queue simulate --submit`."""

from __future__ import annotations

from ridgeline.records.finite import Computed


class DelayedJob(Computed, frozen=True, kw_only=True):
    """One job that starts later for it."""

    job: str
    queue: str
    num_gpus: int
    later_seconds: float


class SubmissionEffect(Computed, frozen=True, kw_only=True):
    """One more run under one policy."""

    policy: str
    wait_seconds: float
    """How long the run itself waits."""
    delayed_jobs: int
    """Jobs that start later than without it."""
    earlier_jobs: int
    """Jobs that start earlier than without it, since the order has changed."""
    mean_change_seconds: float
    """How much longer the others wait, on average over all of them."""
    by_queue: dict[str, float]
    """The mean change in seconds, by queue."""
    most_delayed: list[DelayedJob]
    """The jobs that start latest for it, ten at most."""


class QueueSubmission(Computed, frozen=True, kw_only=True):
    """A run that is submitted in the middle of a trace."""

    trace: str
    jobs: int
    gpus: int
    num_gpus: int
    duration_seconds: float
    submit_seconds: float
    policies: list[SubmissionEffect]
