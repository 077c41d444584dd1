"""A stage on a GPU, in the order in which its stream sees it; without a GPU, on one that notes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ridgeline.realtime.execute import execute
from ridgeline.realtime.executors.calls import StageCaller
from ridgeline.realtime.executors.streams import StreamCaller, gpu_tensors
from ridgeline.realtime.pipeline import Pipeline, StageCode


@dataclass
class NotedTensor:
    notes: list[str]
    is_cuda: bool = True

    def record_stream(self, stream: str) -> None:
        self.notes.append(f"tensor on {stream}")


@dataclass
class NotedCuda:
    """`torch.cuda` for callers: kernels end 20 ms after their code returned."""

    notes: list[str] = field(default_factory=list)

    def synchronize(self) -> None:
        self.notes.append("all")

    def Stream(self) -> str:
        return "own"

    def current_stream(self) -> Any:
        return self.Event()

    @contextmanager
    def stream(self, stream: str) -> Any:
        self.notes.append(f"enter {stream}")
        yield
        self.notes.append(f"leave {stream}")

    def Event(self, *, enable_timing: bool = False) -> Any:
        return NotedEvent(self.notes)


@dataclass
class NotedEvent:
    notes: list[str]

    def record(self, stream: str) -> None:
        self.notes.append(f"record on {stream}")

    def synchronize(self) -> None:
        self.notes.append("wait")
        time.sleep(0.02)

    def elapsed_time(self, end: NotedEvent) -> float:
        return 17.0


def test_a_call_runs_on_its_stream_and_ends_with_the_gpu() -> None:
    cuda = NotedCuda()
    notes = cuda.notes
    call = StreamCaller(
        StageCaller(StageCode(call=lambda x: notes.append("run"))), cuda, on_gpu=False
    )
    outcome = call("run", ([NotedTensor(notes)],))
    assert notes == ["all", "tensor on own", "enter own", "record on own", "run", "record on own",
                     "leave own", "wait"]  # fmt: skip
    assert outcome.gpu_seconds == 0.017
    assert outcome.enqueue_seconds is not None
    assert outcome.ended - outcome.started >= outcome.enqueue_seconds + 0.02


def test_a_stage_that_moves_data_to_the_gpu_is_waited_for_and_then_has_a_stream() -> None:
    cuda = NotedCuda()
    code = StageCode(call=lambda _: {"image": NotedTensor(cuda.notes)})
    call = StreamCaller(StageCaller(code), cuda, on_gpu=False)
    first = call("run", (1,))
    assert cuda.notes == ["wait"]
    assert first.gpu_seconds is None
    assert call("run", (2,)).gpu_seconds == 0.017


def test_a_stage_of_the_host_is_called_plainly() -> None:
    cuda = NotedCuda()
    outcome = StreamCaller(StageCaller(StageCode(call=lambda x: x + 1)), cuda, on_gpu=False)(
        "run", (1,)
    )
    assert (outcome.output, outcome.gpu_seconds, cuda.notes) == (2, None, [])


def test_tensors_are_found_in_what_stages_return() -> None:
    a, b, c = NotedTensor([]), NotedTensor([]), NotedTensor([], is_cuda=False)
    found = list(gpu_tensors(({"x": [a, c]}, StageCode(call=b), "text", None)))  # type: ignore[arg-type]
    assert [one is two for one, two in zip(found, (a, b), strict=True)] == [True, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_on_a_gpu_results_are_there_when_they_come_out_and_both_times_are_told(
    executor: Any,
) -> None:
    pipeline = Pipeline("gpu")
    camera = pipeline.sensor("camera", lambda k: torch.full((2048, 2048), float(k)), rate=50)
    there = pipeline.stage("upload", lambda x: x.cuda(non_blocking=True), camera)
    product = pipeline.stage("multiply", lambda x: x @ x, there, processor="cuda")
    pipeline.stage("read", lambda x: float(x[0, 0].cpu()), product)
    got = []
    run = execute(pipeline, executor=executor, frames=30, warmup=3,
                  on_result=lambda _, frame, value: got.append(value))  # fmt: skip
    assert got == [2048.0 * k * k for k in range(33)]
    multiply = run.calls[1]
    assert all(seconds > 0 for seconds in multiply.gpu_seconds)
    assert all(seconds > 0 for seconds in multiply.enqueue_seconds)
