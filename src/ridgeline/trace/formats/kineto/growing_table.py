"""A table of a `Trace` as it grows, batch by batch: `GrowingTable(kind)`, `add`, `join`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.trace.columns import ABSENT, no_rows

_ROWS = 2**17
"""Rows that make arrays which the allocator keeps apart from small objects: a megabyte."""


@dataclass(slots=True)
class GrowingTable:
    """Columns that grow by one array per batch.

    Small arrays that stay between the objects of batches that go would keep the memory of both:
    every so often they are joined to large ones. A column of which no event has said anything takes
    no memory.
    """

    kind: type
    """The class of `trace/columns.py` that they are for."""
    parts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    large: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    waiting: int = 0
    """How many rows there are in `parts`."""
    gathered: int = 0
    """How many there are in `large`."""

    def add(self, size: int, **columns: Any) -> None:
        """Take so many rows; columns that are not given are ABSENT in them."""
        parts = self.parts
        before = self.waiting
        for name, values in columns.items():
            if name not in parts and before:
                parts[name].append(np.full(before, ABSENT, values.dtype))
            parts[name].append(values)
        if len(columns) < len(parts):
            for name in parts.keys() - columns.keys():
                parts[name].append(np.full(size, ABSENT, parts[name][0].dtype))
        self.waiting += size
        if self.waiting >= _ROWS:
            self._gather()

    def _gather(self) -> None:
        for name, parts in self.parts.items():
            large = self.large[name]
            if not large and self.gathered:
                large.append(np.full(self.gathered, ABSENT, parts[0].dtype))
            large.append(np.concatenate(parts))
        for name in self.large.keys() - self.parts.keys():
            self.large[name].append(np.full(self.waiting, ABSENT, self.large[name][0].dtype))
        self.parts.clear()
        self.gathered += self.waiting
        self.waiting = 0

    def join(self) -> dict[str, Any]:
        """One array per column; the parts go as soon as they are joined."""
        if self.waiting:
            self._gather()
        joined = no_rows(self.kind)
        for name, none in joined.items() if self.gathered else ():
            large = self.large.pop(name, [])
            if not large:
                joined[name] = np.broadcast_to(np.full((), ABSENT, none.dtype), self.gathered)
            else:
                joined[name] = np.concatenate(large) if len(large) > 1 else large[0]
        return joined
