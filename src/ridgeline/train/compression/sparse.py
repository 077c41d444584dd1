"""A few elements of each gradient travel; the others are remembered and added the next time.

    topk      the largest ones, with their places, gathered from all ranks
              Aji and Heafield, "Sparse communication for distributed gradient descent", arXiv
              1704.05021; eight bytes for each element kept. Ranks choose different elements, so
              messages are gathered: what each rank sends grows with their number.
    randomk   random ones, the same on all ranks, so that they all-reduce
              Stich et al., "Sparsified SGD with memory", arXiv 1809.07599, definition 2.1 and
              algorithm 1; four bytes for each element kept, whatever the number of ranks: places
              follow from the step and the parameter's name, and never travel.

The memory of what was not sent is that of Stich et al. for both.
"""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.train.compression.bucket import Bucket, ErrorMemory, GradientScheme
from ridgeline.train.compression.counted import CountedGroup


class _KeptShare(GradientScheme):
    """A share of the elements is taken from what is due; the rest stays in the error memory."""

    def __init__(self, kept_share: float, counted: CountedGroup) -> None:
        self._kept_share = kept_share
        self._counted = counted
        self._error = ErrorMemory("error memory")

    @abstractmethod
    def _chosen(self, name: str, due: Tensor) -> Tensor:
        """Places of the elements of one parameter that travel now."""

    def _take(self, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """Places in the buffer and the values due there, which are then no longer due."""
        sizes = [gradient.numel() for gradient in bucket.gradients]
        due = self._error.of(bucket.names, sizes, bucket.buffer.device)
        due.add_(bucket.buffer)
        places = torch.cat(
            [start + self._chosen(name, due[start:end]) for name, start, end in bucket.spans()]
        ).to(due.device)
        values = due[places]
        due[places] = 0.0
        return places, values

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The error memory by parameter."""
        return {"error": self._error.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from there."""
        self._error.load_state_dict(state["error"])


class TopK(_KeptShare):
    """The largest elements, with their places."""

    def reduce(self, bucket: Bucket) -> None:
        """Gather what every rank kept, and add it up."""
        places, values = self._take(bucket)
        message = torch.cat([values.view(torch.int32), places.to(torch.int32)])
        mean = torch.zeros_like(bucket.buffer, dtype=torch.float32)
        # One rank after another: its places are distinct, so that no order of additions is open.
        for row in self._counted.all_gather(message):
            their_values, their_places = row.view(2, -1)
            mean.index_add_(0, their_places.long(), their_values.view(torch.float32))
        bucket.buffer.copy_(mean.div_(self._counted.size))

    def _chosen(self, name: str, due: Tensor) -> Tensor:
        del name
        kept = math.ceil(self._kept_share * due.numel())
        return torch.topk(due.abs(), kept, sorted=False).indices


class RandomK(_KeptShare):
    """Random elements, the same on all ranks.

    One is drawn in each of k equal parts of the parameter: every element is as likely, k/n, and
    drawing takes k steps, where a permutation takes n.
    """

    def __init__(self, kept_share: float, counted: CountedGroup) -> None:
        super().__init__(kept_share, counted)
        self._step = 0

    def reduce(self, bucket: Bucket) -> None:
        """Sum the chosen elements over the ranks."""
        places, values = self._take(bucket)
        self._counted.all_reduce(values)
        bucket.buffer.zero_()
        bucket.buffer[places] = values.div_(self._counted.size).to(bucket.buffer.dtype)
        self._step += bucket.last

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The error memory, and the step that places follow from."""
        return super().state_dict() | {"step": {"": torch.tensor(self._step)}}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._step = int(state["step"][""])

    def _chosen(self, name: str, due: Tensor) -> Tensor:
        return random_places(due.numel(), self._kept_share, name, self._step)


def random_places(size: int, kept_share: float, name: str, step: int) -> Tensor:
    """Draw places of the elements that travel; one on the border of two parts may come twice."""
    kept = math.ceil(kept_share * size)
    # Of a seed the generator takes 32 bits.
    chance = torch.Generator().manual_seed(zlib.crc32(f"{step} {name}".encode()))
    within = torch.rand(kept, generator=chance, dtype=torch.float64)
    places = (torch.arange(kept, dtype=torch.float64) + within) * (size / kept)
    return places.long().clamp_(max=size - 1)
