"""A block in memory, and what it takes to compress it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import Matrix
from ridgeline.records.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBlock:
    """Weights are float32, whatever they are stored in."""

    module: nn.Module
    matrices: tuple[Matrix, ...]
    dtypes: Mapping[str, torch.dtype]
    """Of each matrix, as it is stored."""
    schemes: Mapping[str, tuple[Scheme, ...]]
    """Of each matrix, in order; () leaves it as it is."""
    runs: tuple[Callable[[], Tensor], ...] = ()
    """Each puts a chunk of calibration through the block; none: nothing is looked at."""
    head_dim: int | None = None
    """Of its attention."""
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    """[out, in] by matrix, where a pruning wants it (Taylor)."""
