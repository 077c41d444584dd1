"""The times of a pipeline out of a run of it: calls without contention, waits without queueing.

What a call took on shared cores is brought back to what it takes on its own by the law of
`contention.py`, with the calls that the run had at the same time. What lay between the moment at
which a call could begin and the one at which it did is the executor's own time; what a call waited
for its worker, for room after it or for its other inputs is queueing, which the simulation makes
anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.frames.graph import StageGraph
from ridgeline.plan.realtime.contention import call_speed, core_speed
from ridgeline.plan.realtime.timing import (
    CallSamples,
    PipelineTiming,
    Seconds,
    SensorTiming,
    SimulatedExecutor,
    Slots,
    StageTiming,
)
from ridgeline.records.pipeline_shape import SensorShape
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, StageCalls

_ROUNDS = 6
"""How often the share of a core and the contention are found from each other."""


def timing_of_run(run: RealtimeRun, where: str) -> PipelineTiming:
    """The pipeline of a run with the times that it had.

    Raises:
        InputError: It was simulated itself, or a stage was never called.
    """
    if run.executor == "simulated":
        raise InputError(f"{where}: was simulated itself; give the run or the table behind it")
    _check_columns(run, where)
    graph = StageGraph(run.shape)
    sensors = {one.name: _frames_of(run, one.name) for one in run.shape.sensors}
    slots = {name: _slots(fates) for name, fates in sensors.items()}
    logs = {one.stage: one for one in run.calls}
    cores = None if run.environment is None else run.environment.cpu_count
    found = _Measured(
        run=run,
        executor=run.executor,
        cores=cores,
        graph=graph,
        logs={name: _Log.of(logs[name]) for name in graph.stages if name in logs},
        arrived={name: np.array(fates.arrived) for name, fates in sensors.items()},
        slots={
            name: dict(zip(fates.frames, slots[name].tolist(), strict=True))
            for name, fates in sensors.items()
        },
        where=where,
    )
    first = run.shape.sensors[0]
    known = int(slots[first.name][-1]) + 1 if len(slots[first.name]) else 0
    if known <= run.warmup_frames:
        raise InputError(f"{where}: has no frame of {first.name} after its warm-up; run it longer")
    return PipelineTiming(
        shape=run.shape,
        executor=found.executor,
        cores=cores,
        stages=found.stages(),
        sensors={
            one.name: found.sensor(one, sensors[one.name], slots[one.name], first)
            for one in run.shape.sensors
        },
        slots=known,
        warmup_slots=run.warmup_frames,
    )


def _check_columns(run: RealtimeRun, where: str) -> None:
    """Refuse a file whose columns do not belong together: it was cut or edited."""
    for calls in run.calls:
        lengths = {len(calls.frames), len(calls.ready), len(calls.started), len(calls.ended),
                   len(calls.modes), len(calls.cpu_seconds or calls.frames)}  # fmt: skip
        if len(lengths) > 1:
            raise InputError(f"{where}: calls of {calls.stage}: the columns differ in length")
    known: dict[str, set[int]] = {}
    for fates in run.fates:
        lengths = {len(fates.frames), len(fates.stamps), len(fates.arrived), len(fates.ended),
                   len(fates.kinds), len(fates.places), len(fates.reasons)}  # fmt: skip
        if len(lengths) > 1:
            raise InputError(f"{where}: fates of {fates.sensor}: the columns differ in length")
        known.setdefault(fates.sensor, set()).update(fates.frames)
    for sensor in run.shape.sensors:
        if not known.get(sensor.name):
            raise InputError(f"{where}: has no frame of the sensor {sensor.name}")
    leads = StageGraph(run.shape).leads
    for calls in run.calls:
        lead = leads.get(calls.stage)
        if lead is None or not set(calls.frames) <= known[lead]:
            raise InputError(f"{where}: calls of {calls.stage} are of frames that no sensor sent")


def _frames_of(run: RealtimeRun, sensor: str) -> FrameFates:
    """The sensor's frames, at any of its sinks."""
    return next(fates for fates in run.fates if fates.sensor == sensor)


def _slots(fates: FrameFates) -> Slots:
    """Slot of each frame: the identities with their gaps.

    One whose identity was there already has taken a slot too, so that many fewer are missing after
    it.
    """
    found, slot, highest, repeats = [], -1, -1, 0
    for frame in fates.frames:
        if slot >= 0 and frame <= highest:
            slot, repeats = slot + 1, repeats + 1
        else:
            step = frame - highest - repeats if slot >= 0 else 1
            slot, highest, repeats = slot + max(1, step), frame, 0
        found.append(slot)
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Log:
    """The calls of one stage that ran code, as arrays."""

    calls: StageCalls
    frames: Slots
    ready: Seconds
    started: Seconds
    ended: Seconds
    cheaper: NDArray[np.bool_]
    cpu: Seconds | None

    @classmethod
    def of(cls, calls: StageCalls) -> _Log:
        ran = np.array([mode in ("run", "degrade") for mode in calls.modes], dtype=np.bool_)
        cpu = np.array(calls.cpu_seconds)[ran] if calls.cpu_seconds else None
        return cls(
            calls=calls,
            frames=np.array(calls.frames, dtype=np.int64)[ran],
            ready=np.array(calls.ready)[ran],
            started=np.array(calls.started)[ran],
            ended=np.array(calls.ended)[ran],
            cheaper=np.array([mode == "degrade" for mode in calls.modes], dtype=np.bool_)[ran],
            cpu=cpu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    run: RealtimeRun
    executor: SimulatedExecutor
    cores: int | None
    graph: StageGraph
    logs: Mapping[str, _Log]
    arrived: Mapping[str, Seconds]
    slots: Mapping[str, Mapping[int, int]]
    """Sensor → frame → slot."""
    where: str

    # -- stages ------------------------------------------------------------------------------------

    def stages(self) -> dict[str, StageTiming]:
        """The times of all stages."""
        for name in self.graph.stages:
            if name not in self.logs or not (~self.logs[name].cheaper).any():
                raise InputError(
                    f"{self.where}: the stage {name} was never called in full, so its time is not"
                    " known; run it under less load"
                )
        work, shares = self._without_contention()
        return {name: self._stage(name, work[name], shares[name]) for name in self.graph.stages}

    def _stage(self, name: str, work: Seconds, share: float) -> StageTiming:
        log = self.logs[name]
        slots = self.slots[self.graph.leads[name]]
        places = np.array([slots[frame] for frame in log.frames.tolist()], dtype=np.int64)
        before, after = self._before(name), self._after(name)

        def samples(kept: NDArray[np.bool_]) -> CallSamples:
            return CallSamples(
                slots=places[kept], work=work[kept], before=before[kept], after=after
            )

        return StageTiming(
            columns={"": samples(~log.cheaper)},
            cheaper=samples(log.cheaper) if log.cheaper.any() else None,
            core_share=share,
        )

    def _without_contention(self) -> tuple[dict[str, Seconds], dict[str, float]]:
        """Seconds of each call on a core of its own, and the share in which it needs the core."""
        logs = self.logs
        work = {name: log.ended - log.started for name, log in logs.items()}
        if self.executor == "inline" or self.cores is None:
            every = {name: np.ones(len(log.frames), dtype=np.bool_) for name, log in logs.items()}
            return work, {name: _core_share(logs[name], work[name], every[name]) for name in logs}
        quiet = {name: self._least_disturbed(name) for name in logs}
        shares = dict.fromkeys(logs, 1.0)
        for _ in range(_ROUNDS):
            edges, demand = self._summed(shares)
            for name, log in logs.items():
                speeds = [
                    call_speed(shares[name], core_speed(one, self.cores)) for one in demand.tolist()
                ]
                work[name] = _integrated(edges, np.array(speeds), log)
            shares = {name: _core_share(log, work[name], quiet[name]) for name, log in logs.items()}
        return work, shares

    def _least_disturbed(self, name: str) -> NDArray[np.bool_]:
        """The calls of a stage beside which the fewest others ran.

        Time off the core is sleep or it is a wait for the core; only calls that had it to
        themselves tell which.
        """
        log = self.logs[name]
        edges, running = self._summed(dict.fromkeys(self.logs, 1.0))
        beside = _integrated(edges, running, log) / np.maximum(log.ended - log.started, 1e-12)
        return np.asarray(beside <= np.percentile(beside, _QUIET_PERCENT) + 1e-9)

    def _summed(self, shares: Mapping[str, float]) -> tuple[Seconds, Seconds]:
        """Times at which calls begin or end, and the cores wanted between them."""
        on_cores = [name for name in self.logs if self.graph.stages[name].processor == "cpu"]
        parts = [(self.logs[name].started, shares[name]) for name in on_cores]
        parts += [(self.logs[name].ended, -shares[name]) for name in on_cores]
        times = np.concatenate([[0.0], *(at for at, _ in parts), [self.run.seconds]])
        steps = np.concatenate([[0.0], *(np.full(len(at), step) for at, step in parts), [0.0]])
        order = np.argsort(times, kind="stable")
        return times[order], np.cumsum(steps[order])[:-1]

    # -- the executor's own time -------------------------------------------------------------------

    def _before(self, name: str) -> Seconds:
        """From the moment at which each call could begin until it did."""
        log = self.logs[name]
        free = log.ready
        if self.executor == "inline":
            others = [*self.logs.values()]
            for times in (*(one.ended for one in others), *self.arrived.values()):
                free = np.maximum(free, _last_before(times, log.started))
        else:
            free = np.maximum(free, _last_before(log.ended, log.started))
            for reader in self._blocking_readers(name):
                free = np.maximum(free, _last_before(self.logs[reader].started, log.started))
        return np.maximum(0.0, log.started - free)

    def _blocking_readers(self, name: str) -> Sequence[str]:
        """Stages whose start makes room for what this one gives."""
        return [
            reader
            for reader in self.graph.readers.get(name, ())
            if reader in self.logs
            and any(
                edge.source == name and edge.policy == "block"
                for edge in self.graph.stages[reader].inputs
            )
        ]

    def _after(self, name: str) -> float:
        """From the end of a call until a reader, or the sink, has the result: the median."""
        log = self.logs[name]
        for reader in self.graph.readers.get(name, ()):
            if len(self.graph.stages[reader].inputs) == 1 and reader in self.logs:
                other = self.logs[reader].calls
                found = _gaps(log, other.frames, other.ready)
                break
        else:
            fates = [one for one in self.run.fates if one.sink == name]
            lead = [one for one in fates if one.sensor == self.graph.leads[name]]
            if not lead:
                return 0.0
            kept = [place for place, kind in enumerate(lead[0].kinds) if kind in _RESULTS]
            found = _gaps(
                log,
                [lead[0].frames[place] for place in kept],
                [lead[0].ended[place] or 0.0 for place in kept],
            )
        return float(max(0.0, np.median(found))) if len(found) else 0.0

    # -- sensors -----------------------------------------------------------------------------------

    def sensor(
        self, shape: SensorShape, fates: FrameFates, slots: Slots, first: SensorShape
    ) -> SensorTiming:
        """When the sensor's frames were taken and came, against its rate."""
        stamps, arrived = np.array(fates.stamps), np.array(fates.arrived)
        free = stamps
        if self.executor == "inline":
            for times in (*(one.ended for one in self.logs.values()), *self.arrived.values()):
                free = np.maximum(free, _last_before(times, arrived, strictly=True))
        delay = np.where(arrived < stamps, arrived - stamps, np.maximum(0.0, arrived - free))
        stamped = np.zeros(len(stamps))
        if shape.rate_hz is not None and len(stamps):
            due = slots / shape.rate_hz
            begin = 0.0 if (stamps - due >= -_CLOCK_SECONDS).all() else (stamps - due).min()
            stamped = np.maximum(0.0, stamps - due - begin)
        per_first = 1.0
        if shape.rate_hz is not None and first.rate_hz is not None:
            per_first = shape.rate_hz / first.rate_hz
        repeated = np.array([reason == "repeated id" for reason in fates.reasons], dtype=np.bool_)
        return SensorTiming(
            slots=slots,
            stamped=stamped,
            delay=delay,
            repeated=repeated,
            slots_per_first=per_first,
        )


_QUIET_PERCENT = 10
"""So many of a stage's calls are taken to have had the cores to themselves."""
_RESULTS = ("delivered", "late")
_CLOCK_SECONDS = 1e-6


def _core_share(log: _Log, work: Seconds, calls: NDArray[np.bool_]) -> float:
    """Share of its own time in which a call needs a core; all of it where that was not measured."""
    if log.cpu is None or not work[calls].sum() > 0.0:
        return 1.0
    return float(np.clip(log.cpu[calls].sum() / work[calls].sum(), 0.0, 1.0))


def _integrated(edges: Seconds, values: Seconds, log: _Log) -> Seconds:
    """Integral over each call of what is constant between edges."""
    summed = np.concatenate([[0.0], np.cumsum(np.diff(edges) * values)])
    return np.asarray(np.interp(log.ended, edges, summed) - np.interp(log.started, edges, summed))


def _last_before(times: Seconds, at: Seconds, *, strictly: bool = False) -> Seconds:
    """The latest of `times` at or before each moment; minus infinity where there is none."""
    ordered = np.concatenate([[-np.inf], np.sort(times)])
    return ordered[np.searchsorted(ordered, at, side="left" if strictly else "right") - 1]


def _gaps(log: _Log, frames: Sequence[int], times: Sequence[float]) -> Seconds:
    """Seconds from the end of each call to what came of the same frame."""
    ended = dict(zip(log.frames.tolist(), log.ended.tolist(), strict=True))
    return np.array(
        [
            at - ended[frame]
            for frame, at in zip(frames, times, strict=True)
            if frame in ended and at >= ended[frame]
        ]
    )
