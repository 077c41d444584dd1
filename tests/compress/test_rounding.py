"""Weights on their grids: every format, odd shapes, empty and constant rows, refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.compress.rounding import grid, in_groups, levels, on_grid, to_nearest, value
from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat
from ridgeline.records.scheme_names import parse

NAMES = (
    "w2a16-g32",
    "w3a16-g32",
    "w4a16-g32",
    "w4a16-asym-g32",
    "w4a16-channel",
    "w8a16-tensor",
    "w8a16-tensor-asym",
    "w8a8",
    "fp8",
    "e5m2a16",
    "mxfp4",
    "mxfp8",
    "nvfp4",
)


def form_of(name: str) -> NumberFormat:
    form = parse(name).weights
    assert form is not None
    return form


def relative_error(bits: int, kind: str) -> float:
    """What no number on the grid may exceed, of its group's largest."""
    return {"int": 1.02 / (2**bits - 1), "nvfp4": 0.2, "mxfp4": 0.26}.get(kind, 0.13)


@given(
    name=st.sampled_from(NAMES),
    rows=st.integers(1, 4),
    groups=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    power=st.integers(-20, 20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_every_weight_is_near_and_every_rounding_final(
    name: str, rows: int, groups: int, seed: int, power: int, dtype: torch.dtype
) -> None:
    form = form_of(name)
    made = torch.Generator().manual_seed(seed)
    weight = (torch.randn(rows, 32 * groups, generator=made) * 2.0**power).to(dtype)
    found = to_nearest(weight, form)
    assert found.scales.shape == in_groups(weight, form).shape[:2]
    wrong = in_groups((found.dequantised() - weight.float()).abs(), form).amax(-1)
    span = in_groups(weight.float(), form)
    width = span.abs().amax(-1) * (1 if form.symmetric else 2)
    lost = 2.0**-8 if dtype == torch.bfloat16 and form.kind in {"int", "fp8_e4m3"} else 0
    assert (wrong <= width * (relative_error(form.bits, form.kind) + lost) * 1.01).all()
    again = on_grid(found.dequantised(), grid(weight, form))
    assert torch.equal(again.levels.view(torch.int8), found.levels.view(torch.int8))


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("observer", ["minmax", "mse", "percentile"])
def test_empty_and_constant_rows_come_back(name: str, observer: str) -> None:
    weight = torch.ones(4, 64)
    weight[0], weight[1], weight[2] = 0, -0.375, 1e-9
    form = form_of(f"{name}-{observer}")
    back = to_nearest(weight, form).dequantised()
    assert torch.isfinite(back).all()
    assert (back[0] == 0).all()
    if form.share != "tensor":
        # A constant row is on the grid, or half a step of the wide end beside it.
        assert torch.allclose(back[1], weight[1], rtol=0.08 if form.bits > 3 else 0.34)


@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_without_columns_or_rows_is_no_trouble(name: str) -> None:
    for shape in ((3, 0), (0, 32)):
        found = to_nearest(torch.empty(shape), form_of(name))
        assert found.dequantised().shape == shape


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    weight = torch.ones(2, 32)
    weight[1, 7] = bad
    with pytest.raises(
        InputError, match=r"layers\.3\.up_proj: 1 of 64 weights are infinite or NaN"
    ):
        to_nearest(weight, form_of("w8a8"), "layers.3.up_proj")


def test_a_depth_that_groups_do_not_divide_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match="down: 48 input features are no multiple of a group of 32"
    ):
        to_nearest(torch.ones(2, 48), form_of("w4a16-g32"), "down")


@pytest.mark.parametrize("name", ["w4a16-g32", "w4a16-asym-g32", "mxfp4", "nvfp4"])
def test_groups_do_not_see_each_other(name: str) -> None:
    form = form_of(name)
    weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    weight[0, 0] = 4  # the largest of the tensor stays where it is
    changed = weight.clone()
    changed[:, 32:] *= 0.5
    first, second = (to_nearest(w, form).dequantised() for w in (weight, changed))
    assert torch.equal(first[:, :32], second[:, :32])


@pytest.mark.parametrize("name", NAMES)
def test_a_group_by_itself_is_rounded_as_within_the_whole(name: str) -> None:
    form = form_of(name)
    weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    on = grid(weight, form)
    whole = value(levels(weight, on), on)
    width = 64 // on.scales.shape[1]
    for group in range(on.scales.shape[1]):
        part = slice(group * width, (group + 1) * width)
        alone = on.of_group(group)
        assert torch.equal(value(levels(weight[:, part], alone), alone), whole[:, part])


def test_scales_are_rounded_to_the_saved_dtype_before_weights_are_to_them() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    form = form_of("w8a16-channel")
    found = to_nearest(weight, form, dtype=torch.bfloat16)
    assert found.scales.dtype == torch.bfloat16
    steps = (found.dequantised() - weight).abs() / found.scales.float()
    inside = found.levels.abs() < 127
    assert (steps[inside] <= 0.5001).all()


def test_groups_of_their_own_order_are_read_back() -> None:
    form = form_of("w8a16-g32")
    weight = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
    order = torch.arange(64) % 2
    columns = torch.argsort(order, stable=True)
    found = to_nearest(weight[:, columns], form)
    moved = torch.empty_like(found.levels)
    moved[:, columns] = found.levels
    ordered = type(found)(
        format=form, levels=moved, scales=found.scales, order=order.to(torch.int32)
    )
    expected = torch.empty_like(weight)
    expected[:, columns] = found.dequantised()
    assert torch.equal(ordered.dequantised(), expected)
