"""Chunks of prompts beside decodes, from the times that steps took."""

from __future__ import annotations

import pytest
from tests.batching.test_scheduler import added, scheduler_of, sequence_of, shape

from ridgeline.batching.pace import FIRST_TOKENS, LEAST_TOKENS, StepPace


def paced(decode: float, token: float, *, target: float, steps: int = 40) -> StepPace:
    """A pace that has seen steps of a machine whose times are these."""
    pace = StepPace(target, 2048)
    for _ in range(steps):
        pace.note(0, 8, decode)
        chunk = pace.tokens
        pace.note(chunk, 8, decode + chunk * token)
    return pace


@pytest.mark.parametrize(("decode", "token"), [(0.010, 0.0005), (0.030, 0.0001), (0.001, 0.002)])
def test_a_step_takes_what_the_target_allows(decode: float, token: float) -> None:
    pace = paced(decode, token, target=0.05)
    assert decode + pace.tokens * token == pytest.approx(0.05, rel=0.05)


def test_prompts_go_on_where_decodes_alone_take_longer() -> None:
    assert paced(0.2, 0.001, target=0.05).tokens == LEAST_TOKENS


def test_one_slow_step_changes_nothing() -> None:
    pace = paced(0.01, 0.0005, target=0.05)
    before = pace.tokens
    pace.note(0, 8, 3.0)
    pace.note(64, 8, 3.0)
    assert pace.tokens == before


def test_nothing_is_known_at_first_and_a_whole_prompt_alone_tells() -> None:
    pace = StepPace(0.05, 2048)
    assert pace.tokens == FIRST_TOKENS
    pace.note(2000, 0, 1.0)
    assert pace.tokens == 100


def test_a_pace_holds_only_where_others_decode() -> None:
    scheduler = scheduler_of(max_tokens_per_step=8)
    scheduler.beside_decodes = 2
    model = added(scheduler, sequence_of(7))
    assert shape(model) == [(0, 7)]
    scheduler.add(sequence_of(5, first=9), 0.0)
    assert shape(model) == [(7, 1), (0, 2)]
    assert shape(model) == [(8, 1), (2, 2)]
    assert shape(model) == [(9, 1), (4, 1)]
