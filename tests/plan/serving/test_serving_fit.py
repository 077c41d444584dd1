"""Fitting the coefficients of serving: what is put in comes out, and priors hold the rest."""

from __future__ import annotations

import numpy as np
import pytest
from bench.refit_serving import fit, problem_of
from tests.plan.serving.test_serving_table import CELLS

from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import ServingLayout
from ridgeline.plan.serving.coefficients import (
    CALIBRATION,
    LEFT_OUT,
    Situation,
    places,
    prior_calibration,
    priors,
    rates_at,
    read_calibration,
    read_left_out,
)
from ridgeline.plan.serving.prepared import in_metric, outcome, prepare
from ridgeline.plan.serving.published import PublishedServing, read_row
from ridgeline.plan.serving.spreads import KINDS, Neighbourhood, Spread, factor_of


def runs(num: int = 12) -> list[PublishedServing]:
    found = []
    for row in range(num):
        changes = {
            "source": f"lab {row % 3}",
            "isl": str(100 * 2 ** (row % 4)),
            "osl": "200",
            "batch_or_concurrency": str(2 ** (row % 6)),
            "metric_name": ("itl_ms", "ttft_ms")[row % 2],
            "metric_value": "1",
        }
        run = read_row(row, CELLS | changes)
        assert isinstance(run, PublishedServing)
        found.append(run)
    return found


def test_every_rate_has_a_prior_and_every_prior_a_rate() -> None:
    assert {one.key for one in priors()} == set(Rates.__dataclass_fields__)
    for one in priors():
        assert one.low < one.prior < one.high, one.name
        assert one.why
    names = [one.name for one in priors()]
    assert len(names) == len(set(names))


def test_a_slower_memory_is_found_again() -> None:
    prepared = prepare(runs())
    start = prior_calibration().logs()
    names = [one.name for one in priors()]
    true = start.copy()
    true[names.index("memory")] -= 0.15
    measured = in_metric(prepared, outcome(prepared, true))
    seen = prepare(
        [run_with(run, value) for run, value in zip(prepared.runs, measured, strict=True)]
    )
    found = fit(problem_of(seen, np.ones(len(measured), dtype=bool)))
    assert found[names.index("memory")] < start[names.index("memory")] - 0.01
    untouched = names.index("gemm CDNA")
    assert found[untouched] == pytest.approx(start[untouched])


def run_with(run: PublishedServing, value: float) -> PublishedServing:
    found = read_row(run.row, {**run.cells, "metric_value": repr(float(value))})
    assert isinstance(found, PublishedServing)
    return found


def test_the_shipped_files_are_of_these_priors() -> None:
    names = {one.name for one in priors()}
    assert set(read_calibration(CALIBRATION).values) == names
    for source, left in read_left_out(LEFT_OUT).items():
        assert set(left.values) == names, source


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp4"])
def test_a_card_s_few_units_sustain_more_of_their_peak_than_a_b200_s(precision: str) -> None:
    cases = [
        Situation(
            architecture="Blackwell", device=device, precision=precision, widened=0.0,
            fabric=False, engine="native", served=False,
        )
        for device in ("RTX-PRO-6000-Server", "B200")
    ]  # fmt: skip
    card, server = rates_at(places(cases), read_calibration().logs()).gemm
    assert card > server


def test_an_interval_is_as_wide_as_its_spread() -> None:
    assert factor_of(0.0) == 1.0
    place = Neighbourhood(
        architecture="Hopper", engine="python", experts=False, layout=ServingLayout()
    )
    near = Spread().of("throughput", place, {place.key})
    assert factor_of(near) == pytest.approx(np.exp(1.2816 * 0.25), rel=1e-3)


def test_what_lies_far_from_the_fit_has_the_wider_interval() -> None:
    spread = read_calibration().sigma
    layout = ServingLayout(tp=8, attention_dp=4, ep=32)
    strange = Neighbourhood(architecture="Nowhere", engine="python", experts=True, layout=layout)
    for kind in KINDS:
        near = spread.of(kind, strange, {strange.key})
        assert spread.of(kind, strange, read_calibration().seen) >= near
