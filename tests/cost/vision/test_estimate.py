"""The time of a vision model on one device: what must make it longer or shorter."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ridgeline.cost.vision.coefficients import traits_of
from ridgeline.cost.vision.estimate import estimate
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.cost.vision.work import COMPUTE, WORK, clock_of, demand, operator_arrays
from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.models.vision.presets import load_network
from ridgeline.plan.vision.coefficients import shipped_coefficients

RUN = VisionSetting(task="infer", batch=256, precision="amp_fp16")


def seconds(model: str = "resnet50", gpu: str = "rtx-4090", run: VisionSetting = RUN) -> float:
    return estimate(load_network(model), device(gpu), run, shipped_coefficients()).seconds


def test_terms_add_up_and_the_interval_holds_the_prediction() -> None:
    found = estimate(load_network("resnet50"), device("a100"), RUN, shipped_coefficients())
    assert sum(found.terms.values()) == pytest.approx(found.seconds)
    assert found.interval[0] < found.seconds < found.interval[1]
    assert found.bound in ("compute", "memory")


def test_training_takes_longer_than_inference_and_compiling_less_than_eager() -> None:
    assert seconds(run=replace(RUN, task="train")) > 2.0 * seconds()
    assert seconds(run=replace(RUN, software="compile")) < seconds()


def test_channels_last_trains_wide_groups_slower_and_all_else_faster() -> None:
    contiguous = replace(RUN, task="train", batch=128)
    last = replace(contiguous, memory_format="channels_last")

    def gain(model: str) -> float:
        return seconds(model, "rtx-3090", contiguous) / seconds(model, "rtx-3090", last)

    assert gain("resnest50d") < 0.8
    assert gain("resnext50_32x4d") > 1.1
    assert gain("resnet50") > 1.1


def test_one_image_at_a_time_eager_waits_for_launches() -> None:
    one = replace(RUN, batch=1)
    found = estimate(load_network("resnet50"), device("a100"), one, shipped_coefficients())
    assert found.bound == "launches"
    assert seconds(run=replace(one, software="tensorrt")) < seconds(run=one)


def test_a_larger_image_or_a_slower_card_takes_longer() -> None:
    assert seconds(gpu="t4") > 3.0 * seconds()


def test_software_that_nobody_measured_is_one_line() -> None:
    with pytest.raises(InputError, match="not known; use one of"):
        seconds(run=replace(RUN, software="abacus"))


def test_an_architecture_that_was_never_measured_is_said_and_has_a_wider_interval() -> None:
    network, coefficients = load_network("resnet50"), shipped_coefficients()
    known = estimate(network, device("a100"), RUN, coefficients)
    unknown = estimate(network, device("h100"), RUN, coefficients)
    assert not known.assumed
    assert "Hopper" in unknown.assumed[0]
    assert unknown.interval[1] / unknown.seconds > known.interval[1] / known.seconds


def test_a_modules_slow_cores_make_eager_small_batches_slow() -> None:
    network, coefficients = load_network("mobilenetv2_100"), shipped_coefficients()
    call = VisionSetting(task="infer", batch=1, precision="fp16")
    xavier = estimate(network, device("jetson-agx-xavier"), call, coefficients)
    card = estimate(network, device("a100"), call, coefficients)
    assert xavier.bound == card.bound == "launches"
    assert xavier.seconds > 1.8 * card.seconds


def test_a_runtime_that_fuses_starts_no_norms_and_activations() -> None:
    network, coefficients = load_network("resnet50"), shipped_coefficients()
    arrays = operator_arrays(network)
    eager = VisionSetting(task="infer", batch=1, precision="fp16")
    fused = replace(eager, software="tensorrt")
    times = {
        one: demand(arrays, device("a100"), one)
        * coefficients.factors(traits_of(device("a100"), one))
        for one in (eager, fused)
    }
    folded = WORK.index("folded launches")
    assert times[fused][folded] < 0.05 * times[eager][folded]


def test_8_bits_without_an_instruction_for_them_are_no_faster_than_their_one_unit() -> None:
    network = load_network("mobilenetv2_100")
    fp32, int8 = (
        VisionSetting(task="infer", batch=1, precision=one, software="tflite")
        for one in ("fp32", "int8")
    )
    compute = len(COMPUTE)
    for name, most in (("carmel", 1.05), ("a311d2", 2.1)):
        part, arrays = device(name), operator_arrays(network)
        ratio = demand(arrays, part, fp32)[:compute] / np.maximum(
            demand(arrays, part, int8)[:compute], 1e-12
        )
        assert max(ratio) < most


def test_without_matrix_units_halves_are_multiplied_faster_only_where_a_runtime_does_so() -> None:
    arrays = operator_arrays(load_network("resnet50"))
    wide = WORK.index("compute wide")

    def products(software: str, precision: str) -> float:
        call = VisionSetting(task="infer", batch=1, precision=precision, software=software)
        return float(demand(arrays, device("jetson-nano"), call)[wide])

    assert products("eager", "fp16") == pytest.approx(products("eager", "fp32"))
    assert products("tensorrt", "fp16") == pytest.approx(products("eager", "fp32") / 2)


def test_more_threads_share_the_products_and_wait_longer_for_each_other() -> None:
    arrays = operator_arrays(load_network("resnet50"))
    call = VisionSetting(task="infer", batch=1, precision="fp32", software="ncnn")
    one, four, sixteen = (
        dict(zip(WORK, demand(arrays, device("kunpeng-920-7260"), run), strict=True))
        for run in (replace(call, threads=count) for count in (1, 4, 16))
    )
    assert one["compute wide"] > four["compute wide"] > sixteen["compute wide"]
    assert one["kernels"] == 0.0
    assert sixteen["kernels"] == pytest.approx(2 * four["kernels"])


def test_a_card_of_few_watts_is_slowed_by_large_batches_alone() -> None:
    cooled = msgspec.structs.replace(device("t4"), power=None)
    arrays = operator_arrays(load_network("resnet50"))
    for batch, slower in ((256, 1.15), (1, 1.0)):
        run = replace(RUN, batch=batch)
        times = [demand(arrays, one, run).sum() for one in (device("t4"), cooled)]
        assert times[0] / times[1] == pytest.approx(slower, abs=0.12), batch
    for name in ("v100", "a100", "h100", "rtx-4090"):
        card = device(name)
        same = demand(arrays, msgspec.structs.replace(card, power=None), RUN)
        assert demand(arrays, card, RUN) == pytest.approx(same, rel=0.06), name


def test_scores_of_attention_that_are_written_out_cost_attention_alone() -> None:
    unfused = replace(RUN, fused_attention=False)
    assert seconds("vit_base_patch16_384", run=unfused) > 1.2 * seconds("vit_base_patch16_384")
    assert seconds(run=unfused) == pytest.approx(seconds(), rel=0.02)


def test_32_bits_run_on_matrix_units_only_where_those_are_faster() -> None:
    run = replace(RUN, precision="tf32")
    assert "vector units" in traits_of(device("rtx-4090"), run)
    assert "vector units" not in traits_of(device("a100"), run)
    assert "vector units" in traits_of(device("v100"), replace(RUN, precision="fp32"))
    assert "vector units" not in traits_of(device("rtx-4090"), RUN)


@pytest.mark.parametrize(
    ("name", "gigahertz"), [("a100", 1.41), ("rtx-4090", 2.52), ("Jetson-Nano", 0.92)]
)
def test_the_clock_of_a_card_follows_from_its_peak_and_its_lanes(
    name: str, gigahertz: float
) -> None:
    assert clock_of(device(name)) / 1e9 == pytest.approx(gigahertz, abs=0.01)


def at_peaks(run: VisionSetting, model: str = "resnet50", gpu: str = "a100") -> dict[str, float]:
    """Kind of work → its seconds at the peaks."""
    found = demand(operator_arrays(load_network(model)), device(gpu), run)
    return dict(zip(WORK, found.tolist(), strict=True))


def test_autocast_casts_every_weight_in_every_pass() -> None:
    cast, plain = at_peaks(RUN), at_peaks(replace(RUN, precision="fp16"))
    assert cast["memory weights"] == pytest.approx(4.0 * plain["memory weights"])
    assert cast["launches"] > 1.5 * plain["launches"]
    assert cast["folded launches"] == plain["folded launches"]


def test_traffic_is_hidden_by_the_products_of_the_same_operator_alone() -> None:
    run = replace(RUN, precision="fp32")
    slow, fast = at_peaks(run, gpu="t4"), at_peaks(replace(RUN, precision="fp16"), gpu="t4")
    # products take six times as long in 32 bits there, and twice the bytes are hidden by them
    assert slow["compute wide"] > 5.0 * fast["compute wide"]
    assert slow["memory wide"] < fast["memory wide"]
    assert slow["memory activation"] > fast["memory activation"]


def test_a_comparison_is_another_kind_of_work_than_an_exponential() -> None:
    relu, silu = at_peaks(RUN), at_peaks(RUN, "efficientnet_b0")
    assert relu["memory activation"] > 0 == relu["memory smooth"]
    assert silu["memory smooth"] > 0 == silu["memory activation"]


def test_what_a_framework_adds_is_no_part_of_a_runtime() -> None:
    run = replace(RUN, precision="fp16")
    for software, adds in (("eager", True), ("compile", True), ("tensorrt", False)):
        named = traits_of(device("a100"), replace(run, software=software))
        assert ("framework" in named) is adds
    assert "framework" not in traits_of(device("Core-i9-10940X"), replace(run, precision="fp32"))
