"""Rows of a file with several GPUs as a reader meets them; they fit `per_gpu.WholeFile`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Kind, TraceDevice
from ridgeline.trace.per_gpu import Table, named_range, picked, table_of

_WORK = (
    "start", "end", "device", "stream", "correlation", "process", "graph", "name", "kind", "bytes",
    "blocks", "threads", "registers", "shared",
)  # fmt: skip

_DRIVER = re.compile(r"hsa_|cu[A-Z]")


@dataclass(slots=True)
class FileRows:
    """What was read of a file, in whole nanoseconds."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    called_threads: dict[tuple[int, int], str] = field(default_factory=dict)
    """(process, thread) → its name."""
    devices: dict[int, TraceDevice] = field(default_factory=dict)
    """GPU by its number."""
    work: list[tuple[int, ...]] = field(default_factory=list)
    called: list[tuple[int, ...]] = field(default_factory=list)
    ranged: list[tuple[int, ...]] = field(default_factory=list)

    def add_kernel(
        self,
        *,
        name: str,
        start: int,
        end: int,
        device: int,
        stream: int,
        correlation: int,
        process: int,
        blocks: int = ABSENT,
        threads: int = ABSENT,
        shared: int = ABSENT,
        registers: int = ABSENT,
    ) -> None:
        """Add a kernel with its number of blocks and of threads in each."""
        self.work.append((
            start, max(start, end), device, stream, correlation, process << 24, ABSENT,
            self._name(name), Kind.KERNEL, ABSENT, blocks, threads, registers, shared,
        ))  # fmt: skip

    def add_copy(
        self,
        *,
        name: str,
        start: int,
        end: int,
        device: int,
        stream: int,
        correlation: int,
        process: int,
        size: int,
    ) -> None:
        """Add a copy, named as elsewhere (`Memcpy HtoD`)."""
        self.work.append((
            start, max(start, end), device, stream, correlation, process << 24, ABSENT,
            self._name(name), Kind.MEMCPY, size, *(ABSENT,) * 4,
        ))  # fmt: skip

    def add_call(
        self, *, name: str, start: int, end: int, process: int, thread: int, correlation: int
    ) -> None:
        """Add a call of a runtime, or of a driver: HSA below HIP, `cu…` below CUDA."""
        kind = Category.DRIVER if _DRIVER.match(name) else Category.RUNTIME
        self.called.append((
            start, max(start, end), process << 24, correlation, self._name(name),
            self._thread(process, thread), kind,
        ))  # fmt: skip

    def add_range(self, *, written: str, start: int, end: int, process: int, thread: int) -> None:
        """Add a range that the program named."""
        name, kind, operator, sequence = named_range(written)
        self.ranged.append((
            start, max(start, end), process << 24, self._name(name), self._thread(process, thread),
            kind, operator, sequence,
        ))  # fmt: skip

    def gpu_work(self) -> Table:
        """Kernels and copies, by start."""
        work = table_of(_WORK, self.work)
        return picked(work, np.lexsort((work["stream"], work["start"])))

    def calls(self) -> Table:
        """Calls of runtimes and drivers."""
        keys = ("start", "end", "process", "correlation", "name", "thread", "category")
        return table_of(keys, self.called)

    def ranges(self) -> Table:
        """Ranges that the program named."""
        keys = ("start", "end", "process", "name", "thread", "category", "operator", "sequence")
        return table_of(keys, self.ranged)

    def waits(self) -> Table:
        """An empty table, for a profiler that records no waits."""
        keys = ("start", "end", "process", "device", "stream", "correlation", "name", "record")
        return table_of(keys, ())

    def device(self, index: int) -> TraceDevice:
        """What the file says of a GPU."""
        return self.devices.get(index) or TraceDevice(index=index, name="")

    def thread_names(self) -> dict[int, str]:
        """Names of threads by their number."""
        return {self.threads[key]: name for key, name in self.called_threads.items()
                if key in self.threads}  # fmt: skip

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _thread(self, process: int, thread: int) -> int:
        return self.threads.setdefault((process, thread), len(self.threads))
