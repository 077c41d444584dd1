"""The door for a trace of jobs: which format it is, read off its first line."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.readers import job_table, slurm
from ridgeline.queue.readers.traced_jobs import TracedJobs
from ridgeline.records.input_file import read_text


def read_jobs(path: Path) -> TracedJobs:
    """Read jobs out of our own CSV, Philly's, or what Slurm's `sacct --parsable2` prints.

    Raises:
        InputError: It is none of them, or a row cannot be: which line, and what to do.
    """
    text = read_text(path, cure=job_table.CURE)
    first = text.lstrip("\ufeff").partition("\n")[0].strip()
    where = str(path)
    if slurm.is_header(first):
        found = slurm.read_table(text, where)
    else:
        found = job_table.read_table(text, where)
    if not len(found.jobs):
        raise InputError(f"{where}: no job in it; {job_table.CURE}")
    return found
