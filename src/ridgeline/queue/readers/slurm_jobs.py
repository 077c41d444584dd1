"""Jobs as squeue and scontrol print them: what they ask for, for how long, how many there are."""

from __future__ import annotations

import re

from ridgeline.errors import InputError
from ridgeline.queue.readers.moments import duration_seconds, time_limit_seconds
from ridgeline.queue.readers.slurm_printed import SQUEUE, SlurmRow, cell
from ridgeline.queue.readers.slurm_resources import num_gpus

HOLDS = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
          "R", "CG", "CF"}  # fmt: skip
WAITS = {"PENDING", "PD"}
LIMITS = ("assoc", "qos", "max")
"""How reasons begin that name a limit of an account, a user or a QOS."""
_NOT_YET = ("dependency", "jobheld", "begintime", "jobarraytasklimit")
"""How reasons begin for which a job waits by its own wish, or its owner's."""
_TASKS = re.compile(r"_\[([^\]]*)\]$")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?")
_ALL_OF = re.compile(r"[\w.:+-]+(?:[&,][\w.:+-]+)*")
"""Features that are all asked for; with `|`, brackets or counts there is a choice."""
_RESOURCES = ("TRES_ALLOC", "TRES", "TRES_PER_NODE", "TRES_PER_JOB", "GRES")
"""Columns of a job's resources, the fullest first."""
_NO_GPU = {"n/a", "(null)", ""}


def asked_resources(row: SlurmRow) -> str:
    """The resources of a job, in whichever form they are printed."""
    for name in _RESOURCES:
        text = row.cells.get(name, "")
        if text.casefold() not in _NO_GPU:
            return text
    if not tells_gpus(row):
        raise InputError(f"{row.where}: no field TRES_PER_NODE; print {SQUEUE}")
    return ""


def tells_gpus(row: SlurmRow) -> bool:
    """Whether a line has a column of its job's resources at all."""
    return any(name in row.cells for name in _RESOURCES)


def job_gpus(row: SlurmRow) -> int:
    """GPUs of a job, on all of its nodes."""
    return num_gpus(asked_resources(row), {"NNodes": row.cells.get("NODES", "1")})


def reason_of(row: SlurmRow) -> str:
    """Why a job waits, in Slurm's word; empty: nobody says."""
    return row.cells.get("REASON", "").strip("()")


def features_asked(row: SlurmRow) -> list[str]:
    """The features that every node of a job has to have; none where it leaves a choice."""
    text = row.cells.get("FEATURES", "")
    if text.casefold() in _NO_GPU or not _ALL_OF.fullmatch(text):
        return []
    return re.split("[&,]", text)


def waits_on_purpose(row: SlurmRow) -> bool:
    """Whether a job waits for others, for its time, or because somebody holds it."""
    return reason_of(row).casefold().startswith(_NOT_YET)


def age_seconds(row: SlurmRow) -> float:
    """How long a job has run."""
    text = cell(row, "TIME", SQUEUE)
    found = duration_seconds(text)
    if found is None or not found >= 0.0:
        raise InputError(f"{row.at}: TIME is {text!r}; print the time that a job has run (%M)")
    return found


def limit_seconds(text: str, what: str) -> float | None:
    """A time limit; None: there is none.

    Raises:
        InputError: It is no time, as `what` says.
    """
    found = time_limit_seconds(text)
    if found is not None and not found >= 0.0:
        raise InputError(f"{what} is {text!r}; give a limit as Slurm has it, 2-00:00:00")
    return found


def priority_of(row: SlurmRow) -> float:
    """The priority of a job; 0 where none is printed."""
    text = row.cells.get("PRIORITY", "") or "0"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{row.at}: PRIORITY is {text!r}; print it as a number (%Q)") from None


def tasks_of_array(row: SlurmRow) -> int:
    """How many tasks of an array wait on one line, as `77_[3-8%2]`.

    At most as many at once as follow the `%` are ahead of others.
    """
    found = _TASKS.search(cell(row, "JOBID", SQUEUE))
    if found is None:
        return 1
    numbers, _, at_once = found[1].partition("%")
    several = numbers.removesuffix("...").rstrip(",")  # squeue cuts long lists
    counts = [_RANGE.fullmatch(one) for one in several.split(",")]
    if not several or None in counts:
        raise InputError(f"{row.at}: JOBID is {row.cells['JOBID']!r}, no array of jobs")
    count = sum(
        len(range(int(one[1]), int(one[2] or one[1]) + 1, int(one[3] or 1)))
        for one in counts
        if one is not None
    )
    return min(count, int(at_once)) if at_once.isdigit() else count
