from __future__ import annotations

import pytest
import torch

from ridgeline.compress.methods import awq, rtn
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme_names import parse


def _seen(x):
    return CalibrationStatistics(
        num_tokens=len(x), mean_abs=x.abs().mean(0), max_abs=x.abs().amax(0), rows=x
    )


def _case(seed, rows=32, columns=64, tokens=300):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, columns, generator=generator)
    x[:, ::16] *= 30.0
    return torch.randn(rows, columns, generator=generator), x


def _loss(weight, x, scale, scheme):
    rounded = rtn.quantise(
        weight * scale, scheme, CalibrationStatistics(num_tokens=0)
    ).quantised.dequantised()
    return float(((x / scale) @ rounded.T - x @ weight.T).square().sum())


@pytest.mark.parametrize("name", ["w4a16-awq-g32", "w3a16-awq-g32", "w4a16-awq-channel-asym"])
def test_scaling_salient_columns_loses_much_less_than_rounding(name):
    scheme = parse(name)
    weight, x = _case(0)
    scale = awq.scale([weight], [_seen(x)], scheme, torch.arange(64))
    assert _loss(weight, x, scale, scheme) < 0.6 * _loss(weight, x, torch.ones(64), scheme)


@pytest.mark.parametrize("seed", range(5))
def test_on_what_it_looks_at_it_is_never_worse_than_rounding(seed):
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn(16, 32, generator=generator), torch.randn(64, 32, generator=generator)
    scheme = parse("w4a16-awq-g16")
    scale = awq.scale([weight], [_seen(x)], scheme, torch.arange(32))
    plain = _loss(weight, x, torch.ones(32), scheme)
    assert _loss(weight, x, scale, scheme) <= plain * (1 + 1e-5)
    cut = awq.quantise(weight * scale, scheme, _seen(x / scale))
    assert cut.error <= rtn.quantise(weight * scale, scheme, _seen(x / scale)).error


def test_columns_of_one_channel_get_one_scale():
    weight, x = _case(1)
    channels = torch.arange(16).repeat(4)
    scale = awq.scale([weight], [_seen(x)], parse("w4a16-awq-g32"), channels)
    assert torch.equal(scale[:16].repeat(4), scale)


def test_cutting_ranges_helps_where_a_large_weight_meets_small_inputs():
    weight, x = _case(2)
    weight[:, 1] *= 6.0
    x[:, 1] *= 0.01
    scheme = parse("w3a16-awq-g32")
    assert (
        awq.quantise(weight, scheme, _seen(x)).error
        < 0.8 * rtn.quantise(weight, scheme, _seen(x)).error
    )


def test_without_calibration_there_is_a_notice():
    weight, _ = _case(3)
    found = awq.quantise(weight, parse("w4a16-awq-g32"), CalibrationStatistics(num_tokens=0))
    assert found.notices == ("calibration never reached it: rounded to nearest",)
