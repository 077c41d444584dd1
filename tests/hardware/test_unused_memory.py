from __future__ import annotations

from pathlib import Path

from ridgeline.hardware.freed_memory import unused_memory_bytes


def _root(folder: Path, meminfo: str, limit: str = "max") -> Path:
    for name, text in {
        "proc/meminfo": meminfo,
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": limit,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


_MEMINFO = "MemTotal:       24000000 kB\nMemFree:         100000 kB\nMemAvailable:   20000000 kB\n"


def test_what_the_system_calls_available_is_unused(tmp_path: Path) -> None:
    assert unused_memory_bytes(_root(tmp_path, _MEMINFO)) == 20_000_000 * 1024


def test_a_control_group_bounds_it(tmp_path: Path) -> None:
    assert unused_memory_bytes(_root(tmp_path, _MEMINFO, "2000000000")) == 1_000_000_000


def test_nothing_is_unused_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert unused_memory_bytes(tmp_path) == 0
    assert unused_memory_bytes(_root(tmp_path, "MemTotal: 24000000 kB\n")) == 0
