"""A GPU waits for launches, and for copies: graphs remove the one, streams hide the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from ridgeline.errors import InputError
from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, solution
from ridgeline.records.lesson import LessonMark

ORDER = 12
WHY = (
    "A stream does one thing after the other and the host needs time for each launch: small "
    "kernels last as long as their launches unless a graph replays them as one, and copies run "
    "beside kernels only if they are in other streams."
)
ON_A_GPU = "40 small kernels are timed as launches and as a captured graph"
TASK = (
    "solve(chunks) returns operations (stream, engine, chunk) in the order of launching, with each "
    "chunk's `in`, `compute` and `out` in this order on one stream; finish 8 chunks of 1 µs per "
    "operation in 10 µs."
)
ENGINES = ("in", "compute", "out")
_CHUNKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A copy or a kernel: what does it, on which stream, for how long."""

    engine: str
    stream: int
    microseconds: float


def finished_microseconds(operations: Sequence[Operation], launch_microseconds: float) -> float:
    """When the last operation is done.

    The host launches one after the other; an operation starts when it is launched, when its stream
    is through with what was launched there before, and when its engine is free.
    """
    launched = 0.0
    streams: dict[int, float] = {}
    engines: dict[str, float] = {}
    for one in operations:
        launched += launch_microseconds
        start = max(launched, streams.get(one.stream, 0.0), engines.get(one.engine, 0.0))
        end = start + one.microseconds
        streams[one.stream] = engines[one.engine] = end
    return max(streams.values(), default=0.0)


def launches(count: int, kernel: float) -> list[Operation]:
    """The same kernel so many times on one stream."""
    return [Operation(engine="compute", stream=0, microseconds=kernel)] * count


def pipeline(chunks: int, streams: int) -> list[Operation]:
    """Each chunk copied in, computed and copied out, the streams taking turns."""
    return [
        Operation(engine=engine, stream=chunk % streams, microseconds=1.0)
        for chunk in range(chunks)
        for engine in ENGINES
    ]


def predict() -> Figures:
    """Launches hide behind kernels, or kernels behind launches; a pipeline fills and drains."""
    count, launch, kernel = 40, 5.0, 2.0
    done = "µs until the end"
    return {
        "bad: 40 kernels of 2 µs, 5 µs a launch": {done: count * launch + kernel},
        "good: the same as one graph": {done: launch + count * kernel},
        "40 kernels of 9 µs, 5 µs a launch": {done: launch + count * 9.0},
        "bad: 8 chunks in one stream": {done: 3.0 * _CHUNKS},
        "good: 8 chunks in three streams": {done: _CHUNKS + 2.0},
    }


def observe() -> CountedLesson:
    """Let the operations run through streams and engines."""
    done = "µs until the end"
    graph = [Operation(engine="compute", stream=0, microseconds=40 * 2.0)]
    runs = {
        "bad: 40 kernels of 2 µs, 5 µs a launch": (launches(40, 2.0), 5.0),
        "good: the same as one graph": (graph, 5.0),
        "40 kernels of 9 µs, 5 µs a launch": (launches(40, 9.0), 5.0),
        "bad: 8 chunks in one stream": (pipeline(_CHUNKS, 1), 0.0),
        "good: 8 chunks in three streams": (pipeline(_CHUNKS, 3), 0.0),
    }
    figures = {name: {done: finished_microseconds(*run)} for name, run in runs.items()}
    return CountedLesson(figures=figures, results=_replayed())


def _replayed() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What 40 small steps give, one by one and as one; the order is all that a graph changes."""
    x = torch.arange(16, dtype=torch.float32)
    y = x.clone()
    for _ in range(40):
        y += 1
    return [(y, (x + 40).double())]


def calls(device: str) -> Calls:
    """Forty small operations and one large; on a GPU, the forty as a graph, too."""
    small = torch.zeros(512, device=device)

    def forty() -> None:
        for _ in range(40):
            small.add_(1)

    if device == "cpu":
        large = torch.zeros(40 * 512)
        return {
            "bad: 40 operations on 512 numbers": forty,
            "good: one operation on 20,480": lambda: large.add_(1),
        }
    forty()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forty()
    return {"bad: 40 launches": forty, "good: one replay": graph.replay}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """Every chunk in order, and the time that it takes."""
    given = list(solution(learner)(_CHUNKS))
    order: dict[int, list[tuple[object, str]]] = {chunk: [] for chunk in range(_CHUNKS)}
    operations = []
    for entry in given:
        if len(entry) != 3 or entry[1] not in ENGINES or entry[2] not in order:
            raise InputError(f"{entry!r} is no (stream, engine, chunk) of {_CHUNKS} chunks")
        stream, engine, chunk = entry
        order[chunk].append((stream, engine))
        operations.append(Operation(engine=engine, stream=stream, microseconds=1.0))
    whole = sum(
        tuple(engine for _, engine in those) == ENGINES and len({one for one, _ in those}) == 1
        for those in order.values()
    )
    yield marked("chunks whose operations are in order on one stream", whole, "equal", _CHUNKS)
    took = finished_microseconds(operations, 0.0)
    yield marked("µs until the end", took, "at most", _CHUNKS + 2)
