"""What a worker does for each order; it keeps the model that it loaded until it ends."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import ExportError, InputError, RidgelineError
from ridgeline.export import orders
from ridgeline.export.check_inputs import CheckCase, arguments
from ridgeline.export.comparing import Compared
from ridgeline.export.reference import Reference, make_reference, read_reference
from ridgeline.measure.calls.loop import CallSample, time_calls
from ridgeline.measure.calls.memory import peak_resident_bytes, resident_bytes
from ridgeline.measure.calls.outliers import summarise
from ridgeline.records.runtime_export import Likeness, Throughput
from ridgeline.runtimes import Artifact, Free, ModelCall, Precision, runtime
from ridgeline.runtimes.capture import converting

THROUGHPUT_BATCHES = (1, 2, 4, 8, 16, 32)
_LEAST_CALLS = 5
_MOST_CALLS = 100_000


class WorkerAnswers:
    """One model in one process."""

    def __init__(self) -> None:
        self._call: Callable[..., Any] | None = None
        self._reference: Reference | None = None
        self._precision: Precision = "fp32"
        self._artifact: Artifact | None = None
        self._closed: list[CallSample] = []
        self._paced: list[CallSample] = []
        self._period_seconds: float | None = None

    @functools.singledispatchmethod
    def answer(self, order: Any) -> orders.Answer:
        """Do what is asked."""
        raise AssertionError(f"no such order: {order}")

    @answer.register
    def _(self, order: orders.ModelOrder) -> orders.Answer:
        return make_reference(order)

    @answer.register
    def _(self, order: orders.ConvertOrder) -> orders.Answer:
        return convert(order)

    @answer.register
    def _(self, order: orders.LoadOrder) -> orders.Answer:
        folder = Path(order.folder)
        before = resident_bytes()
        torch.set_num_threads(order.threads)
        started = time.perf_counter()
        if order.runtime == orders.EAGER:
            from ridgeline.export.model_source import load_model

            weights = None if order.weights is None else Path(order.weights)
            self._call = load_model(order.source, weights).module
        else:
            artifact = Artifact.read(folder / order.runtime)
            self._precision, self._artifact = artifact.precision, artifact
            self._call = runtime(order.runtime).load(artifact, threads=order.threads)
        loaded = time.perf_counter()
        self._reference = read_reference(folder)
        case = next(case for case in self._reference.cases if self._takes(case))
        args, kwargs = arguments(case.calls[0])
        called = time.perf_counter()
        with torch.inference_mode():
            self._call(*args, **kwargs)
        return orders.LoadAnswer(
            load_seconds=loaded - started,
            first_call_seconds=time.perf_counter() - called,
            before_memory_bytes=before,
        )

    def _takes(self, case: CheckCase) -> bool:
        """Whether the program was made for inputs of a case; an example's batch may be fixed."""
        if self._artifact is None:
            return True
        given = next(iter(case.calls[0].values())).shape
        made = self._artifact.shapes[0]
        free = self._artifact.free
        batch = "batch" in free or given[0] == made[0]
        return batch and ("size" in free or list(given[1:]) == made[1:])

    @answer.register
    def _(self, order: orders.CompareOrder) -> orders.Answer:  # noqa: ARG002 - chosen by its type
        assert self._reference is not None
        found: list[Likeness] = []
        right: list[torch.Tensor] = []
        for case, wanted in zip(self._reference.cases, self._reference.outputs, strict=True):
            if not self._takes(case):
                found.append(Likeness(batch=case.batch, size=case.size, fixed=self._fixed()))
                continue
            compared = self._compared(case, wanted)
            found.append(compared.likeness(case.batch, case.size, self._precision))
            if case.size == self._reference.cases[0].size:
                right = max(right, compared.chosen, key=lambda one: sum(map(len, one)))
        return orders.CompareAnswer(
            likeness=found,
            top1=self._reference.top1(right),
            fusion=self._kernels(),
        )

    def _fixed(self) -> str:
        assert self._artifact is not None
        made = self._artifact.shapes[0]
        return f"it takes {' × '.join(map(str, made))} and no other"

    def _compared(self, case: CheckCase, wanted: list[Any]) -> Compared:
        assert self._call is not None
        compared = Compared()
        fixed = self._artifact is not None and "batch" not in self._artifact.free
        for call, output in zip(case.calls, wanted, strict=True):
            args, kwargs = arguments(call)
            count = len(next(iter(call.values())))
            if fixed and count != case.batch:
                continue  # the rest of the inputs, fewer than a batch
            with torch.inference_mode():
                compared.add(output, self._call(*args, **kwargs), count)
        return compared

    def _kernels(self) -> dict[str, int] | None:
        from ridgeline.export.fusion import kernels

        return None if self._artifact is None else kernels(self._artifact)

    @answer.register
    def _(self, order: orders.RoundOrder) -> orders.Answer:
        samples = time_calls(
            self._single(),
            seconds=order.seconds,
            least=_LEAST_CALLS,
            most=_MOST_CALLS,
            period_seconds=order.period_seconds,
        )
        if order.period_seconds is None:
            self._closed += samples
        else:
            self._paced += samples
            self._period_seconds = order.period_seconds
        return orders.RoundAnswer(median_seconds=statistics.median(s.seconds for s in samples))

    def _single(self, batch: int | None = None) -> Callable[[], object]:
        """A call of one input, or of a batch of as many as the check has, repeated."""
        assert self._reference is not None
        call = self._call
        assert call is not None
        case = next(case for case in self._reference.cases if self._takes(case))
        given = case.calls[0]
        if batch is not None:
            given = {name: _widened(one, batch) for name, one in given.items()}
        args, kwargs = arguments(given)

        def once() -> object:
            with torch.inference_mode():
                return call(*args, **kwargs)

        return once

    @answer.register
    def _(self, order: orders.SpeedOrder) -> orders.Answer:
        free = self._artifact is None or "batch" in self._artifact.free
        throughput = []
        for batch in THROUGHPUT_BATCHES if free else ():
            call = self._single(batch)
            try:
                call()
            except RuntimeError:  # no memory, or eager takes no such batch: the smaller ones stand
                break
            samples = time_calls(call, seconds=order.seconds, least=3, most=_MOST_CALLS)
            median = statistics.median(one.seconds for one in samples)
            throughput.append(Throughput(batch=batch, per_second=batch / median))
        return orders.SpeedAnswer(
            closed=summarise(self._closed, None),
            paced=summarise(self._paced, self._period_seconds) if self._paced else None,
            throughput=throughput,
            peak_memory_bytes=peak_resident_bytes(),
        )

    @answer.register
    def _(self, order: orders.StagesOrder) -> orders.Answer:
        from ridgeline.export.model_source import load_model
        from ridgeline.export.stages import first_wrong_stage

        weights = None if order.weights is None else Path(order.weights)
        folder = Path(order.folder)
        case = read_reference(folder).cases[order.case]
        args, kwargs = arguments(case.calls[0])
        artifact = Artifact.read(folder / order.runtime)
        module = load_model(order.source, weights).module
        return orders.StagesAnswer(stage=first_wrong_stage(module, artifact, args, kwargs))


def _widened(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    times = -(-batch // len(tensor))
    return tensor.repeat(times, *[1] * (tensor.ndim - 1))[:batch].contiguous()


def convert(order: orders.ConvertOrder) -> orders.ConvertAnswer:
    """Convert with as much left free as the model allows, the batch before the size.

    Raises:
        ExportError: The runtime cannot take the model: whose line, and the cure.
        InputError: A runtime is missing, or lacks the precision.
    """
    from ridgeline.export.model_source import load_model

    folder = Path(order.folder)
    chosen = runtime(order.runtime)
    lacking = chosen.missing()
    if lacking is not None:
        raise InputError(lacking)
    reference = read_reference(folder)
    weights = None if order.weights is None else Path(order.weights)
    module = load_model(order.source, weights).module
    calibration = [ModelCall(*arguments(call)) for call in reference.calibration]
    notes: list[str] = []
    started = time.perf_counter()
    for free in _attempts(order.fix, reference):
        batched = next(case for case in reference.cases if case.batch > 1 or "batch" not in free)
        given = {name: one[:2] for name, one in batched.calls[0].items()} if free else None
        args, kwargs = arguments(given or reference.cases[0].calls[0])
        try:
            made = converting.convert(
                chosen,
                module,
                args,
                kwargs,
                folder / order.runtime,
                precision=order.precision,
                calibration=calibration if order.precision == "int8" else (),
                dynamic=free,
            )
        except ExportError as error:
            if error.kind != "fixed-size" or not free:
                raise
            notes.append(str(error).replace(f" (the whole message: {error.log})", ""))
            continue
        seconds = time.perf_counter() - started
        said = list(dict.fromkeys([*notes, *made.notes]))  # the same line may fix batch and size
        return orders.ConvertAnswer(free=made.free, notes=said, seconds=seconds)
    raise RidgelineError("no attempt at a conversion was left")


def _attempts(fix: orders.Fix, reference: Reference) -> list[tuple[Free, ...]]:
    """What to leave free, the most first; a size that eager itself refuses is not asked for."""
    sizes = {case.size for case in reference.cases}
    batches = {case.batch for case in reference.cases}
    all_of_them: list[tuple[Free, ...]] = [("batch", "size"), ("batch",), ()]
    if fix == "all" or len(batches) == 1:
        return all_of_them[2:]
    return all_of_them[1:] if fix == "size" or len(sizes) == 1 else all_of_them
