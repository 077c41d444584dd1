"""Results of two pipelines held against each other."""

from typing import Any

import numpy as np
import torch

from ridgeline.realtime.results import ROUNDING, PipelineResults, check_within, plain_result


def results(values: list[Any], **quality: float) -> PipelineResults:
    rows = [(frame, plain_result(value)) for frame, value in enumerate(values)]
    return PipelineResults(sinks={"plan": rows}, quality=quality)


def frames(scale: float = 1.0, small: float = 1.0) -> list[Any]:
    base = np.random.default_rng(0).random((20, 50))
    return [{"map": torch.from_numpy(scale * row), "speed": small * 0.01 * row[0]} for row in base]


def test_equal_results_are_equal_and_a_last_bit_is_not() -> None:
    equal = check_within(0.0)
    assert equal(results(frames()), results(frames()), 0.0).passed
    assert not equal(results(frames()), results(frames(scale=1 + 1e-12)), 0.0).passed


def test_rounding_passes_and_a_percent_does_not() -> None:
    rounding = check_within(ROUNDING)
    assert rounding(results(frames()), results(frames(scale=1 + 1e-6)), 0.0).passed
    assert not rounding(results(frames()), results(frames(scale=1.01)), 0.0).passed


def test_a_small_number_is_not_hidden_by_a_large_array() -> None:
    found = check_within(0.05)(results(frames()), results(frames(small=1.5)), 0.0)
    assert not found.passed
    assert "5.0e-01" in found.summary


def test_one_detection_more_is_a_frame_that_came_out_otherwise() -> None:
    before = [[(1.0, 2.0)] for _ in range(20)]
    after = [*before[:-1], [(1.0, 2.0), (3.0, 4.0)]]
    assert not check_within(ROUNDING)(results(before), results(after), 0.0).passed
    found = check_within(0.1)(results(before), results(after), 0.0)
    assert found.passed
    assert "1 of 20 frames otherwise" in found.summary


def test_a_missing_frame_counts() -> None:
    assert not check_within(0.0)(results(frames()), results(frames()[:-1]), 0.0).passed


def test_a_number_that_became_nan_fails() -> None:
    after = frames()
    after[3]["speed"] = float("nan")
    assert not check_within(0.1)(results(frames()), results(after), 0.0).passed


def test_figures_of_merit_decide_where_there_are_any() -> None:
    bounded = check_within(0.05)
    before = results(frames(), recall=0.90)
    assert bounded(before, results(frames(scale=2), recall=0.895), 0.01).passed
    found = bounded(before, results(frames(), recall=0.85), 0.01)
    assert not found.passed
    assert "recall fell by more than 1 %" in found.summary
