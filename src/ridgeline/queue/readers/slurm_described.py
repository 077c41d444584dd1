"""Nodes and partitions of Slurm put together from whatever tells of them.

sinfo's own tables tell states and partitions, slurm.conf (or `scontrol show node`) the GPUs, and
`scontrol show partition` which partitions take jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.quantity import several
from ridgeline.queue.readers.slurm_beside import CONF, SPRIO, SSHARE
from ridgeline.queue.readers.slurm_conf import CONF_NODES, PARTITIONS, conf_rows
from ridgeline.queue.readers.slurm_json import Rows
from ridgeline.queue.readers.slurm_nodes import SlurmNodes, slurm_nodes
from ridgeline.queue.readers.slurm_printed import STATES, SlurmPrint, SlurmRow, node_names

SINFO_STATE = 'sinfo -N -o "%N|%G|%T|%P|%c|%m" > sinfo.txt'
_PARTITION_WIDTH = 9
"""squeue's own form cuts names of partitions to so many letters."""


def described_nodes(
    printed: Mapping[str, SlurmPrint], first: Path
) -> tuple[SlurmNodes, list[SlurmRow], tuple[str, ...]]:
    """The nodes, the lines on partitions, and what had to be taken for granted.

    Raises:
        InputError: Nothing tells which nodes there are, or how many GPUs they have.
    """
    conf = printed.get(CONF)
    written = conf_rows(conf.text, conf.where) if conf else {}
    partitions = list(printed[PARTITIONS].rows) if PARTITIONS in printed else []
    states = [row for kind in ("sinfo", STATES) if kind in printed for row in printed[kind].rows]
    of_conf = _as_rows(written.get(CONF_NODES, []), conf)
    if not states and not of_conf:
        raise InputError(f"{first}: what sinfo prints is lacking; print it with {SINFO_STATE}")
    told = any(row.cells.get("GRES") for row in [*of_conf, *states])
    if not told and not (conf or "sinfo" in printed):
        raise InputError(
            f"{printed[STATES].where}: a table of sinfo's without GRES, the GPUs of its nodes; add"
            f" slurm.conf or scontrol show node, or print {SINFO_STATE}"
        )
    where = states[0].where if states else of_conf[0].where
    nodes = slurm_nodes([*of_conf, *states], where, states_told=False, how=SINFO_STATE)
    partitions = partitions or _as_rows(written.get(PARTITIONS, []), conf)
    partitions = [*_not_up(states), *partitions]
    if not any(nodes.partitions.get(name) for name in nodes.partitions if name):
        _add_partitions(nodes, partitions)
    _cap(nodes, partitions)
    return nodes, partitions, _notes(printed, nodes)


def completed_partitions(rows: Sequence[SlurmRow], nodes: SlurmNodes) -> list[SlurmRow]:
    """Jobs in the partitions that they name, of which squeue may have cut the names."""
    found = []
    for row in rows:
        name = row.cells.get("PARTITION", "")
        longer = [one for one in nodes.partitions if one.startswith(name)]
        cut = len(name) == _PARTITION_WIDTH and name not in nodes.partitions and len(longer) == 1
        cells = {**row.cells, "PARTITION": longer[0]} if cut else row.cells
        found.append(SlurmRow(at=row.at, where=row.where, cells=cells))
    return found


def _as_rows(rows: Rows, conf: SlurmPrint | None) -> list[SlurmRow]:
    where = conf.where if conf else ""
    return [SlurmRow(at=at, where=where, cells=cells) for at, cells in rows]


def _not_up(states: Sequence[SlurmRow]) -> list[SlurmRow]:
    """The partitions that sinfo's column AVAIL says take no jobs."""
    found = []
    for row in states:
        up = row.cells.get("AVAIL", "up").upper()
        if up != "UP":
            name = row.cells.get("PARTITION", "").rstrip("*")
            cells = {"PARTITION": name, "NODELIST": "", "UP": up, "DEFAULT": ""}
            found.append(SlurmRow(at=row.at, where=row.where, cells=cells))
    return found


def _add_partitions(nodes: SlurmNodes, partitions: Sequence[SlurmRow]) -> None:
    """The nodes of each partition, where only slurm.conf tells them."""
    for row in partitions:
        all_of_them = row.cells["NODELIST"].upper() == "ALL"
        names = set(nodes.gpus) if all_of_them else set(node_names(row, "NODELIST"))
        nodes.partitions[row.cells["PARTITION"]] = names & set(nodes.gpus)
        if names - set(nodes.gpus):
            nodes.without_gpus.add(row.cells["PARTITION"])


def _cap(nodes: SlurmNodes, partitions: Sequence[SlurmRow]) -> None:
    """Fewer cores of nodes of a single partition that lets jobs have no more (MaxCPUsPerNode)."""
    most = {row.cells["PARTITION"]: row.cells.get("MAX_CPUS", "") for row in partitions}
    for name, inside in nodes.partitions.items():
        alone = inside - {node for other, them in nodes.partitions.items() if other != name
                          for node in them}  # fmt: skip
        if most.get(name, "").isdigit():
            cores, told = float(most[name]), f"MaxCPUsPerNode={most[name]} of partition {name}"
            nodes.most_cpus |= dict.fromkeys(alone, (cores, told))


def _notes(printed: Mapping[str, SlurmPrint], nodes: SlurmNodes) -> tuple[str, ...]:
    notes = []
    silent = [name for name in nodes.gpus if name not in nodes.with_state]
    if silent:
        notes.append(
            f"nothing tells the state of {several(len(silent), 'node')} ({silent[0]}): taken to be"
            f" up; print {SINFO_STATE}"
        )
    ranks = [kind for kind in (SPRIO, SSHARE) if kind in printed]
    if ranks:
        notes.append(
            f"{' and '.join(ranks)} say who comes first, not what keeps GPUs free: left out"
        )
    return tuple(notes)
