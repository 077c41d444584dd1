"""Profiles of JAX and other XLA programs (`*.xplane.pb`) as traces: one `Trace` per device.

An XSpace (`planes.py`) has a plane per device and one for the host. On a GPU's plane the lines
called `Stream #…` are its work, on a TPU's `XLA Ops` and `Async XLA Ops`; other lines repeat them
for a viewer (modules, steps, scopes). A call on the host has the correlation of the work that it
launched; what else the host's plane holds are ranges. `ridgeline/trace/per_gpu.py` divides the file
among devices.

The JSON beside such a file (`perfetto_trace.json.gz`, `trace.json.gz`) holds less of it, and is
refused with this one's name.
"""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT, Trace, TraceDevice
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.file_text import GZIP_MAGIC, text_pieces
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.xplane.planes import PlaneEvent, Stats, XLine, XPlane, planes
from ridgeline.trace.per_gpu import traces_per_gpu

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
LARGEST_BYTES = 2**30
_DEVICE = re.compile(r"/device:(?P<kind>[A-Z]+):(?P<number>\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_TPU_LINES = ("XLA Ops", "Async XLA Ops")
_SIZE = re.compile(r"\bsize:(\d+)")
_GRID = re.compile(r"\b(grid|block):(\d+),(\d+),(\d+)")
_COPY = re.compile(r"Memcpy\s*([HDP])(?:to|2)([HDP])")
_PROCESS = 1
_RANKS = "ranks are the numbers of devices: the profile does not say the process's"


def read_xplane(path: Path) -> list[Trace]:
    """One trace per device of a profile, lowest number first.

    Raises:
        InputError: it is damaged, too large, or nothing ran on a device or the host in it.
    """
    warnings: list[str] = []
    content = bytearray()
    for piece in text_pieces(path, warnings):
        content += piece
        if len(content) > LARGEST_BYTES:
            raise InputError(f"{path}: more than {LARGEST_BYTES >> 30} GiB; profile fewer steps")
    found = FileRows()
    try:
        for plane in planes(memoryview(bytes(content))):
            _add(found, plane)
        traces = traces_per_gpu(path, found, ranks=_RANKS)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a whole XSpace of XLA's profiler ({error})") from None
    if not traces:
        raise InputError(f"{path}: nothing ran on a device or the host in it; profile again")
    return traces


def _add(found: FileRows, plane: XPlane) -> None:
    device = _DEVICE.search(plane.name)
    if device is None:
        if plane.name.startswith("/host:CPU"):
            for line in plane.lines:
                _add_host(found, plane, line)
        return
    number, facts = int(device["number"]), plane.facts
    units = facts.get("core_count")
    found.devices[number] = TraceDevice(
        index=number,
        name=_device_name(facts) or f"{device['kind']} {number}",
        num_sms=units if isinstance(units, int) and device["kind"] == "GPU" else None,
    )
    for line in plane.lines:
        stream = _stream(line)
        if stream is not None:
            for event in plane.events(line):
                _add_work(found, event, number, stream)


def _stream(line: XLine) -> int | None:
    """The stream that a line of a device is; None for one that repeats others."""
    if numbered := _STREAM.search(line.name):
        return int(numbered[1])
    return _TPU_LINES.index(line.name) if line.name in _TPU_LINES else None


def _add_work(found: FileRows, event: PlaneEvent, device: int, stream: int) -> None:
    link = event.stats.get("correlation_id", ABSENT)
    correlation = link if isinstance(link, int) else ABSENT
    details = str(event.stats.get("memcpy_details") or event.stats.get("memset_details") or "")
    copied = _COPY.search(event.name)
    if copied or details:
        size = _SIZE.search(details)
        found.add_copy(
            name=f"Memcpy {copied[1]}to{copied[2]}" if copied else event.name,
            start=event.start, end=event.end, device=device, stream=stream,
            correlation=correlation, process=_PROCESS, size=int(size[1]) if size else ABSENT,
        )  # fmt: skip
        return
    blocks, threads = _counts(str(event.stats.get("kernel_details", "")))
    found.add_kernel(
        name=event.name.removesuffix(".kd"), start=event.start, end=event.end, device=device,
        stream=stream, correlation=correlation, process=_PROCESS, blocks=blocks, threads=threads,
    )  # fmt: skip


def _add_host(found: FileRows, plane: XPlane, line: XLine) -> None:
    found.called_threads[_PROCESS, line.id] = line.name
    for event in plane.events(line):
        link = event.stats.get("correlation_id")
        if isinstance(link, int):
            found.add_call(
                name=event.name, start=event.start, end=event.end, process=_PROCESS,
                thread=line.id, correlation=link,
            )  # fmt: skip
        else:
            found.add_range(
                written=event.name, start=event.start, end=event.end, process=_PROCESS,
                thread=line.id,
            )  # fmt: skip


def _counts(details: str) -> tuple[int, int]:
    """Blocks and threads of each, of `grid:16,1,1 block:512,1,1`."""
    counts = {kind: int(x) * int(y) * int(z) for kind, x, y, z in _GRID.findall(details)}
    return counts.get("grid", ABSENT), counts.get("block", ABSENT)


def _device_name(facts: Stats) -> str:
    name = facts.get("device_type_string") or facts.get("gpu_device_name") or ""
    return str(name)


def _looks_like_xplane(path: Path, start: bytes) -> bool:
    return path.name.endswith(SUFFIXES) and start.startswith((b"\x0a", GZIP_MAGIC))


FORMAT = FileFormat(
    name="XPlane",
    suffixes=SUFFIXES,
    sniff=_looks_like_xplane,
    read=lambda path, details: read_xplane(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
