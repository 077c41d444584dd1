"""The sensors and stages of a graph, their edges laid between them.

Stages may wait for each other in a circle, and a full edge then has to give way: a stage hands its
output to two readers, one has no room, because it waits for what the other makes of a later frame.
Without a way out a pipeline would stand still for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.frames.edges import Edge
from ridgeline.frames.fates import FateBook
from ridgeline.frames.graph import StageGraph
from ridgeline.frames.joins import can_go_on, find_match
from ridgeline.frames.sensors import SensorState
from ridgeline.frames.stage_state import StageState


class FrameNetwork:
    """The state of every sensor and stage of a pipeline."""

    def __init__(self, graph: StageGraph) -> None:
        self._graph = graph
        self._sinks = {name: number for number, name in enumerate(graph.sinks)}
        self.stages: dict[str, StageState] = {}
        for name in reversed(graph.order):
            self.stages[name] = self._stage(name)
        self.sensors = {sensor.name: self._sensor(sensor.name) for sensor in graph.shape.sensors}
        mixed: set[str] = set()
        for name in graph.order:
            shape = graph.stages[name]
            if len(shape.inputs) > 1 or mixed & {edge.source for edge in shape.inputs}:
                mixed.add(name)
                self.stages[name].log.behind = {}

    def _stage(self, name: str) -> StageState:
        outs = self._outs(name)
        sinks = self._reached(name)
        needed = frozenset(() if outs else sinks).union(*(edge.needed for edge in outs))
        state = StageState(self._graph.stages[name], outs=outs, sinks=sinks, needed=needed)
        for edge in state.partners:
            # Frames of one sensor that went two ways are one frame or none.
            if self._graph.leads[edge.source] != self._graph.leads[name]:
                edge.tolerance = state.shape.tolerance_seconds
        return state

    def _sensor(self, name: str) -> SensorState:
        sinks = {number: self._graph.sinks[number] for number in self._reached(name)}
        book = FateBook(name, sinks, len(self._sinks))
        return SensorState(self._graph.sensors[name], book, self._outs(name))

    def _outs(self, name: str) -> list[Edge]:
        readers = [self.stages[reader] for reader in self._graph.readers.get(name, ())]
        return [edge for state in readers for edge in state.edges if edge.source == name]

    def _reached(self, name: str) -> tuple[int, ...]:
        return tuple(self._sinks[sink] for sink in self._graph.reached[name])


def full_edge_of_circle(start: StageState, stages: Mapping[str, StageState]) -> Edge | None:
    """A full edge on a circle of waiting stages through this one; None: it waits in no circle."""
    seen: set[str] = set()

    def search(state: StageState, full: Edge | None) -> Edge | None:
        for name, edge in _waits_for(state):
            if name == start.name:
                return edge or full
            if name in stages and name not in seen:
                seen.add(name)
                if found := search(stages[name], edge or full):
                    return found
        return None

    return search(start, None)


def _waits_for(state: StageState) -> Iterator[tuple[str, Edge | None]]:
    """Sensors and stages without which a stage cannot go on, with the edge that is too full."""
    if state.job is not None or can_go_on(state):
        return
    if state.blocked:
        yield from ((edge.target, edge) for edge in state.outs if edge.pending)
        return
    match = find_match(state)
    if match is None:
        yield state.lead.source, None
        return
    for edge, token in zip(state.partners, match.partners, strict=True):
        if token is None:
            yield edge.source, None
