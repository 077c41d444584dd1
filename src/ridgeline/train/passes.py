"""The forward and backward passes of one optimizer step, on this rank's micro-batches.

One loss convention for every layout: the loss of a step is the sum over all target tokens of all
ranks and micro-batches, divided by their number (`num_targets`, already summed over the `data`
axis). Each implementation scales what it does so that, after `run`, `.grad` of every local
parameter holds exactly the gradient of that loss, whatever ranks it was averaged over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Passes(Protocol):
    """How one layout runs its passes."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """What this rank holds of the model: one module, or its pipeline stages."""

    def run(self, batches: Sequence[Any], num_targets: int) -> Tensor:
        """Forward and backward; gradients are then complete and agreed on.

        Args:
            batches: This rank's micro-batches, on the device, as the objective takes them.
            num_targets: Target tokens of the whole step, over all data-parallel ranks.

        Returns:
            The sum of token losses of this rank's data (over its sequences, whole), detached, on
            the device; the same on every rank that reads the same data (tp, cp, pp).
        """

    def evaluate(self, batch: Any) -> Tensor:
        """The sum of token losses of one micro-batch, without gradients."""
