"""Free GPUs on nodes of which a rule of placement says which one a piece is put on.

The rules are those of `queue place`, and so is the search: over the same arrays, kept beside the
rooms. What fits is asked of the rooms. A job that asks for several nodes has its pieces placed one
after the other, each by the rule; within which rack or NVLink domain, and on how few nodes where it
may be scattered, is settled before the rule is asked. A MIG instance is to a rule the part of a GPU
that its memory slices are; it goes on the GPU that the rule takes where that has slots for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedHeld, DetailedPool, Placed
from ridgeline.queue.node_room import UNCOUNTED, WHOLE, NodeRoom
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.node_choice import NodeChoice, node_order
from ridgeline.queue.placement.nodes import NodeState, PlacedNode, TaskKind, tasks_of
from ridgeline.queue.placement.rules import find_rule
from ridgeline.queue.wants import Level, NodePiece, Wish, kinds_in


class RuledPool(DetailedPool):
    """Nodes with rooms, and the same nodes as a rule sees them.

    Args:
        rooms: What is free on each node.
        domains: The domain of each node, by level.
        rule: The name of the rule.
        wishes: What all jobs ask for: the typical tasks of rules that heed them.
        seed: Draws what the rule leaves to chance.
    """

    def __init__(
        self,
        rooms: Sequence[NodeRoom],
        domains: Mapping[Level, Sequence[int]],
        *,
        rule: str,
        wishes: Iterable[Wish],
        seed: int,
    ) -> None:
        super().__init__(rooms, domains)
        card, make = find_rule(rule)
        random = np.random.default_rng(seed)
        self._met = node_order(card, len(rooms), random)
        """Nodes in the order in which the rule meets them."""
        self._place_of = np.empty(len(rooms), dtype=np.int64)
        self._place_of[self._met] = np.arange(len(rooms))
        self._kinds: dict[NodePiece, TaskKind] = {}
        asked = [self._kind(piece) for wish in wishes
                 for piece, times in wish.pieces() for _ in range(times)]  # fmt: skip
        self._nodes = NodeState([seen_by_rule(rooms[node]) for node in self._met])
        typical = TypicalTasks(tasks_of(asked))
        self._choice = NodeChoice(self._nodes, card, make(typical), random)

    def give(self, held: DetailedHeld) -> None:
        """Take back what a job held."""
        super().give(held)
        for node, placed in held:
            kind = self._kind(placed.piece)
            self._nodes.give(kind, int(self._place_of[node]), placed.on)

    def _node_for(self, piece: NodePiece, nodes: NDArray[np.bool_] | None) -> int:
        holds = self.counts(piece) > 0
        if nodes is not None:
            holds = holds & nodes
        place = self._choice.node(self._kind(piece), np.flatnonzero(holds[self._met]))
        return int(self._met[place])

    def _put(self, node: int, piece: NodePiece, on: tuple[int, ...] = ()) -> tuple[int, Placed]:
        kind, place = self._kind(piece), int(self._place_of[node])
        gpu = self._choice.gpu(kind, place, self._able(node, place, piece))
        on = self._nodes.put(kind, place, gpu)
        return super()._put(node, piece, on)

    def _able(self, node: int, place: int, piece: NodePiece) -> NDArray[np.bool_]:
        """Which GPUs of a node can take a part: those that nobody has, or that are so shared."""
        able: NDArray[np.bool_] = self._nodes.gpu_left[place] == WHOLE
        room = self.rooms[node]
        for number in (*room.parts, *room.grids):
            able[number] = room.able(piece, number)
        return able

    def _kind(self, piece: NodePiece) -> TaskKind:
        found = self._kinds.get(piece)
        if found is None:
            found = self._kinds[piece] = task_kind(piece, self.gpus_of(piece.gpu_slice))
        return found


def task_kind(piece: NodePiece, part: float) -> TaskKind:
    """What a rule takes a piece of a job for.

    Args:
        piece: What is asked of one node.
        part: The part of a GPU that its MIG instance is; 0: it is none.
    """
    milli = piece.milli or round(WHOLE * part)
    return TaskKind(
        cpu_milli=piece.cpu_milli,
        gpu_milli=milli or (WHOLE if piece.gpus else 0),
        num_gpus=1 if milli else piece.gpus,
        memory_bytes=piece.memory_bytes,
        models=tuple(kinds_in(piece.gpu_type)),
    )


def seen_by_rule(room: NodeRoom, name: str = "") -> PlacedNode:
    """A node with nothing on it; what it does not count, it has none of, and nobody asks for."""
    return PlacedNode(
        name=name,
        cpu_milli=0 if room.cpu_milli == UNCOUNTED else room.cpu_milli,
        memory_bytes=0 if room.memory_bytes == UNCOUNTED else room.memory_bytes,
        num_gpus=room.whole,
        model=room.gpu_type,
    )
