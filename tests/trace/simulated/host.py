"""A rank's host threads: what they run, when they block, and what a profiler would note of them.

Whatever may block is a generator that yields the work it waits for (`machine.py`).
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.trace.simulated.machine import QUEUE, Machine, Meeting, Work
from tests.trace.simulated.program import Gpu, Program, gpu_of

Blocking = Generator[Work, None, None]
MAIN, AUTOGRAD, WATCHDOG = 4100, 4177, 4190
"""Thread ids."""
COMPUTE, COPIES, TALK, SIDE = 7, 13, 20, 27
"""Streams; AMD's default stream is 0."""
_LATE_SORTS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "multimem", "deepep")


_HIP = {"cudaLaunchKernelExC": "hipExtLaunchKernel"}
"""Calls of ROCm whose name is not the CUDA one with another beginning."""


BLOCKING_HIP = "hipMemcpyWithStream"


@cache
def kernel_name(sort: str, gpu: str) -> str:
    names = tomllib.loads((Path(__file__).parent / "names.toml").read_text())[sort]
    found: str = names.get(gpu) or names["any"]
    return found


@dataclass(slots=True)
class Span:
    """What the profiler notes of a host thread."""

    category: str
    """`cpu_op`, `runtime`, `annotation` or `python`."""
    name: str
    start_us: float
    duration_us: float
    thread: int
    args: dict[str, Any] = field(default_factory=dict)


class Rank:
    """One process with its GPU, and everything that was noted of it."""

    def __init__(self, machine: Machine, program: Program, number: int, seed: int) -> None:
        self.machine, self.program, self.number, self.seed = machine, program, number, seed
        self.gpu: Gpu = gpu_of(program.gpu)
        self.spans: list[Span] = []
        self.correlation = 1000
        self.collectives = 0
        self.messages: dict[tuple[int, int], int] = {}
        """Sender and receiver → the number of the last message between them."""
        self.loaded: set[str] = set()

    @property
    def compute(self) -> int:
        """The stream of the program's kernels."""
        return 0 if self.gpu.vendor == "amd" else COMPUTE

    def slowness(self, step: int) -> dict[str, float]:
        """Factor on the kernels of a step, by the roof that they are below."""
        trouble, ranks = self.program.trouble, self.program.parallel.ranks
        clocks = trouble.slower_by if 0 <= trouble.slower_from <= step else 1.0
        share = 1.0
        if trouble.imbalance:
            dice = random.Random(f"experts/{self.seed}/{step}")
            loads = [dice.random() for _ in range(ranks)]
            share += trouble.imbalance * (2 * loads[self.number] - 2 * sum(loads) / ranks)
        return {"compute": clocks * share, "memory": (1 + (clocks - 1) / 3) * share}

    def api(self, name: str) -> str:
        """The runtime call as this vendor names it."""
        if self.gpu.vendor != "amd":
            return name
        return _HIP.get(name) or name.replace("cuda", "hip", 1)


class Thread:
    """One host thread with a clock of its own."""

    def __init__(self, rank: Rank, number: int, now_us: float = 0.0) -> None:
        self.rank, self.number, self.now = rank, number, now_us
        self.random = random.Random(0)
        self.begin(-1)

    def begin(self, step: int) -> None:
        """Each step draws its jitter anew: a fault elsewhere leaves it as it was."""
        self.random.seed(f"{self.rank.seed}/{self.rank.number}/{self.number}/{step}")
        self.slowness = self.rank.slowness(step)

    def jitter(self, mean_us: float, sigma: float | None = None) -> float:
        """A lognormal time of this mean."""
        wide = self.rank.program.host.sigma if sigma is None else sigma
        return mean_us * math.exp(self.random.gauss(-0.5 * wide * wide, wide))

    def work(self, mean_us: float, sigma: float = 0.03) -> None:
        """Use the host's time."""
        self.now += self.jitter(mean_us, sigma)

    @contextmanager
    def span(self, category: str, name: str, **args: Any) -> Iterator[Span]:
        found = Span(category, name, self.now, 0.0, self.number, args)
        self.rank.spans.append(found)
        yield found
        found.duration_us = self.now - found.start_us

    def next_correlation(self) -> int:
        self.rank.correlation += 1
        return self.rank.correlation

    def call(self, name: str, length_us: float, correlation: int | None = None) -> Span:
        """A runtime call that waits for nothing."""
        number = self.next_correlation() if correlation is None else correlation
        found = Span("runtime", self.rank.api(name), self.now, length_us, self.number,
                     {"correlation": number})  # fmt: skip
        self.rank.spans.append(found)
        self.now += length_us
        return found

    def launch(
        self, sort: str, duration_us: float, *, stream: int | None = None,
        wait_for: Iterable[Work] = (), meeting: Meeting | None = None, call: str = "",
        stall_us: float = 0.0, load_us: float = 0.0, bound: str = "", **args: Any,
    ) -> Generator[Work, None, Work]:  # fmt: skip
        """Start a kernel; blocks while the stream's queue is full."""
        rank = self.rank
        at = rank.compute if stream is None else stream
        began = self.now
        yield from self.room(at)
        length = self.now - began + self.jitter(rank.program.host.launch_us) + load_us
        if sort not in rank.loaded:
            rank.loaded.add(sort)
            length += rank.program.start_up.module_us
        if rank.number == rank.program.trouble.late_rank and sort not in _LATE_SORTS:
            duration_us *= rank.program.trouble.late_compute
        duration_us *= self.slowness.get(bound, 1.0)
        self.now = began
        number = self.next_correlation()
        self.call(call or "cudaLaunchKernel", length, number)
        return rank.machine.submit(
            Work(rank.number, at, kernel_name(sort, rank.gpu.key), "kernel",
                 duration_us * math.exp(self.random.gauss(0, 0.02)), self.now - 0.3, number,
                 args, meeting, stall_us),
            wait_for,
        )  # fmt: skip

    def room(self, stream: int) -> Blocking:
        """Wait until the stream can take one more launch."""
        line = self.rank.machine.streams.get((self.rank.number, stream), [])
        if len(line) >= QUEUE:
            old = line[-QUEUE]
            if old.end_us is None:
                yield old
            self.now = max(self.now, old.start_us or 0.0)

    def wait(self, name: str, work: Work | None, floor_us: float = 3.0) -> Blocking:
        """A runtime call that returns when the work has ended."""
        began = self.now
        if work is not None and work.end_us is None:
            yield work
        until = work.end_us if work is not None and work.end_us is not None else began
        self.call(name, max(until - began, 0.0) + self.jitter(floor_us))

    def poll(self, work: Work) -> Blocking:
        """Ask again and again whether the work has ended."""
        if work.end_us is None:
            yield work
        assert work.end_us is not None
        while True:
            self.call("cudaEventQuery", self.jitter(1.6))
            if self.now >= work.end_us:
                return
            self.now += self.jitter(9.0)

    def last(self, stream: int | None = None) -> Work | None:
        """The latest work of a stream."""
        at = self.rank.compute if stream is None else stream
        line = self.rank.machine.streams.get((self.rank.number, at), [])
        return line[-1] if line else None

    def copy(
        self, direction: str, size: float, *, pinned: bool, stream: int | None = None,
        wait_for: Iterable[Work] = (), call: str = "cudaMemcpyAsync",
    ) -> Generator[Work, None, Work]:  # fmt: skip
        """Queue a copy; of pageable memory the call returns when the copy is done."""
        rank = self.rank
        at = rank.compute if stream is None else stream
        rate = rank.gpu.pinned_bytes_per_second if pinned else rank.gpu.pageable_bytes_per_second
        kind = "Pinned" if pinned else "Pageable"
        ends = f"({kind} -> Device)" if direction == "HtoD" else f"(Device -> {kind})"
        yield from self.room(at)
        began, number = self.now, self.next_correlation()
        length = self.jitter(6.0)
        done = rank.machine.submit(
            Work(rank.number, at, f"Memcpy {direction} {ends}", "gpu_memcpy",
                 1.4 + 1e6 * size / rate, self.now + length - 0.3, number,
                 {"bytes": int(size)}),
            wait_for,
        )  # fmt: skip
        if not pinned or call == BLOCKING_HIP:
            if done.end_us is None:
                yield done
            length = max(length, (done.end_us or 0.0) - began + self.jitter(4.0))
        self.call(call, length, number)
        return done

    def blocking_copy(self, direction: str, size: float, *, pinned: bool) -> Blocking:
        """Copy and wait, as PyTorch does: two calls of CUDA, one of HIP."""
        if self.rank.gpu.vendor == "amd":
            yield from self.copy(direction, size, pinned=pinned, call=BLOCKING_HIP)
            return
        copied = yield from self.copy(direction, size, pinned=pinned)
        yield from self.wait("cudaStreamSynchronize", copied, 2.0)

    def stream_waits(self, stream: int, work: Iterable[Work]) -> Work:
        """`cudaStreamWaitEvent`: what comes next on the stream starts after the work."""
        self.call("cudaEventRecord", self.jitter(1.2))
        number = self.next_correlation()
        self.call("cudaStreamWaitEvent", self.jitter(1.2), number)
        return self.rank.machine.submit(
            Work(self.rank.number, stream, "", "", 0.0, self.now, number), work
        )
