from __future__ import annotations

import torch

from ridgeline.compress.activations import activation_scales, rounded_activations
from ridgeline.compress.methods import rtn, smoothquant
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme_names import parse


def _seen(x):
    return CalibrationStatistics(num_tokens=len(x), max_abs=x.abs().amax(0), rows=x)


def _loss(weight, x, scale, scheme):
    rounded = rtn.quantise(
        weight * scale, scheme, CalibrationStatistics(num_tokens=0)
    ).quantised.dequantised()
    inputs = rounded_activations(x / scale, activation_scales(scheme.activations, _seen(x / scale)))
    return float((inputs @ rounded.T - x @ weight.T).square().sum())


def test_outliers_of_fifty_times_cost_a_fraction_of_what_they_did():
    generator = torch.Generator().manual_seed(0)
    weight, x = (
        torch.randn(64, 128, generator=generator),
        torch.randn(256, 128, generator=generator),
    )
    x[:, [3, 70]] *= 50.0
    for name in ("w8a8-smoothquant", "w8a8-smoothquant-static"):
        scheme = parse(name)
        scale = smoothquant.scale([weight], [_seen(x)], scheme, torch.arange(128))
        plain = _loss(weight, x, torch.ones(128), scheme)
        assert _loss(weight, x, scale, scheme) < 0.2 * plain
        assert float(scale[3]) > 3 * float(scale[4])


def test_matrices_that_share_an_input_share_a_scale_that_serves_both():
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(16, 32, generator=generator) for _ in range(2)]
    x = torch.randn(100, 32, generator=generator)
    x[:, 5] *= 50.0
    seen, scheme = _seen(x), parse("w8a8-smoothquant")
    scale = smoothquant.scale(weights, [seen, seen], scheme, torch.arange(32))
    plain = sum(_loss(weight, x, torch.ones(32), scheme) for weight in weights)
    assert sum(_loss(weight, x, scale, scheme) for weight in weights) < 0.5 * plain
