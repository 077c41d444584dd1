"""The parts that a GPU may be split into, each seen as a small device of its own.

A MIG instance has its SMs and its memory slices, bandwidth with them. Under MPS as the NVIDIA
device plug-in sets it up, each of r clients may have 1/r of the memory and of the threads; with
time-slicing each of r processes has 1/r of the time where all compute, and its memory is its own
affair. What sharing costs is taken off (`hardware/mig.toml`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import msgspec

from ridgeline.hardware.facts import Device
from ridgeline.hardware.mig import mig_geometry
from ridgeline.queue.share.workload import Isolation

Mode = Literal["mig", "whole", "mps", "time-slicing"]
MODES: tuple[Mode, ...] = ("mig", "whole", "mps", "time-slicing")
"""From the best isolated to the worst; of two plans that cost the same, the better isolated."""
MOST_SHARERS = 8
"""MPS takes 48 clients (CUDA MPS documentation), but small parts are seldom worth their caveats."""
GIVES: dict[Mode, Isolation] = {
    "mig": "hardware", "whole": "hardware", "mps": "memory", "time-slicing": "none",
}  # fmt: skip
CAVEATS: dict[Mode, str] = {
    "mig": "isolated in hardware: memory, cache, SMs and faults are each instance's own; PCIe is"
    " shared, there is no NVLink between instances, and a GPU is cut anew only when it is empty",
    "whole": "nobody beside it",
    "mps": "memory and threads are limited, memory is not readable by others; a fatal fault of one"
    " client ends all clients of that GPU",
    "time-slicing": "neither memory nor faults are isolated: one process can take all memory, and"
    " a fault may end the others; latency rises by the others' turns",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotKind:
    """One kind of part of one device."""

    device: Device
    mode: Mode
    name: str
    """`3g.40gb`, `1/4`, or `1`."""
    place: int
    """The place of the profile among the device's (MIG); else 0."""
    sharers: int
    """Parts that a GPU has of this kind alone (MPS, time-slicing, whole); 0: see its cuts."""
    memory_bytes: int
    compute_share: float
    bandwidth_share: float
    listed: bool = True

    @property
    def share(self) -> float:
        """What it does of a whole GPU's work, where that waits for either."""
        return min(self.compute_share, self.bandwidth_share)

    @property
    def as_device(self) -> Device:
        """A device that is no more than this part."""
        whole = self.device
        peaks = {dtype: rate * self.compute_share for dtype, rate in whole.peaks.items()}
        return msgspec.structs.replace(
            whole,
            peak_flops_per_second=msgspec.structs.replace(whole.peak_flops_per_second, **peaks),
            memory=msgspec.structs.replace(
                whole.memory,
                capacity_bytes=self.memory_bytes,
                reported_bytes=self.memory_bytes,
                bandwidth_bytes_per_second=(
                    whole.memory.bandwidth_bytes_per_second * self.bandwidth_share
                ),
            ),
        )


def slot_kinds(part: Device, modes: Collection[Mode], losses: dict[str, float]) -> list[SlotKind]:
    """All kinds of parts that a device may be split into, the best isolated first."""
    found: list[SlotKind] = []
    geometry = mig_geometry(part) if "mig" in modes else None
    for place, one in enumerate(geometry.slices if geometry else ()):
        found.append(
            SlotKind(
                device=part, mode="mig", name=one.name, place=place, sharers=0,
                memory_bytes=one.memory_bytes, compute_share=one.compute_share,
                bandwidth_share=one.bandwidth_share, listed=one.listed,
            )
        )  # fmt: skip
    if "whole" in modes:
        found.append(_equal(part, "whole", 1, 0.0))
    # Sharing this way is the driver's, of NVIDIA's GPUs.
    if part.vendor == "NVIDIA":
        for mode in ("mps", "time-slicing"):
            if mode in modes:
                found += [
                    _equal(part, mode, sharers, losses[mode])
                    for sharers in range(2, MOST_SHARERS + 1)
                ]
    return found


def _equal(part: Device, mode: Mode, sharers: int, loss: float) -> SlotKind:
    share = (1.0 - loss) / sharers
    return SlotKind(
        device=part, mode=mode, name="1" if sharers == 1 else f"1/{sharers}", place=0,
        sharers=sharers, memory_bytes=part.memory.usable_bytes // sharers, compute_share=share,
        bandwidth_share=share,
    )  # fmt: skip
