"""The door for a trace of jobs: which format it is, read off its first line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.readers import job_table, kube_jobs, philly, slurm, slurm_json
from ridgeline.queue.readers.columns import CURE
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, YAML_BEGINS
from ridgeline.queue.readers.slurm_resources import SACCT_CURE
from ridgeline.queue.readers.traced_jobs import TracedJobs
from ridgeline.records.input_file import read_text

_OTHER_FORMS = (
    (r"JobID(Raw)?[ .]", "sacct's columns of fixed width, which cut names", SACCT_CURE),
    (r"(NAMESPACE\s+)?NAME\s+(READY|STATUS)", "kubectl's table, without GPUs or times",
     KUBECTL_CURE),
    (r";\s*\w+:", "the Standard Workload Format, which counts processors and no GPUs", CURE),
    (r"\s*(JOBID\b|JobId=)", "what squeue or scontrol prints, of jobs that have not ended",
     SACCT_CURE),
)  # fmt: skip
"""How a file begins that holds jobs in a form that is not read: what it is, what to print."""


def read_jobs(
    path: Path, *, skip_bad: bool = False, given: Mapping[str, tuple[str, str]] | None = None
) -> TracedJobs:
    """Read jobs out of CSV, Philly's log, or what sacct or kubectl prints.

    Args:
        path: The file.
        skip_bad: Leave rows out that are no jobs.
        given: Columns of CSV as `given_columns` has them.

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
    if philly.BEGINS.match(start):
        found = philly.read_job_log(path, skip_bad=skip_bad)
    elif slurm_json.BEGINS.match(start):
        found = slurm.read_json(start, where, skip_bad=skip_bad)
    elif start.startswith(("{", "[")) or YAML_BEGINS.match(start):
        found = kube_jobs.read_pods(path, skip_bad=skip_bad)
    elif slurm.is_header(first):
        found = slurm.read_table(start, where, skip_bad=skip_bad)
    else:
        found = job_table.read_table(text, where, skip_bad=skip_bad, given=given)
    if not len(found.jobs):
        left = " ".join(found.notes)
        raise InputError(f"{where}: no job in it; {left + ' ' if left else ''}{CURE}")
    return found
