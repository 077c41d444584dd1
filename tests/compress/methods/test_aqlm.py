from __future__ import annotations

import pytest
import torch

from ridgeline.compress.methods import aqlm, gptq, rtn
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme_names import parse


def _case(rows=192, columns=64):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator)
    mixed = torch.randn(columns, columns, generator=generator) * 0.2 + torch.eye(columns)
    x = torch.randn(600, columns, generator=generator) @ mixed
    return weight, CalibrationStatistics(num_tokens=600, hessian=2.0 / 600 * x.T @ x)


def test_sums_of_entries_lose_less_than_integers_of_as_many_bits():
    weight, seen = _case()
    books = aqlm.quantise(weight, parse("aqlm2"), seen)
    integers = gptq.quantise(weight, parse("w2a16-gptq-g32"), seen)
    assert books.error < 0.6 * integers.error
    assert books.quantised.shape == weight.shape


def test_books_fitted_to_their_codes_lose_less(monkeypatch):
    weight, seen = _case()
    monkeypatch.setattr(aqlm, "ROUNDS", 1)
    fitted = aqlm.quantise(weight, parse("aqlm2"), seen)
    monkeypatch.setattr(aqlm, "STEPS", 0)
    as_begun = aqlm.quantise(weight, parse("aqlm2"), seen)
    assert torch.equal(fitted.quantised.levels, as_begun.quantised.levels)
    assert fitted.error < 0.9 * as_begun.error


def test_a_layer_that_calibration_never_reached_is_fitted_to_its_weights():
    weight, _ = _case(64, 32)
    found = aqlm.quantise(weight, parse("aqlm3"), CalibrationStatistics(num_tokens=0))
    assert found.notices == ("calibration never reached it: all its errors count the same",)
    integers = rtn.quantise(weight, parse("w3a16-g32"), CalibrationStatistics(num_tokens=0))
    assert found.error < integers.error


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_of_zeros_and_few_vectors_come_back_as_they_were(rows):
    weight, seen = _case(rows, 64)
    weight[0] = 0.0
    found = aqlm.quantise(weight, parse("aqlm2"), seen).quantised.dequantised()
    assert bool(found.isfinite().all())
    assert float(found[0].abs().max()) < 0.2
