"""What a reader gives: jobs, and what it had to leave out."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.queue.jobs import Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJobs:
    """Jobs of a file, their times counted from the first submission."""

    jobs: Jobs
    notes: tuple[str, ...] = ()
    """What was left out and why, a sentence each."""
