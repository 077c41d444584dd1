"""A step of so many operators that the profiler's records of them would fill the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.measure.live.operator_times import MOST_PROFILED, steps_to_profile
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan

SOLVES = """
import torch
from torch import nn

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(100):
    x = model(torch.randn(2, 4))
    for _ in range(15_000):
        x = x + 1e-6 * x
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
"""
"""A solver's many small steps: 60,000 operators in each of the script's."""


@given(st.integers(1, 9), st.floats(0, 1e7))
def test_what_is_profiled_has_no_more_operators_than_a_profiler_can_keep(steps, operators):
    allowed = steps_to_profile(steps, operators)
    assert 0 <= allowed <= steps
    assert allowed * operators <= MOST_PROFILED
    assert allowed == steps or (allowed + 1) * max(operators, 1.0) > MOST_PROFILED


@pytest.mark.slow
def test_the_profiler_is_left_out_where_it_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOLVES)
    (profile,) = measure(["train.py"], MeasurementPlan(steps=3, warmup=1, window=1))
    assert profile.operator_calls > MOST_PROFILED
    assert sum("the profiler was left out" in warning for warning in profile.warnings) == 1
    assert profile.operators
    assert profile.peak_memory_bytes > 0
