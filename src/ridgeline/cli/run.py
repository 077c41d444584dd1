"""`ridgeline run --stack stack.toml -- script.py args…`: a script with a stack, or with marks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- SCRIPT [ARGS]…", help="The script and its arguments, after --."),
    ],
    stack: Annotated[
        Path | None,
        typer.Option(metavar="STACK.toml", help="The stack that `ridgeline tune` wrote."),
    ] = None,
    nvtx: Annotated[
        bool,
        typer.Option("--nvtx", help="Mark phases and steps by NVTX ranges, for Nsight Systems."),
    ] = False,
) -> int:
    """Run a script to its end with a proven stack, or with NVTX ranges; its exit code is ours."""
    from ridgeline.errors import InputError
    from ridgeline.tune.stack import run_with_stack

    if stack is None and not nvtx:
        raise InputError(
            "say what to run it with: --stack STACK.toml (`ridgeline tune` writes it), or --nvtx"
        )
    return run_with_stack(command, stack, nvtx=nvtx)
