"""`ridgeline run --stack stack.toml -- script.py args…`: the script with a proven stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]…")],
    stack: Annotated[Path, typer.Option(help="The stack.toml that `ridgeline tune` wrote.")],
) -> int:
    """Run a script from start to end with a proven stack applied; its exit code is ours."""
    from ridgeline.tune.stack import run_with_stack

    return run_with_stack(command, stack)
