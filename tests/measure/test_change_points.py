"""Change points: false alarms by simulation, jumps and drifts found where they are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.measure.statistics.change_points import segments


def history(
    generator: np.random.Generator, count: int, spread: float = 0.02
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Logarithms of the step times of runs that nothing changed."""
    return generator.normal(scale=spread, size=count)


def change_points(values: list[float]) -> list[int]:
    """Index of the first entry of each jump or drift."""
    # A drift through the whole series changes from its second entry on.
    return [piece.start or 1 for piece in segments(values) if piece.start > 0 or piece.drifts]


@pytest.mark.slow
@pytest.mark.sweep("20")
@pytest.mark.parametrize("count", [20, 60, 200])
def test_pure_noise_raises_an_alarm_in_fewer_than_two_percent_of_histories(count: int) -> None:
    generator = np.random.default_rng(count)
    alarms = 0
    for index in range(200):
        logs = history(generator, count)
        if index % 2:  # every other history has spikes up to three times the level
            spikes = generator.uniform(0, 1.1, size=count)
            logs = logs + np.where(generator.random(count) < 0.05, spikes, 0.0)
        alarms += bool(change_points(np.exp(logs).tolist()))
    assert alarms / 200 < 0.02


@pytest.mark.parametrize("at", [5, 20, 35])
@pytest.mark.parametrize("factor", [0.8, 1.2, 3.0])
def test_a_jump_is_found_at_its_first_entry(at: int, factor: float) -> None:
    logs = history(np.random.default_rng(at), 40)
    logs[at:] += np.log(factor)
    assert change_points(np.exp(logs).tolist()) == [at]


def test_a_jump_in_the_newest_three_entries_is_found() -> None:
    logs = history(np.random.default_rng(1), 40)
    logs[-3:] += 0.15
    assert change_points(np.exp(logs).tolist()) == [37]


def test_one_slow_entry_is_an_outlier_and_no_change() -> None:
    logs = history(np.random.default_rng(2), 40)
    for place in (10, 39):
        spiked = logs.copy()
        spiked[place] += 1.0
        assert change_points(np.exp(spiked).tolist()) == []


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(("onset", "slope"), [(30, 0.01), (40, 0.005), (20, 0.004)])
def test_a_slow_drift_is_found_near_its_onset(onset: int, slope: float) -> None:
    generator = np.random.default_rng(onset)
    for _ in range(5):
        logs = history(generator, 80) + slope * np.maximum(0, np.arange(80) - onset)
        pieces = segments(np.exp(logs).tolist())
        assert abs(change_points(np.exp(logs).tolist())[0] - onset) <= 15
        assert pieces[-1].drifts
        assert pieces[-1].last_value == pytest.approx(np.exp(slope * (79 - onset)), rel=0.05)


def test_a_drift_through_the_whole_history_starts_at_the_second_entry() -> None:
    logs = history(np.random.default_rng(4), 40, 0.01) + 0.01 * np.arange(40)
    assert change_points(np.exp(logs).tolist()) == [1]


def test_several_changes_are_told_apart() -> None:
    logs = history(np.random.default_rng(6), 90, 0.01)
    logs[30:] += 0.2
    logs[60:] -= 0.3
    assert change_points(np.exp(logs).tolist()) == [30, 60]


def test_a_noiseless_history_is_fine_with_and_without_a_jump() -> None:
    assert change_points([1.0] * 30) == []
    assert change_points([1.0] * 15 + [1.5] * 15) == [15]


def test_a_short_history_proves_nothing() -> None:
    assert change_points([1.0] * 3 + [5.0] * 4) == []
    assert change_points([1.0]) == []


@given(
    st.lists(st.floats(min_value=1e-4, max_value=1e2), min_size=1, max_size=60),
    st.floats(min_value=1e-2, max_value=1e2),
)
@settings(max_examples=50)
def test_segments_tile_the_series_whatever_the_unit(values: list[float], unit: float) -> None:
    pieces = segments(values)
    assert pieces[0].start == 0
    assert pieces[-1].end == len(values)
    assert all(before.end == after.start for before, after in pairwise(pieces))
    scaled = segments([value * unit for value in values])
    assert [piece.start for piece in scaled] == [piece.start for piece in pieces]
