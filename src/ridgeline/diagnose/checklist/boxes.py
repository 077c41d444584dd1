"""The boxes of every group, read from `boxes/`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml

GROUPS = ("training", "inference", "distributed", "launch")
_FOLDER = Path(__file__).with_name("boxes")


class Box(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One box, before any record is asked."""

    name: str
    box: str
    """What is so when it is done."""
    priority: int
    why: str
    evidence: str
    """Where a record would show it."""
    finds: str
    """The command that finds out."""
    closes: str
    """The command, or the line of code, that does it."""
    kind: str = ""
    """The only kind of profile that can answer, `training` or `inference`; empty: either."""
    causes: tuple[str, ...] = ()
    """Findings of the doctor, or of a trace, that say it is not done."""
    clean: bool = False
    """A profile in which the doctor finds none of the causes says that it is done."""
    techniques: tuple[str, ...] = ()
    """The techniques of `tune` of which one in the final stack does it."""


class _BoxFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    box: list[Box]


@cache
def boxes(group: str) -> tuple[Box, ...]:
    """The boxes of one group, in the file's order.

    Raises:
        InputError: There is no such group.
    """
    if group not in GROUPS:
        raise InputError(
            f"checklist {group}: no such list; there are {', '.join(GROUPS)}, and files are given"
            " as --profile, --trace, --recipe or --ledger"
        )
    return tuple(read_toml(_FOLDER / f"{group}.toml", _BoxFile).box)
