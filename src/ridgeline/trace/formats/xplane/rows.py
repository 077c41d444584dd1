"""The rows of an XSpace: work of its devices, calls and ranges of its host.

A TPU's asynchronous copies are known by the text of the instructions that start and await them.
`copy-start` issues a copy and `copy-done` waits for it; the copy itself is an event of the line
`Async XLA Ops`, where that was recorded. A shape's layout says which memory it lies in: `S(5)` the
host's, `S(1)` the core's own, nothing HBM (xla/layout.h, memory spaces; xla/service/host_offload
in openxla/xla). The first shape of either instruction is what is written, the second what is read.

    %copy-start.4 = (f32[5,256]{1,0:T(8,128)}, f32[5,256]{1,0:T(8,128)S(5)}, u32[]) copy-start(…)
"""

from __future__ import annotations

import re

from ridgeline.trace.columns import ABSENT, TraceDevice
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.formats.xplane.planes import PlaneEvent, Stats, XLine, XPlane, planes

PROCESS = 1
_DEVICE = re.compile(r"/device:(?P<kind>[A-Z]+):(?P<number>\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_HLO = re.compile(r"^(%[\w.-]+) = .*", re.DOTALL)
"""A TPU names its work by the whole instruction, of which its name is the first word."""
_TPU_LINES = ("XLA Ops", "Async XLA Ops")
_SIZE = re.compile(r"\bsize:(\d+)")
_GRID = re.compile(r"\b(grid|block):(\d+),(\d+),(\d+)")
_COPY = re.compile(r"Memcpy\s*([HDP])(?:to|2)([HDP])")


def rows_of(space: bytes) -> FileRows:
    """Everything of a profile that a trace holds.

    Raises:
        ValueError: it is no XSpace, or one that is cut.
    """
    found = FileRows()
    for plane in planes(memoryview(space)):
        _add(found, plane)
    return found


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
    awaited = tpu_copy(event.name, itself=stream == _TPU_LINES.index("Async XLA Ops"))
    if awaited is not None:
        found.add_copy(
            name=awaited[0], start=event.start, end=event.end, device=device, stream=stream,
            correlation=correlation, process=PROCESS, size=awaited[1],
        )  # fmt: skip
        return
    copied = _COPY.search(event.name)
    if copied or details:
        size = _SIZE.search(details)
        found.add_copy(
            name=f"Memcpy {copied[1]}to{copied[2]}" if copied else event.name,
            start=event.start, end=event.end, device=device, stream=stream,
            correlation=correlation, process=PROCESS, size=int(size[1]) if size else ABSENT,
        )  # fmt: skip
        return
    blocks, threads = _counts(str(event.stats.get("kernel_details", "")))
    found.add_kernel(
        name=_HLO.sub(r"\1", event.name).removesuffix(".kd"), start=event.start, end=event.end,
        device=device, stream=stream, correlation=correlation, process=PROCESS, blocks=blocks,
        threads=threads,
    )  # fmt: skip


def _add_host(found: FileRows, plane: XPlane, line: XLine) -> None:
    found.called_threads[PROCESS, line.id] = line.name
    for event in plane.events(line):
        link = event.stats.get("correlation_id")
        if isinstance(link, int):
            found.add_call(
                name=event.name, start=event.start, end=event.end, process=PROCESS,
                thread=line.id, correlation=link,
            )  # fmt: skip
        else:
            found.add_range(
                written=event.name, start=event.start, end=event.end, process=PROCESS,
                thread=line.id,
            )  # fmt: skip


def _counts(details: str) -> tuple[int, int]:
    """Blocks and threads of each, of `grid:16,1,1 block:512,1,1`."""
    counts = {kind: int(x) * int(y) * int(z) for kind, x, y, z in _GRID.findall(details)}
    return counts.get("grid", ABSENT), counts.get("block", ABSENT)


def _device_name(facts: Stats) -> str:
    name = facts.get("device_type_string") or facts.get("gpu_device_name") or ""
    return str(name)


_INSTRUCTION = re.compile(r"= .*? copy-(?P<part>start|done)\(", re.DOTALL)
_SHAPE = re.compile(
    r"(?P<type>[a-z]+\d*)(?:e\dm\d\w*)?\[(?P<sizes>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?"
)
_SPACE = re.compile(r"S\((\d+)\)")
_HOST = "5"
_BITS = re.compile(r"\d+")
_BYTES = {"pred": 1}


def tpu_copy(instruction: str, *, itself: bool) -> tuple[str, int] | None:
    """Name and size in bytes of an asynchronous copy; None for another instruction.

    Args:
        instruction: the text of an HLO instruction.
        itself: whether the event is the copy, and not what issues or awaits it: only then does it
            have a size, so that no byte counts twice.

    >>> tpu_copy("%c = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0:S(5)}, u32[]) %s)", itself=False)
    ('Memcpy HtoD', -1)
    """
    found = _INSTRUCTION.search(instruction)
    if found is None:
        return None
    # `copy-start` has both shapes in its result, `copy-done` in its operand.
    both = instruction if found["part"] == "start" else instruction[found.end() :]
    shapes = _SHAPE.finditer(both, both.find("("))
    written, read = next(shapes, None), next(shapes, None)
    if written is None or read is None:
        return None
    ends = "to".join("H" if _space(one) == _HOST else "D" for one in (read, written))
    return f"Memcpy {ends}", _bytes(written) if itself else ABSENT


def _space(shape: re.Match[str]) -> str:
    found = _SPACE.search(shape["layout"] or "")
    return found[1] if found else "0"


def _bytes(shape: re.Match[str]) -> int:
    bits = _BITS.search(shape["type"])
    width = int(bits[0]) / 8 if bits else _BYTES.get(shape["type"], 0)
    count = 1
    for size in filter(None, shape["sizes"].split(",")):
        count *= int(size)
    return int(count * width) if width else ABSENT
