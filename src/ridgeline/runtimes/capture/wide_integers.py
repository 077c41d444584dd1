"""Counts in unsigned integers of 16 bits and more, written as int64, for runtimes without these.

torch writes `torch.eye(300)` out as `arange(300, dtype=uint16)` twice, compared: the narrowest
integers that hold the size. Of these types runtimes know uint8 alone.
"""

from __future__ import annotations

from typing import Any

import torch

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def widen_counts(program: Any) -> None:
    """Let the aranges of a program count in int64 where they count in such types."""
    for node in program.graph.nodes:
        counts = getattr(node.target, "overloadpacket", None) is torch.ops.aten.arange
        if counts and node.kwargs.get("dtype") in _UNSIGNED:
            node.kwargs = {**node.kwargs, "dtype": torch.int64}
