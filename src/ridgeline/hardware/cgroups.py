"""The CPU time and memory that control groups grant this process.

A group is bound by its own limits and by those of every group above it. The path in
`/proc/self/cgroup` is the host's view: inside a container, whose mount shows only its own
subtree, it may not exist, and then the root of the mount is the group itself. See the kernel's
`admin-guide/cgroup-v2` and `admin-guide/cgroup-v1`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """The limits of our control groups; None: no limit."""

    cores: float | None
    memory_bytes: int | None


def cgroup_limits(root: Path) -> CgroupLimits:
    """The tightest limits along the way from our group to the top, of both versions."""
    cores: list[float] = []
    memory: list[int] = []
    mount = root / "sys/fs/cgroup"
    for controllers, path in _memberships(root):
        if not controllers:
            # Beside version 1, version 2 is mounted one level down.
            for base in (mount, mount / "unified"):
                cores += _each(base, path, _cores_v2)
                memory += _each(base, path, _memory_v2)
        if "cpu" in controllers:
            for base in (mount / "cpu", mount / "cpu,cpuacct"):
                cores += _each(base, path, _cores_v1)
        if "memory" in controllers:
            memory += _each(mount / "memory", path, _memory_v1)
    return CgroupLimits(
        cores=min(cores, default=None),
        memory_bytes=min(memory, default=None),
    )


def _memberships(root: Path) -> list[tuple[set[str], str]]:
    """Controllers (none for version 2) and path of each hierarchy that we are in."""
    found = []
    for line in _words(root / "proc/self/cgroup", separator="\n"):
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.append(({name for name in parts[1].split(",") if name}, parts[2]))
    return found


def _each(base: Path, path: str, read: Callable[[Path], T | None]) -> list[T]:
    """What `read` finds in our group and in every group above it."""
    relative = PurePosixPath(path.lstrip("/"))
    groups = [base / relative, *(base / parent for parent in relative.parents)]
    values = (read(group) for group in dict.fromkeys(groups))
    return [value for value in values if value is not None]


def _cores_v2(group: Path) -> float | None:
    words = _words(group / "cpu.max")
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _cores_v1(group: Path) -> float | None:
    quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
    if not quota or not period or int(quota[0]) <= 0:
        return None
    return int(quota[0]) / int(period[0])


def _memory_v2(group: Path) -> int | None:
    words = _words(group / "memory.max")
    return None if not words or words[0] == "max" else int(words[0])


def _memory_v1(group: Path) -> int | None:
    words = _words(group / "memory.limit_in_bytes")
    return int(words[0]) if words else None


def _words(path: Path, separator: str | None = None) -> list[str]:
    """A small kernel file, split; empty where there is none."""
    try:
        return path.read_text().split(separator)
    except OSError:
        return []
