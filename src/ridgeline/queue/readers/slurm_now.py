"""What a Slurm cluster does now, as `sinfo`, `squeue` and `sacct` print it.

    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt
    squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt
    sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Fields as in their manual pages; what they print with `--json`, and `scontrol show node` and `show
job`, will do as well. Nodes are those of one partition that take jobs; whoever runs on
them, or waits for a partition that shares nodes with it, stands in the way. Jobs that are held, or
wait for others or for their time, do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.queue_now import AskedNow, HeldNow, QueueNow
from ridgeline.queue.readers import slurm, slurm_show
from ridgeline.queue.readers.hostlist import host_names
from ridgeline.queue.readers.moments import duration_seconds, time_limit_seconds
from ridgeline.queue.readers.slurm_json import SACCT_FIELDS, json_rows
from ridgeline.queue.readers.slurm_resources import gpu_types, num_gpus
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs
from ridgeline.records.input_file import read_text

SINFO = 'sinfo -N -o "%N|%G|%T|%P" > sinfo.txt'
SQUEUE = 'squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt'
SACCT = (
    "sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
    " > sacct.txt"
)
SLURM_CURE = f"print {SINFO}; {SQUEUE}; {SACCT}"
_CLOSED = ("down", "drain", "drng", "fail", "maint", "unk", "resv", "reserved", "reboot", "futur",
           "inval", "block", "no_respond", "*")  # fmt: skip
"""Parts of the states in which a node takes no jobs; one that is saving power is woken for them."""
_HOLDS = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
          "R", "CG", "CF"}  # fmt: skip
_WAITS = {"PENDING", "PD"}
_NOT_YET = ("dependency", "jobheld", "begintime")
_TASKS = re.compile(r"_\[([^\]]*)\]$")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?")
_NO_GPU = {"n/a", "(null)", ""}


@dataclass(slots=True)
class _Nodes:
    """Nodes that have GPUs, of every partition."""

    gpus: dict[str, int] = field(default_factory=dict)
    types: dict[str, set[str]] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    """Where it is told, as is memory."""
    memory_gibibytes: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    partitions: dict[str, set[str]] = field(default_factory=dict)
    """Names of nodes, by partition."""
    usual: str = ""
    """The partition of jobs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A line and where it stands."""

    at: str
    where: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    """What a command has printed: its text where that is sacct's table, else its rows."""

    kind: str
    where: str
    rows: Sequence[_Row] = ()
    text: str = ""

    def ended(self) -> TracedJobs:
        """The jobs that sacct tells of."""
        if self.text:
            return slurm.read_table(self.text, self.where)
        lines = [(row.at, dict(row.cells)) for row in self.rows]
        return slurm.jobs_of(lines, SACCT_FIELDS, self.where, BadRows(skip=False))


def read_slurm_now(paths: Sequence[Path], *, partition: str = "", gpu_type: str = "") -> QueueNow:
    """The queue of one partition.

    Args:
        paths: What sinfo, squeue and sacct print, in any order.
        partition: The one that a job is sent to; empty: the cluster's default.
        gpu_type: The GPUs that it insists on; empty: any.

    Raises:
        InputError: A file is none of them, one is lacking, or a line makes no sense; which.
    """
    printed: dict[str, _Printed] = {}
    for path in paths:
        found = _printed(read_text(path, option="--state", cure=SLURM_CURE), f"--state {path}")
        if found.kind in printed:
            raise InputError(f"--state {path}: a second file of {found.kind}; give one")
        printed[found.kind] = found
    for kind, how in (("sinfo", SINFO), ("squeue", SQUEUE), ("sacct", SACCT)):
        if kind not in printed:
            raise InputError(f"--state: what {kind} prints is lacking; print it with {how}")
    nodes = _nodes(printed["sinfo"].rows, printed["sinfo"].where)
    chosen = _partition(nodes, partition)
    of_type = {name for name, kinds in nodes.types.items() if not gpu_type or gpu_type in kinds}
    mine = {name for name in nodes.partitions[chosen] & of_type if name not in nodes.closed}
    rivals = {name for name, others in nodes.partitions.items() if others & mine}
    running, waiting = _queued(printed["squeue"].rows, nodes, (mine, rivals), gpu_type)
    traced = printed["sacct"].ended().jobs
    lasted = zip(traced.queues, traced.duration_seconds.tolist(), strict=True)
    return QueueNow(
        node_gpus=tuple(nodes.gpus[name] for name in sorted(mine)),
        running=tuple(running),
        waiting=tuple(waiting),
        ended_seconds=tuple(
            one for name, one in lasted if one > 0 and (not name or name == chosen)
        ),
        policy="easy",
        cure=f"print more of partition {chosen}'s past: {SACCT}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode:
    """A node with GPUs that takes jobs."""

    gpus: int
    gpu_type: str
    """The kind of its GPUs; empty: it has several at once, or does not tell."""
    cpus: float | None
    memory_gibibytes: float | None


def prints_nodes(text: str) -> bool:
    """Whether a text may be nodes as Slurm prints them."""
    start = text.lstrip("\ufeff").lstrip()
    first = start.partition("\n")[0]
    return "NODELIST" in first or bool(slurm_show.BEGINS.match(start))


def open_nodes(text: str, where: str) -> list[OpenNode]:
    """Each node with GPUs that takes jobs.

    Raises:
        InputError: A field is missing, or no node has a GPU.
    """
    printed = _printed(text, where)
    if printed.kind != "sinfo":
        raise InputError(f"{where}: what {printed.kind} prints, and no nodes; print {SINFO}")
    nodes = _nodes(printed.rows, where)
    return [
        OpenNode(
            gpus=gpus,
            gpu_type=next(iter(kinds)) if len(kinds := nodes.types[name]) == 1 else "",
            cpus=nodes.cpus.get(name),
            memory_gibibytes=nodes.memory_gibibytes.get(name),
        )
        for name, gpus in nodes.gpus.items()
        if name not in nodes.closed
    ]


def _printed(text: str, where: str) -> _Printed:
    """What one of Slurm's commands has printed, in whichever form."""
    start = text.lstrip("\ufeff").lstrip()
    first = start.partition("\n")[0]
    words = set(re.split(r"[|\t ]+", first.strip()))
    if slurm.is_header(first):
        return _Printed(kind="sacct", where=where, text=text)
    if start.startswith("{"):
        kind, rows = json_rows(text, where, cure=SLURM_CURE)
    elif slurm_show.BEGINS.match(start):
        kind, rows = slurm_show.shown_rows(text, where)
    elif "JOBID" in words:
        return _Printed(kind="squeue", where=where, rows=_rows(text, where, SQUEUE))
    elif "NODELIST" in words and "GRES" in words:
        return _Printed(kind="sinfo", where=where, rows=_rows(text, where, SINFO))
    else:
        raise InputError(f"{where}: nothing that sinfo, squeue or sacct prints; {SLURM_CURE}")
    return _Printed(
        kind=kind, where=where, rows=[_Row(at=at, where=where, cells=cells) for at, cells in rows]
    )


def _rows(text: str, where: str, how: str) -> list[_Row]:
    """Lines under their header, which are parted by `|`, or else by blanks."""
    lines = text.lstrip("\ufeff").splitlines()
    mark = "|" if "|" in lines[0] else None
    head = [one.strip() for one in lines[0].split(mark)]
    found = []
    for number, line in enumerate(lines[1:], 2):
        cells = [one.strip() for one in line.split(mark)]
        if not line.strip() or cells == head:
            continue
        if len(cells) != len(head):
            raise InputError(
                f"{where}, line {number}: {len(cells)} fields under {len(head)}; print it with"
                f" {how}"
            )
        found.append(
            _Row(
                at=f"{where}, line {number}", where=where, cells=dict(zip(head, cells, strict=True))
            )
        )
    return found


def _cell(row: _Row, name: str, how: str) -> str:
    if name not in row.cells:
        raise InputError(f"{row.where}: no field {name}; print it with {how}")
    return row.cells[name]


def _nodes(rows: Sequence[_Row], where: str) -> _Nodes:
    found = _Nodes()
    for row in rows:
        gres = _cell(row, "GRES", SINFO)
        gpus = num_gpus(gres)
        partition = _cell(row, "PARTITION", SINFO)
        if partition.endswith("*"):
            found.usual = partition.rstrip("*")
        inside = found.partitions.setdefault(partition.rstrip("*"), set())
        for name in _names(row, "NODELIST"):
            if not gpus:
                continue
            found.gpus[name] = gpus
            found.types[name] = gpu_types(gres)
            if (cpus := row.cells.get("CPUS", "")).isdigit():
                found.cpus[name] = float(cpus)
            if (memory := row.cells.get("MEMORY", "")).isdigit():
                found.memory_gibibytes[name] = int(memory) / 1024.0
            inside.add(name)
            state = _cell(row, "STATE", SINFO).casefold().replace("powered_down", "")
            if any(word in state for word in _CLOSED):
                found.closed.add(name)
    if not found.gpus:
        raise InputError(f"{where}: no node with a GPU in GRES; print it with {SINFO}")
    return found


def _partition(nodes: _Nodes, asked: str) -> str:
    chosen = asked or nodes.usual
    if not chosen and len(nodes.partitions) == 1:
        chosen = next(iter(nodes.partitions))
    known = ", ".join(sorted(nodes.partitions))
    if not chosen:
        raise InputError(
            f"--state: sinfo marks no partition as the default; name one of {known} as"
            " slurm.partition in --cluster"
        )
    if chosen not in nodes.partitions:
        raise InputError(f"slurm.partition is {chosen!r}; sinfo knows {known}")
    return chosen


def _queued(
    rows: Sequence[_Row], nodes: _Nodes, place: tuple[set[str], set[str]], gpu_type: str
) -> tuple[list[HeldNow], list[AskedNow]]:
    """Jobs on nodes of ours, and jobs that wait for a partition that shares some with it."""
    mine, rivals = place
    held: list[HeldNow] = []
    asked: list[tuple[tuple[float, str, int], AskedNow, int]] = []
    for number, row in enumerate(rows):
        state = _cell(row, "STATE", SQUEUE).upper()
        gpus = _job_gpus(row)
        limit = limit_seconds(row.cells.get("TIME_LIMIT", ""), f"{row.at}: TIME_LIMIT")
        if not gpus or state not in _HOLDS | _WAITS:
            continue
        if state in _HOLDS:
            names = [name for name in _names(row, "NODELIST") if name in nodes.gpus]
            share = sum(name in mine for name in names) / max(1, len(names))
            if share:
                held.append(HeldNow(num_gpus=max(1, round(gpus * share)), age_seconds=_age(row),
                                    limit_seconds=limit))  # fmt: skip
            continue
        kinds = gpu_types(_asked(row))
        reason = row.cells.get("REASON", "").strip("()").casefold()
        if (
            reason.startswith(_NOT_YET)
            or not rivals.intersection(_cell(row, "PARTITION", SQUEUE).split(","))
            or (gpu_type and kinds and gpu_type not in kinds)
        ):
            continue
        rank = (-_priority(row), row.cells.get("SUBMIT_TIME", ""), number)
        asked.append((rank, AskedNow(num_gpus=gpus, limit_seconds=limit), _tasks(row)))
    asked.sort(key=lambda one: one[0])
    return held, [one for _, one, times in asked for _ in range(times)]


def _asked(row: _Row) -> str:
    """The resources of a job, in whichever form they are printed."""
    for name in ("TRES_ALLOC", "TRES", "TRES_PER_NODE", "TRES_PER_JOB", "GRES"):
        text = row.cells.get(name, "")
        if text.casefold() not in _NO_GPU:
            return text
    if not {"TRES_ALLOC", "TRES", "TRES_PER_NODE", "TRES_PER_JOB", "GRES"} & row.cells.keys():
        raise InputError(f"{row.where}: no field TRES_PER_NODE; print {SQUEUE}")
    return ""


def _job_gpus(row: _Row) -> int:
    return num_gpus(_asked(row), {"NNodes": row.cells.get("NODES", "1")})


def _names(row: _Row, column: str) -> list[str]:
    text = _cell(row, column, SINFO if column == "NODELIST" and "GRES" in row.cells else SQUEUE)
    found = host_names(text)
    if found is None:
        raise InputError(f"{row.at}: {column} is {text!r}, no list of nodes")
    return found


def _age(row: _Row) -> float:
    text = _cell(row, "TIME", SQUEUE)
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


def _priority(row: _Row) -> float:
    text = row.cells.get("PRIORITY", "") or "0"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{row.at}: PRIORITY is {text!r}; print it as a number (%Q)") from None


def _tasks(row: _Row) -> int:
    """How many tasks of an array wait on one line, as `77_[3-8%2]`.

    At most as many at once as follow the `%` are ahead of others.
    """
    found = _TASKS.search(_cell(row, "JOBID", SQUEUE))
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
