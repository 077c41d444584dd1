"""The walk finds the last combination that holds, however much sums mislead."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.compress.evaluate.allowance import allowance
from ridgeline.compress.search.budget import MOST_ATTEMPTS, Combination, Option, Walk, path
from ridgeline.records.compression import Divergence, Quality

TARGET = allowance("--target", "ppl+5%")


def quality(loss: float) -> Quality:
    return Quality(
        loss=loss, perplexity=math.exp(loss), word_perplexity=1.0, bits_per_byte=1.0, accuracy=0.0
    )


def combinations_of(losses: list[float]) -> list[Combination]:
    return path(
        {
            f"unit {place}": [Option("as given", 2.0, 0.0), Option("small", 1.0, loss)]
            for place, loss in enumerate(losses)
        }
    )


@given(
    st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=60),
    st.floats(0.1, 10.0),
    st.floats(0.7, 1.5),
)
def test_the_walk_ends_beside_the_budget(losses: list[float], factor: float, power: float) -> None:
    combinations = combinations_of(losses)
    walk = Walk(combinations, quality(2.0), TARGET)

    def measure(one: Combination) -> tuple[Quality, Divergence]:
        rise = factor * one.loss**power
        return quality(2.0 + rise), Divergence(kl_mean=rise, kl_p99=rise, agreement=1.0)

    walk.run(measure)
    assert len(walk.attempts) <= MOST_ATTEMPTS
    held = [
        TARGET.holds(quality(2.0), *measure(one)) if place else True
        for place, one in enumerate(combinations)
    ]
    assert held[walk.low]
    assert walk.high == len(combinations) or not held[walk.high]
    if walk.done:
        assert walk.low == max(place for place, one in enumerate(held) if one)


def test_what_did_not_hold_after_all_is_stepped_back_from() -> None:
    combinations = combinations_of([0.01, 0.011, 0.012, 0.013])
    walk = Walk(combinations, quality(2.0), TARGET)
    near = Divergence(kl_mean=0.01, kl_p99=0.01, agreement=1.0)
    assert walk.tell(3, quality(2.03), near)
    assert not walk.tell(3, quality(2.06), near)
    assert walk.high == 3
    assert walk.next < 3
