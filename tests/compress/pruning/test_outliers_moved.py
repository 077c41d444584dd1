"""A scale moved between what makes inputs and the weights behind changes no function.

What a criterion removes should not change either. SparseGPT's and Wanda's looks at inputs too;
magnitude does not.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.compress.pruning.weights import prune
from ridgeline.compress.watching.statistics import CalibrationStatistics, output_error
from ridgeline.records.scheme import Pruning


def _seen(x: torch.Tensor) -> CalibrationStatistics:
    return CalibrationStatistics(
        num_tokens=len(x), hessian=2.0 / len(x) * x.T @ x, square_norm=x.square().sum(dim=0)
    )


@given(
    seed=st.integers(0, 2**31 - 1),
    power=st.integers(-6, 6),
    share=st.floats(0.1, 0.9),
    pattern=st.sampled_from([None, (2, 4), (4, 8)]),
)
@settings(max_examples=40, deadline=None)
def test_wanda_removes_the_same_weights_wherever_a_scale_lies(
    seed: int, power: int, share: float, pattern: tuple[int, int] | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, x = (
        torch.randn(12, 32, generator=generator),
        torch.randn(64, 32, generator=generator),
    )
    scale = torch.ones(32)
    scale[torch.randperm(32, generator=generator)[:3]] = 2.0**power  # rounds nothing
    pruning = Pruning(criterion="wanda", share=share, pattern=pattern)
    given_mask = prune(weight, pruning, _seen(x)).mask
    assert torch.equal(prune(weight / scale, pruning, _seen(x * scale)).mask, given_mask)


def test_outliers_of_fifty_times_ruin_magnitude_and_change_nothing_for_those_that_look() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (
        torch.randn(64, 128, generator=generator),
        torch.randn(512, 128, generator=generator),
    )
    scale = torch.ones(128)
    scale[[5, 77]] = 50.0
    for wanted in ({"share": 0.5}, {"share": 0.5, "pattern": (2, 4)}):
        lost = {}
        for criterion in ("magnitude", "wanda", "sparsegpt"):
            pruning = Pruning(criterion=criterion, **wanted)
            clean = prune(weight, pruning, _seen(x)).weight
            moved = prune(weight / scale, pruning, _seen(x * scale)).weight * scale
            hessian = _seen(x).hessian
            lost[criterion] = (
                output_error(weight, clean, hessian),
                output_error(weight, moved, hessian),
            )
        assert abs(lost["wanda"][1] - lost["wanda"][0]) < 1e-4
        # Damping is of the mean of the diagonal, which outliers raise; so it moves a little.
        assert lost["sparsegpt"][1] < 1.15 * lost["sparsegpt"][0] + 1e-4
        assert lost["magnitude"][1] > 1.05 * lost["magnitude"][0]
