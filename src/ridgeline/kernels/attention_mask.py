"""Which keys a query sees, said once for every way to compute attention.

Query i of T and key j of S stand on one line whose ends meet (bottom-right alignment): query i has
position p = i + S - T, so that the last query stands beside the last key. It sees key j where

    causal      j ≤ p
    window w    |p - j| < w
    documents   i and j lie in one run of equal numbers, none of them negative (padding)
    blocks      the block of size B × B that (i, j) lies in is set
    sequences   i and j belong to one sequence of a packed batch; p counts within it

all hold that are given. Causal masks and windows are a band `left` and `right` of p; documents are
a first and a last key for each query. Both follow from numbers that the host knows, or stay on the
device: nothing waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ridgeline.errors import InputError

_NOWHERE = 2**30
"""The first key of a query that sees none."""


class Band(NamedTuple):
    """How far a query sees to the left and to the right of its position; None: all the way."""

    left: int | None
    right: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """The sequences of a packed batch, whose tokens lie one after another: [T, H, D]."""

    query_starts: Tensor
    """Where each sequence's queries begin, and where the last one's end: int32 [N + 1]."""
    key_starts: Tensor
    """Where each sequence's keys begin and end; for self-attention `query_starts` itself."""
    longest_queries: int
    """The most queries of one sequence, or more."""
    longest_keys: int
    """The most keys of one sequence, or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMask:
    """Who sees whom; without any of them, everyone sees everything."""

    causal: bool = False
    """No query sees a key behind its position."""
    window: int | None = None
    """How many keys a query sees to the left, and unless causal to the right, itself included."""
    documents: Tensor | None = None
    """Neighbours with the same number are one document, -1 is padding: integers [B, T]."""
    blocks: Tensor | None = None
    """Which blocks are computed: bool [1 or B, 1 or H, ⌈T / size⌉, ⌈S / size⌉]."""
    block_size: int = 128
    """Queries, and keys, of a block: a power of two, at least 16."""
    sequences: PackedSequences | None = None
    """The sequences of a packed batch; then queries, keys and values are [T, H, D]."""

    @property
    def band(self) -> Band:
        """Causality and window as one."""
        reach = None if self.window is None else self.window - 1
        return Band(reach, 0 if self.causal else reach)

    def to(self, device: torch.device) -> AttentionMask:
        """The same mask with its tensors on a device."""
        packed = self.sequences
        return replace(
            self,
            documents=None if self.documents is None else self.documents.to(device),
            blocks=None if self.blocks is None else self.blocks.to(device),
            sequences=None
            if packed is None
            else replace(
                packed,
                query_starts=packed.query_starts.to(device),
                key_starts=packed.key_starts.to(device),
            ),
        )

    def check(
        self, batch: int, heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        """Raise InputError unless it fits tensors of these sizes on this device."""
        packed = self.sequences
        tensors = {
            "documents": self.documents,
            "blocks": self.blocks,
            "query_starts": None if packed is None else packed.query_starts,
            "key_starts": None if packed is None else packed.key_starts,
        }
        for name, tensor in tensors.items():
            if tensor is not None and tensor.device != device:
                raise InputError(
                    f"{name} of the mask lie on {tensor.device} and queries on {device}; give"
                    f" mask.to({str(device)!r})"
                )
        if self.window is not None and self.window < 1:
            raise InputError(f"a window of {self.window} keys; give 1 or more, or None")
        if self.documents is not None:
            shape = tuple(self.documents.shape)
            if shape != (batch, num_queries) or num_queries != num_keys:
                raise InputError(
                    f"documents {shape} for {num_queries} queries and {num_keys} keys of {batch}"
                    " rows; give one number a token, of as many keys as queries"
                )
        if self.blocks is not None:
            size = self.block_size
            if size < 16 or size & (size - 1):
                raise InputError(f"blocks of {size}; give a power of two, at least 16")
            wanted = (-(-num_queries // size), -(-num_keys // size))
            shape = tuple(self.blocks.shape)
            fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1] in (1, heads)
            if not fits or shape[2:] != wanted or self.blocks.dtype != torch.bool:
                raise InputError(
                    f"blocks are {self.blocks.dtype} {shape}; give bool"
                    f" [1 or {batch}, 1 or {heads}, {wanted[0]}, {wanted[1]}]"
                )
        if packed is not None and (self.documents is not None or self.blocks is not None):
            raise InputError("a packed batch takes neither documents nor blocks; pad it, or split")


def document_bounds(documents: Tensor) -> Tensor:
    """The first key of each token's document, and one behind the last: int32 [2, B, T].

    Padding gets bounds that hold nothing.

    >>> document_bounds(torch.tensor([[7, 7, 2, -1]])).tolist()
    [[[0, 0, 2, 1073741824]], [[2, 2, 3, 0]]]
    """
    batch, length = documents.shape
    places = torch.arange(length, device=documents.device, dtype=torch.int32).expand(batch, -1)
    changes = documents[:, 1:] != documents[:, :-1]
    edge = changes.new_ones(batch, min(length, 1))
    begins, ends = torch.cat([edge, changes], 1), torch.cat([changes, edge], 1)
    first = torch.where(begins, places, 0).cummax(1).values if length else places
    behind = torch.where(ends, places + 1, length).flip(1)
    last = (behind.cummin(1).values if length else behind).flip(1)
    padding = documents < 0
    return torch.stack([first.masked_fill(padding, _NOWHERE), last.masked_fill(padding, 0)]).to(
        torch.int32
    )


def visible(
    band: Band, rows: Tensor, keys: Tensor, shift: int, bounds: Tensor | None = None
) -> Tensor:
    """Which of some keys some queries see by band and documents: bool [B or 1, rows, keys]."""
    away = keys[None, :] - rows[:, None] - shift
    seen = torch.ones_like(away, dtype=torch.bool)
    if band.left is not None:
        seen = seen & (away >= -band.left)
    if band.right is not None:
        seen = seen & (away <= band.right)
    if bounds is None:
        return seen[None]
    first, last = bounds[0][:, rows, None], bounds[1][:, rows, None]
    return seen[None] & (keys >= first) & (keys < last)


def seen_blocks(blocks: Tensor, size: int, rows: Tensor, keys: Tensor) -> Tensor:
    """Which of some keys some queries see by blocks: bool [B or 1, H or 1, rows, keys]."""
    return blocks[:, :, rows // size][..., keys // size]
