"""A small process beside a run: what long calls are doing, and what else uses the machine.

It runs alone (`python -I -S watcher.py DESCRIPTOR REGIONS REGION_BYTES`), so it imports the
standard library only. Every few milliseconds it reads the headers of the run's board; the files of
/proc it opens only for a call that takes longer than usual, and once a second for all processes
(proc(5): `stat` of processes and threads, `syscall`; `/proc/stat` for what the hypervisor and
interrupts took; `cpu.stat` of the control group for its quota). It ends when its input is closed,
and then prints what it saw as one JSON document.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import select
import sys
import time
from enum import IntEnum
from typing import Any

HEADER_SLOTS = 8


class HeaderSlot(IntEnum):
    """What stands where in the header of a region."""

    PID = 0
    """0 as long as the stage was not called."""
    THREAD = 1
    STARTED = 2
    """When the call under way began; 0 between calls."""
    USUAL = 3
    CALLS = 4
    COLLECTIONS = 5
    FAULT_PICOSECONDS = 6
    WATCHER = 7
    """The watcher's pid, in the last region's header alone."""


_LOOK_EVERY_SECONDS = 0.008
_SCAN_EVERY_NS = 1_000_000_000
_SCAN_SHARE = 100  # a scan of all processes is followed by this many times its length without one
_LONG_NS = 2_000_000  # a call is looked at when it takes this much more than usual
_WORTH_SECONDS = 0.002  # less CPU time than this in an interval is not worth a line
_TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
_CALLS = {
    "x86_64": {"sleeps": {35, 230}, "lock": {202, 449}},
    "aarch64": {"sleeps": {101, 115}, "lock": {98, 449}},
}
"""System calls by number (`asm/unistd.h`): nanosleep, clock_nanosleep; futex, futex_waitv."""


def main(descriptor: int, regions: int, region_bytes: int) -> None:
    """Watch until the input is closed, then print."""
    board = memoryview(mmap.mmap(descriptor, regions * region_bytes)).cast("q")
    slots = region_bytes // 8
    headers = [board[at * slots : at * slots + HEADER_SLOTS] for at in range(regions)]
    watch = Watch(headers)
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_SECONDS)[0]:
        watch.look(time.monotonic_ns())
    watch.scan(time.monotonic_ns())
    json.dump({"waits": watch.waits, "interference": watch.interference}, sys.stdout)


class Watch:
    """What was seen so far; times are nanoseconds of the monotonic clock."""

    def __init__(self, headers: list[memoryview]) -> None:
        self._headers = headers
        self.waits: list[tuple[int, int, str]] = []
        self.interference: list[dict[str, Any]] = []
        self._scanned = time.monotonic_ns()
        self._scan_after = 0
        self._used = self._usage()

    def look(self, now: int) -> None:
        """Look at calls that take long; look at all processes when that is due."""
        long = False
        for region, header in enumerate(self._headers):
            started = header[HeaderSlot.STARTED]
            usual = header[HeaderSlot.USUAL]
            if started and usual and now - started > usual + max(_LONG_NS, usual // 4):
                long = True
                state = state_of(header[HeaderSlot.PID], header[HeaderSlot.THREAD])
                if state:
                    self.waits.append((now, region, state))
        if now > self._scan_after and (long or now - self._scanned > _SCAN_EVERY_NS):
            self.scan(now)

    def scan(self, now: int) -> None:
        """Note who used the processors since the last scan."""
        used = self._usage()
        for key, (label, seconds, core) in used.items():
            grown = seconds - self._used.get(key, (label, 0.0, core))[1]
            if key not in self._used and key[0] == "process":
                grown = min(grown, (now - self._scanned) * 1e-9)
            if grown >= _WORTH_SECONDS:
                self.interference.append(
                    {
                        "started": self._scanned,
                        "ended": now,
                        "process": label,
                        "cpu_seconds": grown,
                        "core": core,
                        "kind": key[0],
                    }
                )
        self._used = used
        self._scanned = now
        taken = time.monotonic_ns() - now
        self._scan_after = now + _SCAN_SHARE * taken

    def _usage(self) -> dict[tuple[str, int], tuple[str, float, int | None]]:
        """Kind and number → name, CPU seconds so far, the core last seen on."""
        own = {os.getppid(), *(header[HeaderSlot.PID] for header in self._headers)}
        workers = {header[HeaderSlot.THREAD] for header in self._headers}
        usage: dict[tuple[str, int], tuple[str, float, int | None]] = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            if int(entry) in own:
                for thread in _listed(f"/proc/{entry}/task"):
                    if int(thread) not in workers:
                        _add(usage, f"/proc/{entry}/task/{thread}/stat", "thread of the run ")
            else:
                _add(usage, f"/proc/{entry}/stat", "")
        usage.update(_machine_usage())
        quota = _quota_seconds()
        if quota is not None:
            usage["quota", 0] = ("the control group's quota", quota, None)
        return usage


def state_of(pid: int, thread: int) -> str | None:
    """What a thread is doing: `runs`, `sleeps`, `lock`, `disk`, `waits`; None: it is gone."""
    stat = _read(f"/proc/{pid}/task/{thread}/stat")
    if stat is None:
        return None
    letter = stat.rpartition(")")[2].split()[0]
    if letter != "S":
        return {"R": "runs", "D": "disk"}.get(letter)
    words = (_read(f"/proc/{pid}/task/{thread}/syscall") or "").split()
    number = int(words[0]) if words and words[0].isdigit() else -1
    for state, numbers in _CALLS.get(platform.machine(), {}).items():
        if number in numbers:
            return state
    return "waits"


def _add(usage: dict[tuple[str, int], tuple[str, float, int | None]], path: str, said: str) -> None:
    stat = _read(path)
    if stat is None:
        return
    number, _, rest = stat.partition(" (")
    name, _, fields = rest.rpartition(")")
    words = fields.split()
    seconds = (int(words[11]) + int(words[12])) * _TICK_SECONDS  # utime and stime
    usage["process", int(number)] = (f"{said}{name} ({number})", seconds, int(words[36]))


def _machine_usage() -> dict[tuple[str, int], tuple[str, float, int | None]]:
    """What the hypervisor and interrupts took of each core."""
    usage: dict[tuple[str, int], tuple[str, float, int | None]] = {}
    for line in (_read("/proc/stat") or "").splitlines():
        words = line.split()
        if words and words[0].startswith("cpu") and words[0] != "cpu" and len(words) > 8:
            core = int(words[0][3:])
            interrupts = (int(words[6]) + int(words[7])) * _TICK_SECONDS
            usage["interrupts", core] = ("interrupts", interrupts, core)
            usage["hypervisor", core] = ("the hypervisor", int(words[8]) * _TICK_SECONDS, core)
    return usage


def _quota_seconds() -> float | None:
    """For how long the control group of this process had used up its quota so far."""
    group = (_read("/proc/self/cgroup") or "").partition("::")[2].strip()
    for line in (_read(f"/sys/fs/cgroup{group}/cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_usec":
            return int(value) * 1e-6
    return None


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []  # the process has ended


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None  # it has ended, or this kernel does not tell


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:4]))
