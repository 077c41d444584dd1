"""What `ridgeline kernels bench` measured: each kernel in each way."""

from __future__ import annotations

import msgspec


class KernelTiming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kernel done in one way."""

    kernel: str
    way: str
    """`ours`, `compiled`, `eager`, or what the library's way is called."""
    seconds: float | None
    """The median of replays; None where it failed."""
    bytes_per_second: float | None = None
    """The rate of bytes that must be moved; 0 where arithmetic is counted."""
    flops_per_second: float | None = None
    ratios: dict[str, float] = {}
    """Ours over another way's rate (or the copy's), by its name."""
    goals: dict[str, float] = {}
    """The least that each ratio should be."""
    error: str = ""
    """Why it failed, in one line."""

    @property
    def missed(self) -> dict[str, float]:
        """Ratios that are below their goals."""
        return {
            name: ratio for name, ratio in self.ratios.items() if ratio < self.goals.get(name, 0.0)
        }


class KernelBench(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All timings of one run on one GPU."""

    device: str
    torch: str
    copy_bytes_per_second: float
    """What a copy reached in the same run, read and write together."""
    timings: list[KernelTiming]
