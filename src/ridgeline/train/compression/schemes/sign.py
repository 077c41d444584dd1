"""The sign of each element, 1024 with one fp32 scale (their mean magnitude), averaged in two steps.

EF-signSGD: Karimireddy et al., "Error feedback fixes SignSGD", arXiv 1901.09847, algorithm 1, with
scale |p|₁/d for each block and the error of what was sent remembered; there the learning rate is
inside what is compressed, here it is applied after, which is the same while it is constant. Zero
counts as positive. One bit for each element and 1/32 for the scale. See `two_step.py` for how the
mean is taken; it is signs and a scale again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.records.recipe import RecipeCommunication
from ridgeline.train.compression.bucket import Scheme
from ridgeline.train.compression.counted import Counted
from ridgeline.train.compression.two_step import TwoStepMean

_BITS = 8


class Sign:
    """A `Codec`: eight elements in a byte."""

    group = 1024

    def encode(self, elements: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """See `Codec`."""
        scales = elements.abs().sum(dim=1) / count
        bits = (elements >= 0).unflatten(1, (-1, _BITS)).to(torch.uint8)
        return (bits << _places(bits.device)).sum(dim=2, dtype=torch.uint8), scales

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """See `Codec`."""
        bits = (codes[:, :, None] >> _places(codes.device)) & 1
        signs = bits.flatten(1).to(torch.float32).mul_(2.0).sub_(1.0)
        return signs.mul_(scales[:, None])


def _places(device: torch.device) -> Tensor:
    return torch.arange(_BITS, dtype=torch.uint8, device=device)


def make(_: RecipeCommunication, counted: Counted, sizes: Mapping[str, int]) -> Scheme:
    """The scheme."""
    return TwoStepMean(Sign(), counted, sizes)
