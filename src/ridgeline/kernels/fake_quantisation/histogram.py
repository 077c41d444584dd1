"""What was seen of a tensor over batches: its ends, and how often each size came.

The bins reach from −reach to reach; where a larger number comes, reach doubles and bins are merged
by two, so that one pass over the batches is enough and nothing that was counted is lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 4096
"""Bins on each side of 0: at least half of them lie within the largest magnitude."""
MOMENTUM = 0.1
"""How far a moving average goes towards each batch (Jacob et al., arXiv 1712.05877, 3.1)."""
_SAMPLE = 2**18
"""Numbers of a batch that are counted; of larger tensors an even sample. The ends are exact."""


class TensorHistogram:
    """The numbers of one tensor of a network."""

    def __init__(self) -> None:
        self.reach = 0.0
        """The outer edge of the last bin."""
        self.counts = torch.zeros(2 * BINS, dtype=torch.float64)
        """Numbers in each bin, from −reach to reach."""
        self.low, self.high = 0.0, 0.0
        """The smallest and the largest number, or 0 beyond them: 0 is always a level."""
        self.average_low, self.average_high = 0.0, 0.0
        """Moving averages of each batch's smallest and largest number."""
        self.num_batches = 0

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Count a batch of any shape; numbers that are not finite are left out."""
        flat = x.detach().reshape(-1).float()
        if not flat.numel():
            return
        low, high = (float(one) for one in torch.aminmax(flat))
        if not low - low == high - high == 0.0:
            flat = flat[flat.isfinite()]
            if not flat.numel():
                return
            low, high = (float(one) for one in torch.aminmax(flat))
        self._note_ends(low, high)
        self._widen(max(-low, high))
        if flat.numel() > _SAMPLE:
            flat = flat[:: -(-flat.numel() // _SAMPLE)]
        if self.reach:
            ends = {"min": -self.reach, "max": self.reach}
            self.counts += torch.histc(flat.cpu(), bins=2 * BINS, **ends).double()

    def centres(self) -> Tensor:
        """The middle of each bin, float64."""
        step = self.reach / BINS
        return (torch.arange(2 * BINS, dtype=torch.float64) + 0.5 - BINS) * step

    def _note_ends(self, low: float, high: float) -> None:
        if self.num_batches:
            self.average_low += MOMENTUM * (low - self.average_low)
            self.average_high += MOMENTUM * (high - self.average_high)
        else:
            self.average_low, self.average_high = low, high
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.num_batches += 1

    def _widen(self, most: float) -> None:
        """Double the reach until it holds `most`."""
        if not self.reach:
            self.reach = most
        while self.reach < most:
            merged = self.counts.view(BINS, 2).sum(1)
            self.counts = torch.nn.functional.pad(merged, (BINS // 2, BINS // 2))
            self.reach *= 2.0
