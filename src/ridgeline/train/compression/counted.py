"""Collectives of one process group that note the bytes this rank sends.

Payload is what the rank hands to collectives. Sent is what the algorithm puts on the wire for it
(`cost/collective_volume.py`: ring all-reduce 2(n-1)/n of the buffer, all-gather (n-1) times the
rank's message, all-to-all all but its own part), before headers of the transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.cost.collective_volume import all_gather_bytes, all_reduce_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one rank handed to collectives, and what they sent for it."""

    payload_bytes: int
    sent_bytes: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            payload_bytes=self.payload_bytes + other.payload_bytes,
            sent_bytes=self.sent_bytes + other.sent_bytes,
        )


NOTHING = Traffic(payload_bytes=0, sent_bytes=0.0)


class CountedGroup:
    """A process group that counts what this rank sends."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size = group.size()
        self.rank = group.rank()
        self._traffic = NOTHING

    def take(self) -> Traffic:
        """What went out since the last call, which is then forgotten."""
        taken, self._traffic = self._traffic, NOTHING
        return taken

    def note_all_reduce(self, payload_bytes: int) -> None:
        """Count an all-reduce that somebody else (a hook of torch) runs."""
        self._note(payload_bytes, all_reduce_bytes(self.size, payload_bytes))

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over the ranks, in place."""
        self.note_all_reduce(tensor.nbytes)
        dist.all_reduce(tensor, group=self.group)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Gather the equally long messages of all ranks along a new first dimension."""
        self._note(tensor.nbytes, all_gather_bytes(self.size, self.size * tensor.nbytes))
        everyone = tensor.new_empty(self.size * tensor.numel())
        parts = list(everyone.chunk(self.size))
        dist.all_gather(parts, tensor.reshape(-1), group=self.group)
        return everyone.view(self.size, *tensor.shape)

    def all_to_all(self, rows: Tensor, rows_to: Sequence[int]) -> Tensor:
        """Send each rank its rows, which are sorted by rank; returns [rank, rows for this one, …].

        Every rank sends as many rows to a given one, so `rows_to` is the same on all.
        """
        mine = rows_to[self.rank]
        row_bytes = rows[0].nbytes if len(rows) else 0
        self._note(rows.nbytes, float((len(rows) - mine) * row_bytes))
        received = rows.new_empty((self.size * mine, *rows.shape[1:]))
        dist.all_to_all_single(
            received,
            rows.contiguous(),
            output_split_sizes=[mine] * self.size,
            input_split_sizes=list(rows_to),
            group=self.group,
        )
        return received.view(self.size, mine, *rows.shape[1:])

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """Sum, and keep this rank's part; the length is a multiple of the ranks."""
        self._note(tensor.nbytes, all_gather_bytes(self.size, tensor.nbytes))
        part = tensor.new_empty(len(tensor) // self.size)
        dist.reduce_scatter_tensor(part, tensor, group=self.group)
        return part

    def _note(self, payload_bytes: int, sent_bytes: float) -> None:
        self._traffic += Traffic(payload_bytes=payload_bytes, sent_bytes=sent_bytes)


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a matrix, one row of bytes for each of its rows."""
    return tensor.contiguous().view(torch.uint8)
