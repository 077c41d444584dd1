"""The file formats that traces come in: one module each, found here and listed nowhere.

A module of this package is a format: it defines `FORMAT`, which says what its files are called, how
they are recognised and how they become traces. To read the traces of another profiler add one file;
folders, globs, workers and the cache of parsed traces work for it as for the others. It fills the
columns that its profiler writes (`columns.filled_table`); the others do not say.

    formats/otherprof.py
        FORMAT = FileFormat(
            name="Otherprof", suffixes=(".oprf",),
            sniff=lambda path, start: start.startswith(b"OPRF"),
            read=read_otherprof,  # (path, details) -> list[Trace]
        )
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace

START_BYTES = 16
"""How much of a file `FileFormat.sniff` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A format of files that hold traces."""

    name: str
    """What the format is called in messages."""
    suffixes: tuple[str, ...] = ()
    """How the names of files end that are taken from a folder; a file that is named may have any
    name."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Suffixes of the profiler's files that cannot be read as they are, each with what to do."""
    forms: tuple[str, ...] = ()
    """Endings of the names under which the profiler writes one run several times, the one that says
    most first: a folder holds it once."""
    sniff: Callable[[Path, bytes], bool]
    """Tells from a path and the file's first bytes whether the file looks like this format."""
    read: Callable[[Path, bool], list[Trace]]
    """Reads a file, one trace per GPU or rank in it; the flag asks for shapes, call stacks and
    sequence numbers."""
    last_resort: bool = False
    """A named file that no format recognises is read as this one, whose errors say what is
    missing."""


@cache
def formats() -> tuple[FileFormat, ...]:
    """Every format that there is a module for, by the name of the module."""
    names = [info.name for info in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return tuple(importlib.import_module(name).FORMAT for name in names)


def folder_suffixes() -> tuple[str, ...]:
    """The endings of the names of files that are taken from a folder."""
    return tuple(suffix for one in formats() for suffix in one.suffixes)


def format_of(path: Path) -> FileFormat:
    """Tell the format of a file that a user named.

    Raises:
        InputError: it cannot be opened, is empty, or is of a kind that has to be converted first.
    """
    for one in formats():
        for suffix in one.refused:
            if path.name.endswith(suffix):
                raise InputError(f"{path}: {one.refused[suffix]}")
    start = first_bytes(path)
    if not start:
        raise InputError(f"{path}: the file is empty; record the trace again")
    known = (one for one in formats() if not one.last_resort and one.sniff(path, start))
    return next(known, None) or next(one for one in formats() if one.last_resort)


def looks_like_a_trace(path: Path) -> bool:
    """Tell whether a file of a folder is a trace: folders hold other JSON and other tables too."""
    start = first_bytes(path)
    return any(
        path.name.endswith(one.suffixes) and one.sniff(path, start)
        for one in formats()
        if one.suffixes
    )


def fuller_form(path: Path) -> Path | None:
    """The file beside this one that says more of the same run; None where there is none."""
    for one in formats():
        for place, ending in enumerate(one.forms):
            if path.name.endswith(ending):
                prefix = path.name.removesuffix(ending)
                fuller = (path.with_name(prefix + other) for other in one.forms[:place])
                return next((other for other in fuller if other.is_file()), None)
    return None


def first_bytes(path: Path) -> bytes:
    """The first `START_BYTES` of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(START_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
