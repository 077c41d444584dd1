"""The largest elements of each parameter's gradient, with their places, gathered from all ranks.

Aji and Heafield, "Sparse communication for distributed gradient descent", arXiv 1704.05021; with
memory of what was not sent as in Stich et al., "Sparsified SGD with memory", arXiv 1809.07599.
Eight bytes for each element kept. Ranks choose different elements, so messages are gathered: what
each rank sends grows with their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.records.recipe import RecipeCommunication
from ridgeline.train.compression.bucket import Bucket, Memory, Scheme
from ridgeline.train.compression.counted import Counted


class TopK:
    """A `Scheme`."""

    def __init__(self, kept_share: float, counted: Counted) -> None:
        self._kept_share = kept_share
        self._counted = counted
        self._error = Memory("error memory")

    def reduce(self, bucket: Bucket) -> None:
        """See `Scheme`."""
        sizes = [gradient.numel() for gradient in bucket.gradients]
        due = self._error.of(bucket.names, sizes, bucket.buffer.device)
        due.add_(bucket.buffer)
        places = torch.cat(
            [start + self._largest(due[start:end]) for _, start, end in bucket.spans()]
        )
        values = due[places]
        due[places] = 0.0
        message = torch.cat([values.view(torch.int32), places.to(torch.int32)])
        everyone = self._counted.all_gather(message)
        mean = torch.zeros_like(due)
        # One rank after another: its places are distinct, so that no order of additions is open.
        for row in everyone:
            their_values, their_places = row.view(2, -1)
            mean.index_add_(0, their_places.long(), their_values.view(torch.float32))
        bucket.buffer.copy_(mean.div_(self._counted.size))

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """See `Scheme`."""
        return {"error": self._error.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """See `Scheme`."""
        self._error.load_state_dict(state["error"])

    def _largest(self, elements: Tensor) -> Tensor:
        kept = math.ceil(self._kept_share * elements.numel())
        return torch.topk(elements.abs(), kept, sorted=False).indices


def make(settings: RecipeCommunication, counted: Counted, _: Mapping[str, int]) -> Scheme:
    """The scheme."""
    return TopK(settings.kept_share, counted)
