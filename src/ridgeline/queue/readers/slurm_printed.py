"""What Slurm's commands have printed, in whichever form, as rows under the names of columns.

    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt
    squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt
    sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Fields as in their manual pages; what they print with `--json`, and `scontrol show node` and `show
job`, will do as well. What else administrators have is read in `slurm_beside.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.readers import slurm, slurm_json, slurm_show
from ridgeline.queue.readers.hostlist import host_names
from ridgeline.queue.readers.slurm_beside import kind_beside, rows_beside
from ridgeline.queue.readers.slurm_json import SACCT_FIELDS, json_rows
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs
from ridgeline.records.input_file import read_text

SINFO = 'sinfo -N -o "%N|%G|%T|%P" > sinfo.txt'
SQUEUE = 'squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt'
SACCT = (
    "sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
    " > sacct.txt"
)
SLURM_CURE = f"print {SINFO}; {SQUEUE}; {SACCT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRow:
    """A line and where it stands."""

    at: str
    where: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPrint:
    """What a command has printed: its text where that is sacct's table, else its rows."""

    kind: str
    where: str
    rows: Sequence[SlurmRow] = ()
    text: str = ""

    def ended(self) -> TracedJobs:
        """The jobs that sacct tells of."""
        if self.text:
            return slurm.read_table(self.text, self.where)
        lines = [(row.at, dict(row.cells)) for row in self.rows]
        return slurm.jobs_of(lines, SACCT_FIELDS, self.where, BadRows(skip=False))


def is_slurm(text: str) -> bool:
    """Whether a text may be what one of Slurm's commands has printed."""
    start = text.lstrip("\ufeff").lstrip()
    first = start.partition("\n")[0]
    words = set(re.split(r"[|\t ]+", first.strip()))
    return bool(
        kind_beside(start)
        or slurm.is_header(first)
        or slurm_json.BEGINS.match(start)
        or slurm_show.BEGINS.match(start)
        or {"JOBID", "NODELIST"} & words
        or _tells_nodes(words)
    )


def printed_by_slurm(text: str, where: str) -> SlurmPrint:
    """What one of Slurm's commands has printed, in whichever form."""
    start = text.lstrip("\ufeff").lstrip()
    first = start.partition("\n")[0]
    words = set(re.split(r"[|\t ]+", first.strip()))
    if kind := kind_beside(start):
        rows = rows_beside(kind, text, where)
    elif slurm.is_header(first):
        return SlurmPrint(kind="sacct", where=where, text=text)
    elif start.startswith("{"):
        kind, rows = json_rows(text, where, cure=SLURM_CURE)
    elif slurm_show.BEGINS.match(start):
        kind, rows = slurm_show.shown_rows(text, where)
    elif "JOBID" in words:
        return SlurmPrint(kind="squeue", where=where, rows=_rows(text, where, SQUEUE))
    elif _tells_nodes(words):
        return SlurmPrint(kind="sinfo", where=where, rows=_rows(text, where, SINFO))
    elif "NODELIST" in words:
        raise InputError(
            f"{where}: a table of sinfo's without GRES, the GPUs of its nodes; print {SINFO}"
        )
    else:
        raise InputError(f"{where}: nothing that sinfo, squeue or sacct prints; {SLURM_CURE}")
    return SlurmPrint(
        kind=kind,
        where=where,
        rows=[SlurmRow(at=at, where=where, cells=cells) for at, cells in rows],
    )


def _tells_nodes(words: set[str]) -> bool:
    """Whether the names of columns are those of sinfo, by `-o` or `-O`."""
    return "GRES" in words and bool({"NODELIST", "HOSTNAMES"} & words)


_SAME = {"HOSTNAMES": "NODELIST"}
"""Names of columns that `-O` has for what another is."""


def _rows(text: str, where: str, how: str) -> list[SlurmRow]:
    """Lines under their header, which are parted by `|`, or else by blanks."""
    lines = text.lstrip("\ufeff").splitlines()
    mark = "|" if "|" in lines[0] else None
    names = [one.strip() for one in lines[0].split(mark)]
    head = names if "NODELIST" in names else [_SAME.get(one, one) for one in names]
    found = []
    for number, line in enumerate(lines[1:], 2):
        cells = [one.strip() for one in line.split(mark)]
        if not line.strip() or cells == names:
            continue
        if len(cells) != len(head):
            raise InputError(
                f"{where}, line {number}: {len(cells)} fields under {len(head)}; print it with"
                f" {how}"
            )
        found.append(
            SlurmRow(
                at=f"{where}, line {number}", where=where, cells=dict(zip(head, cells, strict=True))
            )
        )
    return found


def printed_in_files(paths: Sequence[Path], option: str) -> dict[str, SlurmPrint]:
    """What several files hold, by the command that has printed it.

    Raises:
        InputError: A file is none of Slurm's, or a second one of a command; `option` gave it.
    """
    found: dict[str, SlurmPrint] = {}
    for path in paths:
        where = f"{option} {path}".strip()
        one = printed_by_slurm(read_text(path, option=option, cure=SLURM_CURE), where)
        if one.kind in found:
            raise InputError(f"{where}: a second file of {one.kind}; give one")
        found[one.kind] = one
    return found


def cell(row: SlurmRow, name: str, how: str) -> str:
    """What a row has in a column.

    Raises:
        InputError: There is no such column; `how` prints it.
    """
    if name not in row.cells:
        raise InputError(f"{row.where}: no field {name}; print it with {how}")
    return row.cells[name]


def node_names(row: SlurmRow, column: str) -> list[str]:
    """The nodes of a list of hosts.

    Raises:
        InputError: It is none.
    """
    text = cell(row, column, SINFO if column == "NODELIST" and "GRES" in row.cells else SQUEUE)
    found = host_names(text)
    if found is None:
        raise InputError(f"{row.at}: {column} is {text!r}, no list of nodes")
    return found
