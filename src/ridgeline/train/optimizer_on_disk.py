"""Keep the optimizer's state on disk (`layout.offload = "optimizer-on-disk"`), and say how fast.

`optimizers/on_disk.py` moves it; here the run asks for that, foretells what it takes where the disk
was probed (`ridgeline hardware --probe --disk`), and logs what it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline import quantity
from ridgeline.cost.disk_state import disk_state_seconds
from ridgeline.hardware.storage import cached_storage
from ridgeline.train.optimizers.on_disk import DiskState
from ridgeline.train.part import FilledModel, Part


class OptimizerOnDisk(Part):
    """The state of one rank's optimizer in a file."""

    name = "optimizer_on_disk"

    def __init__(self, state: DiskState, folder: Path, ranks_here: int) -> None:
        self._state = state
        self._note = _what(state, folder, ranks_here)

    @classmethod
    def make(cls, filled: FilledModel) -> OptimizerOnDisk | None:
        """Move it there, where the recipe asks for that."""
        if filled.recipe.layout.offload != "optimizer-on-disk":
            return None
        folder = Path(filled.recipe.memory.offload_path)
        state = filled.optimizer.keep_on_disk(folder, filled.ranks.device)
        return cls(state, folder, filled.ranks.local_world)

    def before_step(self, step: int) -> str:
        """Say once what lies where."""
        del step
        note, self._note = self._note, ""
        return note

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """The rate since the last line."""
        del steps, phases_by_rank
        moved, seconds = self._state.moved_bytes, self._state.busy_seconds
        self._state.moved_bytes, self._state.busy_seconds = 0, 0.0
        return {"disk_bytes_per_second": moved / seconds if seconds else None}


def _what(state: DiskState, folder: Path, ranks_here: int) -> str:
    size = quantity.memory(state.size_bytes)
    how = "past the page cache" if state.file.direct else "through the page cache"
    said = f"the optimizer's state of each rank, {size}, lies on the disk of {folder}, moved {how}"
    rates = cached_storage(folder)
    if rates is None:
        return f"{said}; `ridgeline hardware --probe --disk {folder}` tells what it takes"
    seconds = disk_state_seconds(
        ranks_here * state.size_bytes,
        rates.sequential_bytes_per_second,
        rates.write_bytes_per_second,
    )
    return f"{said}; by its measured rates that takes {quantity.seconds(seconds)} a step at least"
