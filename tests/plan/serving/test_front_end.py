"""What stands between clients and steps: an engine's looks at its queue, and what sends tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.hardware import device
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


def seconds_per_token(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    return float(predicted(capsys, *words)["tpot_seconds"]["value"])


def test_widening_weights_costs_more_where_memory_is_fast_beside_compute_units(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A GeForce reads a quarter of an A100's bytes a cycle and unit, an H200 1.4 times them."""
    gains = [
        seconds_per_token(capsys, *on, "--weights", "bf16")
        / seconds_per_token(capsys, *on, "--weights", "awq-int4")
        for gpu in ("RTX4090", "A100", "H200")
        for on in (["--gpu", gpu, "--tp", "1", "--users", "1"],)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.4 * gains[2]


def test_memory_that_brings_less_to_each_compute_unit_is_read_at_more_of_its_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = ["--tp", "1", "--users", "1", "--engine", "loop", "--weights", "bf16"]
    card, server = (
        predicted(capsys, *one, "--gpu", gpu)["breakdown"]["weights"]
        * device(gpu).memory.bandwidth_bytes_per_second
        for gpu in ("RTX4090", "A100")
    )
    assert 0.8 * server < card < 0.92 * server


@pytest.mark.parametrize(("users", "least", "most"), [("1", 0.98, 1.04), ("32", 1.05, 3.0)])
def test_between_its_tokens_a_client_waits_for_the_prompts_of_others_alone(
    users: str, least: float, most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--tp", "1", "--users", users, "--answer", "64"]
    short, long = (
        seconds_per_token(capsys, *load, "--prompt", prompt) for prompt in ("2000", "4000")
    )
    assert least < long / short < most


def test_a_cache_of_four_bits_has_room_for_more_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bf16, int8, int4 = (
        predicted(capsys, "--tp", "1", "--prompt", "16000", "--cache", kept)["most_running"]
        for kept in ("bf16", "int8", "int4")
    )
    assert int8 > 1.5 * bf16
    assert int4 > 1.5 * int8


def test_ranks_on_two_nodes_are_joined_by_their_fabric(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--model", "Llama-3.1-405B", "--gpu", "H100", "--users", "64"]
    one, two = (seconds_per_token(capsys, *large, "--tp", ranks) for ranks in ("8", "16"))
    assert 0.5 * one < two < 1.4 * one


def test_a_library_without_graphs_waits_for_its_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    captured, started = (
        seconds_per_token(capsys, "--engine", one, "--users", "1")
        for one in ("native", "fastertransformer")
    )
    assert started > 1.2 * captured
