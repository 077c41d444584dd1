from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.compress import rounding
from ridgeline.compress.methods import gptq, rtn
from ridgeline.compress.watching.statistics import CalibrationStatistics, output_error
from ridgeline.records.scheme_names import parse


def _case(seed, rows, columns, tokens, *, mixing=1.0):
    """A weight, and inputs whose columns are mixtures of each other."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    mixed = torch.randn(columns, columns, generator=generator) * mixing + torch.eye(columns)
    x = torch.randn(tokens, columns, generator=generator) @ mixed
    return weight, x, CalibrationStatistics(num_tokens=tokens, hessian=2.0 / tokens * x.T @ x)


def _naive(weight, hessian, scheme, order=None):
    """Optimal brain quantisation in a given order of columns, in float64: after each column the
    inverse of what is left of the Hessian is computed anew (GPTQ, equations 2 and 3)."""
    form = scheme.weights
    rest, h = weight.double().clone(), hessian.double().clone()
    h += 0.01 * float(h.diagonal().mean()) * torch.eye(len(h), dtype=torch.float64)
    columns = list(range(len(h))) if order is None else order.tolist()
    size = form.group or len(h)
    inverses = [torch.linalg.inv(h[columns[place:]][:, columns[place:]]) for place in range(len(h))]
    costs = torch.empty(len(h))
    costs[columns] = torch.tensor([1 / float(inverse[0, 0]) for inverse in inverses])
    whole = rounding.grid(weight, form, costs=costs)
    result = torch.empty_like(rest)
    for place, column in enumerate(columns):
        grid = whole.of_group(column // size)
        left, inverse = columns[place:], inverses[place]
        on = rest[:, column : column + 1].float()
        value = rounding.value(rounding.levels(on, grid), grid)[:, 0].double()
        error = (rest[:, column] - value) / inverse[0, 0]
        rest[:, left] -= error[:, None] * inverse[0]
        result[:, column] = value
    return result


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["w4a16-gptq-channel", "w3a16-gptq-g8", "w4a16-gptq-g8-asym"]),
    ordered=st.booleans(),
)
def test_it_finds_what_column_by_column_inversion_in_double_precision_finds(seed, name, ordered):
    scheme = parse(name + ("-actorder" if ordered else ""))
    weight, _, seen = _case(seed, 6, 24, 200, mixing=0.2)
    order = seen.hessian.diagonal().argsort(descending=True, stable=True) if ordered else None
    found = gptq.quantise(weight, scheme, seen).quantised.dequantised().double()
    expected = _naive(weight, seen.hessian, scheme, order)
    # A value that is a tie but for rounding may go the other way and change what follows it.
    same = (found - expected).abs().amax(1) < 1e-4
    assert float(same.double().mean()) >= 0.6
    ours = output_error(weight, found.float(), seen.hessian)
    theirs = output_error(weight, expected.float(), seen.hessian)
    assert ours <= theirs * 1.05 + 1e-9


@pytest.mark.parametrize(
    "name", ["w4a16-gptq-g32", "w3a16-gptq-g64", "w4a16-gptq-channel-actorder"]
)
def test_lazy_updates_over_several_blocks_change_nothing(name, monkeypatch):
    weight, _, seen = _case(1, 8, 192, 800, mixing=0.1)
    scheme = parse(name)
    lazy = gptq.quantise(weight, scheme, seen).quantised.dequantised()
    monkeypatch.setattr(gptq, "BLOCK", 192)
    monkeypatch.setattr(gptq, "STEP", 192)
    at_once = gptq.quantise(weight, scheme, seen).quantised.dequantised()
    assert float(((lazy - at_once).abs() < 1e-4).float().mean()) > 0.9


@pytest.mark.parametrize(
    "name", ["w4a16-gptq-g16", "w3a16-gptq-g16", "mxfp4a16-gptq", "fp8a16-gptq"]
)
def test_it_loses_less_than_rounding_to_nearest(name):
    weight, _, seen = _case(2, 32, 64, 600, mixing=0.3)
    scheme = parse(name)
    plain = rtn.quantise(weight, scheme, seen)
    compensated = gptq.quantise(weight, scheme, seen)
    assert compensated.error < 0.8 * plain.error
    assert compensated.quantised.scales.shape == plain.quantised.scales.shape


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("seed", range(20))
def test_calibration_of_less_rank_than_inputs_never_aborts(seed):
    weight, x, _ = _case(seed, 16, 64, 4 + seed)
    x[:, seed % 64] = 0.0
    seen = CalibrationStatistics(num_tokens=len(x), hessian=2.0 / len(x) * x.T @ x)
    scheme = parse("w4a16-gptq-g16" + ("-actorder" if seed % 2 else ""))
    found = gptq.quantise(weight, scheme, seen)
    assert torch.isfinite(found.quantised.dequantised()).all()
    assert found.error <= rtn.quantise(weight, scheme, seen).error * 1.001


def test_a_hessian_that_cannot_be_inverted_falls_back_with_a_notice():
    weight, _, _ = _case(0, 4, 16, 8)
    broken = 3 * torch.ones(16, 16) - 2 * torch.eye(16)  # far from positive definite
    found = gptq.quantise(
        weight, parse("w4a16-gptq-g16"), CalibrationStatistics(num_tokens=8, hessian=broken)
    )
    assert "rounded to nearest instead" in found.notices
    plain = rounding.to_nearest(weight, parse("w4a16-gptq-g16").weights)
    assert torch.equal(found.quantised.levels, plain.levels)


def test_a_layer_that_calibration_never_reached_is_rounded_to_nearest():
    weight, _, _ = _case(0, 4, 16, 8)
    found = gptq.quantise(weight, parse("w4a16-gptq-g16"), CalibrationStatistics(num_tokens=0))
    assert found.notices == ("calibration never reached it: rounded to nearest",)


def test_what_was_pruned_stays_zero_and_is_made_up_for():
    weight, _, seen = _case(4, 16, 64, 400, mixing=0.3)
    mask = torch.rand(16, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    pruned = weight * mask
    for name in ("w4a16-gptq-g16", "w4a16-gptq-g16-asym", "w4a16-gptq-g16-actorder"):
        found = gptq.quantise(pruned, parse(name), seen, mask)
        assert not found.quantised.dequantised()[~mask].any()
        assert found.error < rtn.quantise(pruned, parse(name), seen, mask).error


@pytest.mark.parametrize("name", ["w4a16-gptq-g32", "w3a16-gptq-g32-actorder"])
def test_ranges_chosen_by_what_errors_cost_lose_less_than_full_ones(name):
    errors = {"": [], "-minmax": []}
    for seed in range(6):
        weight, _, seen = _case(seed, 32, 64, 600, mixing=0.3)
        for observer, found in errors.items():
            found.append(gptq.quantise(weight, parse(name + observer), seen).error)
    assert sum(errors[""]) < 0.99 * sum(errors["-minmax"])


def test_stacked_rows_do_not_meet():
    weight, _, seen = _case(5, 24, 32, 300, mixing=0.3)
    scheme = parse("w4a16-gptq-g16")
    whole = gptq.quantise(weight, scheme, seen).quantised.dequantised()
    parts = [gptq.quantise(part, scheme, seen).quantised.dequantised() for part in weight.split(8)]
    assert float((whole == torch.cat(parts)).float().mean()) > 0.98
