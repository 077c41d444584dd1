"""What the columns of a trace of jobs are, whatever the trace calls them (`columns.toml`)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.readers.moments import moment_seconds
from ridgeline.records.input_file import read_toml

_MOST_SHOWN = 40
"""Characters of a value in a message."""
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
NEEDED = ("submit_seconds", "duration_seconds", "num_gpus")
CURE = (
    "a trace of jobs is CSV with the columns submit_seconds, duration_seconds (or start_seconds and"
    " end_seconds), num_gpus, and others; --column num_gpus=NAME names one (docs: queue-simulate)"
)
_CLOSE = 0.85
_ELSEWHERE = {
    ("num_gpus", "gmt_job_submitted"): "the GPUs of these jobs stand in worker.csv (RES); sum them"
    " up by job_name in a column num_gpus",
    ("submit_seconds", "plan_gpu"): "PAI's table of tasks does not tell when they were submitted;"
    " take the CSV of its simulator",
    ("submit_seconds", "duration_hours"): "this table of executions does not tell when they were"
    " submitted",
}
"""What a table of a public trace lacks, and the column by which it is known: where that stands."""
TIMES = ("submit_seconds", "start_seconds", "end_seconds", "duration_seconds")
_GIVEN = re.compile(r"(?P<ours>\w+)=(?P<theirs>.+?)(:(?P<unit>[a-z]+))?")


class ColumnNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Our names of columns, each with all that it is known by.

    Attributes:
        columns: Ours first.
        per_node: Names of the two columns whose product are the GPUs of a job.
        units: Seconds of what a time's name may end in.
    """

    columns: dict[str, list[str]]
    per_node: dict[str, list[str]] = {}
    units: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """Where our columns stand in a table.

    Attributes:
        places: The place of each by our name for it.
        seconds: The seconds of one unit of a column of times that counts in another.
    """

    places: dict[str, int]
    seconds: dict[str, float]


@functools.cache
def known_columns() -> ColumnNames:
    """All names of columns that are known."""
    return read_toml(Path(__file__).with_name("columns.toml"), ColumnNames)


def given_columns(words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Columns as a user names them: `OURS=THEIRS`, times also `OURS=THEIRS:UNIT`.

    Raises:
        InputError: It is not of that form, or there is no such column or unit of ours.
    """
    known, found = known_columns(), {}
    for one in words:
        told = _GIVEN.fullmatch(one)
        if told is None or told["ours"] not in known.columns:
            ours = ", ".join(known.columns)
            raise InputError(f"--column {one}: give NAME=COLUMN with a name of {ours}")
        if told["unit"] and (told["ours"] not in TIMES or told["unit"] not in known.units):
            units = ", ".join(known.units)
            raise InputError(f"--column {one}: {told['unit']} is no unit of a time; give {units}")
        found[told["ours"]] = (told["theirs"], told["unit"] or "")
    return found


def find_columns(
    head: Sequence[str], where: str, given: Mapping[str, tuple[str, str]] | None = None
) -> FoundColumns:
    """Where each column stands, and in which unit it counts.

    Where two columns can be the same thing, the one whose name stands first in the list is it.

    Args:
        head: The names in the table.
        where: The table, for errors.
        given: Columns that the user names, with their units.

    Raises:
        InputError: There is no line of names, a needed column is missing, a column stands there
            twice, or one is misspelt.
    """
    plain = [plain_name(one) for one in head]
    values = [one.strip() for one in head if _NUMBER.fullmatch(one.strip())]
    if values:
        first = values[0]
        shown = first if len(first) <= _MOST_SHOWN else f"{first[:_MOST_SHOWN]}…"
        raise InputError(f"{where}: its first line holds values such as {shown}, not names; {CURE}")
    for name in plain:
        if name and plain.count(name) > 1:
            raise InputError(f"{where}: two columns {name}; keep one")
    found = FoundColumns(*_given(plain, given or {}, where))
    _add_known(found, plain)
    _refuse_misspelt(found, head, plain, where)
    return found


def _given(
    plain: Sequence[str], given: Mapping[str, tuple[str, str]], where: str
) -> tuple[dict[str, int], dict[str, float]]:
    places, seconds = {}, {}
    for ours, (theirs, unit) in given.items():
        if plain_name(theirs) not in plain:
            raise InputError(
                f"{where}: no column {theirs}, which --column names; it has {', '.join(plain)}"
            )
        places[ours] = plain.index(plain_name(theirs))
        if unit:
            seconds[ours] = known_columns().units[unit]
    return places, seconds


def _add_known(found: FoundColumns, plain: Sequence[str]) -> None:
    """The columns that are known by their names, beside those that the user named."""
    known = known_columns()
    for ours, names in known.columns.items():
        told = next((name for name in names if name in plain), None)
        if ours not in found.places and told is not None:
            found.places[ours] = plain.index(told)
        elif ours not in found.places and ours in TIMES:
            _add_time(found, plain, ours)
    if "num_gpus" not in found.places:
        each, nodes = (
            next((name for name in known.per_node[key] if name in plain), None)
            for key in ("gpus", "nodes")
        )
        if each is not None and nodes is not None:
            found.places["num_gpus"] = plain.index(each)
            found.places.setdefault("workers", plain.index(nodes))


def _add_time(found: FoundColumns, plain: Sequence[str], ours: str) -> None:
    """A column of times whose name ends in a unit."""
    known = known_columns()
    for name in known.columns[ours]:
        for place, one in enumerate(plain):
            base, _, unit = one.rpartition("_")
            if base == name.removesuffix("_seconds") and unit in known.units:
                found.places[ours] = place
                found.seconds[ours] = known.units[unit]
                return


def _refuse_misspelt(
    found: FoundColumns, head: Sequence[str], plain: Sequence[str], where: str
) -> None:
    known = {name for names in known_columns().columns.values() for name in names}
    places = found.places
    for name in unheeded_columns(places, head):
        close = difflib.get_close_matches(name, known - set(plain), n=1, cutoff=_CLOSE)
        if close and name not in known and _of(close[0]) not in places:
            raise InputError(f"{where}: a column {name!r}; is it to be {close[0]}? {CURE}")
    runs = "duration_seconds" in places or {"start_seconds", "end_seconds"} <= places.keys()
    for name in NEEDED:
        if name not in places and not (name == "duration_seconds" and runs):
            known_by = (why for (lacks, one), why in _ELSEWHERE.items()
                        if lacks == name and one in plain)  # fmt: skip
            raise InputError(f"{where}: no column {name}; {next(known_by, CURE)}")


def _of(name: str) -> str:
    """Our name of a column."""
    return next(ours for ours, names in known_columns().columns.items() if name in names)


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
    others = [plain.index(one) for one in known_columns().columns["queue"] if one in plain]
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
    """A column's name in small letters, with underscores between its words.

    >>> plain_name(" Submit-Time"), plain_name("startedAt"), plain_name("Runtime (min)")
    ('submit_time', 'started_at', 'runtime_min')
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name.strip())
    return re.sub(r"[\s\-()\[\]]+", "_", parted.casefold()).strip("_")
