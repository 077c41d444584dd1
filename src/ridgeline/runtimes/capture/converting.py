"""From a module to an artifact: the way that all runtimes share, around what each one writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.errors import ExportError, InputError
from ridgeline.runtimes import Artifact, Free, ModelCall, Precision, Runtime, RuntimeCard
from ridgeline.runtimes.capture.half import HalfPrecision
from ridgeline.runtimes.capture.program import capture, flat_calls
from ridgeline.runtimes.capture.writing import (
    check_attributes,
    check_dtypes,
    conversion,
    write_artifact,
)


def convert(
    runtime: Runtime,
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    folder: Path,
    *,
    precision: Precision = "fp32",
    calibration: Sequence[ModelCall] = (),
    dynamic: tuple[Free, ...] = ("batch",),
) -> Artifact:
    """Write the module for a runtime into `folder`, which is made.

    Args:
        runtime: One of `ridgeline.runtimes.all_runtimes()`.
        module: In evaluation mode, on the CPU.
        inputs: Positional arguments of an example call; a batch of 1 is widened to 2 where the
            batch stays free.
        kwargs: Its keyword arguments.
        folder: For the files, and `artifact.json`. Where conversion fails, what it wrote is
            removed, and torch's own message is kept in a file beside the folder.
        precision: One of `CARD.precisions`.
        calibration: Calls with real inputs whose ranges int8 takes; only there.
        dynamic: Dimensions that must stay free.

    Raises:
        ExportError: The module cannot be converted: whose line or operator, and the cure.
        InputError: A precision that it does not have; int8 without calibration calls.
    """
    card = runtime.CARD
    _check(card, precision, dynamic)
    in_graph = precision in card.in_graph
    captured = capture(
        HalfPrecision(module) if in_graph and precision == "fp16" else module,
        inputs,
        kwargs,
        dynamic=dynamic,
        folder=folder,
        precision=precision,
        autocast=in_graph and precision == "bf16",
    )
    if not card.any_dtype:
        check_dtypes(card, captured)
    if not card.free_attributes:
        check_attributes(card, captured)
    calls = flat_calls(captured, calibration) if precision == "int8" else []
    with conversion(folder, card, captured), torch.no_grad():
        notes = runtime.write(captured, folder, calls)
    return write_artifact(folder, card, captured, notes)


def _check(card: RuntimeCard, precision: Precision, dynamic: tuple[Free, ...]) -> None:
    if precision not in card.precisions:
        raise InputError(
            f"{card.name} does not compute in {precision} here; it has {', '.join(card.precisions)}"
        )
    if card.fixes_sizes and dynamic:
        raise ExportError(
            f"{card.fixes_sizes}, so the {' and '.join(dynamic)} cannot stay free; export with all "
            "sizes fixed",
            kind="fixed-size",
        )
