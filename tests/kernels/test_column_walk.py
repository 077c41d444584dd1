"""GPTQ's walk in one call against the same column by column."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels import column_walk


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (16, 16), (45, 7), (96, 33)])
@pytest.mark.parametrize("kind", ["symmetric", "affine", "pruned"])
def test_it_chooses_what_the_walk_column_by_column_chooses(columns: int, rows: int, kind: str):
    torch.manual_seed(0)
    weight = torch.randn(columns, rows)
    factor = (torch.randn(columns, columns) * 0.1 + torch.eye(columns)).triu()
    factor.diagonal().abs_().add_(0.5)
    groups = torch.randint(0, 3, (columns,))
    scales = torch.rand(3, rows) * 0.3 + 0.1
    zeros = torch.randint(-4, 4, (3, rows)).float() if kind == "affine" else None
    stays = torch.rand(columns, rows) > 0.4 if kind == "pruned" else None
    found, expected = weight.clone(), weight.clone()
    column_walk.walk_columns(found, factor, scales, zeros, groups, stays, 4)
    column_walk.reference(expected, factor, scales, zeros, groups, stays, 4)
    # A number that is a tie but for rounding may go the other way and change what follows it.
    same = ((found - expected).abs() < 1e-6).all(0)
    assert float(same.float().mean()) > 0.85


def test_a_group_without_a_scale_is_refused():
    rest, one = torch.randn(4, 3), torch.ones(1, 3)
    with pytest.raises(RuntimeError, match="a group that has no scale"):
        column_walk.walk_columns(rest, torch.eye(4), one, None, torch.tensor([0, 0, 1, 0]), None, 4)
