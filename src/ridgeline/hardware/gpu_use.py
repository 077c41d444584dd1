"""The state of GPUs at this moment, as the vendors' tools tell it.

They say for how much of the time a kernel ran, and memory, power, temperature and clock.
`nvidia-smi` reads NVML, `rocm-smi` its counterpart; both are run anew for each look, which takes
them tens of milliseconds and no time of the GPU.
"""

from __future__ import annotations

import re

import msgspec

from ridgeline.hardware.accelerators import (
    Runner,
    ToolError,
    nvidia_rows,
    rocm_cards,
    run_tool,
)

NVIDIA_USE = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm",
    "--format=csv,noheader,nounits",
)
ROCM_USE = (
    *("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp"),
    *("--showclocks", "--json"),
)


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU at one moment; None: its tool does not say."""

    index: int
    busy_share: float | None
    """Share of the tool's own last interval in which a kernel ran, however few of its units."""
    memory_bytes: float | None
    watts: float | None
    celsius: float | None
    clock_hz: float | None


def read_gpu_use(run: Runner = run_tool) -> list[GpuUse]:
    """Every GPU of this machine as it stands.

    Raises:
        ToolError: There is no tool, or it failed; the line says which.
    """
    output = run(NVIDIA_USE)
    if output is not None:
        return parse_nvidia_use(output)
    output = run(ROCM_USE)
    if output is not None:
        return parse_rocm_use(output)
    raise ToolError("neither nvidia-smi nor rocm-smi is here")


def parse_nvidia_use(output: str) -> list[GpuUse]:
    """GPUs out of nvidia-smi's CSV: index, percent, MiB, watts, degrees, MHz."""
    found = []
    for index, *fields in nvidia_rows(output, 6):
        busy, memory, watts, celsius, clock = (_number(field) for field in fields)
        found.append(
            GpuUse(
                index=int(index),
                busy_share=_scaled(busy, 0.01),
                memory_bytes=_scaled(memory, 2.0**20),
                watts=watts,
                celsius=celsius,
                clock_hz=_scaled(clock, 1e6),
            )
        )
    return found


def parse_rocm_use(output: str) -> list[GpuUse]:
    """GPUs out of rocm-smi's JSON; its keys differ between versions, their beginnings do not."""
    return [
        GpuUse(
            index=index,
            busy_share=_scaled(_first(fields, "gpu use"), 0.01),
            memory_bytes=_first(fields, "vram total used memory"),
            watts=_first(fields, "average graphics package power", "current socket graphics"),
            celsius=_first(fields, "temperature (sensor junction)", "temperature"),
            clock_hz=_scaled(_first(fields, "sclk clock speed"), 1e6),
        )
        for index, fields in rocm_cards(output)
    ]


def _first(fields: dict[str, str], *beginnings: str) -> float | None:
    """The number of the first key that begins so."""
    for beginning in beginnings:
        for key, value in fields.items():
            if key.startswith(beginning):
                return _number(value)
    return None


def _number(text: str) -> float | None:
    """The number in `412.5`, `(1900Mhz)` or `61.0c`; None in `[N/A]`."""
    found = re.search(r"\d+(?:\.\d+)?", text)
    return None if found is None else float(found[0])


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
