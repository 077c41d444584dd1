"""The sensors and stages of a graph, their edges laid between them."""

from __future__ import annotations

from ridgeline.frames.edges import Edge
from ridgeline.frames.fates import FateBook
from ridgeline.frames.graph import StageGraph
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
