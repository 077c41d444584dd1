"""What processes share: values come back as they were, slots are used again, nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.realtime.executors.open_arenas import arenas_of, holders

from ridgeline.realtime.executors.arenas import SMALLEST_SLOT_BYTES, Arena, MemorySlot, SlotBook
from ridgeline.realtime.executors.payloads import pack, unpack, unpack_copy

torch = pytest.importorskip("torch")


@dataclass
class Scene:
    boxes: Any
    name: str


def there_and_back(value: Any) -> Any:
    arena = Arena(0)
    return unpack(pack(value, arena, None), [arena])[0]


def test_nested_values_come_back_with_their_arrays_and_tensors() -> None:
    value = Scene({"a": [np.arange(6).reshape(2, 3)[:, ::2], (torch.ones(2, 3), None)]}, "crossing")
    back = there_and_back(value)
    assert back.name == "crossing"
    np.testing.assert_array_equal(back.boxes["a"][0], [[0, 2], [3, 5]])
    assert torch.equal(back.boxes["a"][1][0], torch.ones(2, 3))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn", "complex64"],
)
@given(sizes=st.lists(st.integers(0, 4), max_size=4), turn=st.randoms(use_true_random=False))
def test_tensors_of_every_shape_and_order_come_back(
    dtype: str, sizes: list[int], turn: Any
) -> None:
    axes = list(range(len(sizes)))
    turn.shuffle(axes)
    tensor = (torch.rand(sizes) * 100).to(getattr(torch, dtype)).permute(axes)
    back = there_and_back(tensor)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back.to(torch.complex64), tensor.to(torch.complex64))


def test_channels_last_stays_so_and_no_gradient_crosses() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = there_and_back(images)
    assert back.is_contiguous(memory_format=torch.channels_last)
    assert not there_and_back(torch.ones(2, requires_grad=True)).requires_grad


def test_no_array_is_pickled_into_the_message() -> None:
    arena = Arena(0)
    image = np.random.default_rng(0).random((3, 256, 256))
    payload = pack([image, torch.from_numpy(image)], arena, None)
    assert len(payload.body) < 1000
    assert [length for _, length in payload.spans] == [image.nbytes] * 2


def test_arrays_lie_on_the_slot_and_copies_do_not() -> None:
    arena = Arena(0)
    payload = pack(np.zeros(8), arena, None)
    assert payload.slot is not None
    view, (alive,) = unpack(payload, [arena])
    copy = unpack_copy(payload, [arena])
    pack(np.ones(8), arena, payload.slot)
    assert view.sum() == 8
    assert copy.sum() == 0
    kept = torch.from_numpy(view)[2:]
    del view
    assert alive() is not None
    del kept
    assert alive() is None


def test_a_slot_is_used_again_and_a_larger_value_gets_a_larger_one() -> None:
    arena = Arena(0)
    first = pack(np.zeros(10), arena, None).slot
    assert first == MemorySlot(0, 0, SMALLEST_SLOT_BYTES)
    assert pack(np.zeros(20), arena, first).slot == first
    larger = pack(np.zeros(SMALLEST_SLOT_BYTES), arena, first).slot
    assert larger == MemorySlot(0, SMALLEST_SLOT_BYTES, 8 * SMALLEST_SLOT_BYTES)


def test_a_slot_is_free_when_neither_the_flow_nor_a_stage_holds_it() -> None:
    book = SlotBook()
    slot = MemorySlot(3, 0, 1024)
    book.filled(slot, None)
    assert book.offer(3) is None
    book.kept("tracker", [slot])
    book.kept("planner", [slot])
    book.released(slot)
    assert book.offer(3) is None
    book.kept("tracker", [])
    assert book.offer(3) is None
    book.kept("planner", [])
    assert book.offer(3) == slot
    assert book.offer(3) is None


def test_an_offered_slot_that_was_too_small_is_not_offered_again() -> None:
    book = SlotBook()
    small, large = MemorySlot(0, 0, 1024), MemorySlot(0, 1024, 4096)
    book.filled(large, small)
    book.released(large)
    assert book.offer(0) == large
    assert book.offer(0) is None
    book.untouched(large)
    assert book.offer(0) == large


ENDLESS = """
import os, sys, time
import numpy as np
from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline
pipeline = Pipeline("endless")
camera = pipeline.sensor("camera", lambda k: np.zeros((3, 64, 64)), rate=100)
middle = pipeline.stage("first", lambda x: (x, os.getpid()), camera)
pipeline.stage("second", lambda x: (x[1], os.getpid()), middle)
shown = []
def show(sink, frame, pids):
    if not shown:
        shown.append(print(*pids, flush=True))
execute(pipeline, executor="processes", frames=10**9, on_result=show)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_when_the_parent_is_killed_its_processes_die_and_no_memory_is_left() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        arenas = arenas_of(process.pid)
        assert len(holders(arenas)) == 3
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 120
    while not all(gone(pid) for pid in pids) or holders(arenas):
        assert time.monotonic() < until
        time.sleep(0.01)


AFTER_OPENMP = """
import torch
from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline
torch.set_num_threads(4)
weights = torch.ones(600, 600)
assert (weights @ weights).sum() > 0  # the parent's pool of threads exists now
pipeline = Pipeline("after OpenMP")
def multiply(x):
    torch.set_num_threads(4)
    return float((weights @ x).sqrt().mean())
pipeline.stage("multiply", multiply, pipeline.sensor("camera", lambda k: weights))
got = []
execute(pipeline, executor="processes", frames=3, warmup=0, on_result=lambda *a: got.append(a))
print(len(got), torch.get_num_threads())
"""


@pytest.mark.slow
def test_a_stage_computes_in_parallel_after_its_parent_has() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTER_OPENMP],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["3", "4"]
