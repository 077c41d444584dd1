"""What the process uses: cores, the kernel, `torch.compile`, memory.

A figure that only ever grows is a function here and a field of `Settings` of the same name: its
growth over a window. Asked at step boundaries, the C heap tells whether steps leave memory behind:
it holds the tensors of the CPU and every autograd graph, so a graph that is kept alive through its
loss shows there although hardly a tensor does. glibc tells what it holds through `mallinfo2`
(man 3 mallinfo2: `uordblks` in its arenas, `hblkhd` in mappings of their own).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

from ridgeline.measure.child.guard import attempt
from ridgeline.records import GraphBreak, Site

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

Usage = dict[str, float]


def usage_now() -> Usage:
    """Read every figure as it stands."""
    return {name: attempt(read, otherwise=0) for name, read in (_PER_STEP | _IN_ALL).items()}


def used_since(before: Usage, steps: int) -> dict[str, Any]:
    """By how much the figures grew, per step where that makes sense, as fields of `Settings`."""
    now = usage_now()
    grown = {name: max(0, now[name] - before[name]) for name in now}
    return {name: used / steps if name in _PER_STEP else used for name, used in grown.items()}


def graph_breaks() -> list[GraphBreak]:
    """Why `torch.compile` fell back to Python, most frequent first."""
    if "torch._dynamo" not in sys.modules:
        return []
    counters = sys.modules["torch._dynamo.utils"].counters
    return [
        GraphBreak(reason=reason.splitlines()[0][:200], site=_site_in(reason), count=count)
        for reason, count in counters["graph_break"].most_common(20)
        if reason.strip()
    ]


def _site_in(reason: str) -> Site | None:
    for line in reason.splitlines():
        if line.strip().startswith('File "'):
            file, _, rest = line.strip()[6:].partition('", line ')
            number = rest.split(",")[0]
            if number.isdigit():
                return Site(file=file, line=int(number))
    return None


def graph_compiles() -> int:
    """Graphs that `torch.compile` has made so far."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return int(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"])


def _metrics() -> list[Any]:
    if "torch._dynamo" not in sys.modules:
        return []
    return list(sys.modules["torch._dynamo.utils"].get_compilation_metrics())


def recompiles() -> int:
    """Compilations of a frame that had been compiled before."""
    frames = Counter(
        (metric.co_filename, metric.co_firstlineno)
        for metric in _metrics()
        if metric.co_filename is not None
    )
    return sum(count - 1 for count in frames.values())


def compile_seconds() -> float:
    """Spent in `torch.compile` so far."""
    return float(sum(m.entire_frame_compile_time_s or 0.0 for m in _metrics()))


def cpu_wait_seconds() -> float:
    """Time for which the calling thread could run but had no core; 0 where it is not told."""
    return _waited(Path("/proc/thread-self"))


def peer_wait_seconds() -> float:
    """The same of the threads that compute beside the calling one, in the mean of them.

    Whoever shares out an operator waits at its end for the last of them. Idle threads sleep and
    wait for nothing, so all other threads of the process are counted, over those that compute.
    """
    torch = sys.modules.get("torch")
    peers = torch.get_num_threads() - 1 if torch is not None else 0
    if peers < 1:
        return 0.0
    own = threading.get_native_id()
    try:
        others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(own)]
    except OSError:
        return 0.0  # not Linux
    return sum(_waited(task) for task in others) / peers


def _waited(thread: Path) -> float:
    try:
        return int((thread / "schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0  # a thread that ended, or a kernel without scheduler statistics


def page_faults() -> int:
    """Page faults without a disk so far, of the whole process."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def kernel_seconds() -> float:
    """CPU seconds in the kernel so far, of the whole process."""
    return 0.0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_stime


_PER_STEP: dict[str, Callable[[], float]] = {
    "cpu_seconds": process_time,
    "cpu_wait_seconds": cpu_wait_seconds,
    "peer_wait_seconds": peer_wait_seconds,
    "page_faults": page_faults,
    "kernel_seconds": kernel_seconds,
}
_IN_ALL: dict[str, Callable[[], float]] = {
    "recompiles": recompiles,
    "compile_seconds": compile_seconds,
}


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


@cache
def _mallinfo2() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None  # not glibc, or one before 2.33
    function.restype = _MallInfo
    return function


def heap_bytes() -> int | None:
    """Bytes that the C heap holds now; None where the C library does not tell."""
    function = _mallinfo2()
    if function is None:
        return None
    info = function()
    return int(info.uordblks) + int(info.hblkhd)


def resident_bytes() -> int:
    """Resident memory of this process, from /proc; 0 where there is none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
