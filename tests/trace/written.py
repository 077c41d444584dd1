"""Small Kineto traces made by hand, and the ways in which profilers write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from ridgeline.trace.columns import Trace
from ridgeline.trace.formats import kineto


def kernel(
    start: float,
    length: float,
    *,
    stream: int = 7,
    correlation: int = 0,
    name: str = "gemm",
    device: int = 0,
    category: str = "kernel",
    **args: Any,
) -> dict[str, Any]:
    args = {"device": device, "stream": stream, "correlation": correlation, **args}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": start,
        "dur": length,
        "args": args,
    }


def call(
    start: float,
    length: float,
    correlation: int = 0,
    name: str = "cudaLaunchKernel",
    tid: int = 1,
    category: str = "cuda_runtime",
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": length,
        "args": {"cbid": 211, "correlation": correlation},
    }


def host(
    start: float, length: float, name: str, category: str = "cpu_op", tid: int = 1, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": length,
        "args": args,
    }


def step(start: float, length: float, number: int) -> dict[str, Any]:
    return host(start, length, f"ProfilerStep#{number}", "user_annotation")


def document(events: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        **extra,
        "traceEvents": events,
        "traceName": "x.json",
    }


def write(
    path: Path, events: list[dict[str, Any]], *, indent: int | None = None, **extra: Any
) -> Path:
    compact = (",", ":") if indent is None else None
    text = json.dumps(document(events, **extra), indent=indent, separators=compact).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read_kineto(path: Path, *, details: bool = False) -> Trace:
    """Read the trace of a file that holds one rank."""
    (trace,) = kineto.read_kineto(path, details=details)
    return trace
