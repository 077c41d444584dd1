"""What a process has held in memory: now, and at most."""

from __future__ import annotations

from pathlib import Path


def peak_resident_bytes() -> int:
    """The most that this process has held; 0 where the system does not tell."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not tell."""
    return _status("VmRSS")


def _status(key: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 0)
