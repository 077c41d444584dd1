"""Ranges, histograms, and rounding with gradients, against what they are defined by."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from ridgeline.kernels.fake_quantisation.folding import BatchStatistics, fold
from ridgeline.kernels.fake_quantisation.histogram import TensorHistogram
from ridgeline.kernels.fake_quantisation.ranges import RANGES, find_range
from ridgeline.kernels.fake_quantisation.straight_through import (
    FakeActivation,
    FakeWeight,
    round_learned,
    round_through,
)
from ridgeline.records.scheme import NumberFormat, Observer


def form(observer: Observer = "minmax", *, bits: int = 8, symmetric: bool = False) -> NumberFormat:
    return NumberFormat(
        kind="int", bits=bits, symmetric=symmetric, share="tensor", observer=observer
    )


def histogram(*batches: torch.Tensor) -> TensorHistogram:
    found = TensorHistogram()
    for one in batches:
        found.add(one)
    return found


def test_a_histogram_of_growing_batches_counts_every_number() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(10_000) * scale for scale in (0.1, 3.0, 40.0)]
    found, whole = histogram(*batches), torch.cat(batches)
    assert (found.low, found.high) == (float(whole.min()), float(whole.max()))
    assert float(found.counts.sum()) == len(whole)
    places = ((whole + found.reach) / (2 * found.reach) * len(found.counts)).long()
    expected = places.clamp_max(len(found.counts) - 1).bincount(minlength=len(found.counts))
    assert float((found.counts - expected).abs().sum()) < 40  # numbers on an edge


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_least_squared_error_is_found(symmetric: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(50_000).abs() ** 1.5 if not symmetric else torch.randn(50_000)
    x[0] = 30.0

    def error(ends: tuple[float, float]) -> float:
        low, high = ends
        step = max(-low, high) / 7.5 if symmetric else (high - low) / 15
        least = -8 if symmetric else round(low / step)
        rounded = (x / step).round().clamp(least, least + 15) * step
        return float((rounded - x).square().sum())

    found = find_range(histogram(x), form("mse", bits=4, symmetric=symmetric))
    tried = [30.0 * share / 100 for share in range(1, 101)]
    best = min(error((-one if symmetric else 0.0, one)) for one in tried)
    assert error(found) < 1.1 * best


@pytest.mark.parametrize("observer", list(RANGES))
def test_every_observer_stays_within_what_was_seen(observer: Observer) -> None:
    torch.manual_seed(0)
    seen = histogram(torch.randn(4000), torch.randn(4000) * 2)
    low, high = find_range(seen, form(observer))
    assert seen.low <= low < 0 < high <= seen.high
    assert find_range(histogram(torch.zeros(5)), form(observer)) == (0.0, 0.0)


def test_entropy_and_percentile_cut_a_lone_outlier() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.rand(100_000), torch.tensor([50.0])])
    for observer in ("percentile", "entropy"):
        _, high = find_range(histogram(x), form(observer))
        assert high < 10, observer


def test_the_gradient_goes_straight_through_within_the_range_and_stops_beyond() -> None:
    x = torch.tensor([-200.0, -3.2, 0.4, 90.0, 300.0], requires_grad=True)
    rounded = round_through(x, torch.tensor(1.0), None, 8)
    assert rounded.tolist() == [-128.0, -3.0, 0.0, 90.0, 127.0]
    rounded.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_the_learned_step_has_the_gradient_of_the_paper() -> None:
    x = torch.tensor([-20.0, -0.7, 0.3, 20.0])
    step = torch.tensor([0.5], requires_grad=True)
    round_learned(x, step, 4).sum().backward()
    # LSQ, equation 3: −Q_N, round(x/s) − x/s within, Q_P; scaled by 1 / √(N Q_P).
    inside = [round(v / 0.5) - v / 0.5 for v in (-0.7, 0.3)]
    expected = (-8 + sum(inside) + 7) / (4 * 7) ** 0.5
    assert step.grad is not None
    assert float(step.grad) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("learned", [False, True])
def test_a_convolution_with_rounded_weights_and_inputs_trains(learned: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3)
    four = form(bits=4, symmetric=True)
    source = conv.weight.detach() if learned else None
    parametrize.register_parametrization(conv, "weight", FakeWeight(four, learned_from=source))
    model = nn.Sequential(FakeActivation(form()), conv)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, wanted = torch.randn(8, 3, 8, 8), torch.randn(8, 8, 6, 6) * 0.1
    losses = []
    for _ in range(30):
        loss = (model(x) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert len(conv.weight[0].detach().unique()) <= 16
    model.eval()
    low = float(model[0].low)
    model(x * 100)
    assert float(model[0].low) == low


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_folding_equals_both_layers_in_float64(groups: int, transposed: bool) -> None:
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(6, 9, 3, groups=groups).double()
    norm = nn.BatchNorm2d(9).double()
    for one in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        one.data.uniform_(0.5, 2.0)
    by = BatchStatistics(
        mean=norm.running_mean, variance=norm.running_var, epsilon=norm.eps,
        gain=norm.weight, offset=norm.bias,
    )  # fmt: skip
    x = torch.randn(2, 6, 5, 5).double()
    wanted = norm.eval()(layer(x))
    weight, bias = fold(layer.weight, layer.bias, by, transposed=transposed, groups=groups)
    layer.weight.data, layer.bias.data = weight, bias
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-12)
