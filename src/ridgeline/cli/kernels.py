"""`ridgeline kernels list` and `kernels build`: the C++ kernels for CPUs, and making them ahead."""

from __future__ import annotations

import importlib.util
import time
from typing import Annotated, Any

import typer

from ridgeline.cli.output_options import Json
from ridgeline.errors import MissingExtra

Libraries = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LIBRARY]…", help="Libraries to compile; none: all of them."),
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
