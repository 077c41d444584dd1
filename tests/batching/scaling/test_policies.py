"""The policies of `serve --scale-on`, and the patience around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.batching.scaling.burn_rate import Alert, BurnRate
from ridgeline.batching.scaling.policies import KvUsage, Observation, OpenRequests, Stabilised
from ridgeline.batching.scaling.settings import Scaling, policy_of


def seen(busy: int = 0, ready: int = 1, starting: int = 0, **more: float) -> Observation:
    more.setdefault("kv_usage", 0.0)
    return Observation(waiting=0, running=busy, ready=ready, starting=starting, **more)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.1, 100))
def test_no_replica_gets_more_than_its_share_of_requests(waiting, running, share) -> None:
    observation = Observation(waiting=waiting, running=running, kv_usage=0.0, ready=1)
    wanted = OpenRequests(per_replica=share).desired(observation, 0.0)
    assert (waiting + running) <= wanted * share * (1 + 1e-9)
    assert wanted == 0 or (waiting + running) > (wanted - 1) * share * (1 - 1e-9)


def test_kv_usage_follows_ready_caches_and_starts_from_none() -> None:
    policy = KvUsage(target=0.5)
    assert policy.desired(seen(kv_usage=1.0, ready=2), 0.0) == 4
    # A full cache and one that is still starting: two are wanted, and two there will be.
    assert policy.desired(seen(kv_usage=1.0, ready=1, starting=1), 0.0) == 2
    assert policy.desired(seen(ready=0), 0.0) == 0
    waits = Observation(waiting=3, running=0, kv_usage=0.0, ready=0)
    assert policy.desired(waits, 0.0) == 1


class Scripted:
    """Answers from a list."""

    every_seconds = 1.0

    def __init__(self, *answers: int) -> None:
        self._answers = iter(answers)

    def desired(self, observation: Observation, now: float) -> int:
        return next(self._answers)


def followed(policy: Stabilised, steps: int, replicas: int, every: float = 1.0) -> list[int]:
    out = []
    for step in range(steps):
        replicas = policy.desired(seen(ready=replicas), step * every)
        out.append(replicas)
    return out


def test_a_spike_shorter_than_the_window_starts_nothing() -> None:
    policy = Stabilised(policy=Scripted(1, 4, 4, 1, 4, 4, 4, 4), maximum=4, up_window_seconds=2.0)
    assert followed(policy, 8, 1) == [1, 1, 1, 1, 1, 1, 4, 4]


def test_a_pause_shorter_than_the_window_stops_nothing() -> None:
    policy = Stabilised(policy=Scripted(4, 1, 1, 4, 1, 1, 1, 1), maximum=4, down_window_seconds=2.0)
    assert followed(policy, 8, 1) == [4, 4, 4, 4, 4, 4, 1, 1]


def test_steps_and_rests() -> None:
    calm = Stabilised(policy=Scripted(*[9] * 6), maximum=9, most_up=2, cooldown_seconds=2.0)
    assert followed(calm, 6, 1) == [3, 3, 5, 5, 7, 7]
    down = Stabilised(policy=Scripted(*[0] * 4), maximum=9, most_down=3, down_window_seconds=0.0)
    assert followed(down, 4, 9) == [6, 3, 1, 1]


@given(st.lists(st.integers(-5, 50), min_size=1, max_size=40), st.integers(0, 20))
def test_answers_stay_within_bounds_whatever_the_policy_says(answers, there) -> None:
    policy = Stabilised(
        policy=Scripted(*answers), minimum=2, maximum=7, down_window_seconds=3.0, cooldown_seconds=2
    )
    for found in followed(policy, len(answers), there):
        assert 2 <= found <= 7


def test_bounds_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="3 to 2 replicas"):
        Stabilised(policy=OpenRequests(per_replica=1), minimum=3, maximum=2)


ALERTS = (Alert(long_seconds=12.0, burn=10.0, growth=2.0), Alert(120.0, 2.0, 1.25))


def burned(policy: BurnRate, second: float, late: int, total: int, **more: int) -> int:
    """One answer; every second brought ten first tokens so far."""
    counts = {"late_first_tokens": late, "first_tokens": total}
    return policy.desired(seen(**counts, **more), second)


def test_a_fast_burn_doubles_and_a_slow_one_adds() -> None:
    fast = BurnRate(objective=0.9, alerts=ALERTS)
    answers = [burned(fast, s, late=10 * s, total=10 * s, busy=20, ready=4) for s in range(3)]
    assert answers == [4, 8, 8]  # every request misses: 10 times the tenth that may
    slow = BurnRate(objective=0.9, alerts=ALERTS)
    answers = [burned(slow, s, late=3 * s, total=10 * s, busy=20, ready=4) for s in range(12)]
    assert answers[:10] == [4] * 10  # a twelfth of 120 s is needed to know
    assert answers[10] == 5


def test_a_burn_that_is_over_does_nothing() -> None:
    """In the long window much was missed, in the short one nothing is any more."""
    policy = BurnRate(objective=0.9, alerts=ALERTS[:1])
    starting = [burned(policy, s, 10 * s, 10 * s, ready=1, starting=1) for s in range(5)]
    assert starting == [2] * 5
    later = [burned(policy, s, 40, 10 * s, ready=1) for s in range(7, 12)]
    assert later == [1] * 5


def test_nothing_is_added_while_replicas_start_and_windows_begin_anew_with_them() -> None:
    policy = BurnRate(objective=0.9, alerts=ALERTS)
    assert [burned(policy, s, 10 * s, 10 * s, ready=1) for s in range(2)] == [1, 2]
    assert burned(policy, 2.0, 20, 20, ready=1, starting=1) == 2
    # It came up: what was missed before says nothing of two replicas.
    assert [burned(policy, s, 30, 10 * s, ready=2) for s in range(3, 8)] == [2] * 5


def test_requests_that_wait_too_long_burn_before_they_are_answered() -> None:
    policy = BurnRate(objective=0.9, alerts=ALERTS)
    answers = [burned(policy, s, 0, 0, busy=9, ready=1, overdue=9) for s in range(2)]
    assert answers == [1, 2]


def test_calm_takes_one_away_if_the_others_would_have_less_than_when_it_burnt() -> None:
    policy = BurnRate(objective=0.9, alerts=ALERTS)
    for second in range(2):
        burned(policy, second, 10 * second, 10 * second, busy=8, ready=1)  # burns at 8 for each
    calm = [burned(policy, s, 10, 10 * s, busy=12, ready=2) for s in range(2, 125)]
    assert calm == [2] * 123  # one alone would have 12
    assert burned(policy, 125.0, 10, 1250, busy=6, ready=2) == 1


def test_from_no_replica_one_is_started_by_who_waits() -> None:
    policy = BurnRate(objective=0.9)
    assert policy.desired(Observation(waiting=0, running=0, kv_usage=0, ready=0), 0.0) == 0
    assert policy.desired(Observation(waiting=2, running=0, kv_usage=0, ready=0), 1.0) == 1


@pytest.mark.parametrize("on", ["queue", "kv", "slo"])
def test_settings_make_a_policy_with_bounds(on: str) -> None:
    policy = policy_of(Scaling(minimum=1, maximum=3, on=on))
    assert policy.desired(seen(busy=500, kv_usage=1.0), 0.0) in range(1, 4)
    assert policy.desired(seen(busy=500, kv_usage=1.0, ready=5), 1.0) == 3
