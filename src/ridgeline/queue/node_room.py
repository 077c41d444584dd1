"""What is free on one node: whole GPUs, parts of GPUs that are shared, cores, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.mig_slots import MigGrid
from ridgeline.queue.wants import NodePiece, kinds_in

WHOLE = 1000
UNCOUNTED = 2**60
"""Cores or memory of a node that does not say how much it has."""


@dataclass(slots=True, kw_only=True)
class NodeRoom:
    """What is free on one node; of a shared GPU only its parts, until the last one is free."""

    whole: int
    cpu_milli: int
    memory_bytes: int
    gpu_type: str = ""
    spot: bool = False
    grid: MigGrid | None = None
    """How its GPUs can be split by MIG; none: they cannot."""
    parts: dict[int, int] = field(default_factory=dict)
    """Thousandths that are free of a GPU that jobs share, by its number."""
    grids: dict[int, int] = field(default_factory=dict)
    """Slots that are taken, as bits, of a GPU that is split by MIG."""
    numbered: int = 0
    """The next number of a GPU that is shared or split."""

    def copy(self) -> NodeRoom:
        """A copy of the room, to try a placement on."""
        return NodeRoom(
            whole=self.whole, cpu_milli=self.cpu_milli, memory_bytes=self.memory_bytes,
            gpu_type=self.gpu_type, spot=self.spot, grid=self.grid, parts=dict(self.parts),
            grids=dict(self.grids), numbered=self.numbered,
        )  # fmt: skip

    def holds(self, piece: NodePiece) -> bool:
        """Whether the node has room for it."""
        if (
            piece.gpus > self.whole
            or piece.cpu_milli > self.cpu_milli
            or piece.memory_bytes > self.memory_bytes
            or (piece.gpu_type and self.gpu_type not in kinds_in(piece.gpu_type))
            or (piece.on_demand and self.spot)
        ):
            return False
        if piece.gpu_slice:
            return self._slot_for(piece.gpu_slice) is not None
        return not piece.milli or bool(self.whole) or self._part_for(piece.milli) is not None

    def splits(self, profile: str) -> bool:
        """Whether a GPU has slots for a MIG instance, or can be split into one."""
        return self._slot_for(profile) is not None

    def pieces_that_fit(self, piece: NodePiece) -> int:
        """How many times it holds a piece of one whole GPU."""
        if not self.holds(piece):
            return 0
        most = self.whole
        if piece.cpu_milli:
            most = min(most, self.cpu_milli // piece.cpu_milli)
        if piece.memory_bytes:
            most = min(most, self.memory_bytes // piece.memory_bytes)
        return most

    def free_gpus(self) -> float:
        """All that is free, parts as parts."""
        parts = sum(self.parts.values()) / WHOLE
        if self.grid is None:
            return self.whole + parts
        slices = self.grid.memory_slices
        taken = sum(one.bit_count() for one in self.grids.values())
        return self.whole + parts + len(self.grids) - taken / slices

    def usable(self, piece: NodePiece) -> float:
        """How much of what is free a task like this could be put on."""
        if not self.holds(piece):
            return 0.0
        if piece.gpu_slice:
            assert self.grid is not None
            slices = self.grid.memory_slices
            fitting = [one for one in self.grids.values()
                       if self.grid.slots_for(piece.gpu_slice, one)]  # fmt: skip
            return self.whole + sum(slices - one.bit_count() for one in fitting) / slices
        if piece.milli:
            enough = [one for one in self.parts.values() if one >= piece.milli]
            return self.whole + sum(enough) / WHOLE
        return float(self.whole) if piece.gpus else 0.0

    def put(self, piece: NodePiece, gpu: int | None = None) -> tuple[int, int]:
        """Take a piece that it holds; which shared GPU, and which of its slots.

        Args:
            piece: What is asked for.
            gpu: The number of the GPU for a part of one, shared or split already or not; None: the
                fullest that is shared, the first that is split.
        """
        self.cpu_milli -= piece.cpu_milli
        self.memory_bytes -= piece.memory_bytes
        self.whole -= piece.gpus
        if piece.gpu_slice:
            return self._split(piece.gpu_slice, gpu)
        return (self._share(piece.milli, gpu), 0) if piece.milli else (-1, 0)

    def give(self, piece: NodePiece, at: tuple[int, int]) -> None:
        """Take back what a piece held."""
        self.cpu_milli += piece.cpu_milli
        self.memory_bytes += piece.memory_bytes
        self.whole += piece.gpus
        number, slots = at
        if piece.gpu_slice:
            self.grids[number] &= ~slots
            if not self.grids[number]:
                del self.grids[number]
                self.whole += 1
        elif piece.milli:
            self.parts[number] += piece.milli
            if self.parts[number] == WHOLE:
                del self.parts[number]
                self.whole += 1

    def _part_for(self, milli: int) -> int | None:
        """The shared GPU with least left that is enough."""
        enough = [(free, number) for number, free in self.parts.items() if free >= milli]
        return min(enough)[1] if enough else None

    def _share(self, milli: int, number: int | None) -> int:
        if number is None:
            number = self._part_for(milli)
        if number is None:
            number, self.numbered = self.numbered, self.numbered + 1
        if number not in self.parts:
            self.whole -= 1
            self.parts[number] = WHOLE
        self.parts[number] -= milli
        return number

    def _slot_for(self, profile: str) -> tuple[int, int] | None:
        """A split GPU (or -1: one that is whole) and the slots that the profile would take."""
        if self.grid is None:
            return None
        for number, taken in self.grids.items():
            slots = self.grid.slots_for(profile, taken)
            if slots:
                return number, slots
        slots = self.grid.slots_for(profile, 0)
        return (-1, slots) if slots and self.whole else None

    def able(self, piece: NodePiece, number: int) -> bool:
        """Whether a shared or split GPU can take a part more."""
        if not piece.gpu_slice:
            return self.parts.get(number, 0) >= piece.milli
        taken = self.grids.get(number)
        return (
            taken is not None
            and self.grid is not None
            and bool(self.grid.slots_for(piece.gpu_slice, taken))
        )

    def _split(self, profile: str, number: int | None) -> tuple[int, int]:
        found, grid = self._slot_for(profile), self.grid
        assert found is not None, "asked to put what it does not hold"
        assert grid is not None, "which only nodes with a grid hold"
        if number is None:
            number = found[0]
            if number < 0:
                number, self.numbered = self.numbered, self.numbered + 1
        if number not in self.grids:
            self.whole -= 1
            self.grids[number] = 0
        slots = grid.slots_for(profile, self.grids[number])
        self.grids[number] |= slots
        return number, slots


class RoomTable:
    """Nodes as columns, to ask of all of them about one piece."""

    def __init__(self, rooms: Sequence[NodeRoom]) -> None:
        self._whole = np.zeros(len(rooms), dtype=np.int64)
        self._cpu_milli = np.zeros(len(rooms), dtype=np.int64)
        self._memory_bytes = np.zeros(len(rooms), dtype=np.int64)
        self._spot = np.zeros(len(rooms), dtype=bool)
        self._gpu_type = np.array([one.gpu_type for one in rooms])
        self._most_milli = np.zeros(len(rooms), dtype=np.int64)
        self._amounts = np.zeros((3, len(rooms)))
        self._of_type: dict[str, NDArray[np.bool_]] = {}
        for place, room in enumerate(rooms):
            self.note(place, room)

    def note(self, place: int, room: NodeRoom) -> None:
        """Write down what a node has now."""
        self._whole[place] = room.whole
        self._cpu_milli[place] = room.cpu_milli
        self._memory_bytes[place] = room.memory_bytes
        self._spot[place] = room.spot
        self._amounts[:, place] = room.free_gpus(), room.cpu_milli, room.memory_bytes
        self._most_milli[place] = max(room.parts.values(), default=0)

    def holding(self, piece: NodePiece) -> NDArray[np.bool_]:
        """Which nodes hold a piece; of a MIG slice, which could but for its slots."""
        held = (
            (self._whole >= piece.gpus)
            & (self._cpu_milli >= piece.cpu_milli)
            & (self._memory_bytes >= piece.memory_bytes)
        )
        if piece.gpu_type or piece.on_demand:
            held &= self.admitting(piece)
        if piece.milli:
            held &= (self._whole > 0) | (self._most_milli >= piece.milli)
        return held

    def admitting(self, piece: NodePiece) -> NDArray[np.bool_]:
        """Which nodes have GPUs of a piece's kind, and are not spot where it does not want that."""
        if piece.gpu_type not in self._of_type:
            kinds = kinds_in(piece.gpu_type)
            every = np.ones(len(self._gpu_type), dtype=bool)
            self._of_type[piece.gpu_type] = np.isin(self._gpu_type, kinds) if kinds else every
        found = self._of_type[piece.gpu_type]
        return found & ~self._spot if piece.on_demand else found

    def free_amounts(self) -> NDArray[np.float64]:
        """GPUs with their free parts, cores and memory of each node, as they are from now on."""
        return self._amounts

    def times(self, piece: NodePiece) -> NDArray[np.int64]:
        """How many times each node holds a piece of one whole GPU."""
        most = self._whole.copy()
        if piece.cpu_milli:
            most = np.minimum(most, self._cpu_milli // piece.cpu_milli)
        if piece.memory_bytes:
            most = np.minimum(most, self._memory_bytes // piece.memory_bytes)
        return most * self.holding(piece)
