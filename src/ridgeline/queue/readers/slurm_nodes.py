"""Nodes with GPUs as sinfo and scontrol print them."""

from __future__ import annotations

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


def slurm_nodes(rows: Sequence[SlurmRow], where: str) -> SlurmNodes:
    """Nodes with GPUs, of all partitions.

    Raises:
        InputError: A column is missing, or no node has a GPU.
    """
    found = SlurmNodes()
    for row in rows:
        gres = cell(row, "GRES", SINFO)
        gpus = num_gpus(gres)
        partition = row.cells.get("PARTITION", "")
        if partition.endswith("*"):
            found.usual = partition.rstrip("*")
        inside = found.partitions.setdefault(partition.rstrip("*"), set())
        for name in node_names(row, "NODELIST"):
            if not gpus:
                continue
            found.gpus[name] = gpus
            found.types[name] = gpu_types(gres)
            found.gres[name] = gres
            told = row.cells.get("ACTIVE_FEATURES", row.cells.get("AVAIL_FEATURES"))
            if told is not None:
                found.features[name] = frozenset(one for one in told.split(",") if one)
            if (cpus := row.cells.get("CPUS", "")).isdigit():
                found.cpus[name] = float(cpus)
            if (memory := row.cells.get("MEMORY", "")).isdigit():
                found.memory_gibibytes[name] = int(memory) / 1024.0
            inside.add(name)
            if "GRES_USED" in row.cells:
                found.used[name] = row.cells["GRES_USED"]
            state = cell(row, "STATE", SINFO).casefold().replace("powered_down", "")
            if any(word in state for word in _CLOSED):
                found.closed[name] = cell(row, "STATE", SINFO).casefold()
                if row.cells.get("REASON", "").casefold() not in ("", "none"):
                    found.reasons[name] = row.cells["REASON"]
    if not found.gpus:
        raise InputError(f"{where}: no node with a GPU in GRES; print it with {SINFO}")
    return found
