"""Pieces as the bits of whole numbers, to ask one node about thousands of them at once.

A node holds a piece if it has enough of everything. So for every amount that is asked for there is
a number with the bits of those that ask for no more; what a node holds is what these numbers have
in common. They are made when an amount is first met, and kept within a bound of memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.wants import NodePiece, kinds_in

_KEPT_BYTES = 2**25
"""Memory for the numbers of one resource."""


class PieceBits:
    """Which of some pieces a node holds; the first piece is the lowest bit."""

    def __init__(self, pieces: Sequence[NodePiece]) -> None:
        self._gpus = _Thresholds([one.gpus for one in pieces])
        self._cpu_milli = _Thresholds([one.cpu_milli for one in pieces])
        self._memory_bytes = _Thresholds([one.memory_bytes for one in pieces])
        self._milli = _Thresholds([one.milli for one in pieces])
        self._of_no_gpu = any(not (one.gpus or one.milli or one.gpu_slice) for one in pieces)
        """Whether a node without a free GPU, or part of one, may hold any of them."""
        self._kinds = {(one.gpu_type, one.on_demand) for one in pieces}
        self._pieces = pieces
        self._admitted: dict[tuple[str, bool], int] = {}
        """By kind of GPU, and whether it is spot capacity: who may have such a node."""
        self._profiles = {
            profile: bits_of(np.array([one.gpu_slice == profile for one in pieces]))
            for profile in dict.fromkeys(one.gpu_slice for one in pieces)
            if profile
        }

    def held_by(self, room: NodeRoom) -> int:
        """Which pieces a node holds, as `NodeRoom.holds` says of one."""
        if not (room.whole or room.parts or room.grids or self._of_no_gpu):
            return 0
        held = self._gpus.up_to(room.whole)
        held &= self._cpu_milli.up_to(room.cpu_milli)
        held &= self._memory_bytes.up_to(room.memory_bytes)
        held &= self.admitted_by(room)
        if held and not room.whole:
            held &= self._milli.up_to(max(room.parts.values(), default=0))
        for profile, bits in self._profiles.items():
            if held & bits and not room.splits(profile):
                held &= ~bits
        return held

    def admitted_by(self, room: NodeRoom) -> int:
        """Which pieces may lie on a node by its kind of GPU and whether it is spot capacity."""
        key = (room.gpu_type, room.spot)
        if key not in self._admitted:
            good = {
                (kind, on_demand)
                for kind, on_demand in self._kinds
                if (not kind or room.gpu_type in kinds_in(kind)) and not (on_demand and room.spot)
            }
            self._admitted[key] = bits_of(
                np.array([(one.gpu_type, one.on_demand) in good for one in self._pieces])
            )
        return self._admitted[key]


class _Thresholds:
    """The bits of those who ask for no more than an amount, for every amount."""

    def __init__(self, asked: Sequence[int]) -> None:
        amounts = np.array(asked, dtype=np.int64)
        self._amounts = amounts
        self._met: list[int] = np.unique(amounts).tolist()
        self._bits: dict[int, int] = {0: 0}
        """By the number of amounts that are no larger."""
        self._most = max(16, 8 * _KEPT_BYTES // max(1, len(asked)))

    def up_to(self, amount: float) -> int:
        """The bits of those who ask for no more than an amount."""
        place = bisect_right(self._met, amount)
        found = self._bits.get(place)
        if found is None:
            if len(self._bits) >= self._most:
                self._bits = {0: 0}
            found = self._bits[place] = bits_of(self._amounts <= self._met[place - 1])
        return found


def bits_of(marks: NDArray[np.bool_]) -> int:
    """A whole number that has the bits of the places that are marked.

    >>> bits_of(np.array([True, False, True]))
    5
    """
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")


def marks_of(bits: int, count: int) -> NDArray[np.bool_]:
    """Which of so many places have their bit in a number.

    >>> marks_of(5, 4).tolist()
    [True, False, True, False]
    """
    packed = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(bool)
