"""Files of other programs, refused by name: what a file is, and what to give instead.

The programs stand in `foreign.toml`, each with how it is recognised: by its file's name or first
bytes, by a table of a database, by the start of a JSON document, or by the processes and categories
in a Chrome trace. A trace with a GPU event that we know is never refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.trace.sqlite_file import SQLITE_MAGIC, table_names

_DOCUMENT_BYTES = 2**16
_USTAR, _USTAR_AT = b"ustar", 257
"""What stands in the first header of a tar archive, and where (POSIX.1-1988)."""
_SHOWN = 4


class ForeignProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program whose files are recognised and not read."""

    name: str
    """What the file is, after "this is"."""
    advice: str
    """What to do instead."""
    suffixes: tuple[str, ...] = ()
    magic: tuple[str, ...] = ()
    """First bytes of its files, as hexadecimal."""
    table: str | None = None
    """A table that its SQLite databases have."""
    document: str | None = None
    """Regular expression that the start of its JSON documents matches."""
    process: str | None = None
    """Regular expression that the name of a process in its Chrome traces matches."""
    category: str | None = None
    """Regular expression that a category in its Chrome traces matches."""

    @property
    def refusal(self) -> str:
        """What the file is and what to do, in one line."""
        return f"this is {self.name}: {self.advice}"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    program: tuple[ForeignProgram, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was met in a Chrome trace."""

    processes: AbstractSet[str]
    categories: Mapping[str, int]
    """Events that were not used, by category."""
    used: bool
    """Was any event used?"""
    gpu_events: int


@cache
def foreign_programs() -> tuple[ForeignProgram, ...]:
    """The programs of `foreign.toml`, in the order in which they are tried."""
    text = (Path(__file__).parent / "foreign.toml").read_text()
    return msgspec.convert(tomllib.loads(text), _Table).program


def foreign_file(path: Path, start: bytes) -> InputError | None:
    """The refusal of a file by its first bytes; None for one that may be a trace."""
    tables = table_names(path) if start == SQLITE_MAGIC else set()
    for program in foreign_programs():
        magic = (bytes.fromhex(text) for text in program.magic)
        if program.table in tables or any(start.startswith(one) for one in magic):
            return _refusal(path, program)
    return None


def foreign_document(path: Path, text: bytes | bytearray) -> InputError | None:
    """The refusal of a JSON document without events; None where nobody knows it."""
    start = text[:_DOCUMENT_BYTES].decode("utf-8", "replace")
    for program in foreign_programs():
        if program.document and re.search(program.document, start):
            return _refusal(path, program)
    return None


def archive(path: Path, text: bytes) -> InputError | None:
    """The refusal of several files in one, whose events would be taken for one trace's."""
    return foreign_document(path, text) if text[_USTAR_AT:].startswith(_USTAR) else None


def foreign_events(path: Path, seen: Seen) -> InputError | None:
    """The refusal of a Chrome trace that is not torch.profiler's; None for one that is."""
    if seen.gpu_events:
        return None
    for program in foreign_programs():
        if program.process and _any_matches(program.process, seen.processes):
            return _refusal(path, program)
    if seen.used or not seen.categories:
        return None
    for program in foreign_programs():
        if program.category and _any_matches(program.category, seen.categories.keys()):
            return _refusal(path, program)
    names = ", ".join(sorted(seen.categories, key=lambda name: -seen.categories[name])[:_SHOWN])
    return InputError(
        f"{path}: a Chrome trace, but none of its {sum(seen.categories.values()):,} events is of "
        f"torch.profiler (categories: {names}); record with torch.profiler"
    )


def _any_matches(pattern: str, names: AbstractSet[str]) -> bool:
    found = re.compile(pattern)
    return any(found.search(name) for name in names)


def _refusal(path: Path, program: ForeignProgram) -> InputError:
    return InputError(f"{path}: {program.refusal}")
