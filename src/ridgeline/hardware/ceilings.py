"""The limits that a probe has measured on this machine, and the file that remembers them.

Torch-free, so that `cost` and `diagnose` can read them; `measure/probe.py` measures. One file per
machine, torch version and device in the user's cache folder. The cache can always be made again,
so a file that cannot be read counts as absent; `read_cache` says what was wrong with it, for
whoever probes next to pass on.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.environment import installed
from ridgeline.hardware.machine import Machine, this_machine
from ridgeline.records.store import read_record, write_record

LAYOUT = 1
"""Raise it when a field of `Ceilings` changes its meaning: older files are then not read."""

TORCH_DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "": "fp32",
}
"""torch's names of number formats → the dtype whose ceiling holds for them."""

PROBE_DEVICES = ("cpu", "cuda")

BUSY_SHARE = 0.9
"""A probe that got less of the CPU than this ran beside other work."""


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best that was seen of one device; what a program on it can at most hope for."""

    device: str
    """`cpu` or `cuda` (which is also PyTorch's name for ROCm)."""
    device_name: str
    matmul_flops_per_second: dict[str, float]
    """Best sustained rate of a square matmul by dtype: `fp64`, `fp32`, `fp32_medium` (CPU:
    float32_matmul_precision "medium"), `tf32` (GPU: "high"), `bf16`, `fp16`, `int8`."""
    matmul_sizes: dict[str, int]
    """The side of the matrices at which that rate was seen."""
    matmul_floor_seconds: dict[str, float] = {}
    """Time of one matmul of side 64 by dtype: what a small one takes whatever its size."""
    skipped: dict[str, str]
    """Dtypes that were not measured, or only by a small pilot, with the reason."""
    bandwidth_bytes_per_second: float
    """Best over patterns and thread counts."""
    bandwidth_by_pattern: dict[str, float]
    """`copy` (reads n, writes n), `triad` (reads 2n, writes n), `read` (reads n), each at its best
    number of threads: bytes that the program names; lines fetched only to be overwritten are
    not counted."""
    bandwidth_by_threads: dict[int, float]
    """Best pattern by number of threads; empty on a GPU."""
    bandwidth_buffer_bytes: int
    """Size of each buffer."""
    dispatch_seconds: float
    """Host time of one tiny operator called from Python without gradient recording."""
    dispatch_autograd_seconds: float
    """Host time of one tiny operator with gradient recording: the forward call only."""
    dispatch_backward_seconds: float
    """Backward of such an operator, per recorded call."""
    launch_seconds: float | None
    """Least time per kernel of a GPU when many tiny ones are queued back to back."""
    host_to_device_pinned_bytes_per_second: float | None
    host_to_device_pageable_bytes_per_second: float | None
    device_to_host_pinned_bytes_per_second: float | None
    device_to_host_pageable_bytes_per_second: float | None
    memory_bytes: int | None = None
    """Memory of the device: the GPU's own, or what a process may use of the machine's."""
    num_threads: int
    cpu_time_share: float | None
    """CPU time that the matmuls' threads got over what they asked for; None on a GPU."""
    quick: bool
    """Measured with the short budget: good to some 10 %."""
    probe_seconds: float
    """How long the probe took."""
    cpu: str
    python: str
    torch: str
    ridgeline: str
    date: str
    """The date in ISO 8601, UTC."""

    @property
    def busy(self) -> bool:
        """Others had the CPU for so long that the rates are below what the machine can do."""
        return self.cpu_time_share is not None and self.cpu_time_share < BUSY_SHARE

    def matmul_peak(self, dtype: str) -> float | None:
        """FLOP/s of matmuls in a dtype named as torch does (`float32`), None: unknown."""
        return self.matmul_flops_per_second.get(TORCH_DTYPES.get(dtype, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLookup:
    """What the cache holds for one device of this machine."""

    path: Path
    ceilings: Ceilings | None
    problem: str | None
    """Why a file that is there could not be used."""


def cached_ceilings(device: str = "cpu") -> Ceilings | None:
    """The ceilings that an earlier probe left for this machine and the installed torch.

    None when there are none, or when their file cannot be read (see `read_cache`).
    """
    return read_cache(device).ceilings


def read_cache(device: str, machine: Machine | None = None) -> CacheLookup:
    """Look into the cache, and say what is wrong with a file that is there but unusable."""
    path = cache_path(device, machine)
    if not path.exists():
        return CacheLookup(path=path, ceilings=None, problem=None)
    try:
        return CacheLookup(path=path, ceilings=read_record(path, Ceilings, ours=True), problem=None)
    except InputError as error:
        return CacheLookup(path=path, ceilings=None, problem=str(error))


def save_ceilings(ceilings: Ceilings) -> Path:
    """Remember measured ceilings for this machine; returns the file."""
    path = cache_path(ceilings.device)
    write_record(path, ceilings)
    return path


def cache_path(device: str, machine: Machine | None = None) -> Path:
    """The file for one device of this machine under the torch that is installed."""
    if device not in PROBE_DEVICES:
        raise InputError(f"{device}: not a device to probe; use one of {', '.join(PROBE_DEVICES)}")
    # The GPUs are asked for only where they are part of the key: that takes a while.
    if machine is None:
        machine = this_machine(gpus=[] if device == "cpu" else None)
    cpu = machine.cpu
    parts = [LAYOUT, cpu.model, cpu.architecture, cpu.num_physical_cores, cpu.num_usable_cores]
    parts += [*cpu.isa, *(gpu.name for gpu in machine.gpus if device != "cpu")]
    parts += [installed("torch")]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return cache_folder() / f"ceilings-{device}-{digest}.json"


def cache_folder() -> Path:
    """Where this user's caches belong, by the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given and not Path(given).is_absolute():
        raise InputError(f"XDG_CACHE_HOME={given}: not an absolute path; correct or unset it")
    return (Path(given) if given else Path.home() / ".cache") / "ridgeline"
