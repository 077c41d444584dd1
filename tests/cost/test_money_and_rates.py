"""Money, energy and carbon; learning rates; static memory; precision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.learning_rate import (
    examples_at,
    gradient_noise,
    linear_scaling,
    noise_scale_rate,
    sqrt_scaling,
    steps_at,
    warmup,
)
from ridgeline.cost.money import Tariff, bill, run_seconds
from ridgeline.cost.roofline import precision_speedup
from ridgeline.cost.static_memory import RECIPES, Stage, activation_bytes, zero_bytes
from ridgeline.hardware import device
from ridgeline.models import load_model

SIZES = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize(
    ("gpu_hours", "watts", "tonnes"),
    [(184_320, 400, 31.22), (368_640, 400, 62.44), (1_038_336, 350, 153.90),
     (1_720_320, 400, 291.42)],
)  # fmt: skip
def test_the_carbon_of_llama_2(gpu_hours: int, watts: int, tonnes: float) -> None:
    # Touvron et al., 2307.09288, table 2. Its rows share one intensity, 423.5 g/kWh.
    spent = bill(
        1024, gpu_hours / 1024 * 3600, Tariff(watts=watts, co2_grams_per_kilowatt_hour=423.45)
    )
    assert spent.device_hours == pytest.approx(gpu_hours)
    assert spent.co2_kilograms is not None
    assert spent.co2_kilograms / 1e3 == pytest.approx(tonnes, rel=0.001)


def test_what_was_not_given_is_not_made_up() -> None:
    spent = bill(8, 3600.0, Tariff())
    assert (spent.device_hours, spent.usd, spent.energy_joules, spent.co2_kilograms) == (
        8.0, None, None, None,
    )  # fmt: skip
    assert spent.energy_kilowatt_hours is None
    carbonless = bill(8, 3600.0, Tariff(watts=700.0, pue=1.5, power_share=0.8))
    assert carbonless.energy_kilowatt_hours == pytest.approx(8 * 0.7 * 1.5 * 0.8)
    with pytest.raises(ValueError, match="nothing to bill"):
        bill(0, 1.0, Tariff())


def test_a_run_takes_as_long_as_its_steps() -> None:
    # 15.6e12 tokens in batches of 16e6 (2407.21783, section 3.4.1) are 975,000 steps.
    assert run_seconds(15.6e12, 16e6, 2.0) == pytest.approx(2 * 975_000)
    with pytest.raises(ValueError, match="above 0"):
        run_seconds(1e12, 0, 1.0)


def test_imagenet_in_an_hour() -> None:
    # Goyal et al.: 0.1 per 256, five epochs of warm-up, 3.2 at 8192.
    rate = linear_scaling(0.1, 256, 8192)
    assert rate == pytest.approx(3.2)
    steps = 5 * 1_281_167 // 8192
    rates = [warmup(step, steps, 0.1, rate) for step in range(steps + 2)]
    assert rates[0] == 0.1
    assert rates == sorted(rates)
    assert rates[-1] == rate


@given(batch=SIZES, more=st.floats(1.0, 1e4))
def test_the_square_root_rule_never_raises_the_rate_more_than_the_linear_one(
    batch: float, more: float
) -> None:
    assert sqrt_scaling(0.1, batch, batch * more) <= linear_scaling(0.1, batch, batch * more) * (
        1 + 1e-9
    )


@given(batch=SIZES, scale=SIZES)
def test_far_below_the_noise_scale_its_rule_is_the_linear_one(batch: float, scale: float) -> None:
    small = 1e-6 * scale
    gain = noise_scale_rate(1.0, small, 2 * small, scale)
    assert gain == pytest.approx(linear_scaling(1.0, small, 2 * small), rel=1e-4)
    # And past it more batch hardly allows more.
    assert noise_scale_rate(1.0, 1e3 * scale, 1e6 * scale, scale) < 1.002
    assert noise_scale_rate(1.0, batch, 2 * batch, scale) <= 2.0


@given(signal=st.floats(1e-2, 1e3), noise=st.floats(1e-2, 1e3))
def test_the_noise_scale_is_recovered_from_two_batches(signal: float, noise: float) -> None:
    norms = [signal + noise / batch for batch in (8, 64)]
    found = gradient_noise(8, norms[0], 64, norms[1])
    assert found.signal == pytest.approx(signal, rel=1e-3, abs=1e-6)
    assert found.noise == pytest.approx(noise, rel=1e-3)
    with pytest.raises(ValueError, match="below 8"):
        gradient_noise(64, 1.0, 8, 1.0)


@given(batch=SIZES, critical=SIZES)
def test_steps_and_examples_trade_as_a_hyperbola(batch: float, critical: float) -> None:
    steps, examples = steps_at(batch, critical), examples_at(batch, critical)
    assert steps >= 1.0
    assert examples >= 1.0
    if 1e-6 < batch / critical < 1e6:
        assert (steps - 1.0) * (examples - 1.0) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", sorted(RECIPES))
@given(ranks=st.integers(1, 4096))
def test_each_zero_stage_holds_less(name: str, ranks: int) -> None:
    stages: tuple[Stage, ...] = (0, 1, 2, 3)
    held = [zero_bytes(1e9, RECIPES[name], stage, ranks) for stage in stages]
    assert held == sorted(held, reverse=True)
    assert held[0] == pytest.approx(1e9 * RECIPES[name].total)
    assert held[3] == pytest.approx(held[0] / ranks)


def test_the_figure_of_the_zero_paper() -> None:
    # Rajbhandari et al., figure 1: 7.5e9 parameters, 64 ranks: 120, 31.4, 16.6, 1.9 GB.
    stages: tuple[Stage, ...] = (0, 1, 2, 3)
    held = [zero_bytes(7.5e9, RECIPES["mixed adam"], stage, 64) / 1e9 for stage in stages]
    assert [round(one, 1) for one in held] == [120.0, 31.4, 16.6, 1.9]
    with pytest.raises(ValueError, match="at least one rank"):
        zero_bytes(1.0, RECIPES["mixed adam"], 1, 0)


def test_fp8_costs_memory_and_gains_time() -> None:
    assert RECIPES["fp8 adam"].total > RECIPES["mixed adam, fp32 gradients"].total
    llama, h100 = load_model("llama-3-8b"), device("h100")
    gain = precision_speedup(llama, h100, before="bf16", after="fp8", seq=4096, batch=1)
    assert 1.5 < gain < 2.0
    # Decoding reads weights: half the bytes, nearly half the time; long caches dilute it.
    short, long = (
        precision_speedup(llama, h100, before="bf16", after="fp8", seq=seq, batch=8, phase="decode")
        for seq in (128, 32768)
    )
    assert 1.9 < short < 2.0
    assert long < 1.3


def test_mixed_precision_gains_less_than_the_peaks_promise() -> None:
    bert, a100 = load_model("bert-base"), device("a100")
    gain = precision_speedup(bert, a100, before="tf32", after="bf16", seq=512, batch=32)
    assert gain == pytest.approx(2.0, abs=0.01)  # half the bytes and twice the peak, everywhere
    vector = precision_speedup(bert, a100, before="fp32", after="bf16", seq=512, batch=32)
    assert 2.0 < vector < 312 / 19.5


def test_activations_of_a_layer_grow_with_all_four_sizes() -> None:
    assert activation_bytes(2, 3, 5, 7, 34) == 2 * 3 * 5 * 7 * 34
