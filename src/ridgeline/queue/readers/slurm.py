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
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.queue.gpu_kinds import is_kind
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.moments import duration_seconds, moment_seconds
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs
from ridgeline.queue.wants import JobWants, any_of

CURE = "print it with sacct -aX --parsable2 -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
_GPUS = re.compile(r"gres/gpu=(\d+)")
_TYPED = re.compile(r"gres/gpu:[^=,]+=(\d+)")
_GRES = re.compile(r"\bgpu(?::(?!\d+(?:[,()]|$))([^:,()=]+))?(?::(\d+))?(?=[,()]|$)")
"""A generic resource with its type and its count, of which each may be lacking."""
_NAMED = re.compile(r"\bgres/gpu:([^=,]+)=")
_MIG = re.compile(r"\d+g\.\d+gb(?:[.+]me)?")
_CORES = re.compile(r"(?:^|,)cpu=(\d+)")
_MEMORY = re.compile(r"(?:^|,)mem=([^,]+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_MEBIBYTES = {"K": 2.0**-10, "": 1.0, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
"""How many MiB each unit of memory is; a number alone counts MiB."""
_STEP = re.compile(r"\.(\d+|batch|extern|interactive)$")
_GOING_ON = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "RESIZING",
             "REQUEUE_HOLD", "REQUEUE_FED", "SIGNALING", "STAGE_OUT", "STOPPED",
             "SPECIAL_EXIT", "PD", "R", "S", "CG", "CF", "RQ", "RS"}  # fmt: skip
MARKS = "|,;^\t"
NO_GPUS, SEVERAL_SLICES = "without GPUs", "of several MIG instances"
GOING_ON, UNSTARTED = "waiting or running", "that never started"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    """One line that is a job, or a component of one."""

    name: str
    submit_seconds: float
    duration_seconds: float
    num_gpus: int
    queue: str
    wants: JobWants


def is_header(line: str) -> bool:
    """Whether a first line is one of sacct's."""
    return any("JobID" in names or "JobIDRaw" in names for names in _splits(line))


def read_table(text: str, where: str, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs that ended; steps, jobs without GPUs and those still waiting or running are left out.

    Raises:
        InputError: A field is missing, or a line is no job and `skip_bad` does not leave it out;
            which line.
    """
    lines = text.lstrip("\ufeff").splitlines()
    head = next(one for one in _splits(lines[0]) if "JobID" in one or "JobIDRaw" in one)
    mark = next(one for one in MARKS if lines[0].strip().split(one) == head)
    head = [one.strip() for one in head]
    name = "JobID" if "JobID" in head else "JobIDRaw"
    asked = [one for one in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES") if one in head]
    runs: list[str] = [one for one in ("ElapsedRaw", "Elapsed") if one in head]
    if not runs and {"Start", "End"} <= set(head):
        runs = ["Start", "End"]
    missing = [one for one, there in (("Submit", "Submit" in head), ("ElapsedRaw", runs),
                                      ("AllocTRES", asked)) if not there]  # fmt: skip
    if missing:
        raise InputError(f"{where}: no field {missing[0]}; {CURE}")
    left = Counter(dict.fromkeys((NO_GPUS, SEVERAL_SLICES, GOING_ON, UNSTARTED), 0))
    bad = BadRows(skip=skip_bad)
    jobs: dict[tuple[str, float], _Printed] = {}
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[1:], 2):
        texts, at = line.split(mark), f"{where}, line {number}"
        if not line.strip():
            continue
        with bad.around_a_row():
            if len(texts) < len(head):
                raise InputError(f"{at}: fewer fields than the first line; {CURE}")
            cells = dict(zip(head, (one.strip() for one in texts), strict=False))
            if _STEP.search(cells[name]):
                continue  # its job stands above it
            if line in seen:
                raise InputError(f"{at}: the same as line {seen[line]}; print each job once")
            seen[line] = number
            gpus = next((found for one in asked if (found := num_gpus(cells[one], cells))), 0)
            lasted = _lasted(cells, runs, at)
            if cells.get("State", "").split(" ")[0].rstrip("+").upper() in _GOING_ON:
                left[GOING_ON] += 1
            elif not gpus:
                left[NO_GPUS] += 1
            elif not lasted and not cells.get("AllocTRES", "set"):
                left[UNSTARTED] += 1
            elif len(slices := _slices(cells)) > 1 or (slices and gpus > 1):
                left[SEVERAL_SLICES] += 1
            else:
                _join(jobs, _Printed(
                    name=cells[name],
                    submit_seconds=_moment(cells["Submit"], where, number),
                    duration_seconds=lasted,
                    num_gpus=gpus,
                    queue=cells.get("Partition", ""),
                    wants=JobWants(
                        gpu_type=_kind(cells), cpus=_cores(cells),
                        memory_bytes=_memory_bytes(cells, f"{at}: ReqMem"),
                        gpu_slice="".join(slices),
                    ),
                ))  # fmt: skip
    return _traced(list(jobs.values()), left, bad)


def num_gpus(tres: str, cells: dict[str, str] | None = None) -> int:
    """GPUs of a list of trackable resources; typed ones are counted where no total is given.

    Of a list of generic resources, which is per node, by the nodes of the line.

    >>> num_gpus("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1")
    2
    >>> num_gpus("cpu=4,gres/gpu:a100=2,gres/gpu:h100=1"), num_gpus("cpu=4")
    (3, 0)
    >>> num_gpus("gpu:a100:4", {"NNodes": "2"}), num_gpus("gres/gpu:8"), num_gpus("gres/gpu")
    (8, 8, 1)
    >>> num_gpus("gpu:a100:4(S:0),gpu:h100:2(S:1)"), num_gpus("gpu:a100")
    (6, 1)
    """
    total = _GPUS.search(tres)
    if total:
        return int(total[1])
    typed = _TYPED.findall(tres)
    if typed or "=" in tres:
        return sum(int(one) for one in typed)
    line = cells or {}
    nodes = line.get("NNodes") or line.get("AllocNodes") or "1"
    counted = sum(int(one[2] or 1) for one in _GRES.finditer(tres))
    return counted * int(nodes if nodes.isdigit() else 1)


def gpu_types(tres: str) -> set[str]:
    """The kinds of GPU that a list of resources names.

    >>> sorted(gpu_types("gpu:a100:4(S:0),gpu:h100:4(S:1)")), gpu_types("gres/gpu:8")
    (['a100', 'h100'], set())
    >>> gpu_types("cpu=8,gres/gpu:l40s=2,gres/gpu=2")
    {'l40s'}
    """
    found = _NAMED.findall(tres) if "=" in tres else [one[1] for one in _GRES.finditer(tres)]
    return {one for one in found if one}


def _splits(line: str) -> list[list[str]]:
    found = [line.strip().split(mark) for mark in MARKS]
    return [one for one in found if len(one) > 1]


def _join(jobs: dict[tuple[str, float], _Printed], one: _Printed) -> None:
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


def _traced(printed: list[_Printed], left: Counter[str], bad: BadRows) -> TracedJobs:
    first = min((one.submit_seconds for one in printed), default=0.0)
    jobs = jobs_in_order(
        names=[one.name for one in printed],
        submit_seconds=[one.submit_seconds - first for one in printed],
        duration_seconds=[one.duration_seconds for one in printed],
        num_gpus=[one.num_gpus for one in printed],
        queues=[one.queue for one in printed],
        wants=[one.wants for one in printed],
    )
    notes = tuple(f"{count} jobs {why} were left out." for why, count in left.items() if count)
    return TracedJobs(jobs=jobs, notes=notes + bad.notes(), kinds_if_told=True)


def _kind(cells: dict[str, str]) -> str:
    """The kinds of GPU of which any will do for a job; empty: any, or several kinds at once."""
    asked = [one for one in ("ReqTRES", "ReqGRES", "Constraints") if one in cells]
    named = [gpu_types(cells[one]) for one in asked if one != "Constraints"]
    for one in named or ([] if asked else [gpu_types(cells.get("AllocTRES", ""))]):
        if one:
            return _without_profile(next(iter(one))) if len(one) == 1 else ""
    return constrained_kinds(cells.get("Constraints", ""))


def _without_profile(kind: str) -> str:
    """The GPU that a type names which may be a MIG profile, as `a100_1g.5gb`; empty: none."""
    profile = _MIG.search(kind)
    if profile is None:
        return kind
    split = kind[: profile.start()].strip("_-.")
    return split if is_kind(split.removeprefix("nvidia_")) else ""


def _slices(cells: dict[str, str]) -> list[str]:
    """The MIG profiles of a job; of a job that has other GPUs as well, these count as one."""
    for one in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"):
        if kinds := gpu_types(cells.get(one, "")):
            profiles = [_MIG.search(kind) for kind in kinds]
            return [found[0] if found else "" for found in profiles] if any(profiles) else []
    return []


def _cores(cells: dict[str, str]) -> float:
    """Cores of a job; 0 where nothing tells them."""
    for one in ("AllocTRES", "ReqTRES"):
        if found := _CORES.search(cells.get(one, "")):
            return float(found[1])
    counts = [cells.get(one, "") for one in ("AllocCPUS", "NCPUS", "ReqCPUS")]
    return next((float(one) for one in counts if one.isdigit() and int(one)), 0.0)


def _memory_bytes(cells: dict[str, str], what: str) -> float:
    """Memory of a job; 0 where nothing tells it. ReqMem may be of a node (n) or of a core (c)."""
    listed = [_MEMORY.search(cells.get(one, "")) for one in ("AllocTRES", "ReqTRES")]
    text = next((found[1] for found in listed if found), cells.get("ReqMem", ""))
    if not text or text.strip("?0") == "":
        return 0.0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InputError(f"{what} is {text!r}, no memory; {CURE}")
    nodes = cells.get("NNodes") or cells.get("AllocNodes") or "1"
    times = {"n": float(nodes if nodes.isdigit() else 1), "c": _cores(cells), "": 1.0}[found[3]]
    return float(found[1]) * _MEBIBYTES[found[2]] * 2**20 * times


def constrained_kinds(constraints: str) -> str:
    """The kinds of GPU that features of nodes tell, of which any will do.

    >>> constrained_kinds("[a100*2|h100*2]&ib"), constrained_kinds("intel,l40s")
    ('a100|h100', 'l40s')
    """
    for part in re.split(r"[&,]", re.sub(r"[\[\]()]|[*:]\d+", "", constraints)):
        features = [one.strip() for one in part.split("|")]
        if all(is_kind(one) for one in features):
            return any_of(features)
    return ""


def _moment(text: str, where: str, line: int) -> float:
    found = moment_seconds(text)
    if found is None or math.isnan(found):
        raise InputError(f"{where}, line {line}: Submit is {text!r}, no time; {CURE}")
    return found


def _lasted(cells: dict[str, str], runs: list[str], where: str) -> float:
    """How long a job ran, by what it says of that or by its start and end; 0: it did not."""
    if len(runs) == 1:
        return _elapsed(cells[runs[0]], f"{where}: {runs[0]}")
    start, end = (moment_seconds(cells[one]) for one in runs)
    for name, moment in zip(runs, (start, end), strict=True):
        if moment is not None and math.isnan(moment):
            raise InputError(f"{where}: {name} is {cells[name]!r}, no time; {CURE}")
    if start is None or end is None:
        return 0.0
    if end < start:
        raise InputError(f"{where}: it ends before it starts; {CURE}")
    return end - start


def _elapsed(text: str, what: str) -> float:
    found = duration_seconds(text) if text else 0.0
    if found is None or not found >= 0.0:
        raise InputError(f"{what} is {text!r}, no seconds; {CURE}")
    return found
