"""In what shape a command shows what it found: the same options everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write a page with the plots.")
]
