"""Gradients as bf16, summed in bf16.

torch's `bf16_compress_hook` is refused without NCCL, though gloo reduces bf16 itself. Every
addition rounds to 8 bits of mantissa; nothing is remembered of what that loses.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ridgeline.records.recipe import RecipeCommunication
from ridgeline.train.compression.bucket import Scheme
from ridgeline.train.compression.cast import Cast
from ridgeline.train.compression.counted import Counted


def make(_: RecipeCommunication, counted: Counted, __: Mapping[str, int]) -> Scheme:
    """The scheme."""
    return Cast(torch.bfloat16, counted)
