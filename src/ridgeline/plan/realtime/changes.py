"""What-ifs as engineers say them: `backbone x0.6`, `rate=36Hz`, `policy=latest-only`.

`WHOLE` and `ONE` are the list; each is a function from a pipeline with its times to another one.
Several with commas between them (`backbone x0.6, rate=36Hz`) are one change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.plan.realtime.edits import (
    change_edges,
    change_sensor,
    change_stage,
    copied,
    without_stage,
)
from ridgeline.plan.realtime.stage_table import TypedSpread, call_samples
from ridgeline.plan.realtime.timing import (
    CallSamples,
    PipelineTiming,
    SimulatedExecutor,
    StageTiming,
    TableColumn,
)
from ridgeline.records.durations import parse_duration, parse_rate
from ridgeline.records.pipeline_shape import EdgePolicy, OnMiss

_FACTOR = re.compile(r"(?P<name>.+?)(?:\s+[x×]|\s*\*)\s*(?P<factor>\d+(?:\.\d*)?|\.\d+)")
ALL = "all"
"""The name that stands for every stage where a factor is said."""
_MOST_JITTER = 100.0
_WITHOUT = re.compile(r"without\s+(?P<name>.+)")


@dataclass(frozen=True, slots=True)
class _Step:
    """One part of a what-if."""

    rank: int
    """Columns come before factors on their times, copies of the pipeline come last."""
    apply: Callable[[PipelineTiming], PipelineTiming]


def apply_changes(timing: PipelineTiming, texts: Sequence[str]) -> PipelineTiming:
    """The pipeline with what-ifs applied, whatever their order.

    Raises:
        InputError: A change that is none, or of a name that is not there.
    """
    steps = [(_step(timing, part.strip(), text), text)
             for text in texts for part in text.split(",")]  # fmt: skip
    for step, text in sorted(steps, key=lambda one: one[0].rank):
        try:
            timing = step.apply(timing)
        except InputError as error:
            raise InputError(f"--what-if {text}: {error}") from None
    return timing


def _step(timing: PipelineTiming, part: str, text: str) -> _Step:
    if found := _FACTOR.fullmatch(part):
        name, factor = found["name"].strip(), float(found["factor"])
        if name == ALL and ALL not in timing.stages:
            return _Step(1, lambda one: _all_scaled(one, factor))
        _known(timing.stages, name, "stage", text)
        return _Step(1, lambda one: _scaled(one, name, factor))
    if found := _WITHOUT.fullmatch(part):
        name = found["name"].strip()
        _known(timing.stages, name, "stage", text)
        return _Step(1, lambda one: without_stage(one, name))
    key, equals, value = (word.strip() for word in part.partition("="))
    if not equals or not value:
        raise InputError(f"--what-if {text}: {part!r} says nothing; {_USAGE}")
    if key in timing.stages:
        return _Step(1, lambda one: _lasting(one, key, value))
    name, dot, own = key.rpartition(".")
    if name == "processors":
        return _Step(1, lambda one: _capacity(one, own, value))
    kinds = ONE if dot else WHOLE
    if own.replace("-", "_") not in kinds:
        near = difflib.get_close_matches(key, [*WHOLE, *timing.stages], n=1)
        hint = f"did you mean {near[0]}?" if near else _USAGE
        raise InputError(f"--what-if {text}: {key!r} is nothing that can be changed; {hint}")
    if dot:
        _known({**timing.stages, **timing.sensors}, name, "stage or sensor", text)
    own = own.replace("-", "_")
    rank = 0 if own in ("device", "precision") else 2 if own == "streams" else 1
    return _Step(rank, lambda one: kinds[own](one, name, value))


def _known(names: Mapping[str, object], name: str, what: str, text: str) -> None:
    if name not in names:
        known = ", ".join(names)
        raise InputError(f"--what-if {text}: no {what} {name!r}; there are {known}")


# -- times -----------------------------------------------------------------------------------------


def _scaled(timing: PipelineTiming, name: str, factor: float) -> PipelineTiming:
    stage = timing.stages[name]
    return change_stage(timing, name, replace(stage, scale=stage.scale * factor))


def _all_scaled(timing: PipelineTiming, factor: float) -> PipelineTiming:
    for name in timing.stages:
        timing = _scaled(timing, name, factor)
    return timing


def _lasting(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    """Calls of so long on average, spread as they are."""
    seconds = parse_duration(value)
    stage = timing.stages[name]
    mean = stage.times.mean
    if seconds < 0.0:
        raise InputError(f"{value} is negative")
    if mean > 0.0:
        return change_stage(timing, name, replace(stage, scale=seconds / mean))
    flat = call_samples(seconds, name, np.random.default_rng(0))
    column = {stage.column: flat}
    return change_stage(timing, name, replace(stage, columns={**stage.columns, **column}))


def _cheaper(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    samples = call_samples(value, name, np.random.default_rng(0))
    return change_stage(timing, name, replace(_stage(timing, name), cheaper=samples))


def _jitter(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    """Times whose P99 lies so many times above the median; the median stays.

    Log-normal and independent from call to call, as the spread of a table is.
    """
    ratio = _ratio(value)
    spread = {
        stage: replace(own, columns={key: _spread_out(one, stage, ratio)
                                     for key, one in own.columns.items()})
        for stage, own in timing.stages.items()
        if not name or stage == name
    }  # fmt: skip
    return replace(timing, stages={**timing.stages, **spread})


def _spread_out(samples: CallSamples, stage: str, ratio: float) -> CallSamples:
    middle = float(np.median(samples.work))
    if ratio == 1.0 or not middle:
        return samples
    draws = np.random.default_rng([ord(letter) for letter in stage])
    drawn = call_samples(TypedSpread(p50=middle, p99=middle * ratio), stage, draws)
    return replace(drawn, after=samples.after)


def _ratio(value: str) -> float:
    try:
        ratio = float(value)
    except ValueError:
        ratio = 0.0
    if not 1.0 <= ratio <= _MOST_JITTER:
        raise InputError(f"{value!r} is no P99 over P50; write a number from 1 to {_MOST_JITTER:g}")
    return ratio


def _device(timing: PipelineTiming, _: str, value: str) -> PipelineTiming:
    precision = _column_of(timing, timing.column).precision
    known = [name for name, one in timing.columns.items() if _names(one.device, value)]
    if not known:
        devices = dict.fromkeys(one.device for one in timing.columns.values())
        raise InputError(f"no times of {value!r}; there are {', '.join(devices)}")
    same = [name for name in known if timing.columns[name].precision == precision]
    if not same:
        there = ", ".join(timing.columns[name].precision for name in known)
        raise InputError(f"{value} has no times in {precision}; there are {there}")
    return _in_column(timing, same[0])


def _precision(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    column = _stage(timing, name).column if name else timing.column
    device = _column_of(timing, column).device
    known = {one.precision: key for key, one in timing.columns.items() if one.device == device}
    if value not in known:
        raise InputError(f"no times of {device} in {value!r}; there are {', '.join(known)}")
    if name:
        return change_stage(timing, name, replace(timing.stages[name], column=known[value]))
    return _in_column(timing, known[value])


def _column_of(timing: PipelineTiming, column: str) -> TableColumn:
    if column not in timing.columns:
        raise InputError(
            "a run has times of one device at one precision; measure the other, give a table with"
            " columns, or say what you expect, as 'backbone x0.6'"
        )
    return timing.columns[column]


def _names(device: str, value: str) -> bool:
    """Whether a device is meant: by its name or a word of it, such as `orin`."""
    return value.lower() == device.lower() or value.lower() in device.lower().split()


def _in_column(timing: PipelineTiming, column: str) -> PipelineTiming:
    stages = {name: replace(one, column=column) for name, one in timing.stages.items()}
    return replace(timing, stages=stages, column=column)


# -- sensors, edges, deadlines ---------------------------------------------------------------------


def _rate(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    rate = parse_rate(value)
    first = timing.shape.sensors[0].rate_hz
    for sensor in timing.shape.sensors:
        if sensor.name == name or (not name and sensor.rate_hz == first):
            timing = change_sensor(timing, sensor.name, rate)
    if name in timing.stages:
        raise InputError(f"{name} is a stage; rates are of sensors")
    return timing


def _policy(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    _one_of(value, get_args(EdgePolicy))
    return change_edges(timing, name, policy=value)


def _depth(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    return change_edges(timing, name, depth=_count(value))


def _on_miss(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    _one_of(value, get_args(OnMiss))
    stages = tuple(
        msgspec.structs.replace(one, on_miss=value) if not name or one.name == name else one
        for one in timing.shape.stages
    )
    return replace(timing, shape=msgspec.structs.replace(timing.shape, stages=stages))


def _deadline(timing: PipelineTiming, _: str, value: str) -> PipelineTiming:
    seconds = parse_duration(value)
    return replace(timing, shape=msgspec.structs.replace(timing.shape, deadline_seconds=seconds))


# -- who runs it -----------------------------------------------------------------------------------


def _executor(timing: PipelineTiming, _: str, value: str) -> PipelineTiming:
    known: tuple[SimulatedExecutor, ...] = get_args(SimulatedExecutor)
    _one_of(value, known)
    return replace(timing, executor=known[known.index(value)])


def _cores(timing: PipelineTiming, _: str, value: str) -> PipelineTiming:
    return replace(timing, cores=_count(value))


def _streams(timing: PipelineTiming, _: str, value: str) -> PipelineTiming:
    return copied(timing, _count(value))


def _processor(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    _stage(timing, name)
    stages = tuple(
        msgspec.structs.replace(one, processor=value) if one.name == name else one
        for one in timing.shape.stages
    )
    return replace(timing, shape=msgspec.structs.replace(timing.shape, stages=stages))


def _capacity(timing: PipelineTiming, name: str, value: str) -> PipelineTiming:
    known = {stage.processor for stage in timing.shape.stages} | set(timing.shape.processors)
    if name not in known:
        raise InputError(f"no stage runs on a processor {name!r}; there are {', '.join(known)}")
    processors = timing.shape.processors | {name: _count(value)}
    return replace(timing, shape=msgspec.structs.replace(timing.shape, processors=processors))


def _stage(timing: PipelineTiming, name: str) -> StageTiming:
    if name not in timing.stages:
        raise InputError(f"{name} is a sensor; this is said of a stage")
    return timing.stages[name]


def _one_of(value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{value!r} is none of {', '.join(known)}")


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"{value!r} is no number from 1 on")
    return int(value)


Kind = Callable[[PipelineTiming, str, str], PipelineTiming]
WHOLE: dict[str, Kind] = {
    "rate": _rate,
    "policy": _policy,
    "depth": _depth,
    "on_miss": _on_miss,
    "deadline": _deadline,
    "executor": _executor,
    "cores": _cores,
    "streams": _streams,
    "device": _device,
    "precision": _precision,
    "jitter": _jitter,
}
"""What is said of the whole pipeline, as `key=value`."""
ONE: dict[str, Kind] = {
    "rate": _rate,
    "policy": _policy,
    "depth": _depth,
    "on_miss": _on_miss,
    "precision": _precision,
    "cheaper": _cheaper,
    "jitter": _jitter,
    "processor": _processor,
}
"""What is said of one stage or sensor, as `name.key=value`."""
_USAGE = (
    "write STAGE x0.6, all x0.6, STAGE=12ms, without STAGE, or one of "
    + ", ".join(f"{key}=…" for key in WHOLE)
    + "; of one stage or sensor "
    + ", ".join(f"NAME.{key}=…" for key in ONE)
    + ", processors.NAME=…"
)
