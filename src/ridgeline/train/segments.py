"""Runs of blocks that are recomputed together, so that only the input of each run is kept.

L blocks in √L runs of √L keep √L inputs, and √L blocks' activations while one run is being
differentiated: memory grows with √L for one more forward pass (Chen et al., arXiv 1604.06174,
section 4.1). `torch.utils.checkpoint.checkpoint_sequential` does this for an `nn.Sequential`; here
the model calls its blocks itself, each with arguments of its own. So every block of a run but the
last hands its input on and notes its arguments, and the last runs them all under one checkpoint.
Modules, names of parameters and hooks stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def in_segments(blocks: Sequence[nn.Module]) -> list[int]:
    """Recompute blocks in √L runs of nearly equal length; returns the length of each run.

    The blocks do not recompute by themselves then.
    """
    count = max(round(math.sqrt(len(blocks))), 1)
    ends = [round(len(blocks) * part / count) for part in range(count + 1)]
    runs = [blocks[start:end] for start, end in itertools.pairwise(ends)]
    for run in runs:
        _Segment(run)
    return [len(run) for run in runs]


class _Segment:
    """The blocks of one run, and what each of them was called with."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._forwards: list[Callable[..., Any]] = [block.forward for block in blocks]
        self._called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for place, block in enumerate(blocks):
            block.gradient_checkpointing = False
            block.forward = self._stand_in(place)

    def _stand_in(self, place: int) -> Callable[..., Any]:
        """The forward that the model calls: only the last one computes."""

        def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            if place == 0:
                self._called = []
            self._called.append((args, kwargs))
            if place < len(self._blocks) - 1:
                return hidden
            called, self._called = self._called, []
            return checkpoint(self._run, hidden, called, use_reentrant=False)

        return forward

    def _run(self, hidden: Any, called: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        output = hidden
        for forward, (args, kwargs) in zip(self._forwards, called, strict=True):
            output = forward(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        return output
