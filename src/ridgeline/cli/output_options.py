"""In what shape a command shows what it found: the same options everywhere.

A file is written into a folder that is there, and never over one that the command reads; both are
looked at before anything is read. A folder that a command fills (`compress --out`, `train --out`)
is made, with those above it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_output


def announce(parameter: typer.CallbackParam, value: Any) -> Any:
    """Say that an option's file will be written, before anything is read.

    Raises:
        InputError: It is read by this command, or its folder is not there.
    """
    if value is not None:
        option, path = parameter.opts[0], Path(value)
        _need_folder(option, path)
        note_output(option, path)
    return value


def _need_folder(option: str, path: Path) -> None:
    folder = path.parent
    try:
        if folder.is_dir():
            return
        what = "is no folder" if folder.exists() else "is not there"
    except OSError as error:
        what = in_words(error)
    raise InputError(f"{option} {path}: the folder {folder} {what}; make it first, or name another")


def output_file(name: str, help: str) -> Any:  # noqa: A002 - as typer has it
    """An option that names a file to write; every one is made here."""
    return typer.Option(metavar=name, help=help, callback=announce)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Html = Annotated[Path | None, output_file("FILE", "Also write a page with the plots.")]
