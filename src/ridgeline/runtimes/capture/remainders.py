"""Remainders by a free size as quotients and products, for PyTorch's ONNX exporter.

Decoders of heatmaps split the place of a peak into row and column: `place // width, place % width`.
Where the width is free, the exporter of torch 2.13 translates the quotient and not the remainder.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def without_free_remainders(program: Any) -> Any:
    """The exported program with each remainder by a free size written out."""
    remainder = torch.ops.aten.remainder.Scalar
    free = any(
        node.target is remainder and isinstance(node.args[1], torch.fx.Node)
        for part in program.graph_module.modules()
        if hasattr(part, "graph")
        for node in part.graph.nodes
    )
    return program.run_decompositions({remainder: _remainder}) if free else program


def _remainder(number: Tensor, divisor: Any) -> Tensor:
    if isinstance(divisor, int | float):
        return NotImplemented  # as decompositions say that the operator shall stay
    return number - number.div(divisor, rounding_mode="floor") * divisor
