"""What bounds a run whose GPU clock is behind, whose memory is full, or that hardly ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.records.finding import TraceFinding


def verdict(tmp_path: Path, events: list[dict[str, Any]]) -> list[TraceFinding]:
    return trace_verdict([read_kineto(write(tmp_path / "t.json", events))])


def slow_host(behind_us: float) -> list[dict[str, Any]]:
    """Ten milliseconds of Python, two kernels of one, and a wait, five times."""
    now, events = 100.0, []
    for number in range(1, 11, 2):
        events.append(host(now, 10_000, "train.py(7): step", "python_function"))
        now += 10_000
        for place in range(2):
            events.append(call(now + 10 * place, 4, number + place))
            start = now + 8 + 1000 * place
            events.append(kernel(start - behind_us, 1000, correlation=number + place))
        events.append(call(now + 20, 2002, 0, "cudaStreamSynchronize"))
        now += 2030
    return events


@pytest.mark.parametrize("behind_us", [9.0, 30.0])
def test_a_gpu_clock_that_is_behind_does_not_hide_what_the_host_costs(
    tmp_path: Path, behind_us: float
) -> None:
    """Every kernel seems to start before its launch, and every wait to return late."""
    right, found = verdict(tmp_path, slow_host(0)), verdict(tmp_path, slow_host(behind_us))
    assert found[0].cause == right[0].cause == "host-bound"
    assert right[0].worth_us == pytest.approx(50_000, rel=0.02)
    assert found[0].worth_us == pytest.approx(right[0].worth_us, rel=0.02)


def trained(*, frees: int, every_step: bool, waits: bool = False) -> list[dict[str, Any]]:
    """Six steps that ask the driver for memory; it is given back in the third, or nowhere.

    With `waits` the host waits for each step before it asks for the memory of the next.
    """
    now, events = 100.0, []
    for number in range(1, 7):
        for _ in range(3 if every_step or number == 1 else 0):
            events.append(call(now, 2000, 0, "cudaMalloc"))
            now += 2000
        for _ in range(frees if number == 3 else 0):
            events.append(call(now, 1000, 0, "cudaFree"))
            now += 1000
        events.append(call(now, 4, number))
        length = 20_000 if waits else 5000
        events.append(kernel(now + 6, length, correlation=number))
        if waits:
            events.append(call(now + 10, length, 0, "cudaStreamSynchronize"))
        now += length + 20
    return events


def test_an_allocator_that_gives_its_memory_back_in_the_midst_of_a_run_is_no_start(
    tmp_path: Path,
) -> None:
    first = verdict(tmp_path, trained(frees=20, every_step=True))[0]
    assert first.cause == "allocator-bound"
    assert "full" in first.summary
    assert "expandable_segments" in first.cure
    assert first.worth_us == pytest.approx(20_000 + 5 * 3 * 2000, rel=0.02)


def test_a_wait_before_memory_is_freed_is_no_cause_for_the_free_would_wait_instead(
    tmp_path: Path,
) -> None:
    found = verdict(tmp_path, trained(frees=20, every_step=True, waits=True))
    assert found[0].cause == "allocator-bound"
    assert found[0].confidence == 0.85


def test_an_allocator_that_grows_in_its_first_step_is_a_start(tmp_path: Path) -> None:
    found = verdict(tmp_path, trained(frees=0, every_step=False))
    assert "allocator-bound" not in [finding.cause for finding in found]


def test_a_kernel_or_two_are_no_run(tmp_path: Path) -> None:
    events = [host(0, 130, "aten::mm"), call(10, 4, 1), kernel(20, 2, correlation=1)]
    assert verdict(tmp_path, events)[0].cause == "hardly-any-gpu-work"


@pytest.mark.parametrize("off", [0.0, 0.0002, 0.0004, 0.0006, 0.0008])
def test_a_copy_that_its_call_feeds_is_worth_as_much_wherever_between_ticks_it_ends(
    off: float, tmp_path: Path
) -> None:
    """The stamps of today's profilers are no whole nanoseconds where a float holds them."""
    copied = {"category": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    events = [
        host(0, 1100, "ProfilerStep#1", category="user_annotation"),
        call(100, 800 + off, 1, "cudaMemcpyAsync"),
        kernel(120, 790, correlation=1, **copied),
        call(950, 10, 2),
        kernel(970, 20, correlation=2),
    ]
    found = verdict(tmp_path, events)[0]
    assert found.cause == "copy-bound"
    assert found.worth_us == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize("off", [0.0, 0.0002, 0.0004, 0.0006, 0.0008])
def test_what_ends_a_window_is_worth_as_much_wherever_between_ticks_it_ends(
    off: float, tmp_path: Path
) -> None:
    copied = {"category": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "stream": 20}
    events = [
        call(0, 5, 1, "cudaMemcpyAsync"),
        kernel(10 + off, 400, correlation=1, **copied),
        call(30, 5, 2),
        kernel(40, 20, correlation=2),
        call(70, 345, 0, "cudaEventSynchronize"),
    ]
    found = verdict(tmp_path, events)[0]
    assert found.cause == "copy-bound"
    assert found.worth_us == pytest.approx(350, rel=0.02)
