"""The slots of a GPU that MIG splits, as bits, and which of them a profile may take.

Profiles and their places are facts of the device (`hardware/mig.toml`, after NVIDIA's MIG User
Guide): an instance takes memory slices that lie side by side and begins only where its profile
may. Instances are made as jobs come, at the last place that is free, which keeps the first one,
where the largest profiles begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device
from ridgeline.hardware.mig import mig_geometry


@dataclass(frozen=True, slots=True)
class MigGrid:
    """The profiles of one kind of GPU."""

    places: dict[str, tuple[int, ...]]
    """The slots that each profile can take, as bits, in the order in which they are tried."""
    memory_slices: int

    def slots_for(self, profile: str, taken: int) -> int:
        """The slots that an instance would take beside those taken; 0: it has no room.

        >>> grid = mig_grid("a100-sxm-80gb")
        >>> grid.slots_for("3g.40gb", 0), grid.slots_for("3g.40gb", 0b0100_0000)
        (240, 15)
        """
        return next((one for one in self.places.get(profile, ()) if not one & taken), 0)

    def share(self, profile: str) -> float:
        """The part of the GPU that an instance is, by its memory; 0: it has no such profile."""
        slots = self.slots_for(profile, 0)
        return slots.bit_count() / self.memory_slices


@cache
def mig_grid(gpu_type: str) -> MigGrid | None:
    """How GPUs of a type are split; None: it is no known device, or has no MIG."""
    try:
        found = mig_geometry(device(gpu_type)) if gpu_type else None
    except InputError:  # a name of the cluster's own
        return None
    if found is None:
        return None
    return MigGrid(
        places={
            profile.name: tuple(
                ((1 << profile.memory) - 1) << start for start in sorted(profile.starts)[::-1]
            )
            for profile in found.profiles
        },
        memory_slices=found.memory_slices,
    )
