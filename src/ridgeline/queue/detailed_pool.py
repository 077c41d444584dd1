"""Free GPUs on nodes that are told apart: by cores, memory, kind, place, and parts of a GPU.

Nodes are columns too, of which one comparison says where a piece fits; what was said of a piece is
kept until a node changes. Packing takes the node with the fewest whole GPUs free that holds a
piece, then the one with the fewest cores; `spread` the one with the most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.node_room import NodeRoom, RoomTable
from ridgeline.queue.pool import PlacementName
from ridgeline.queue.wants import Level, NodePiece, Wish


@dataclass(frozen=True, slots=True)
class Placed:
    """A piece on a node."""

    piece: NodePiece
    gpu: int
    """The number of the shared or split GPU; -1: it has whole ones, or none."""
    slots: int
    gpus: float
    """How many GPUs it is; a MIG instance is its part of the memory slices."""
    on: tuple[int, ...] = ()
    """The numbers of all its GPUs on the node, where a rule of placement tells them apart."""


DetailedHeld = list[tuple[int, Placed]]


class DetailedPool:
    """Nodes with rooms; `domains` says for each level which domain a node is in."""

    def __init__(
        self,
        rooms: Sequence[NodeRoom],
        domains: Mapping[Level, Sequence[int]],
        placement: PlacementName = "pack",
    ) -> None:
        self.rooms = list(rooms)
        self.placement = placement
        self.largest = max(1, *(room.whole for room in rooms))
        self.sizes = tuple(room.whole for room in rooms)
        self.gpus: float = sum(self.sizes)
        self.free: float = self.gpus
        self._domain_of = {level: np.asarray(one) for level, one in domains.items()}
        self._table = RoomTable(self.rooms)
        self._counted: dict[tuple[NodePiece, bool], NDArray[np.int64]] = {}
        """How many times each node holds a piece: 0 or 1 but for pieces of single GPUs."""
        self._slotted: dict[str, NDArray[np.bool_]] = {}
        """Which nodes have slots for a MIG profile."""
        self._gpus_of: dict[str, float] = {}
        self._order = np.array([self._rank(room) for room in self.rooms])
        self._closed: dict[int, NodeRoom] = {}
        self.touched: set[int] = set()
        """Nodes that changed since somebody looked and cleared it."""
        self.changes: list[int] = []
        """Nodes of which anything was taken or given back, one after the other."""

    def fits(self, wish: Wish) -> bool:
        """Whether a job could start now."""
        return has_room(wish, self)

    def gpus_of(self, profile: str) -> float:
        """The part of a GPU that a MIG instance is; 0: no node can be split so."""
        if profile not in self._gpus_of:
            grids = {id(room.grid): room.grid for room in self.rooms if room.grid}
            shares = [grid.share(profile) for grid in grids.values()] if profile else []
            self._gpus_of[profile] = max(shares, default=0.0)
        return self._gpus_of[profile]

    def take(self, wish: Wish) -> DetailedHeld:
        """Give a job that fits its pieces."""
        nodes = self._allowed(wish)
        held: DetailedHeld = []
        if wish.single is not None and not _compactly(wish, self, None):
            return self._scatter(wish.single, wish.gpus)
        for piece, times in wish.pieces():
            for _ in range(times):
                node = self._node_for(piece, nodes)
                held.append(self._put(node, piece))
        return held

    def take_at(self, node: int, piece: NodePiece) -> tuple[int, Placed]:
        """Give somebody a piece of a certain node, who had it before anything was asked."""
        return self._put(node, piece)

    def give(self, held: DetailedHeld) -> None:
        """Take back what a job held."""
        for node, placed in held:
            self.rooms[node].give(placed.piece, (placed.gpu, placed.slots))
            self.free += placed.gpus
            self._changed(node)

    def imagined(self) -> ImaginedRooms:
        """What is free now, to try what would be free."""
        return ImaginedRooms(self)

    def close(self, node: int) -> None:
        """Take a node out whose GPUs are all free: it has failed."""
        room = self.rooms[node]
        self._closed[node] = room
        self.free -= self.sizes[node]
        self.gpus -= self.sizes[node]
        self.rooms[node] = NodeRoom(whole=0, cpu_milli=-1, memory_bytes=-1)
        self._changed(node)

    def reopen(self, node: int) -> None:
        """Take a mended node back."""
        self.rooms[node] = self._closed.pop(node)
        self.free += self.sizes[node]
        self.gpus += self.sizes[node]
        self._changed(node)

    def counts(self, piece: NodePiece, *, single: bool = False) -> NDArray[np.int64]:
        """How many times each node holds a piece."""
        key = (piece, single)
        found = self._counted.get(key)
        if found is None:
            if single:
                found = self._table.times(piece)
            else:
                holding = self._table.holding(piece)
                found = (holding & self._slots(piece) if piece.gpu_slice else holding).astype(int)
            self._counted[key] = found
        return found

    def domains(self, level: Level) -> NDArray[np.int64]:
        """The domain that each node is in."""
        return self._domain_of[level]

    def admitting(self, piece: NodePiece) -> NDArray[np.bool_]:
        """Which nodes would hold a piece if all of them were free; of MIG, but for its slots."""
        return self._table.admitting(piece)

    def free_amounts(self) -> NDArray[np.float64]:
        """GPUs with their free parts, cores and memory that are free on each node."""
        return self._table.free_amounts()

    def _slots(self, piece: NodePiece) -> NDArray[np.bool_]:
        """Which nodes have slots for a MIG instance."""
        profile = piece.gpu_slice
        if profile not in self._slotted:
            self._slotted[profile] = np.array([room.splits(profile) for room in self.rooms])
        return self._slotted[profile]

    def _allowed(self, wish: Wish) -> NDArray[np.bool_] | None:
        """The nodes among which a job is to be placed; None: any."""
        if wish.level == "node":
            return None
        domain = self._domain_of[wish.level]
        having = _domains_with_room(wish, self, domain)
        if not len(having):
            return None
        free = np.bincount(domain, weights=np.array([one.whole for one in self.rooms]))
        return np.asarray(domain == having[int(free[having].argmin())])

    def _node_for(self, piece: NodePiece, nodes: NDArray[np.bool_] | None) -> int:
        holds = self.counts(piece) > 0
        if nodes is not None:
            holds = holds & nodes
        order = np.where(holds, self._order, np.inf)
        return int(order.argmin())

    def _put(self, node: int, piece: NodePiece, on: tuple[int, ...] = ()) -> tuple[int, Placed]:
        grid = self.rooms[node].grid
        gpu, slots = self.rooms[node].put(piece, on[0] if on else None)
        gpus = piece.gpus + piece.milli / 1000
        if grid is not None and slots:
            gpus = slots.bit_count() / grid.memory_slices
        placed = Placed(piece, gpu, slots, gpus, on)
        self.free -= placed.gpus
        self._changed(node)
        return node, placed

    def _scatter(self, single: NodePiece, gpus: int) -> DetailedHeld:
        """GPUs of as few nodes as will do: those with the most first, the last one the smallest."""
        held: DetailedHeld = []
        while gpus:
            times = self.counts(single, single=True)
            enough = np.flatnonzero(times >= gpus)
            node = int(enough[times[enough].argmin()]) if len(enough) else int(times.argmax())
            for _ in range(min(gpus, int(times[node]))):
                held.append(self._put(node, single))
                gpus -= 1
        return held

    def _changed(self, node: int) -> None:
        room = self.rooms[node]
        self.touched.add(node)
        self.changes.append(node)
        self._table.note(node, room)
        self._counted.clear()
        for profile, splits in self._slotted.items():
            splits[node] = room.splits(profile)
        self._order[node] = self._rank(room)

    def _rank(self, room: NodeRoom) -> float:
        """The order in which nodes are taken; a GPU that is shared already goes first."""
        shared = 0.5 if room.parts or room.grids else 0.0
        rank = room.whole - shared + min(room.cpu_milli, 10**9) * 1e-12
        return -rank if self.placement == "spread" else rank


class ImaginedRooms:
    """What would be free if jobs gave back what they hold."""

    def __init__(self, pool: DetailedPool) -> None:
        self._pool = pool
        self._rooms: dict[int, NodeRoom] = {}
        self._counted: dict[tuple[NodePiece, bool], NDArray[np.int64]] = {}
        self._stale: dict[tuple[NodePiece, bool], set[int]] = {}
        """Nodes that have changed since a piece was counted."""

    def fits(self, wish: Wish) -> bool:
        """Whether a job could start then."""
        return has_room(wish, self)

    def change(self, held: DetailedHeld, sign: int) -> None:
        """Add what a job holds, or take it away again."""
        for node, placed in held:
            room = self._rooms.get(node)
            if room is None:
                room = self._rooms[node] = self._pool.rooms[node].copy()
            if sign > 0:
                room.give(placed.piece, (placed.gpu, placed.slots))
            else:
                retake(room, placed)
            for stale in self._stale.values():
                stale.add(node)

    def domains(self, level: Level) -> NDArray[np.int64]:
        """The domain that each node is in."""
        return self._pool.domains(level)

    def counts(self, piece: NodePiece, *, single: bool = False) -> NDArray[np.int64]:
        """How many times each node would hold a piece."""
        key = (piece, single)
        if key not in self._counted:
            self._counted[key] = self._pool.counts(piece, single=single).copy()
            self._stale[key] = set(self._rooms)
        times = self._counted[key]
        for node in self._stale[key]:
            room = self._rooms[node]
            times[node] = room.pieces_that_fit(piece) if single else int(room.holds(piece))
        self._stale[key].clear()
        return times


def retake(room: NodeRoom, placed: Placed) -> None:
    """Give a piece the very place that it had."""
    piece = placed.piece
    room.cpu_milli -= piece.cpu_milli
    room.memory_bytes -= piece.memory_bytes
    room.whole -= piece.gpus
    if piece.gpu_slice:
        room.whole -= placed.gpu not in room.grids
        room.grids[placed.gpu] = room.grids.get(placed.gpu, 0) | placed.slots
    elif piece.milli:
        room.whole -= placed.gpu not in room.parts
        room.parts[placed.gpu] = room.parts.get(placed.gpu, 1000) - piece.milli


class CountedNodes(Protocol):
    """Nodes by what they hold, as they are or as they would be."""

    def counts(self, piece: NodePiece, *, single: bool = False) -> NDArray[np.int64]:
        """How many times each node holds a piece."""

    def domains(self, level: Level) -> NDArray[np.int64]:
        """The domain that each node is in."""


def has_room(wish: Wish, nodes: CountedNodes) -> bool:
    """Whether nodes hold a job."""
    if wish.level == "node":
        if _compactly(wish, nodes, None):
            return True
        return wish.single is not None and (
            int(nodes.counts(wish.single, single=True).sum()) >= wish.gpus
        )
    if not wish.required:
        return _compactly(wish, nodes, None)
    return len(_domains_with_room(wish, nodes, nodes.domains(wish.level))) > 0


def domains_of(wish: Wish, nodes: CountedNodes) -> NDArray[np.int64]:
    """The domain of each node, within one of which a job must lie; anywhere is one domain."""
    if wish.required and wish.level != "node":
        return nodes.domains(wish.level)
    return np.zeros(len(nodes.domains("node")), dtype=np.int64)


def _compactly(wish: Wish, nodes: CountedNodes, among: NDArray[np.bool_] | None) -> bool:
    """Whether whole nodes and the rest can be had."""
    having = [nodes.counts(piece) > 0 for piece, _ in wish.pieces()]
    if among is not None:
        having = [one & among for one in having]
    if wish.full is None:
        return bool(having[0].any()) if having else True
    if int(having[0].sum()) < wish.num_full:
        return False
    return wish.rest is None or int((having[0] | having[1]).sum()) > wish.num_full


def _domains_with_room(
    wish: Wish, nodes: CountedNodes, domain: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The domains within which whole nodes and the rest can be had."""
    most = int(domain.max()) + 1
    having = [nodes.counts(piece) > 0 for piece, _ in wish.pieces()]
    if wish.full is None:
        return np.unique(domain[having[0]])
    if int(having[0].sum()) < wish.num_full:
        return np.empty(0, dtype=np.int64)
    enough = np.bincount(domain[having[0]], minlength=most) >= wish.num_full
    if wish.rest is not None:
        either = np.bincount(domain[having[0] | having[1]], minlength=most)
        enough &= either > wish.num_full
    return np.flatnonzero(enough)
