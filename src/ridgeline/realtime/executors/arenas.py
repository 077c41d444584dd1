"""Memory that processes share, in slots that are used again and again.

An arena is a file without a name (`memfd_create(2)`): the kernel frees it with the last process
that has it open, so none is left behind, however the processes end, and no limit on /dev/shm holds
for it. The parent opens one per writer before it forks, and keeps the books: which slots exist,
who still reads which. The writer fills the slot that it is offered; where none is free or large
enough it makes the file longer, which after the first frames does not happen any more.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from ridgeline.errors import InputError

SMALLEST_SLOT_BYTES = 1 << 16
"""Slots are powers of two from here on, so that sizes that vary a little share them."""


class MemorySlot(msgspec.Struct, frozen=True, array_like=True):
    """A part of an arena, known to all processes by its numbers."""

    arena: int
    offset: int
    capacity_bytes: int


class Arena:
    """One writer's file; made before the fork, usable in every process.

    Args:
        number: Its place among the arenas of a run.
    """

    def __init__(self, number: int) -> None:
        if sys.platform != "linux":
            raise InputError(
                f"a process per stage needs Linux's memfd_create, and this is {sys.platform}; "
                "choose the executor inline or threads"
            )
        self.number = number
        self._file = os.memfd_create(f"ridgeline-arena-{number}")
        self._maps: dict[int, mmap.mmap] = {}

    def memory(self, slot: MemorySlot) -> mmap.mmap:
        """The slot's bytes in this process."""
        found = self._maps.get(slot.offset)
        if found is None:
            found = mmap.mmap(self._file, slot.capacity_bytes, offset=slot.offset)
            self._maps[slot.offset] = found
        return found

    def fitting(self, offered: MemorySlot | None, num_bytes: int) -> MemorySlot:
        """The slot that was offered, or a new one at the end of the file where that is too small.

        For the writer alone.
        """
        if offered is not None and offered.capacity_bytes >= num_bytes:
            return offered
        capacity = max(SMALLEST_SLOT_BYTES, 1 << (num_bytes - 1).bit_length())
        offset = os.fstat(self._file).st_size
        os.ftruncate(self._file, offset + capacity)
        return MemorySlot(self.number, offset, capacity)

    def close(self) -> None:
        """Give the memory back, once no process reads it and no array here points into it."""
        for part in self._maps.values():
            try:
                part.close()
            except BufferError:  # someone keeps a result; its memory goes with it
                continue
        self._maps = {}
        os.close(self._file)


class SlotBook:
    """The parent's books of slots: which are free, and who holds the others.

    A slot is held by the flow while a frame that lies in it is on its way, and by a worker while
    the stage's own state (the features of the frame before) points into it.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[MemorySlot]] = defaultdict(list)
        self._in_flow: set[MemorySlot] = set()
        self._kept_by: dict[str, frozenset[MemorySlot]] = {}

    def offer(self, arena: int) -> MemorySlot | None:
        """The slot that was freed last, whose memory is warmest; None: all are in use."""
        free = self._free[arena]
        return free.pop() if free else None

    def filled(self, slot: MemorySlot, offered: MemorySlot | None) -> None:
        """A frame lies in `slot` now, written by one that `offered` was given to.

        An offered slot that was too small is given up: no frame would fit into it again.
        """
        self._in_flow.add(slot)
        if (
            offered is not None
            and offered != slot
            and offered.capacity_bytes >= slot.capacity_bytes
        ):
            self._free[offered.arena].append(offered)

    def untouched(self, offered: MemorySlot | None) -> None:
        """Nothing was written into an offered slot."""
        if offered is not None:
            self._free[offered.arena].append(offered)

    def released(self, slot: MemorySlot) -> None:
        """The flow holds the slot's frame no more."""
        self._in_flow.discard(slot)
        self._free_if_unused((slot,))

    def kept(self, worker: str, slots: Iterable[MemorySlot]) -> None:
        """All slots that a worker's stage still points into; none: those before are let go."""
        before = self._kept_by.get(worker, frozenset())
        now = frozenset(slots)
        if now != before:
            self._kept_by[worker] = now
            self._free_if_unused(before - now)

    def _free_if_unused(self, slots: Iterable[MemorySlot]) -> None:
        for slot in slots:
            if slot in self._in_flow or any(slot in kept for kept in self._kept_by.values()):
                continue
            self._free[slot.arena].append(slot)
