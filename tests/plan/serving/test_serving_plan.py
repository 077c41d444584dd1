"""One replica's estimate, and the search for the cheapest fleet."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.models import load_model
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.estimate import estimate_serving
from ridgeline.plan.serving.plan import ServingTask, _options, plan_serving
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import replica_of
from ridgeline.plan.serving.tail import REQUESTS, fewest
from ridgeline.plan.simulate.deployment import Deployment
from ridgeline.plan.simulate.run import Simulated, simulate_serving
from ridgeline.records.load import Load
from ridgeline.records.serving_plan import ServingEstimate, ServingPlan

LLAMA = load_model("Llama-3.1-8B")
TASK = ServingTask(
    model=LLAMA, prompt=1000.0, completion=250.0, rate=40.0, ttft_seconds=1.0, itl_seconds=0.03
)


def estimate(load: ServedLoad, **values: object) -> ServingEstimate:
    asked = {"weights": "fp8", "prompt": 1000.0, "completion": 250.0} | values
    return estimate_serving(replica_of(LLAMA, "H100", **asked), load)


def test_an_open_loop_below_saturation_answers_what_arrives() -> None:
    found = estimate(ServedLoad(kind="open", number=5.0))
    assert found.requests_per_second.value == pytest.approx(5.0)
    assert not found.saturated
    # Little's law: requests under way are those that arrive while one is answered.
    assert found.running == pytest.approx(5.0 * 250 * found.tpot_seconds.value, rel=0.05)


def test_a_first_token_beside_many_is_less_sure_and_a_token_is_not() -> None:
    alone, many = (estimate(ServedLoad(kind="closed", number=users)) for users in (1.0, 64.0))

    def width(one: ServingEstimate, name: str) -> float:
        found = getattr(one, name)
        return float(found.interval[1] / found.value)

    assert width(many, "ttft_seconds") == pytest.approx(width(alone, "ttft_seconds") ** 64**0.1)
    assert width(many, "tpot_seconds") == pytest.approx(width(alone, "tpot_seconds"))


def test_too_many_requests_saturate_a_replica() -> None:
    found = estimate(ServedLoad(kind="open", number=1e4))
    assert found.saturated
    most = found.most_output_tokens_per_second.value
    assert found.output_tokens_per_second.value == pytest.approx(most)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"prompt": 1e6}, "prompt 1e"), ({"completion": 1e6}, "completion 1e")],
)
def test_what_lies_far_above_all_published_runs_is_refused(
    values: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        estimate(ServedLoad(kind="closed", number=8.0), **values)


@pytest.mark.parametrize(
    ("model", "gpu", "words"),
    [
        ("Llama-3.1-8B", "MI300X", "no published run of CDNA 3 with bf16"),
        ("qwen3-0.6b", "h100", "parameters 5.96e+08 is outside"),
    ],
)
def test_what_no_published_run_is_near_to_is_answered_in_doubt(
    model: str, gpu: str, words: str
) -> None:
    replica = replica_of(load_model(model), gpu, prompt=1000.0, completion=250.0)
    found = estimate_serving(replica, ServedLoad(kind="closed", number=8.0))
    assert found.assumed[-1].startswith(words)
    known = replica_of(LLAMA, "h100", prompt=1000.0, completion=250.0)
    near = estimate_serving(known, ServedLoad(kind="closed", number=8.0))
    widths = [one.tpot_seconds.interval[1] / one.tpot_seconds.value for one in (found, near)]
    assert widths[0] > 1.02 * widths[1]


def test_a_model_that_does_not_fit_says_what_to_do() -> None:
    replica = replica_of(
        load_model("Llama-3.1-70B"), "L40S", weights="fp8", prompt=10.0, completion=10.0
    )
    with pytest.raises(InputError, match="raise tp or take fewer bits"):
        estimate_serving(replica, ServedLoad(kind="saturated"))


def test_a_plan_meets_its_targets_at_the_least_price() -> None:
    found = plan_serving(replace(TASK, gpus=("H100", "A100", "L40S", "RTX-4090")))
    best = found.best
    assert best.estimate.ttft_seconds.value <= 1.0
    assert best.estimate.tpot_seconds.value <= 0.03
    assert best.usd_per_hour is not None
    for other in found.others:
        assert other.usd_per_hour is None or other.usd_per_hour >= best.usd_per_hour
    assert best.replicas_interval[0] <= best.replicas <= best.replicas_interval[1]
    assert best.headroom >= TASK.headroom - 1e-6
    assert {change.what for change in found.changes} >= {"twice the load", "weights in bf16 only"}


@pytest.mark.slow
def test_harder_questions_cost_more() -> None:
    easy = plan_serving(TASK).best.usd_per_hour
    tighter = replace(TASK, itl_seconds=0.007)
    more = replace(TASK, rate=400.0)
    for task in (tighter, more):
        cost = plan_serving(task).best.usd_per_hour
        assert cost is not None
        assert easy is not None
        assert cost > easy


@pytest.mark.slow
def test_users_and_rate_say_the_same_thing_twice() -> None:
    with pytest.raises(InputError, match="either users"):
        plan_serving(replace(TASK, users=10.0))
    by_users = plan_serving(replace(TASK, rate=None, users=100.0)).best
    assert by_users.estimate.running * by_users.replicas == pytest.approx(100.0)


def test_an_impossible_target_says_what_is_possible() -> None:
    with pytest.raises(InputError, match=r"alone, a token takes [\d.]+ ms"):
        plan_serving(replace(TASK, itl_seconds=1e-4, gpus=("h100",)))


TAIL = replace(
    TASK, gpus=("H100-PCIe-80GB",), weights=("fp8",), ttft_p99_seconds=0.14, itl_p99_seconds=0.06
)


@pytest.mark.slow
def test_replicas_are_added_until_the_simulated_99th_percentiles_are_within() -> None:
    loose = replace(TAIL, ttft_p99_seconds=10.0, itl_p99_seconds=10.0)
    by_mean = _options(loose, read_calibration())[0][0].tail
    assert by_mean is not None
    ttft, itl = 0.97 * by_mean.ttft_p99_seconds, 10.0
    task = replace(loose, ttft_p99_seconds=ttft)
    best = _options(task, read_calibration())[0][0]
    assert best.tail is not None
    assert best.tail.ttft_p99_seconds <= ttft
    assert best.replicas > best.replicas_by_mean
    # One replica fewer misses them, in a simulation of its own.
    load = Load(
        arrivals="poisson",
        rate=40.0 / (best.replicas - 1),
        requests=REQUESTS,
        input_tokens=1000,
        output_tokens=250,
        seed=0,
    )
    placed = Deployment(
        gpu="H100-PCIe-80GB", weights="fp8", max_tokens_per_step=8192, max_sequences=1024
    )
    fewer = simulate_serving(load, placed, model=LLAMA, interval=False)
    assert fewer.itl_seconds is not None
    assert fewer.ttft_seconds is not None
    assert fewer.itl_seconds.p99 > itl or fewer.ttft_seconds.p99 > ttft


def test_a_99th_percentile_that_nothing_reaches_says_what_was_seen() -> None:
    with pytest.raises(InputError, match=r"H100-PCIe-80GB: (alone|with \d+ replicas)"):
        plan_serving(replace(TAIL, ttft_p99_seconds=0.01))


@pytest.mark.slow
def test_where_no_first_token_comes_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.plan.serving.tail.simulate_serving", _unanswered)
    with pytest.raises(InputError, match="no first token came") as caught:
        plan_serving(TAIL)
    assert "inf" not in str(caught.value)


def _unanswered(load: Load, deployment: Deployment, **asked: Any) -> Simulated:
    found = simulate_serving(load, deployment, **asked)
    return msgspec.structs.replace(found, ttft_seconds=None, itl_seconds=None)


@given(fits_from=st.integers(1, 400), least=st.integers(1, 400), most=st.integers(0, 400))
def test_the_fewest_that_fit_are_found(fits_from: int, least: int, most: int) -> None:
    found = fewest(lambda number: number >= fits_from, least, least + most)
    expected = max(fits_from, least)
    assert found == (expected if expected <= least + most else None)


@pytest.mark.slow
def test_a_tighter_tail_never_costs_less() -> None:
    paid = []
    for seconds in (0.3, 0.14, 0.1):
        plan = plan_serving(replace(TASK, weights=("fp8",), ttft_p99_seconds=seconds))
        assert plan.best.usd_per_hour is not None
        paid.append(plan.best.usd_per_hour)
    assert paid == sorted(paid)


SPLIT = replace(TASK, gpus=("H100", "RTX-4090"), weights=("fp8",), split=True)


@cache
def planned_apart() -> ServingPlan:
    """The plan of `SPLIT`, which several tests ask for."""
    return plan_serving(SPLIT)


def test_prompts_and_decoding_may_be_bought_apart() -> None:
    plan = planned_apart()
    cheapest, *others = plan.splits
    assert all(one.prefill.gpu != one.decode.gpu for one in others)
    assert cheapest.usd_per_hour is not None
    assert cheapest.requests_per_second == pytest.approx(40.0)
    assert cheapest.ttft_seconds.value <= 1.0
    assert cheapest.tpot_seconds.value <= 0.03
    assert cheapest.prefill_use <= 0.8
    sides = (cheapest.prefill, cheapest.decode)
    assert cheapest.num_gpus == sum(one.replicas * one.tp for one in sides)
    assert cheapest.usd_per_hour == pytest.approx(sum(one.usd_per_hour or 0.0 for one in sides))
    assert plan_serving(replace(SPLIT, split=False)).splits == []


def test_a_split_for_users_serves_as_many_as_ask() -> None:
    found = plan_serving(replace(SPLIT, rate=None, users=100.0)).splits[0]
    cycle = found.ttft_seconds.value + 249 * found.tpot_seconds.value
    assert found.requests_per_second * cycle == pytest.approx(100.0, rel=0.02)


def test_a_slow_way_between_replicas_and_a_tight_target_cost_more() -> None:
    usual = planned_apart().splits[0]
    slow = plan_serving(replace(SPLIT, link_bytes_per_second=0.5e9)).splits[0]
    assert slow.transfer_seconds > usual.transfer_seconds + 0.05
    tight = plan_serving(replace(SPLIT, itl_seconds=0.012)).splits[0]
    assert (tight.usd_per_hour or 0.0) > (usual.usd_per_hour or 0.0)
    with pytest.raises(InputError, match="--split is planned for mean latencies"):
        plan_serving(replace(SPLIT, ttft_p99_seconds=1.0))


def test_a_split_fleet_that_is_planned_holds_its_targets_when_it_is_simulated() -> None:
    found = plan_serving(replace(SPLIT, gpus=("H100",), rate=20.0)).splits[0]
    placed = Deployment(
        gpu=found.decode.gpu,
        tp=found.decode.tp,
        weights="fp8",
        replicas=found.prefill.replicas + found.decode.replicas,
        prefill_replicas=found.prefill.replicas,
        prefill_gpu=found.prefill.gpu,
        prefill_tp=found.prefill.tp,
        max_tokens_per_step=8192,
        max_sequences=1024,
    )
    load = Load(
        arrivals="poisson", rate=20.0, requests=200, input_tokens=1000, output_tokens=250, seed=0
    )
    seen = simulate_serving(load, placed, model=LLAMA, interval=False)
    assert seen.ttft_seconds is not None
    assert seen.itl_seconds is not None
    assert seen.ttft_seconds.mean < 1.0
    assert seen.itl_seconds.mean == pytest.approx(found.tpot_seconds.value, rel=0.1)
