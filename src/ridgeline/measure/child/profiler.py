"""A short window under torch.profiler: time per operator, and communication that nothing hides.

Time per operator and shape is that of the outermost operator that the dispatch mode knows, with
all that it calls inside. Exposed communication is the part of the collectives' intervals in
which no other operator (or kernel) ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container
from typing import Any

import numpy as np
import torch
from torch._C._profiler import _ExperimentalConfig

from ridgeline.measure.wire import OperatorCall

_STALL_RATIO = 4.0
"""A call this many times above the median of its kind waited for a core."""
_COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:", "rccl")
_DDP = "DistributedDataParallel."
"""Events of the one that waits for collectives without a Python call that could be timed."""


class ProfilerWindow:
    """Start it at one step boundary and stop it at another.

    Args:
        all_threads: Steps go on from one thread to the next: record them all, not this one alone.
    """

    def __init__(self, *, all_threads: bool = False) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        everywhere = _ExperimentalConfig(profile_all_threads=True) if all_threads else None
        self._profile = torch.profiler.profile(
            activities=activities, record_shapes=True, profile_memory=True,
            experimental_config=everywhere,
        )  # fmt: skip

    def start(self) -> None:
        """Begin to record a window."""
        self._profile.start()

    def stop(self) -> None:
        """End recording and keep what was seen."""
        self._profile.stop()
        self._events = list(self._profile.profiler.kineto_results.events())

    def operators(self, names: Collection[str]) -> list[OperatorCall]:
        """Time by operator and input shapes, on the device that ran it.

        `names` are the operators that the dispatch mode saw; the time of one includes what it
        calls inside (a convolution is the library call that it ends in). On a CPU one call may
        wait for a core for longer than it runs; calls far above the median are cut off.
        """
        if not names:
            return []  # to put together what every operator was takes longer than the window did
        events = self._profile.events() or []
        cuda = any(_on_device(event) for event in self._events)
        seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in events:
            if event.name not in names or _is_within(event, names):
                continue
            spent = event.device_time_total if cuda else event.cpu_time_total
            seconds[event.name, _shapes(event.input_shapes)].append(float(spent) * 1e-6)
        return [
            OperatorCall(
                name=name,
                shapes=shapes,
                dtype="",
                phase="",
                calls=len(spent),
                flops=0.0,
                bytes=0.0,
                seconds=sum(spent) if cuda else without_stalls(spent),
                stalled_seconds=0.0 if cuda else sum(spent) - without_stalls(spent),
            )
            for (name, shapes), spent in seconds.items()
        ]

    def peak_growth_bytes(self, boundaries: list[int], freed: list[tuple[int, int]]) -> int:
        """Highest running sum of allocations above the first step boundary, in bytes.

        `boundaries` are the ends of the steps, in nanoseconds since the epoch. The first step
        only leads in: of what was allocated before the window the profiler tells no end. Where
        there is no other, `freed` tells it: what was in stock (gradients), when it went, bytes.
        """
        first = boundaries[0] if len(boundaries) > 1 else 0
        moments = [
            (event.start_ns(), event.nbytes()) for event in self._events if _is_memory(event)
        ]
        if not first:
            moments += [(moment, -size) for moment, size in freed]
        moments.sort()
        running = start = peak = 0
        for moment, size in moments:
            running += size
            if moment < first:
                start = running
                continue
            peak = max(peak, running - start)
        return peak

    def communication(self, steps: int) -> dict[str, float]:
        """Seconds per step by collective, their calls and bytes, and the `exposed` part.

        That part is absent where Python itself waits for all of them: it is timed there, and
        what lies between operators here may as well be Python at work.
        """
        cuda = any(_on_device(event) for event in self._events)
        collectives = [e for e in self._events if e.name().startswith(_COLLECTIVES)]
        if not collectives:
            return {}
        if cuda:
            others = [e for e in self._events if _on_device(e) and not _is_collective(e)]
        else:
            others = [e for e in self._events if e.name().startswith("aten::")]
        result: dict[str, float] = {}
        for event in collectives:
            key = event.name().split("(")[0]
            result[key] = result.get(key, 0.0) + event.duration_ns() * 1e-9 / steps
        if cuda or any(e.name().startswith(_DDP) for e in self._events):
            exposed = exposed_ns(_intervals(collectives), _intervals(others))
            result["exposed"] = exposed * 1e-9 / steps
        result["calls"] = len(collectives) / steps
        result["bytes"] = sum(_collective_bytes(e) for e in collectives) / steps
        return result


def without_stalls(seconds: list[float]) -> float:
    """Sum of the times of one kind of call, each counted up to a multiple of their median.

    >>> without_stalls([1.0, 1.0, 1.0, 100.0])
    7.0
    """
    limit = _STALL_RATIO * float(np.median(seconds))
    return float(np.minimum(seconds, limit).sum())


def _is_within(event: Any, names: Container[str]) -> bool:
    """Was this operator called by another one that the dispatch mode saw?"""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name in names:
            return True
        parent = parent.cpu_parent
    return False


def _shapes(shapes: Any) -> str:
    """Input shapes as the dispatch mode writes them: numbers and scalars left out."""
    flat: list[list[int]] = []
    for shape in shapes or []:
        flat += shape if shape and isinstance(shape[0], list) else [shape]
    return ",".join(str(list(s)).replace(" ", "") for s in flat if s)


def exposed_ns(covered: np.ndarray, cover: np.ndarray) -> float:
    """Length of the union of `covered` intervals that no interval of `cover` overlaps.

    Both are (n, 2) arrays of start and end in nanoseconds.
    """
    if not len(covered):
        return 0.0
    return _union_length(np.concatenate([covered, cover])) - _union_length(cover)


def _union_length(intervals: np.ndarray) -> float:
    if not len(intervals):
        return 0.0
    ordered = intervals[np.argsort(intervals[:, 0])]
    reach = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], reach[:-1])
    first = ordered[0, 1] - ordered[0, 0]
    return float(first + np.maximum(ordered[1:, 1] - starts, 0).sum())


def _intervals(events: list[Any]) -> np.ndarray:
    return np.array([[e.start_ns(), e.end_ns()] for e in events], dtype=np.int64).reshape(-1, 2)


def _on_device(event: Any) -> bool:
    return bool(event.device_type() != torch.autograd.DeviceType.CPU)


def _is_memory(event: Any) -> bool:
    return bool(event.name() == "[memory]")


def _is_collective(event: Any) -> bool:
    return bool(event.name().startswith(_COLLECTIVES))


def _collective_bytes(event: Any) -> float:
    sizes = {"double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4}
    total = 0.0
    for shape, dtype in zip(event.shapes() or [], event.dtypes() or [], strict=False):
        if shape and not isinstance(shape[0], list):
            key = str(dtype).lower().removeprefix("c10::")
            total += float(np.prod(shape)) * sizes.get(key, 4)
    return total
