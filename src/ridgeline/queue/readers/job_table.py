"""Jobs as CSV, in our own columns, and the names that the Philly trace has for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.errors import InputError
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.traced_jobs import TracedJobs
from ridgeline.records.input_file import csv_rows

ALIASES = {"submit_s": "submit_seconds", "duration_s": "duration_seconds", "vc": "queue"}
NEEDED = ("submit_seconds", "duration_seconds", "num_gpus")
OPTIONAL = ("name", "queue", "priority")
CURE = f"a trace of jobs is CSV with the columns {', '.join(NEEDED)} (and {', '.join(OPTIONAL)})"


def read_table(text: str, where: str) -> TracedJobs:
    """Jobs out of a CSV table.

    Raises:
        InputError: A column is missing or unknown, or a row is no job; which line.
    """
    rows = csv_rows(text.lstrip("\ufeff"), where=where, cure=CURE)
    head = next(rows, (0, []))[1]
    columns = [ALIASES.get(one.strip(), one.strip()) for one in head]
    _check_columns(columns, where)
    cells: dict[str, list[str]] = {name: [] for name in columns}
    lines: list[int] = []
    for line, row in rows:
        if len(row) != len(columns):
            raise InputError(f"{where}, line {line}: {len(row)} cells under {len(columns)} columns")
        lines.append(line)
        for name, cell in zip(columns, row, strict=True):
            cells[name].append(cell.strip())
    places = range(len(lines))
    names = cells.get("name") or [str(one + 1) for one in places]
    _check_names(names, where, lines)
    submit = [_time(cells["submit_seconds"][one], "submit_seconds", where, lines[one])
              for one in places]  # fmt: skip
    first = min(submit, default=0.0)
    jobs = jobs_in_order(
        names=names,
        submit_seconds=[one - first for one in submit],
        duration_seconds=[_time(cells["duration_seconds"][one], "duration_seconds", where,
                                lines[one]) for one in places],
        num_gpus=[_whole(cells["num_gpus"][one], "num_gpus", where, lines[one], 1)
                  for one in places],
        queues=cells.get("queue"),
        priority=[_whole(one, "priority", where, line, -(2**31))
                  for one, line in zip(cells["priority"], lines, strict=True)]
        if "priority" in cells else None,
    )  # fmt: skip
    return TracedJobs(jobs=jobs)


def _check_columns(columns: Sequence[str], where: str) -> None:
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"{where}: no column {missing[0]}; {CURE}")
    for name in columns:
        if name not in (*NEEDED, *OPTIONAL):
            raise InputError(f"{where}: a column {name!r}, which would not be heeded; {CURE}")
        if columns.count(name) > 1:
            raise InputError(f"{where}: two columns {name}; keep one")


def _check_names(names: Sequence[str], where: str, lines: Sequence[int]) -> None:
    seen: dict[str, int] = {}
    for name, line in zip(names, lines, strict=True):
        if name in seen:
            raise InputError(
                f"{where}, line {line}: job {name!r} stands in line {seen[name]} already; give each"
                " a name of its own"
            )
        seen[name] = line


def _time(text: str, column: str, where: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (value < 0.0):
        raise InputError(
            f"{where}, line {line}: {column} is {text!r}; give seconds, 0 or more"
        ) from None
    return value


def _whole(text: str, column: str, where: str, line: int, least: int) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (least <= value < 2**31 and value == int(value)):
        what = "whole GPUs, 1 or more" if least == 1 else "a whole number"
        raise InputError(f"{where}, line {line}: {column} is {text!r}; give {what}")
    return int(value)
