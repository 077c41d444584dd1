"""Many layouts at once: a `Layout` whose every field is an array.

All of the training cost model is written over these arrays, so that one layout (arrays of length
one) and a million cost the same code. Strings become small integers; see the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.arrays import Bools, Cases, Ints
from ridgeline.records.layout import Layout

RECOMPUTES = ("none", "selective", "full")
NONE, SELECTIVE, FULL = range(3)
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
OFFLOADS = ("none", "optimizer", "optimizer+parameters", "optimizer-on-disk", "all-on-disk")
ON_DISK = OFFLOADS.index("optimizer-on-disk")
ALL_ON_DISK = OFFLOADS.index("all-on-disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Cases):
    """Arrays of one length; the fields are those of `Layout`."""

    dp: Ints
    fsdp: Ints
    zero: Ints
    tp: Ints
    sp: Bools
    pp: Ints
    vpp: Ints
    schedule: Ints
    """The index into `SCHEDULES`."""
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    global_batch: Ints
    recompute: Ints
    """The index into `RECOMPUTES`."""
    precision: Ints
    """The index into `PRECISIONS`."""
    offload: Ints
    """The index into `OFFLOADS`."""
    compiled: Bools

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def num_microbatches(self) -> Ints:
        """Micro-batches of one step through each data-parallel rank."""
        return self.global_batch // (self.dp * self.micro_batch)

    def at(self, index: int) -> Layout:
        """One of them, as a record."""
        plain = {name: getattr(self, name)[index].item() for name in self.__slots__}
        plain["recompute"] = RECOMPUTES[plain["recompute"]]
        plain["precision"] = PRECISIONS[plain["precision"]]
        plain["schedule"] = SCHEDULES[plain["schedule"]]
        plain["offload"] = OFFLOADS[plain["offload"]]
        return Layout(**plain)


def stack_layouts(layouts: Sequence[Layout]) -> Layouts:
    """The same layouts as arrays.

    >>> stack_layouts([Layout(dp=2, global_batch=4)]).at(0).dp
    2
    """
    indices = {
        "recompute": RECOMPUTES,
        "precision": PRECISIONS,
        "schedule": SCHEDULES,
        "offload": OFFLOADS,
    }
    columns: dict[str, NDArray[np.generic]] = {}
    for name in Layouts.__slots__:
        values = [getattr(layout, name) for layout in layouts]
        if name in indices:
            values = [indices[name].index(value) for value in values]
        columns[name] = np.array(values, dtype=np.bool_ if name in ("sp", "compiled") else np.int64)
    return Layouts(**columns)  # type: ignore[arg-type]
