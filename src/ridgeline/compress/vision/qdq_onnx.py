"""ONNX in which QuantizeLinear and DequantizeLinear say what is computed in integers.

ONNX Runtime and OpenVINO read such pairs and run what lies between them with int8 kernels.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ridgeline.compress.vision.batches import Batch, free_batch, inputs_of, rows_of, together
from ridgeline.compress.vision.nodes import RoundedTensor, RoundedWeight, load_operators
from ridgeline.compress.vision.onnx_program import Names, write_program
from ridgeline.compress.vision.operators import copied
from ridgeline.errors import InputError


def write(
    module: nn.Module,
    path: Path,
    example: Batch,
    *,
    dynamic: bool,
    names: Names | None = None,
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
    load_operators()
    shapes = free_batch(own, example, torch.export.Dim.DYNAMIC) if dynamic else None
    write_program(own, inputs_of(example), shapes, path, names)


def _halve(weight: RoundedWeight) -> None:
    """Keep seven bits, so that sums of two products fit 16, as x86 without VNNI adds them."""
    weight.levels = (weight.levels.float() / 2).round().clamp(-64, 63).to(torch.int8)
    weight.scales = weight.scales * 2
