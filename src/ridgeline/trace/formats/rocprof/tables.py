"""The tables of a rocprofv3 file, whichever of its formats they come from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Kind, TraceDevice
from ridgeline.trace.per_gpu import Table, named_range, picked, table_of

_WORK = (
    "start", "end", "device", "stream", "correlation", "process", "graph", "name", "kind", "bytes",
    "blocks", "threads", "registers", "shared",
)  # fmt: skip
_COPIES = {
    "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}  # fmt: skip


@dataclass(slots=True)
class RocmFile:
    """What was read of a file; fits `per_gpu.WholeFile`."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
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
        grid: tuple[int, int, int],
        workgroup: tuple[int, int, int],
        shared: int,
        registers: int = ABSENT,
    ) -> None:
        """Add a kernel; `grid` counts work items as HSA does, not blocks."""
        threads = workgroup[0] * workgroup[1] * workgroup[2]
        blocks = ABSENT
        if threads > 0:
            blocks = 1
            for items, size in zip(grid, workgroup, strict=True):
                blocks *= -(-items // size)
        self.work.append((
            start, max(start, end), device, stream, correlation, process << 24, ABSENT,
            self._name(name), Kind.KERNEL, ABSENT, blocks, threads or ABSENT, registers, shared,
        ))  # fmt: skip

    def add_copy(
        self,
        *,
        direction: str,
        start: int,
        end: int,
        device: int,
        stream: int,
        correlation: int,
        process: int,
        size: int,
    ) -> None:
        """Add a copy; `direction` is what rocprofv3 calls it (`MEMORY_COPY_HOST_TO_DEVICE`)."""
        short = next((text for key, text in _COPIES.items() if key in direction), direction)
        self.work.append((
            start, max(start, end), device, stream, correlation, process << 24, ABSENT,
            self._name(f"Memcpy {short}"), Kind.MEMCPY, size, *(ABSENT,) * 4,
        ))  # fmt: skip

    def add_call(
        self, *, name: str, start: int, end: int, process: int, thread: int, correlation: int
    ) -> None:
        """Add a call of a runtime or a driver, which HSA is below HIP."""
        kind = Category.DRIVER if name.startswith("hsa_") else Category.RUNTIME
        self.called.append((
            start, max(start, end), process << 24, correlation, self._name(name),
            self._thread(process, thread), kind,
        ))  # fmt: skip

    def add_range(self, *, written: str, start: int, end: int, process: int, thread: int) -> None:
        """Add a roctx range."""
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
        """Calls of HIP, HSA and RCCL."""
        keys = ("start", "end", "process", "correlation", "name", "thread", "category")
        return table_of(keys, self.called)

    def ranges(self) -> Table:
        """The roctx ranges."""
        keys = ("start", "end", "process", "name", "thread", "category", "operator", "sequence")
        return table_of(keys, self.ranged)

    def waits(self) -> Table:
        """Nothing: rocprofv3 records none."""
        keys = ("start", "end", "process", "device", "stream", "correlation", "name", "record")
        return table_of(keys, ())

    def device(self, index: int) -> TraceDevice:
        """What the file says of a GPU."""
        return self.devices.get(index) or TraceDevice(index=index, name="")

    def thread_names(self) -> dict[int, str]:
        """Nothing: threads have numbers only."""
        return {}

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _thread(self, process: int, thread: int) -> int:
        return self.threads.setdefault((process, thread), len(self.threads))
