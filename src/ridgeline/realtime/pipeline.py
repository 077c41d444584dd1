"""A pipeline as a user writes it: sensors, stages with their code, the edges between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from ridgeline.errors import InputError, RidgelineError, ScriptError, in_words
from ridgeline.frames.graph import StageGraph
from ridgeline.records.durations import parse_duration, parse_rate
from ridgeline.records.pipeline_shape import (
    EdgePolicy,
    EdgeShape,
    OnMiss,
    PathBudget,
    PipelineShape,
    SensorShape,
    StageShape,
)

if TYPE_CHECKING:
    from ridgeline.realtime.observe.call_meter import StageMeter


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorReading:
    """One frame as a sensor sends it, where it carries an identity or a stamp of its own."""

    data: Any
    frame: int | None = None
    """The identity of the frame; counted from 0 where there is none."""
    stamp: float | None = None
    """When it was taken, in seconds of `time.monotonic`; None: when it was due, or, of a sensor
    without a rate, when it was read."""


@dataclass(frozen=True, slots=True)
class PipelineNode:
    """A sensor or a stage, as the input of later stages."""

    name: str

    def via(
        self, policy: EdgePolicy = "block", *, depth: int = 2, reuse: bool = False
    ) -> EdgeShape:
        """This node through an edge that is not the default one."""
        _known(policy, EdgePolicy, f"{self.name}: policy")
        return EdgeShape(source=self.name, policy=policy, depth=depth, reuse=reuse)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCode:
    """What runs in a stage."""

    call: Callable[..., Any]
    cheaper: Callable[..., Any] | None = None
    """What runs in its place on a frame that can no longer meet its deadline."""
    meter: Callable[[], StageMeter] | None = None
    """Makes what counts the CPU, waits and faults of each call, in the thread that calls; None:
    nothing observes the run."""


class Pipeline:
    """A graph of stages that frames pass from sensors to sinks.

    Args:
        name: Shown in tables and reports.
        deadline: Age that data may have when its result comes out: `"33ms"`, or seconds.
    """

    def __init__(self, name: str, *, deadline: str | float | None = None) -> None:
        self.name = name
        self.deadline_seconds = _seconds(deadline, f"pipeline {name}: deadline")
        self.processors: dict[str, int] = {}
        """Processor → stages that it runs at one time; absent: as many as there are."""
        self.readers: dict[str, Callable[[int], Any]] = {}
        """Sensor → what is called with 0, 1, …; raises StopIteration where the sensor stops."""
        self.code: dict[str, StageCode] = {}
        """Stage → what runs in it."""
        self._sensors: list[SensorShape] = []
        self._stages: list[StageShape] = []
        self._paths: list[PathBudget] = []

    def sensor(
        self,
        name: str,
        read: Callable[[int], Any] | Callable[[], Any] | Iterable[Any],
        *,
        rate: str | float | None = None,
    ) -> PipelineNode:
        """A source of frames.

        Args:
            name: Unique among sensors and stages.
            read: Called with 0, 1, …, or with nothing where it takes nothing, or iterated; gives
                the data, a `SensorReading`, or None where no frame came. Where it ends
                (StopIteration, the iterable's end), the sensor stops.
            rate: `"30Hz"` or Hz; None: the next frame as soon as there is room for it.
        """
        where = f"pipeline {self.name}: sensor {name}"
        self._refuse_twice(name, where)
        rate_hz = None if rate is None else parse_rate(rate, f"{where}: rate")
        self.readers[name] = _reader(read, where)
        self._sensors.append(SensorShape(name=name, rate_hz=rate_hz))
        return PipelineNode(name)

    def stage(
        self,
        name: str,
        call: Callable[..., Any],
        *inputs: PipelineNode | EdgeShape,
        budget: str | float | None = None,
        on_miss: OnMiss = "finish",
        cheaper: Callable[..., Any] | None = None,
        tolerance: str | float = 0.0,
        processor: str = "cpu",
    ) -> PipelineNode:
        """A step of the pipeline: a function or an `nn.Module`, called with one argument per input.

        A stage that keeps a state (a tracker) is an object with `__call__`; stages see frames one
        at a time and in order.
        """
        where = f"pipeline {self.name}: stage {name}"
        self._refuse_twice(name, where)
        if not callable(call):
            raise InputError(f"{where}: a {type(call).__name__} cannot be called")
        for code in (call, cheaper):
            _refuse_deferred(code, where)
        _known(on_miss, OnMiss, f"{where}: on_miss")
        if (on_miss == "degrade") != (cheaper is not None):
            raise InputError(f"{where}: on_miss='degrade' and cheaper=… come together")
        self.code[name] = StageCode(call=call, cheaper=cheaper)
        self._stages.append(
            StageShape(
                name=name,
                inputs=tuple(_edge(one, where) for one in inputs),
                budget_seconds=_seconds(budget, f"{where}: budget"),
                on_miss=on_miss,
                tolerance_seconds=parse_duration(tolerance, f"{where}: tolerance"),
                processor=processor,
            )
        )
        return PipelineNode(name)

    def path(self, sensor: PipelineNode, stage: PipelineNode, *, budget: str | float) -> None:
        """Limit the age of this sensor's data when the stage's output comes out."""
        where = f"pipeline {self.name}: path from {sensor.name} to {stage.name}: budget"
        self._paths.append(
            PathBudget(
                sensor=sensor.name,
                stage=stage.name,
                budget_seconds=parse_duration(budget, where),
            )
        )

    @property
    def shape(self) -> PipelineShape:
        """The graph without its code, checked."""
        shape = PipelineShape(
            name=self.name,
            deadline_seconds=self.deadline_seconds,
            sensors=tuple(self._sensors),
            stages=tuple(self._stages),
            paths=tuple(self._paths),
            processors=dict(self.processors),
        )
        StageGraph(shape)
        return shape

    def changed(
        self, shape: PipelineShape | None = None, code: dict[str, StageCode] | None = None
    ) -> Pipeline:
        """A pipeline of another shape, or with other code in some of its stages; this one stays.

        Args:
            shape: None: this one's. Its sensors are among this pipeline's.
            code: Stage → what runs in it; stages that it does not name keep theirs.
        """
        shape = shape or self.shape
        new = Pipeline(shape.name, deadline=shape.deadline_seconds)
        known = {**self.code, **(code or {})}
        new.readers = {sensor.name: self.readers[sensor.name] for sensor in shape.sensors}
        new.code = {stage.name: known[stage.name] for stage in shape.stages}
        new.processors = dict(shape.processors)
        new._sensors = list(shape.sensors)
        new._stages = list(shape.stages)
        new._paths = list(shape.paths)
        return new

    def _refuse_twice(self, name: str, where: str) -> None:
        if name in self.readers or name in self.code:
            raise InputError(f"{where}: {name!r} names a sensor or stage already; rename one")


def read_pipeline(path: str) -> Pipeline:
    """The pipeline of `pipeline.py` or `pipeline.py:NAME`.

    Args:
        path: NAME is a Pipeline or a function that makes one; without it the only one of the file.

    Raises:
        InputError: There is no such file, name or pipeline, or the script fails (a `ScriptError`).
    """
    from ridgeline.measure.network.scripted import run_script, split_script

    file, name = split_script(path) or (None, "")
    if file is None:
        raise InputError(f"{path}: is no Python script; give pipeline.py or pipeline.py:NAME")
    script = run_script(file)
    found = {key: one for key, one in vars(script).items() if isinstance(one, Pipeline)}
    if not name and len({id(one) for one in found.values()}) != 1:
        has = f"has {len(found)} pipelines{_named(found)}" if found else "has no pipeline"
        raise InputError(
            f"{path}: {has}; write {file.name}:NAME, of a Pipeline or of a function that makes one"
        )
    made = vars(script).get(name) if name else next(iter(found.values()))
    if made is None:
        raise InputError(f"{path}: {file.name} defines no {name!r}{_named(found)}")
    if callable(made):
        try:
            made = made()
        except RidgelineError:
            raise
        except Exception as error:
            what = f"{in_words(error)} ({type(error).__name__})"
            raise ScriptError(f"{path}: {name}() fails with {what}") from error
    if not isinstance(made, Pipeline):
        raise InputError(f"{path}: gives a {type(made).__name__}, no Pipeline{_named(found)}")
    return made


def _named(found: dict[str, Pipeline]) -> str:
    return f" ({', '.join(sorted(found))})" if found else ""


def _seconds(text: str | float | None, what: str) -> float | None:
    return None if text is None else parse_duration(text, what)


def _known(word: str, words: Any, what: str) -> None:
    if word not in get_args(words):
        raise InputError(f"{what} {word!r} is none of {', '.join(get_args(words))}")


def _edge(given: PipelineNode | EdgeShape, where: str) -> EdgeShape:
    if isinstance(given, EdgeShape):
        return given
    if not isinstance(given, PipelineNode):
        raise InputError(
            f"{where}: a {type(given).__name__} is no input; give what sensor() or stage() returned"
        )
    return given.via()


def _reader(read: Callable[..., Any] | Iterable[Any], where: str) -> Callable[[int], Any]:
    if callable(read):
        return read if _takes_a_number(read) else lambda _number: read()
    if not isinstance(read, Iterable):
        raise InputError(f"{where}: a {type(read).__name__} can be neither called nor iterated")
    rows = iter(read)
    return lambda _number: next(rows)


def _takes_a_number(read: Callable[..., Any]) -> bool:
    try:
        inspect.signature(read).bind(0)
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell its parameters
        return True
    return True


def _refuse_deferred(call: Callable[..., Any] | None, where: str) -> None:
    """Refuse code whose work is done only when its result is awaited or read, by somebody else."""
    for code in (call, inspect.getattr_static(type(call), "__call__", None)):
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
            raise InputError(f"{where}: it is async; give a function that returns its result")
        if inspect.isgeneratorfunction(code):
            raise InputError(f"{where}: it yields; give a function that returns its result")
