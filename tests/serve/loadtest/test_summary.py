"""Figures and signs of saturation, from stamps that a queue of known capacity would leave."""

from __future__ import annotations

import pytest

from ridgeline.batching.load.stamps import RequestStamps
from ridgeline.batching.load.summary import meets, summarise, timeline, window_of
from ridgeline.records.load_test import Slo
from ridgeline.serve.loadtest.drive import Driven
from ridgeline.serve.loadtest.sweep import saturation


def queued(rate: float, slots: int, seconds: float, service: float = 0.1) -> Driven:
    """Constant arrivals at a server that answers `slots` at once: two chunks of two tokens each."""
    free, driven = [0.0] * slots, Driven()
    for number in range(int(rate * seconds)):
        planned = number / rate
        slot = min(range(slots), key=free.__getitem__)
        begin = max(planned, free[slot])
        free[slot] = begin + service
        driven.exchanges.append(
            RequestStamps(
                planned=planned,
                sent=planned,
                chunks=[begin + service / 2, begin + service],
                ended=begin + service,
                prompt_tokens=5,
                output_tokens=4,
            )
        )
    driven.sent_seconds = driven.exchanges[-1].planned
    return driven


def test_rates_are_those_of_the_window() -> None:
    found = summarise(queued(160.0, 20, 3.0), 0.3, Slo())
    assert found.requests_per_second == pytest.approx(160, rel=0.02)
    assert found.output_tokens_per_second == pytest.approx(640, rel=0.02)
    assert found.in_flight == pytest.approx(16, rel=0.01)
    assert found.tpot_seconds.p50 == pytest.approx(0.05 / 3)


def test_slices_of_the_timeline_share_no_token_and_lose_none() -> None:
    driven = queued(160.0, 20, 3.0)
    points = timeline(driven)
    tokens = sum(point.output_tokens_per_second * point.seconds for point in points)
    assert tokens == pytest.approx(4 * len(driven.exchanges))
    assert sum(point.finished_per_second * point.seconds for point in points) == pytest.approx(480)


@pytest.mark.parametrize("rate", [10.0, 80.0, 160.0, 190.0])
def test_a_server_that_keeps_up_is_not_saturated(rate: float) -> None:
    assert saturation(queued(rate, 20, 2.0), 0.2) == ""


@pytest.mark.parametrize("rate", [230.0, 400.0, 1000.0])
def test_a_growing_queue_is_saturation(rate: float) -> None:
    assert "grow" in saturation(queued(rate, 20, 2.0), 0.2)


def test_failed_requests_are_saturation() -> None:
    driven = queued(50.0, 20, 2.0)
    for one in driven.exchanges[::20]:
        one.error = "status 429"
    assert "failed" in saturation(driven, 0.2)


def test_a_short_run_is_measured_to_its_last_answer() -> None:
    driven = queued(50.0, 20, 0.1, service=2.0)
    assert window_of(driven, 0.0)[1] == pytest.approx(driven.exchanges[-1].ended)


def test_an_objective_between_tokens_does_not_bind_an_answer_of_one() -> None:
    one = RequestStamps(planned=0.0, chunks=[0.5], output_tokens=1)
    assert meets(one, Slo(ttft_seconds=1.0, itl_seconds=0.001, tpot_seconds=0.001))
    assert not meets(one, Slo(ttft_seconds=0.1))
    unknown = RequestStamps(planned=0.0, chunks=[0.5, 0.6])
    assert not meets(unknown, Slo(tpot_seconds=1.0)), "what was not counted was not met"
