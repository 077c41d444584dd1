"""What a reader gives: jobs, and what it had to leave out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.quantity import several
from ridgeline.queue.jobs import Jobs, jobs_in_order
from ridgeline.queue.wants import PLAIN, JobWants


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJobs:
    """Jobs of a file, their times counted from the first submission."""

    jobs: Jobs
    notes: tuple[str, ...] = ()
    """What was left out and why, a sentence each."""
    kinds_if_told: bool = False
    """Kinds of GPU are heeded only on clusters whose nodes have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """One job that ran, as a reader found it."""

    name: str
    submit_seconds: float
    """Whenever the clock of the file begins."""
    duration_seconds: float
    num_gpus: int
    queue: str
    wants: JobWants = PLAIN


@dataclass(slots=True, kw_only=True)
class BadRows:
    """Rows that are no jobs: the first ends the reading, but where it is to go on without them."""

    skip: bool
    count: int = 0
    first: str = ""
    """What is wrong with the first of them."""

    @contextmanager
    def around_a_row(self) -> Iterator[None]:
        """Read one row; a row that is refused is counted where it may be left out.

        Raises:
            InputError: The row is no job, and none is to be left out.
        """
        try:
            yield
        except InputError as error:
            if not self.skip:
                raise
            self.count += 1
            self.first = self.first or str(error)

    def notes(self) -> tuple[str, ...]:
        """How many were left out, and why the first was."""
        if not self.count:
            return ()
        found = "rows that are no jobs were" if self.count > 1 else "row that is no job was"
        return (f"{self.count:,} {found} left out; the first: {self.first}.",)


def left_out_notes(left: Mapping[str, int], thing: str) -> tuple[str, ...]:
    """What was left out, by why.

    >>> left_out_notes({"without GPUs": 1, "that wait": 3}, "job")
    ('1 job without GPUs was left out.', '3 jobs that wait were left out.')
    """
    return tuple(
        f"{several(count, thing)} {why} {'was' if count == 1 else 'were'} left out."
        for why, count in left.items()
        if count
    )


def traced_jobs(
    ended: Sequence[EndedJob],
    left: Mapping[str, int],
    bad: BadRows,
    *,
    thing: str = "job",
    kinds_if_told: bool = False,
) -> TracedJobs:
    """What a reader gives of the jobs that it found.

    Args:
        ended: In the order of the file.
        left: Why others were left out → how many.
        bad: Rows that are no jobs.
        thing: What the file calls a job.
        kinds_if_told: As `TracedJobs` has it.
    """
    first = min((one.submit_seconds for one in ended), default=0.0)
    jobs = jobs_in_order(
        names=[one.name for one in ended],
        submit_seconds=[one.submit_seconds - first for one in ended],
        duration_seconds=[one.duration_seconds for one in ended],
        num_gpus=[one.num_gpus for one in ended],
        queues=[one.queue for one in ended],
        wants=[one.wants for one in ended],
    )
    notes = left_out_notes(left, thing) + bad.notes()
    return TracedJobs(jobs=jobs, notes=notes, kinds_if_told=kinds_if_told)
