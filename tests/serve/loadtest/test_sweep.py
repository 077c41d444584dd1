"""Which rates a sweep tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serve.loadtest.sweep import MOST_STAGES, next_rate


@given(st.floats(0.5, 500.0), st.floats(0.5, 500.0))
def test_the_rates_close_in_on_any_capacity(capacity: float, first: float) -> None:
    seen: list[tuple[float, bool]] = []
    while len(seen) < MOST_STAGES and (rate := next_rate(seen, first)) is not None:
        seen.append((rate, rate > capacity))
    held = [rate for rate, lost in seen if not lost]
    lost = [rate for rate, lost in seen if lost]
    if held and lost:
        assert max(held) <= capacity < min(lost)
        if len(seen) < MOST_STAGES:
            assert min(lost) / max(held) < 1.1
