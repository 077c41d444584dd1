"""The door for a trace of jobs: which format it is, read off its first line."""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.readers import job_table, kube_jobs, slurm
from ridgeline.queue.readers.columns import CURE
from ridgeline.queue.readers.kubectl import KUBECTL_CURE
from ridgeline.queue.readers.traced_jobs import TracedJobs
from ridgeline.records.input_file import read_text

_OTHER_FORMS = (
    (r"JobID(Raw)?[ .]", "sacct's columns of fixed width, which cut names", slurm.CURE),
    (r'\{\s*"(meta|jobs|last_backfill)"', "what sacct --json prints", slurm.CURE),
    (r"(NAMESPACE\s+)?NAME\s+(READY|STATUS)", "kubectl's table, without GPUs or times",
     KUBECTL_CURE),
    (r"(- )?(apiVersion|kind|items):|---\s", "YAML", KUBECTL_CURE),
)  # fmt: skip
"""How a file begins that holds jobs in a form that is not read: what it is, what to print."""


def read_jobs(path: Path, *, skip_bad: bool = False) -> TracedJobs:
    """Read jobs out of CSV, what Slurm's `sacct` prints, or what kubectl prints of pods.

    Raises:
        InputError: It is none of them, or a row is no job and `skip_bad` does not leave it out:
            which line, and what to do.
    """
    text = read_text(path, cure=CURE)
    start = text.lstrip("\ufeff").lstrip()
    first = start.partition("\n")[0].strip()
    where = str(path)
    for begins, what, cure in _OTHER_FORMS:
        if re.match(begins, start):
            raise InputError(f"{where}: this is {what}; {cure}")
    if start.startswith(("{", "[")):
        found = kube_jobs.read_pods(path, skip_bad=skip_bad)
    elif slurm.is_header(first):
        found = slurm.read_table(start, where, skip_bad=skip_bad)
    else:
        found = job_table.read_table(text, where, skip_bad=skip_bad)
    if not len(found.jobs):
        left = " ".join(found.notes)
        raise InputError(f"{where}: no job in it; {left + ' ' if left else ''}{CURE}")
    return found
