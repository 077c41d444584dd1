"""How much of the machine's memory nobody uses at the moment."""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.hardware.cgroups import cgroup_limits


def unused_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that a program could take without anything being swapped out.

    Where a control group limits us, no more than a half of that: how much of it is used already by
    what else is in the group is not looked at. 0 where the system does not tell (no Linux).
    """
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return 0
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    available = int(found[1]) * 1024 if found else 0
    limit = cgroup_limits(root).memory_bytes
    return available if limit is None else min(available, limit // 2)
