from __future__ import annotations

import pytest
import torch

from ridgeline.compress.watching.outliers import outliers
from ridgeline.compress.watching.seen import Seen


def test_large_channels_are_named_the_largest_first():
    most = torch.ones(64)
    most[5], most[9] = 20.0, 50.0
    found = outliers(Seen(num_tokens=10, max_abs=most))
    assert found.channels == (9, 5)
    assert found.ratios == pytest.approx((50.0, 20.0))
    assert found.levels_left == pytest.approx(127 / 50)


def test_even_channels_have_none():
    found = outliers(Seen(num_tokens=10, max_abs=torch.full((8,), 3.0)))
    assert found.channels == ()
    assert found.levels_left == pytest.approx(127.0)
