"""Bank conflicts, sectors, barriers and paths of warps, seen by numba's CUDA simulator.

The simulator runs every thread of a block by itself, so what a warp does together is put together
afterwards: lanes that stand at the same instruction of the kernel, between the same two barriers
and for the same time there, are one request. Then

    passes of a shared request  = the most distinct words that one of 32 banks (4 bytes wide) holds
    sectors of a global request = distinct 32-byte pieces of memory; arrays begin at a sector
    paths of a warp             = distinct sequences of accesses among its lanes, barrier to barrier

The simulator knows no shuffles; `shfl_down_sync` is added to it, for warps that all take part.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeAlias

import numpy as np

from ridgeline.patches import Undo, in_reverse, patch

LANES = 32
_ALL = 0xFFFFFFFF
_BANKS = 32
_BANK_BYTES = 4
_SECTOR_BYTES = 32
Instruction: TypeAlias = tuple[int | None, ...]
"""The place of an expression in the source: first and last line, first and last column."""


@dataclass(frozen=True, slots=True)
class _Touch:
    """One access of one thread."""

    space: str
    kind: str
    block: tuple[int, ...]
    thread: int
    request: tuple[int, Instruction, int]
    """Barriers passed, the instruction, and how often the thread stood there since."""
    address: int
    array: int
    """Which array it is, by its place in the host's memory."""


@dataclass
class Warps:
    """Everything that the launches of one call have touched."""

    touches: list[_Touch] = field(default_factory=list)
    epochs: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Block → barriers that its threads have passed."""
    threads: set[tuple[tuple[int, ...], int]] = field(default_factory=set)

    def requests(self, space: str, kind: str = "") -> list[list[int]]:
        """The addresses of each request of a warp; `kind`: `load`, `store` or both."""
        found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for one in self.touches:
            if one.space == space and kind in ("", one.kind):
                found[one.block, one.thread // LANES, one.request].append(one.address)
        return list(found.values())

    def passes(self, kind: str = "") -> int:
        """Passes over the banks that all requests to shared memory need together."""
        return sum(_passes(one) for one in self.requests("shared", kind))

    def passes_of_a_request(self, kind: str = "") -> float:
        """Passes of one request on average; 1 is free of bank conflicts."""
        count = len(self.requests("shared", kind))
        return self.passes(kind) / count if count else 0.0

    def sectors_of_a_request(self, kind: str) -> float:
        """Sectors that a request to global memory touches on average."""
        found = self.requests("global", kind)
        count = sum(len({place // _SECTOR_BYTES for place in one}) for one in found)
        return count / len(found) if found else 0.0

    @property
    def numbers_read(self) -> int:
        """Places of global memory that threads read."""
        loads = (one for one in self.touches if (one.space, one.kind) == ("global", "load"))
        return len({(one.array, one.address) for one in loads})

    @property
    def barriers(self) -> int:
        """Barriers of a block, the most that any passes."""
        return max(self.epochs.values(), default=0)

    @property
    def races(self) -> int:
        """Words of shared memory that one thread writes and another touches, no barrier between."""
        touched: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        written: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        for one in self.touches:
            if one.space == "shared":
                place = (one.block, one.request[0], one.array, one.address)
                touched[place].add(one.thread)
                if one.kind == "store":
                    written[place].add(one.thread)
        return sum(len(touched[place]) > 1 for place in written)

    @property
    def divergent(self) -> int:
        """How often a warp's lanes went apart between two barriers."""
        return sum(count > 1 for count in self._paths())

    @property
    def most_paths(self) -> int:
        """Distinct paths of a warp between two barriers, where there are most."""
        return max(self._paths(), default=1)

    def _paths(self) -> Iterable[int]:
        steps: dict[tuple[Any, ...], list[Instruction]] = defaultdict(list)
        for one in self.touches:
            epoch, instruction, _ = one.request
            steps[one.block, epoch, one.thread].append(instruction)
        warps: dict[tuple[Any, ...], set[tuple[Any, ...]]] = defaultdict(set)
        for block, thread in self.threads:
            for epoch in range(self.epochs.get(block, 0) + 1):
                path = tuple(steps.get((block, epoch, thread), ()))
                warps[block, epoch, thread // LANES].add(path)
        return [len(one) for one in warps.values()]


def _passes(places: list[int]) -> int:
    banks: dict[int, set[int]] = defaultdict(set)
    for place in places:
        word = place // _BANK_BYTES
        banks[word % _BANKS].add(word)
    return max(len(words) for words in banks.values())


class _Seen:
    """The warps of the call that is being watched."""

    now: Warps | None = None
    idle = False
    """Whether nothing is written to global memory."""


def watched(call: Callable[..., Any], *given: Any) -> tuple[Any, Warps]:
    """What a call returns, and what the warps of its launches touched."""
    _Seen.now = Warps()
    try:
        return call(*given), _Seen.now
    finally:
        _Seen.now = None


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """Write nothing to global memory, as long as the block does."""
    _Seen.idle = True
    try:
        yield
    finally:
        _Seen.idle = False


def install() -> Undo:
    """Watch the simulator of this process, and give it a shuffle."""
    return in_reverse(
        [
            patch(
                "numba.cuda.simulator.cudadrv.devicearray:FakeWithinKernelCUDAArray.__getitem__",
                _loaded,
            ),
            patch(
                "numba.cuda.simulator.cudadrv.devicearray:FakeWithinKernelCUDAArray.__setitem__",
                _stored,
            ),
            patch("numba.cuda.simulator.kernelapi:FakeCUDAShared.array", _shared),
            patch("numba.cuda.simulator.kernelapi:FakeCUDAModule.__init__", _with_shuffles),
            patch("numba.cuda.simulator.kernel:BlockThread.syncthreads", _counted),
        ]
    )


class SharedArray:
    """An array in shared memory that notes who touches it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, index: Any) -> Any:
        _note("shared", "load", self.array, index, _instruction(sys._getframe(1)))
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        _note("shared", "store", self.array, index, _instruction(sys._getframe(1)))
        self.array[index] = value


def _loaded(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(array: Any, index: Any) -> Any:
        _note("global", "load", array._item._ary, index, _instruction(sys._getframe(1)))
        return original(array, index)

    return get


def _stored(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(array: Any, index: Any, value: Any) -> None:
        _note("global", "store", array._item._ary, index, _instruction(sys._getframe(1)))
        if not _Seen.idle:
            original(array, index, value)

    return put


def _shared(original: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.Lock()

    def array(memory: Any, shape: Any, dtype: Any) -> Any:
        # The simulator tells arrays apart by lines, so that two of one line are the same.
        frame = sys._getframe(1)
        with lock:
            known = memory._allocations
            key = (frame.f_code.co_filename, _instruction(frame))
            if key not in known:
                made = np.zeros_like(original(memory, shape, dtype))
                if made.dtype.kind == "f":
                    made.fill(np.nan)  # as memory is that nobody wrote
                known[key] = made
            return SharedArray(known[key])

    return array


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    def syncthreads(thread: Any) -> None:
        if _Seen.now is not None:
            state = _state(thread)
            state["epoch"] += 1
            state["times"].clear()
            block = tuple(thread.blockIdx)
            known = _Seen.now.epochs
            known[block] = max(known.get(block, 0), state["epoch"])
        original(thread)

    syncthreads.original = original  # type: ignore[attr-defined]
    return syncthreads


def _with_shuffles(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(module: Any, *given: Any, **named: Any) -> None:
        original(module, *given, **named)
        exchange: dict[tuple[Any, ...], Any] = {}

        def shfl_down_sync(mask: int, value: Any, delta: int) -> Any:
            if mask & _ALL != _ALL:
                raise ValueError("shfl_down_sync here takes whole warps: the mask 0xFFFFFFFF")
            thread: Any = threading.current_thread()
            block, own = tuple(thread.blockIdx), thread.thread_id
            wait = type(thread).syncthreads.original
            exchange[block, own] = value
            wait(thread)
            far = own + delta
            found = exchange.get((block, far), value) if far // LANES == own // LANES else value
            wait(thread)
            return found

        module.shfl_down_sync = shfl_down_sync

    return start


@functools.cache
def _positions(code: CodeType) -> list[Instruction]:
    return list(code.co_positions())


def _instruction(frame: FrameType) -> Instruction:
    """Where a frame stands, by its source: offsets change as Python specialises a function."""
    return _positions(frame.f_code)[frame.f_lasti // 2]


def _state(thread: Any) -> dict[str, Any]:
    state: dict[str, Any] | None = getattr(thread, "seen", None)
    if state is None:
        state = {"epoch": 0, "times": defaultdict(int)}
        thread.seen = state
    return state


def _note(space: str, kind: str, array: np.ndarray, index: Any, instruction: Instruction) -> None:
    if _Seen.now is None:
        return
    thread: Any = threading.current_thread()
    state = _state(thread)
    block = tuple(thread.blockIdx)
    _Seen.now.threads.add((block, thread.thread_id))
    places = index if isinstance(index, tuple) else (index,)
    if any(int(at) < 0 for at in places):
        raise IndexError(f"{index} lies before the array, where a GPU reads or writes all the same")
    offset = sum(int(at) * step for at, step in zip(places, array.strides, strict=False))
    times = state["times"]
    times[instruction] += 1
    request = (state["epoch"], instruction, times[instruction])
    where = int(array.__array_interface__["data"][0])
    _Seen.now.touches.append(_Touch(space, kind, block, thread.thread_id, request, offset, where))
