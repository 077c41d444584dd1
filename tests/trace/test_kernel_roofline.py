"""Where kernels stand under the roofline: whose work they do, and what they attain of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.hardware import device
from ridgeline.trace.load import load_traces
from ridgeline.trace.roofline.kernel_roofline import KernelRoofline
from ridgeline.trace.time.kernels import kernel_use

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
SIDE = 4096
PRODUCT = {
    "Input Dims": [[SIDE, SIDE], [SIDE, SIDE]],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
}
FLOPS, BYTES = 2.0 * SIDE**3, 3 * 2.0 * SIDE**2
PEAK = device("h100").peak("bf16")
LEAST_US = FLOPS / PEAK * 1e6
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"


def positions(
    tmp_path: Path, events: list[dict[str, Any]], *, details: bool = True, gpu: Any = H100
) -> dict[str, KernelRoofline | None]:
    path = write(tmp_path / "trace.json", events, deviceProperties=gpu)
    ranks = kernel_use(read_kineto(path, details=details))
    return {use.name: use.roofline for use in ranks[0].kernels}


def one_call(operator: str, args: dict[str, Any], *kernels: tuple[str, float]) -> list[Any]:
    """An operator that launches these kernels, one after the other."""
    events, now = [host(0, 100, operator, **args)], 1000.0
    for number, (name, length) in enumerate(kernels, 1):
        events += [call(10.0 * number, 4, number), kernel(now, length, correlation=number,
                                                          name=name)]  # fmt: skip
        now += length
    return events


def test_a_product_at_the_peak_attains_all_of_the_roof(tmp_path: Path) -> None:
    found = positions(tmp_path, one_call("aten::mm", PRODUCT, (GEMM, LEAST_US)))[GEMM]
    assert found is not None
    assert found.flops == FLOPS
    assert found.bytes == BYTES
    assert found.intensity_flops_per_byte == pytest.approx(SIDE / 3)
    assert found.flops_per_second == pytest.approx(PEAK, rel=1e-6)
    assert (found.dtype, found.bound, found.known_share) == ("bf16", "compute", 1.0)
    assert found.attained_percent == pytest.approx(100, rel=1e-6)


def test_a_product_with_a_vector_is_bound_by_memory(tmp_path: Path) -> None:
    thin = {"Input Dims": [[1, SIDE], [SIDE, SIDE]], "Input type": ["c10::BFloat16"] * 2}
    found = positions(tmp_path, one_call("aten::mm", thin, ("gemvx", 20.0)))["gemvx"]
    assert found is not None
    moved = 2 * (SIDE + SIDE + SIDE * SIDE)
    bandwidth = device("h100").memory.bandwidth_bytes_per_second
    assert found.bytes == moved
    assert found.bound == "memory"
    assert found.attained_percent == pytest.approx(100 * moved / bandwidth / 20e-6)


def test_the_sum_of_a_split_product_takes_none_of_its_work(tmp_path: Path) -> None:
    reduce = "void cublasLt::splitKreduce_kernel<32, 16>"
    found = positions(tmp_path, one_call("aten::mm", PRODUCT, (GEMM, 100.0), (reduce, 10.0)))
    assert found[reduce] is None
    position = found[GEMM]
    assert position is not None
    assert position.flops == FLOPS
    assert position.flops_per_second == pytest.approx(FLOPS / 100e-6)


def test_kernels_of_one_call_share_its_work_by_their_time(tmp_path: Path) -> None:
    found = positions(tmp_path, one_call("aten::mm", PRODUCT, (GEMM, 30.0), ("nvjet_x", 90.0)))
    first, second = found[GEMM], found["nvjet_x"]
    assert first is not None
    assert second is not None
    assert first.flops == pytest.approx(FLOPS / 4)
    assert second.flops == pytest.approx(FLOPS * 3 / 4)
    assert first.flops_per_second == pytest.approx(FLOPS / 120e-6)
    assert first.attained_percent == pytest.approx(second.attained_percent)


def test_a_convolution_counts_once_though_operators_nest(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[8, 64, 56, 56], [64, 64, 3, 3], [], [], [], [], [], [], []],
        "Input type": ["float", "float", "", *(["ScalarList"] * 3), "Scalar", "ScalarList",
                       "Scalar"],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }  # fmt: skip
    inner: dict[str, Any] = {**args, "Concrete Inputs": []}
    events = [
        *one_call("aten::convolution", args, ("sm80_xmma_fprop_tf32f32", 50.0),
                  ("cudnn::nchwToNhwcKernel", 5.0)),
        host(5, 90, "aten::cudnn_convolution", **inner),
    ]  # fmt: skip
    found = positions(tmp_path, events)
    assert found["cudnn::nchwToNhwcKernel"] is None
    position = found["sm80_xmma_fprop_tf32f32"]
    assert position is not None
    assert position.flops == 2.0 * 8 * 64 * 56 * 56 * 64 * 9
    assert position.bytes == 4 * (2 * 8 * 64 * 56 * 56 + 64 * 64 * 9)
    assert position.dtype == "tf32"


def test_element_wise_work_has_bytes_and_no_flops(tmp_path: Path) -> None:
    args = {"Input Dims": [[1024, 1024], [1, 1024], []],
            "Input type": ["float", "float", "Scalar"]}  # fmt: skip
    found = positions(tmp_path, one_call("aten::add", args, ("vectorized_elementwise", 4.0)))
    position = found["vectorized_elementwise"]
    assert position is not None
    assert (position.flops, position.intensity_flops_per_byte) == (None, None)
    assert position.bytes == 4 * (2 * 1024 * 1024 + 1024)
    assert position.bound == "memory"


def test_fp32_whose_name_does_not_tell_its_units_has_no_roof(tmp_path: Path) -> None:
    args = {**PRODUCT, "Input type": ["float", "float"]}
    position = positions(tmp_path, one_call("aten::mm", args, ("gemm_kernel", 900.0)))[
        "gemm_kernel"
    ]
    assert position is not None
    assert position.flops == FLOPS
    assert (position.dtype, position.bound, position.attained_percent) == (None, None, None)


def test_an_unknown_device_has_rates_and_no_roof(tmp_path: Path) -> None:
    events = one_call("aten::mm", PRODUCT, (GEMM, 200.0))
    position = positions(tmp_path, events, gpu=[{"id": 0, "name": "Nobody's GPU"}])[GEMM]
    assert position is not None
    assert position.flops_per_second == pytest.approx(FLOPS / 200e-6)
    assert (position.bound, position.attained_percent) == (None, None)


def test_what_a_trace_does_not_say_has_no_position(tmp_path: Path) -> None:
    events = one_call("aten::mm", {}, (GEMM, 200.0))
    assert positions(tmp_path, events) == {GEMM: None}
    events = one_call("aten::mm", PRODUCT, (GEMM, 200.0))
    assert positions(tmp_path, events, details=False) == {GEMM: None}
    events = one_call("my::operator", PRODUCT, (GEMM, 200.0))
    assert positions(tmp_path, events) == {GEMM: None}
    for event in events:
        if event["cat"] == "kernel":
            event["args"]["graph id"] = 3
    assert positions(tmp_path, events) == {GEMM: None}


def test_a_kernel_of_known_and_unknown_calls_says_how_much_is_known(tmp_path: Path) -> None:
    events = one_call("aten::mm", PRODUCT, (GEMM, 200.0))
    events += [call(500, 4, 9), kernel(5000, 600, correlation=9, name=GEMM)]
    position = positions(tmp_path, events)[GEMM]
    assert position is not None
    assert position.known_share == pytest.approx(0.25)
    assert position.flops_per_second == pytest.approx(FLOPS / 200e-6)


def test_the_products_of_a_real_trace_stay_under_the_roof(real_traces: Path) -> None:
    """Products of bf16 matrices on an H100 reach some 60 % of its peak, and never all of it."""
    folder = real_traces / "h100_inference"
    trace = load_traces(next(folder.glob("Qwen*")), details=True)[0]
    places = [
        use.roofline
        for use in kernel_use(trace)[0].kernels
        if use.roofline is not None and use.kernel_class in ("gemm", "attention")
    ]
    assert places
    for place in places:
        assert place.attained_percent is not None
        assert 0 < place.attained_percent < 100
        assert math.isfinite(place.intensity_flops_per_byte or math.nan)
    best = max(place.attained_percent or 0 for place in places)
    assert 50 < best < 80
