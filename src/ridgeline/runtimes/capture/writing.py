"""Files of a conversion: all of them and their description, or none and one line why not."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.errors import ExportError, InputError
from ridgeline.runtimes import ARTIFACT_NAME, Artifact, RuntimeCard
from ridgeline.runtimes.capture.blame import USUAL, blame, keep_log
from ridgeline.runtimes.capture.program import Captured, operators
from ridgeline.runtimes.capture.quiet import silence
from ridgeline.runtimes.capture.sources import place_of_node


def check_dtypes(card: RuntimeCard, captured: Captured) -> None:
    """Raise ExportError where the module takes or returns numbers that no such runtime has."""
    outputs = next(node for node in captured.program.graph.nodes if node.op == "output")
    returned = [node.meta["val"] for node in outputs.all_input_nodes]
    for what, tensors in (("takes", captured.tensors), ("returns", returned)):
        odd = [tensor.dtype for tensor in tensors if tensor.dtype not in USUAL]
        if odd:
            raise ExportError(
                f"forward {what} {odd[0]}, which {card.title} does not have; "
                + ("pass" if what == "takes" else "return")
                + (" torch.view_as_real(x)" if odd[0].is_complex else " it as float32"),
                kind="dtype-not-there",
            )


_ATTRIBUTES = frozenset({"stride", "padding", "dilation", "groups", "output_padding"})
"""What torch lets follow from a size in a convolution, and runtimes keep as plain numbers."""


def check_attributes(card: RuntimeCard, captured: Captured) -> None:
    """Raise ExportError where a free size decides what a runtime writes down as a number.

    The groups of a correlation, one for each pair of a batch, became those of the example: the file
    answered with another shape at any other batch.
    """
    for node in operators(captured.program):
        given = {**dict(zip(_argument_names(node), node.args, strict=False)), **node.kwargs}
        for name in sorted(_ATTRIBUTES & given.keys()):
            if _follows(given[name]):
                raise ExportError(
                    f"{place_of_node(node) or 'forward'} takes the {name} of a convolution from a "
                    f"size, and {card.title} keeps it as a number; export with that size fixed, or "
                    "write it as a product of views (einsum)",
                    kind="fixed-size",
                )


def _argument_names(node: Any) -> list[str]:
    return [argument.name for argument in node.target._schema.arguments]


def _follows(value: Any) -> bool:
    """Whether an argument is computed in the graph, or one of its numbers is."""
    if isinstance(value, list | tuple):
        return any(map(_follows, value))
    return hasattr(value, "meta")


@contextlib.contextmanager
def conversion(folder: Path, card: RuntimeCard, captured: Captured) -> Iterator[None]:
    """Around a conversion into `folder`: quiet, and where it fails what it wrote is removed.

    Raises:
        ExportError: In one line, whose operator it is; the whole message is beside the folder.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    try:
        with silence() as said:
            yield
    except BaseException as error:
        for path in set(folder.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            folder.rmdir()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        log = keep_log(folder, error, said.getvalue())
        lacking = _lacking(error, card, log)
        raise lacking or blame(error, log, card.title, captured.program) from error


def _lacking(error: BaseException | None, card: RuntimeCard, log: str) -> ExportError | None:
    """The error of a runtime without a module that it imports as it converts; None: it is another.

    Forward was run before: what is imported here is the runtime's. Only what was raised `from` it
    counts, since an error inside of `except ImportError` is not of the import.
    """
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if error is None:
        return None
    return ExportError(
        f"{card.title} imports {error.name} to write this model, which is not installed; "
        f"run: {card.pip}",
        kind="not-installed",
        log=log,
    )


def write_artifact(
    folder: Path,
    card: RuntimeCard,
    captured: Captured,
    notes: list[str],
) -> Artifact:
    """Describe what lies in `folder` now."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    artifact = Artifact(
        folder=folder,
        runtime=card.name,
        precision=captured.precision,
        file=card.file,
        files=[str(path.relative_to(folder)) for path in files if path.name != ARTIFACT_NAME],
        free=captured.free,
        inputs=captured.inputs,
        outputs=captured.outputs,
        shapes=[list(tensor.shape) for tensor in captured.tensors],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in captured.tensors],
        notes=notes,
    )
    artifact.write()
    return artifact
