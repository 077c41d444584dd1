"""Torch memory snapshots (`torch.cuda.memory._dump_snapshot`), a pickle read without running it.

A pickle is a program: its GLOBAL and REDUCE instructions import and call whatever the file names
(docs.python.org/3/library/pickle.html, "Restricting Globals"). A snapshot needs none of that: it is
dictionaries, lists, tuples, strings and numbers. So the reader here answers every request for a
global with an error, and a file that makes one is refused (docs/decisions, "Memory snapshots").

Structure (torch/csrc/cuda/memory_snapshot.cpp, torch/cuda/_memory_viz.py):
`segments` (what the allocator holds, with their blocks), `device_traces` (one list of events per
device, oldest first, as far back as the ring buffer reached).

    from ridgeline.trace.formats.memory_snapshot import read_snapshot
    snapshot = read_snapshot(Path("snapshot.pickle"))
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.overwriting import note_input
from ridgeline.trace.formats import FileFormat

NO_STACK = "(no stack recorded)"
MAKE_ONE = (
    "write one with torch.cuda.memory._record_memory_history() and "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle")'
)
_PICKLE_MAGIC = tuple(b"\x80" + bytes([protocol]) for protocol in (2, 3, 4, 5))
_BROKEN = (
    pickle.UnpicklingError, EOFError, TypeError, AttributeError, IndexError, KeyError, ValueError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip
"""What a damaged pickle raises in the standard library's reader."""


class MemoryBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a segment."""

    size: int
    """Bytes, as rounded by the allocator."""
    state: str
    """`active_allocated`, `active_pending_free` (a stream still uses it) or `inactive`."""
    address: int | None = None
    """Absent in snapshots before torch 2.1: blocks then lie one after the other."""
    requested_size: int | None = None
    """Bytes that were asked for."""
    frames: Any = ()
    """The call stack, innermost frame first. One that many events share stays one object."""

    @property
    def active(self) -> bool:
        """Does somebody hold it?"""
        return self.state.startswith("active")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What one cudaMalloc (or one mapping of an expandable segment) brought."""

    device: int
    address: int
    total_size: int
    blocks: list[MemoryBlock]
    stream: int = 0
    segment_type: str = ""
    """`small` (blocks up to 1 MiB), `large`."""
    is_expandable: bool = False


class AllocatorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the allocator's history."""

    action: str
    """`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `oom`, …"""
    size: int = 0
    addr: int = 0
    stream: int = 0
    time_us: float = 0.0  # torch's own key
    frames: Any = ()
    device_free: int | None = None
    """Free bytes of the device, on `oom`."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A memory snapshot as torch wrote it; keys that torch adds later are left unread."""

    segments: list[Segment]
    device_traces: list[list[AllocatorEvent]] = []


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers and scalars; a global, or a persistent object, ends the reading."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _GlobalFound(f"{module}.{name}")

    def persistent_load(self, identifier: object) -> NoReturn:
        raise _GlobalFound(f"persistent object {identifier!r:.40}")


class _GlobalFound(Exception):
    """The pickle asked for something that could run."""


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot; nothing that the file says is ever imported or called.

    Raises:
        InputError: not there, not a pickle, one that asks for code, or not a memory snapshot.
    """
    content = read_plain_pickle(path)
    if not isinstance(content, dict) or "segments" not in content:
        found = f"a {type(content).__name__}"
        raise InputError(f"{path}: {found} without `segments`, no memory snapshot; {MAKE_ONE}")
    try:
        return msgspec.convert(content, Snapshot)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a torch memory snapshot: {error}; {MAKE_ONE}") from None


def read_plain_pickle(path: Path) -> object:
    """The containers and scalars of a pickle; a global in it is an error."""
    note_input(path)
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _GlobalFound as found:
        raise InputError(
            f"{path}: asks for {found}, so it could run code; a memory snapshot is plain data and "
            "nothing else is read"
        ) from None
    except _BROKEN as error:
        raise InputError(
            f"{path}: not a whole pickle ({type(error).__name__}); {MAKE_ONE}"
        ) from None


_NODE = re.compile(r"::autograd::(?:\w+::)*(\w+)::apply\(")
"""A node of autograd's graph, of which every backward function is one."""
_OPERATOR = re.compile(r"^at::_ops::(?!empty)(\w+?)_?::(?:call|redispatch)\(")
"""An operator as the dispatcher calls it; `empty` only asks for its result's memory."""


def call_site(frames: Iterable[Any]) -> str:
    """The line of the user's own code in a stack: `file:line function`.

    The first Python frame outside torch; where there is none, the first Python frame. Threads of
    autograd have none: there the node of the graph, else the operator, else any frame.

    >>> torch = {"filename": "/x/site-packages/torch/nn/linear.py", "line": 9, "name": "forward"}
    >>> own = {"filename": "/home/me/train.py", "line": 12, "name": "step"}
    >>> call_site([torch, own])
    '/home/me/train.py:12 step'
    >>> call_site([])
    '(no stack recorded)'
    >>> gather = {"filename": "??", "name": "torch::unwind::unwind()"}
    >>> node = {"filename": "??", "name": "torch::autograd::generated::MmBackward0::apply(void)"}
    >>> call_site([gather, node])
    'autograd MmBackward0'
    """
    python: str | None = None
    any_frame: str | None = None
    node: str | None = None
    operator: str | None = None
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        file, name = str(frame.get("filename", "")), str(frame.get("name", ""))
        text = f"{file}:{frame.get('line', 0)} {name}"
        if file.endswith(".py"):
            if "/torch/" not in file and "\\torch\\" not in file:
                return text
            python = python or text
        any_frame = any_frame or (name or text)
        if (found := _NODE.search(name)) is not None:
            node = node or f"autograd {found[1]}"
        elif (found := _OPERATOR.search(name)) is not None:
            operator = operator or f"aten::{found[1]}"
    return python or node or operator or any_frame or NO_STACK


def _refuse(path: Path, details: bool) -> NoReturn:  # noqa: ARG001 - a format's signature
    raise InputError(f"{path}: a memory snapshot, no trace; ask `ridgeline trace memory`")


FORMAT = FileFormat(
    name="memory snapshot",
    sniff=lambda path, start: path.suffix in {".pickle", ".pkl"} or start.startswith(_PICKLE_MAGIC),
    read=_refuse,
)
