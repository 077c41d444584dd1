"""A training loop as a timeline: loader, copies, computation, collectives, and what they wait for.

    loader      workers make batches in turn, each at most `prefetch` ahead of the loop
                                    torch.utils.data.DataLoader: num_workers, prefetch_factor
    copy        from pinned memory it runs beside the computation of the batch before, else only
                once that has ended                         CUDA C++ Programming Guide, 3.2.7.4
    compute     forward and backward of every micro-batch, then the optimizer
    network     gradients travel in buckets while the last backward still runs, all but the last
                                    Li et al., PyTorch Distributed, 2006.15704, section 3.2.3

Every lane does one thing at a time, in order, each as soon as what it needs is there: that is all
there is to the model. Gaps of the device are named by what they waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["load", "copy", "forward", "backward", "reduce", "optimizer"]
Gap = Literal["data", "copy", "network", "fill"]
MOST_BLOCKS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTimes:
    """What one micro-batch and one step need, each for itself."""

    load_seconds: float
    """One worker making one micro-batch; without workers the loop does it itself."""
    copy_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    reduce_seconds: float = 0.0
    """All gradients through the network; 0: one device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBlock:
    """Something that a lane does."""

    lane: str
    kind: Kind
    batch: int
    """The number of the micro-batch, counted over all steps."""
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGap:
    """A time in which the device does nothing."""

    waits_for: Gap
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """Several steps of a loop."""

    lanes: tuple[str, ...]
    blocks: tuple[LaneBlock, ...]
    gaps: tuple[NamedGap, ...]
    """The gaps of the device after its first forward has begun."""
    step_seconds: float
    """The mean of the later half of the steps: the beginning fills queues."""
    busy_share: float
    """The share of the device's time in those steps."""
    waited_seconds: dict[str, float]
    """What a gap waits for → seconds in one of those steps."""
    bound: Literal["compute", "data", "copy", "network"]
    """What the device waits for longest, if for anything worth a fiftieth of the step."""
    least_workers: int
    """Workers with which loading would keep up."""


WORTH_NAMING = 0.02


def step_timeline(
    times: LoopTimes,
    num_workers: int = 4,
    prefetch: int = 2,
    accumulate: int = 1,
    num_steps: int = 6,
    pinned: bool = True,
    overlap: bool = True,
    num_buckets: int = 8,
) -> StepTimeline:
    """A training loop as a timeline: when the device works, when it waits, and what for.

    `accumulate` micro-batches make one step. `pinned` copies run beside the computation, `overlap`
    lets gradients travel under the backward pass.

    >>> times = LoopTimes(
    ...     load_seconds=0.4, copy_seconds=0.01, forward_seconds=0.03, backward_seconds=0.06,
    ...     optimizer_seconds=0.01,
    ... )
    >>> step_timeline(times, num_workers=2).bound, step_timeline(times, num_workers=8).bound
    ('data', 'compute')

    Raises:
        ValueError: A number is out of range.
    """
    _check(times, num_workers, prefetch, accumulate, num_steps, num_buckets)
    loop = _Loop(times, num_workers, prefetch, pinned=pinned)
    starts = [0.0]
    for _ in range(num_steps):
        for micro in range(accumulate):
            loop.micro_batch(num_buckets if micro == accumulate - 1 and overlap else 0)
        loop.finish(reduces=True, early=overlap, num_buckets=num_buckets)
        starts.append(loop.device_free)
    half = num_steps // 2
    window = starts[half], starts[-1]
    counted = num_steps - half
    waited: dict[str, float] = {}
    for gap in loop.gaps:
        inside = min(gap.end_seconds, window[1]) - max(gap.start_seconds, window[0])
        if inside > 0:
            waited[gap.waits_for] = waited.get(gap.waits_for, 0.0) + inside / counted
    step = (window[1] - window[0]) / counted
    worst = max(waited, key=lambda name: waited[name], default="compute")
    bound = worst if waited.get(worst, 0.0) > WORTH_NAMING * step else "compute"
    work = accumulate * (times.forward_seconds + times.backward_seconds) + times.optimizer_seconds
    return StepTimeline(
        lanes=loop.lanes,
        blocks=tuple(loop.blocks),
        gaps=tuple(loop.gaps),
        step_seconds=step,
        busy_share=min(1.0, work / step) if step else 1.0,
        waited_seconds=waited,
        bound=bound,  # type: ignore[arg-type]  # a gap past the first step is never of `fill`
        least_workers=max(1, math.ceil(times.load_seconds * accumulate / work - 1e-9)),
    )


def _check(
    times: LoopTimes, num_workers: int, prefetch: int, accumulate: int, num_steps: int, buckets: int
) -> None:
    lengths = (
        times.load_seconds, times.copy_seconds, times.forward_seconds, times.backward_seconds,
        times.optimizer_seconds, times.reduce_seconds,
    )  # fmt: skip
    if min(lengths) < 0 or times.forward_seconds + times.backward_seconds <= 0:
        raise ValueError("times cannot be below 0, and forward and backward take some")
    if num_workers < 0 or prefetch < 1 or accumulate < 1 or num_steps < 2 or buckets < 1:
        raise ValueError("give 0 workers or more, 2 steps or more, and 1 or more of the others")
    if num_steps * accumulate * (5 + buckets) > MOST_BLOCKS or num_workers > 256:
        raise ValueError("that many blocks cannot be looked at: take fewer steps or workers")


class _Loop:
    """The lanes, and until when each of them is taken."""

    def __init__(self, times: LoopTimes, workers: int, prefetch: int, *, pinned: bool) -> None:
        self.times = times
        self.pinned = pinned
        self.ahead = workers * prefetch
        self.workers = [0.0] * workers
        self.blocks: list[LaneBlock] = []
        self.gaps: list[NamedGap] = []
        self.batch = 0
        self.device_free = 0.0
        self.begun = 0.0
        self.host_free = 0.0
        self.copy_free = 0.0
        self.network_free = 0.0
        self.taken: list[float] = []
        """When the loop took each batch from its loader: then a worker may make another."""
        loaders = tuple(f"worker {index}" for index in range(workers)) or ("host",)
        network = ("network",) if times.reduce_seconds else ()
        self.lanes = (*loaders, "copy", "device", *network)

    def micro_batch(self, buckets: int) -> None:
        """Load, copy, forward, backward; the last one of a step sends its buckets on its way."""
        times, batch = self.times, self.batch
        loaded = self._load(batch)
        copied = self._copy(batch, loaded)
        if batch:
            self._wait("data", loaded, since=self.device_free)
            self._wait("copy", copied, since=max(self.device_free, loaded))
        else:
            self._wait("fill", copied, since=0.0)
        start = max(self.device_free, copied)
        self.begun = start
        forward = start + times.forward_seconds
        backward = forward + times.backward_seconds
        self._note("device", "forward", batch, start, forward)
        self._note("device", "backward", batch, forward, backward)
        for bucket in range(buckets if times.reduce_seconds else 0):
            ready = forward + times.backward_seconds * (bucket + 1) / buckets
            begin = max(ready, self.network_free)
            self.network_free = begin + times.reduce_seconds / buckets
            self._note("network", "reduce", batch, begin, self.network_free)
        self.device_free = backward
        self.batch += 1

    def finish(self, *, reduces: bool, early: bool, num_buckets: int) -> None:
        """Gradients, then the optimizer."""
        times, last = self.times, self.batch - 1
        if reduces and times.reduce_seconds and not early:
            begin = max(self.device_free, self.network_free)
            for bucket in range(num_buckets):
                start = begin + times.reduce_seconds * bucket / num_buckets
                end = begin + times.reduce_seconds * (bucket + 1) / num_buckets
                self._note("network", "reduce", last, start, end)
            self.network_free = begin + times.reduce_seconds
        self._wait("network", self.network_free, since=self.device_free)
        start = max(self.device_free, self.network_free)
        self.device_free = start + times.optimizer_seconds
        self._note("device", "optimizer", last, start, self.device_free)

    @property
    def _turn(self) -> float:
        """When the loop gets to its next batch: the one before has begun, or, unpinned, ended."""
        return self.begun if self.pinned else self.device_free

    def _load(self, batch: int) -> float:
        """When a batch is in the host's memory."""
        if not self.workers:
            start = max(self.host_free, self._turn)
            self.host_free = start + self.times.load_seconds
            self._note("host", "load", batch, start, self.host_free)
            return self.host_free
        worker = batch % len(self.workers)
        allowed = self.taken[batch - self.ahead] if batch >= self.ahead else 0.0
        start = max(self.workers[worker], allowed)
        end = start + self.times.load_seconds
        self.workers[worker] = end
        self._note(f"worker {worker}", "load", batch, start, end)
        return end

    def _copy(self, batch: int, loaded: float) -> float:
        """When a batch is in the device's memory."""
        start = max(loaded, self.copy_free, self._turn)
        self.copy_free = start + self.times.copy_seconds
        self.taken.append(start)
        self._note("copy", "copy", batch, start, self.copy_free)
        return self.copy_free

    def _wait(self, cause: Gap, until: float, *, since: float) -> None:
        if until > since:
            gap = NamedGap(waits_for=cause, start_seconds=since, end_seconds=until)
            self.gaps.append(gap)

    def _note(self, lane: str, kind: Kind, batch: int, start: float, end: float) -> None:
        if end > start:
            self.blocks.append(
                LaneBlock(lane=lane, kind=kind, batch=batch, start_seconds=start, end_seconds=end)
            )
