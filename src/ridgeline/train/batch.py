"""One micro-batch of token sequences, as every part of a training step sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORED = -100
"""A label that no loss is taken of: padding, and the last token of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Shapes are [micro-batch B, sequence S], all int64.

    Labels are already shifted: `labels[b, s]` is the token that should follow `input_ids[b, s]`,
    so that a sequence can be cut anywhere (context parallelism) without losing a target.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    """From 0 in every document when documents are masked from each other, else 0 … S-1.
    transformers builds the mask of packed documents from them."""
    natural: bool = False
    """Positions are 0 … S-1 in every row. A model's own default are then the same numbers, made
    once for all rows and without looking for documents in them."""

    @property
    def positions(self) -> dict[str, Tensor]:
        """What a model has to be told of positions."""
        return {} if self.natural else {"position_ids": self.position_ids}

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device; host memory that is pinned is copied asynchronously."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
        )

    def num_targets(self) -> int:
        """Tokens that have a label."""
        return int((self.labels != IGNORED).sum())
