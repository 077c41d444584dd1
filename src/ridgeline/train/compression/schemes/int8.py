"""Gradients as int8, 256 elements with one fp32 scale, averaged in two steps.

Rounded to the nearest of 255 steps between minus and plus the group's largest magnitude (block-wise
absmax as in Dettmers et al., arXiv 2110.02861, section 2.1, with linear steps); errors are
remembered. See `two_step.py` for how the mean is taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.records.recipe import RecipeCommunication
from ridgeline.train.compression.bucket import Scheme
from ridgeline.train.compression.counted import Counted
from ridgeline.train.compression.two_step import TwoStepMean

_LARGEST = 127.0


class Int8:
    """A `Codec`: one byte for each element."""

    group = 256

    def encode(self, elements: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """See `Codec`."""
        del count
        scales = elements.abs().amax(dim=1) / _LARGEST
        steps = elements / torch.where(scales > 0, scales, 1.0)[:, None]
        return steps.round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """See `Codec`."""
        return codes.view(torch.int8).to(torch.float32).mul_(scales[:, None])


def make(_: RecipeCommunication, counted: Counted, sizes: Mapping[str, int]) -> Scheme:
    """The scheme."""
    return TwoStepMean(Int8(), counted, sizes)
