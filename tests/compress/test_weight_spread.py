"""Histograms of weights, matrix by matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.compress.weight_spread import BINS, spread


@given(seed=st.integers(0, 1000), scale=st.floats(1e-4, 1e4), pruned=st.floats(0.0, 0.9))
def test_shares_add_up_whatever_the_scale_and_zeros_stand_in_the_middle(
    seed: int, scale: float, pruned: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(50, 40, generator=draw)
    weight[torch.rand(50, 40, generator=draw) < pruned] = 0.0
    found = spread("up", weight)
    assert len(found.shares) == BINS
    assert sum(found.shares) == pytest.approx(1.0, abs=1e-3)
    assert found.shares[BINS // 2] >= float((weight == 0).float().mean()) - 1e-4
    assert found.largest == pytest.approx(float(weight.abs().max()))


def test_a_matrix_of_zeros_is_all_middle_and_outliers_fill_the_edges() -> None:
    assert spread("up", torch.zeros(4, 4)).shares[BINS // 2] == 1.0
    weight = torch.full((10, 100), 0.01)
    weight[0, 0], weight[1, 0] = 100.0, -100.0
    found = spread("up", weight)
    assert (found.shares[0], found.shares[-1]) == (0.001, 0.001)


def test_the_ledger_of_a_saved_model_holds_the_spread_of_every_matrix_before_and_after(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["compress", str(tiny_model("llama")), "--scheme", "50%-8x8", "--unjudged"]
    assert run([*words, "--no-speed", "--out", str(out)]) == 0
    ledger = json.loads((out / "ledger.json").read_text())
    before, after = ledger["spreads_before"], ledger["spreads"]
    assert [one["layer"] for one in before] == [one["layer"] for one in after]
    assert len(after) == 14
    for given_one, pruned_one in zip(before, after, strict=True):
        assert given_one["shares"][BINS // 2] < 0.3
        assert pruned_one["shares"][BINS // 2] >= 0.5
    assert "Weights as saved" in (out / "report.html").read_text()
