"""The command `ridgeline kernels occupancy` says how many warps fit, and what limits them."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.output_options import Html, Json


def kernels_occupancy(
    arch: Annotated[
        str, typer.Option(metavar="NAME", help="Architecture or device: sm_90, gfx942, h100.")
    ],
    threads: Annotated[int, typer.Option(metavar="N", help="Threads per block.")],
    registers: Annotated[
        int, typer.Option(metavar="N", help="Registers per thread, as the compiler reports them.")
    ],
    shared: Annotated[
        int,
        typer.Option(metavar="BYTES", help="Shared memory per block, static and dynamic together."),
    ] = 0,
    html: Html = None,
    json: Json = False,
) -> None:
    """Warps of a kernel that a multiprocessor holds at once, the limiter, what would raise it."""
    from ridgeline.cli.show import show_answer
    from ridgeline.cost.occupancy import occupancy
    from ridgeline.hardware.processors import processor
    from ridgeline.report.views.kernel_occupancy import occupancy_document

    found = occupancy(processor(arch), threads=threads, registers=registers, shared_bytes=shared)
    show_answer(found, occupancy_document(found), json=json, html=html)
