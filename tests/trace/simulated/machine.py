"""GPUs with streams: what starts when, given when it was launched.

A stream runs in order. Work starts when it was launched, its stream is free and what it waits for
has ended; copies also wait for their engine. A collective starts on each rank by itself and ends on
all at once, its transfer after the last start. Kernels of two streams do not slow each other down:
real ones do, by some percent.

Work is resolved as soon as its end can be known, which for a collective is when the last rank has
launched it: a host that must wait for unresolved work yields it, and `Machine.run` goes on with the
other hosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Iterable
from dataclasses import dataclass, field

QUEUE = 1024
"""Launches that a stream holds; the next call blocks until one of them has started."""
LAUNCH_LATENCY_US = 2.0
"""From the launch's last instruction on the host to the start on an idle GPU."""
BETWEEN_US = 0.9
"""From the end of a kernel to the start of the next in its stream."""


@dataclass(slots=True, eq=False, repr=False)
class Work:
    """Something that a stream runs: a kernel, copy, fill, collective, or an event wait (hidden)."""

    rank: int
    stream: int
    name: str
    kind: str
    """`kernel`, `gpu_memcpy`, `gpu_memset`; empty for a wait, which no trace shows."""
    duration_us: float
    ready_us: float
    correlation: int
    args: dict[str, object] = field(default_factory=dict)
    meeting: Meeting | None = None
    stall_us: float = 0.0
    in_graph: bool = False
    start_us: float | None = None
    end_us: float | None = None
    unresolved: int = 0
    after: list[Work] = field(default_factory=list)
    """What it waits for."""
    next: list[Work] = field(default_factory=list)
    """What waits for it."""


@dataclass(slots=True, eq=False, repr=False)
class Meeting:
    """A collective as all ranks see it."""

    size: int
    transfer_us: float
    there: list[Work] = field(default_factory=list)


Task = Generator[Work, None, None]


class Machine:
    """All ranks' GPUs."""

    def __init__(self, slice_us: float = 0.0, every_us: float = 0.0) -> None:
        self.slice_us, self.every_us = slice_us, every_us
        """Another process has the GPU for the last `slice_us` of each `every_us`."""
        self.work: list[Work] = []
        self.streams: dict[tuple[int, int], list[Work]] = {}
        self.engines: dict[tuple[int, str], Work] = {}
        self.meetings: dict[Hashable, Meeting] = {}

    def submit(self, work: Work, wait_for: Iterable[Work] = ()) -> Work:
        """Queue work behind its stream and behind `wait_for`."""
        line = self.streams.setdefault((work.rank, work.stream), [])
        before = [*wait_for, *line[-1:]]
        if work.kind == "gpu_memcpy":
            engine = (work.rank, work.name[:11])
            before += [self.engines[engine]] if engine in self.engines else []
            self.engines[engine] = work
        work.after = before
        for other in before:
            if other.end_us is None:
                other.next.append(work)
                work.unresolved += 1
        line.append(work)
        self.work.append(work)
        if not work.unresolved:
            self._resolve(work)
        return work

    def meet(self, number: Hashable, size: int, transfer_us: float) -> Meeting:
        """The collective or message with this number; all ranks number theirs alike."""
        return self.meetings.setdefault(number, Meeting(size=size, transfer_us=transfer_us))

    def _resolve(self, first: Work) -> None:
        ready = deque([first])
        while ready:
            work = ready.popleft()
            work.start_us = self._free_at(_start(work))
            if work.meeting is None:
                done = [work]
                work.end_us = self._done_at(work.start_us, work.duration_us)
            else:
                work.meeting.there.append(work)
                if len(work.meeting.there) < work.meeting.size:
                    continue
                done = work.meeting.there
                end = max(one.start_us or 0.0 for one in done) + work.meeting.transfer_us
                for one in done:
                    one.end_us = end
            for one in done:
                for other in one.next:
                    other.unresolved -= 1
                    if not other.unresolved:
                        ready.append(other)
                one.next = []

    def _free_at(self, moment: float) -> float:
        """The first moment from then on at which the GPU is this process's."""
        if not self.slice_us:
            return moment
        begun = moment // self.every_us * self.every_us
        own = self.every_us - self.slice_us
        return moment if moment < begun + own else begun + self.every_us

    def _done_at(self, start: float, length: float) -> float:
        """When work is done that stands still while the GPU is another's."""
        if not self.slice_us:
            return start + length
        own = self.every_us - self.slice_us
        begun = start // self.every_us * self.every_us
        return start + length + int((start - begun + length) // own) * self.slice_us

    def run(self, tasks: list[Task]) -> None:
        """Run all hosts to their ends."""
        waiting: list[tuple[Task, Work | None]] = [(task, None) for task in tasks]
        while waiting:
            still: list[tuple[Task, Work | None]] = []
            moved = False
            for task, wanted in waiting:
                if wanted is not None and wanted.end_us is None:
                    still.append((task, wanted))
                    continue
                moved = True
                found = next(task, None)
                if found is not None:
                    still.append((task, found))
            assert moved, "every rank waits for another: the program has a deadlock"
            waiting = still


def _start(work: Work) -> float:
    start = work.ready_us + LAUNCH_LATENCY_US
    for other in work.after:
        same = other.stream == work.stream and other.kind and work.kind
        gap = (0.4 if work.in_graph else BETWEEN_US) if same else 0.0
        assert other.end_us is not None
        start = max(start, other.end_us + gap)
    return start + work.stall_us
