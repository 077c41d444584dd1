"""The optimizer's state in a file on disk, in memory only while its parameters are updated.

    portion      1       2       3
    disk       read    read  write  read  write  write
    update             ━━━━━━        ━━━━━        ━━━━━

The state of a step is read and written once, a portion of the parameters after another, in two
windows of memory: while one is updated, the other is filled or emptied (Rajbhandari et al.,
"ZeRO-Infinity", arXiv 2104.07857, sections 5.1.1 and 6.3). So a step cannot be faster than bytes
of state over the disk's bandwidth, both ways. What is read next step was evicted by then, were it
left to the page cache: reads and writes go past it where the file system permits that.

The file has no name: its room is taken before the first step and free again when the process ends,
however it ends. Between steps the state's tensors are views of the file, which a checkpoint reads
and loads as any other tensor.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ridgeline import quantity
from ridgeline.cost.disk_state import PORTION_BYTES, WINDOWS
from ridgeline.errors import InputError, RidgelineError, in_words

_PAGE = 4096
_BLOCK = 2**26
"""The most that one call reads or writes; the kernel takes below 2 GiB."""
_SMALL = 1024
"""Elements of a state that stays in memory: counters, and what a rule has once a parameter."""

States = Mapping[Tensor, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where in the file the states of one parameter lie, `bytes` each."""

    start: int
    bytes: int
    room: int
    count: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Parameters whose states lie side by side in the file, and are moved together."""

    parameters: tuple[nn.Parameter, ...]
    start: int
    bytes: int


class DiskFile:
    """A nameless file of fixed size, read and written past the page cache where that can be."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Take the room of the whole file.

        Raises:
            InputError: The folder is none, cannot be written to, or has no room.
        """
        if not folder.is_dir():
            raise InputError(f"memory.offload_path {folder}: no such folder; make it")
        try:
            self._descriptor, self.direct = _nameless(folder)
            os.posix_fallocate(self._descriptor, 0, size_bytes)
            self._map = mmap.mmap(self._descriptor, size_bytes)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise InputError(f"memory.offload_path {folder}: {in_words(error)}") from None
            free = quantity.memory(shutil.disk_usage(folder).free)
            raise InputError(
                f"memory.offload_path {folder}: the optimizer's state of this rank takes"
                f" {quantity.memory(size_bytes)} and {free} are free; make room, or name another"
                " disk"
            ) from None

    def tensor(self, place: int, like: Tensor) -> Tensor:
        """A view of the file that is a tensor."""
        count = like.numel()
        return torch.frombuffer(self._map, dtype=like.dtype, count=count, offset=place).view(
            like.shape
        )

    def read(self, place: int, window: memoryview) -> None:
        """Fill a window from a place on."""
        self._whole(os.preadv, place, window)

    def write(self, place: int, window: memoryview) -> None:
        """Write a window to a place."""
        self._whole(os.pwritev, place, window)

    def _whole(self, move: Any, place: int, window: memoryview) -> None:
        done = 0
        while done < len(window):
            moved = move(self._descriptor, [window[done : done + _BLOCK]], place + done)
            if moved == 0:
                raise OSError(errno.EIO, "the file of the optimizer's state ends early")
            done += moved

    def forget(self) -> None:
        """Let go of the pages that were looked at through views; they stay in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class DiskState:
    """Keeps the states of an optimizer in a file, and brings those of a portion into memory.

    Args:
        folder: On the disk.
        groups: Of each group its parameters, and how many tensors of a parameter's shape the rule
            keeps for each.
        device: Where the update is computed.
    """

    def __init__(
        self,
        folder: Path,
        groups: Sequence[tuple[Sequence[nn.Parameter], int]],
        device: torch.device,
    ) -> None:
        self._slots: dict[nn.Parameter, _Slot] = {}
        self._portions: list[list[Portion]] = []
        self.size_bytes = 0
        for parameters, count in groups:
            self._portions.append(list(self._divided(parameters, count)))
        self.file = DiskFile(folder, max(self.size_bytes, _PAGE))
        self._device = device
        largest = max((one.bytes for of in self._portions for one in of), default=0)
        self._windows = [_aligned(largest, device) for _ in range(WINDOWS)]
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="optimizer-state")
        self.moved_bytes = 0
        self.busy_seconds = 0.0
        """Time for which the disk was read or written."""

    def portions(self, group: int) -> Sequence[Portion]:
        """A group's parameters, in the order in which they are updated."""
        return self._portions[group]

    def at_hand(self, portions: Sequence[Portion], states: States) -> Iterator[Portion]:
        """Each portion in turn, with its states in memory until the next is asked for.

        Raises:
            RidgelineError: The disk could not be read or written.
        """
        self.file.forget()
        writes: list[Future[None]] = []
        try:
            coming = self._fetched(portions, 0, states)
            for number, portion in enumerate(portions):
                coming.result()
                if number >= WINDOWS:  # what has no state yet was not read behind this write
                    writes[number - WINDOWS].result()
                window = self._windows[number % WINDOWS]
                self._take(portion, states, window)
                if number + 1 < len(portions):
                    coming = self._fetched(portions, number + 1, states)
                yield portion
                self._put(portion, states, window)
                writes.append(self._disk.submit(self._moved, self.file.write, portion, window))
            for one in writes:
                one.result()
        except OSError as error:
            raise RidgelineError(
                f"memory.offload_path: {in_words(error)}; the same command goes on from the last"
                " checkpoint"
            ) from None

    def _divided(self, parameters: Sequence[nn.Parameter], count: int) -> Iterator[Portion]:
        # By whole sizes, not by shards: a rule that exchanges matrices meets the same portions on
        # every rank.
        some: list[nn.Parameter] = []
        start, whole = self.size_bytes, 0
        for parameter in parameters:
            inside = _local(parameter)
            each = inside.numel() * inside.element_size()
            room = -(-each // _PAGE) * _PAGE
            self._slots[parameter] = _Slot(self.size_bytes, each, room, count)
            self.size_bytes += room * count
            some.append(parameter)
            whole += parameter.numel() * inside.element_size() * count
            if whole >= PORTION_BYTES:
                yield Portion(tuple(some), start, self.size_bytes - start)
                some, start, whole = [], self.size_bytes, 0
        if some:
            yield Portion(tuple(some), start, self.size_bytes - start)

    def _fetched(self, portions: Sequence[Portion], number: int, states: States) -> Future[None]:
        """A read under way; of what has no state yet, none."""
        if number >= len(portions) or not any(states.get(p) for p in portions[number].parameters):
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        window = self._windows[number % WINDOWS]
        return self._disk.submit(self._moved, self.file.read, portions[number], window)

    def _moved(self, move: Any, portion: Portion, window: Tensor) -> None:
        began = perf_counter()
        move(portion.start, memoryview(window.numpy())[: portion.bytes])
        self.busy_seconds += perf_counter() - began
        self.moved_bytes += portion.bytes

    def _take(self, portion: Portion, states: States, window: Tensor) -> None:
        """Let states be what the window has of them."""
        for state, key, place in self._places(portion, states):
            here = _view(window, place - portion.start, _local(state[key]))
            _replace(state, key, here.to(self._device, non_blocking=True))

    def _put(self, portion: Portion, states: States, window: Tensor) -> None:
        """Bring new states into the window, and let them be what the file has of them."""
        for state, key, place in self._places(portion, states):
            now = _local(state[key])
            here = _view(window, place - portion.start, now)
            if here.data_ptr() != now.data_ptr():
                here.copy_(now)
            _replace(state, key, self.file.tensor(place, now))

    def _places(
        self, portion: Portion, states: States
    ) -> Iterator[tuple[dict[str, Any], str, int]]:
        for parameter in portion.parameters:
            slot, place = self._slots[parameter], self._slots[parameter].start
            state = states.get(parameter, {})
            for key, value in list(state.items()):
                if not slot.count or not isinstance(value, Tensor):
                    continue
                inside = _local(value)
                if inside.numel() < _SMALL:
                    continue
                assert inside.numel() * inside.element_size() == slot.bytes
                yield state, key, place
                place += slot.room


def _nameless(folder: Path) -> tuple[int, bool]:
    """A descriptor of a new file without a name, and whether it goes past the page cache."""
    plain, name = tempfile.mkstemp(dir=folder, prefix=".ridgeline-optimizer-")
    try:
        os.posix_fallocate(plain, 0, _PAGE)
        # Some file systems refuse the flag, some the first read.
        with suppress(OSError, AttributeError):
            direct = os.open(name, os.O_RDWR | os.O_DIRECT)
            try:
                with mmap.mmap(-1, _PAGE) as page:
                    os.preadv(direct, [page], 0)
            except OSError:
                os.close(direct)
                raise
            os.close(plain)
            return direct, True
        return plain, False
    finally:
        os.unlink(name)


def _aligned(size_bytes: int, device: torch.device) -> Tensor:
    """Memory that begins with a page, as direct reads want it; pinned for a GPU."""
    pinned = device.type == "cuda"
    room = torch.empty(size_bytes + _PAGE, dtype=torch.uint8, pin_memory=pinned)
    return room[-room.data_ptr() % _PAGE :][:size_bytes]


def _view(window: Tensor, place: int, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return window[place : place + size].view(like.dtype).view(like.shape)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _replace(state: dict[str, Any], key: str, inside: Tensor) -> None:
    """Let a state consist of another tensor; a DTensor keeps its placement."""
    value = state[key]
    if isinstance(value, DTensor):
        value._local_tensor = inside
    else:
        state[key] = inside
