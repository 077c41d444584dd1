"""Counters of the calling thread around each call of a stage: CPU, waits for a core, faults, gc.

The kernel's own accounts: CLOCK_THREAD_CPUTIME_ID, the run-queue delay of
/proc/thread-self/schedstat (proc(5); time in which the thread could run and did not), and
getrusage(2) with RUSAGE_THREAD. What a call of the meter costs is some microseconds.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading
import time
from collections.abc import Mapping

from ridgeline.realtime.observe.board import BoardMemory, BoardPlace, CollectionRow, Region
from ridgeline.realtime.observe.watcher import HeaderSlot

try:
    import resource
except ImportError:  # not a POSIX system; nothing is observed there
    resource = None  # type: ignore[assignment]

_USUAL, _STARTED = int(HeaderSlot.USUAL), int(HeaderSlot.STARTED)
_FIXED_STEPS = 250
_FIXED_WORK_EVERY_NS = 50_000_000
_PROBED_PAGES = 256
_PR_SET_PTRACER = 0x59616D61  # prctl(2): who may look at this process although it is no ancestor


def make_meter(place: BoardPlace, stage: str) -> StageMeter:
    """A meter for a stage's calls on the calling thread, the only one that may use it."""
    watched = _WatchedProcess.this(place)
    return StageMeter(watched.board.region(stage), watched.counters(), watched.fault_picoseconds)


class StageMeter:
    """What one stage's calls use; made and used in the thread that calls the stage."""

    def __init__(self, region: Region, counters: ThreadCounters, fault_picoseconds: int) -> None:
        self._region = region
        self._thread = counters
        self._usual = 0
        self._before = (0, 0, 0, 0, 0, 0)
        region.slots[HeaderSlot.FAULT_PICOSECONDS] = fault_picoseconds
        region.slots[HeaderSlot.PID] = os.getpid()
        region.slots[HeaderSlot.THREAD] = threading.get_native_id()

    def begin(self) -> None:
        """Note that a call starts, and what was counted until now."""
        thread = self._thread
        delay = thread.delay()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        thread.region = self._region
        thread.collecting = 0
        slots = self._region.slots
        slots[_USUAL] = self._usual
        started = time.monotonic_ns()
        slots[_STARTED] = started
        self._before = (
            started,
            delay,
            usage.ru_minflt,
            usage.ru_majflt,
            usage.ru_nvcsw,
            time.thread_time_ns(),
        )

    def end(self) -> None:
        """The call ended, with a result or an error."""
        cpu = time.thread_time_ns()
        ended = time.monotonic_ns()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        thread = self._thread
        delay = thread.delay()
        self._region.slots[_STARTED] = 0
        started, delay_before, minor, major, switches, cpu_before = self._before
        self._learn(ended - started)
        self._region.write_call(
            started,
            ended,
            cpu - cpu_before,
            delay - delay_before,
            delay_before - thread.delay_at_end,
            thread.collecting,
            usage.ru_minflt - minor,
            usage.ru_majflt - major,
            usage.ru_nvcsw - switches,
            thread.core(),
            thread.fixed_work(ended),
        )
        thread.delay_at_end = delay

    def _learn(self, duration: int) -> None:
        """Move the usual duration by an eighth at most: a median that follows slowly."""
        usual = self._usual or duration
        step = max(1, usual >> 3)
        self._usual = usual + max(-step, min(step, duration - usual))


class ThreadCounters:
    """The kernel's accounts of the calling thread, shared by the meters of the stages it calls."""

    def __init__(self, region: Region) -> None:
        self.region = region
        """Where its collections are written: that of the stage it called last."""
        self.collecting = 0
        """Nanoseconds of garbage collection since the call began."""
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.core = ctypes.CDLL(None).sched_getcpu
        self.delay_at_end = self.delay()
        self._fixed_work_at = 0

    def delay(self) -> int:
        """Nanoseconds for which the thread could run and had no core, so far."""
        return int(os.pread(self._schedstat, 64, 0).split()[1])

    def fixed_work(self, now: int) -> int:
        """CPU nanoseconds of a loop that is always the same; 0 when it was run a moment ago."""
        if now - self._fixed_work_at < _FIXED_WORK_EVERY_NS:
            return 0
        self._fixed_work_at = now
        _count(_FIXED_STEPS)  # brings its code and the counters into the caches
        before = time.thread_time_ns()
        _count(_FIXED_STEPS)
        return time.thread_time_ns() - before

    def close(self) -> None:
        """Give the file back."""
        os.close(self._schedstat)


class _WatchedProcess:
    """What the meters of one process share: the board, the callback around collections."""

    _here: _WatchedProcess | None = None

    def __init__(self, place: BoardPlace) -> None:
        self.place = place
        self.pid = os.getpid()
        self.board: BoardMemory = place.open()
        self.fault_picoseconds = _page_fault_picoseconds()
        self._threads: dict[int, ThreadCounters] = {}
        self._elsewhere = self.board.region(place.regions[-1])
        self._collecting_since = 0
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, self._elsewhere.slots[HeaderSlot.WATCHER], 0, 0, 0)
        gc.callbacks.append(self._collected)

    @classmethod
    def this(cls, place: BoardPlace) -> _WatchedProcess:
        """The one of this process and run; a forked process leaves its parent's."""
        here = cls._here
        if here is None or here.pid != os.getpid() or here.place != place:
            leave()
            here = cls._here = cls(place)
        return here

    def counters(self) -> ThreadCounters:
        """The counters of the calling thread."""
        thread = threading.get_ident()
        if thread not in self._threads:
            self._threads[thread] = ThreadCounters(self._elsewhere)
        return self._threads[thread]

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._collecting_since = now
            return
        thread = self._threads.get(threading.get_ident())
        region = self._elsewhere if thread is None else thread.region
        if thread is not None:
            thread.collecting += now - self._collecting_since
        region.write_collection(CollectionRow(self._collecting_since, now, info["generation"]))

    def close(self) -> None:
        """Stop observing here; what was written stays on the board."""
        gc.callbacks.remove(self._collected)
        if self.pid == os.getpid():
            for thread in self._threads.values():
                thread.close()
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, 0, 0, 0, 0)


def leave() -> None:
    """Take the observers out of this process."""
    here, _WatchedProcess._here = _WatchedProcess._here, None
    if here is not None:
        here.close()


def _count(steps: int) -> int:
    total = 0
    for step in range(steps):
        total += step
    return total


def _page_fault_picoseconds() -> int:
    """CPU time of one page fault here, from touching fresh pages."""
    pages = mmap.mmap(-1, _PROBED_PAGES * mmap.PAGESIZE)
    before = time.thread_time_ns()
    for page in range(_PROBED_PAGES):
        pages[page * mmap.PAGESIZE] = 1
    taken = time.thread_time_ns() - before
    pages.close()
    return taken * 1000 // _PROBED_PAGES
