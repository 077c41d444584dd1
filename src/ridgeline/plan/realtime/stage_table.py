"""A pipeline as a table that someone typed: stages with times per device, before any code exists.

    name = "two stages"
    deadline = "33ms"

    [[sensors]]
    name = "camera"
    rate = "30Hz"

    [[stages]]
    name = "backbone"
    inputs = ["camera"]
    time = {p50 = "14ms", p99 = "20ms"}

Tables that are shipped lie in `tables/`, each with the source of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import NormalDist

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.plan.realtime.timing import (
    CallSamples,
    PipelineTiming,
    Seconds,
    SensorTiming,
    SimulatedExecutor,
    StageTiming,
    TableColumn,
)
from ridgeline.records.durations import parse_duration, parse_rate
from ridgeline.records.input_file import read_toml
from ridgeline.records.pipeline_shape import (
    EdgePolicy,
    EdgeShape,
    OnMiss,
    PathBudget,
    PipelineShape,
    SensorShape,
    StageShape,
)

SAMPLES = 1000
"""Times that are drawn for a stage whose time is a spread."""
Z_99 = NormalDist().inv_cdf(0.99)


class TypedSpread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time that varies: its median and its tail. Log-normal, independent from call to call."""

    p50: str | float
    p99: str | float


TypedTime = str | float | TypedSpread
"""A duration (`"8.6ms"`, or seconds), the same for all calls, or a spread."""


class TypedColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device at a precision, for which the stages have times."""

    device: str
    precision: str
    total: str | float | None = None
    """What the source gives for all stages."""


class TypedSensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of frames."""

    name: str
    rate: str | float | None = None
    """Frames per second; None: the next frame as soon as the pipeline takes it."""
    late: TypedTime = 0.0
    """From the stamp until the frame is in the pipeline."""


class TypedEdge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input that is not read through the default edge."""

    source: str
    policy: EdgePolicy = "block"
    depth: int = 2
    reuse: bool = False


class TypedStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step with its time, or its times per column."""

    name: str
    inputs: tuple[str | TypedEdge, ...]
    time: TypedTime | None = None
    times: dict[str, TypedTime] = {}
    """Column → time, in place of `time`."""
    cheaper: TypedTime | None = None
    """Time of the cheaper call, for `on_miss = "degrade"`."""
    budget: str | float | None = None
    on_miss: OnMiss = "finish"
    tolerance: str | float = 0.0
    processor: str = "cpu"
    core_share: float = 1.0
    """Share of its time in which it needs a core."""


class TypedPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit on the age of a sensor's data when a stage's output comes out."""

    sensor: str
    stage: str
    budget: str | float


class StageTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage table as its file has it."""

    name: str
    source: str = ""
    """Where the numbers come from."""
    date: str = ""
    deadline: str | float | None = None
    executor: SimulatedExecutor = "threads"
    cores: int | None = None
    """Cores that stages of the processor `cpu` contend for; None: enough for all."""
    columns: dict[str, TypedColumn] = {}
    column: str = ""
    """The one to begin with; empty: the first."""
    processors: dict[str, int] = {}
    """Processor → stages that it runs at one time."""
    sensors: tuple[TypedSensor, ...]
    stages: tuple[TypedStage, ...]
    paths: tuple[TypedPath, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know."""


def shipped_tables() -> dict[str, Path]:
    """The tables that come with the package, by name."""
    folder = resources.files("ridgeline.plan.realtime") / "tables"
    found = (Path(str(one)) for one in folder.iterdir() if one.name.endswith(".toml"))
    return {path.stem: path for path in sorted(found)}


def read_stage_table(path: Path) -> StageTable:
    """Read a table; a bad file is an InputError that names the file and the key."""
    return read_toml(path, StageTable)


def timing_of_table(table: StageTable, where: str, seed: int = 0) -> PipelineTiming:
    """The pipeline that a table describes.

    Args:
        table: As it was read.
        where: The file, for messages.
        seed: For times that are spreads.

    Raises:
        InputError: A duration that is none, a stage without a time, a column that is not declared.
    """
    try:
        return _timing(table, seed)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _timing(table: StageTable, seed: int) -> PipelineTiming:
    columns = {name: _column(name, one) for name, one in table.columns.items()}
    column = table.column or next(iter(columns), "")
    if column and column not in columns:
        raise InputError(f"column {column!r} is none of {', '.join(columns) or 'its columns'}")
    if table.cores is not None and table.cores < 1:
        raise InputError(f"cores = {table.cores}: at least 1 is needed")
    draws = np.random.default_rng(seed)
    stages = {one.name: _stage(one, columns, column, draws) for one in table.stages}
    sensors = {one.name: _sensor(one, draws) for one in table.sensors}
    known = [len(one.times.work) for one in stages.values()]
    known += [len(one.cheaper.work) for one in stages.values() if one.cheaper]
    known += [len(one.slots) for one in sensors.values()]
    return PipelineTiming(
        shape=_shape(table),
        executor=table.executor,
        cores=table.cores,
        stages=stages,
        sensors=sensors,
        slots=max(known),
        columns=columns,
        column=column,
    )


def _column(name: str, typed: TypedColumn) -> TableColumn:
    total = None
    if typed.total is not None:
        total = parse_duration(typed.total, f"column {name}: total")
    return TableColumn(device=typed.device, precision=typed.precision, total_seconds=total)


def _shape(table: StageTable) -> PipelineShape:
    deadline = None if table.deadline is None else parse_duration(table.deadline, "deadline")
    return PipelineShape(
        name=table.name,
        deadline_seconds=deadline,
        sensors=tuple(
            SensorShape(
                name=one.name,
                rate_hz=None if one.rate is None else parse_rate(one.rate, f"sensor {one.name}"),
            )
            for one in table.sensors
        ),
        stages=tuple(_stage_shape(one) for one in table.stages),
        paths=tuple(
            PathBudget(
                sensor=one.sensor,
                stage=one.stage,
                budget_seconds=parse_duration(one.budget, f"path {one.sensor} to {one.stage}"),
            )
            for one in table.paths
        ),
        processors=table.processors,
    )


def _stage_shape(typed: TypedStage) -> StageShape:
    where = f"stage {typed.name}"
    budget = None if typed.budget is None else parse_duration(typed.budget, f"{where}: budget")
    return StageShape(
        name=typed.name,
        inputs=tuple(
            EdgeShape(source=one)
            if isinstance(one, str)
            else EdgeShape(source=one.source, policy=one.policy, depth=one.depth, reuse=one.reuse)
            for one in typed.inputs
        ),
        budget_seconds=budget,
        on_miss=typed.on_miss,
        tolerance_seconds=parse_duration(typed.tolerance, f"{where}: tolerance"),
        processor=typed.processor,
    )


def _stage(
    typed: TypedStage, columns: Mapping[str, TableColumn], column: str, draws: np.random.Generator
) -> StageTiming:
    where = f"stage {typed.name}"
    if (typed.time is None) == (not typed.times):
        raise InputError(f"{where}: give `time`, or `times` with one per column")
    if not 0.0 <= typed.core_share <= 1.0:
        raise InputError(f"{where}: core_share = {typed.core_share:g} is no share from 0 to 1")
    times = typed.times
    if typed.time is not None:
        times = dict.fromkeys(columns or [""], typed.time)
    for name in times:
        if name not in columns and name:
            raise InputError(f"{where}: times.{name}: there is no [columns.{name}]")
    missing = [name for name in columns if name not in times]
    if missing:
        raise InputError(f"{where}: has no time in the column {missing[0]}")
    return StageTiming(
        columns={name: call_samples(time, f"{where}: time", draws) for name, time in times.items()},
        column=column,
        cheaper=None
        if typed.cheaper is None
        else call_samples(typed.cheaper, f"{where}: cheaper", draws),
        core_share=typed.core_share,
    )


def _sensor(typed: TypedSensor, draws: np.random.Generator) -> SensorTiming:
    delay = _spread(typed.late, f"sensor {typed.name}: late", draws)
    return SensorTiming(
        slots=np.arange(len(delay)),
        stamped=np.zeros(len(delay)),
        delay=delay,
        repeated=np.zeros(len(delay), dtype=np.bool_),
    )


def call_samples(typed: TypedTime, where: str, draws: np.random.Generator) -> CallSamples:
    """Times of calls from what was typed: one, or as many as a spread needs."""
    work = _spread(typed, where, draws)
    return CallSamples(slots=np.arange(len(work)), work=work, before=np.zeros(len(work)))


def _spread(typed: TypedTime, where: str, draws: np.random.Generator) -> Seconds:
    if not isinstance(typed, TypedSpread):
        seconds = parse_duration(typed, where)
        if seconds < 0:
            raise InputError(f"{where}: {typed} is negative")
        return np.array([seconds])
    middle, tail = (parse_duration(one, where) for one in (typed.p50, typed.p99))
    if not 0.0 < middle <= tail:
        raise InputError(f"{where}: p50 = {typed.p50} and p99 = {typed.p99} are no spread")
    return middle * np.exp(math.log(tail / middle) / Z_99 * _standard_normal(draws))


def _standard_normal(draws: np.random.Generator) -> Seconds:
    """Quantiles of the normal distribution in random order: the tail is there whatever the seed."""
    return draws.permutation(_quantiles())


@cache
def _quantiles() -> Seconds:
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / SAMPLES) for place in range(SAMPLES)])
