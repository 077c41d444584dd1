"""torch.export keeps the module as a graph of torch's operators: no model code is needed to run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ExportError
from ridgeline.runtimes import Artifact, RuntimeCard, not_installed

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="torch-export",
    title="torch.export",
    file="model.pt2",
    pip="",
    precisions=("fp32", "bf16"),
    needs=("torch",),
    source="https://docs.pytorch.org/docs/stable/export.html",
    in_graph=("bf16",),
    any_dtype=True,
    free_attributes=True,
)
GUARD = "Guard failed: "
"""What the message of a program begins with that was captured for other sizes."""
AXES = {0: "batch", 2: "height", 3: "width"}
"""Dimension of an image → its name."""


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    return not_installed(CARD)


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:  # noqa: ARG001
    """Leave `model.pt2`, a program of torch's operators; see `Runtime.write`."""
    import torch

    torch.export.save(captured.program, folder / CARD.file)
    return []


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:
    """The graph, run by torch; see `Runtime.load`. The threads are those of the process."""
    import torch

    from ridgeline.runtimes.capture.answering import Answering
    from ridgeline.runtimes.capture.quiet import silence

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with silence():
        program = torch.export.load(artifact.path).module()

    def run(tensors: list[Tensor]) -> list[Tensor]:
        try:
            with torch.no_grad():
                return list(program(*tensors))
        except AssertionError as error:
            if not str(error).startswith(GUARD):
                raise
            raise _another_size(str(error).removeprefix(GUARD)) from error

    return Answering(artifact, run)


def _another_size(condition: str) -> ExportError:
    """A program that keeps to the sizes which its capture took for granted."""
    words = re.sub(r"tensors_(\d+)\.size\(\)\[(\d+)\]", _axis, condition.strip())
    return ExportError(
        f"was captured where {words}, and takes no input where that does not hold: a map of one "
        "pixel may be a larger one there; export with larger images, or with --fix size",
        kind="fixed-size",
    )


def _axis(found: re.Match[str]) -> str:
    place, dimension = int(found[1]), int(found[2])
    name = AXES.get(dimension, f"dimension {dimension}")
    return name if place == 0 else f"{name} of input {place + 1}"
