"""What the hardware's counters say of each kernel: `kernel_counters(paths)`.

From tables of Nsight Compute, launches of one name together, weighted by their time. A kernel is
bound by the unit that is busy for at least 60 % of what it could be (NVIDIA, Nsight Compute
documentation, "GPU Speed Of Light"): memory, or arithmetic. Where neither is, it is latency-bound,
and what its warps wait for most says why; how many warps there were to hide it, the occupancy.
Warps that wait for their turn are no reason: others were ready.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.trace.counter_table import CURE, CountedKernel, read_ncu_table

BUSY = 60.0
"""Percent of its peak from which a unit bounds a kernel."""
_LEAST_SHARE = 0.15
"""From this share of the time of warps on, a reason is worth a word."""
_READY = ("selected", "not_selected")

_DURATION = (("Duration", "second"), ("gpu__time_duration.sum", "second"))
_SM = (
    ("Compute (SM) Throughput", "%"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("SM [%]", "%"),
)
_MEMORY = (
    ("Memory Throughput", "%"),
    ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("Memory [%]", "%"),
)
_DRAM = (
    ("DRAM Throughput", "%"),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
)
_DRAM_RATE = (("Memory Throughput", "byte/second"), ("dram__bytes.sum.per_second", "byte/second"))
_DRAM_BYTES = (("dram__bytes_read.sum", "byte"), ("dram__bytes_write.sum", "byte"))
_ACHIEVED = (
    ("Achieved Occupancy", "%"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%"),
)
_THEORETICAL = (
    ("Theoretical Occupancy", "%"),
    ("sm__maximum_warps_per_active_cycle_pct", "%"),
)
_STALLS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active(?:\.ratio)?"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+?)(?:\.ratio)?"),
    re.compile(r"smsp__warp_issue_stalled_(\w+?)_per_warp_active(?:\.pct)?"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)(?:\.sum)?"),
    re.compile(r"Stall ([A-Z][\w ]+)"),
)
"""Families of names; figures of two of them compare with nothing."""


class WarpWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that the warps of a kernel wait for."""

    reason: str
    """By Nsight Compute's name, such as `long_scoreboard`."""
    share: float
    """The share of the time of its warps."""


class KernelCounters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The counters of all launches of one kernel; None: the table has none."""

    name: str
    launches: int
    total_us: float | None
    sm_percent: float | None
    """How busy the arithmetic was, of its peak."""
    memory_percent: float | None
    """How busy the busiest part of the memory was, caches included."""
    dram_percent: float | None
    dram_bytes_per_second: float | None
    achieved_occupancy_percent: float | None
    theoretical_occupancy_percent: float | None
    waits: list[WarpWait]
    """The largest first; `selected` (a warp that issued) is none."""
    bound: str
    """`memory`, `compute`, `latency` or `unknown`."""
    because: str
    """The evidence, and what helps, in words."""


def kernel_counters(paths: Sequence[Path], top: int) -> list[KernelCounters]:
    """The kernels of tables, those with the most time first.

    Args:
        paths: Of the tables.
        top: How many.

    Raises:
        InputError: A file is no table of Nsight Compute.
    """
    by_name: dict[str, list[CountedKernel]] = {}
    for path in paths:
        for one in read_ncu_table(path):
            by_name.setdefault(one.name, []).append(one)
    found = [_together(name, launches) for name, launches in by_name.items()]
    if all(one.bound == "unknown" and one.total_us is None for one in found):
        where = ", ".join(map(str, paths))
        raise InputError(f"{where}: no counter in it that says what bounds a kernel; {CURE}")
    return sorted(found, key=lambda one: -(one.total_us or 0.0))[:top]


def _together(name: str, launches: Sequence[CountedKernel]) -> KernelCounters:
    seconds = [_first(one, _DURATION) for one in launches]
    weights = [
        (one if one is not None else 1.0) * launch.launches
        for one, launch in zip(seconds, launches, strict=True)
    ]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
        total = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / total if total else None

    waits = _waits(launches, weights)
    sm, memory, dram = (
        mean([_first(one, names) for one in launches]) for names in (_SM, _MEMORY, _DRAM)
    )
    achieved, theoretical = (
        mean([_first(one, names) for one in launches]) for names in (_ACHIEVED, _THEORETICAL)
    )
    bound, because = _bound(sm, max((one for one in (memory, dram) if one), default=None), waits)
    short = achieved is not None and theoretical is not None and achieved < 0.75 * theoretical
    if short and bound == "latency":
        because += f"; {achieved:.0f} % of warps were there of {theoretical:.0f} % that fit"
    timed = None not in seconds
    return KernelCounters(
        name=name,
        launches=sum(one.launches for one in launches),
        total_us=sum(weights) * 1e6 if timed else None,
        sm_percent=sm,
        memory_percent=memory,
        dram_percent=dram,
        dram_bytes_per_second=mean([_dram_rate(one) for one in launches]),
        achieved_occupancy_percent=achieved,
        theoretical_occupancy_percent=theoretical,
        waits=waits,
        bound=bound,
        because=because,
    )


def _bound(sm: float | None, memory: float | None, waits: Sequence[WarpWait]) -> tuple[str, str]:
    if memory is not None and memory >= BUSY and memory >= (sm or 0.0):
        return "memory", f"memory is busy for {memory:.0f} %"
    if sm is not None and sm >= BUSY:
        return "compute", f"arithmetic is busy for {sm:.0f} %"
    if sm is None or memory is None:
        return "unknown", "the table lacks the throughput of arithmetic or memory"
    said = f"arithmetic is busy for {sm:.0f} %, memory for {memory:.0f} %"
    worst = next((one for one in waits if one.reason not in _READY), None)
    if worst is None or worst.share < _LEAST_SHARE:
        return "latency", said
    waited, cure = _words().get(worst.reason, (worst.reason, ""))
    said += f"; warps wait for {waited} ({worst.share:.0%} of their time)"
    return "latency", f"{said}: {cure}" if cure else said


def _waits(launches: Sequence[CountedKernel], weights: Sequence[float]) -> list[WarpWait]:
    """Shares of the warps' time, from the one family of names that says most."""
    families = [_family(launches, weights, names) for names in _STALLS]
    best = max(families, key=len)
    total = sum(best.values())
    waits = [
        WarpWait(reason=reason, share=value / total)
        for reason, value in best.items()
        if total and value and reason != "selected"
    ]
    return sorted(waits, key=lambda one: -one.share)


def _family(
    launches: Sequence[CountedKernel], weights: Sequence[float], names: re.Pattern[str]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for one, weight in zip(launches, weights, strict=True):
        for reason, value in _stalls_of(one, names):
            found[reason] = found.get(reason, 0.0) + value * weight
    return found


def _stalls_of(one: CountedKernel, names: re.Pattern[str]) -> Iterator[tuple[str, float]]:
    for (name, _), value in one.metrics.items():
        found = names.fullmatch(name)
        if found is not None and not found[1].endswith("_not_issued"):
            yield found[1].lower().replace(" ", "_"), value


def _dram_rate(one: CountedKernel) -> float | None:
    said = _first(one, _DRAM_RATE)
    seconds = _first(one, _DURATION)
    moved = [one.metrics[name] for name in _DRAM_BYTES if name in one.metrics]
    return sum(moved) / seconds if said is None and seconds and moved else said


def _first(one: CountedKernel, names: Sequence[tuple[str, str]]) -> float | None:
    return next((one.metrics[name] for name in names if name in one.metrics), None)


@functools.cache
def _words() -> dict[str, tuple[str, str]]:
    """Reason → what is waited for, and what helps."""
    text = (resources.files("ridgeline.trace") / "warp_stalls.toml").read_text("utf-8")
    return {row["name"]: (row["waits"], row["cure"]) for row in tomllib.loads(text)["stall"]}
