"""In what shape a command shows what it found: the same options everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.records.overwriting import note_output


def announce(parameter: typer.CallbackParam, value: Any) -> Any:
    """Say that an option's file will be written, before anything is read."""
    if value is not None:
        note_output(parameter.opts[0], Path(value))
    return value


def output_file(name: str, help: str) -> Any:  # noqa: A002 - as typer has it
    """An option that names a file to write; every one is made here."""
    return typer.Option(metavar=name, help=help, callback=announce)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Html = Annotated[Path | None, output_file("FILE", "Also write a page with the plots.")]
