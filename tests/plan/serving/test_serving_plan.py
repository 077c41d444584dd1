"""One replica's estimate, and the search for the cheapest fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import InputError
from ridgeline.models import load_model
from ridgeline.plan.serving.estimate import estimate_serving
from ridgeline.plan.serving.plan import ServingTask, plan_serving
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import replica_of
from ridgeline.records.serving_plan import ServingEstimate

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


def test_too_many_requests_saturate_a_replica() -> None:
    found = estimate(ServedLoad(kind="open", number=1e4))
    assert found.saturated
    most = found.most_output_tokens_per_second.value
    assert found.output_tokens_per_second.value == pytest.approx(most)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"prompt": 1e6}, "prompt 1e"), ({"tp": 64}, "tp 64"), ({"completion": 1e6}, "completion 1e")],
)
def test_what_no_published_run_is_near_to_is_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        estimate(ServedLoad(kind="closed", number=8.0), **values)


def test_hardware_that_no_published_run_used_is_refused() -> None:
    replica = replica_of(LLAMA, "MI300X", weights="bf16", prompt=1000.0, completion=250.0)
    with pytest.raises(InputError, match="no published run of CDNA 3"):
        estimate_serving(replica, ServedLoad(kind="saturated"))


def test_a_model_that_does_not_fit_says_what_to_do() -> None:
    replica = replica_of(
        load_model("Llama-3.1-70B"), "L40S", weights="fp8", prompt=10.0, completion=10.0
    )
    with pytest.raises(InputError, match="raise tp or take fewer bits"):
        estimate_serving(replica, ServedLoad(kind="saturated"))


def test_a_plan_meets_its_targets_at_the_least_price() -> None:
    found = plan_serving(TASK)
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


def test_users_and_rate_say_the_same_thing_twice() -> None:
    with pytest.raises(InputError, match="either users"):
        plan_serving(replace(TASK, users=10.0))
    by_users = plan_serving(replace(TASK, rate=None, users=100.0)).best
    assert by_users.estimate.running * by_users.replicas == pytest.approx(100.0)


def test_an_impossible_target_says_what_is_possible() -> None:
    with pytest.raises(InputError, match=r"alone, a token takes [\d.]+ ms"):
        plan_serving(replace(TASK, itl_seconds=1e-4, gpus=("h100",)))
