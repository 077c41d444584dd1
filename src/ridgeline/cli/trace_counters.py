"""`ridgeline trace counters` reads tables of Nsight Compute, kernel by kernel."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.show import Json, show_answer
from ridgeline.cli.trace_files import Top


def trace_counters(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES…", help="Tables that `ncu --csv` wrote, or globs in quotes."),
    ],
    top: Top = 20,
    json: Json = False,
) -> None:
    """What bounds each kernel by the hardware's counters, and what its warps wait for."""
    import glob
    from pathlib import Path

    from ridgeline.report.views.trace_counters import counters_document
    from ridgeline.trace.kernel_counters import kernel_counters

    paths = [Path(found) for name in files for found in sorted(glob.glob(name)) or [name]]
    kernels = kernel_counters(paths, top)
    show_answer({"kernels": kernels}, counters_document(kernels), json=json)
