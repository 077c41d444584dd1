"""What `sacct --parsable2` prints of jobs that have ended.

    sacct -aX --parsable2 -S 2026-01-01 -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Field names as in sacct's manual page. A job's GPUs are the `gres/gpu` of AllocTRES (or ReqTRES);
its time is what it ran, however it ended, since that is what it held its GPUs for.
"""

from __future__ import annotations

import re
from datetime import datetime

from ridgeline.errors import InputError
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.traced_jobs import TracedJobs

CURE = "print it with sacct -aX --parsable2 -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
_GPUS = re.compile(r"gres/gpu=(\d+)")
_TYPED = re.compile(r"gres/gpu:[^=,]+=(\d+)")


def is_header(line: str) -> bool:
    """Whether a first line is one of sacct's."""
    names = line.split("|")
    return len(names) > 1 and "JobID" in names


def read_table(text: str, where: str) -> TracedJobs:
    """Jobs that ended; steps, jobs without GPUs and those still waiting or running are left out.

    Raises:
        InputError: A field is missing, or a line does not have as many; which line.
    """
    lines = text.lstrip("\ufeff").splitlines()
    head = lines[0].strip().split("|")
    tres = next((one for one in ("AllocTRES", "ReqTRES") if one in head), None)
    missing = [one for one in ("JobID", "Submit", "ElapsedRaw") if one not in head]
    if missing or tres is None:
        raise InputError(f"{where}: no field {(missing or ['AllocTRES'])[0]}; {CURE}")
    names: list[str] = []
    submit: list[float] = []
    duration: list[float] = []
    gpus: list[int] = []
    queues: list[str] = []
    left = {"without GPUs": 0, "waiting or running": 0}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = dict(zip(head, line.split("|"), strict=False))
        if line.count("|") < len(head) - 1:
            raise InputError(f"{where}, line {number}: fewer fields than the first line; {CURE}")
        if "." in cells["JobID"]:
            continue  # a step: its job stands above it
        count = num_gpus(cells[tres])
        if cells.get("State", "").split(" ")[0] in ("PENDING", "RUNNING", "SUSPENDED"):
            left["waiting or running"] += 1
        elif not count:
            left["without GPUs"] += 1
        else:
            names.append(cells["JobID"])
            submit.append(_moment(cells["Submit"], where, number))
            duration.append(_elapsed(cells["ElapsedRaw"], where, number))
            gpus.append(count)
            queues.append(cells.get("Partition", ""))
    first = min(submit, default=0.0)
    jobs = jobs_in_order(
        names=names,
        submit_seconds=[one - first for one in submit],
        duration_seconds=duration,
        num_gpus=gpus,
        queues=queues,
    )
    notes = tuple(f"{count} jobs {why} were left out." for why, count in left.items() if count)
    return TracedJobs(jobs=jobs, notes=notes)


def num_gpus(tres: str) -> int:
    """GPUs of a list of trackable resources; typed ones are counted where no total is given.

    >>> num_gpus("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1")
    2
    >>> num_gpus("cpu=4,gres/gpu:a100=2,gres/gpu:h100=1"), num_gpus("cpu=4")
    (3, 0)
    """
    total = _GPUS.search(tres)
    return int(total[1]) if total else sum(int(one) for one in _TYPED.findall(tres))


def _moment(text: str, where: str, line: int) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(f"{where}, line {line}: Submit is {text!r}, no time; {CURE}") from None


def _elapsed(text: str, where: str, line: int) -> float:
    if not text.isdigit():
        raise InputError(f"{where}, line {line}: ElapsedRaw is {text!r}, no seconds; {CURE}")
    return float(text)
