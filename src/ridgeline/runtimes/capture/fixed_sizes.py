"""Sizes that were to be free and that forward took for numbers, with the line at which it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import ExportError
from ridgeline.runtimes.capture.sources import Place

TORCH = Path(torch.__file__).parent


def refuse_fixed_sizes(
    program: Any, shapes: tuple[dict[int, Any], ...], example: list[Tensor]
) -> None:
    """Refuse a program in which a size that was to be free has become a number.

    Raises:
        ExportError: Says which, and at which line.
    """
    names = [spec.arg.name for spec in program.graph_signature.input_specs
             if spec.kind.name == "USER_INPUT"]  # fmt: skip
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for name, free, tensor in zip(names, shapes, example, strict=True):
        value = nodes[name].meta["val"]
        for dimension in free:
            if _is_fixed(value.shape[dimension]):
                raise _fixed(program, dimension, tensor.shape[dimension])


def _is_fixed(size: Any) -> bool:
    """Whether a size is a number by now, though it may have begun as a symbol."""
    return isinstance(size, int) or bool(size.node.expr.is_number)


def _fixed(program: Any, dimension: int, size: int) -> ExportError:
    place = where_fixed(program, size)
    what = "batch" if dimension == 0 else "size of the image"
    where = f"{place} fixes" if place else "forward fixes"
    return ExportError(
        f"{where} the {what} to {size}, that of the example (a loop over it, or int() of it); "
        f"compute on the whole tensor at once, or export with the {what} fixed",
        kind="fixed-size",
    )


def where_fixed(program: Any, size: int) -> Place | None:
    """The line at which a program took a size that was free for a number; None: at none.

    Args:
        program: A `torch.export.ExportedProgram`.
        size: The example's.
    """
    for environment in _environments(program):
        for guard in reversed(environment.guards):
            frame = guard.sloc.maybe_user_loc or guard.sloc.framework_loc
            if not str(guard.expr).endswith(f", {size})") or not hasattr(frame, "lineno"):
                continue
            if not Path(frame.filename).is_relative_to(TORCH):
                return Place(frame.filename, frame.lineno)
    return None


def _environments(program: Any) -> Iterator[Any]:
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            yield mode.shape_env
            return
