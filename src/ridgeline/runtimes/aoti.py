"""AOTInductor takes the module, compiled ahead of time into a shared library, with its weights.

Convolutions and matmuls have their weights packed at compile time (`freezing`). It takes a C++
compiler, at load too (torch 2.13).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, RuntimeCard, not_installed

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="aoti",
    title="AOTInductor",
    file="model.pt2",
    pip="",
    precisions=("fp32", "bf16"),
    needs=("torch",),
    source="https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",
    in_graph=("bf16",),
    any_dtype=True,
)

_COMPILERS = ("g++", "clang++", "cl")


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    if not any(map(shutil.which, _COMPILERS)):
        return "no C++ compiler is installed, which AOTInductor needs: install g++"
    return not_installed(CARD)


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:  # noqa: ARG001
    """Leave `model.pt2`, a package of compiled code and weights; see `Runtime.write`."""
    import torch

    torch._inductor.aoti_compile_and_package(
        captured.program,
        package_path=str(folder / CARD.file),
        # Else the loops are cut for the threads of the process that compiles, whoever runs them.
        inductor_configs={"freezing": True, "cpp.dynamic_threads": True},
    )
    return []


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:
    """The compiled code; see `Runtime.load`. The threads are those of the process."""
    import torch

    from ridgeline.runtimes.capture.answering import Answering
    from ridgeline.runtimes.capture.quiet import silence

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with silence():
        program = torch._inductor.aoti_load_package(str(artifact.path))

    def run(tensors: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return list(program(*tensors))

    return Answering(artifact, run)
