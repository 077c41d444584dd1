"""ONNX in which QuantizeLinear and DequantizeLinear say what is computed in integers.

ONNX Runtime and OpenVINO read such pairs and run what lies between them with int8 kernels.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.compress.vision.batches import Batch, free_batch, inputs_of, rows_of, together
from ridgeline.compress.vision.nodes import RoundedTensor, RoundedWeight, load_operators
from ridgeline.compress.vision.operators import copied
from ridgeline.errors import InputError
from ridgeline.runtimes.capture.blame import blame
from ridgeline.runtimes.capture.onnx_notes import drop_sources


def write(
    module: nn.Module,
    path: Path,
    example: Batch,
    *,
    dynamic: bool,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
    unsigned: bool,
    reduce_range: bool,
) -> None:
    """Write a quantised module; arguments as `QuantisedVision.qdq_onnx`.

    Raises:
        InputError: No int8 form exists, or the exporter's first line.
    """
    rounders = [one for one in module.modules() if isinstance(one, RoundedTensor)]
    if any(one.form.dynamic for one in rounders):
        raise InputError(
            f"{path}: ranges that come with each batch have no QuantizeLinear form; use a static"
            " scheme, such as w8a8-int8"
        )
    if dynamic and rows_of(example) < 2:
        example = together([example, example])
    own = copied(module)
    for one in own.modules():
        if isinstance(one, RoundedTensor):
            one.unsigned = unsigned
        if reduce_range and isinstance(one, RoundedWeight):
            _halve(one)
    partial = path.with_name(f"{path.name}.partial")
    try:
        drop_sources(_program(own, example, names, dynamic=dynamic)).save(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _program(
    module: nn.Module,
    example: Batch,
    names: tuple[Sequence[str], Sequence[str]] | None,
    *,
    dynamic: bool,
) -> Any:
    """What the exporter makes of it; its own messages are of no use to users."""
    load_operators()
    shapes = free_batch(module, example, torch.export.Dim.DYNAMIC) if dynamic else None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.onnx.export(
                module,
                inputs_of(example),
                input_names=None if names is None else list(names[0]),
                output_names=None if names is None else list(names[1]),
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # whatever the exporter meets in the user's operators
            why = blame(error, log="", runtime="ONNX")
            raise InputError(f"ONNX cannot hold this model: {why}") from error


def _halve(weight: RoundedWeight) -> None:
    """Keep seven bits, so that sums of two products fit 16, as x86 without VNNI adds them."""
    weight.levels = (weight.levels.float() / 2).round().clamp(-64, 63).to(torch.int8)
    weight.scales = weight.scales * 2
