"""What the columns of a trace of jobs are, whatever the trace calls them (`columns.toml`)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.readers.moments import moment_seconds
from ridgeline.records.input_file import read_toml

_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
NEEDED = ("submit_seconds", "duration_seconds", "num_gpus")
CURE = (
    "a trace of jobs is CSV with the columns submit_seconds, duration_seconds (or start_seconds and"
    " end_seconds), num_gpus, and others (docs: queue-simulate)"
)
_CLOSE = 0.85
_ELSEWHERE = {
    "gmt_job_submitted": "the GPUs of these jobs stand in worker.csv (RES); sum them up by job_name"
    " in a column num_gpus",
    "plan_gpu": "PAI's table of tasks does not tell when they were submitted; take the CSV of its"
    " simulator",
    "duration_hours": "this table of executions does not tell when they were submitted",
}
"""Columns by which a table of a public trace is known that lacks what stands elsewhere."""


class ColumnNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Our names of columns, each with all that it is known by."""

    columns: dict[str, list[str]]


@functools.cache
def known_columns() -> dict[str, list[str]]:
    """Our names of columns, each with all that it is known by, ours first."""
    return read_toml(Path(__file__).with_name("columns.toml"), ColumnNames).columns


def find_columns(head: Sequence[str], where: str) -> dict[str, int]:
    """The place of each column by our name for it.

    Where two columns can be the same thing, the one whose name stands first in the list is it.

    Raises:
        InputError: There is no line of names, a needed column is missing, a column stands there
            twice, or one is misspelt.
    """
    plain = [plain_name(one) for one in head]
    values = [one.strip() for one in head if _NUMBER.fullmatch(one.strip())]
    if values:
        raise InputError(
            f"{where}: its first line holds values such as {values[0]}, not names; {CURE}"
        )
    for name in plain:
        if name and plain.count(name) > 1:
            raise InputError(f"{where}: two columns {name}; keep one")
    places: dict[str, int] = {}
    for ours, names in known_columns().items():
        found = next((name for name in names if name in plain), None)
        if found is not None:
            places[ours] = plain.index(found)
    known = {name for names in known_columns().values() for name in names}
    for name in unheeded_columns(places, head):
        close = difflib.get_close_matches(name, known - set(plain), n=1, cutoff=_CLOSE)
        if close and name not in known:
            raise InputError(f"{where}: a column {name!r}; is it to be {close[0]}? {CURE}")
    runs = "duration_seconds" in places or {"start_seconds", "end_seconds"} <= places.keys()
    for name in NEEDED:
        if name not in places and not (name == "duration_seconds" and runs):
            known_by = next((one for one in _ELSEWHERE if one in plain), "")
            raise InputError(f"{where}: no column {name}; {_ELSEWHERE.get(known_by, CURE)}")
    return places


def unheeded_columns(places: dict[str, int], head: Sequence[str]) -> list[str]:
    """The names of columns that nothing heeds."""
    taken = set(places.values())
    return [
        name for place, one in enumerate(head) if place not in taken and (name := plain_name(one))
    ]


def without_waits(
    places: dict[str, int], head: Sequence[str], rows: Sequence[Sequence[str]]
) -> dict[str, int]:
    """The places without a `queue` that is no queue: the seconds that each job waited in one.

    Helios and Acme have it so. Another column that can name a queue (`vc`) takes its place.
    """
    at = [places.get(one, -1) for one in ("queue", "submit_seconds", "start_seconds")]
    if min(at) < 0 or not any(_is_wait(cells, at) for cells in rows):
        return places
    if not all(_is_wait(cells, at) for cells in rows if len(cells) == len(head) and cells[at[2]]):
        return places
    plain = [plain_name(one) for one in head]
    others = [plain.index(one) for one in known_columns()["queue"] if one in plain]
    kept = {ours: place for ours, place in places.items() if ours != "queue"}
    other = next((place for place in others if place != at[0]), None)
    return kept if other is None else {**kept, "queue": other}


def _is_wait(cells: Sequence[str], at: Sequence[int]) -> bool:
    """Whether a cell is the time from submission to start."""
    if len(cells) <= max(at):
        return False
    try:
        waited = float(cells[at[0]])
    except ValueError:
        return False
    submitted, started = (moment_seconds(cells[place]) for place in at[1:])
    if submitted is None or started is None:
        return False
    return abs(started - submitted - waited) <= 1.0


def plain_name(name: str) -> str:
    """A column's name without case, with underscores for blanks and hyphens.

    >>> plain_name(" Submit-Time")
    'submit_time'
    """
    return re.sub(r"[\s\-]+", "_", name.strip().casefold())
