"""Gradients as fp16, summed in fp16: torch's `fp16_compress_hook`.

Divided by the ranks before they are summed. What exceeds 65504 becomes infinite, and what is below
6e-8 zero, so that fp16 belongs to gradients of a scaled loss.
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
    return Cast(torch.float16, counted)
