"""Ranges: nothing outside, least error, all but a thousandth."""

from __future__ import annotations

import pytest
import torch

from ridgeline.compress import rounding
from ridgeline.compress.rounding import grid, levels, minmax, mse, percentile, to_nearest, value
from ridgeline.records.scheme import NumberFormat
from ridgeline.records.scheme_names import parse


def form_of(name: str) -> NumberFormat:
    form = parse(name).weights
    assert form is not None
    return form


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_minmax_is_the_smallest_and_the_largest() -> None:
    grouped = normal(4, 3, 50)
    low, high = minmax(grouped, form_of("w4a16"))
    assert torch.equal(low, grouped.min(-1).values)
    assert torch.equal(high, grouped.max(-1).values)


@pytest.mark.parametrize("name", ["w4a16", "w4a16-asym"])
def test_percentile_leaves_out_a_thousandth(name: str) -> None:
    grouped = normal(2, 3, 10_000)
    form = form_of(name)
    low, high = percentile(grouped, form)
    if form.symmetric:
        share = (grouped.abs() > high[..., None]).float().mean(-1)
        assert torch.equal(low, -high)
        expected = torch.quantile(grouped.abs(), rounding.INSIDE, -1)
    else:
        share = (grouped > high[..., None]).float().mean(-1)
        assert ((grouped < low[..., None]).float().mean(-1) - 1e-3).abs().max() < 2e-4
        expected = torch.quantile(grouped, rounding.INSIDE, -1)
    assert (share - 1e-3).abs().max() < 2e-4
    assert torch.allclose(high, expected)


def test_an_outlier_does_not_widen_the_percentile_range() -> None:
    grouped = normal(1, 1, 10_000)
    grouped[0, 0, 0] = 1e6
    assert percentile(grouped, form_of("w4a16"))[1].item() < 5


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    "name", ["w2a16", "w3a16", "w4a16", "w4a16-asym", "w4a16-tensor", "fp8", "mxfp4", "nvfp4"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mse_never_errs_more_than_minmax(name: str, dtype: torch.dtype) -> None:
    weight = (normal(32, 256) * torch.exp(normal(32, 1))).to(dtype)
    weight[3] = 0
    weight[5, 9] = 40  # an outlier, which minmax gives all levels to

    def error(scheme: str) -> torch.Tensor:
        form = form_of(scheme)
        wrong = (to_nearest(weight, form).dequantised() - weight.float()).square()
        return wrong.unflatten(1, (-1, form.group or 256)).sum(-1 if form.group else (1, 2))

    plain, searched = error(name), error(f"{name}-mse")
    assert (searched.sum(-1) <= plain.sum(-1) * 1.0001).all()
    if name not in {"fp8", "w4a16-tensor"}:
        assert searched.sum() < 0.99 * plain.sum()


def test_mse_finds_the_best_of_its_shares() -> None:
    form = form_of("w3a16-channel")
    weight = normal(1, 256)
    low, high = mse(weight[:, None], form)
    errors = []
    for share in rounding.SHARES:
        step = share * weight.abs().max() / 3.5
        wrong = (weight / step).round().clamp(-4, 3) * step - weight
        errors.append(float(wrong.square().sum()))
    best = rounding.SHARES[errors.index(min(errors))]
    assert torch.allclose(high.squeeze(), best * weight.max(), rtol=1e-5)
    assert torch.allclose(low.squeeze(), best * weight.min(), rtol=1e-5)


def test_mse_counts_errors_by_what_they_cost() -> None:
    form, weight = form_of("w4a16-g32-mse"), normal(8, 64)
    weight[:, 7] *= 4.0  # the largest, by which ranges are set
    cheap, dear = torch.ones(64), torch.ones(64)
    cheap[7], dear[7] = 0.0, 1e4
    found = {}
    for name, costs in {"cheap": cheap, "dear": dear}.items():
        on = grid(weight, form, costs=costs)
        wrong = (value(levels(weight, on), on) - weight).square()
        found[name] = (float(wrong[:, 7].sum()), float(wrong[:, :7].sum()))
    assert found["dear"][0] < 0.1 * found["cheap"][0]
    assert found["cheap"][1] < 0.5 * found["dear"][1]


def test_mse_gives_rows_the_same_whichever_others_are_there() -> None:
    weight = normal(300, 1024)  # more numbers than are looked at together
    for name in ("w4a16-g32-mse", "w8a16-channel-mse", "mxfp4-mse"):
        form = form_of(name)
        whole, part = to_nearest(weight, form), to_nearest(weight[200:], form)
        assert torch.equal(whole.levels[200:], part.levels)
        assert torch.equal(whole.scales[200:], part.scales)
