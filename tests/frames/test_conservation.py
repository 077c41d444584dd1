"""Random graphs, random times, random failures: no frame is lost without a word, none comes twice.

A driver on a simulated clock keeps its own account of what went into which result, and runs only
stages that the flow woke.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frames.simulated_driver import SimulatedDriver

from ridgeline.frames.graph import StageGraph
from ridgeline.records.pipeline_shape import (
    EdgeShape,
    OnMiss,
    PipelineShape,
    SensorShape,
    StageShape,
)

RATES = (None, 10.0, 30.0, 100.0)
POLICIES = ("block", "drop-oldest", "latest-only", "unbounded")


@st.composite
def shapes(draw: st.DrawFn, on_misses: tuple[OnMiss, ...] = ("finish", "drop")) -> PipelineShape:
    """Up to three sensors and seven stages, each reading up to three of what stands before it."""
    sensors = [
        SensorShape(name=f"sensor {k}", rate_hz=draw(st.sampled_from(RATES)))
        for k in range(draw(st.integers(1, 3)))
    ]
    names = [sensor.name for sensor in sensors]
    stages: list[StageShape] = []
    for k in range(draw(st.integers(1, 7))):
        unread = [s.name for s in sensors if all(s.name not in _read(stage) for stage in stages)]
        first = draw(st.sampled_from(unread or names))
        others = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        sources = [first, *(name for name in others if name != first)]
        stages.append(
            StageShape(
                name=f"stage {k}",
                inputs=tuple(
                    EdgeShape(
                        source=source,
                        policy=draw(st.sampled_from(POLICIES)),
                        depth=draw(st.integers(1, 3)),
                        reuse=place > 0 and draw(st.booleans()),
                    )
                    for place, source in enumerate(sources)
                ),
                on_miss=draw(st.sampled_from(on_misses)),
                tolerance_seconds=draw(st.sampled_from((0.0, 0.004, 0.02, 0.2))),
            )
        )
        names.append(stages[-1].name)
    read = {name for stage in stages for name in _read(stage)}
    return PipelineShape(
        name="random",
        deadline_seconds=draw(st.sampled_from((0.02, 0.05, 0.2))),
        sensors=tuple(sensor for sensor in sensors if sensor.name in read),
        stages=tuple(stages),
    )


def _read(stage: StageShape) -> list[str]:
    return [edge.source for edge in stage.inputs]


def _uneven(stage: str, dice: random.Random) -> float:
    """Stages of quite different speeds, one call in twenty ten times as slow."""
    usual = 0.002 * (1 + sum(map(ord, stage)) % 9)
    return usual * dice.uniform(0.5, 1.5) * (10 if dice.random() < 0.05 else 1)


def _conserved(driver: SimulatedDriver, frames: int) -> None:
    fates = driver.run(frames)
    graph = StageGraph(driver.shape)
    assert driver.flow.in_flight == 0, "all frames have a fate when everything has run dry"
    assert {(table.sensor, table.sink) for table in fates} == {
        (sensor, sink) for sensor in graph.sensors for sink in graph.reached[sensor]
    }
    places = {*driver.flow.waiting, *graph.stages, *graph.sensors}
    for table in fates:
        assert table.frames == list(range(frames)), "one fate for each frame, in order"
        assert sum(Counter(table.kinds).values()) == frames
        for kind, place, reason in zip(table.kinds, table.places, table.reasons, strict=True):
            assert kind in ("delivered", "late", "dropped", "failed")
            assert (kind == "delivered") == (place == "") == (reason == "")
            assert kind == "delivered" or place in places
            assert kind != "failed" or place in graph.stages
    _in_order_and_once(driver, graph)
    _within_depths(driver)
    _released(driver)


def _in_order_and_once(driver: SimulatedDriver, graph: StageGraph) -> None:
    for calls in driver.flow.calls():
        assert calls.frames == sorted(set(calls.frames)), f"{calls.stage}: in order, never twice"
        assert calls.started == sorted(calls.started)
        one_by_one = zip(calls.ended, calls.started[1:], strict=False)
        assert all(ended <= started for ended, started in one_by_one)
        assert all(r <= s for r, s in zip(calls.ready, calls.started, strict=True))


def _within_depths(driver: SimulatedDriver) -> None:
    for stage in driver.shape.stages:
        for edge in stage.inputs:
            depth = 1 if edge.policy == "latest-only" else edge.depth
            if edge.policy != "unbounded":
                assert driver.most_waiting[f"{edge.source} -> {stage.name}"] <= depth


def _released(driver: SimulatedDriver) -> None:
    """Each payload once, but those that are kept on purpose."""
    assert max(driver.released.values(), default=1) == 1
    kept = [value for value in driver.made if not driver.released[id(value)]]
    results = driver.flow.results.values()
    holding = sum(stage.on_miss == "hold" for stage in driver.shape.stages)
    assert len(kept) <= len(results) + holding + sum(driver.flow.waiting.values())
    assert not any(driver.flow.waiting.values()), "nothing waits when everything has run dry"


@settings(max_examples=60)
@given(shapes(), st.integers(0, 2**32), st.sampled_from((0.0, 0.05)))
def test_every_frame_has_one_fate_and_it_is_what_came_out(
    shape: PipelineShape, seed: int, fails: float
) -> None:
    driver = SimulatedDriver(
        shape, seed=seed, seconds=_uneven, fails=fails, sensor_delay_seconds=0.015
    )
    _conserved(driver, 60)
    for table in driver.flow.fates():
        came_out = driver.came_out.get(table.sink, {})
        for frame, stamp, ended, kind in zip(
            table.frames, table.stamps, table.ended, table.kinds, strict=True
        ):
            at = came_out.get((table.sensor, frame))
            assert (kind in ("delivered", "late")) == (at is not None)
            assert at is None or ended == at
            if kind == "delivered" and not _reused_on_the_way(shape):
                assert shape.deadline_seconds is not None
                assert ended <= stamp + shape.deadline_seconds + 1e-9


def _reused_on_the_way(shape: PipelineShape) -> bool:
    return any(edge.reuse for stage in shape.stages for edge in stage.inputs)


@settings(max_examples=60)
@given(shapes(("finish", "drop", "skip", "hold")), st.integers(0, 2**32))
def test_it_holds_with_every_policy_on_misses(shape: PipelineShape, seed: int) -> None:
    _conserved(SimulatedDriver(shape, seed=seed, seconds=_uneven, fails=0.02), 60)


@pytest.mark.slow
@settings(max_examples=500)
@given(shapes(("finish", "drop", "skip", "hold", "degrade")), st.integers(0, 2**32))
def test_it_holds_over_a_hundred_thousand_frames(shape: PipelineShape, seed: int) -> None:
    _conserved(SimulatedDriver(shape, seed=seed, seconds=_uneven, fails=0.02), 250)
