"""A weight read back from the tensors that `compressed_tensors.py` wrote of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ridgeline.compress.quantised import Quantised
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, integer
from ridgeline.records.scheme import NumberFormat

_KINDS = {
    "naive-quantized": "fp8_e4m3",
    "float-quantized": "fp8_e4m3",
    "mxfp4-pack-quantized": "mxfp4",
    "mxfp8-quantized": "mxfp8",
    "nvfp4-pack-quantized": "nvfp4",
    "pack-quantized": "int",
    "int-quantized": "int",
}
"""What a layout of compressed-tensors holds."""


def format_of(group: Mapping[str, Any], layout: str) -> NumberFormat:
    """The number format of a group of `quantization_config`.

    Raises:
        InputError: It is one that Ridgeline does not write.
    """
    weights = group["weights"]
    layout = group.get("format") or layout
    kind: Any = _KINDS.get(layout)
    share = {"tensor_group": "group"}.get(weights["strategy"], weights["strategy"])
    if kind is None or share not in {"tensor", "channel", "group"} or weights.get("actorder"):
        raise InputError(
            f"weights stored as {layout}, a scale per {weights['strategy']}, are not read back here"
        )
    return NumberFormat(
        kind=kind,
        bits=weights["num_bits"],
        symmetric=weights["symmetric"],
        share=share,
        group=weights.get("group_size") if share == "group" else None,
    )


def quantised_from(parts: Mapping[str, Tensor], form: NumberFormat) -> Quantised:
    """The weight of one linear layer.

    Args:
        parts: By the last part of their names (`weight_packed`, `weight_scale` …).
        form: How it was rounded.
    """
    scales = parts["weight_scale"]
    if form.share == "tensor":
        scales = scales.reshape(1, 1)
    levels, zeros = parts.get("weight"), parts.get("weight_zero_point")
    if levels is None and form.kind == "int":
        shape = [int(size) for size in parts["weight_shape"]]
        levels = integer.unpack(parts["weight_packed"], form.bits, shape[1])
        if zeros is not None and form.share != "tensor":
            zeros = integer.unpack(zeros.T.contiguous(), form.bits, shape[0]).T
    elif levels is None:
        levels = fp4.unpack(parts["weight_packed"])
    if zeros is not None and form.share == "tensor":
        zeros = zeros.reshape(1, 1)
    return Quantised(
        format=form,
        levels=levels,
        scales=scales,
        zeros=zeros,
        global_scale=parts.get("weight_global_scale"),
    )
