"""Writes a run as the Kineto traces that PyTorch's profiler would have left, a file per rank.

Schemas, after published traces: `old` (PyTorch 1.9: categories with a capital, whole microseconds,
no rank), `plain` (2.0: `cpu_op`, whole microseconds) and `new` (2.5: nanoseconds since a base,
device properties, `ac2g` flows, process groups). AMD runs are written as ROCm's tracer does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trace.simulated.host import MAIN, Rank, Span
from tests.trace.simulated.machine import Work
from tests.trace.simulated.program import Collective, Op
from tests.trace.simulated.run import Run

BASE_US = {"old": 1623212760000000.0, "plain": 1695835540000000.0, "new": 1428625700000.0}
_CATEGORIES = {
    "old": {"cpu_op": "Operator", "runtime": "Runtime", "annotation": "Operator",
            "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"},
    "plain": {"runtime": "cuda_runtime", "annotation": "user_annotation",
              "python": "python_function"},
}  # fmt: skip
_CATEGORIES["new"] = _CATEGORIES["plain"]


_SYNCS = {"cudaStreamSynchronize": "Stream Sync", "cudaDeviceSynchronize": "Context Sync",
          "cudaEventSynchronize": "Event Sync"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Which profiler wrote the trace, and what it was asked to record."""

    version: str = "new"
    steps: bool = True
    """ProfilerStep annotations."""
    shapes: bool = True
    stacks: bool = False
    syncs: bool = False
    """CUPTI's `cuda_sync` records."""
    clocks_us: float = 0.0
    """How far the clock of each rank is from that of the one before it."""


def write_run(run: Run, folder: Path, schema: Schema) -> list[Path]:
    """One file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in run.ranks:
        path = folder / f"rank{rank.number}.pt.trace.json"
        since = run.recorded_from_us(rank.number)
        work = [one for one in run.work
                if one.rank == rank.number and (one.start_us or 0.0) >= since]  # fmt: skip
        spans = [span for span in rank.spans if span.start_us >= since]
        path.write_text(json.dumps(document(rank, spans, work, schema)))
        paths.append(path)
    return paths


def document(rank: Rank, spans: list[Span], work: list[Work], schema: Schema) -> dict[str, Any]:
    """The whole file as a value."""
    events = _Events(rank, schema)
    for span in spans:
        events.host(span)
    for one in work:
        if one.kind:
            events.gpu(one)
        elif schema.syncs:
            events.sync(one)
    if schema.stacks and schema.version != "old":
        events.frames(spans)
    events.threads()
    return events.head() | {"traceEvents": events.found, "traceName": "trace.json"}


class _Events:
    def __init__(self, rank: Rank, schema: Schema) -> None:
        self.rank, self.schema = rank, schema
        self.found: list[dict[str, Any]] = []
        self.names = _CATEGORIES[schema.version]
        self.base = BASE_US[schema.version] + rank.number * schema.clocks_us
        self.pid = 5000 + rank.number
        self.external = 0
        self.device = rank.number

    def stamps(self, start: float, length: float) -> dict[str, Any]:
        if self.schema.version == "new":
            begin = round(self.base + start, 3)
            return {"ts": begin, "dur": round(round(self.base + start + length, 3) - begin, 3)}
        begin = int(self.base + start)
        return {"ts": begin, "dur": int(self.base + start + length) - begin}

    def host(self, span: Span) -> None:
        old = self.schema.version == "old"
        if span.category == "python" and (not self.schema.stacks or old):
            return
        if span.name.startswith("ProfilerStep") and not self.schema.steps:
            return
        args: dict[str, Any] = {}
        if span.category == "runtime":
            args = {"cbid": 211, "correlation": span.args["correlation"]}
        elif span.category in {"cpu_op", "annotation"}:
            self.external += 1
            args = {"External id": self.external}
            op = span.args.get("op")
            if self.schema.shapes and isinstance(op, Op) and op.dims:
                args |= self.inputs(op)
        category = self.names.get(span.category, span.category)
        tid: int | str = str(span.thread) if old else span.thread
        event = {"ph": "X", "cat": category, "name": span.name, "pid": self.pid, "tid": tid}
        self.found.append(event | self.stamps(span.start_us, span.duration_us) | {"args": args})
        if span.category == "runtime" and "Launch" in span.name:
            self.flow("s", span.args["correlation"], self.pid, span.thread, span.start_us)
        if self.schema.syncs and span.name in _SYNCS:
            self.host_sync(span)

    def inputs(self, op: Op) -> dict[str, Any]:
        """Sizes and types of an operator's arguments; other arguments since PyTorch 2.1."""
        element = {"fp16": "c10::Half", "fp32": "float", "int64": "long int"}.get(
            op.dtype, "c10::BFloat16"
        )
        found = {
            "Input Dims": [list(each) for each in op.dims],
            "Input type": [element if each else "" for each in op.dims],
        }
        if self.schema.version == "new":
            blank = [""] * len(op.dims)
            found["Concrete Inputs"] = list(op.values) or blank
        return found

    def flow(self, ph: str, number: int, pid: int, tid: int | str, at: float) -> None:
        old = self.schema.version == "old"
        event = {"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": self.stamps(at, 0)["ts"],
                 "cat": "async" if old else "ac2g",
                 "name": "launch" if old else "ac2g"}  # fmt: skip
        self.found.append(event | ({"bp": "e"} if ph == "f" else {}))

    def gpu(self, work: Work) -> None:
        start, end = work.start_us or 0.0, work.end_us or 0.0
        args: dict[str, Any] = {"device": self.device, "context": 1, "stream": work.stream,
                                "correlation": work.correlation}  # fmt: skip
        if work.kind == "kernel":
            args |= self.grid(int(str(work.args["blocks"]))) | self.collective(work)
            if "graph id" in work.args:
                args["graph id"] = work.args["graph id"]
        else:
            size = int(str(work.args["bytes"]))
            args |= {"bytes": size, "memory bandwidth (GB/s)": size / 1e3 / max(end - start, 1e-3)}
        category = self.names.get(work.kind, work.kind)
        old = self.schema.version == "old"
        tid: int | str = f"stream {work.stream}" if old else work.stream
        event = {"ph": "X", "cat": category, "name": work.name, "pid": self.device, "tid": tid}
        self.found.append(event | self.stamps(start, end - start) | {"args": args})
        self.flow("f", work.correlation, self.device, tid, start)

    def grid(self, blocks: int) -> dict[str, Any]:
        gpu = self.rank.gpu
        shape = {"grid": [blocks, 1, 1], "block": [256, 1, 1]}
        if gpu.vendor == "amd":
            return shape
        per_sm = blocks / gpu.num_sms
        warps = min(per_sm * 8, gpu.threads_per_sm / 32 * 0.5)
        return shape | {
            "queued": 0, "registers per thread": 64, "shared memory": 0,
            "blocks per SM": round(per_sm, 6), "warps per SM": round(per_sm * 8, 6),
            "est. achieved occupancy %": round(100 * warps / (gpu.threads_per_sm / 32)),
        }  # fmt: skip

    def collective(self, work: Work) -> dict[str, Any]:
        what = work.args.get("collective")
        if not isinstance(what, Collective) or self.schema.version != "new":
            return {}
        size = self.rank.program.parallel.dtype_bytes
        ranks = self.rank.program.parallel.ranks
        count = int(what.bytes / size)
        sides = {"all_gather": (count // ranks, count), "reduce_scatter": (count, count // ranks)}
        inside, out = sides.get(what.kind, (count, count))
        return {
            "Collective name": what.operation, "In msg nelems": inside, "Out msg nelems": out,
            "Group size": ranks, "dtype": "Float" if size == 4 else "BFloat16",
            "In split size": "[]", "Out split size": "[]", "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(ranks))), **self.peer(work, what),
        }  # fmt: skip

    @staticmethod
    def peer(work: Work, what: Collective) -> dict[str, Any]:
        """Whom a message is from or to."""
        side = {"send": "Dst Rank", "recv": "Src Rank"}.get(what.operation)
        return {} if side is None else {side: work.args["peer"]}

    def sync(self, wait: Work) -> None:
        """A `cudaStreamWaitEvent` as CUPTI records it."""
        other = next((one for one in wait.after if one.stream != wait.stream), None)
        if other is None or self.rank.gpu.vendor == "amd":
            return
        args = {"cuda_sync_kind": "Stream Wait Event", "stream": wait.stream, "device": self.device,
                "correlation": wait.correlation, "wait_on_stream": other.stream,
                "wait_on_cuda_event_record_corr_id": wait.correlation - 1,
                "wait_on_cuda_event_id": 1, "context": 1}  # fmt: skip
        event = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": self.device,
                 "tid": wait.stream}  # fmt: skip
        self.found.append(event | self.stamps(wait.ready_us, 1.0) | {"args": args})

    def host_sync(self, span: Span) -> None:
        """A wait of the host as CUPTI records it."""
        kind = _SYNCS[span.name]
        stream = self.rank.compute if kind == "Stream Sync" else 2**32 - 1
        args = {"cuda_sync_kind": kind, "stream": stream, "device": self.device, "context": 1,
                "correlation": span.args["correlation"]}  # fmt: skip
        event = {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": self.device,
                 "tid": stream if kind == "Stream Sync" else -1}  # fmt: skip
        inside = self.stamps(span.start_us + 0.5, max(span.duration_us - 1.0, 0.1))
        self.found.append(event | inside | {"args": args})

    def frames(self, spans: list[Span]) -> None:
        """The Python frame that all of the main thread's work lies in."""
        own = [one for one in spans if one.thread == MAIN]
        start = min(one.start_us for one in own)
        end = max(one.start_us + one.duration_us for one in own)
        for depth, name in enumerate(("train.py(200): <module>", "train.py(60): main")):
            event = {"ph": "X", "cat": "python_function", "name": name, "pid": self.pid,
                     "tid": MAIN}  # fmt: skip
            args = {"Python parent id": depth or None, "Python id": depth + 1}
            inside = self.stamps(start - 2 + depth, end - start + 4 - 2 * depth)
            self.found.append(event | inside | {"args": args})

    def threads(self) -> None:
        for pid, name, label in ((self.pid, "python", "CPU"),
                                 (self.device, "python", f"GPU {self.device}")):  # fmt: skip
            at = {"ph": "M", "ts": self.stamps(0, 0)["ts"], "pid": pid, "tid": 0}
            self.found.append(at | {"name": "process_name", "args": {"name": name}})
            self.found.append(at | {"name": "process_labels", "args": {"labels": label}})

    def head(self) -> dict[str, Any]:
        gpu, parallel = self.rank.gpu, self.rank.program.parallel
        device = {
            "id": self.device, "name": gpu.name, "totalGlobalMem": gpu.memory_bytes,
            "computeMajor": gpu.capability[0], "computeMinor": gpu.capability[1],
            "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": gpu.threads_per_sm,
            "warpSize": 64 if gpu.vendor == "amd" else 32, "numSms": gpu.num_sms,
        }  # fmt: skip
        head: dict[str, Any] = {"schemaVersion": 1}
        if self.rank.program.on_gpu:
            head["deviceProperties"] = [device]
        if self.schema.version == "new":
            head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1751410836000000000}
        if parallel.ranks > 1 and self.schema.version != "old":
            head["distributedInfo"] = {"backend": "nccl", "rank": self.rank.number,
                                       "world_size": parallel.ranks}  # fmt: skip
        if self.schema.shapes:
            head["record_shapes"] = 1
        if self.schema.stacks:
            head["with_stack"] = 1
        return head
