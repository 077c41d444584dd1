"""The graph of a pipeline, checked: order, sinks, what reaches what."""

from __future__ import annotations

from collections import Counter

from ridgeline.errors import InputError
from ridgeline.records.pipeline_shape import EdgeShape, PipelineShape, StageShape


class StageGraph:
    """What follows from a shape, found once.

    Args:
        shape: A cycle, an unknown or doubled name, a stage without inputs, a sensor that nothing
            reads, a policy on misses without a deadline raise InputError: one line that names it.
    """

    def __init__(self, shape: PipelineShape) -> None:
        self.shape = shape
        self.stages = {stage.name: stage for stage in shape.stages}
        self.sensors = {sensor.name: sensor for sensor in shape.sensors}
        self.readers: dict[str, list[str]] = {}
        """Sensor or stage → the stages that read it, in the order they were declared."""
        _check_names(shape)
        for stage in shape.stages:
            _check_stage(shape, stage)
            for edge in stage.inputs:
                self.readers.setdefault(edge.source, []).append(stage.name)
        for sensor in shape.sensors:
            if sensor.name not in self.readers:
                raise InputError(
                    f"pipeline {shape.name}: no stage reads the sensor {sensor.name}; "
                    "give it to a stage or leave it out"
                )
        self.order = self._sorted()
        """Stages, each after all that it reads."""
        self.sinks = shape.sinks
        self.reached = self._reached()
        """Sensor or stage → the sinks that its frames can come out of."""
        self.leads = self._leads()
        """Sensor or stage → the sensor whose frames lead it: that of first inputs, up to there."""
        for path in shape.paths:
            self._check_path(path.sensor, path.stage, path.budget_seconds)

    def _sorted(self) -> tuple[str, ...]:
        waits = {
            stage.name: {edge.source for edge in stage.inputs} & self.stages.keys()
            for stage in self.shape.stages
        }
        done: list[str] = []
        while waits:
            free = [name for name, sources in waits.items() if sources <= set(done)]
            if not free:
                raise InputError(
                    f"pipeline {self.shape.name}: its stages form a cycle, {_cycle(waits)}; "
                    "keep what a stage needs of its last frame inside the stage"
                )
            done += free
            waits = {name: sources for name, sources in waits.items() if name not in free}
        return tuple(done)

    def _reached(self) -> dict[str, tuple[str, ...]]:
        reached = {sink: {sink} for sink in self.sinks}
        for name in (*reversed(self.order), *self.sensors):
            below = [reached[reader] for reader in self.readers.get(name, ())]
            reached[name] = reached.get(name, set()).union(*below)
        return {
            name: tuple(sink for sink in self.sinks if sink in there)
            for name, there in reached.items()
        }

    def _leads(self) -> dict[str, str]:
        leads = {name: name for name in self.sensors}
        for name in self.order:
            leads[name] = leads[self.stages[name].inputs[0].source]
        return leads

    def _check_path(self, sensor: str, stage: str, budget_seconds: float) -> None:
        where = f"pipeline {self.shape.name}: the path from {sensor} to {stage}"
        if sensor not in self.sensors or stage not in self.stages:
            raise InputError(f"{where} is none; it begins at a sensor and ends at a stage")
        behind, open_names = set[str](), [stage]
        while open_names:
            found = self.stages.get(open_names.pop())
            new = {edge.source for edge in found.inputs} - behind if found else set()
            behind |= new
            open_names += new
        if sensor not in behind:
            raise InputError(f"{where} is none; {stage} depends on {', '.join(sorted(behind))}")
        if not budget_seconds > 0:
            raise InputError(f"{where}: a budget is above zero, not {budget_seconds:g} s")


def _check_names(shape: PipelineShape) -> None:
    where = f"pipeline {shape.name}"
    if not shape.sensors:
        raise InputError(f"{where}: has no sensor; frames come from one")
    if not shape.stages:
        raise InputError(f"{where}: has no stage; add what its frames go through")
    names = _names(shape)
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{where}: {name!r} names {times} sensors or stages; rename one")
        if not name.strip() or "->" in name:
            raise InputError(f"{where}: {name!r} is no name for a sensor or stage; use words")
    if shape.deadline_seconds is not None and not shape.deadline_seconds > 0:
        raise InputError(f"{where}: a deadline is above zero, not {shape.deadline_seconds:g} s")
    for sensor in shape.sensors:
        if sensor.rate_hz is not None and not sensor.rate_hz > 0:
            raise InputError(
                f"{where}: sensor {sensor.name}: a rate is above zero, not {sensor.rate_hz:g} Hz"
            )
    for processor, most in shape.processors.items():
        if most < 1:
            raise InputError(f"{where}: processor {processor}: runs at least 1 stage, not {most}")


def _names(shape: PipelineShape) -> list[str]:
    return [sensor.name for sensor in shape.sensors] + [stage.name for stage in shape.stages]


def _check_stage(shape: PipelineShape, stage: StageShape) -> None:
    where = f"pipeline {shape.name}: stage {stage.name}"
    if not stage.inputs:
        raise InputError(f"{where}: has no input; give it a sensor or a stage to read")
    names = set(_names(shape))
    for source, times in Counter(edge.source for edge in stage.inputs).items():
        if times > 1:
            raise InputError(f"{where}: reads {source} {times} times; once is enough")
        if source not in names:
            known = ", ".join(sorted(names - {stage.name}))
            raise InputError(f"{where}: reads {source!r}, which is none of {known}")
    if stage.inputs[0].reuse:
        raise InputError(f"{where}: its first input leads and cannot be reused; put another first")
    for edge in stage.inputs:
        _check_edge(where, edge)
    if stage.on_miss != "finish" and shape.deadline_seconds is None:
        raise InputError(
            f"{where}: on a miss it shall {stage.on_miss}, but the pipeline has no deadline; "
            "give it one"
        )
    if stage.budget_seconds is not None and not stage.budget_seconds > 0:
        raise InputError(f"{where}: a budget is above zero, not {stage.budget_seconds:g} s")
    if not stage.tolerance_seconds >= 0:
        raise InputError(f"{where}: a tolerance is no less than 0, not {stage.tolerance_seconds:g}")


def _check_edge(where: str, edge: EdgeShape) -> None:
    if edge.depth < 1:
        raise InputError(f"{where}: the edge from {edge.source} holds at least 1, not {edge.depth}")


def _cycle(waits: dict[str, set[str]]) -> str:
    """One cycle among stages that all wait for each other, as `a -> b -> a`."""
    seen = [next(iter(waits))]
    while True:
        source = next(name for name in sorted(waits[seen[-1]]) if name in waits)
        if source in seen:
            loop = seen[seen.index(source) :]
            return " -> ".join([source, *reversed(loop)])
        seen.append(source)
