"""The JSON of `rocprofv3 --output-format json`: one document, plain or packed.

    rocprofiler-sdk-tool    a list with one entry per process
        agents              CPUs (type 1) and GPUs (type 2), named by a handle
        kernel_symbols      kernel_id → names, registers
        strings             names of operations by kind; messages of roctx by correlation
        buffer_records      kernel_dispatch, memory_copy, hip_api, hsa_api, rccl_api, marker_api

A kernel and the call that launched it have the same internal correlation.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.trace.columns import ABSENT, TraceDevice
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.file_text import refused_unless_whole
from ridgeline.trace.formats.rocprof.hsa import block_counts, copy_name

_GPU = 2
_CALLS = ("hip_api", "hsa_api", "rccl_api")


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = ABSENT


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = ABSENT


class _Size(msgspec.Struct, frozen=True, gc=False):
    x: int = 0
    y: int = 0
    z: int = 0

    @property
    def axes(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class _Dispatch(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle
    queue_id: _Handle
    kernel_id: int
    group_segment_size: int = ABSENT
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Kernel(msgspec.Struct, frozen=True, gc=False):
    start_timestamp: int
    end_timestamp: int
    dispatch_info: _Dispatch
    correlation_id: _Correlation = _Correlation()
    stream_id: _Handle | None = None


class _Copy(msgspec.Struct, frozen=True, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int
    operation: int
    dst_agent_id: _Handle
    src_agent_id: _Handle
    bytes: int = ABSENT
    correlation_id: _Correlation = _Correlation()
    stream_id: _Handle | None = None


class _Call(msgspec.Struct, frozen=True, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int
    operation: int
    thread_id: int
    correlation_id: _Correlation = _Correlation()


class _Records(msgspec.Struct, frozen=True, gc=False):
    kernel_dispatch: list[_Kernel] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Call] = []
    hsa_api: list[_Call] = []
    rccl_api: list[_Call] = []
    marker_api: list[_Call] = []


class _Agent(msgspec.Struct, frozen=True):
    id: _Handle
    type: int = 0
    cu_count: int | None = None
    name: str = ""
    product_name: str = ""
    logical_node_type_id: int | None = None
    gpu_index: int = ABSENT


class _Symbol(msgspec.Struct, frozen=True):
    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int = ABSENT


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct, frozen=True):
    key: int = ABSENT
    value: str = ""


class _Strings(msgspec.Struct, frozen=True):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Metadata(msgspec.Struct, frozen=True):
    pid: int = 0


class _Process(msgspec.Struct, frozen=True):
    buffer_records: _Records
    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []


class _Document(msgspec.Struct, frozen=True):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


def read_document(path: Path) -> FileRows:
    """Everything that a rocprofv3 document holds.

    Raises:
        InputError: it is not whole, or not what rocprofv3 writes.
    """
    with refused_unless_whole(path, "document of rocprofv3") as text:
        document = msgspec.json.decode(text, type=_Document)
    found = FileRows()
    for process in document.processes:
        _add(found, process)
    return found


def _add(found: FileRows, process: _Process) -> None:
    pid, records = process.metadata.pid & 0xFFFFFF, process.buffer_records
    gpus = [agent for agent in process.agents if agent.type == _GPU]
    numbers = {agent.id.handle: _number(agent, place) for place, agent in enumerate(gpus)}
    for agent in gpus:
        number = numbers[agent.id.handle]
        found.devices[number] = TraceDevice(
            index=number, name=agent.product_name or agent.name, num_sms=agent.cu_count
        )
    symbols = {symbol.kernel_id: symbol for symbol in process.kernel_symbols}
    nothing = _Symbol(kernel_id=ABSENT)
    for kernel in records.kernel_dispatch:
        info = kernel.dispatch_info
        symbol = symbols.get(info.kernel_id, nothing)
        blocks, threads = block_counts(info.grid_size.axes, info.workgroup_size.axes)
        found.add_kernel(
            name=symbol.formatted_kernel_name or symbol.kernel_name or f"kernel {info.kernel_id}",
            start=kernel.start_timestamp,
            end=kernel.end_timestamp,
            device=numbers.get(info.agent_id.handle, 0),
            stream=_stream(kernel.stream_id, info.queue_id),
            correlation=kernel.correlation_id.internal,
            process=pid,
            blocks=blocks,
            threads=threads,
            shared=info.group_segment_size,
            registers=symbol.arch_vgpr_count,
        )
    for copy in records.memory_copy:
        ends = (copy.dst_agent_id.handle, copy.src_agent_id.handle)
        found.add_copy(
            name=copy_name(_operation(process.strings, copy)),
            start=copy.start_timestamp,
            end=copy.end_timestamp,
            device=next((numbers[handle] for handle in ends if handle in numbers), 0),
            stream=_stream(copy.stream_id, None),
            correlation=copy.correlation_id.internal,
            process=pid,
            size=copy.bytes,
        )
    _add_host(found, process, pid)


def _add_host(found: FileRows, process: _Process, pid: int) -> None:
    for name in _CALLS:
        for call in getattr(process.buffer_records, name):
            found.add_call(
                name=_operation(process.strings, call),
                start=call.start_timestamp,
                end=call.end_timestamp,
                process=pid,
                thread=call.thread_id,
                correlation=call.correlation_id.internal,
            )
    messages = {one.key: one.value for one in process.strings.marker_api}
    for marker in process.buffer_records.marker_api:
        written = messages.get(marker.correlation_id.internal)
        found.add_range(
            written=written or _operation(process.strings, marker),
            start=marker.start_timestamp,
            end=marker.end_timestamp,
            process=pid,
            thread=marker.thread_id,
        )


def _number(agent: _Agent, place: int) -> int:
    if agent.gpu_index >= 0:
        return agent.gpu_index
    return place if agent.logical_node_type_id is None else agent.logical_node_type_id


def _stream(stream: _Handle | None, queue: _Handle | None) -> int:
    """The HIP stream where the file has it (ROCm 7), else the hardware queue."""
    if stream is not None:
        return stream.handle
    return ABSENT if queue is None else queue.handle


def _operation(strings: _Strings, record: _Call | _Copy) -> str:
    kinds = strings.buffer_records
    operations = kinds[record.kind].operations if 0 <= record.kind < len(kinds) else []
    if 0 <= record.operation < len(operations):
        return operations[record.operation]
    return f"operation {record.kind}.{record.operation}"
