"""How a network for images runs: what decides its time beside the network and the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VisionJob = Literal["infer", "train"]
MemoryFormat = Literal["contiguous", "channels_last"]
MATRIX_DTYPES = {
    "fp32": "fp32",
    "tf32": "tf32",
    "amp_fp16": "fp16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "bf16": "bf16",
    "int8": "int8",
}
"""Precision of a run → the dtype whose peak its matrix products have."""
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes of one activation or weight in that dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSetting:
    """One way to run a network on one device.

    >>> VisionSetting(task="infer", batch=8, precision="amp_fp16").dtype
    'fp16'
    """

    task: VisionJob
    batch: int
    """Images of one forward pass, or of one training step on one device."""
    precision: str = "fp32"
    """One of `MATRIX_DTYPES`; `amp_…` is autocast over weights of 32 bits."""
    memory_format: MemoryFormat = "contiguous"
    software: str = "eager"
    """A class of software that the coefficients know: `eager`, `compile`, `tensorrt`…"""
    fused_attention: bool = True
    """Whether the scores of attention stay on the chip; PyTorch before 2.0 wrote and read them."""
    threads: int | None = None
    """Threads on a processor; None: one for every core. No meaning on GPUs."""

    @property
    def dtype(self) -> str:
        """The dtype of its matrix products."""
        return MATRIX_DTYPES[self.precision]
