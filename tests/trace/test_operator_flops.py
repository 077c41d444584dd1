"""FLOPs by the shapes that a trace writes, held against torch's own count."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import read_kineto

from ridgeline.trace.roofline.operator_flops import (
    convolution_flops,
    convolution_output,
    executed_flops,
    flops_of,
)
from ridgeline.trace.roofline.operator_inputs import operator_inputs

GROUPED = 4

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 17, 19), (8, 3, 3, 3), {}),
    "strided and padded": ((2, 6, 32, 30), (4, 6, 5, 3), {"stride": (2, 3), "padding": (2, 1)}),
    "one number for both": ((1, 4, 33, 33), (5, 4, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((2, 3, 40, 40), (4, 3, 3, 3), {"dilation": (2, 3)}),
    "pointwise": ((3, 16, 9, 9), (7, 16, 1, 1), {}),
    "one dimension": ((2, 5, 50), (3, 5, 7), {"stride": 3, "padding": 2}),
    "three dimensions": ((1, 2, 9, 10, 11), (3, 2, 3, 2, 2), {"padding": 1}),
    "grouped": ((2, 8, 20, 20), (12, 2, 3, 3), {"groups": GROUPED}),
}


def recorded(tmp_path: Path, work: Callable[[], Any]) -> tuple[float | None, float]:
    """FLOPs of some work on torch's CPU: by its trace, and by torch's counter."""
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = executed_flops(read_kineto(path, details=True), -float("inf"), float("inf"))
    return found, float(counter.get_total_flops())


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_count_as_torch_counts_them(tmp_path: Path, case: str) -> None:
    import torch
    from torch.nn import functional

    data, weight, options = CONVOLUTIONS[case]
    convolve = getattr(functional, f"conv{len(data) - 2}d")
    inputs, filters = torch.randn(data), torch.randn(weight)
    ours, theirs = recorded(tmp_path, lambda: convolve(inputs, filters, **options))
    assert ours == theirs > 0


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("wanted", ["both", "weight"])
def test_gradients_of_convolutions_count_as_torch_counts_them(
    tmp_path: Path, case: str, wanted: str
) -> None:
    import torch
    from torch.nn import functional

    data, weight, options = CONVOLUTIONS[case]
    convolve = getattr(functional, f"conv{len(data) - 2}d")
    inputs = torch.randn(data, requires_grad=wanted == "both")
    filters = torch.randn(weight, requires_grad=True)
    ours, theirs = recorded(tmp_path, lambda: convolve(inputs, filters, **options).sum().backward())
    assert ours is not None
    # torch's counter takes the gradient of a grouped weight for one without groups.
    calls = 3 if wanted == "both" else 2
    one = ours / calls
    assert theirs == one * (calls - 1 + options.get("groups", 1))


@pytest.mark.parametrize("backward", [False, True])
def test_transposed_convolutions_count_as_torch_counts_them(tmp_path: Path, backward: bool) -> None:
    import torch
    from torch.nn import functional

    data = torch.randn(2, 6, 11, 13, requires_grad=True)
    weight = torch.randn(6, 5, 3, 4, requires_grad=True)

    def work() -> None:
        out = functional.conv_transpose2d(data, weight, stride=2, padding=1)
        if backward:
            out.sum().backward()

    ours, theirs = recorded(tmp_path, work)
    assert ours == theirs > 0


def test_a_network_counts_as_torch_counts_it(tmp_path: Path) -> None:
    import torch
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.Flatten(),
        nn.Linear(4 * 7 * 7, 10),
    )  # fmt: skip
    data = torch.randn(2, 3, 16, 16)
    ours, theirs = recorded(tmp_path, lambda: net(data).sum().backward())
    assert ours == theirs > 0


@pytest.mark.parametrize("backward", [False, True])
def test_attention_counts_as_torch_counts_it(backward: bool) -> None:
    from torch.utils import flop_counter

    query, key, value = (2, 8, 128, 64), (2, 2, 96, 64), (2, 2, 96, 32)
    gradient = (*query[:-1], value[-1])
    name = "aten::_scaled_dot_product_flash_attention"
    if backward:
        theirs = flop_counter.sdpa_backward_flop_count(gradient, query, key, value)
        ours = flops_of(f"{name}_backward", json.dumps([[gradient, query, key, value], []]))
    else:
        theirs = flop_counter.sdpa_flop_count(query, key, value)
        ours = flops_of(name, json.dumps([[query, key, value], []]))
    assert ours == theirs


def written(dims: list[Any], values: list[str]) -> str:
    return json.dumps([dims, ["float"] * len(dims), values])


def test_a_convolution_without_its_stride_is_unknown() -> None:
    dims = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]
    assert flops_of("aten::convolution", written(dims, [])) is None
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    assert flops_of("aten::convolution", written(dims, values)) == 2 * 2 * 4 * 36 * 27


def test_a_backward_convolution_without_its_mask_is_unknown() -> None:
    dims = [[2, 4, 6, 6], [2, 3, 8, 8], [4, 3, 3, 3], *([[]] * 8)]
    values = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    whole = 2 * 2 * 4 * 36 * 27
    assert flops_of("aten::convolution_backward", written(dims, values)) is None
    for mask, gradients in (("[True, True, True]", 2), ("[False, True, False]", 1)):
        flops = flops_of("aten::convolution_backward", written(dims, [*values, mask]))
        assert flops == whole * gradients


@pytest.mark.parametrize(
    "values",
    [
        ["", "", "", "[0, 0]", "[0, 0]", "[1, 1]", "False"],
        ["", "", "", "[1, 1, 1]", "[0, 0]", "[1, 1]", "False"],
        ["", "", "", "nonsense", "[0, 0]", "[1, 1]", "False"],
        ["", "", "", "[1, 1]", "[0, 0]", "[9, 9]", "False"],
    ],
)
def test_arguments_that_make_no_sense_make_no_figure(values: list[str]) -> None:
    inputs = operator_inputs(written([[2, 3, 8, 8], [4, 3, 3, 3]], values))
    assert inputs is not None
    assert convolution_output("aten::convolution", inputs) is None
    assert convolution_flops("aten::convolution", inputs) is None
