"""Jobs as CSV, in our own columns or those of public traces (`columns.toml`).

Columns of times may count in other units than seconds.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.quantity import several
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.columns import (
    CURE,
    TIMES,
    FoundColumns,
    find_columns,
    unheeded_columns,
    without_waits,
)
from ridgeline.queue.readers.moments import MISSING, duration_seconds, moment_seconds
from ridgeline.queue.readers.slurm_resources import num_gpus
from ridgeline.queue.readers.traced_jobs import BadRows, TracedJobs, left_out_notes
from ridgeline.queue.readers.wants_columns import HEEDED, of_workers, wants_of
from ridgeline.queue.wants import JobWants
from ridgeline.records.input_file import csv_rows

NO_GPUS = "without GPUs"
UNENDED = "that had not ended or never started"
SEVERAL_PARTS = "of several parts of GPUs"
_LISTED = re.compile(r"\bgpu\b|=")
"""GPUs as Slurm lists resources: `gpu:volta:2`, `cpu=4,gres/gpu=2`."""


def read_table(
    text: str,
    where: str,
    *,
    skip_bad: bool = False,
    given: Mapping[str, tuple[str, str]] | None = None,
) -> TracedJobs:
    """Jobs out of a table; those without GPUs or without an end are left out, with a note.

    Args:
        text: The table.
        where: What it is called, for errors.
        skip_bad: Leave rows out that are no jobs.
        given: Columns as `given_columns` has them.

    Raises:
        InputError: A column is missing or misspelt, or a row is no job and `skip_bad` does not
            leave it out; which line.
    """
    rows = list(_rows(text.lstrip("\ufeff"), where))
    head = rows.pop(0)[1] if rows else []
    columns_found = find_columns(head, where, given)
    places = without_waits(columns_found.places, head, [cells for _, cells in rows])
    seconds = columns_found.seconds | units_by_size(columns_found, [one for _, one in rows])
    left: Counter[str] = Counter()
    restated = 0
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
            row |= {name: in_seconds(row[name], unit) for name, unit in seconds.items()}
            workers = _workers(row, at)
            gpus, runs = _gpus(row, at), _runs(row, at)
            if not gpus or runs is None:
                left[UNENDED if runs is None else NO_GPUS] += 1
                continue
            if workers > 1 and (gpus < 1.0 or row.get("gpu_slice")):
                left[SEVERAL_PARTS] += 1
                continue
            submitted = _submitted(row, at)
            priority = _whole(row.get("priority") or "0", "priority", at)
            wanted = wants_of(row, at) if HEEDED & row.keys() else JobWants()
            if workers > 1:
                wanted = of_workers(wanted, workers, gpus_each=gpus)
                gpus *= workers
            _check_name(name := row.get("name") or f"line {line}", line_of, at)
            line_of[name] = line
            restated += _is_restated(row, runs)
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
    notes = list(left_out_notes(left, "job"))
    notes += bad.notes()
    if restated:
        notes.append(
            f"{several(restated, 'job')} ran from start to end for another time than the duration"
            " tells: start and end were taken."
        )
    notes += told_units(seconds, columns["runs"])
    if unheeded := unheeded_columns(places, head):
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
    value = float(num_gpus(text)) if _LISTED.search(text) else _number(text)
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
    """How long a job ran; None: it had not ended.

    From its start to its end where both are told, since it held its GPUs then, whatever its
    duration counts beside (Acme's counts from submission).
    """
    times = [moment_seconds(row.get(name, "")) for name in ("start_seconds", "end_seconds")]
    told = [one for one in times if one is not None and not math.isnan(one)]
    if row.get("duration_seconds", "").casefold() not in MISSING and not (
        len(told) == len(times) and told[0] <= told[1]
    ):
        text = row["duration_seconds"]
        found = duration_seconds(text)
        if found is None or not found >= 0.0:
            raise InputError(
                f"{where}: duration_seconds is {text!r}; give seconds, 0 or more, or D-HH:MM:SS"
            )
        return found
    start, end = times
    if start is None or end is None:
        return None
    if not end >= start:
        raise InputError(
            f"{where}: it starts at {row['start_seconds']!r} and ends at {row['end_seconds']!r};"
            " give times of which the end is the later"
        )
    return end - start


def _is_restated(row: dict[str, str], runs: float) -> bool:
    """Whether a job's duration is told as well, and is another."""
    told = duration_seconds(row.get("duration_seconds", ""))
    return told is not None and abs(told - runs) > 1.0


def _workers(row: dict[str, str], where: str) -> int:
    """How many workers a job has of which each asks for what the row tells."""
    return _whole(row.get("workers") or "1", "workers", where)


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


_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on a moment is in nano-, micro- or milliseconds: in seconds it would be after
the year 5000."""
LONG_SECONDS = 30 * 86400.0
"""Half of a cluster's jobs hardly run longer: the numbers may be in another unit."""


def units_by_size(found: FoundColumns, rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Seconds of a unit, of columns of moments whose numbers are too large to be in seconds."""
    units = {}
    for name in TIMES[:3]:
        if name in found.places and name not in found.seconds:
            place = found.places[name]
            least = min(
                (
                    value
                    for cells in rows
                    if len(cells) > place and (value := _unit_number(cells[place])) is not None
                ),
                default=0.0,
            )
            unit = next((unit for limit, unit in _EPOCHS if least >= limit), None)
            if unit is not None:
                units[name] = unit
    return units


def in_seconds(text: str, unit_seconds: float) -> str:
    """A cell as one of seconds; a date or a clock is one already.

    >>> in_seconds("1500", 1e-3), in_seconds("01:30:00", 60.0)
    ('1.5', '01:30:00')
    """
    value = _unit_number(text)
    return text if value is None else repr(value * unit_seconds)


def told_units(seconds: Mapping[str, float], durations: Sequence[float]) -> list[str]:
    """What was taken for other units, and what may have to be."""
    notes = [
        f"Numbers of {name} are taken as {_UNITS[unit]}."
        for name, unit in seconds.items()
        if unit != 1.0
    ]
    usual = median(durations) if durations else 0.0
    if usual > LONG_SECONDS:
        notes.append(
            f"Half of the jobs run longer than {quantity.seconds(usual)}; if these are no seconds,"
            " say it: --column duration_seconds=NAME:ms, and so for the other times."
        )
    return notes


_UNITS = {1e-9: "nanoseconds", 1e-6: "microseconds", 1e-3: "milliseconds", 60.0: "minutes",
          3600.0: "hours", 86400.0: "days"}  # fmt: skip


def _unit_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
