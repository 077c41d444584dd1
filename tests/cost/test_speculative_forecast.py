"""What speculation should bring, against a simulation of it."""

from __future__ import annotations

import random

import pytest

from ridgeline.cost.serving.speculation import acceptance_rate, forecast


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("drafts", [1, 4])
def test_the_acceptance_is_found_again_from_the_counters(chance: float, drafts: int) -> None:
    dice = random.Random(1)
    accepted = 0
    for _ in range(5000):
        for _ in range(drafts):
            if dice.random() >= chance:
                break
            accepted += 1
    found = acceptance_rate(accepted=accepted, rounds=5000, num_drafts=drafts)
    assert found == pytest.approx(chance, abs=0.02)


def test_a_forecast_is_tokens_over_time() -> None:
    found = forecast(
        acceptance=0.5,
        num_drafts=2,
        draft_seconds=0.001,
        step_seconds=0.010,
        checking_step_seconds=0.012,
    )
    assert found.tokens_per_step == pytest.approx(1.75)
    assert found.speedup == pytest.approx(1.75 * 0.010 / 0.014)
    assert found.best_num_drafts >= 1


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="were accepted"):
        acceptance_rate(accepted=5, rounds=1, num_drafts=4)
