"""What drafting tokens ahead should gain one replica."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.cost.serving_clock import StepClock, clock_of
from ridgeline.cost.speculative import Forecast, forecast
from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import Calibration, read_calibration
from ridgeline.plan.serving.estimate import Replica, arrays_of

MOST = 32
"""Drafts per step among which the best number is sought."""


def speculation_gain(
    replica: Replica,
    *,
    running: float,
    num_drafts: int,
    acceptance: float,
    draft: ModelSpec | None = None,
    calibration: Calibration | None = None,
) -> Forecast:
    """The gain per token of decoding, from acceptance, drafts, and the times of steps.

    A step that checks reads weights and cache once for all drafts, but multiplies and samples for
    each. The drafting model's steps are extrapolated to its size: it is far smaller than any model
    that the fit saw.

    Args:
        replica: As for `estimate_serving`.
        running: Sequences that decode at once.
        num_drafts: Per sequence and step.
        acceptance: Chance that a draft which is looked at is accepted.
        draft: What drafts, on the same devices; None: drafts cost nothing (prompt look-up).
        calibration: None: the shipped one.

    Raises:
        InputError: When acceptance or the number of drafts is out of range.
    """
    if num_drafts < 1 or not 0.0 <= acceptance <= 1.0:
        raise InputError("--drafts must be 1 or more and --acceptance between 0 and 1")
    known = calibration or read_calibration()
    count = max(round(running), 1)
    context = round(count * (replica.prompt + replica.answer / 2.0))
    clock = _clock(replica, known)
    drafting = 0.0
    if draft is not None:
        drafting = _clock(replace(replica, model=draft), known)(
            decodes=count, decode_context=context
        )

    def of(drafts: int) -> Forecast:
        return forecast(
            acceptance=acceptance,
            num_drafts=drafts,
            draft_seconds=drafting,
            step_seconds=clock(decodes=count, decode_context=context),
            checking_step_seconds=clock(decodes=count * (drafts + 1), decode_context=context),
        )

    best = max((of(drafts) for drafts in range(1, MOST + 1)), key=lambda one: one.speedup)
    return replace(of(num_drafts), best_num_drafts=best.num_drafts if best.speedup > 1.0 else 0)


def _clock(replica: Replica, calibration: Calibration) -> StepClock:
    arrays = arrays_of([replica], calibration)
    return clock_of(arrays.hosted, arrays.rates)
