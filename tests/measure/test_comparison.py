"""Reading runs from disk, and judging one against the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.measure.compare.comparison import compare_runs
from ridgeline.measure.compare.readers import Origin
from ridgeline.measure.compare.runs import Run, read_run


def steps(median: float, seed: int = 0, count: int = 80, spread: float = 0.05) -> list[float]:
    noise = np.random.default_rng(seed).normal(size=count)
    return [float(seconds) for seconds in median * np.exp(spread * noise)]


def a_run(samples: list[float], **changes: Any) -> Run:
    given_fields: dict[str, Any] = {
        "source": "run.json",
        "record": "profile",
        "kind": "training",
        "samples": samples,
        "phases": {},
        "peak_memory_bytes": 0,
        "origin": Origin(device="cpu", command=["train.py"]),
        "world_size": 1,
        "steady": True,
    }
    return Run(**(given_fields | changes))


def profile_json(samples: list[float], **changes: Any) -> dict[str, Any]:
    return {
        "kind": "training",
        "step_samples": samples,
        "phases": {"forward": {"mean": 0.4, "p50": 0.4}, "backward": {"mean": 0.6, "p50": 0.6}},
        "peak_memory_bytes": 1000,
        "environment": {"device": "cpu", "command": ["train.py"], "date": "2026-11-20"},
        "a_field_of_a_later_version": [1, 2, 3],
    } | changes


def written(folder: Path, document: object) -> Path:
    path = folder / "run.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


# Reading


def test_a_bare_profile_is_read(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, profile_json([1.0, 2.0])))
    assert (run.record, run.samples, run.peak_memory_bytes) == ("profile", [1.0, 2.0], 1000)
    assert run.phases == {"forward": 0.4, "backward": 0.6}
    assert run.origin.command == ["train.py"]


def test_a_doctor_record_is_read(tmp_path: Path) -> None:
    profile = profile_json([1.0, 2.0])
    document: dict[str, Any] = {"profile": profile, "findings": [], "verdict": "compute-bound"}
    run = read_run(written(tmp_path, document))
    assert (run.record, run.samples) == ("doctor", [1.0, 2.0])


@pytest.mark.parametrize(
    ("samples", "tuned", "expected"),
    [
        ({"baseline": [9.0], "tuned": [1.0]}, [2.0], [1.0]),
        ({}, [2.0], [2.0]),
        ({"baseline": [9.0]}, None, [3.0]),
    ],
)
def test_a_ledger_speaks_for_its_tuned_run(
    tmp_path: Path,
    samples: dict[str, list[float]],
    tuned: list[float] | None,
    expected: list[float],
) -> None:
    document: dict[str, Any] = {
        "baseline": profile_json([3.0]),
        "tuned": None if tuned is None else profile_json(tuned),
        "rows": [],
        "samples": samples,
    }
    run = read_run(written(tmp_path, document))
    assert (run.record, run.samples) == ("tuning", expected)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("", "is empty"),
        ("{", "not JSON"),
        ('{"a":' + "[" * 100_000, "nested deeper than 100 levels"),
        ([1.0, 2.0], "Expected `object`, got `array`"),
        ({"cells": []}, "holds no record of Ridgeline's"),
        (profile_json([]), "holds no timed steps"),
        (profile_json([1.0, 0.0]), "step 1 took 0.0"),
        (profile_json([-1.0]), "step 0 took -1.0"),
        (profile_json([1.0], step_samples="fast"), "step_samples"),
        ({"profile": {"findings": []}}, "step_samples"),
        ({"profile": profile_json([1.0], peak_memory_bytes="big")}, "peak_memory_bytes"),
        ({"baseline": 3}, "baseline"),
    ],
)
def test_what_is_no_run_is_named_in_one_line(
    tmp_path: Path, document: object, complaint: str
) -> None:
    path = written(tmp_path, document)
    with pytest.raises(InputError) as caught:
        read_run(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_run(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_run(tmp_path)


# Judging


def test_a_clear_slowdown_is_slower_and_the_other_way_round_faster() -> None:
    before, after = a_run(steps(1.0, 1)), a_run(steps(1.15, 2))
    there, back = compare_runs(before, after), compare_runs(after, before)
    assert (there.verdict, there.decided_by) == ("slower", "median")
    assert there.slowdown.ratio == pytest.approx(1.15, abs=0.03)
    assert back.verdict == "faster"


def test_a_run_against_itself_is_no_difference() -> None:
    run = a_run(steps(1.0))
    comparison = compare_runs(run, run)
    assert (comparison.verdict, comparison.slowdown.ratio) == ("no difference", 1.0)


@given(st.integers(0, 2**31), st.sampled_from([0.001, 0.02, 0.1, 0.3]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_two_runs_of_the_same_script_are_no_difference(seed: int, spread: float) -> None:
    before = a_run(steps(1.0, seed, spread=spread))
    after = a_run(steps(1.0, seed + 1, spread=spread))
    assert compare_runs(before, after, threshold=0.05).verdict == "no difference"


def test_a_slowdown_within_the_threshold_passes() -> None:
    before, after = a_run(steps(1.0, 1, 400, 0.01)), a_run(steps(1.05, 2, 400, 0.01))
    assert compare_runs(before, after, threshold=0.02).verdict == "slower"
    assert compare_runs(before, after, threshold=0.10).verdict == "no difference"


def test_long_steps_at_an_unchanged_median_are_a_slowdown_too() -> None:
    stalled = steps(1.0, 2)
    stalled[::8] = [seconds * 5 for seconds in stalled[::8]]
    comparison = compare_runs(a_run(steps(1.0, 1)), a_run(stalled))
    assert (comparison.verdict, comparison.decided_by) == ("slower", "mean")


def test_one_hiccup_of_the_machine_is_no_slowdown() -> None:
    hiccup = steps(1.0, 2)
    hiccup[40] = 30.0
    assert compare_runs(a_run(steps(1.0, 1)), a_run(hiccup)).verdict == "no difference"


def test_too_few_steps_prove_nothing_and_say_so() -> None:
    comparison = compare_runs(a_run([1.0] * 3), a_run([2.0] * 3))
    assert comparison.verdict == "no difference"
    assert (comparison.slowdown.ci_low, comparison.slowdown.ci_high) == (None, None)
    assert any("only 3 steps" in warning for warning in comparison.warnings)


def test_the_phase_that_grew_most_is_named() -> None:
    before = a_run(steps(1.0, 1), phases={"data": 0.1, "forward": 0.4, "backward": 0.5})
    after = a_run(steps(1.3, 2), phases={"data": 0.38, "forward": 0.41, "backward": 0.51})
    comparison = compare_runs(before, after)
    assert comparison.slower_phase == "data"
    assert comparison.phases[0].difference_seconds == pytest.approx(0.28)
    assert compare_runs(after, before).slower_phase is None


def test_memory_is_compared_where_both_sides_know_it() -> None:
    small, large = (
        a_run(steps(1.0), peak_memory_bytes=100),
        a_run(steps(1.0), peak_memory_bytes=150),
    )
    assert compare_runs(small, large).peak_memory_ratio == 1.5
    assert compare_runs(a_run(steps(1.0)), large).peak_memory_ratio is None


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"origin": Origin(device="H100", command=["train.py"])}, "device: cpu → H100"),
        ({"origin": Origin(device="cpu", command=["b.py"])}, "command: train.py → b.py"),
        ({"origin": Origin(device="cpu", command=["train.py"], torch="2.13")}, "torch"),
        (
            {"origin": Origin(device="cpu", command=["train.py"], variables={"A": "1"})},
            "environment variables: not recorded → A=1",
        ),
        ({"kind": "inference"}, "kind of run: training → inference"),
        ({"world_size": 2}, "number of processes: 1 → 2"),
        ({"steady": False}, "not steady"),
    ],
)
def test_whatever_else_differs_is_said(changes: dict[str, Any], warning: str) -> None:
    comparison = compare_runs(a_run(steps(1.0)), a_run(steps(1.0), **changes))
    assert len(comparison.warnings) == 1
    assert warning in comparison.warnings[0]


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), float("inf")])
def test_a_senseless_threshold_is_refused(threshold: float) -> None:
    run = a_run(steps(1.0))
    with pytest.raises(InputError, match="--threshold"):
        compare_runs(run, run, threshold=threshold)
