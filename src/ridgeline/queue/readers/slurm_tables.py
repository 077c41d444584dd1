"""Tables of squeue and sinfo as people paste them: parted by `|` or blanks, with or without date.

The last column of squeue's own forms has nodes, or in brackets the reason for which a job waits,
with blanks in it; columns are cut to widths, and their names with them (`TIME_LIMI`). Sources:
manual pages of squeue and sinfo, "--format" and its defaults.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ridgeline.errors import InputError

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
