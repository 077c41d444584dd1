"""What comes first, and what is not said at all."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.profiles import limits, op, profile

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.diagnose.ranking import is_worthwhile, ranked
from ridgeline.records import Finding


def a_finding(cause: str = "a", low: float = 1.2, high: float = 1.5, **changes: Any) -> Finding:
    return Finding(
        cause=cause,
        share=0.3,
        gain_low=low,
        gain_high=high,
        summary="It is so.",
        evidence={"num_calls": 1},
        where=[],
        cure="Do otherwise.",
        **{"confidence": 0.9, "effort": "line", **changes},
    )


def causes(*findings: Finding) -> list[str]:
    return [finding.cause for finding in ranked(findings)]


def test_a_setting_comes_before_a_redesign_that_gains_the_same() -> None:
    assert causes(a_finding("design", effort="design"), a_finding("flag", effort="flag")) == [
        "flag",
        "design",
    ]


def test_the_surer_of_two_equal_gains_comes_first() -> None:
    assert causes(a_finding("maybe", confidence=0.5), a_finding("sure")) == ["sure", "maybe"]


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.05), (1.01, 1.03), (1.0, 1.0001)])
def test_a_gain_within_the_noise_is_not_worth_telling(low: float, high: float) -> None:
    assert not is_worthwhile(a_finding(low=low, high=high))


def test_a_guess_is_not_worth_telling() -> None:
    assert not is_worthwhile(a_finding(confidence=0.2))


def test_a_sure_warning_comes_before_a_modest_gain_but_not_before_a_large_one() -> None:
    warning = a_finding("nan", low=1.0, high=1.0, confidence=1.0)
    assert causes(a_finding("modest"), warning) == ["nan", "modest"]
    large = a_finding("large", low=8.0, high=12.0)
    assert causes(warning, large) == ["large", "nan"]


def test_a_short_tail_does_not_come_before_a_gain_as_a_long_one_does() -> None:
    gain = a_finding("gain", low=1.15, high=1.4, confidence=0.65)
    short, long = (
        replace(
            a_finding("tail", low=1.0, high=1.0, confidence=0.4, effort="code"),
            evidence={"p99_over_p50_ratio": ratio},
        )
        for ratio in (1.55, 4.0)
    )
    assert causes(short, gain) == ["gain", "tail"]
    assert causes(long, gain) == ["tail", "gain"]


def test_a_suspicion_does_not_bury_a_gain() -> None:
    suspicion = a_finding("spikes", low=1.0, high=1.0, confidence=0.3)
    assert causes(suspicion, a_finding("gain", low=1.4, high=1.9)) == ["gain", "spikes"]


def test_a_cause_that_all_ranks_show_is_told_once_as_the_worst_rank_tells_it() -> None:
    share = {"fast": 0.3, "slow": 0.6}
    made = {
        name: profile(
            world_size=2,
            shares={"forward": seconds},
            more=[op("mm", seconds, dtype="float64")],
        )
        for name, seconds in share.items()
    }
    ranks = [made["fast"], replace(made["slow"], rank=1)]
    both = diagnose(ranks, limits()).findings
    alone = diagnose([ranks[1]], limits()).findings
    assert [f.cause for f in both].count("float64-compute") == 1
    worst = next(f for f in alone if f.cause == "float64-compute")
    assert worst.gain_high == next(f for f in both if f.cause == "float64-compute").gain_high


def test_no_gain_is_surer_than_the_share_of_time_in_which_the_script_had_a_core() -> None:
    faulty = [op("mm", 0.6, dtype="float64")]
    quiet = profile(shares={"forward": 0.6}, more=faulty)
    wait = {"cpu_wait_seconds": 0.6 * quiet.step_seconds.mean}
    crowded = profile(shares={"forward": 0.6}, more=faulty, settings=wait)
    before, after = diagnose([quiet], limits()), diagnose([crowded], limits())
    assert before.findings[0].confidence > 0.6
    of_the_script = [one for one in after.findings if one.cause != "crowded-threads"]
    assert [one.cause for one in of_the_script] == [one.cause for one in before.findings]
    assert max(one.confidence for one in of_the_script) == pytest.approx(0.4)


def test_threads_that_spin_where_others_want_the_cores_are_named_with_confidence() -> None:
    step = profile().step_seconds.mean
    waited = 0.6 * step
    beside_others = {"num_threads": 2, "cpu_wait_seconds": waited, "peer_wait_seconds": waited}
    first = diagnose([profile(settings=beside_others)], limits()).findings[0]
    assert (first.cause, first.confidence) == ("crowded-threads", 0.7)
    for changes in (
        {"num_threads": 1},
        {"cpu_wait_seconds": 0.1 * step, "peer_wait_seconds": 0.1 * step},
        {"peer_wait_seconds": 0.0},  # one thread computes alone
    ):
        findings = diagnose([profile(settings=beside_others | changes)], limits()).findings
        assert "crowded-threads" not in {one.cause for one in findings}


def test_a_script_that_crowds_itself_is_told_so_with_confidence() -> None:
    step = profile().step_seconds.mean
    own = profile(settings={"num_threads": 16, "cpu_wait_seconds": 0.6 * step})
    first = diagnose([own], limits()).findings[0]
    assert (first.cause, first.confidence) == ("many-threads", 0.75)
