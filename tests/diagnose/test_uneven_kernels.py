"""Kernels that are slower at times than they themselves are: the machine, or the program's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, kernel, read_kineto, write

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.records.finding import TraceFinding

NAMES = ("sm90_gemm_qkv", "fmha_fwd", "sm90_gemm_out", "vectorized_elementwise_kernel")
ROUNDS, LAYERS, US = 6, 10, 100.0


def rounds(longer: dict[tuple[int, int, int], float], extra: int = 0) -> list[dict[str, Any]]:
    """A host far ahead of six rounds of the same kernels.

    `longer` has factors by round, layer and kernel; −1 stands for all of them. The third round has
    `extra` layers more.
    """
    events, now, number = [], 100.0, 0
    for step in range(ROUNDS):
        for layer in range(LAYERS + (extra if step == 2 else 0)):
            for place, name in enumerate(NAMES):
                number += 1
                keys = ((step, layer, place), (step, -1, -1), (step, -1, place))
                factor = next((longer[key] for key in keys if key in longer), 1.0)
                events.append(call(0.2 * number, 0.1, number))
                length = US * (1 + layer % 3) * factor
                events.append(kernel(now, length, correlation=number, name=name, grid=[200, 1, 1]))
                now += length + 1
    return events


def verdict(tmp_path: Path, events: list[dict[str, Any]]) -> list[TraceFinding]:
    return trace_verdict([read_kineto(write(tmp_path / "t.json", events))])


def excess(longer: dict[tuple[int, int, int], float]) -> float:
    """By how much the run is longer than without."""
    whole = [sum(one["dur"] for one in rounds(some) if one["cat"] == "kernel")
             for some in (longer, {})]  # fmt: skip
    return whole[0] - whole[1]


def test_kernels_that_are_all_slower_from_some_round_on_run_at_lower_clocks(
    tmp_path: Path,
) -> None:
    longer = {(step, -1, -1): 1.4 for step in (3, 4, 5)}
    found = verdict(tmp_path, rounds(longer))[0]
    assert found.cause == "uneven-kernels"
    assert "in the last 3 of 6 rounds, by 40 %: clocks fall" in found.summary
    assert found.worth_us == pytest.approx(excess(longer), rel=0.02)
    assert "power" in found.cure


def test_kernels_of_any_name_that_take_milliseconds_longer_shared_the_gpu(tmp_path: Path) -> None:
    longer = {(0, 3, 0): 11.0, (1, 6, 3): 21.0, (2, 1, 1): 11.0, (4, 8, 2): 7.0, (5, 2, 0): 7.0}
    found = verdict(tmp_path, rounds(longer))[0]
    assert found.cause == "uneven-kernels"
    assert "now and then, most of them by about" in found.summary
    assert found.worth_us == pytest.approx(excess(longer), rel=0.02)
    assert found.confidence <= 0.55


def test_kernels_too_long_to_be_seen_alone_lose_what_the_short_ones_lose(tmp_path: Path) -> None:
    """Another process has the GPU for 2 ms after each 3.1 ms of ours; some kernels take 3 ms."""
    events, now, own, number, away = [], 100.0, 0.0, 0, 0.0
    for _ in range(ROUNDS):
        for layer in range(LAYERS):
            for name, length in (*((name, US * (1 + layer % 3)) for name in NAMES), ("long", 3000)):
                number += 1
                turns = (own + length) // 3100 - own // 3100
                took = length + 2000 * turns
                events.append(call(0.2 * number, 0.1, number))
                events.append(kernel(now, took, correlation=number, name=name, grid=[200, 1, 1]))
                now, own, away = now + took + 1, own + length, away + 2000 * turns
    found = verdict(tmp_path, events)[0]
    assert (found.cause, found.confidence) == ("uneven-kernels", 0.55)
    assert found.worth_us == pytest.approx(away, rel=0.2)


@pytest.mark.parametrize(
    "longer",
    [
        {(step, -1, 1): 1 + 0.3 * step for step in range(ROUNDS)},  # attention over more and more
        {(0, -1, -1): 2.5},
        {},
    ],
    ids=["one-kernel", "first-round", "even"],
)
def test_what_a_program_does_itself_is_no_fault_of_the_machine(
    tmp_path: Path, longer: dict[tuple[int, int, int], float]
) -> None:
    causes = [finding.cause for finding in verdict(tmp_path, rounds(longer))]
    assert "uneven-kernels" not in causes


def test_rounds_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    """With twelve layers more in one round the counts divide evenly; the layers do not match."""
    causes = [finding.cause for finding in verdict(tmp_path, rounds({}, extra=12))]
    assert "uneven-kernels" not in causes
