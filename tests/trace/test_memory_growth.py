"""Does memory grow from step to step: the level at each step's end, and who keeps what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace.written import host, read_kineto, step, write

from ridgeline.trace.memory.allocations import DeviceMemory, memory_use
from ridgeline.trace.memory.growth import memory_growth

MB = 1_000_000
LENGTH = 1000.0


class Allocator:
    """Writes allocations as torch's profiler does: bytes, address, total after it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.events: list[dict[str, Any]] = []

    def change(self, at: float, size: int, address: int) -> None:
        self.total += size
        args = {"Total Reserved": 10**9, "Total Allocated": self.total, "Bytes": size,
                "Addr": address, "Device Type": 1, "Device Id": 0}  # fmt: skip
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                            "pid": 1, "tid": 1, "ts": at, "args": args})  # fmt: skip


def training(
    steps: int, *, leak: int = 0, warm_up: int = 0, batches: tuple[int, ...] = (8 * MB,)
) -> list[dict[str, Any]]:
    """Steps that allocate a batch and free it; `leak` bytes of each stay."""
    memory, events = Allocator(100 * MB), []
    for number in range(steps):
        start = number * LENGTH
        batch = batches[number % len(batches)]
        events += [
            step(start, LENGTH, number),
            host(start + 100, 100, "aten::mm"),
            host(start + 300, 100, "aten::stack"),
            host(start + 290, 120, "train.py(41): remember", "python_function"),
        ]
        memory.change(start + 150, batch, 1000 + number)
        if leak:
            memory.change(start + 350, leak, 2000 + number)
        if warm_up and not number:
            memory.change(start + 360, warm_up, 3000)
        memory.change(start + 500, -batch, 1000 + number)
    return [*events, *memory.events]


def judged(tmp_path: Path, events: list[dict[str, Any]], **extra: Any) -> DeviceMemory:
    (device,) = memory_use(read_kineto(write(tmp_path / "t.json", events, **extra))).devices
    return device


def test_a_leak_is_named_with_its_rate_and_its_place(tmp_path: Path) -> None:
    gpu = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 200 * MB}]
    events = training(6, leak=2 * MB, warm_up=30 * MB)
    found = judged(tmp_path, events, deviceProperties=gpu).growth
    assert found.verdict == "grows"
    assert found.bytes_per_step == pytest.approx(2 * MB)
    assert [one.end_bytes for one in found.steps] == [(132 + 2 * n) * MB for n in range(6)]
    (kept,) = found.kept
    assert (kept.operator, kept.phase) == ("aten::stack", "forward")
    assert kept.line == "train.py:41 remember"
    assert (kept.allocations, kept.bytes) == (4, 8 * MB), "neither the first step nor the last"
    highest = 100 + 30 + 2 * 5 + 8
    assert found.steps_until_full == pytest.approx((200 - highest) / 2, abs=1)
    assert "2.00 MB a step" in found.sentence
    assert "aten::stack at train.py:41 remember" in found.sentence


def test_what_the_first_step_sets_up_is_no_growth(tmp_path: Path) -> None:
    found = judged(tmp_path, training(5, warm_up=50 * MB)).growth
    assert (found.verdict, found.kept, found.steps_until_full) == ("steady", [], None)
    assert found.bytes_per_step == pytest.approx(0, abs=1e-3)
    assert "does not grow" in found.sentence


def test_batches_of_many_sizes_are_no_growth(tmp_path: Path) -> None:
    events = training(6, batches=(8 * MB, 40 * MB, 20 * MB))
    assert judged(tmp_path, events).growth.verdict == "steady", "they are freed in their step"


def test_a_level_that_goes_up_and_down_varies(tmp_path: Path) -> None:
    memory = Allocator(100 * MB)
    events: list[dict[str, Any]] = []
    for number in range(6):
        events.append(step(number * LENGTH, LENGTH, number))
        memory.change(number * LENGTH + 10, (1 if number % 2 else -1) * 20 * MB, 7)
    assert judged(tmp_path, [*events, *memory.events]).growth.verdict == "varies"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_fewer_than_three_steps_tell_nothing(tmp_path: Path, steps: int) -> None:
    events = training(max(steps, 1), leak=MB)
    if not steps:
        events = [event for event in events if "ProfilerStep" not in event["name"]]
    found = judged(tmp_path, events).growth
    assert (found.verdict, found.bytes_per_step) == ("unknown", None)
    assert "cannot be told" in found.sentence


def test_what_holds_the_peak_is_told_by_phase(tmp_path: Path) -> None:
    memory = Allocator(0)
    events = [
        step(0, 1000, 0),
        host(0, 100, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        host(10, 20, "aten::stack"),
        host(200, 100, "aten::mm"),
        host(400, 200, "autograd::engine::evaluate_function: MmBackward0"),
        host(410, 20, "aten::mm"),
        host(700, 100, "Optimizer.step#AdamW.step", "user_annotation"),
        host(710, 20, "aten::zeros_like"),
    ]
    for number, (at, size) in enumerate(((20, 1), (250, 2), (420, 4), (720, 8), (900, 16))):
        memory.change(at, size * MB, number)
    device = judged(tmp_path, [*events, *memory.events])
    assert device.held_by_phase == {
        "data": MB, "forward": 2 * MB, "backward": 4 * MB, "optimizer": 8 * MB, "other": 16 * MB,
    }  # fmt: skip


@given(
    leak=st.integers(1, 50),
    batches=st.lists(st.integers(1, 400), min_size=1, max_size=6).map(tuple),
    steps=st.integers(4, 12),
)
def test_a_leak_is_found_under_any_batches(
    tmp_path_factory: pytest.TempPathFactory, leak: int, batches: tuple[int, ...], steps: int
) -> None:
    folder = tmp_path_factory.mktemp("leak")
    size = 512 * leak
    grown = judged(folder, training(steps, leak=size, batches=batches)).growth
    assert grown.verdict == "grows"
    assert grown.bytes_per_step == pytest.approx(size)
    assert sum(holder.bytes for holder in grown.kept) == size * (steps - 2)
    assert judged(folder, training(steps, batches=batches)).growth.verdict == "steady"


def test_a_trace_without_totals_is_judged_by_what_it_adds_up_to(tmp_path: Path) -> None:
    events = training(6, leak=MB)
    for event in events:
        if event["name"] == "[memory]":
            del event["args"]["Total Allocated"], event["args"]["Total Reserved"]
    device = judged(tmp_path, events)
    assert device.peak_bytes is None
    assert device.growth.verdict == "grows"


def test_events_of_torch_1_8_have_no_category_and_no_address(tmp_path: Path) -> None:
    """Growth is all that can be told of them: nobody knows what was freed."""
    events = training(6, leak=MB)
    for event in events:
        if event["name"] == "[memory]":
            del event["cat"]
            event["args"] = {key: event["args"][key] for key in ("Bytes", "Device Type")}
    device = judged(tmp_path, events)
    assert device.growth.verdict == "grows"
    assert device.growth.bytes_per_step == pytest.approx(MB)
    assert (device.peak_bytes, device.holders, device.growth.kept) == (None, [], [])


def test_no_events_at_all_are_no_growth(tmp_path: Path) -> None:
    import numpy as np

    trace = read_kineto(write(tmp_path / "t.json", training(4)))
    found = memory_growth(trace, np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert found.verdict == "steady"
