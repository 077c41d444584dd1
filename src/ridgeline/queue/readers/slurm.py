"""What `sacct` prints of jobs that have ended, with `--parsable2`, `--parsable` or a delimiter.

    sacct -aX --parsable2 -S 2026-01-01 -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Field names as in sacct's manual page. A job's GPUs are the `gres/gpu` of AllocTRES (or ReqTRES, or
AllocGRES); its time is what it ran, however it ended, since that is what it held its GPUs for:
ElapsedRaw, Elapsed, or from Start to End. The kind of GPU is the one that it asked for, where
ReqTRES, ReqGRES or Constraints are there, else the one that it was given; one typed as a MIG
profile is an instance of it. Cores and memory are those of AllocTRES (or ReqTRES, or AllocCPUS and
ReqMem). The components of a heterogeneous job (`12+0`, `12+1`) are one job, which holds all of
their GPUs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.queue.readers.moments import duration_seconds, moment_seconds
from ridgeline.queue.readers.slurm_json import SACCT_FIELDS, json_rows
from ridgeline.queue.readers.slurm_resources import (
    SACCT_CURE,
    cores_of,
    kind_of,
    memory_bytes_of,
    num_gpus,
    slices_of,
)
from ridgeline.queue.readers.traced_jobs import BadRows, EndedJob, TracedJobs, traced_jobs
from ridgeline.queue.wants import JobWants

_STEP = re.compile(r"\.(\d+|batch|extern|interactive)$")
_GOING_ON = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "RESIZING",
             "REQUEUE_HOLD", "REQUEUE_FED", "SIGNALING", "STAGE_OUT", "STOPPED",
             "SPECIAL_EXIT", "PD", "R", "S", "CG", "CF", "RQ", "RS"}  # fmt: skip
MARKS = "|,;^\t"
NO_GPUS, SEVERAL_SLICES = "without GPUs", "of several MIG instances"
SHARDS = "of shards of GPUs, whose size is not told,"
GOING_ON, UNSTARTED = "waiting or running", "that never started"


def is_header(line: str) -> bool:
    """Whether a first line is one of sacct's."""
    return any("JobID" in names or "JobIDRaw" in names for names in _splits(line))


def read_table(text: str, where: str, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs that ended; steps, jobs without GPUs and those still waiting or running are left out.

    Raises:
        InputError: A field is missing, or a line is no job and `skip_bad` does not leave it out;
            which line.
    """
    bad = BadRows(skip=skip_bad)
    head, lines = table_lines(text, where, bad)
    return jobs_of(lines, head, where, bad)


def table_lines(
    text: str, where: str, bad: BadRows
) -> tuple[list[str], Iterator[tuple[str, dict[str, str]]]]:
    """The names of the fields, and the lines that are jobs in cells under these."""
    lines = text.lstrip("\ufeff").splitlines()
    head = next(one for one in _splits(lines[0]) if "JobID" in one or "JobIDRaw" in one)
    mark = next(one for one in MARKS if lines[0].strip().split(one) == head)
    head = [one.strip() for one in head]
    return head, _printed(lines, head, mark, where, bad)


def read_json(text: str, where: str, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs that ended, of what `sacct --json` prints.

    Raises:
        InputError: It is nothing of that kind, or a job is none and `skip_bad` does not leave it
            out; which.
    """
    kind, rows = json_rows(text, where, cure=SACCT_CURE)
    if kind != "sacct":
        raise InputError(f"{where}: this is what {kind} --json prints; {SACCT_CURE}")
    return jobs_of(rows, SACCT_FIELDS, where, BadRows(skip=skip_bad))


def jobs_of(
    lines: Iterable[tuple[str, dict[str, str]]], head: Collection[str], where: str, bad: BadRows
) -> TracedJobs:
    """Jobs of lines, each with where it stands and its cells by sacct's names of the fields.

    Raises:
        InputError: As `read_table`.
    """
    name = "JobID" if "JobID" in head else "JobIDRaw"
    asked = [one for one in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES") if one in head]
    runs: list[str] = [one for one in ("ElapsedRaw", "Elapsed") if one in head][:1]
    if not runs and {"Start", "End"} <= set(head):
        runs = ["Start", "End"]
    missing = [one for one, there in (("Submit", "Submit" in head), ("ElapsedRaw", runs),
                                      ("AllocTRES", asked)) if not there]  # fmt: skip
    if missing:
        raise InputError(f"{where}: no field {missing[0]}; {SACCT_CURE}")
    left = Counter(dict.fromkeys((NO_GPUS, SHARDS, SEVERAL_SLICES, GOING_ON, UNSTARTED), 0))
    jobs: dict[tuple[str, float], EndedJob] = {}
    for at, cells in lines:
        with bad.around_a_row():
            gpus = next((found for one in asked if (found := num_gpus(cells[one], cells))), 0)
            lasted = _lasted(cells, runs, at)
            if cells.get("State", "").split(" ")[0].rstrip("+").upper() in _GOING_ON:
                left[GOING_ON] += 1
            elif not gpus:
                left[SHARDS if any("shard" in cells[one] for one in asked) else NO_GPUS] += 1
            elif not lasted and not cells.get("AllocTRES", "set"):
                left[UNSTARTED] += 1
            elif len(slices := slices_of(cells)) > 1 or (slices and gpus > 1):
                left[SEVERAL_SLICES] += 1
            else:
                _join(jobs, EndedJob(
                    name=cells[name],
                    submit_seconds=_moment(cells["Submit"], at),
                    duration_seconds=lasted,
                    num_gpus=gpus,
                    queue=cells.get("Partition", ""),
                    wants=JobWants(
                        gpu_type=kind_of(cells), cpus=cores_of(cells),
                        memory_bytes=memory_bytes_of(cells, f"{at}: ReqMem"),
                        gpu_slice="".join(slices),
                    ),
                ))  # fmt: skip
    return traced_jobs(list(jobs.values()), left, bad, kinds_if_told=True)


def _printed(
    lines: Sequence[str], head: Sequence[str], mark: str, where: str, bad: BadRows
) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines under a header that are jobs, in cells."""
    name = "JobID" if "JobID" in head else "JobIDRaw"
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[1:], 2):
        texts, at = line.split(mark), f"{where}, line {number}"
        if not line.strip() or [one.strip() for one in texts] == list(head):
            continue
        cells: dict[str, str] = {}
        with bad.around_a_row():
            texts = _without_marks_in_names(texts, head, mark)
            if len(texts) != len(head):
                more = "more" if len(texts) > len(head) else "fewer"
                raise InputError(f"{at}: {more} fields than the first line; {SACCT_CURE}")
            cells = dict(zip(head, (one.strip() for one in texts), strict=False))
            if _STEP.search(cells[name]):
                cells = {}  # its job stands above it
            elif line in seen:
                cells = {}
                raise InputError(f"{at}: the same as line {seen[line]}; print each job once")
            else:
                seen[line] = number
        if cells:
            yield at, cells


def _without_marks_in_names(texts: list[str], head: Sequence[str], mark: str) -> list[str]:
    """The fields of a line, in which a job's name may have had the mark between fields.

    A comma parts what was allotted too: which fields were cut by it nobody knows.
    """
    more = len(texts) - len(head)
    if more == 1 and not texts[-1].strip():
        return texts[:-1]
    if more > 0 and mark != "," and "JobName" in head:
        at = head.index("JobName")
        return [*texts[:at], mark.join(texts[at : at + more + 1]), *texts[at + more + 1 :]]
    return texts


def _splits(line: str) -> list[list[str]]:
    found = [line.strip().split(mark) for mark in MARKS]
    return [one for one in found if len(one) > 1]


def _join(jobs: dict[tuple[str, float], EndedJob], one: EndedJob) -> None:
    """Add a job, or a component to its heterogeneous job."""
    name = one.name.partition("+")[0]
    key = (name, one.submit_seconds)
    before = jobs.get(key)
    if before is None or "+" not in one.name:
        while key in jobs:  # printed again after a requeue (sacct --duplicates)
            key = (f"{key[0]}'", key[1])
        jobs[key] = replace(one, name=key[0])
        return
    jobs[key] = replace(
        before,
        num_gpus=before.num_gpus + one.num_gpus,
        duration_seconds=max(before.duration_seconds, one.duration_seconds),
        wants=replace(
            before.wants,
            cpus=before.wants.cpus + one.wants.cpus,
            memory_bytes=before.wants.memory_bytes + one.wants.memory_bytes,
        ),
    )


def _moment(text: str, where: str) -> float:
    found = moment_seconds(text)
    if found is None or math.isnan(found):
        raise InputError(f"{where}: Submit is {text!r}, no time; {SACCT_CURE}")
    return found


def _lasted(cells: dict[str, str], runs: list[str], where: str) -> float:
    """How long a job ran, by what it says of that or by its start and end; 0: it did not."""
    if len(runs) == 1:
        return _elapsed(cells[runs[0]], f"{where}: {runs[0]}")
    start, end = (moment_seconds(cells[one]) for one in runs)
    for name, moment in zip(runs, (start, end), strict=True):
        if moment is not None and math.isnan(moment):
            raise InputError(f"{where}: {name} is {cells[name]!r}, no time; {SACCT_CURE}")
    if start is None or end is None:
        return 0.0
    if end < start:
        raise InputError(f"{where}: it ends before it starts; {SACCT_CURE}")
    return end - start


def _elapsed(text: str, what: str) -> float:
    found = duration_seconds(text) if text else 0.0
    if found is None or not found >= 0.0:
        raise InputError(f"{what} is {text!r}, no seconds; {SACCT_CURE}")
    return found
