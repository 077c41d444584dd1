"""What around a process can stall it is found in the kernel's files, and said with its cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.realtime.steady.surroundings import look_around, real_time_throttle
from ridgeline.records.realtime_run import SteadyMeasure


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def look(root: Path, name: str) -> SteadyMeasure:
    return {one.name: one for one in look_around(root, own=1, priority=49)}[name]


def thread(root: Path, process: int, name: str, priority: int, flags: int = 0) -> None:
    """A process of one thread, as proc_pid_stat(5) shows it."""
    fields = [str(process), f"({name})", "S", *["0"] * 49]
    fields[8], fields[39] = str(flags), str(priority)
    write(root / f"proc/{process}/comm", name)
    write(root / f"proc/{process}/task/{process}/stat", " ".join(fields))


@pytest.mark.parametrize(
    ("runtime", "stall"), [("950000", 0.05), ("-1", None), ("1000000", None), (None, None)]
)
def test_the_throttle_is_on_only_where_it_takes_something(
    tmp_path: Path, runtime: str | None, stall: float | None
) -> None:
    if runtime is not None:
        write(tmp_path / "proc/sys/kernel/sched_rt_runtime_us", runtime)
        write(tmp_path / "proc/sys/kernel/sched_rt_period_us", "1000000")
    found = real_time_throttle(tmp_path)
    assert (found and found.stall_seconds) == pytest.approx(stall)
    said = look(tmp_path, "real-time throttle")
    assert said.granted == (stall is None)
    assert ("stopped for 50.0 ms" in said.detail) == (stall is not None)


def test_a_governor_that_lets_the_clock_fall_is_named_with_the_command(tmp_path: Path) -> None:
    governor = tmp_path / "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
    write(Path(str(governor).format(0)), "performance")
    assert look(tmp_path, "clock governor").granted
    write(Path(str(governor).format(1)), "powersave")
    said = look(tmp_path, "clock governor")
    assert not said.granted
    assert said.detail.startswith("powersave")
    assert "cpupower" in said.detail


def test_a_quota_stops_the_process_and_whole_cores_do_not(tmp_path: Path) -> None:
    assert look(tmp_path, "cpu quota").granted
    write(tmp_path / "proc/self/cgroup", "0::/")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "150000 100000")
    said = look(tmp_path, "cpu quota")
    assert not said.granted
    assert "1.50 cores" in said.detail


def test_rivals_are_programs_of_our_priority_or_above(tmp_path: Path) -> None:
    thread(tmp_path, 1, "ourselves", 99)
    thread(tmp_path, 20, "audio", 20)
    thread(tmp_path, 30, "migration/0", 99, flags=0x00200000)
    thread(tmp_path, 40, "python3", 0)
    assert look(tmp_path, "other real-time threads").granted
    thread(tmp_path, 77, "logger (of all)", 60)
    said = look(tmp_path, "other real-time threads")
    assert not said.granted
    assert said.detail.startswith("logger (of all) (77, priority 60) run before")
