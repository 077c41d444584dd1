"""AOTInductor: the module compiled ahead of time into a shared library, with its weights.

Convolutions and matmuls have their weights packed at compile time (`freezing`). It takes a C++
compiler, at load too (torch 2.13).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, Call, Free, Precision, RuntimeCard

if TYPE_CHECKING:
    from torch import Tensor, nn

CARD = RuntimeCard(
    name="aoti",
    title="AOTInductor",
    suffix=".pt2",
    pip="",
    precisions=("fp32", "bf16"),
    needs=("torch",),
    source="https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",
)

FILE = "model.pt2"
_COMPILERS = ("g++", "clang++", "cl")


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    from ridgeline.runtimes.capture.writing import not_installed

    if not any(map(shutil.which, _COMPILERS)):
        return "no C++ compiler is installed, which AOTInductor needs: install g++"
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
    """Write `model.pt2`, a package of compiled code and weights; see `Runtime.convert`."""
    import torch

    from ridgeline.runtimes.capture.program import capture
    from ridgeline.runtimes.capture.writing import check_precision, conversion, write_artifact

    check_precision(CARD, precision)
    captured = capture(
        module, inputs, kwargs, dynamic=dynamic, folder=folder, autocast=precision == "bf16"
    )
    with conversion(folder, CARD, captured), torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            captured.program,
            package_path=str(folder / FILE),
            inductor_configs={"freezing": True},
        )
    return write_artifact(folder, CARD, captured, precision, FILE, [])


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
