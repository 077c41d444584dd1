"""Jobs as CSV, in our own columns or those of public traces (`columns.toml`)."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator

from ridgeline.errors import InputError
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.columns import CURE, find_columns
from ridgeline.queue.readers.moments import MISSING, duration_seconds, moment_seconds
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs
from ridgeline.queue.readers.wants_columns import HEEDED, wants_of
from ridgeline.queue.wants import JobWants
from ridgeline.records.input_file import csv_rows

NO_GPUS = "without GPUs"
UNENDED = "that had not ended or never started"


def read_table(text: str, where: str, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs out of a table; those without GPUs or without an end are left out, with a note.

    Raises:
        InputError: A column is missing or misspelt, or a row is no job and `skip_bad` does not
            leave it out; which line.
    """
    rows = _rows(text.lstrip("\ufeff"), where)
    head = next(rows, (0, []))[1]
    places, unheeded = find_columns(head, where)
    left: Counter[str] = Counter()
    bad = BadRows(skip=skip_bad)
    columns: dict[str, list[float]] = {"submit": [], "runs": [], "gpus": []}
    line_of: dict[str, int] = {}
    queues: list[str] = []
    priorities: list[int] = []
    wants: list[JobWants] = []
    for line, cells in rows:
        at = f"{where}, line {line}"
        with bad.around_a_row():
            if len(cells) != len(head):
                raise InputError(f"{at}: {len(cells)} cells under {len(head)} columns")
            row = {name: cells[place].strip() for name, place in places.items()}
            gpus, runs = _gpus(row, at), _runs(row, at)
            if not gpus or runs is None:
                left[UNENDED if runs is None else NO_GPUS] += 1
                continue
            submitted = _submitted(row, at)
            priority = _whole(row.get("priority") or "0", "priority", at)
            wanted = wants_of(row, at) if HEEDED & row.keys() else JobWants()
            _check_name(name := row.get("name") or f"line {line}", line_of, at)
            line_of[name] = line
            for column, value in zip(columns, (submitted, runs, gpus), strict=True):
                columns[column].append(value)
            queues.append(row.get("queue", ""))
            priorities.append(priority)
            wants.append(wanted)
    first = min(columns["submit"], default=0.0)
    jobs = jobs_in_order(
        names=list(line_of),
        submit_seconds=[one - first for one in columns["submit"]],
        duration_seconds=columns["runs"],
        num_gpus=columns["gpus"],
        queues=queues if "queue" in places else None,
        priority=priorities,
        wants=wants,
    )
    notes = [f"{count:,} jobs {why} were left out." for why, count in left.items()]
    notes += bad.notes()
    if unheeded:
        notes.append(f"Columns that nothing here heeds: {', '.join(unheeded)}.")
    return TracedJobs(jobs=jobs, notes=tuple(notes))


def _rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Rows, separated by whichever of comma, semicolon and tab the first line has most of."""
    first = text.partition("\n")[0]
    mark = max(",;\t", key=first.count)
    if mark == "," or not first.count(mark):
        yield from csv_rows(text, where=where, cure=CURE)
        return
    reader = csv.reader(text.splitlines(keepends=True), delimiter=mark)
    try:
        yield from ((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: not CSV ({error}); {CURE}") from None


def _gpus(row: dict[str, str], where: str) -> float:
    """GPUs of a job; a share of one where it says how many thousandths it takes."""
    text = row["num_gpus"]
    if text.casefold() in MISSING:
        return 1.0 if row.get("gpu_slice") else 0.0
    value = _number(text)
    if not 0.0 <= value < 2**31 or (value > 1.0 and value != int(value)):
        raise InputError(
            f"{where}: num_gpus is {text!r}; give whole GPUs, or a part of one between 0 and 1"
        )
    milli = row.get("gpu_milli", "")
    if value != 1.0 or not milli:
        return value
    share = _number(milli)
    if not 0.0 < share <= 1000.0:
        raise InputError(f"{where}: gpu_milli is {milli!r}; give 1 to 1000 of each GPU")
    return share / 1000.0


def _submitted(row: dict[str, str], where: str) -> float:
    value = moment_seconds(row["submit_seconds"])
    if value is None or not value >= 0.0:
        raise InputError(
            f"{where}: submit_seconds is {row['submit_seconds']!r}; give seconds, 0 or more, or a"
            " date with its time"
        )
    return value


def _runs(row: dict[str, str], where: str) -> float | None:
    """How long a job ran; None: it had not ended."""
    if row.get("duration_seconds", "").casefold() not in MISSING:
        text = row["duration_seconds"]
        found = duration_seconds(text)
        if found is None or not found >= 0.0:
            raise InputError(
                f"{where}: duration_seconds is {text!r}; give seconds, 0 or more, or D-HH:MM:SS"
            )
        return found
    times = [moment_seconds(row.get(name, "")) for name in ("start_seconds", "end_seconds")]
    start, end = times
    if start is None or end is None:
        return None
    if not end >= start:
        raise InputError(
            f"{where}: it starts at {row['start_seconds']!r} and ends at {row['end_seconds']!r};"
            " give times of which the end is the later"
        )
    return end - start


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _whole(text: str, column: str, where: str) -> int:
    value = _number(text)
    if not (-(2**31) <= value < 2**31 and value == int(value)):
        raise InputError(f"{where}: {column} is {text!r}; give a whole number")
    return int(value)


def _check_name(name: str, line_of: dict[str, int], where: str) -> None:
    if name in line_of:
        raise InputError(
            f"{where}: job {name!r} stands in line {line_of[name]} already; give each a name of"
            " its own"
        )
