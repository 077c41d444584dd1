"""torch.export keeps the module as a graph of torch's operators: no model code is needed to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        with torch.no_grad():
            return list(program(*tensors))

    return Answering(artifact, run)
