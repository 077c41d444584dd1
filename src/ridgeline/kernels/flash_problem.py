"""All that attention is told beside queries, keys and values, as an operator passes it on.

An operator of torch takes tensors and numbers alone; this is their one order and their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgeline.kernels.attention_mask import Band
from ridgeline.kernels.philox import drop_threshold

SCHEMA = (
    "Tensor? sinks, Tensor? seed, Tensor? query_starts, Tensor? key_starts, Tensor? bounds,"
    " Tensor? blocks, float scale, int? left, int? right, float? softcap, float dropout,"
    " int block_size, int longest_queries, int longest_keys"
)
"""What an operator takes after its tensors; the order of the fields below."""


@dataclass(frozen=True, slots=True)
class FlashProblem:
    """Masks, scale and dropout of one call."""

    sinks: Tensor | None
    """Logits [H] that take weight from all keys."""
    seed: Tensor | None
    """Where dropout begins, int64 [1]."""
    query_starts: Tensor | None
    """The starts of sequences of a packed batch, int32 [N + 1]."""
    key_starts: Tensor | None
    bounds: Tensor | None
    """First and behind the last key of each query's document, int32 [2, B, T]."""
    blocks: Tensor | None
    """Which blocks are computed, bool [1 or B, 1 or H, …, …]."""
    scale: float
    left: int | None
    right: int | None
    softcap: float | None
    dropout: float
    block_size: int
    longest_queries: int
    longest_keys: int
    batch: int
    """How many rows the tensors have; one for a packed batch."""

    @classmethod
    def of(cls, batch: int, given: tuple[Any, ...]) -> FlashProblem:
        """From an operator's arguments."""
        arguments = (*given, batch)
        return cls(*arguments)

    @property
    def band(self) -> Band:
        """How far a query sees."""
        return Band(self.left, self.right)

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return self.batch if self.query_starts is None else self.query_starts.shape[0] - 1

    @property
    def dropped(self) -> int:
        """The threshold below which random words drop a weight; 0: none."""
        return drop_threshold(self.dropout)

    @property
    def kept_scale(self) -> float:
        """What weights that stay are multiplied with."""
        return 1.0 / (1.0 - self.dropout)
