"""Step times fitted to logs whose truth is known."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.plan.simulate.fleets import clock

from ridgeline.errors import InputError
from ridgeline.plan.simulate.fit import fit_steps, outside_of, seconds_of
from ridgeline.records.step_log import StepRow, StepWork

TRUTH = clock(
    shared_read_seconds=0.012,
    token_seconds=0.0011,
    sequence_seconds=0.002,
    pair_seconds=4e-8,
    cache_seconds=6e-7,
    fixed_host_seconds=0.001,
)


def log(noise: float, rows: int = 600, between: float = 0.0002) -> list[StepRow]:
    draw, found, now = Random(5), [], 100.0
    for number in range(rows):
        decodes = draw.randint(0 if number % 3 == 0 else 1, 16)
        work = StepWork(decodes=decodes, decode_context=decodes * draw.randint(20, 900))
        if number % 3 == 0:
            tokens, before = draw.randint(1, 512), draw.randint(0, 2000)
            pairs = tokens * before + tokens * (tokens + 1) // 2
            work = work._replace(
                prompt_tokens=tokens, prompt_pairs=pairs, prompts_done=draw.randint(0, 2)
            )
        seconds = seconds_of(TRUTH, work) * draw.lognormvariate(0.0, noise)
        found.append(StepRow(now, seconds, 1, work))
        now += seconds + between
    return found


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.15, 0.08)])
def test_a_fitted_clock_tells_the_time_of_steps_it_never_saw(noise: float, within: float) -> None:
    fitted = fit_steps(log(noise))
    assert fitted.time.between_seconds == pytest.approx(0.0002, rel=0.01)
    for work in (
        StepWork(decodes=1, decode_context=50),
        StepWork(decodes=12, decode_context=6000),
        StepWork(prompt_tokens=400, prompt_pairs=80_200, prompts_done=1),
        StepWork(
            prompt_tokens=250,
            prompt_pairs=281_375,
            prompts_done=1,
            decodes=6,
            decode_context=3000,
        ),
    ):
        assert fitted.time.seconds(work) == pytest.approx(seconds_of(TRUTH, work), rel=within)


def test_what_was_never_near_is_refused() -> None:
    time = fit_steps(log(0.0)).time
    with pytest.raises(InputError, match="decodes 40 is needed"):
        time.seconds(StepWork(decodes=40, decode_context=400))
    with pytest.raises(InputError, match="decode_context"):
        time.decodes(10, 10**6, 0.0, 1e9, 1)


def test_a_short_log_is_refused() -> None:
    with pytest.raises(InputError, match="at least 20 of each"):
        fit_steps(log(0.0, rows=30))


def test_all_times_are_scaled_so_that_the_log_takes_as_long_as_it_did() -> None:
    rows = log(0.3)
    fitted = fit_steps(rows)
    whole = sum(fitted.time.seconds(row.work) for row in rows)
    assert whole == pytest.approx(sum(row.seconds for row in rows), rel=0.02)
    assert 0.0 < fitted.sigma < 0.3


def alone(path: Path, **changed: Any) -> Path:
    percentiles = {"count": 9, "mean": 0.2, "p50": 0.2, "p75": 0.2, "p90": 0.2, "p95": 0.2}
    found = {
        "arrivals": "closed loop of 1, 100 tokens in, 4 out",
        "ttft_seconds": percentiles | {"p99": 0.2, "p99.9": 0.2, "max": 0.2},
        "lengths": {"input_tokens": 100.0, "output_tokens": 4.0, "cached_share": 0.0},
    }
    path.write_bytes(msgspec.json.encode(found | changed))
    return path


def test_a_lone_client_tells_what_http_takes(tmp_path: Path) -> None:
    fitted = fit_steps(log(0.0))
    found = outside_of(fitted, alone(tmp_path / "alone.json"), chunk=60)
    steps = (StepWork(60, 1830, 0), StepWork(40, 40 * 60 + 820, 1))
    inside = sum(fitted.time.seconds(work) for work in steps)
    assert found.time.request_seconds == pytest.approx(0.2 - inside)


def test_another_load_test_is_not_taken_for_a_lone_client(tmp_path: Path) -> None:
    path = alone(tmp_path / "alone.json", arrivals="Poisson, 1 requests/s, 100 tokens in, 4 out")
    with pytest.raises(InputError, match="no load test of one client"):
        outside_of(fit_steps(log(0.0)), path, chunk=60)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"alone\.json"):
        outside_of(fit_steps(log(0.0)), path, chunk=60)
