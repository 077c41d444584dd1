"""A trace as the events and the document that torch's profiler would have written.

For traces whose profiler writes another format: what the columns hold is written under the names
that Kineto has for it (pytorch/kineto, libkineto/src/output_json.cpp), so that every tool that
reads Kineto's files reads these. A figure that the trace does not have is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, GpuEvents, Kind, Trace
from ridgeline.trace.host_calls import launch_rows

Event = dict[str, Any]
GPU_CATEGORIES = {
    Kind.KERNEL: "kernel", Kind.MEMCPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset",
}  # fmt: skip
HOST_CATEGORIES = {
    Category.OPERATOR: "cpu_op",
    Category.RUNTIME: "cuda_runtime",
    Category.DRIVER: "cuda_driver",
    Category.PYTHON: "python_function",
    Category.ANNOTATION: "user_annotation",
    Category.OVERHEAD: "overhead",
}
_GPU_ARGUMENTS = {
    "device": "device", "stream": "stream", "correlation": "correlation",
    "external_id": "External id", "graph": "graph id", "bytes": "bytes",
    "registers_per_thread": "registers per thread", "shared_bytes": "shared memory",
    "blocks_per_sm": "blocks per SM", "occupancy_percent": "est. achieved occupancy %",
}  # fmt: skip
_SIZES = {"blocks": "grid", "threads_per_block": "block"}
_COLLECTIVE = {
    "name": "Collective name", "elements_in": "In msg nelems", "elements_out": "Out msg nelems",
    "dtype": "dtype", "group_size": "Group size", "group": "Process Group Name",
    "group_description": "Process Group Description", "ranks": "Process Group Ranks",
    "source_rank": "Src Rank", "destination_rank": "Dst Rank",
}  # fmt: skip


def kineto_document(trace: Trace) -> dict[str, Any]:
    """What stands beside the events."""
    about = {"rank": trace.rank, "world_size": trace.world_size, "backend": trace.backend}
    known = {key: value for key, value in about.items() if value is not None}
    devices = [
        {"id": one.index, "name": one.name, "numSms": one.num_sms,
         "totalGlobalMem": one.memory_bytes}
        for one in trace.devices
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": devices,
        **({"distributedInfo": known} if known else {}),
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": trace.clock_offset_ns,
    }


def kineto_events(trace: Trace) -> Iterator[Event]:
    """Everything that the columns hold, as events."""
    for thread, name in trace.thread_names.items():
        process, number = trace.threads[thread]
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": number,
               "args": {"name": name}}  # fmt: skip
    yield from _host(trace)
    for kind, category in GPU_CATEGORIES.items():
        yield from _gpu(trace, trace.gpu, np.flatnonzero(trace.gpu.kind == kind), category)
    noted = trace.gpu_annotations
    yield from _gpu(trace, noted, np.arange(len(noted)), "gpu_user_annotation")
    yield from _launches(trace)
    yield from _waits(trace)
    yield from _memory(trace)


def _slice(trace: Trace, name: int, category: str, start: float, length: float) -> Event:
    return {"ph": "X", "cat": category, "name": trace.names[name],
            "ts": round(start + trace.base_us, 3), "dur": round(length, 3)}  # fmt: skip


def _host(trace: Trace) -> Iterator[Event]:
    host = trace.host
    for row in range(len(host)):
        process, thread = trace.threads[int(host.thread[row])]
        correlation, number = int(host.correlation[row]), int(host.external_id[row])
        yield {
            **_slice(trace, int(host.name[row]), HOST_CATEGORIES[Category(int(host.category[row]))],
                     float(host.start_us[row]), float(host.duration_us[row])),
            "pid": process, "tid": thread,
            "args": {
                **({} if correlation == ABSENT else {"correlation": correlation}),
                **({} if number == ABSENT else {"External id": number}),
            },
        }  # fmt: skip


def _gpu(trace: Trace, table: GpuEvents, rows: Any, category: str) -> Iterator[Event]:
    columns = {name: getattr(table, field) for field, name in _GPU_ARGUMENTS.items()}
    sizes = {name: getattr(table, field) for field, name in _SIZES.items()}
    for row in rows.tolist():
        values = {name: column[row].item() for name, column in columns.items()}
        args = {name: value for name, value in values.items() if _known(value)}
        for name, column in sizes.items():
            if column[row] != ABSENT:
                args[name] = [int(column[row]), 1, 1]
        which = int(table.collective[row])
        if which != ABSENT:
            said = trace.collectives[which]
            facts = {name: getattr(said, field) for field, name in _COLLECTIVE.items()}
            args |= {name: value for name, value in facts.items() if value is not None}
        yield {
            **_slice(trace, int(table.name[row]), category, float(table.start_us[row]),
                     float(table.duration_us[row])),
            "pid": int(table.device[row]), "tid": int(table.stream[row]), "args": args,
        }  # fmt: skip


def _known(value: float) -> bool:
    return value != ABSENT and not math.isnan(value)


def _launches(trace: Trace) -> Iterator[Event]:
    """An arrow from each launch to what it brought."""
    host, gpu = trace.host, trace.gpu
    for row, call in enumerate(launch_rows(trace).tolist()):
        if call == ABSENT:
            continue
        process, thread = trace.threads[int(host.thread[call])]
        shared = {"cat": "ac2g", "name": "ac2g", "id": row + 1}
        yield {"ph": "s", **shared, "pid": process, "tid": thread,
               "ts": round(float(host.start_us[call]) + trace.base_us, 3)}  # fmt: skip
        yield {"ph": "f", "bp": "e", **shared, "pid": int(gpu.device[row]),
               "tid": int(gpu.stream[row]),
               "ts": round(float(gpu.start_us[row]) + trace.base_us, 3)}  # fmt: skip


def _waits(trace: Trace) -> Iterator[Event]:
    names = {
        "device": "device", "stream": "stream", "correlation": "correlation",
        "wait_on_stream": "wait_on_stream", "wait_on_record": "wait_on_cuda_event_record_corr_id",
    }  # fmt: skip
    sync = trace.sync
    for row in range(len(sync)):
        values = {name: int(getattr(sync, field)[row]) for field, name in names.items()}
        yield {
            **_slice(trace, int(sync.name[row]), "cuda_sync", float(sync.start_us[row]),
                     float(sync.duration_us[row])),
            "pid": max(0, values["device"]), "tid": max(0, values["stream"]),
            "args": {name: value for name, value in values.items() if value != ABSENT},
        }  # fmt: skip


def _memory(trace: Trace) -> Iterator[Event]:
    names = {
        "bytes": "Bytes", "address": "Addr", "device_type": "Device Type", "device": "Device Id",
        "allocated_bytes": "Total Allocated", "reserved_bytes": "Total Reserved",
    }  # fmt: skip
    memory = trace.memory
    for row in range(len(memory)):
        process, thread = trace.threads[int(memory.thread[row])]
        yield {
            "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
            "pid": process, "tid": thread,
            "ts": round(float(memory.time_us[row]) + trace.base_us, 3),
            "args": {name: int(getattr(memory, field)[row]) for field, name in names.items()},
        }  # fmt: skip
