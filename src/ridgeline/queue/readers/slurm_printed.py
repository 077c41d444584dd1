"""What Slurm's commands have printed, in whichever form, as rows under the names of columns.

    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt
    squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt
    sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Fields as in their manual pages; what they print with `--json`, and `scontrol show node` and `show
job`, will do as well. What else administrators have is read in `slurm_beside.py`.

Tables are read as people paste them: parted by `|` or blanks, with or without date. The last column
of squeue's own forms has nodes, or in brackets the reason for which a job waits, with blanks in it;
columns are cut to widths, and their names with them (`TIME_LIMI`). Sources: manual pages of squeue
and sinfo, "--format" and its defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ridgeline.errors import InputError
from ridgeline.queue.readers import slurm, slurm_json, slurm_show
from ridgeline.queue.readers.hostlist import host_names
from ridgeline.queue.readers.slurm_beside import CONF, kind_beside, rows_beside
from ridgeline.queue.readers.slurm_json import SACCT_FIELDS, json_rows
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs
from ridgeline.records.input_file import read_text

SINFO = 'sinfo -N -o "%N|%G|%T|%P" > sinfo.txt'
SQUEUE = 'squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt'
SACCT = (
    "sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
    " > sacct.txt"
)
_JSON_BEGINS = 4096
"""Letters that JSON is told by."""
STATES = "states"
"""What sinfo prints of nodes without their GPUs."""
SLURM_CURE = f"print {SINFO}; {SQUEUE}; {SACCT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRow:
    """A line and where it stands."""

    at: str
    where: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPrint:
    """What a command has printed: its rows; of sacct's table and of slurm.conf the text."""

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
    begins = text[:_JSON_BEGINS].lstrip("\ufeff \t\r\n")
    if begins[:1] == "{":  # states of kubectl have tens of megabytes: the rest is not looked at
        return slurm_json.BEGINS.match(begins) is not None
    start = pasted_parts(text)[0].lstrip("\ufeff").lstrip()
    return bool(
        kind_beside(start)
        or slurm.is_header(start.partition("\n")[0])
        or slurm_json.BEGINS.match(start)
        or slurm_show.BEGINS.match(start)
        or header_of(start)[1]
        or _tells_nodes(_words(start.partition("\n")[0]))
    )


def printed_by_slurm(text: str, where: str) -> SlurmPrint:
    """What one of Slurm's commands has printed, in whichever form."""
    start = text.lstrip("\ufeff").lstrip()
    words = _words(header_of(start)[1] or start.partition("\n")[0])
    if kind := kind_beside(start):
        rows = rows_beside(kind, text, where)
    elif slurm.is_header(start.partition("\n")[0]):
        return SlurmPrint(kind="sacct", where=where, text=text)
    elif start.startswith("{"):
        kind, rows = json_rows(text, where, cure=SLURM_CURE)
    elif slurm_show.BEGINS.match(start):
        kind, rows = slurm_show.shown_rows(text, where)
    elif "JOBID" in words:
        kind, rows = "squeue", _rows(text, where, SQUEUE)
    elif _tells_nodes(words):
        kind, rows = "sinfo", _rows(text, where, SINFO)
    elif "NODELIST" in words and "STATE" in words:
        kind, rows = STATES, _rows(text, where, SINFO)
    elif "NODELIST" in words:
        raise InputError(
            f"{where}: a table of sinfo's without GRES, the GPUs of its nodes; print {SINFO}"
        )
    else:
        raise InputError(f"{where}: nothing that sinfo, squeue or sacct prints; {SLURM_CURE}")
    return SlurmPrint(
        kind=kind,
        where=where,
        text=text if kind == CONF else "",
        rows=[SlurmRow(at=at, where=where, cells=cells) for at, cells in rows],
    )


def _words(first: str) -> set[str]:
    return set(re.split(r"[|\t ]+", first.strip()))


def _rows(text: str, where: str, how: str) -> slurm_json.Rows:
    """Lines under their header."""
    return [(f"{where}, line {number}", cells) for number, cells in table_of(text, where, how).rows]


def _tells_nodes(words: set[str]) -> bool:
    """Whether the names of columns are those of sinfo, by `-o` or `-O`."""
    return "GRES" in words and bool({"NODELIST", "HOSTNAMES"} & words)


def printed_in_files(paths: Sequence[Path], option: str) -> dict[str, SlurmPrint]:
    """What several files hold, by the command that has printed it.

    Raises:
        InputError: A file is none of Slurm's, or a second one of a command; `option` gave it.
    """
    found: dict[str, SlurmPrint] = {}
    for path in paths:
        where = f"{option} {path}".strip()
        for part in pasted_parts(read_text(path, option=option, cure=SLURM_CURE)):
            one = printed_by_slurm(part, where)
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


Cells = dict[str, str]
NODES_OR_REASON = "NODELIST(REASON)"
_HEADER = re.compile(r"\b(JOBID|NODELIST|HOSTNAMES)\b")
_PREAMBLE = re.compile(
    r"\s*(\w{3} \w{3} +\d+ [\d:]{8}( [AP]M)?( \w+)? \d{4}|\S*[$#>%] .*|CLUSTER: \S+)?\s*$"
)
"""Lines before a table: a date (`-l`, `-i`), a prompt, a cluster's name, nothing."""
_COMMAND = re.compile(
    r"\s*(\S*[$#%>]|\[[^\]]*\][$#]) +(sudo +)?"
    r"(sinfo|squeue|scontrol|sacct|sacctmgr|sdiag|sprio|sshare|grep|cat)\b"
)
"""A line on which somebody has called one of the commands."""
_SAME = {
    "HOSTNAMES": "NODELIST", "ST": "STATE", "AVAIL_FE": "AVAIL_FEATURES", "TIMELIMIT": "MAX_TIME",
    "TRES_PER_N": "TRES_PER_NODE", "MIN_MEMOR": "MIN_MEMORY", "FEATURE": "FEATURES",
}  # fmt: skip
"""Names of columns that have another in other forms, or are cut to their width."""
_CUT = {"TIME_LIMI"}
"""Columns whose values are cut with their names: what they say is another time."""
_JOB_STATES = re.compile(r"[A-Z]{1,2}|[A-Z_]{6,}")


class PastedTable(NamedTuple):
    """The rows below a header, each with the number of its line."""

    head: list[str]
    rows: list[tuple[int, Cells]]


def pasted_parts(text: str) -> list[str]:
    """What each command of a pasted session has printed, each by itself; one if there are none."""
    parts = [""]
    for line in text.lstrip("\ufeff").splitlines(keepends=True):
        if _COMMAND.match(line):
            parts.append("")
        else:
            parts[-1] += line
    return [part for part in parts if part.strip()] or [text]


def header_of(text: str) -> tuple[int, str]:
    """The first line that names columns, and where it is; before it only dates and prompts."""
    for number, line in enumerate(text.lstrip("\ufeff").splitlines()[:6]):
        if _HEADER.search(line) and not _PREAMBLE.match(line):
            return number, line
        if not _PREAMBLE.match(line):
            break
    return 0, ""


def table_of(text: str, where: str, how: str) -> PastedTable:
    """The rows of a table.

    Raises:
        InputError: A line has other fields than its header; `how` prints them so that they part.
    """
    lines = text.lstrip("\ufeff").splitlines()
    at, first = header_of(text)
    mark = "|" if "|" in first else None
    names = [one.strip() for one in first.split(mark)]
    head = [_SAME.get(one, one) for one in names]
    if names.count("NODELIST") and names.count("HOSTNAMES"):
        head = names
    rows = []
    for number, line in enumerate(lines[at + 1 :], at + 2):
        if line.split(mark) == first.split(mark) or (_PREAMBLE.match(line) and mark is None):
            continue
        cells = _parted(line, first, names, mark)
        if cells is None:
            raise InputError(
                f"{where}, line {number}: {len(line.split(mark))} fields under {len(head)}; print"
                f" it with {how}"
            )
        rows.append((number, _told(dict(zip(head, cells, strict=True)))))
    return PastedTable([*head, *_PARTS] if NODES_OR_REASON in head else head, rows)


_PARTS = ("NODELIST", "REASON")


def _told(cells: Cells) -> Cells:
    """The cells, of which the last of squeue's is split, and those that are cut are left out."""
    found = {name: value for name, value in cells.items() if name not in _CUT}
    last = found.pop(NODES_OR_REASON, None)
    if last is not None:
        waits = last.startswith("(") or not last
        found |= {"NODELIST": "" if waits else last, "REASON": last.strip("()") if waits else ""}
    return found


def _parted(line: str, first: str, names: list[str], mark: str | None) -> list[str] | None:
    """The fields of a line; None: there are not as many as names."""
    fields = [one.strip() for one in line.split(mark)]
    last_is_text = names[-1] in (NODES_OR_REASON, "REASON")
    if mark is None and last_is_text and len(fields) > len(names):
        fields = [one.strip() for one in line.split(None, len(names) - 1)]
    if mark is None and last_is_text and len(fields) == len(names) - 1:
        fields = [*fields, ""]
    if len(fields) == len(names) and _makes_sense(fields, names):
        return fields
    if mark is None:
        aligned = _by_edges(line, first, names)
        return aligned if _makes_sense(aligned, names) else None
    return None


def _makes_sense(fields: list[str], names: list[str]) -> bool:
    """Whether a job's state is one; names of jobs have blanks, too."""
    for name in ("ST", "STATE"):
        if name in names and "JOBID" in names:
            return bool(_JOB_STATES.fullmatch(fields[names.index(name)]))
    return True


def _by_edges(line: str, first: str, names: list[str]) -> list[str]:
    """The fields of columns that stand right under the ends of their names."""
    ends, at = [], 0
    for name in names:
        at = first.index(name, at) + len(name)
        ends.append(at)
    starts = [0, *ends[:-1]]
    return [
        (line[start:end] if name != names[-1] else line[start:]).strip()
        for name, start, end in zip(names, starts, ends, strict=True)
    ]
