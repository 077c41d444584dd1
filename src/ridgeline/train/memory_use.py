"""The most memory that a rank has held, without what it held before the model was built.

On CUDA, PyTorch's allocator keeps the peak. On the host it is the high-water mark of the process's
resident memory (`VmHWM` of /proc/self/status, reset through /proc/self/clear_refs), so pages that
the libraries themselves took before are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What the kernel takes as "reset the high-water mark" (proc_pid_clear_refs(5))."""


class MemoryUse:
    """Counts from its construction."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif _STATUS.exists():
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _status_bytes("VmRSS")

    def peak_bytes(self) -> int | None:
        """Highest so far; None where this system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status_bytes("VmHWM") - self._before if _STATUS.exists() else None


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
