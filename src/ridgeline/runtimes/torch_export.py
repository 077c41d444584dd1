"""torch.export: the module as a graph of torch's operators, which needs no model code to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, Call, Free, Precision, RuntimeCard

if TYPE_CHECKING:
    from torch import Tensor, nn

CARD = RuntimeCard(
    name="torch-export",
    title="torch.export",
    suffix=".pt2",
    pip="",
    precisions=("fp32", "bf16"),
    needs=("torch",),
    source="https://docs.pytorch.org/docs/stable/export.html",
)

FILE = "model.pt2"


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    from ridgeline.runtimes.capture.writing import not_installed

    return not_installed(CARD)


def convert(
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    folder: Path,
    *,
    precision: Precision = "fp32",
    calibration: Sequence[Call] = (),  # noqa: ARG001  # it has no int8
    dynamic: tuple[Free, ...] = ("batch",),
) -> Artifact:
    """Write `model.pt2`; see `Runtime.convert`."""
    import torch

    from ridgeline.runtimes.capture.program import capture
    from ridgeline.runtimes.capture.writing import check_precision, conversion, write_artifact

    check_precision(CARD, precision)
    captured = capture(
        module, inputs, kwargs, dynamic=dynamic, folder=folder, autocast=precision == "bf16"
    )
    with conversion(folder, CARD, captured):
        torch.export.save(captured.program, folder / FILE)
    return write_artifact(folder, CARD, captured, precision, FILE, [])


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
