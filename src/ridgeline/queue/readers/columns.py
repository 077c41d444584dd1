"""What the columns of a trace of jobs are, whatever the trace calls them (`columns.toml`)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml

NEEDED = ("submit_seconds", "duration_seconds", "num_gpus")
CURE = (
    "a trace of jobs is CSV with the columns submit_seconds, duration_seconds (or start_seconds and"
    " end_seconds), num_gpus, and others (docs: queue-simulate)"
)
_CLOSE = 0.85


class _ColumnFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: dict[str, list[str]]


@functools.cache
def known_columns() -> dict[str, list[str]]:
    """Our names of columns, each with all that it is known by, ours first."""
    return read_toml(Path(__file__).with_name("columns.toml"), _ColumnFile).columns


def find_columns(head: Sequence[str], where: str) -> tuple[dict[str, int], list[str]]:
    """The place of each column by our name for it, and the names of those that nothing heeds.

    Where two columns can be the same thing, the one whose name stands first in the list is it.

    Raises:
        InputError: A needed column is missing, a column stands there twice, or one is misspelt.
    """
    plain = [re.sub(r"[\s\-]+", "_", one.strip().casefold()) for one in head]
    for name in plain:
        if name and plain.count(name) > 1:
            raise InputError(f"{where}: two columns {name}; keep one")
    places: dict[str, int] = {}
    for ours, names in known_columns().items():
        found = next((name for name in names if name in plain), None)
        if found is not None:
            places[ours] = plain.index(found)
    known = {name for names in known_columns().values() for name in names}
    unheeded = [name for place, name in enumerate(plain) if place not in places.values() and name]
    for name in unheeded:
        close = difflib.get_close_matches(name, known - set(plain), n=1, cutoff=_CLOSE)
        if close and name not in known:
            raise InputError(f"{where}: a column {name!r}; is it to be {close[0]}? {CURE}")
    runs = "duration_seconds" in places or {"start_seconds", "end_seconds"} <= places.keys()
    for name in NEEDED:
        if name not in places and not (name == "duration_seconds" and runs):
            raise InputError(f"{where}: no column {name}; {CURE}")
    return places, unheeded
