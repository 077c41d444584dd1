"""Measure what this machine can really do, so that "percent of peak" means its own peak.

    probe()      measure now: matmul by arithmetic, bandwidth by threads, dispatch, launch, copies
    ceilings()   the cached result of an earlier probe, or a new one, which is then cached

A full probe takes some ten seconds on two CPU cores, a quick one some three. Torch is imported
only when there is something to measure.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, MissingExtra
from ridgeline.hardware.ceilings import PROBE_DEVICES, Ceilings, read_cache, save_ceilings
from ridgeline.hardware.core_pressure import is_wanted
from ridgeline.hardware.environment import installed_ridgeline
from ridgeline.hardware.machine import Machine, this_machine

if TYPE_CHECKING:
    from types import ModuleType

    from ridgeline.measure.microbenchmarks import Effort

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction (0 … 1) that is behind it."""

SMALLEST_BUFFER_BYTES = 64 * 2**20
GPU_BUFFER_BYTES = 2**30
COPY_BUFFER_BYTES = 256 * 2**20
CEILINGS_EXPIRE_SECONDS = 90 * 86400.0
BUSY_SERVES_SECONDS = 900.0
NO_TIME = "no time was left to measure it"


def ceilings(
    device: str = "cpu",
    on_progress: Progress | None = None,
    *,
    quick: bool = False,
    within_seconds: float = math.inf,
) -> Ceilings:
    """The cached ceilings of this machine, or newly probed ones.

    A full result in the cache serves `quick` too; a quick one does not serve a full request. One
    that was measured while others kept the machine busy is tried again (for a quick request not
    within `BUSY_SERVES_SECONDS` while its cores are still wanted: a machine that stays busy is not
    probed for every command), and the better of the two kept. After `CEILINGS_EXPIRE_SECONDS` the
    machine is measured anew: a new kernel, firmware or neighbour changes what it can do. An
    unreadable cache file is reported through `progress`, probed again and replaced. A probe that
    had to leave something out because it may take no longer than `within_seconds` serves its caller
    alone.
    """
    report = on_progress or _ignore
    lookup = read_cache(device)
    known = lookup.ceilings
    if known is not None and known.quick and not quick:
        known = None
    if known is not None:
        age = _age_seconds(known)
        if age > CEILINGS_EXPIRE_SECONDS:
            known = None
        elif not known.busy or (quick and age < BUSY_SERVES_SECONDS and is_wanted()):
            return known
    if lookup.problem is not None:
        report(f"cannot read the cached ceilings, probing again: {lookup.problem}", 0.0)
    measured = probe(on_progress, device, quick=quick, within_seconds=within_seconds)
    if known is not None and _share(known) > _share(measured):
        return known
    if NO_TIME in measured.skipped.values():
        return measured
    try:
        save_ceilings(measured)
    except OSError as error:
        report(f"cannot cache the ceilings in {lookup.path}: {error.strerror}", 1.0)
    return measured


def probe(
    on_progress: Progress | None = None,
    device: str = "cpu",
    *,
    quick: bool = False,
    within_seconds: float = math.inf,
) -> Ceilings:
    """Measure `device` now, without reading or writing the cache.

    Arithmetic whose turn does not come `within_seconds` is left out; float32 never is.
    """
    if device not in PROBE_DEVICES:
        raise InputError(f"{device}: not a device to probe; use one of {', '.join(PROBE_DEVICES)}")
    torch = _torch()
    from ridgeline.measure import microbenchmarks

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch sees no GPU here; probe the CPU, or install a GPU build of torch")

    started = time.perf_counter()
    machine = this_machine(gpus=[])
    effort = microbenchmarks.QUICK if quick else microbenchmarks.FULL
    num_threads = machine.cpu.num_usable_cores
    num_steps = len(microbenchmarks.MATMUL_KINDS[device]) + 3
    report = _Steps(on_progress or _ignore, num_steps=num_steps)
    with microbenchmarks.threads(num_threads):
        matmuls = _measure_matmuls(
            device, num_threads, effort, report, until=started + within_seconds
        )

        report("memory bandwidth")
        buffer_bytes = GPU_BUFFER_BYTES
        if device == "cpu":
            buffer_bytes = _buffer_bytes(machine, effort.cache_multiple)
        counts = _thread_counts(num_threads, device, quick=quick)
        moved = microbenchmarks.bandwidth(device, buffer_bytes, counts, effort)

        report("operator dispatch")
        forward, recorded, backward = microbenchmarks.dispatch(device, effort)

        report("kernel launch and copies" if device == "cuda" else "done")
        launch = microbenchmarks.launch(effort) if device == "cuda" else None
        copied = microbenchmarks.copies(COPY_BUFFER_BYTES, effort) if device == "cuda" else {}
    patterns = {
        pattern: max(rate[pattern] for rate in moved.values()) for pattern in moved[num_threads]
    }
    memory_bytes = machine.memory_limit_bytes or machine.memory_bytes
    if device == "cuda":
        memory_bytes = torch.cuda.get_device_properties(0).total_memory
    by_threads = {count: max(rate.values()) for count, rate in moved.items()}
    return Ceilings(
        device=device,
        device_name=machine.cpu.model if device == "cpu" else torch.cuda.get_device_name(),
        matmul_flops_per_second=matmuls.flops_per_second,
        matmul_sizes=matmuls.sides,
        matmul_floor_seconds=matmuls.floor_seconds,
        skipped=matmuls.skipped,
        bandwidth_bytes_per_second=max(by_threads.values()),
        bandwidth_by_pattern=patterns,
        bandwidth_by_threads=by_threads if device == "cpu" else {},
        bandwidth_buffer_bytes=buffer_bytes,
        dispatch_seconds=forward,
        dispatch_autograd_seconds=recorded,
        dispatch_backward_seconds=backward,
        launch_seconds=launch,
        host_to_device_pinned_bytes_per_second=copied.get("host_to_device_pinned"),
        host_to_device_pageable_bytes_per_second=copied.get("host_to_device_pageable"),
        device_to_host_pinned_bytes_per_second=copied.get("device_to_host_pinned"),
        device_to_host_pageable_bytes_per_second=copied.get("device_to_host_pageable"),
        memory_bytes=memory_bytes,
        num_threads=num_threads,
        cpu_time_share=min(matmuls.cpu_time_shares, default=None),
        quick=quick,
        probe_seconds=time.perf_counter() - started,
        cpu=machine.cpu.model,
        python=platform.python_version(),
        torch=str(torch.__version__),
        ridgeline=installed_ridgeline(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@dataclass(frozen=True, slots=True)
class _Matmuls:
    """What was measured of each kind of matrix multiplication, by the kind's name."""

    flops_per_second: dict[str, float] = field(default_factory=dict)
    sides: dict[str, int] = field(default_factory=dict)
    floor_seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a kind was not measured, or counts for nothing."""
    cpu_time_shares: list[float] = field(default_factory=list)


def _measure_matmuls(
    device: str, num_threads: int, effort: Effort, report: _Steps, until: float
) -> _Matmuls:
    """Measure every kind; the first one always, others only if they begin in time."""
    from ridgeline.measure import microbenchmarks

    found, pilot = _Matmuls(), None
    for kind in microbenchmarks.MATMUL_KINDS[device]:
        if found.flops_per_second and time.perf_counter() > until:
            found.skipped[kind] = NO_TIME
            continue
        report(f"matmul {kind}")
        result = microbenchmarks.matmul(kind, device, num_threads, effort, pilot)
        if kind == "fp32":
            pilot = result.pilot_flops_per_second
        if result.cpu_time_share is not None:
            found.cpu_time_shares.append(result.cpu_time_share)
        if result.flops_per_second > 0.0:
            found.flops_per_second[kind], found.sides[kind] = result.flops_per_second, result.side
            found.floor_seconds[kind] = microbenchmarks.small_matmul(kind, device, effort)
        if result.skipped is not None:
            found.skipped[kind] = result.skipped
    return found


def default_device() -> str:
    """What to probe on this machine: its GPU where PyTorch sees one, else its CPU."""
    return "cuda" if _torch().cuda.is_available() else "cpu"


def _torch() -> ModuleType:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "train") from None
    return torch


class _Steps:
    """Turns the n-th step into a fraction for the on_progress callback."""

    def __init__(self, on_progress: Progress, *, num_steps: int) -> None:
        self._progress = on_progress
        self._num_steps = num_steps
        self._done = 0

    def __call__(self, what: str) -> None:
        self._progress(what, min(1.0, self._done / self._num_steps))
        self._done += 1


def _age_seconds(known: Ceilings) -> float:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(known.date)).total_seconds()
    except (ValueError, TypeError):  # no date, or one without its zone
        return math.inf


def _share(measured: Ceilings) -> float:
    return 1.0 if measured.cpu_time_share is None else measured.cpu_time_share


def _ignore(what: str, fraction: float) -> None:
    """Progress that nobody watches."""


def _thread_counts(most: int, device: str, *, quick: bool) -> list[int]:
    """1, 2, 4, … and the most; only the most in a hurry, and for a GPU.

    >>> _thread_counts(6, "cpu", quick=False)
    [1, 2, 4, 6]
    """
    if device == "cuda" or quick:
        return [most]
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def _buffer_bytes(machine: Machine, cache_multiple: int) -> int:
    """Well beyond the caches, and never more than a sixteenth of the memory (three are used)."""
    last = max((cache.total_bytes for cache in machine.cpu.caches), default=0)
    memory = machine.memory_limit_bytes or machine.memory_bytes
    wanted = max(SMALLEST_BUFFER_BYTES, cache_multiple * last)
    return min(wanted, memory // 16) if memory else wanted
