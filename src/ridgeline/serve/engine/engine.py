"""The loop of the engine: messages in, one step after another, messages out; it never waits.

    engine = ServingEngine(EngineConfig(model="examples/models/library"))
    engine.handle(Submit(id="a", prompt=(1, 2, 3), sampling=Sampling(temperature=0.0)))
    while engine.has_work:
        engine.step()
        for message in engine.take(): ...

A step: drafts are proposed, the scheduler says which tokens to compute, the model computes them,
tokens are picked, and what became of each completion goes out as one `Delta`.

No request ends the engine: what is wrong with one is refused, and one at which a step fails is
found (`attempt.py`) and ends alone with an error. What ends it is a broken engine.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import torch

from ridgeline.batching.pace import pace_of, prompts_beside_decodes
from ridgeline.batching.sequence import Step, work_of
from ridgeline.errors import InputError
from ridgeline.records.step_log import StepRow
from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine import step_rows
from ridgeline.serve.engine.admission import Admission
from ridgeline.serve.engine.attempt import NOT_A_FAILURE, RanksLost, StepAttempt, without_culprits
from ridgeline.serve.engine.log import StepLog
from ridgeline.serve.engine.outcomes import Outcomes
from ridgeline.serve.engine.requests import RequestBooks
from ridgeline.serve.engine.start import build_parts
from ridgeline.serve.engine.step_rows import Flight, Flights, Worked
from ridgeline.serve.messages import (
    Abort,
    Done,
    Embed,
    ForgetPrefixes,
    FromEngine,
    LoadAdapter,
    Ready,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.serve.model.batch import StepBatch

LONGEST_WAIT_SECONDS = 1e-3
"""The most that an empty step waits, so that messages are still taken in time."""


class ServingEngine:
    """Runs in one thread, which must be the process's main one on a CPU.

    Raises:
        InputError: The model cannot be served as configured; the line says what to change.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._step_log = None if config.step_log is None else StepLog(config.step_log)
        parts = build_parts(config)
        self.ready: Ready = parts.ready
        self.model = parts.loaded
        self.pool = parts.pool
        self.scheduler = parts.scheduler
        self._cache = parts.cache
        self._adapters = parts.adapters
        self._runner = parts.runner
        self._inputs = parts.inputs
        self._speculating = parts.speculating
        self._ranks = parts.ranks
        self._requests = RequestBooks()
        self._outcomes = Outcomes(
            parts.scheduler, parts.inputs, parts.speculating, self._requests, clock, parts.pool.move
        )
        self._admission = Admission(config, parts, self._requests, self._outcomes, clock)
        parts.scheduler.pace = pace_of(parts.scheduler.limits, config.itl_target_seconds)
        self.forward_seconds = 0.0
        """Time of the model in the last step; on a GPU only until it was launched."""
        self._step_seconds = 0.0
        self._last_ended = -math.inf
        self._flights = Flights()

    def watch(self, lost: Callable[[str], None]) -> None:
        """Have it told, from any thread, that a rank of the model has ended."""
        if self._ranks is not None:
            self._ranks.watch(lost)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something, now or a little later."""
        return self.scheduler.has_work or self._admission.has_arriving or bool(self._flights)

    def preparation(self, message: ToEngine) -> Callable[[], ToEngine] | None:
        """What of a message must not be done between two steps; see `Admission.preparation`."""
        return self._admission.preparation(message)

    def refuse(self, message: ToEngine, error: BaseException) -> None:
        """Let `take` say why a message is not served."""
        self._outcomes.refuse(message.id, error)

    def handle(self, message: ToEngine) -> None:
        """Take a message; what is wrong with it comes out of `take` as `Refused`."""
        admission = self._admission
        try:
            match message:
                case Submit():
                    admission.submit(message)
                case Abort():
                    admission.abort(message.id)
                case Embed():
                    admission.embed(message)
                case LoadAdapter():
                    admission.load_adapter(message)
                    self._outcomes.send(Done(id=message.id))
                case UnloadAdapter():
                    admission.unload_adapter(message)
                    self._outcomes.send(Done(id=message.id))
                case ForgetPrefixes():
                    self._cache.forget()
                    self._outcomes.send(Done(id=message.id))
        except Exception as error:
            self._outcomes.refuse(message.id, error)

    def take(self) -> list[FromEngine]:
        """The messages that have come out since the last call."""
        return self._outcomes.take()

    def export_kv(self, request_id: str) -> SequenceKv:
        """A copy of the KV of a request that ended with `handover`; its blocks are free again.

        Raises:
            InputError: There is none, or not any more.
        """
        sequence = self._requests.handed_over.pop(request_id, None)
        if sequence is None:
            raise InputError(f"no prefilled request {request_id} waits to be handed over")
        kv = self.pool.read(sequence.blocks, sequence.tokens)
        self.scheduler.release(sequence)
        return kv

    def import_kv(self, submit: Submit, kv: SequenceKv) -> None:
        """Go on with a request that another engine has prefilled; see `Admission.import_kv`."""
        self._admission.import_kv(submit, kv)

    def stats(self) -> Stats:
        """The engine's state now, and its counters since the start."""
        counters = self.scheduler.counters
        group = None if self._ranks is None else self._ranks.group
        return Stats(
            at=self._clock(),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            cache_usage=self._cache.usage,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            wasted_tokens=counters.wasted_tokens,
            draft_rounds=counters.draft_rounds,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            speculating=self._speculating is not None and self._speculating.active,
            adapters=self._adapters.names,
            step_seconds=self._step_seconds,
            collective_seconds=0.0 if group is None else group.seconds,
            collective_bytes=0 if group is None else group.bytes,
        )

    def close(self) -> None:
        """Drop every request and free what can be freed."""
        for request_id in self._requests.ids:
            self._admission.abort(request_id)
        if self._ranks is not None:
            with contextlib.suppress(RanksLost):
                while self._flights:
                    self._runner.finish(self._flights.land().number)
            self._ranks.close()
        if self._step_log is not None:
            self._step_log.close()

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one step if there is something to compute now.

        Where several are under way at a time, one more is begun, and once they are as many as
        stages, the first one is finished.
        """
        began = self._clock()
        self._admission.adopt(began)
        self._admission.look()
        if self._speculating is not None:
            self._speculating.propose(self.scheduler.running, self._requests.completions, began)
        most = self._most_flights
        while self._flights and len(self._flights) >= most:
            self._land()
        step = self._scheduled(began, most)
        if most == 1:
            if step is not None:
                self._take_in(step, self._attempt(step, self._work), began)
            return
        if step is not None:
            rows = self._outcomes.assign(step)
            number = self._runner.begin(self._batch(step))
            self._flights.begin(Flight(step, rows, number, began))
        if self._flights and (step is None or len(self._flights) == most):
            self._land()

    @property
    def _most_flights(self) -> int:
        """How many steps may be under way at a time."""
        alone = self._speculating is not None or bool(self._requests.searches)
        if alone or not self._runner.overlaps:
            return 1
        count = len(self.scheduler.running) + len(self.scheduler.waiting)
        return max(1, min(self._config.pp, count // step_rows.LEAST_SEQUENCES))

    def _scheduled(self, began: float, most: int) -> Step | None:
        """The next step, of which as many as `most` are under way; None: there is none now."""
        if most == 1:
            step = self.scheduler.schedule(began)
        else:
            count = len(self.scheduler.running) + len(self.scheduler.waiting)
            each = max(1, -(-count // most))
            step = self.scheduler.schedule(began, self._flights.sequences, each)
        for sequence in step.preempted:
            self._inputs.forget(sequence)
        if not step.slices:
            if not self._flights:
                self._wait(began)
            return None
        if step.copies:
            self._runner.copy(step.copies)
        return step

    def _land(self) -> None:
        """Finish the step that has been under way for longest."""
        flight = self._flights.land()
        tried = False

        def work(step: Step) -> Worked:
            nonlocal tried
            if tried:
                return self._work(step)  # what it has come to is one request's fault
            tried = True
            computed = self._runner.finish(flight.number)
            return self._outcomes.pick(flight.step, computed, flight.rows.of_living())

        step = flight.living
        if not step.slices:
            self._runner.finish(flight.number)
            return
        self._take_in(step, self._attempt(step, work), flight.began)

    def _attempt(self, step: Step, work: Callable[[Step], Worked]) -> StepAttempt[Worked]:
        """A step for all who are in it, or for those who do not make it fail."""
        try:
            return StepAttempt([work(step)])
        except NOT_A_FAILURE:
            raise
        except BaseException as error:
            return without_culprits(
                step,
                work,
                error,
                request_of=self._requests.id_of,
                block_size=self._cache.block_size,
                probe=self._runner.probe,
            )

    def _take_in(self, step: Step, found: StepAttempt[Worked], began: float) -> None:
        """Let requests know what came of a step, and count it."""
        work = None if self._step_log is None else work_of(step)
        pace = self.scheduler.pace
        noted = None if pace is None else prompts_beside_decodes(step)
        num_tokens = sum([self._outcomes.advance(worked) for worked in found.worked])
        for sequence in found.postponed:
            self._outcomes.postpone(sequence)
        for request_id, error in found.failed:
            self._outcomes.fail(request_id, error)
        ended = self._clock()
        # Of several under way at a time, each is counted from the end of the one before it.
        alone = ended - max(began, self._last_ended)
        self._last_ended = ended
        self._step_seconds += alone
        if pace is not None and noted is not None:
            pace.note(*noted, seconds=ended - began)
        if self._speculating is not None:
            self._speculating.record(step, num_tokens, ended - began, ended)
        if self._step_log is not None and work is not None:
            left = len(self.scheduler.running) + len(self.scheduler.waiting)
            self._step_log.add(StepRow(ended - alone, alone, left, work))
        if self._config.debug:
            self.scheduler.check()

    def _work(self, step: Step) -> Worked:
        """Compute a step and pick from it; nothing but the blocks of its own tokens changes."""
        rows = self._outcomes.assign(step)
        batch = self._batch(step)
        forward = self._clock()
        computed = self._runner.forward(batch)
        self.forward_seconds = self._clock() - forward
        return self._outcomes.pick(step, computed, rows)

    def _batch(self, step: Step) -> StepBatch:
        requests = self._requests
        return self._inputs.batch(
            step,
            rows_of=requests.rows_of,
            adapters=requests.adapter_indices,
            images=requests.images,
        )

    def _wait(self, now: float) -> None:
        """Wait for the time of a batch that is not full yet; nothing else is worth waiting for."""
        starts_at = self.scheduler.starts_at
        if starts_at is not None:
            time.sleep(min(max(starts_at - now, 0.0), LONGEST_WAIT_SECONDS))
