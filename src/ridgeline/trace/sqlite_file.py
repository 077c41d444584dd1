"""SQLite databases of profilers, opened read-only and immutable: nothing is written beside them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ridgeline.errors import InputError

if TYPE_CHECKING:
    import sqlite3

SQLITE_MAGIC = b"SQLite format 3\0"


@contextmanager
def opened(path: Path, what: str) -> Iterator[sqlite3.Connection]:
    """An open database; `what` it should be, in words, is for the error.

    Raises:
        InputError: it is damaged, or holds texts where numbers belong.
    """
    import sqlite3

    try:
        location = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(location, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise InputError(f"{path}: not {what} ({error})") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: a column of it holds no numbers ({error})") from None


def table_names(path: Path) -> set[str]:
    """The tables of a database; none where it cannot be read."""
    import sqlite3

    try:
        with opened(path, "a database") as connection:
            return tables_of(connection)
    except (InputError, sqlite3.Error):
        return set()


def tables_of(connection: sqlite3.Connection) -> set[str]:
    """The tables and views of an open database."""
    query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    return {str(name) for (name,) in connection.execute(query)}


def is_of_rocprof(tables: AbstractSet[str]) -> bool:
    """Tell by its tables whether a database is one of rocprof, the profiler before rocprofv3.

    >>> is_of_rocprof({"HIP", "OPS", "COPY"}), is_of_rocprof({"A", "B"})
    (True, False)
    """
    return bool({"A", "OPS"} & tables and {"HIP", "HSA", "COPY"} & tables)


def is_of_rocm(tables: AbstractSet[str]) -> bool:
    """Tell by its tables whether a database is one of AMD's profilers, old or new."""
    return is_of_rocprof(tables) or any(name.startswith("rocpd_") for name in tables)
