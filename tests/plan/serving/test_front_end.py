"""What stands between clients and steps: an engine's looks at its queue, and what sends tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.plan.serving.coefficients import read_calibration

SMALL = ["predict", "serving", "--model", "Llama-3.1-8B", "--gpu", "H200", "--tp", "8",
         "--weights", "fp8", "--prompt", "1000", "--answer", "1000", "--json"]  # fmt: skip


def predicted(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run([*SMALL, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_one_process_that_sends_tokens_bounds_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    most = 1.0 / read_calibration().values["stream_seconds sglang"]
    few, many, more = (
        predicted(capsys, "--engine", "sglang", "--users", users) for users in ("16", "512", "1024")
    )
    rates = [one["output_tokens_per_second"]["value"] for one in (few, many, more)]
    assert rates[0] < rates[1] < rates[2] < most
    assert rates[2] < 1.3 * rates[1]
    waits = [one["ttft_seconds"]["value"] for one in (few, many, more)]
    assert waits[2] > 2 * waits[1] > 4 * waits[0]
    # The same engine with a front end that keeps up.
    assert predicted(capsys, "--engine", "python", "--users", "1024")[
        "output_tokens_per_second"]["value"] > rates[2]  # fmt: skip


def test_an_engine_that_looks_at_its_queue_now_and_then_answers_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, then = (
        predicted(capsys, "--engine", one, "--users", "16") for one in ("python", "sglang-recipes")
    )
    steps = read_calibration().values["receive_steps sglang-recipes"]
    late = then["ttft_seconds"]["value"] - now["ttft_seconds"]["value"]
    assert late > (steps - 1.0) / 2.0 * 0.8 * now["tpot_seconds"]["value"]
    alone = [
        predicted(capsys, "--engine", one, "--users", "1")["ttft_seconds"]["value"]
        for one in ("python", "sglang-recipes")
    ]
    assert alone[1] - alone[0] < late
