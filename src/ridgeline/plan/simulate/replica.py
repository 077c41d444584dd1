"""One engine in simulation: its scheduler is the real one, its steps take what a clock says.

A step is scheduled at its begin and taken in at its end, as the engine does; who arrives in between
waits for the next. While the same sequences decode and nothing can happen, steps are done many at a
time (`batching/ahead.py`), and each still takes its own time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from ridgeline.batching.ahead import advance, may_repeat, steps_ahead
from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.load.stamps import RequestStamps
from ridgeline.batching.pace import REMEMBERED_STEPS, pace_of, prompts_beside_decodes
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Sequence, Slice, Step, work_of
from ridgeline.plan.simulate.drafting import Drafting
from ridgeline.plan.simulate.engine_time import EngineTime
from ridgeline.records.step_log import StepWork


@dataclass(slots=True, eq=False)
class Replica:
    """A replica that `fleet.py` drives: `begin` where it is idle, `end` at `ends`."""

    time: EngineTime
    limits: Limits
    cache: BlockCache
    drafting: Drafting | None
    on_first_token: Callable[[Sequence, float], None]
    """Told of every first token."""
    on_end: Callable[[Sequence, float], None]
    """Told of every sequence that ended, and of every handover."""
    on_gap: Callable[[float, int], None] | None = None
    """Told how long further tokens came after those before, and how many did; None: nobody asks."""
    paced: bool = False
    """Whether prompts beside decodes are cut as `ridgeline serve` does."""
    bulk: bool = True
    """Whether equal steps are taken together; off: every step by itself, to compare."""
    scheduler: Scheduler = field(init=False)
    ends: float | None = None
    """The end of the step under way; None: idle."""
    open: dict[Sequence, RequestStamps] = field(default_factory=dict)
    adopting: list[Sequence] = field(default_factory=list)
    """Prefilled elsewhere, their keys and values here, without room so far."""
    steps: int = 0
    _step: Step | None = None
    _step_seconds: float = 0.0
    _same: bool = False
    """The last step was nothing but decodes, and nobody came or went since."""
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, self.cache)
        self.scheduler.pace = pace_of(self.limits) if self.paced else None
        self._random = Random(f"{self.drafting.seed if self.drafting else 0}/accepted")

    @property
    def waits(self) -> bool:
        """Whether it waits for a batch to fill, and would look again if someone came."""
        return self.ends is not None and self._step is None

    def look_again(self) -> None:
        """End the wait for a batch to fill; whoever drives it begins the next step."""
        self.ends = None

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self.scheduler.has_work or bool(self.adopting)

    def add(self, sequence: Sequence, exchange: RequestStamps, now: float) -> None:
        """Put a request into the queue.

        Raises:
            Refusal: The queue is full, or the prompt too long.
        """
        self._same = False
        self.scheduler.add(sequence, now)
        self.open[sequence] = exchange

    def adopt(self, sequence: Sequence, exchange: RequestStamps) -> None:
        """Go on with a request that was prefilled elsewhere, as soon as there is room."""
        self._same = False
        self.adopting.append(sequence)
        self.open[sequence] = exchange

    def begin(self, now: float, horizon: float) -> float | None:
        """Start the next step; before it, do all that are sure to be over by `horizon`.

        Args:
            now: When the replica is free.
            horizon: Before which nobody comes.

        Returns:
            When it has to be told to `end`; None: there is nothing to do.
        """
        if not self.has_work:
            return None
        self._adopt(now)
        if self.bulk and self.drafting is None:
            now = self._run_ahead(now, horizon)
        if self.drafting is not None:
            self._draft()
        step = self.scheduler.schedule(now)
        if not step.slices:
            starts_at = self.scheduler.starts_at
            assert starts_at is not None or self.adopting, "work, but no step"
            self.ends = starts_at  # to ask again
            return self.ends
        work = work_of(step)
        seconds = self.time.seconds(work)
        if self.drafting is not None:
            plain = work._replace(decodes=sum(not one.count > 1 for one in step.slices))
            drafted = max(map(self.drafting.places, step.slices), default=0)
            seconds += drafted * self.drafting.cost * self.time.seconds(plain)
        for one in step.slices:
            exchange = self.open[one.sequence]
            if exchange.begun is None:
                exchange.begun = now
        self._step, self._step_seconds = step, seconds
        pace = self.scheduler.pace
        withheld = pace is not None and pace.withholds
        self._same = not work.prompt_tokens and not step.preempted and not withheld
        self.ends = now + seconds
        return self.ends

    def end(self) -> float:
        """Take in the step that ends now; returns when the next may begin."""
        assert self.ends is not None
        now, step = self.ends, self._step
        self.ends = None
        if step is None:
            return now
        self._step = None
        self.steps += 1
        if self.scheduler.pace is not None:
            noted = prompts_beside_decodes(step)
            self.scheduler.pace.note(*noted, seconds=self._step_seconds)
        sampled = [
            self._sampled(one) if one.start + one.count == len(one.sequence.tokens) else []
            for one in step.slices
        ]
        self.scheduler.complete(step, sampled, now)
        for one, new in zip(step.slices, sampled, strict=True):
            if not new:
                continue
            sequence = one.sequence
            exchange = self.open[sequence]
            if not exchange.chunks:
                self.on_first_token(sequence, now)
            elif self.on_gap is not None:
                self.on_gap(now - exchange.chunks[-1], 1)
            exchange.chunks.append(now)
            if sequence.finish_reason is not None:
                self._same = False
                self._finish(sequence, now)
        return now + self.time.between_seconds

    def _finish(self, sequence: Sequence, now: float) -> None:
        if sequence.finish_reason is FinishReason.HANDOVER:
            self.scheduler.release(sequence)
        self.on_end(sequence, now)
        del self.open[sequence]

    def _run_ahead(self, now: float, horizon: float) -> float:
        """Do the steps that end by `horizon` and are like each other; the time after them."""
        scheduler = self.scheduler
        waits = bool(scheduler.waiting or self.adopting)
        if waits and not (self._same and may_repeat(scheduler)):
            return now
        most = steps_ahead(scheduler)
        if most < 1:
            return now
        running = scheduler.running
        context = sum(one.num_computed for one in running) + len(running)
        ends = self.time.decodes(len(running), context, now, horizon, most)
        if not ends:
            return now
        advance(scheduler, len(ends))
        if scheduler.pace is not None:
            for index in range(max(0, len(ends) - REMEMBERED_STEPS), len(ends)):
                work = StepWork(decodes=len(running), decode_context=context + index * len(running))
                scheduler.pace.note(0, len(running), seconds=self.time.seconds(work))
        for one in running:
            chunks = self.open[one].chunks
            if self.on_gap is not None:
                self.on_gap(ends[0] - chunks[-1], 1)
            chunks += ends
        if self.on_gap is not None:
            for before, after in pairwise(ends):
                self.on_gap(after - before, len(running))
        self.steps += len(ends)
        return ends[-1] + self.time.between_seconds

    def _adopt(self, now: float) -> None:
        while self.adopting:
            sequence = self.adopting[0]
            if not self.scheduler.adopt(sequence, len(sequence.tokens) - 1, now):
                return
            sequence.first_token_at = self.open[sequence].chunks[0]
            del self.adopting[0]

    def _draft(self) -> None:
        assert self.drafting is not None
        for one in self.scheduler.running:
            if one.num_computed == len(one.tokens) - 1:
                self.drafting.give(one)

    def _sampled(self, one: Slice) -> list[int]:
        accepted = 0
        if one.drafts:
            assert self.drafting is not None
            accepted = self.drafting.accepted(one, self._random)
        return [0] * (1 + accepted)
