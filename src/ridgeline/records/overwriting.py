"""No command writes to a file that it reads: who reads and who writes is told here, while it runs.

Files are compared by what they are, not by their names: a link to an input is the input. What a
library or another process reads for a command is told by `note_input`; an option's file, which is
written last, by `note_output` first, so that the command ends before its work and not after it.
Outside of a command, in somebody's program, nothing is noted or refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import InputError

_Identity = tuple[int, int]


@dataclass(slots=True)
class _Command:
    """What one command has told so far."""

    inputs: dict[_Identity, Path] = field(default_factory=dict)
    outputs: dict[_Identity, str] = field(default_factory=dict)
    """Identity → the option and the path."""
    made: set[_Identity] = field(default_factory=set)
    """What the command itself wrote; it may read that and write it again."""


_commands: list[_Command] = []


@contextmanager
def one_command() -> Iterator[None]:
    """Within, what is read is not written."""
    _commands.append(_Command())
    try:
        yield
    finally:
        _commands.pop()


def note_input(path: Path) -> None:
    """A file is read, or the files of a folder.

    Raises:
        InputError: An option said that it will be written.
    """
    if not _commands:
        return
    command = _commands[-1]
    for one in path.iterdir() if path.is_dir() else [path]:
        identity = _identity(one)
        if identity is None or identity in command.made:
            continue
        if identity in command.outputs:
            raise _both(command.outputs[identity], one)
        command.inputs[identity] = one


def note_kept(path: Path) -> None:
    """A file that the program keeps for itself, in its cache: it may be read and written anew."""
    identity = _identity(path)
    if _commands and identity is not None:
        _commands[-1].inputs.pop(identity, None)


def note_written(path: Path) -> None:
    """The command has written a file."""
    identity = _identity(path)
    if _commands and identity is not None:
        _commands[-1].made.add(identity)
        _commands[-1].inputs.pop(identity, None)  # a number of a file that is gone, given anew


def note_output(option: str, path: Path) -> None:
    """An option names a file that will be written.

    Raises:
        InputError: It is an input.
    """
    refuse_overwriting(path, option)
    identity = _identity(path)
    if _commands and identity is not None:
        _commands[-1].outputs[identity] = f"{option} {path}"


def refuse_overwriting(path: Path, option: str = "") -> None:
    """Refuse to write to an input.

    Args:
        path: To be written.
        option: That names it.

    Raises:
        InputError: The command reads it.
    """
    identity = _identity(path)
    if not _commands or identity is None:
        return
    command = _commands[-1]
    command.made.discard(identity)  # it will be replaced, and its number given anew
    known = command.inputs.get(identity)
    if known is not None:
        raise _both(f"{option} {path}".strip(), known)


def _identity(path: Path) -> _Identity | None:
    """The identity of a file that is there; a terminal or a pipe may be read and written."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _both(output: str, read: Path) -> InputError:
    return InputError(
        f"{output} would overwrite what this command reads ({read}); give another name"
    )
