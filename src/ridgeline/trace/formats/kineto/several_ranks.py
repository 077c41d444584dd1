"""Ranks that were joined into one file, told apart: `ranks_of(trace, lanes)`.

Profilers write one file for each process. Tools that put the files of a job side by side for a
viewer (TraceLens, SGLang's merger, scripts of a dozen lines) write one of all of them, whose GPUs
would seem to be those of one process. torch.distributed gives each process GPUs of its own, so a
rank is a process and what it launched. In such a file

    pid         of a GPU's work is often no longer the number of the GPU: 300000005, "[TP03] 5".
                Its lane is pid and GPU together
    correlation is often the same in several ranks: a launch is looked for in each process, and the
                process in which most work has one that came before it has launched the lane
    labels      that only some processes and lanes share ("[TP03]") say it without

Lanes that nobody in the file launched, as where only collectives were kept, are a rank each where
torch's arguments of collectives are on them, and there are several. A process that launched nothing
(a loader's) belongs to the rank that stands before it in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ridgeline.trace.columns import ABSENT, TABLES, Ints, Mask, Trace, named_part
from ridgeline.trace.sorting import distinct, median

Process = int | str
FIRST_LANE = -2
"""The first lane's number in a column of GPUs, the next one's is one less: no GPU has it."""
_LABELLED = re.compile(r"(?P<label>.*\S)\s+\S+")
_NUMBERS = re.compile(r"\d+")
_CLOCK_US = 100.0
"""Hardly any work seems to begin so long before its launch, by clocks that are apart."""
_AS_MANY = 0.99
"""A process may have launched a lane's work when it could have launched this part of what the
likeliest one could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Where a GPU's work is shown whose process is not the number of the GPU."""

    process: Process
    device: int
    rank: int | None = None
    """The rank that a tool wrote beside each event."""


def ranks_of(trace: Trace, lanes: Sequence[Lane]) -> list[Trace]:
    """The trace, or one for each rank where several were joined in it; lanes become GPUs again."""
    members = _members(trace, lanes)
    if len(members) < 2:
        return [_with_gpus(trace, lanes)]
    ranks, source = _numbers(members, lanes)
    said = f"{len(members)} ranks are joined in this file, told apart; their numbers are {source}"
    found = [_part(trace, one) for one in members]
    return [
        replace(
            _with_gpus(part, lanes),
            file=named_part(trace.file, f"rank {rank}"),
            rank=rank,
            warnings=(said, *trace.warnings),
        )
        for rank, part in sorted(zip(ranks, found, strict=True), key=lambda pair: pair[0])
    ]


@dataclass(slots=True, kw_only=True)
class _Member:
    """A rank of the job, by its processes on the host and its lanes, as the columns number them."""

    processes: list[Process]
    lanes: list[int]


def _members(trace: Trace, lanes: Sequence[Lane]) -> list[_Member]:
    columns = sorted(distinct(trace.gpu.device).tolist(), key=lambda one: (one < 0, abs(one)))
    if len(columns) < 2:
        return []
    owners = _by_label(trace, columns, lanes) or _by_launches(trace, columns)
    found: dict[Process, _Member] = {}
    joined, nobodys = min(columns) <= FIRST_LANE, []
    for lane in columns:
        owner = owners.get(lane)
        if owner is None and joined and _has_collectives(trace, lane):
            owner = f"lane {lane}"
        if owner is None:
            nobodys.append(lane)
        else:
            found.setdefault(owner, _Member(processes=[], lanes=[])).lanes.append(lane)
    if len(found) > 1:
        next(iter(found.values())).lanes.extend(nobodys)
        _divide_processes(trace, found)
    return list(found.values())


def _label(process: Process) -> str | None:
    """The words before a process's number, where a tool wrote some."""
    written = _LABELLED.fullmatch(process) if isinstance(process, str) else None
    return written["label"] if written else None


def _by_label(trace: Trace, columns: Sequence[int], lanes: Sequence[Lane]) -> dict[int, Process]:
    """Lane → its label, where each lane has one that a process on the host has too."""
    found: dict[int, Process] = {}
    of_hosts = {_label(process) for process, _ in trace.threads}
    for column in columns:
        label = _label(lanes[FIRST_LANE - column].process) if column <= FIRST_LANE else None
        if label is None or (trace.threads and label not in of_hosts):
            return {}
        found[column] = label
    return found


def _by_launches(trace: Trace, columns: Sequence[int]) -> dict[int, Process]:
    """Lane → the process that launched most of its work.

    Where several may have, lanes and processes stand in the same order, one of each for a rank.
    """
    host, gpu = trace.host, trace.gpu
    calls = np.flatnonzero(host.is_call & (host.correlation != ABSENT))
    of_thread, processes = _processes(trace)
    of_call = of_thread[host.thread[calls]] if len(calls) else calls
    callers = distinct(of_call).tolist()
    found: dict[int, Process] = {}
    for number, column in enumerate(columns):
        rows = np.flatnonzero((gpu.device == column) & (gpu.correlation != ABSENT))
        lags = {one: _lags(trace, rows, calls[of_call == one]) for one in callers}
        most = max((len(lag) for lag in lags.values()), default=0)
        likely = [one for one in callers if most and len(lags[one]) >= _AS_MANY * most]
        if len(columns) == len(callers) and callers[number] in likely:
            found[column] = processes[callers[number]]
        elif likely:
            found[column] = processes[min(likely, key=lambda one: abs(median(lags[one])))]
    return found


def _lags(trace: Trace, rows: Ints, calls: Ints) -> Any:
    """How long after its launch each GPU event began of which one of these calls is the launch."""
    host, gpu = trace.host, trace.gpu
    order = calls[np.argsort(host.correlation[calls], kind="stable")]
    numbers = host.correlation[order]
    place = np.minimum(np.searchsorted(numbers, gpu.correlation[rows]), len(numbers) - 1)
    there = numbers[place] == gpu.correlation[rows]
    lag = gpu.start_us[rows[there]] - host.start_us[order[place[there]]]
    return lag[lag > -_CLOCK_US]


def _processes(trace: Trace) -> tuple[Ints, list[Process]]:
    """Process of each thread as a number, and what each number stands for."""
    numbers: dict[Process, int] = {}
    found = [numbers.setdefault(process, len(numbers)) for process, _ in trace.threads]
    return np.array(found, np.int64), list(numbers)


def _has_collectives(trace: Trace, lane: int) -> bool:
    gpu = trace.gpu
    return bool((gpu.collective[gpu.device == lane] != ABSENT).any())


def _divide_processes(trace: Trace, members: dict[Process, _Member]) -> None:
    """Give each process to the rank that it launched for, has the label of, or stands behind."""
    last = next(iter(members))
    for process in dict.fromkeys(process for process, _ in trace.threads):
        last = next((one for one in (process, _label(process)) if one in members), last)
        members[last].processes.append(process)


def _numbers(members: Sequence[_Member], lanes: Sequence[Lane]) -> tuple[list[int], str]:
    """The rank of each, and where that is from."""
    own = [[lanes[FIRST_LANE - lane] for lane in one.lanes if lane <= FIRST_LANE]
           for one in members]  # fmt: skip
    written = [lane[0].rank if lane else None for lane in own]
    labels = [_NUMBERS.findall((_label(lane[0].process) or "") if lane else "") for lane in own]
    labelled = [int(found[0]) if len(found) == 1 else None for found in labels]
    for ranks, source in ((written, "those beside its events"), (labelled, "those of its labels")):
        known = {rank for rank in ranks if rank is not None}
        free = [rank for rank in range(len(members)) if rank not in known]
        # The first one's processes may have kept their numbers.
        if len(known) >= len(members) - 1 and ranks.count(None) == len(members) - len(known):
            return [free[0] if rank is None else rank for rank in ranks], source
    return list(range(len(members))), "their order in it"


def _part(trace: Trace, member: _Member) -> Trace:
    """What belongs to one rank."""
    of_thread, processes = _processes(trace)
    own = np.array([process in member.processes for process in processes], bool)
    of_member = own[of_thread] if len(of_thread) else np.zeros(0, bool)

    def by_lane(table: Any) -> Any:
        return _rows(table, np.isin(table.device, member.lanes))

    def by_thread(table: Any) -> Any:
        return _rows(table, of_member[table.thread] if len(table) else np.zeros(0, bool))

    tables = {
        "gpu": by_lane(trace.gpu), "gpu_annotations": by_lane(trace.gpu_annotations),
        "sync": by_lane(trace.sync), "host": by_thread(trace.host),
        "memory": by_thread(trace.memory),
    }  # fmt: skip
    return replace(
        trace, num_events=sum(len(table) for table in tables.values()), _derived={}, **tables
    )


def _rows(table: Any, which: Mask) -> Any:
    columns = {column.name: getattr(table, column.name)[which] for column in fields(table)}
    return type(table)(**columns)


def _with_gpus(trace: Trace, lanes: Sequence[Lane]) -> Trace:
    """The trace with the numbers of GPUs in place of those of lanes."""
    if not lanes:
        return trace
    gpus = np.array([lane.device for lane in lanes], np.int32)
    tables = {}
    for name in ("gpu", "gpu_annotations", "sync"):
        table = getattr(trace, name)
        lane = table.device <= FIRST_LANE
        if lane.any():
            device = table.device.copy()
            device[lane] = gpus[FIRST_LANE - device[lane]]
            tables[name] = TABLES[name](**{
                column.name: device if column.name == "device" else getattr(table, column.name)
                for column in fields(table)
            })  # fmt: skip
    return replace(trace, **tables)
