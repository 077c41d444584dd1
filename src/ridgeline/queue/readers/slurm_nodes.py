"""Nodes with GPUs as sinfo and scontrol print them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.queue.readers import slurm_show
from ridgeline.queue.readers.slurm_printed import (
    SINFO,
    SlurmRow,
    cell,
    node_names,
    printed_by_slurm,
)
from ridgeline.queue.readers.slurm_resources import gpu_types, gpus_by_kind, num_gpus, profile_in

_SHARES = re.compile(r"(\d+)/\d+/\d+/(\d+)")
"""Cores given away, idle, of other states and in all, as sinfo prints them together."""
_CLOSED = ("down", "drain", "drng", "fail", "maint", "unk", "resv", "reserved", "reboot", "futur",
           "inval", "block", "no_respond", "*")  # fmt: skip
"""Parts of the states in which a node takes no jobs; one that is saving power is woken for them."""


@dataclass(slots=True)
class SlurmNodes:
    """Nodes that have GPUs, of every partition."""

    gpus: dict[str, int] = field(default_factory=dict)
    gres: dict[str, str] = field(default_factory=dict)
    """The generic resources of each, as they are written."""
    types: dict[str, set[str]] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    """Where it is told, as is memory."""
    memory_gibibytes: dict[str, float] = field(default_factory=dict)
    cpus_used: dict[str, float] = field(default_factory=dict)
    """Cores of each that are given away, where it is told, as is memory."""
    gibibytes_used: dict[str, float] = field(default_factory=dict)
    most_cpus: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The cores of a node that its partition lets jobs have, and which that is."""
    used: dict[str, str] = field(default_factory=dict)
    """The generic resources of each that are given away, as they are written, where it is told."""
    closed: dict[str, str] = field(default_factory=dict)
    """Why nodes take no jobs, of those that take none."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What whoever closed a node has written of it, where it is told."""
    features: dict[str, frozenset[str]] = field(default_factory=dict)
    """What jobs may ask of nodes by `--constraint`, where it is told."""
    partitions: dict[str, set[str]] = field(default_factory=dict)
    """Names of nodes, by partition."""
    without_gpus: set[str] = field(default_factory=set)
    """Partitions that have nodes without GPUs."""
    with_state: set[str] = field(default_factory=set)
    """The nodes that somebody tells the state of."""
    usual: str = ""
    """The partition of jobs that name none."""


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
    named = "NODELIST" in first or {"HOSTNAMES", "GRES"} <= set(first.split())
    return named or bool(slurm_show.BEGINS.match(start))


def open_nodes(text: str, where: str) -> list[OpenNode]:
    """Each node with whole GPUs that takes jobs; MIG instances are none, and are left out.

    Raises:
        InputError: A field is missing, or no node has a GPU.
    """
    printed = printed_by_slurm(text, where)
    if printed.kind != "sinfo":
        raise InputError(f"{where}: what {printed.kind} prints, and no nodes; print {SINFO}")
    nodes = slurm_nodes(printed.rows, where)
    found = []
    for name in nodes.gpus:
        kinds = {kind: count for kind, count in gpus_by_kind(nodes.gres[name]).items()
                 if not profile_in(kind)}  # fmt: skip
        if kinds and name not in nodes.closed:
            found.append(
                OpenNode(
                    gpus=sum(kinds.values()),
                    gpu_type=next(iter(kinds)) if len(kinds) == 1 else "",
                    cpus=nodes.cpus.get(name),
                    memory_gibibytes=nodes.memory_gibibytes.get(name),
                )
            )
    return found


def slurm_nodes(
    rows: Sequence[SlurmRow], where: str, *, states_told: bool = True, how: str = SINFO
) -> SlurmNodes:
    """Nodes with GPUs, of all partitions.

    Args:
        rows: Lines of nodes; of several on one node each adds what it tells.
        where: What they were read from.
        states_told: A line without a state is an error, and not of a node that is up.
        how: What prints them as they are wanted.

    Raises:
        InputError: A column is missing, or no node has a GPU.
    """
    found = SlurmNodes()
    for row in rows:
        gres = row.cells.get("GRES", "") if not states_told else cell(row, "GRES", SINFO)
        if gpus := num_gpus(gres):
            for name in node_names(row, "NODELIST"):
                _add_resources(found, name, gpus, row)
    for row in rows:
        _add_state(found, row, states_told=states_told)
    if not found.gpus:
        raise InputError(f"{where}: no node with a GPU in GRES; print it with {how}")
    return found


def _add_resources(found: SlurmNodes, name: str, gpus: int, row: SlurmRow) -> None:
    """What a node has, by a line that tells its GPUs."""
    gres = row.cells["GRES"]
    found.gpus[name], found.gres[name], found.types[name] = gpus, gres, gpu_types(gres)
    told = row.cells.get("ACTIVE_FEATURES", row.cells.get("AVAIL_FEATURES"))
    if told is not None and told != "(null)":
        found.features[name] = frozenset(one for one in told.split(",") if one)
    if (cpus := row.cells.get("CPUS", "")).isdigit():
        found.cpus[name] = float(cpus)
    if (memory := row.cells.get("MEMORY", "")).isdigit():
        found.memory_gibibytes[name] = int(memory) / 1024.0
    _add_used(found, name, row)
    if "GRES_USED" in row.cells:
        found.used[name] = row.cells["GRES_USED"]


def _add_used(found: SlurmNodes, name: str, row: SlurmRow) -> None:
    """Cores and memory that a node has given away, where it says so."""
    if shares := _SHARES.fullmatch(row.cells.get("CPUS(A/I/O/T)", "")):
        found.cpus_used[name], found.cpus[name] = float(shares[1]), float(shares[2])
    if (cpus := row.cells.get("CPUS_USED", "")).isdigit():
        found.cpus_used[name] = float(cpus)
    if (memory := row.cells.get("MEMORY_USED", "")).isdigit():
        found.gibibytes_used[name] = int(memory) / 1024.0


def _add_state(found: SlurmNodes, row: SlurmRow, *, states_told: bool) -> None:
    """The partition of nodes, and whether they take jobs."""
    partition = row.cells.get("PARTITION", "")
    if partition.endswith("*"):
        found.usual = partition.rstrip("*")
    inside = found.partitions.setdefault(partition.rstrip("*"), set())
    for name in node_names(row, "NODELIST"):
        if name not in found.gpus:
            found.without_gpus.add(partition.rstrip("*"))
            continue
        inside.add(name)
        if "STATE" not in row.cells and not states_told:
            continue
        found.with_state.add(name)
        told = cell(row, "STATE", SINFO).casefold()
        if any(word in told.replace("powered_down", "") for word in _CLOSED):
            found.closed[name] = told
            if row.cells.get("REASON", "").casefold() not in ("", "none"):
                found.reasons[name] = row.cells["REASON"]
