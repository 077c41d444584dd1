"""A call of a stage on a GPU: on a stream of its own, the host's time apart from the GPU's.

Each stage has one stream, so stages that run in threads overlap on the GPU as they do on the host.
A call has ended when the GPU has: only then does the flow hear of it, so a deadline is judged, and
a slow stage named, by what really happened. `enqueue_seconds` is the time until the stage's code
returned, `gpu_seconds` the time between the events around its kernels: where the first comes near
the second the host is the limit, and CUDA graphs are the cure.

A stage is taken to be on a GPU when its processor is declared so (`processor="cuda"`), its weights
lie there, or tensors that go in or come out do. One that takes and gives host memory alone waits
for its GPU itself.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

from ridgeline.realtime.executors.calls import CallOutcome, StageCaller
from ridgeline.realtime.pipeline import StageCode
from ridgeline.records.pipeline_shape import StageShape
from ridgeline.records.realtime_run import CallMode


def caller_of(stage: StageShape, code: StageCode) -> StageCaller | StreamCaller:
    """What calls this stage: where torch sees no GPU, plainly."""
    declared = stage.processor.lower().startswith(("cuda", "gpu"))
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return StageCaller(code)
    weights = getattr(code.call, "parameters", None)
    on_gpu = weights is not None and any(weight.is_cuda for weight in weights())
    return StreamCaller(StageCaller(code), torch.cuda, on_gpu=declared or on_gpu)


class StreamCaller:
    """Calls a stage's code on its own stream and waits for the GPU.

    Args:
        caller: Calls the code.
        cuda: `torch.cuda`.
        on_gpu: Known before the first call; else tensors tell.
    """

    def __init__(self, caller: StageCaller, cuda: Any, *, on_gpu: bool) -> None:
        self._caller = caller
        self._cuda = cuda
        self._on_gpu = on_gpu
        self._stream: Any = None
        self._events: tuple[Any, Any] | None = None

    def __call__(self, mode: CallMode, inputs: tuple[Any, ...]) -> CallOutcome:
        """Run one frame through the stage; returns when its result is there."""
        tensors = list(gpu_tensors(inputs))
        if self._on_gpu or tensors:
            self._on_gpu = True
            return self._on_stream(mode, inputs, tensors)
        outcome = self._caller(mode, inputs)
        if any(True for _ in gpu_tensors(outcome.output)):  # made here, on the default stream
            self._on_gpu = True
            outcome.enqueue_seconds = outcome.ended - outcome.started
            self._cuda.current_stream().synchronize()
            outcome.ended = time.monotonic()
        return outcome

    def _on_stream(
        self, mode: CallMode, inputs: tuple[Any, ...], tensors: list[Any]
    ) -> CallOutcome:
        if self._stream is None:
            self._cuda.synchronize()  # weights may still be on their way, on another stream
            self._stream = self._cuda.Stream()
            event = self._cuda.Event
            self._events = event(enable_timing=True), event(enable_timing=True)
        assert self._events is not None
        begin, end = self._events
        for tensor in tensors:  # a stage that remembers one may free it while its kernels run
            tensor.record_stream(self._stream)
        with self._cuda.stream(self._stream):
            begin.record(self._stream)
            outcome = self._caller(mode, inputs)
            end.record(self._stream)
        outcome.enqueue_seconds = outcome.ended - outcome.started
        end.synchronize()
        outcome.ended = time.monotonic()
        outcome.gpu_seconds = begin.elapsed_time(end) / 1000
        return outcome


def gpu_tensors(value: Any) -> Iterator[Any]:
    """The tensors on a GPU in nested lists, tuples, dictionaries and dataclasses."""
    if getattr(value, "is_cuda", False) is True:
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from gpu_tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from gpu_tensors(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from gpu_tensors(getattr(value, one.name, None))
