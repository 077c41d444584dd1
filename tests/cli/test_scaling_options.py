"""`--replicas 1:4 --scale-…`: what the flags make."""

from __future__ import annotations

import pytest

from ridgeline.batching.scaling.settings import Scaling, policy_of
from ridgeline.cli.scaling_options import scaling_of


@pytest.mark.parametrize(
    ("replicas", "on", "limits", "expected"),
    [
        ("3", None, {}, None),
        ("2:2", None, {}, None),
        ("1:4", None, {}, Scaling(maximum=4)),
        ("2:4", "queue", {"target": 3.0}, Scaling(minimum=2, maximum=4, open_per_replica=3.0)),
        ("1:4", "kv", {"target": 1.0}, Scaling(maximum=4, on="kv", kv_target=1.0)),
        (
            "1:4",
            "slo",
            {"target": 0.95, "ttft": 0.5, "itl": None},
            Scaling(maximum=4, on="slo", objective=0.95, ttft_seconds=0.5),
        ),
        (
            "1:4",
            None,
            {"up_after": 5.0, "down_after": 0.0},
            Scaling(maximum=4, up_window_seconds=5.0, down_window_seconds=0.0),
        ),
    ],
)
def test_flags_make_the_settings(replicas, on, limits, expected) -> None:
    found = scaling_of(replicas, on, **limits)
    assert found == expected
    if found is not None:
        policy_of(found)
