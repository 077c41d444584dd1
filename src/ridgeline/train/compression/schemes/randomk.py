"""Random elements of each parameter's gradient, the same on all ranks, so that they all-reduce.

Stich et al., "Sparsified SGD with memory", arXiv 1809.07599, definition 2.1 and algorithm 1: what
was not chosen is remembered. Four bytes for each element kept, whatever the number of ranks: places
follow from the step and the parameter's name, and never travel.

One element is drawn in each of k equal parts of the parameter: every element is as likely, k/n,
and drawing takes k steps, where a permutation takes n.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.records.recipe import RecipeCommunication
from ridgeline.train.compression.bucket import Bucket, Memory, Scheme
from ridgeline.train.compression.counted import Counted


class RandomK:
    """A `Scheme`."""

    def __init__(self, kept_share: float, counted: Counted) -> None:
        self._kept_share = kept_share
        self._counted = counted
        self._error = Memory("error memory")
        self._step = 0

    def reduce(self, bucket: Bucket) -> None:
        """See `Scheme`."""
        sizes = [gradient.numel() for gradient in bucket.gradients]
        due = self._error.of(bucket.names, sizes, bucket.buffer.device)
        due.add_(bucket.buffer)
        places = torch.cat(
            [
                start + random_places(end - start, self._kept_share, name, self._step)
                for name, start, end in bucket.spans()
            ]
        ).to(due.device)
        values = due[places]
        due[places] = 0.0
        self._counted.all_reduce(values)
        bucket.buffer.zero_()
        bucket.buffer[places] = values.div_(self._counted.size).to(bucket.buffer.dtype)
        self._step += bucket.last

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """See `Scheme`."""
        return {"error": self._error.state_dict(), "step": {"": torch.tensor(self._step)}}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """See `Scheme`."""
        self._error.load_state_dict(state["error"])
        self._step = int(state["step"][""])


def random_places(size: int, kept_share: float, name: str, step: int) -> Tensor:
    """Places of the elements that travel; a place on the border of two parts may come twice."""
    kept = math.ceil(kept_share * size)
    # Of a seed the generator takes 32 bits.
    chance = torch.Generator().manual_seed(zlib.crc32(f"{step} {name}".encode()))
    within = torch.rand(kept, generator=chance, dtype=torch.float64)
    places = (torch.arange(kept, dtype=torch.float64) + within) * (size / kept)
    return places.long().clamp_(max=size - 1)


def make(settings: RecipeCommunication, counted: Counted, _: Mapping[str, int]) -> Scheme:
    """The scheme."""
    return RandomK(settings.kept_share, counted)
