"""How long an engine's steps take, and what of it is known."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.serving.clock import StepClock
from ridgeline.errors import InputError
from ridgeline.records.step_log import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """A clock for steps, with what surrounds them."""

    clock: StepClock
    between_seconds: float = 0.0
    """From a step's end to the begin of the next, where that follows at once."""
    request_seconds: float = 0.0
    """From a client's sending to the scheduler, and from the engine back to the client."""
    factor: float = 1.0
    """The factor on every step: to see what a slower or faster engine would do."""
    most: StepWork | None = None
    """The largest step that the clock was fitted to, with what may still be asked; None: any."""

    def seconds(self, work: StepWork) -> float:
        """The time of one step.

        Raises:
            InputError: A step like that was never measured.
        """
        if self.most is not None:
            self._check(work)
        return self.factor * self.clock(
            prompt_tokens=work.prompt_tokens,
            prompt_pairs=work.prompt_pairs,
            prompts_done=work.prompts_done,
            decodes=work.decodes,
            decode_context=work.decode_context,
        )

    def decodes(
        self, running: int, context: int, begin: float, horizon: float, most: int
    ) -> list[float]:
        """When each of the coming steps ends in which `running` sequences decode.

        Args:
            running: Sequences.
            context: Tokens that the first of these steps reads.
            begin: Of the first.
            horizon: No step may end later.
            most: Steps.
        """
        clock, factor, between = self.clock, self.factor, self.between_seconds
        ends: list[float] = []
        now = begin
        for _ in range(most):
            now += factor * clock(decodes=running, decode_context=context)
            if now > horizon:
                break
            ends.append(now)
            now += between
            context += running
        if self.most is not None:
            self._check(StepWork(decodes=running, decode_context=context))
        return ends

    def _check(self, work: StepWork) -> None:
        assert self.most is not None
        for name in ("prompt_tokens", "decodes", "decode_context"):
            value, known = getattr(work, name), getattr(self.most, name)
            if value > known:
                raise InputError(
                    f"--steps: a step with {name} {value} is needed, and the log holds for"
                    f" {known} at most: log a run under a higher load, or ask for less"
                )
