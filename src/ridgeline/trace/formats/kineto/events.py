"""Events of Kineto's JSON as typed structs, chosen by category so that each decodes only its own.

The category is the tag of a msgspec union. Profilers spell them in several ways (`kernel` and
`Kernel`, `gpu_memcpy` and `Memcpy`); a spelling that is not known yet is learned when it is met.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal, Union

import msgspec

from ridgeline.trace.columns import ABSENT, Category, Kind


class Role(Enum):
    """What an event is to us: which struct it decodes into."""

    GPU = "gpu"
    MTIA = "mtia"
    OPERATOR = "operator"
    RUNTIME = "runtime"
    PLAIN = "plain"
    SYNC = "sync"
    MEMORY = "memory"
    GPU_ANNOTATION = "gpu annotation"
    SKIP = "skip"


ON_THE_HOST = frozenset({Role.OPERATOR, Role.RUNTIME, Role.PLAIN})
"""What fills the table of the host's events."""
KINDS = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
}
"""Category, in small letters → kind of GPU work."""
HOST = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "hpu_op": Category.OPERATOR,
    "cuda_runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "hip_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "driver": Category.DRIVER,
    "python_function": Category.PYTHON,
    "python": Category.PYTHON,
    "user_annotation": Category.ANNOTATION,
    "overhead": Category.OVERHEAD,
}
"""Category, in small letters → category of host work."""
SKIPPED = (
    "ac2g", "async_cpu_to_gpu", "async_gpu", "async", "fwdbwd", "forward_backward", "trace",
    "cuda_event",
)  # fmt: skip
"""Flows (the correlation says the same), records of events, and the profiler's own span."""
SPELLINGS = ("Kernel", "Memcpy", "Memset", "Operator", "Runtime", "Trace", "Async")
"""The spellings of torch 1.8; others are learned."""
_ENDINGS: tuple[tuple[str, Kind | Category | Role], ...] = (
    ("_memcpy", Kind.MEMCPY),
    ("_memset", Kind.MEMSET),
    ("_runtime", Category.RUNTIME),
    ("_driver", Category.DRIVER),
    ("_user_annotation", Role.GPU_ANNOTATION),
    ("_sync", Role.SYNC),
)
"""How the categories of a backend end, whoever built the accelerator: `mlu_memcpy`, `gcu_runtime`,
`xpu_sync`, …"""
_BY_CATEGORY = {
    Category.OPERATOR: Role.OPERATOR,
    Category.ANNOTATION: Role.OPERATOR,
    Category.RUNTIME: Role.RUNTIME,
    Category.DRIVER: Role.RUNTIME,
}
_EXACT: dict[str, Kind | Category | Role] = {
    **KINDS,
    **HOST,
    **dict.fromkeys(SKIPPED, Role.SKIP),
    "cuda_sync": Role.SYNC,
    "cpu_instant_event": Role.MEMORY,
    "gpu_user_annotation": Role.GPU_ANNOTATION,
    "mtia_ccp_events": Role.MTIA,
}

KNOWN = (*_EXACT, *SPELLINGS)
"""Tags that the first decoder knows."""


@lru_cache(maxsize=512)
def _meaning(category: str) -> Kind | Category | Role | None:
    folded = category.casefold()
    ending = (meaning for end, meaning in _ENDINGS if folded.endswith(end))
    return _EXACT[folded] if folded in _EXACT else next(ending, None)


def role_of(category: str) -> Role | None:
    """What a category is, however it is spelled; None when nobody has told us."""
    meaning = _meaning(category)
    if isinstance(meaning, Category):
        return _BY_CATEGORY.get(meaning, Role.PLAIN)
    return Role.GPU if isinstance(meaning, Kind) else meaning


def kind_of(category: str) -> Kind:
    """The kind of GPU work that a category with the role `GPU` is."""
    meaning = _meaning(category)
    return meaning if isinstance(meaning, Kind) else Kind.KERNEL


def host_category(category: str) -> Category:
    """The category of host work that a category of an operator, a call or a frame is."""
    meaning = _meaning(category)
    return meaning if isinstance(meaning, Category) else Category.OVERHEAD


# What a column holds; a larger number makes the event a damaged one.
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
LARGEST_STAMP_US = 100 * 365.25 * 86400e6
"""A century on any clock that profilers use (since 1970, since the machine started)."""
_Time = Annotated[float, msgspec.Meta(ge=-LARGEST_STAMP_US, le=LARGEST_STAMP_US)]
_Number = float | None
_Text = str | int | float | list[Any] | None


class GpuArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of kernels, copies and fills."""

    device: _Int32 = ABSENT
    stream: _Int64 = ABSENT
    correlation: _Int64 = ABSENT
    external_id: _Int64 = msgspec.field(default=ABSENT, name="External id")
    old_external_id: _Int64 = msgspec.field(default=ABSENT, name="external id")
    registers: _Int32 = msgspec.field(default=ABSENT, name="registers per thread")
    shared: _Int64 = msgspec.field(default=ABSENT, name="shared memory")
    blocks_per_sm: _Number = msgspec.field(default=None, name="blocks per SM")
    grid: tuple[_Int32, ...] | str | None = None
    block: tuple[_Int32, ...] | str | None = None
    occupancy: _Number = msgspec.field(default=None, name="est. achieved occupancy %")
    bytes: _Int64 = ABSENT
    graph: _Int64 = msgspec.field(default=ABSENT, name="graph id")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: _Text = msgspec.field(default=None, name="In msg nelems")
    elements_out: _Text = msgspec.field(default=None, name="Out msg nelems")
    group_size: _Text = msgspec.field(default=None, name="Group size")
    dtype: _Text = None
    group: _Text = msgspec.field(default=None, name="Process Group Name")
    group_description: _Text = msgspec.field(default=None, name="Process Group Description")
    ranks: _Text = msgspec.field(default=None, name="Process Group Ranks")
    source_rank: _Text = msgspec.field(default=None, name="Src Rank")
    destination_rank: _Text = msgspec.field(default=None, name="Dst Rank")
    rank: _Text = None


class OperatorArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of an operator."""

    external_id: _Int64 = msgspec.field(default=ABSENT, name="External id")


class DetailedOperatorArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of an operator with its shapes and call stack: more to decode, so on request."""

    external_id: _Int64 = msgspec.field(default=ABSENT, name="External id")
    sequence: _Int64 = msgspec.field(default=ABSENT, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    stack: str = msgspec.field(default="", name="Call stack")


class RuntimeArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of a runtime or driver call."""

    external_id: _Int64 = msgspec.field(default=ABSENT, name="External id")
    correlation: _Int64 = ABSENT
    old_external_id: _Int64 = msgspec.field(default=ABSENT, name="external id")


class MtiaArgs(GpuArgs, frozen=True, gc=False):
    """Arguments of what ran on MTIA: jobs, copies of its DMA engine, waits for other streams."""

    direction: str | None = None
    size: _Int64 = ABSENT
    wait_on_stream: _Int64 = ABSENT


class SyncArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of a synchronisation record."""

    device: _Int32 = ABSENT
    stream: _Int64 = ABSENT
    correlation: _Int64 = ABSENT
    wait_on_stream: _Int64 = ABSENT
    wait_on_record: _Int64 = msgspec.field(default=ABSENT, name="wait_on_cuda_event_record_corr_id")


class MemoryArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of an allocation or a free."""

    bytes: _Int64 = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=0, name="Addr")
    device_type: _Int32 = msgspec.field(default=0, name="Device Type")
    device: _Int32 = msgspec.field(default=ABSENT, name="Device Id")
    allocated: _Int64 = msgspec.field(default=ABSENT, name="Total Allocated")
    reserved: _Int64 = msgspec.field(default=ABSENT, name="Total Reserved")


_X = Literal["X"]


def _fields(role: Role, stamp: type, *, details: bool) -> list[Any]:
    if role is Role.SKIP:
        return []
    args: dict[Role, Any] = {
        Role.GPU: GpuArgs,
        Role.MTIA: MtiaArgs,
        Role.GPU_ANNOTATION: GpuArgs,
        Role.OPERATOR: DetailedOperatorArgs if details else OperatorArgs,
        Role.RUNTIME: RuntimeArgs,
        Role.SYNC: SyncArgs,
        Role.MEMORY: MemoryArgs,
    }
    found: list[Any] = [
        ("ts", _Time if stamp is float else stamp),
        ("name", str),
        ("pid", int | str, 0),
        ("tid", int | str, 0),
    ]
    if role is not Role.MEMORY:  # an instant
        found = [("ph", _X), *found, ("dur", _Time, 0.0)]
    if role in args:
        found.append(("args", args[role], args[role]()))
    return found


class Decoders:
    """Decoders of a batch of events and of one, for a set of category spellings."""

    def __init__(self, tags: tuple[str, ...], stamp: type, *, details: bool) -> None:
        structs = tuple(_struct(tag, stamp, details=details) for tag in tags)
        union = msgspec.json.Decoder(Union[structs])  # noqa: UP007 (a tuple)
        batch = msgspec.json.Decoder(list[Union[structs]])  # type: ignore[valid-type]  # noqa: UP007
        self.one = union.decode
        """Decodes one event."""
        self.batch = batch.decode
        """Decodes an array of events."""


def _struct(tag: str, stamp: type, *, details: bool) -> type:
    """The struct of one category; `SORT` says what it is, and its category."""
    role = role_of(tag) or Role.SKIP
    return msgspec.defstruct(
        f"Event_{role.name}",
        _fields(role, stamp, details=details),
        namespace={"SORT": (role, tag)},
        tag_field="cat",
        tag=tag,
        gc=False,
    )


@lru_cache(maxsize=8)
def decoders(tags: tuple[str, ...], stamp: type, *, details: bool) -> Decoders:
    """Decoders for these spellings; building them takes a millisecond, so they are kept."""
    return Decoders(tags, stamp, details=details)


class _Name(msgspec.Struct, frozen=True, gc=False):
    name: Any = None


class _Metadata(msgspec.Struct, frozen=True, gc=False, tag_field="name"):
    ph: Literal["M"]


class ThreadName(_Metadata, frozen=True, gc=False, tag="thread_name"):
    """What a thread is called."""

    pid: int | str = 0
    tid: int | str = 0
    args: _Name | None = None


class ProcessName(_Metadata, frozen=True, gc=False, tag="process_name"):
    """What a process is called."""

    args: _Name | None = None


class _ProcessLabels(_Metadata, frozen=True, gc=False, tag="process_labels"):
    pass


class _ProcessOrder(_Metadata, frozen=True, gc=False, tag="process_sort_index"):
    pass


class _ThreadOrder(_Metadata, frozen=True, gc=False, tag="thread_sort_index"):
    pass


read_metadata = msgspec.json.Decoder(
    list[ThreadName | ProcessName | _ProcessLabels | _ProcessOrder | _ThreadOrder]
).decode
"""An array of nothing but metadata."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What tells whether an event needs a struct of its own, and the name that metadata gives."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = 0
    tid: Any = 0
    args: _Name | None = None

    @classmethod
    def of(cls, event: dict[str, Any]) -> Head:
        """The head of an event that was decoded as it came."""
        args = event.get("args")
        name = _Name(args.get("name")) if isinstance(args, dict) else None
        known = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid") if key in event}
        return cls(**known, args=name)


read_heads = msgspec.json.Decoder(list[Head]).decode
"""The heads of an array of events."""
split_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""An array as the text of its members."""
