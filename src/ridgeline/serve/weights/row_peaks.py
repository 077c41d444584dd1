"""The largest magnitude of each output's weights, noted at a layer that has some of the inputs.

A scale per output is that magnitude over the number of levels. A rank that has a share of a layer's
inputs would find a smaller one, and round to other levels than the whole layer; so whoever reads
the share notes what the whole row reaches, and whoever rounds asks for it here.
"""

from __future__ import annotations

from torch import Tensor, nn

SCALED_BY_ROW = ("int8", "w8a8", "fp8")
"""The formats of `--weights` that have a scale per output; int4 has one per group of inputs."""


def note_row_peaks(module: nn.Module, leaf: str, peaks: Tensor) -> None:
    """Note at a module what the rows of one of its parameters reach, [..., outputs]."""
    module.register_buffer(_name(leaf), peaks, persistent=False)


def row_peaks(module: nn.Module, leaf: str = "weight") -> Tensor | None:
    """What was noted, [..., outputs]; None: the parameter has all inputs."""
    return module._buffers.get(_name(leaf))


def forget_row_peaks(module: nn.Module, leaf: str) -> None:
    """Drop what was noted, if anything was."""
    module._buffers.pop(_name(leaf), None)


def _name(leaf: str) -> str:
    return f"{leaf}_row_peaks"
