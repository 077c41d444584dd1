"""The files that were named on the command line: numbered, so that no address holds a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.studio.opened import kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """One file; what is in it is read when a page asks for it."""

    number: int
    path: Path
    kind: str
    """The kind of record, `trace`, or empty where nobody could tell."""
    problem: str = ""
    """Why it cannot be shown, in one line."""


@dataclass(frozen=True, slots=True)
class Files:
    """All files of this studio."""

    files: tuple[NamedFile, ...] = ()

    def of_kinds(self, kinds: Sequence[str]) -> list[NamedFile]:
        """The files that hold such records."""
        return [one for one in self.files if one.kind in kinds]

    def at(self, number: str) -> NamedFile:
        """The file of a number.

        Raises:
            InputError: There is none.
        """
        found = {str(one.number): one for one in self.files}
        if number not in found:
            raise InputError("there is no such file; the list of files names those that are open")
        return found[number]


NO_FILES = Files()


def name_files(paths: Sequence[Path]) -> Files:
    """Number the files; one that cannot be read keeps its place and says why."""
    return Files(tuple(_named(number, path) for number, path in enumerate(paths, start=1)))


def _named(number: int, path: Path) -> NamedFile:
    try:
        return NamedFile(number=number, path=path, kind=kind_of(path))
    except InputError as error:
        return NamedFile(number=number, path=path, kind="", problem=str(error))
