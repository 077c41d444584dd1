"""A profiler trace as numpy columns: what every reader fills and every question reads.

Times are float64 microseconds since `Trace.base_us`, because profilers write microseconds with
three decimals since an epoch that float64 cannot hold to a nanosecond. Names, categories and
threads are interned: a column holds the index. `ABSENT` (-1) in an integer column and NaN in a
float column mean that the trace does not say.

GPU work is told by its category (kernel, memcpy, memset), never by an argument such as `stream`:
Triton's host operators and CUPTI's synchronisation records carry one too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from ridgeline.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

ABSENT = -1
"""In an integer column: the trace does not say."""

Answer = TypeVar("Answer")
Table = TypeVar("Table")


class Kind(IntEnum):
    """What a GPU event is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class Category(IntEnum):
    """What a host event is."""

    OPERATOR = 0
    """aten and user operators (`cpu_op`)."""
    RUNTIME = 1
    """Calls of the CUDA, HIP or XPU runtime."""
    DRIVER = 2
    """Calls of the driver (`cuLaunchKernel`)."""
    PYTHON = 3
    """Python frames, named `file.py(line): function`."""
    ANNOTATION = 4
    """`record_function` ranges and ProfilerStep."""
    OVERHEAD = 5
    """The profiler's own work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Things that last, a row each."""

    start_us: Floats
    duration_us: Floats

    def __len__(self) -> int:
        return len(self.start_us)

    @property
    def end_us(self) -> Floats:
        """When each of them ends."""
        return self.start_us + self.duration_us

    def ends_of(self, rows: npt.NDArray[Any] | int) -> Floats:
        """When those of some rows end, without working out the ends of all."""
        ends: Floats = self.start_us[rows] + self.duration_us[rows]
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvents(Spans):
    """Kernels, copies and fills, by start time."""

    name: Narrow
    """The name, as an index into `Trace.names`."""
    kind: Codes
    """The `Kind` as a number."""
    device: Narrow
    stream: Ints
    correlation: Ints
    """The launch that brought it: a runtime or driver call with the same number."""
    external_id: Ints
    """The operator that was open on the host at the launch."""
    graph: Ints
    """CUDA graph that it is a node of, where the trace says so."""
    bytes: Ints
    """Size of a copy or fill."""
    blocks: Ints
    """Thread blocks of the grid."""
    threads_per_block: Narrow
    blocks_per_sm: Floats
    occupancy_percent: Floats
    """The occupancy as Kineto estimates it (`est. achieved occupancy %`)."""
    registers_per_thread: Narrow
    shared_bytes: Ints
    collective: Narrow
    """What the arguments say, as an index into `Trace.collectives`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents(Spans):
    """Operators, runtime calls, Python frames and annotations, in the order of the file."""

    name: Narrow
    """The name, as an index into `Trace.names`."""
    category: Codes
    """The `Category` as a number."""
    thread: Narrow
    """The thread, as an index into `Trace.threads`."""
    correlation: Ints
    """What a runtime or driver call shares with the GPU events that it started."""
    external_id: Ints
    shape: Narrow
    """Index into `Trace.shapes`; filled when the trace was loaded with `details`."""
    stack: Narrow
    """The call stack that old traces write beside an operator, an index into `Trace.stacks`; filled
    when the trace was loaded with `details`."""
    sequence: Ints
    """Autograd's sequence number, which a backward operator shares with its forward one; filled
    when the trace was loaded with `details`."""

    @property
    def is_call(self) -> Mask:
        """Which events are calls of the runtime or the driver."""
        found: Mask = (self.category == Category.RUNTIME) | (self.category == Category.DRIVER)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecords(Spans):
    """CUPTI's synchronisation records (`cuda_sync`): waits, not GPU work."""

    name: Narrow
    device: Narrow
    stream: Ints
    correlation: Ints
    wait_on_stream: Ints
    wait_on_record: Ints
    """Correlation of the cudaEventRecord that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """Allocations (positive) and frees (negative) that the profiler noted, in file order."""

    time_us: Floats
    bytes: Ints
    address: npt.NDArray[np.uint64]
    device_type: Narrow
    """The device's kind as torch numbers it (`c10::DeviceType`): 0 CPU, 1 CUDA, 6 HIP, 12 XPU."""
    device: Narrow
    allocated_bytes: Ints
    """Total allocated on the device after the event."""
    reserved_bytes: Ints
    thread: Narrow

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDevice:
    """A GPU as the trace describes it."""

    index: int
    name: str
    num_sms: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What the arguments of a communication kernel say about it."""

    name: str
    """The operation as torch names it: `allreduce`, `_allgather_base`, …"""
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group: str | None = None
    """The process group's name."""
    group_description: str | None = None
    ranks: str | None = None
    """Ranks of the group as written, perhaps shortened by the profiler."""
    source_rank: int | None = None
    """Whom a receive is from, counted over the whole job."""
    destination_rank: int | None = None
    """Whom a send is to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The trace of one rank. Load it with `ridgeline.load_traces`.

    >>> trace = empty_trace("nothing.json")
    >>> len(trace.gpu), trace.rank
    (0, None)
    """

    file: str
    """Where it was read from: of one of several ranks in a file, the part as well."""
    rank: int | None = None
    """The rank that the trace itself, or the name of its file, gives."""
    world_size: int | None = None
    base_us: float = 0.0
    """Absolute time of 0 in the columns, on the clock of the trace."""
    clock_offset_ns: int = 0
    """Added to the clock of the trace it gives nanoseconds since 1970 (`baseTimeNanoseconds`)."""
    devices: tuple[TraceDevice, ...] = ()
    backend: str | None = None
    """The backend of torch.distributed."""
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    threads: tuple[tuple[int | str, int | str], ...] = ()
    """(process, thread) of each index in a `thread` column."""
    thread_names: dict[int, str] = field(default_factory=dict)
    """Name of a thread by its index in `threads`, where the trace says."""
    collectives: tuple[Collective, ...] = ()
    shapes: tuple[str, ...] = ()
    """JSON text `[dims, types]` of an operator's inputs, when loaded with `details`; that of a
    convolution has its other arguments as a third (`["", "", "", "[2, 2]", …]`)."""
    stacks: tuple[str, ...] = ()
    num_events: int = 0
    """Events in the file, of all kinds."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Events of categories that we do not know, none of them in the tables: category → how many."""
    cut: bool = False
    """Does the file end before its events do?"""
    record_gpu: str | None = None
    """How its profiler is asked for GPU work, where a file may hold ranges of a program alone and
    not say whether it was; None for torch.profiler."""
    raw_bytes: int = 0
    """Uncompressed size of the file."""
    details: bool = False
    """Were shapes, stacks and sequence numbers asked for?"""
    gpu: GpuEvents
    host: HostEvents
    sync: SyncRecords
    memory: MemoryEvents
    gpu_annotations: GpuEvents
    """`record_function` ranges as the GPU saw them (`gpu_user_annotation`): no GPU work."""
    _derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def derived(self, key: str, compute: Callable[[Trace], Answer]) -> Answer:
        """What `compute` makes of this trace, computed once; several questions share it."""
        if key not in self._derived:
            self._derived[key] = compute(self)
        found: Answer = self._derived[key]
        return found

    def apart(self) -> Trace:
        """This trace, sharing what was computed so far and keeping what comes for itself."""
        return replace(self, _derived=dict(self._derived))

    def to_pandas(self, table: str = "gpu") -> pd.DataFrame:
        """A table (`gpu`, `host`, `sync`, `memory`) as a pandas DataFrame, with names as text."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "trace") from None
        return pd.DataFrame(self._columns(table))

    def to_polars(self, table: str = "gpu") -> pl.DataFrame:
        """A table (`gpu`, `host`, `sync`, `memory`) as a polars DataFrame, with names as text."""
        try:
            import polars as pl
        except ImportError:
            raise MissingExtra("polars", "trace") from None
        return pl.DataFrame(self._columns(table))

    def _columns(self, table: str) -> dict[str, Any]:
        if table not in TABLES:
            raise InputError(f"no table {table!r} in a trace; there are {', '.join(TABLES)}")
        found = getattr(self, table)
        columns: dict[str, Any] = {f.name: getattr(found, f.name) for f in fields(found)}
        if "name" in columns:
            columns["name"] = [self.names[index] for index in columns["name"]]
        for name, codes in (("kind", Kind), ("category", Category)):
            if name in columns:
                columns[name] = [codes(code).name.lower() for code in columns[name]]
        return columns


TABLES: dict[str, type] = {
    "gpu": GpuEvents,
    "host": HostEvents,
    "sync": SyncRecords,
    "memory": MemoryEvents,
    "gpu_annotations": GpuEvents,
}
"""The tables of a trace: its field → the columns that it has."""


def named_part(file: str, part: str) -> str:
    """The name of a rank that is one of several in a file.

    >>> named_part("job.json", "rank 3")
    'job.json (rank 3)'
    """
    return f"{file} ({part})"


def empty_trace(file: str) -> Trace:
    """A trace with nothing in it."""
    return Trace(file=file, **{table: kind(**no_rows(kind)) for table, kind in TABLES.items()})


COLUMN_TYPES = {
    "Floats": np.float64,
    "Ints": np.int64,
    "Narrow": np.int32,
    "Codes": np.int8,
    "npt.NDArray[np.uint64]": np.uint64,
}
"""Annotation of a column → its numpy type."""


def column_types(table: type) -> dict[str, Any]:
    """Column → numpy type of a table above."""
    return {column.name: COLUMN_TYPES[str(column.type)] for column in fields(table)}


def no_rows(table: type) -> dict[str, Any]:
    """The columns of a table without a row."""
    return {name: np.zeros(0, kind) for name, kind in column_types(table).items()}


def filled_table(table: type[Table], columns: Mapping[str, npt.NDArray[Any]]) -> Table:
    """A table of the columns that a profiler writes; the others do not say: ABSENT or NaN."""
    size = len(next(iter(columns.values())))
    filled = {}
    for name, kind in column_types(table).items():
        nothing = np.nan if kind is np.float64 else ABSENT
        given = columns.get(name)
        filled[name] = np.full(size, nothing, kind) if given is None else given.astype(kind)
    return table(**filled)


def rows_of_table(table: Table, rows: Ints) -> Table:
    """A table of some of the rows of another one."""
    columns = {column.name: getattr(table, column.name)[rows] for column in fields(table)}  # type: ignore[arg-type]
    return type(table)(**columns)
