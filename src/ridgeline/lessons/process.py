"""The process that runs one lesson, or marks a learner's file: NAME and FILE in, JSON out.

    TRITON_INTERPRET=1 NUMBA_ENABLE_CUDASIM=1 python -m ridgeline.lessons.process \
        NAME FILE ANSWER

An empty FILE runs the lesson. With the interpreter off, on a machine with a GPU, its kernels are
only timed there.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from triton import knobs

from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.kernels.check import bfloat16
from ridgeline.kernels.check.interpreted import load
from ridgeline.lessons import triton_counts
from ridgeline.lessons.shape import RESULT, Calls, Topic, marked, relative_error
from ridgeline.records.lesson import Lesson, LessonFigure, LessonGrade, LessonMark, LessonTime

_ROUNDS = 7
_SPAN_SECONDS = 0.02
"""Quick calls are repeated until they take so long together."""


def topic(name: str) -> Topic:
    """The lesson of that name."""
    module: Any = importlib.import_module(f"ridgeline.lessons.topics.{name.replace('-', '_')}")
    lesson: Topic = module
    _watch_warps()
    return lesson


def _watch_warps() -> None:
    """Watch numba's simulator, where a file has imported it; it is needed for nothing else."""
    if "numba" in sys.modules:
        from ridgeline.lessons import warp_counts

        warp_counts.install()


def taught(name: str, title: str) -> Lesson:
    """Run one lesson, for what it predicts, counts and, where that says something, times."""
    lesson = topic(name)
    predicted, seen = lesson.predict(), lesson.observe()
    assert {one: set(found) for one, found in predicted.items()} == {
        one: set(found) for one, found in seen.figures.items()
    }, "a lesson counts what it predicts"
    figures = [
        LessonFigure(kernel=kernel, figure=figure, predicted=foretold, counted=counted)
        for kernel, those in predicted.items()
        for figure, foretold, counted in (
            (figure, foretold, seen.figures[kernel][figure]) for figure, foretold in those.items()
        )
    ]
    errors = [relative_error(found, expected) for found, expected in seen.results]
    return Lesson(
        name=name,
        title=title,
        why=lesson.WHY,
        figures=figures,
        times=timed(lesson.calls("cpu"), "cpu"),
        tables=seen.tables,
        largest_error=max(errors, default=0.0),
        results=len(errors),
        device="cpu",
        on_a_gpu=lesson.ON_A_GPU,
        task=lesson.TASK,
    )


def timed(calls: Calls, device: str) -> list[LessonTime]:
    """The median seconds of each call; they take turns, so that a slow moment hits them all."""
    torch.set_deterministic_debug_mode("default")
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    repeats = {name: _repeats(call, wait) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            seconds[name].append(_once(call, repeats[name], wait))
    return [LessonTime(kernel=name, seconds=statistics.median(of)) for name, of in seconds.items()]


def _nothing() -> None:
    """On a CPU a call has ended when it returns."""


def _repeats(call: Callable[[], object], wait: Callable[[], object]) -> int:
    _once(call, 1, wait)
    return max(1, min(1000, round(_SPAN_SECONDS / max(_once(call, 1, wait), 1e-9))))


def _once(call: Callable[[], object], repeats: int, wait: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - began) / repeats


def graded(name: str, file: Path) -> LessonGrade:
    """Mark a learner's file.

    Raises:
        InputError: It fails, with the line of it that does.
    """
    lesson = topic(name)
    try:
        learner = load(file)
        marks = [*lesson.grade(learner), *_dangers(), *_without_kernels(lesson, learner)]
    except RidgelineError:
        raise
    except BaseException as error:  # whatever a learner's code may raise, its own exits included
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__)
                 if Path(one.filename) == file]  # fmt: skip
        place = f"line {lines[-1]}: " if lines else "what solve() takes or gives does not fit: "
        raise InputError(f"{place}{type(error).__name__}: {in_words(error)}") from None
    return LessonGrade(
        name=name, file=str(file), passed=all(one.passed for one in marks), marks=marks
    )


def _dangers() -> Iterator[LessonMark]:
    """Marks against what the interpreter forgives and a GPU does not."""
    for what, count in (triton_counts.dangers() or {}).items():
        yield marked(what, count, "equal", 0)


def _without_kernels(lesson: Topic, learner: ModuleType) -> Iterator[LessonMark]:
    """A mark against results that are right though the kernels do nothing."""
    threads = sys.modules.get("ridgeline.lessons.warp_counts")
    if not triton_counts.launched() and threads is None:
        return
    torch.manual_seed(0)
    count = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Exception, SystemExit))
        stack.enter_context(triton_counts.idle())
        if threads is not None:
            stack.enter_context(threads.idle())
        for one in lesson.grade(learner):
            count += one.what.startswith(RESULT) and one.passed
    yield marked("results that are right without the kernels", count, "equal", 0)


def main(name: str, title: str, file: str, answer: str) -> None:
    """Write the answer, or in one line why there is none."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found: object
    try:
        if not knobs.runtime.interpret:
            found = timed(topic(name).calls("cuda"), "cuda")
        else:
            bfloat16.install()
            triton_counts.install()
            torch.set_deterministic_debug_mode("warn")  # torch.empty holds NaN
            found = graded(name, Path(file)) if file else taught(name, title)
    except RidgelineError as error:
        found = {"error": str(error)}
    Path(answer).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
