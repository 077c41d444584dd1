"""What around the process can stall it, looked for and never changed.

These settings belong to the whole machine: a run that changed them and was killed would leave them
changed. Each look says what was found and how its owner can mend it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline import quantity
from ridgeline.hardware.cgroups import cgroup_limits
from ridgeline.records.realtime_run import SteadyMeasure

THROTTLE = "real-time throttle"


@dataclass(frozen=True, slots=True)
class RealTimeThrottle:
    """The share of each period that the kernel lets real-time threads have (sched(7))."""

    runtime_seconds: float
    period_seconds: float

    @property
    def stall_seconds(self) -> float:
        """How long a core that is always busy with real-time threads stands still per period."""
        return self.period_seconds - self.runtime_seconds


def real_time_throttle(root: Path = Path("/")) -> RealTimeThrottle | None:
    """The kernel's real-time throttle; None where it is off or the system has none."""
    runtime = _number(root / "proc/sys/kernel/sched_rt_runtime_us")
    period = _number(root / "proc/sys/kernel/sched_rt_period_us")
    if runtime is None or period is None or runtime < 0 or runtime >= period:
        return None
    return RealTimeThrottle(runtime / 1e6, period / 1e6)


def look_around(root: Path = Path("/"), *, own: int, priority: int) -> list[SteadyMeasure]:
    """Every look, in the order of what stalls longest.

    Args:
        root: Where the kernel's files are.
        own: This process, which is not among the others.
        priority: Threads of this real-time priority or above run before ours.
    """
    return [
        _throttle_look(root),
        _quota_look(root),
        _governor_look(root),
        _rivals_look(root, own, priority),
    ]


def _throttle_look(root: Path) -> SteadyMeasure:
    found = real_time_throttle(root)
    if found is None:
        return SteadyMeasure(
            name=THROTTLE, granted=True, detail="off: a busy real-time thread is never stopped"
        )
    granted = quantity.seconds(found.runtime_seconds)
    return SteadyMeasure(
        name=THROTTLE,
        granted=False,
        detail=f"on: workers that keep a core busy for {granted} of "
        f"{quantity.seconds(found.period_seconds)} are stopped for "
        f"{quantity.seconds(found.stall_seconds)}; `sysctl kernel.sched_rt_runtime_us=-1` turns "
        "it off (a stage that never ends then takes its core for good)",
    )


def _quota_look(root: Path) -> SteadyMeasure:
    cores = cgroup_limits(root).cores
    if cores is None:
        return SteadyMeasure(
            name="cpu quota", granted=True, detail="none: no control group limits the CPU time"
        )
    return SteadyMeasure(
        name="cpu quota",
        granted=False,
        detail=f"a control group grants {quantity.digits(cores)} cores and stops the process for "
        "the rest of each period once they are used up; give it whole cores (`docker run "
        "--cpuset-cpus`) in place of a quota (`--cpus`)",
    )


def _governor_look(root: Path) -> SteadyMeasure:
    cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = {text for path in cores if (text := _text(path))}
    if not found:
        return SteadyMeasure(
            name="clock governor", granted=True, detail="the system does not let us see the clock"
        )
    slow = found - {"performance"}
    return SteadyMeasure(
        name="clock governor",
        granted=not slow,
        detail=f"{', '.join(sorted(slow))}: the clock falls between frames; `cpupower "
        "frequency-set -g performance` keeps it up" if slow else "performance: the clock stays up",
    )  # fmt: skip


def _rivals_look(root: Path, own: int, priority: int) -> SteadyMeasure:
    rivals = list(_rivals(root, own, priority))
    shown = ", ".join(rivals[:4]) + (f" and {len(rivals) - 4} more" if len(rivals) > 4 else "")
    return SteadyMeasure(
        name="other real-time threads",
        granted=not rivals,
        detail=f"{shown} run before our workers; give them other cores (`taskset`) or a lower "
        "priority (`chrt`)" if rivals else f"none of priority {priority} or above",
    )  # fmt: skip


def _rivals(root: Path, own: int, priority: int) -> Iterator[str]:
    """Programs with a thread of our priority or above; the kernel's own threads are not meant."""
    for process in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        if process.name == str(own):
            continue
        found = max((_real_time_priority(task) for task in process.glob("task/[0-9]*")), default=0)
        if found >= priority:
            name = _text(process / "comm") or "?"
            yield f"{name} ({process.name}, priority {found})"


def _real_time_priority(task: Path) -> int:
    """Field 40 of proc_pid_stat(5); 0 for other classes, and for threads of the kernel."""
    _, _, rest = _text(task / "stat").rpartition(")")
    words = rest.split()
    if len(words) < 39:
        return 0
    flags = int(words[6])
    return 0 if flags & 0x00200000 else int(words[37])  # PF_KTHREAD


def _text(path: Path) -> str:
    """A small kernel file; empty where there is none, or its process ended while we looked."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text else None
