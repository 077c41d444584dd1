"""The one place where compression has torch write a vision model as an ONNX file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.models.quiet import quiet_libraries
from ridgeline.runtimes.capture.blame import blame
from ridgeline.runtimes.capture.onnx_notes import drop_sources

Names = tuple[Sequence[str], Sequence[str]]
"""The names of a file's inputs, and of its outputs."""


def write_program(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    free: Any,
    path: Path,
    names: Names | None = None,
) -> None:
    """Write a module as ONNX; nothing is left at `path` where that fails.

    Args:
        module: In evaluation mode.
        inputs: Positional inputs of an example.
        free: The dynamic shapes, as `torch.export` takes them; None: all are the example's.
        path: The file.
        names: None: the exporter's.

    Raises:
        InputError: The exporter cannot follow the model; its reason in one line.
    """
    partial = path.with_name(f"{path.name}.partial")
    # the exporter's own messages are of no use to users
    with quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(
                module,
                inputs,
                input_names=None if names is None else list(names[0]),
                output_names=None if names is None else list(names[1]),
                dynamo=True,
                dynamic_shapes=free,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # whatever the exporter meets in the user's operators
            why = blame(error, log="", runtime="ONNX")
            raise InputError(f"ONNX cannot hold this model: {why}") from error
        try:
            drop_sources(made).save(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
