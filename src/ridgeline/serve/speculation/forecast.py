"""What speculation should bring, from what the engine counted and how long things take.

The formulas are those of `ridgeline.cost.speculative` (Leviathan et al., 2211.17192); here the
acceptance that they need is read off the counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.speculative import best_num_drafts, expected_tokens, speculative_speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of one number of drafts."""

    acceptance: float
    """Chance that a draft which is looked at is accepted, taken as the same for all."""
    num_drafts: int
    tokens_per_step: float
    speedup: float
    best_num_drafts: int
    """With the same times; 0: speculation only costs."""


def acceptance_rate(*, accepted: int, rounds: int, num_drafts: int) -> float:
    """α of the draws that were made: accepted drafts over drafts that were looked at.

    A round looks at its drafts up to the first that is refused, so with independent acceptances
    the mean number accepted in a round of γ is α (1 - α^γ) / (1 - α); solved for α by bisection.

    Args:
        accepted: Drafts, over all rounds.
        rounds: Steps of one sequence with drafts.
        num_drafts: γ of each round.

    >>> round(acceptance_rate(accepted=2360, rounds=1000, num_drafts=4), 2)
    0.8
    """
    if rounds < 1 or num_drafts < 1 or not 0 <= accepted <= rounds * num_drafts:
        raise ValueError(f"{accepted} of {rounds} rounds of {num_drafts} drafts were accepted")
    mean = accepted / rounds
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if expected_tokens(middle, num_drafts) - 1.0 < mean else (low, middle)
        )
    return high


def forecast(
    *,
    acceptance: float,
    num_drafts: int,
    draft_seconds: float,
    step_seconds: float,
    checking_step_seconds: float,
) -> Forecast:
    """The gain of speculation.

    Args:
        acceptance: As `acceptance_rate` gives it.
        num_drafts: Per step.
        draft_seconds: To make one draft.
        step_seconds: Of a plain step.
        checking_step_seconds: Of a step that checks `num_drafts` per sequence.
    """
    return Forecast(
        acceptance=acceptance,
        num_drafts=num_drafts,
        tokens_per_step=expected_tokens(acceptance, num_drafts),
        speedup=speculative_speedup(
            acceptance,
            num_drafts,
            draft_seconds=draft_seconds,
            target_seconds=step_seconds,
            check_factor=checking_step_seconds / step_seconds,
        ),
        best_num_drafts=best_num_drafts(
            acceptance, draft_seconds=draft_seconds, target_seconds=step_seconds
        ),
    )
