"""ExecuTorch takes the module for phones and boards, its operators on XNNPACK where that has them.

Its memory is planned when the file is written, so all sizes are those of the example. A program
that answers right on noise can fail on photographs (reported upstream): check with real inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import (
    Artifact,
    RuntimeCard,
    not_installed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="executorch",
    title="ExecuTorch",
    file="model.pte",
    pip="pip install 'ridgeline[executorch]'",
    precisions=("fp32",),
    needs=("executorch",),
    source="https://docs.pytorch.org/executorch/stable/",
    fixes_sizes="ExecuTorch plans its memory when the file is written",
)


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    return not_installed(CARD)


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:  # noqa: ARG001
    """Leave `model.pte`; see `Runtime.write`."""
    from executorch.backends.xnnpack.partition import xnnpack_partitioner as xnnpack  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from ridgeline.runtimes.capture.inverses import without_small_inverses

    lowered = to_edge_transform_and_lower(
        without_small_inverses(captured.program), partitioner=[xnnpack.XnnpackPartitioner()]
    )
    (folder / CARD.file).write_bytes(lowered.to_executorch().buffer)
    return []


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:  # noqa: ARG001
    """The program's method; see `Runtime.load`. XNNPACK decides its threads itself."""
    from executorch.runtime import Runtime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from ridgeline.runtimes.capture.answering import Answering

    program = Runtime.get().load_program(str(artifact.path))
    method = program.load_method("forward")

    def run(tensors: list[Tensor]) -> list[Tensor]:
        found = method.execute(tensors)
        return [tensor.clone() for tensor in found]

    return Answering(artifact, run)
