"""What the parameter server does with gradients, without a process."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.asynchronous import asynchronous_forecast, stable_rate
from ridgeline.errors import InputError
from ridgeline.train.asynchronous.rules import AsynchronousSettings, ParameterServer


def server(rule: str, workers: int = 3, **settings: object) -> ParameterServer:
    chosen = AsynchronousSettings(workers=workers, rule=rule, **settings)  # type: ignore[arg-type]
    return ParameterServer([torch.zeros(2)], chosen)


def ones(value: float = 1.0) -> list[torch.Tensor]:
    return [torch.full((2,), value)]


def test_the_synchronous_rule_averages_and_answers_all_at_once() -> None:
    held = server("synchronous", learning_rate=0.5)
    assert held.receive(0, 0, ones(1.0)) == []
    assert held.receive(2, 0, ones(2.0)) == []
    assert held.receive(1, 0, ones(6.0)) == [0, 1, 2]
    assert held.weights[0].tolist() == [-1.5, -1.5]
    assert (held.version, dict(held.staleness)) == (1, {0: 3})


def test_a_late_gradient_moves_less_and_a_later_one_nothing() -> None:
    held = server("drop", learning_rate=1.0, max_staleness=1)
    assert held.receive(0, 0, ones()) == [0]
    assert held.receive(1, 0, ones()) == [1]
    assert held.weights[0].tolist() == [-1.5, -1.5]
    assert held.receive(2, 0, ones()) == [2]
    assert held.weights[0].tolist() == [-1.5, -1.5]
    assert held.dropped == 1
    plain = server("drop", learning_rate=1.0, staleness_power=0.0)
    for worker in range(3):
        plain.receive(worker, 0, ones())
    assert plain.weights[0].tolist() == [-3.0, -3.0]


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest() -> None:
    held = server("wait", workers=2, max_staleness=1)
    assert held.receive(0, 0, ones()) == [0]
    assert held.receive(0, 1, ones()) == []
    assert held.receive(1, 0, ones()) == [0, 1]
    assert held.leave(1) == []


def test_those_who_waited_for_a_worker_that_leaves_go_on() -> None:
    held = server("wait", workers=2, max_staleness=0)
    assert held.receive(0, 0, ones()) == []
    assert held.leave(1) == [0]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 4))
def test_nobody_is_further_ahead_than_allowed_and_nobody_is_forgotten(
    order: list[int], bound: int
) -> None:
    held = server("wait", workers=4, max_staleness=bound)
    free, steps = {0, 1, 2, 3}, [0, 0, 0, 0]
    for wanted in order:
        worker = wanted if wanted in free else min(free)
        free.discard(worker)
        steps[worker] += 1
        free.update(held.receive(worker, held.version, ones()))
        assert free, "somebody can always go on"
        assert max(steps) - min(steps) <= bound + 1
    assert held.version == len(order)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rule": "soon"}, {"workers": 0}, {"learning_rate": 0.0}, {"max_staleness": -1}),
        *({"workers": 1.5}, {"workers": True}, {"max_staleness": 2.5}),
        *({"learning_rate": math.nan}, {"learning_rate": math.inf}, {"staleness_power": math.nan}),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        AsynchronousSettings(**({"workers": 2} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [0, 1, 2, 5, 11])
def test_delayed_descent_is_stable_up_to_the_forecast_rate_and_not_beyond(delay: int) -> None:
    def grows(rate: float) -> bool:
        path = [1.0] * (delay + 1)
        for _ in range(4000):
            path.append(path[-1] - rate * path[-1 - delay])
        return max(abs(one) for one in path[-50:]) > 1.0

    limit = 2.0 * stable_rate(delay)
    assert not grows(0.98 * limit)
    assert grows(1.02 * limit)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8))
def test_no_barrier_never_gives_fewer_gradients_and_staleness_adds_up(times: list[float]) -> None:
    found = asynchronous_forecast(times)
    assert found.throughput_ratio >= 1.0 - 1e-9
    rates = [1.0 / one for one in times]
    by_worker = [one * sum(rates) - 1.0 for one in times]
    mean = sum(late * rate for late, rate in zip(by_worker, rates, strict=True)) / sum(rates)
    assert found.mean_staleness == pytest.approx(mean, abs=1e-6)
    assert math.isclose(found.worst_staleness, max(by_worker), rel_tol=1e-9, abs_tol=1e-9)
