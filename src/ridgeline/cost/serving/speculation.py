"""The gain of speculation: a small model drafts, the large one checks all drafts in one pass.

With α the chance that a draft token is accepted, γ drafts per round, and c the draft model's time
per token over the target's time per pass:

    tokens per round   (1 - α^(γ+1)) / (1 - α)                  Leviathan, Kalman, Matias,
    speed-up           tokens per round / (γ c + 1)             2211.17192, eq. 1, theorem 3.8

The round's last token comes from the target itself: the correction of the first refused draft, or
one more when all are accepted. Acceptances are taken as independent.
"""

from __future__ import annotations

from dataclasses import dataclass


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens that one round yields.

    >>> round(expected_tokens(0.8, 5), 3)
    3.689
    """
    _check(acceptance, num_drafts)
    if acceptance == 1.0:
        return num_drafts + 1.0
    return (1.0 - acceptance ** (num_drafts + 1)) / (1.0 - acceptance)


def speculative_speedup(
    acceptance: float,
    num_drafts: int,
    *,
    draft_seconds: float,
    target_seconds: float,
    check_factor: float = 1.0,
) -> float:
    """Tokens per second over plain decoding.

    `check_factor` is the time of a pass over γ + 1 tokens over that of a pass over one: 1 while
    decoding is memory-bound, more for large batches, where speculation stops paying.

    >>> round(speculative_speedup(0.8, 5, draft_seconds=2e-3, target_seconds=30e-3), 2)
    2.77
    """
    if draft_seconds < 0.0 or target_seconds <= 0.0 or check_factor <= 0.0:
        raise ValueError("times and factors must be above 0")
    round_seconds = num_drafts * draft_seconds + check_factor * target_seconds
    return expected_tokens(acceptance, num_drafts) * target_seconds / round_seconds


def best_num_drafts(
    acceptance: float, *, draft_seconds: float, target_seconds: float, most: int = 64
) -> int:
    """The number of drafts with the largest speed-up; 0: speculation only costs.

    One more draft pays while its chance of being reached and accepted exceeds its cost, and that
    chance only falls, so the first maximum is the only one.

    >>> best_num_drafts(0.8, draft_seconds=2e-3, target_seconds=30e-3)
    7
    """
    best, best_gain = 0, 1.0
    for count in range(1, most + 1):
        gain = speculative_speedup(
            acceptance, count, draft_seconds=draft_seconds, target_seconds=target_seconds
        )
        if gain > best_gain:
            best, best_gain = count, gain
    return best


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The gain of one number of drafts."""

    acceptance: float
    """Chance that a draft which is looked at is accepted, taken as the same for all."""
    num_drafts: int
    tokens_per_step: float
    speedup: float
    best_num_drafts: int
    """With the same times; 0: speculation only costs."""


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


def _check(acceptance: float, num_drafts: int) -> None:
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"an acceptance rate lies between 0 and 1, not at {acceptance}")
    if num_drafts < 0:
        raise ValueError(f"a number of drafts is not below 0: {num_drafts}")
