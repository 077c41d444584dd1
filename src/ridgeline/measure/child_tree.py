"""The processes below a process: loader workers, torchrun's ranks, compile workers."""

from __future__ import annotations

import subprocess
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, parents before children; empty when it has none or is gone."""
    children = _children_by_parent()
    found: list[int] = []
    queue = list(children.get(pid, ()))
    while queue:
        current = queue.pop(0)
        found.append(current)
        queue.extend(children.get(current, ()))
    return found


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    return children


def _processes() -> list[tuple[int, int]]:
    if not Path("/proc/self/stat").exists():  # macOS
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        return [(int(a), int(b)) for a, b in (line.split() for line in listing.splitlines())]
    pairs = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it ended while we looked
        pairs.append((int(entry.name), int(stat.rpartition(")")[2].split()[1])))
    return pairs
