"""Microsoft's Philly trace as it was published: `cluster_job_log`, JSON with each job's attempts.

A job is submitted once and may be started several times; it is played as one job that holds the
GPUs of its largest attempt for as long as all attempts took together. Source: README of
github.com/msr-fiddle/philly-traces (Jeon et al., ATC 2019).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.readers.moments import moment_seconds
from ridgeline.queue.readers.traced_jobs import BadRows, EndedJob, TracedJobs, traced_jobs
from ridgeline.records.input_file import read_json

CURE = "give Philly's cluster_job_log as it was published"
BEGINS = re.compile(r'\[\s*\{\s*"(status|vc|jobid|attempts|submitted_time|user)"')
"""How such a log begins."""
UNENDED = "that never started, had not ended, or do not say when"
NO_GPUS = "without GPUs"


class _Machine(msgspec.Struct, frozen=True):
    gpus: list[str] = []


class _Attempt(msgspec.Struct, frozen=True):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Machine] = []


class _Submitted(msgspec.Struct, frozen=True):
    jobid: str
    vc: str
    submitted_time: str | None
    attempts: list[_Attempt]


def read_job_log(path: Path, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs of the log that have ended.

    Raises:
        InputError: The file is no such log, or an attempt ends before it starts and `skip_bad` does
            not leave its job out.
    """
    listed = read_json(path, list[_Submitted], cure=CURE)
    left: Counter[str] = Counter()
    bad = BadRows(skip=skip_bad)
    ended: list[EndedJob] = []
    for place, one in enumerate(listed):
        with bad.around_a_row():
            submitted = moment_seconds(one.submitted_time or "")
            ran = _ran_seconds(one, f"{path}: job {place} ({one.jobid})")
            gpus = max((_gpus(attempt) for attempt in one.attempts), default=0)
            if submitted is None or ran is None:
                left[UNENDED] += 1
            elif not gpus:
                left[NO_GPUS] += 1
            else:
                ended.append(
                    EndedJob(
                        name=one.jobid,
                        submit_seconds=submitted,
                        duration_seconds=ran,
                        num_gpus=gpus,
                        queue=one.vc,
                    )
                )
    return traced_jobs(ended, left, bad)


def _gpus(attempt: _Attempt) -> int:
    return sum(len(machine.gpus) for machine in attempt.detail)


def _ran_seconds(one: _Submitted, where: str) -> float | None:
    """How long all attempts took together; None: the last has no end, or there is none."""
    total, ended = 0.0, False
    for attempt in one.attempts:
        start, end = (moment_seconds(text or "") for text in (attempt.start_time, attempt.end_time))
        ended = start is not None and end is not None
        if start is None or end is None:
            continue
        if not end >= start:
            raise InputError(
                f"{where}: an attempt starts at {attempt.start_time!r} and ends at"
                f" {attempt.end_time!r}; {CURE}"
            )
        total += end - start
    return total if ended else None
