"""Memory shared by the workers of a run and what watches them: a region per stage, one writer each.

The last region is for threads without a stage. A region is a header, a ring of garbage collections
and as many rows of calls as were asked for, all 64-bit integers; times are nanoseconds of
`time.monotonic`. It is an anonymous file (memfd_create(2)): it has no name that could be left
behind, and goes with its last process.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.realtime.observe.watcher import HEADER_SLOTS, HeaderSlot

COLLECTION_ROWS = 2048
_SLOT_BYTES = 8
_CALLS = int(HeaderSlot.CALLS)


class CallRow(NamedTuple):
    """One call as its worker saw it; times in nanoseconds."""

    started: int
    ended: int
    cpu: int
    core_wait: int
    wake_wait: int
    collecting: int
    page_faults: int
    major_faults: int
    switches: int
    core: int
    fixed_work: int


class CollectionRow(NamedTuple):
    """One garbage collection; times in nanoseconds."""

    started: int
    ended: int
    generation: int


CALL_SLOTS = len(CallRow._fields)
COLLECTION_SLOTS = len(CollectionRow._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPlace:
    """Where a board is, so that another process of this run can open it."""

    pid: int
    descriptor: int
    regions: tuple[str, ...]
    rows: int
    """Calls of one stage that there is room for."""

    @property
    def region_bytes(self) -> int:
        """Bytes of one region, whole pages."""
        slots = HEADER_SLOTS + COLLECTION_ROWS * COLLECTION_SLOTS + self.rows * CALL_SLOTS
        return -(-slots * _SLOT_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE

    def open(self) -> BoardMemory:
        """Map the board into this process."""
        descriptor = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return BoardMemory(self, descriptor)


def make_board(regions: tuple[str, ...], rows: int) -> BoardMemory:
    """A new board with room for so many calls in each region."""
    descriptor = os.memfd_create("ridgeline-realtime", os.MFD_CLOEXEC)
    place = BoardPlace(pid=os.getpid(), descriptor=descriptor, regions=regions, rows=rows)
    os.ftruncate(descriptor, place.region_bytes * len(regions))
    return BoardMemory(place, descriptor)


class BoardMemory:
    """A board that is mapped into this process."""

    def __init__(self, place: BoardPlace, descriptor: int) -> None:
        self.place = place
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, place.region_bytes * len(place.regions))
        self._slots = memoryview(self._memory).cast("q")

    def region(self, name: str) -> Region:
        """A part of the board by its name."""
        start = self.place.regions.index(name) * self.place.region_bytes // _SLOT_BYTES
        end = start + self.place.region_bytes // _SLOT_BYTES
        return Region(self._slots[start:end], self.place.rows)

    def close(self) -> None:
        """Let the memory go, as far as this process held it."""
        self._slots.release()
        self._memory.close()
        os.close(self.descriptor)


class Region:
    """One part of a board."""

    def __init__(self, slots: memoryview[int], rows: int) -> None:
        self.slots = slots
        self._rows = rows
        self._calls_from = HEADER_SLOTS + COLLECTION_ROWS * COLLECTION_SLOTS

    def write_call(self, *row: int) -> None:
        """Add a call, its figures as `CallRow` has them; without room it is counted only."""
        count = self.slots[_CALLS]
        if count < self._rows:
            at = self._calls_from + count * CALL_SLOTS
            self.slots[at : at + CALL_SLOTS] = array("q", row)
        self.slots[_CALLS] = count + 1

    def write_collection(self, row: CollectionRow) -> None:
        """Add a garbage collection; the oldest makes room."""
        count = self.slots[HeaderSlot.COLLECTIONS]
        at = HEADER_SLOTS + count % COLLECTION_ROWS * COLLECTION_SLOTS
        self.slots[at : at + COLLECTION_SLOTS] = array("q", row)
        self.slots[HeaderSlot.COLLECTIONS] = count + 1

    @property
    def unwritten(self) -> int:
        """Calls for which there was no room."""
        return max(0, self.slots[HeaderSlot.CALLS] - self._rows)

    def calls(self) -> Iterator[CallRow]:
        """The calls, in order."""
        for number in range(min(self.slots[HeaderSlot.CALLS], self._rows)):
            at = self._calls_from + number * CALL_SLOTS
            yield CallRow(*self.slots[at : at + CALL_SLOTS])

    def collections(self) -> Iterator[CollectionRow]:
        """The collections that are still there, in no order."""
        for number in range(min(self.slots[HeaderSlot.COLLECTIONS], COLLECTION_ROWS)):
            at = HEADER_SLOTS + number * COLLECTION_SLOTS
            yield CollectionRow(*self.slots[at : at + COLLECTION_SLOTS])

    def release(self) -> None:
        """Let go of the memory, before the board is closed."""
        self.slots.release()
