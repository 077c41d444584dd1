"""The state of a pipeline between two events, and who may run next.

A driver lays frames in (`arrive`), asks each stage that the flow wakes for its next call (`take`),
runs that, and says how it ended (`finish`, `fail`):

    flow = FrameFlow(shape)
    ready = flow.arrive("camera", 0, stamp=0.0, now=0.001, payload=image)
    while ready:
        job = flow.take(ready[0], now())
        if job:
            flow.finish(job, now(), call(job.stage, *job.inputs))
        ready = flow.woken()
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from copy import copy
from typing import Any, Literal

from ridgeline.frames.call_log import NOT_MEASURED, MeasuredTimes
from ridgeline.frames.copies import FrameCopies
from ridgeline.frames.edges import Edge, FrameToken, Payload
from ridgeline.frames.fates import Delay, Loss
from ridgeline.frames.graph import StageGraph
from ridgeline.frames.jobs import FrameJob
from ridgeline.frames.joins import (
    can_go_on,
    find_match,
    give_up_partners,
    take_inputs,
    take_single,
    why_lost,
)
from ridgeline.frames.misses import still_needed
from ridgeline.frames.network import FrameNetwork, full_edge_of_circle
from ridgeline.frames.sensors import FaultKind, refusal
from ridgeline.frames.stage_state import JobState, StageState
from ridgeline.records.pipeline_shape import PipelineShape
from ridgeline.records.realtime_run import CallMode, FrameFates, SensorFault, StageCalls

_CLOCK_SECONDS = 1e-9
"""A deadline missed by less is a rounding of sums."""


class FrameFlow:
    """Frames on their way through a pipeline.

    The driver tells what happens (`arrive`, `finish`, `fail`) and asks what to do (`take`); in
    between the flow holds frames on edges and drops them as the shape says. Payloads are never
    looked into. Every frame that arrives ends with exactly one fate per sink that its sensor
    reaches; results leave a sink in the order of the leading sensor's stamps, never twice; edges
    never hold more than their depth. Not safe between threads: drivers hold a lock around it.

    `arrive`, `stop`, `finish` and `fail` return the stages that may have something to take now, the
    deepest first. A `take` can wake others too (it makes room, it hands held results on): ask
    `woken` after it.

    Args:
        shape: Checked here. A cycle, an unknown or doubled name, a stage without inputs, a sensor
            that nothing reads, a policy on misses without a deadline raise InputError, one line
            that names it.
        release: Called once with each payload that nothing holds any more (its slot in shared
            memory is free again). Newest results, a stage's last output where that is to be held,
            and what serves again on an edge are held until newer ones come.
    """

    def __init__(
        self, shape: PipelineShape, *, release: Callable[[Any], None] | None = None
    ) -> None:
        self.graph = StageGraph(shape)
        network = FrameNetwork(self.graph)
        self._stages, self._sensors = network.stages, network.sensors
        self._times = {name: state.times for name, state in self._stages.items()}
        self._deadline = math.inf if shape.deadline_seconds is None else shape.deadline_seconds
        self._copies = FrameCopies(release)
        self._numbers = itertools.count()
        self._faults: list[SensorFault] = []
        self._depths = {name: place for place, name in enumerate(reversed(self.graph.order))}
        self._woken: set[str] = set()
        self._num_blocked = 0

    def room(self, sensor: str) -> bool:
        """Whether the sensor's next frame would find a place without a loss.

        It is what a source without a rate waits for. Edges whose frames serve again do not count
        beside others: they hold the newest, however fast it comes. Where all stands still for want
        of a frame, there is room too: at an edge that is full the frame is dropped.
        """
        outs = self._sensors[sensor].outs
        return all(edge.has_room for edge in [e for e in outs if not e.reuse] or outs) or not any(
            state.job is not None or can_go_on(state) for state in self._stages.values()
        )

    def arrive(self, sensor: str, frame: int, stamp: float, now: float, payload: Any) -> list[str]:
        """A sensor sent a frame.

        Repeated ids, stamps out of order or from the future are faults: noted, the frame's fate
        says so, nothing runs on it.
        """
        state = self._sensors[sensor]
        if state.stopped:
            raise ValueError(f"{sensor} has stopped")
        stamp = state.told_apart(stamp)
        fault = state.fault(frame, stamp, now)
        entry = state.book.enter(frame, stamp, now)
        if fault:
            self._faults.append(fault)
        if reason := refusal(fault):
            state.book.refuse(entry, Loss(0, "dropped", sensor, reason, now))
            self._copies.refuse(payload)
            return self.woken()
        state.frame, state.stamp, state.arrived = frame, stamp, now
        held, sources = Payload(payload), ((state.book, entry),)
        delay = Delay(sensor, now - stamp, "came")
        tokens = [FrameToken(held, sources, stamp, stamp, delay, now) for _ in state.outs]
        for edge, token in zip(state.outs, tokens, strict=True):
            self._copies.enter(edge, token)
        for edge, token in zip(state.outs, tokens, strict=True):
            if not self._push(edge, token, now):
                self._copies.lose_waiting(token, edge, "full", now)
                self._advance(edge, stamp)
        return self.woken()

    def stop(self, sensor: str, now: float) -> list[str]:  # noqa: ARG002 - as all events have it
        """The sensor sends no more: joins that wait for it give their frames up."""
        self._sensors[sensor].stopped = True
        for edge in self._sensors[sensor].outs:
            self._advance(edge, math.inf)
        return self.woken()

    def note(self, sensor: str, kind: FaultKind, now: float, detail: str = "") -> None:
        """A fault that only the driver can see: the sensor's code raised, or went silent."""
        state = self._sensors[sensor]
        frame = 0 if state.frame is None else state.frame + 1
        self._faults.append(state.note(kind, frame, now, detail))

    def take(self, stage: str, now: float) -> FrameJob | None:
        """The next call of a stage, which is busy from now on.

        Jobs with mode `hold` or `skip` are finished by the flow itself and never returned.

        Returns:
            None where the stage is busy, blocked or has nothing to do.
        """
        state = self._stages[stage]
        while not state.busy:
            inside = self._join(state, now)
            if inside is None:
                self._settle(state)
                if self._num_blocked:
                    self._keep_moving(state, now)
                return None
            mode = self._mode(state, inside.oldest, now)
            if mode == "drop":
                self._lose(inside, state, Loss(0, "dropped", stage, "too late", now))
                continue
            job = inside.as_job(stage, mode, self._deadline)
            if mode in ("run", "degrade"):
                state.job = inside
                return job
            state.log.add(job, now, now, NOT_MEASURED)
            passed = state.last if mode == "hold" else inside.payloads[0]
            assert passed is not None
            self._hand_on(state, inside, passed, inside.delay, now)
        return None

    def finish(
        self, job: FrameJob, now: float, output: Any, times: MeasuredTimes = NOT_MEASURED
    ) -> list[str]:
        """The call ended, and this is what it gave."""
        state = self._stages[job.stage]
        inside = state.end(job)
        took = self._log(job, inside, now, times)
        recent = state.times.full if job.mode == "run" else state.times.cheaper
        recent.add(took)
        delay = inside.delay
        if took > delay.seconds:
            delay = Delay(job.stage, took, "took")
        self._hand_on(state, inside, Payload(output), delay, now)
        self._settle(state)
        return self.woken()

    def fail(
        self, job: FrameJob, now: float, reason: str, times: MeasuredTimes = NOT_MEASURED
    ) -> list[str]:
        """The call raised, or its process died: the frame ends here."""
        state = self._stages[job.stage]
        inside = state.end(job)
        self._log(job, inside, now, times)
        self._lose(inside, state, Loss(0, "failed", job.stage, reason, now))
        self._settle(state)
        return self.woken()

    def woken(self) -> list[str]:
        """The stages that may have something to take since they were last asked for."""
        if not self._woken:
            return []
        names = [name for name in self._woken if not self._stages[name].busy]
        self._woken.clear()
        return sorted(names, key=self._depths.__getitem__) if len(names) > 1 else names

    def put_off(self, seconds: float) -> None:
        """All sensors were put off by so long: their next frames are not late."""
        for state in self._sensors.values():
            state.arrived += seconds

    def fates(self) -> list[FrameFates]:
        """What became of every frame so far, per sensor and sink."""
        return [table for state in self._sensors.values() for table in state.book.columns()]

    def calls(self) -> list[StageCalls]:
        """Every call so far, also those that the flow held or skipped, per stage as declared."""
        return [self._stages[stage.name].log.columns() for stage in self.graph.shape.stages]

    @property
    def faults(self) -> list[SensorFault]:
        """What was wrong with what sensors sent, in order."""
        return list(self._faults)

    @property
    def in_flight(self) -> int:
        """Frames that have no fate yet."""
        return sum(state.book.open for state in self._sensors.values())

    @property
    def waiting(self) -> dict[str, int]:
        """Edge → payloads that lie on it; what a stage holds back for lack of room lies there."""
        edges = [edge for state in self._stages.values() for edge in state.edges]
        return {edge.name: len(edge.queue) for edge in edges}

    @property
    def results(self) -> dict[str, Any]:
        """Sink → its newest result."""
        last = {name: self._stages[name].last for name in self.graph.sinks}
        return {name: payload.value for name, payload in last.items() if payload is not None}

    def _log(self, job: FrameJob, inside: JobState, now: float, times: MeasuredTimes) -> float:
        """Write a call down; returns how long it took."""
        started = inside.started if times.started is None else times.started
        ended = now if times.ended is None else times.ended
        self._stages[job.stage].log.add(job, started, ended, times)
        return ended - started

    def _mode(self, state: StageState, oldest: float, now: float) -> CallMode | Literal["drop"]:
        """How the deadline wants a stage's next call done."""
        policy = state.shape.on_miss
        if policy == "finish":
            return "run"
        left = oldest + self._deadline - now
        if still_needed(state.name, self._times, self.graph.readers) <= left + _CLOCK_SECONDS:
            return "run"
        state.times.full.forget()
        return "run" if policy == "hold" and state.last is None else policy

    def _join(self, state: StageState, now: float) -> JobState | None:
        """The next job, its inputs taken off their edges; None: there is none yet."""
        if not state.partners and not state.lead.reuse:
            single = take_single(state, next(self._numbers), now)
            self._unblock(state, now)
            return single
        while True:
            if state.partners:
                give_up_partners(state, self._copies, now)
                self._unblock(state, now)
            match = find_match(state)
            if match is None:
                return None
            tokens = match.tokens
            if len(tokens) == len(state.edges):
                job = take_inputs(state, tokens, self._copies, next(self._numbers), now)
                self._unblock(state, now)
                return job
            too_late = now > match.lead.oldest + self._deadline + _CLOCK_SECONDS
            reason = why_lost(state, match, too_late)
            if not reason:
                return None
            self._lose_oldest(state.lead.queue.popleft(), state.lead, reason, now)
            self._unblock(state, now)

    def _push(self, edge: Edge, token: FrameToken, now: float) -> bool:
        """Lay a payload on an edge; False: there is no room."""
        if len(edge.queue) < edge.depth:
            edge.queue.append(token)
            edge.decided = token.stamp
            self._woken.add(edge.target)
            return True
        laid, evicted = edge.lay(token)
        if evicted:
            self._lose_oldest(evicted, edge, "superseded" if edge.reuse else "oldest", now)
        if laid:
            self._woken.add(edge.target)
        return laid

    def _hand_on(
        self, state: StageState, job: JobState, output: Payload, delay: Delay, now: float
    ) -> None:
        """Hand a stage's output to all that read it, or out of the sink."""
        state.decided = job.stamp
        if not state.outs:
            self._deliver(state, job, delay, now)
        if not state.outs or state.shape.on_miss == "hold":
            output.holders += 1
            before, state.last = state.last, output
            if before:
                self._copies.let_go(before)
        made = FrameToken(output, job.sources, job.stamp, job.oldest, delay, now)
        if state.only_out is not None:  # one copy comes out and one goes on: their number stays
            output.holders += 1
            self._copies.let_inputs_go(job)
            self._send_on(state, state.only_out, made, now)
        else:
            tokens = [made, *(copy(made) for _ in state.outs[1:])]
            for edge, token in zip(state.outs, tokens, strict=False):
                self._copies.enter(edge, token)
            self._copies.come_out(state, job)
            for edge, token in zip(state.outs, tokens, strict=False):
                self._send_on(state, edge, token, now)
        if state.lead.queue or state.partners:
            self._woken.add(state.name)
        if self._num_blocked:
            self._keep_moving(state, now)

    def _send_on(self, state: StageState, edge: Edge, token: FrameToken, now: float) -> None:
        """Lay an output on its edge, or let it wait there for room, and the stage with it."""
        if not self._push(edge, token, now):
            edge.pending = token
            state.blocked += 1
            self._num_blocked += 1

    def _deliver(self, state: StageState, job: JobState, delay: Delay, now: float) -> None:
        late = now > job.oldest + self._deadline + _CLOCK_SECONDS
        (sink,) = state.sinks
        for book, entry in job.sources:
            book.deliver(entry, sink, now, delay if late else None)

    def _lose(self, job: JobState, state: StageState, loss: Loss) -> None:
        """A frame ends inside a stage."""
        state.decided = job.stamp
        self._copies.lose_inside(job, state, loss)
        self._woken.add(state.name)

    def _lose_oldest(self, token: FrameToken, edge: Edge, reason: str, now: float) -> None:
        """The frame that waited longest on an edge ends there."""
        reader = self._stages[edge.target]
        if edge is reader.lead:
            reader.decided = token.stamp
        self._copies.lose_waiting(token, edge, reason, now)

    def _unblock(self, state: StageState, now: float) -> None:
        """Lay outputs that waited for room at a stage's inputs on their edges, where there is."""
        if not self._num_blocked:
            return
        for edge in state.edges:
            token = edge.pending
            if token is None or not edge.has_room:
                continue
            edge.pending = None
            self._push(edge, token, now)
            source = self._stages[edge.source]
            source.blocked -= 1
            self._num_blocked -= 1
            if not source.busy:
                self._settle(source)
                self._woken.add(source.name)

    def _keep_moving(self, state: StageState, now: float) -> None:
        """Where stages wait for each other in a circle, let the oldest frame on a full edge go."""
        edge = full_edge_of_circle(state, self._stages)
        if edge is not None:
            self._lose_oldest(edge.queue.popleft(), edge, "standstill", now)
            self._unblock(self._stages[edge.target], now)

    def _settle(self, state: StageState) -> None:
        """Tell an idle stage's readers up to which time they have all that it will send."""
        if state.busy:
            return
        upto = state.decided if state.lead.queue else max(state.decided, state.lead.decided)
        if upto > state.told:
            state.told = upto
            for edge in state.outs:
                self._advance(edge, upto)

    def _advance(self, edge: Edge, upto: float) -> None:
        """Nothing that lies up to there will come on an edge any more."""
        if upto <= edge.decided:
            return
        edge.decided = upto
        reader = self._stages[edge.target]
        if reader.partners:
            self._woken.add(reader.name)
        if edge is reader.lead and not edge.queue:
            self._settle(reader)
