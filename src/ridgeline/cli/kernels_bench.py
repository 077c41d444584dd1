"""The command `ridgeline kernels bench` times kernels beside what else computes the same."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.output_options import Json


def kernels_bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]…", help="Kernels whose names have one of them; none: all."),
    ] = None,
    json: Json = False,
) -> None:
    """Medians of CUDA graph replays, L2 cold, beside compiled and library kernels; needs a GPU."""
    from ridgeline.cli.kernels import _require_torch
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.report.views.kernel_bench import bench_document

    _require_torch()
    from ridgeline.kernels.bench.rows import rows
    from ridgeline.kernels.bench.timing import measure

    with progress() as report_progress:
        found = measure(rows(), tuple(words or ()), report_progress)
    show_answer(found, bench_document(found), json=json)
