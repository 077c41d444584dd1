"""Lines of slurm.conf on nodes and partitions, and what `scontrol show partition` prints.

A line `NodeName=DEFAULT` (or `PartitionName=DEFAULT`) is for all that follow. Source: manual page
of slurm.conf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.queue.readers.slurm_json import Cells, Rows

CONF_NODES, PARTITIONS = "conf_nodes", "partitions"
SHOWS_PARTITION = re.compile(r"\s*PartitionName=")
BEGINS = re.compile(r"\s*(Node|Partition)Name=", re.IGNORECASE)
_PAIR = re.compile(r"(\w+)=(\"[^\"]*\"|\S*)")
_NODE, _PARTITION = "nodename", "partitionname"


def conf_rows(text: str, where: str) -> dict[str, Rows]:
    """The nodes and partitions of slurm.conf."""
    found: dict[str, Rows] = {CONF_NODES: [], PARTITIONS: []}
    usual: dict[str, Cells] = {_NODE: {}, _PARTITION: {}}
    for number, line in _joined(text):
        pairs = {key.casefold(): value.strip('"') for key, value in _PAIR.findall(line)}
        kind = next((one for one in (_NODE, _PARTITION) if line.casefold().startswith(one)), "")
        if not kind:
            continue
        if pairs[kind].upper() == "DEFAULT":
            usual[kind] |= pairs
            continue
        of_all, at = usual[kind] | pairs, f"{where}, line {number}"
        if kind == _NODE:
            found[CONF_NODES].append((at, _node_cells(of_all)))
        else:
            found[PARTITIONS].append((at, _partition_cells(of_all)))
    return found


def partition_rows(text: str, where: str) -> Rows:
    """What `scontrol show partition` prints."""
    blocks = re.split(r"(?=^\s*PartitionName=)", text, flags=re.MULTILINE)
    rows = []
    for block in blocks:
        pairs = {key.casefold(): value for key, value in _PAIR.findall(block)}
        if _PARTITION in pairs:
            at = f"{where}: partition {pairs[_PARTITION]}"
            rows.append((at, _partition_cells(pairs)))
    return rows


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines without remarks, with those that a backslash ends joined to the next."""
    begun, begun_at = "", 0
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        told = line.partition("#")[0].strip()
        begun_at = begun_at or number
        if told.endswith("\\"):
            begun += told[:-1] + " "
            continue
        yield begun_at, begun + told
        begun, begun_at = "", 0


def _node_cells(pairs: Cells) -> Cells:
    cpus = pairs.get("cpus") or pairs.get("procs", "")
    sizes = [pairs.get(one, "") for one in ("sockets", "corespersocket", "threadspercore")]
    if not cpus and all(one.isdigit() for one in sizes[:2]):
        threads = int(sizes[2]) if sizes[2].isdigit() else 1
        cpus = str(int(sizes[0]) * int(sizes[1]) * threads)
    found = {
        "NODELIST": pairs[_NODE],
        "GRES": pairs.get("gres", ""),
        "CPUS": cpus,
        "MEMORY": pairs.get("realmemory", ""),
    }
    features = pairs.get("features") or pairs.get("feature", "")
    return found | ({"ACTIVE_FEATURES": features} if features else {})


def _partition_cells(pairs: Cells) -> Cells:
    return {
        "PARTITION": pairs[_PARTITION],
        "NODELIST": pairs.get("nodes", ""),
        "UP": pairs.get("state", "UP").upper(),
        "MAX_CPUS": pairs.get("maxcpuspernode", ""),
        "DEFAULT": pairs.get("default", "").upper(),
    }
