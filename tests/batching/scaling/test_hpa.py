"""The horizontal autoscaler and KEDA over time, step by step by hand."""

from __future__ import annotations

import pytest

from ridgeline.batching.scaling.hpa import Hpa, Metric, largest
from ridgeline.batching.scaling.hpa_behaviour import Behaviour, Rate, Rules
from ridgeline.batching.scaling.keda import Keda, Trigger
from ridgeline.batching.scaling.policies import Observation

OPEN = Metric(signal="ridgeline_open_requests", kind="share", target=4000)
"""Four open requests for each pod."""


def seen(busy: int, ready: int, starting: int = 0) -> Observation:
    return Observation(waiting=busy, running=0, kv_usage=0.0, ready=ready, starting=starting)


def driven(policy: Hpa | Keda, load: list[int], every: float, replicas: int) -> list[int]:
    """Replicas after each step; pods are ready at the next."""
    out = []
    for step, busy in enumerate(load):
        replicas = policy.desired(seen(busy, replicas), step * every)
        out.append(replicas)
    return out


def test_a_burst_without_behaviour() -> None:
    """4 at once, doubling after that; down only 300 s (20 passes) after the last high answer."""
    load = [40] * 4 + [4] * 25
    got = driven(Hpa(maximum=10, metrics=(OPEN,)), load, 15.0, 1)
    assert got[:4] == [4, 8, 10, 10]
    # The last answer of 10 came at 45 s. It counts up to and with 345 s, the 24th pass.
    assert got[4:24] == [10] * 20
    assert got[24] == 1


def test_rates_and_windows_of_a_manifest() -> None:
    behaviour = Behaviour(
        up=Rules(rates=(Rate("Pods", 2, 60),), window_seconds=0),
        down=Rules(rates=(Rate("Percent", 50, 60),), window_seconds=60),
    )
    load = [40] * 9 + [4] * 12
    got = driven(Hpa(maximum=10, metrics=(OPEN,), behaviour=behaviour), load, 15.0, 1)
    # Two within any 60 s: at 0, 60 and 120 s. A change at 0 s no longer counts at 60 s.
    assert got[:9] == [3, 3, 3, 3, 5, 5, 5, 5, 7]
    # Answers of 10 reach up to 120 s; strictly younger than 60 s count until 165 s. From 180 s on
    # 7 may be halved (cut off) within 60 s, beginning at 7.
    assert got[9:12] == [7, 7, 7]
    assert got[12:16] == [3, 3, 3, 3]
    assert got[16:20] == [1, 1, 1, 1]


def test_scaling_is_off_at_zero_and_bounds_come_first() -> None:
    hpa = Hpa(minimum=2, maximum=4, metrics=(OPEN,))
    assert hpa.desired(seen(100, 0), 0.0) == 0
    assert hpa.desired(seen(0, 1), 15.0) == 2
    assert hpa.desired(seen(100, 9), 30.0) == 4


def test_several_metrics_the_largest_wins_and_silence_only_stops_the_way_down() -> None:
    assert largest([2, 5], 3) == 5
    assert largest([None, 5], 3) == 5
    assert largest([None, 2], 3) is None
    assert largest([None, None], 3) is None


def test_starting_pods_have_no_values() -> None:
    """Mean 8 at one of two pods, target 4: the other counts as 0, so 4 is on target."""
    metric = Metric(signal="ridgeline_open_requests", kind="average", target=4000)
    hpa = Hpa(maximum=10, metrics=(metric,))
    assert hpa.desired(seen(8, 1, starting=1), 0.0) == 2
    assert hpa.desired(seen(8, 1), 15.0) == 2


def test_own_tolerances() -> None:
    tight = Behaviour(
        up=Rules(rates=(Rate("Pods", 4, 15),), window_seconds=0, tolerance=0.01),
        down=Rules(rates=(Rate("Pods", 4, 15),), window_seconds=0),
    )
    load = seen(13, 3)  # 4.33 for each, target 4: 8 % above
    assert Hpa(maximum=9, metrics=(OPEN,)).desired(load, 0.0) == 3
    assert Hpa(maximum=9, metrics=(OPEN,), behaviour=tight).desired(load, 0.0) == 4


def trigger(activation: float = 0.0) -> Trigger:
    return Trigger(metric=OPEN, activation=activation)


def test_keda_wakes_at_a_poll_and_sleeps_after_the_cooldown() -> None:
    keda = Keda(triggers=(trigger(),), maximum=10, cooldown_seconds=60.0, polling_seconds=30.0)
    replicas, got = 0, {}
    for second in range(200):
        busy = 20 if 10 <= second < 40 else 0
        replicas = keda.desired(seen(busy, replicas), float(second))
        got[second] = replicas
    assert got[29] == 0  # it came at 10 s, and is seen at the poll of 30 s
    assert got[30] == 1
    # The autoscaler, due since 0 s, follows at once: ceil(20 / 4) = 5, but at most 4 from 1.
    assert got[31] == 4
    # At 40 s the load ends; its window of 300 s would hold 5. KEDA last saw it active at 30 s and
    # takes it to zero at the first poll more than 60 s later.
    assert got[90] > 0
    assert got[120] == 0
    assert got[199] == 0


@pytest.mark.parametrize(("busy", "expected"), [(5, 0), (6, 1)])
def test_kedas_trigger_is_active_above_its_threshold_not_at_it(busy: int, expected: int) -> None:
    assert Keda(triggers=(trigger(activation=5.0),)).desired(seen(busy, 0), 0.0) == expected


def test_keda_keeps_a_minimum_and_an_idle_count() -> None:
    """As KEDA's executor tests: from below to the minimum; from idle to the minimum and back."""
    plain = Keda(triggers=(trigger(),), minimum=5, maximum=10)
    assert plain.desired(seen(0, 1), 0.0) == 5
    idle = Keda(triggers=(trigger(),), minimum=5, maximum=10, idle=1, cooldown_seconds=30.0)
    assert idle.desired(seen(20, 1), 0.0) == 5
    assert idle.desired(seen(0, 5), 30.0) == 5  # last active 30 s ago, not longer
    assert idle.desired(seen(0, 5), 60.0) == 1


def test_keda_takes_what_was_never_active_to_zero() -> None:
    assert Keda(triggers=(trigger(),)).desired(seen(0, 3), 0.0) == 3
    late = Keda(triggers=(trigger(),), first_cooldown_seconds=10.0)
    assert late.desired(seen(0, 3), 0.0) == 3
    assert late.desired(seen(0, 3), 30.0) == 0
