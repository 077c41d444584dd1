"""Three ways of batching under one load: the same requests, in order, waiting as the way says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.models import load_model
from ridgeline.plan.simulate.deployment import Deployment
from ridgeline.plan.simulate.playback import play_batching
from ridgeline.plan.simulate.run import simulate_serving
from ridgeline.records.batching_playback import BatchingPlayback
from ridgeline.records.load import Load

MODEL = load_model("llama-3-8b")
OUTSIDE_SECONDS = 0.05
"""More than what HTTP adds before and after the engine."""


def load(rate: float = 4.0, requests: int = 30, seed: int = 0) -> Load:
    return Load(
        arrivals="poisson", rate=rate, requests=requests, input_tokens=256, output_tokens=32,
        seed=seed,
    )  # fmt: skip


def played(seats: int = 4, delay: float = 0.5, **asked: float) -> BatchingPlayback:
    deployment = Deployment(gpu="h100", max_sequences=seats, dynamic_delay_seconds=delay)
    return play_batching(MODEL, load(**asked), deployment)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(
    seats=st.integers(1, 9), rate=st.floats(0.5, 40.0), seed=st.integers(0, 99),
    delay=st.sampled_from([0.0, 0.1, 1.0]),
)  # fmt: skip
def test_requests_pass_through_every_place_in_order(
    seats: int, rate: float, seed: int, delay: float
) -> None:
    found = played(seats, delay, rate=rate, seed=seed)
    arrivals = [[one.arrived_seconds for one in way.requests] for way in found.ways]
    assert arrivals[0] == arrivals[1] == arrivals[2]
    for way in found.ways:
        for one in way.requests:
            assert one.begun_seconds is not None
            assert one.first_token_seconds is not None
            assert one.ended_seconds is not None
            assert one.arrived_seconds <= one.begun_seconds < one.first_token_seconds
            assert one.first_token_seconds <= one.ended_seconds
            under_way = [
                other for other in way.requests
                if (other.begun_seconds or 0.0) <= one.begun_seconds < (other.ended_seconds or 0.0)
            ]  # fmt: skip
            assert len(under_way) <= seats
        places = way.at_moment
        seen = [*places.queue, *places.prefill, *places.decode, *places.done]
        arrived = sum(one.arrived_seconds <= found.moment_seconds for one in way.requests)
        assert sorted(seen) == list(range(arrived))


def test_a_static_batch_lets_nobody_in_before_all_have_left() -> None:
    static = played(rate=20.0).ways[1]
    assert static.batching == "static"
    for one in static.requests:
        for other in static.requests:
            if (one.begun_seconds or 0.0) < (other.begun_seconds or 0.0) - OUTSIDE_SECONDS:
                assert (one.ended_seconds or 0.0) < (other.begun_seconds or 0.0) + OUTSIDE_SECONDS


def test_a_dynamic_batch_starts_once_it_is_full_though_its_delay_is_not_over() -> None:
    dynamic = played(seats=2, delay=1000.0, rate=4.0, requests=8).ways[2]
    for first, second in zip(dynamic.requests[::2], dynamic.requests[1::2], strict=True):
        assert first.begun_seconds == second.begun_seconds
        assert (second.begun_seconds or 0.0) - second.arrived_seconds < 30.0


def test_a_dynamic_batch_that_never_fills_starts_after_its_delay() -> None:
    dynamic = played(seats=64, delay=2.0, rate=0.2, requests=5).ways[2]
    assert all(
        (one.begun_seconds or 0.0) - one.arrived_seconds <= 2.0 + 1.0 for one in dynamic.requests
    )
    first = dynamic.requests[0]
    assert first.begun_seconds == pytest.approx(first.arrived_seconds + 2.0, abs=OUTSIDE_SECONDS)


def test_it_is_the_simulation_of_simulate_serving() -> None:
    found = played(rate=8.0)
    deployment = Deployment(gpu="h100", max_sequences=4, dynamic_delay_seconds=0.5)
    whole = simulate_serving(
        load(rate=8.0), deployment, model=MODEL, interval=False,
        what_if=["batching=static", "batching=dynamic"],
    )  # fmt: skip
    ended = [max(one.ended_seconds or 0.0 for one in way.requests) for way in found.ways]
    assert whole.simulated_seconds == pytest.approx(ended[0])
    assert [one.change for one in whole.what_if] == ["batching=static", "batching=dynamic"]
    waited = [one.figures.ttft_seconds for one in whole.what_if]
    assert all(one is not None and one.p50 > whole.ttft_seconds.p50 for one in waited)  # type: ignore[union-attr]


def test_bad_questions_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "batching", "--model", "llama-3-8b", "--gpu", "h100"]
    for more in (["--requests", "0"], ["--at", "nan"], ["--rate", "-1"], ["--max-sequences", "0"],
                 ["--dynamic-delay", "inf"]):  # fmt: skip
        assert run([*words, *more]) == 2
        assert capsys.readouterr().err.count("\n") == 1, more
    assert run([*words, "--requests", "10", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ways"]) == 3
    words = ["simulate", "serving", "--model", "llama-3-8b", "--gpu", "h100"]
    assert run([*words, "--batching", "sometimes"]) == 2
    assert "is not one of 'continuous', 'static', 'dynamic'" in capsys.readouterr().err
