"""`ridgeline kernels list`, `build`, `bench` and `occupancy`; `check` is a file of its own."""

from __future__ import annotations

import importlib.util
import time
from typing import Annotated, Any

import typer

from ridgeline.cli.show import Html, Json
from ridgeline.errors import MissingExtra

Libraries = Annotated[
    list[str] | None,
    typer.Argument(metavar="LIBRARY…", help="Libraries to compile. Default: all."),
]


def kernels_list(json: Json = False) -> None:
    """Which kernels are compiled for this CPU (or RIDGELINE_CPU_TARGET), and where they lie."""
    from ridgeline.cli.show import show_answer

    _require_torch()
    from ridgeline.kernels.cpu import build
    from ridgeline.report.views.hardware import kernels_document

    document = _document({one.name: one.made() for one in build.wanted_recipes()})
    show_answer(document, kernels_document(document), json=json)


def kernels_build(libraries: Libraries = None, json: Json = False) -> None:
    """Compile kernels now, for this CPU (or RIDGELINE_CPU_TARGET), with CXX or what is found."""
    from ridgeline.cli.show import print_document, print_json, progress, say

    _require_torch()
    from ridgeline.kernels.cpu import build
    from ridgeline.report.views.hardware import kernels_document

    began = time.monotonic()
    with progress() as report_progress:
        made = build.make_ahead(
            libraries or (),
            lambda done, total: report_progress(f"compiled {done} of {total} files"),
        )
    document = _document({one.library: one for one in made})
    document["seconds"] = round(time.monotonic() - began, 1)
    if json:
        print_json(document)
        return
    print_document(kernels_document(document))
    say(f"ready after {document['seconds']:g} s")


def kernels_bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD…", help="Kernels whose names have one of these. Default: all."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Medians of CUDA graph replays, L2 cold, beside compiled and library kernels; needs a GPU."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.report.views.kernel_bench import bench_document

    _require_torch()
    from ridgeline.kernels.bench.rows import rows
    from ridgeline.kernels.bench.timing import measure

    with progress() as report_progress:
        found = measure(rows(), tuple(words or ()), report_progress)
    show_answer(found, bench_document(found), json=json)


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


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "serve")


def _document(libraries: dict[str, Any]) -> dict[str, Any]:
    """The JSON document, whose keys are a contract (`docs/reference/kernels.md`)."""
    from ridgeline.hardware.ceilings import cache_folder
    from ridgeline.hardware.machine import this_machine
    from ridgeline.kernels.cpu import compiler

    return {
        "cpu": this_machine(gpus=[]).cpu.model,
        "target": compiler.settings().target,
        "folder": str(cache_folder() / "kernels"),
        "libraries": libraries,
    }
