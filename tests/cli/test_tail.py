"""`ridgeline doctor` on a script that answers unevenly: its tail, and the cause of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.profiles import profile
from tests.report.drawn import drawn as shown

from ridgeline.cli.main import run
from ridgeline.measure.live.steps import tail_facts
from ridgeline.measure.wire import StepTimes
from ridgeline.records import Distribution, StepProfile, Verdict
from ridgeline.report.views.doctor import profile_document

SCRIPT = Path(__file__).parents[1] / "measure" / "scripts" / "uneven_answers.py"


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory, warm: None) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("tail") / "doctor.json"
    words = ["doctor", "--steps", "96", "--budget", "30", "--out", str(out), "--", str(SCRIPT)]
    assert run(words) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def test_the_slow_calls_of_a_real_script_are_found_and_laid_to_their_size(
    examined: dict[str, Any],
) -> None:
    made = examined["profile"]
    assert made["kind"] == "inference"
    tail = made["tail"]
    assert tail["slow_steps"] >= 8, "every eighth of 96"
    assert tail["size_correlation"] > 0.3
    (finding,) = [one for one in examined["findings"] if one["cause"] == "latency-tail"]
    assert finding["evidence"]["p99_over_p50_ratio"] > 1.5
    # On a machine whose cores others use, the wait for one outweighs what the script does.
    busy = made["settings"]["cpu_wait_seconds"] > 0.1 * made["step_seconds"]["mean"]
    in_forward = tail["phase_seconds"]["forward"] > 0.5 * tail["excess_seconds"]
    assert (in_forward and finding["evidence"]["cause"] == "larger inputs") or busy


def answering(**changes: Any) -> StepProfile:
    return profile(kind="inference", **changes)


def test_scripts_that_answer_are_judged_by_p50_p99_and_their_ratio() -> None:
    uneven = Distribution.of([0.1] * 95 + [0.4] * 5)
    text = shown(profile_document(answering(step_seconds=uneven), [], Verdict.COMPUTE_BOUND))
    assert "median call 100 ms" in text
    assert "p99 400 ms" in text
    assert "p99/p50 4.00×" in text
    trained = shown(profile_document(profile(step_seconds=uneven), [], Verdict.COMPUTE_BOUND))
    assert "p99/p50" not in trained


def steps(seconds: list[float], sizes: list[int]) -> list[StepTimes]:
    return [
        StepTimes(seconds=each, phases={"forward": 0.9 * each, "other": 0.1 * each},
                  samples=size, tokens=0)
        for each, size in zip(seconds, sizes, strict=True)
    ]  # fmt: skip


def test_what_slow_calls_have_in_common_is_measured() -> None:
    even = tail_facts(steps([1.0] * 40, [4] * 40))
    assert (even.slow_steps, even.excess_seconds, even.size_correlation) == (0, 0.0, None)
    first = tail_facts(steps([3.0] * 3 + [1.0] * 37, [4] * 40))
    assert (first.slow_steps, first.early_share) == (3, 1.0)
    assert first.excess_seconds == pytest.approx(6.0)
    assert first.phase_seconds["forward"] == pytest.approx(5.4)
    generator = np.random.default_rng(0)
    sizes = [int(size) for size in generator.integers(1, 50, 200)]
    grown = tail_facts(steps([0.01 * size for size in sizes], sizes))
    assert grown.size_correlation == pytest.approx(1.0)
