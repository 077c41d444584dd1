"""What the host was doing at a moment, which line of Python was behind it, and what it launched.

The innermost event that is open at a moment: with a thread's events by start, longer ones first,
that is the last one that has begun and has not ended yet. Mostly it is the last one that has begun,
or a few places before; where it is not, whole blocks of events, and blocks of blocks, are passed
over by their latest ends. Every step is taken for all moments together.

The launch of a GPU event is found by correlation. A correlation can name many GPU events (one graph
launch) and two calls (the runtime's and the driver's beneath it): the earlier call counts. A GPU
event whose launch the trace does not hold has no launch; it never borrows another's.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.sorting import by_start, distinct


def innermost_at(
    trace: Trace, threads: Ints, moments_us: Floats, chosen: Mask | None = None
) -> Ints:
    """Row of `trace.host` for each (thread, moment), ABSENT where nothing is open.

    `chosen` is a mask over the host events that count.
    """
    host = trace.host
    found = np.full(len(moments_us), ABSENT, np.int64)
    for thread in distinct(threads).tolist():
        asked = np.flatnonzero(threads == thread)
        rows = rows_by_start(trace, thread)
        if chosen is not None:
            rows = rows[chosen[rows]]
        if not len(rows):
            continue
        starts = host.start_us[rows]
        ends = starts + host.duration_us[rows]
        begun = np.searchsorted(starts, moments_us[asked], side="right") - 1
        place = last_later(ends, begun, moments_us[asked])
        found[asked] = np.where(place >= 0, rows[place], ABSENT)
    return found


def rows_by_start(trace: Trace, thread: int) -> Ints:
    """Host events of a thread by start, longer ones first."""
    return trace.derived(f"rows_by_start {thread}", lambda t: _rows_by_start(t, thread))


def _rows_by_start(trace: Trace, thread: int) -> Ints:
    host = trace.host
    rows = np.flatnonzero(host.thread == thread)
    return rows[by_start(host.start_us[rows], host.duration_us[rows])]


WAIT_CALLS = re.compile(r"[Ss]ynchronize$|^ur(QueueFinish|EventWait)$")
"""Calls that return when the GPU has done something: CUDA's, HIP's, Level Zero's, and SYCL's."""
_BLOCK = 1024
"""So many events of a thread are looked at together, or passed over together."""


def rows_around(trace: Trace, thread: int, start_us: float, end_us: float) -> Ints:
    """Host events of a thread that touch a stretch of time, by start, longer ones first.

    A thread has millions of events, of which hardly any are near: blocks of them are passed over by
    their first start and their last end.
    """
    host, rows = trace.host, rows_by_start(trace, thread)
    begins, ends = trace.derived(f"blocks {thread}", lambda t: _blocks(t, rows))
    near = np.flatnonzero((begins <= end_us) & (ends >= start_us))
    inside = [rows[block * _BLOCK : (block + 1) * _BLOCK] for block in near.tolist()]
    rows = np.concatenate(inside) if inside else rows[:0]
    starts = host.start_us[rows]
    return rows[(starts <= end_us) & (starts + host.duration_us[rows] >= start_us)]


def _blocks(trace: Trace, rows: Ints) -> tuple[Floats, Floats]:
    """First start and last end of each `_BLOCK` rows of a thread."""
    if not len(rows):
        return np.zeros(0), np.zeros(0)
    firsts = np.arange(0, len(rows), _BLOCK)
    starts = trace.host.start_us[rows]
    ends = starts + trace.host.duration_us[rows]
    return starts[firsts], np.maximum.reduceat(ends, firsts)


_WIDTH = 16
"""How many values, or blocks of them, have a largest one that is kept."""


def last_later(values: Floats, upto: Ints, bounds: Floats) -> Ints:
    """For each query the last place ≤ `upto` whose value is above its bound, or −1.

    >>> last_later(np.array([9.0, 4.0, 6.0]), np.array([2, 2, 1]), np.array([5.0, 7.0, 9.0]))
    array([ 2,  0, -1])
    """
    found = np.full(len(upto), -1, np.int64)
    asked = np.flatnonzero(upto >= 0)
    places, wanted = upto[asked], bounds[asked]
    largest, held = [values], []
    # What is not in the rest of a block is in a whole block to the left, or nowhere.
    while True:
        holds, place, above = _leftwards(largest[-1], places, wanted)
        held.append((asked[holds], place, wanted[holds]))
        further = np.flatnonzero(above >= 0)
        if not len(further):
            break
        asked, places, wanted = asked[further], above[further], wanted[further]
        largest.append(np.maximum.reduceat(largest[-1], np.arange(0, len(largest[-1]), _WIDTH)))
    # Down again: a block that holds a later one has it somewhere, the last of them is wanted.
    asked, places, wanted = held.pop()
    while held:
        largest.pop()
        last = np.minimum(places * _WIDTH + _WIDTH, len(largest[-1])) - 1
        _, places, _ = _leftwards(largest[-1], last, wanted)
        asked, places, wanted = (
            np.concatenate(parts) for parts in zip((asked, places, wanted), held.pop(), strict=True)
        )
    found[asked] = places
    return found


def _leftwards(values: Floats, places: Ints, bounds: Floats) -> tuple[Ints, Ints, Ints]:
    """Look from each place to the left, no further than to the first of its block.

    Returns which queries are answered there, and by which place; and of every query the block to
    the left of its own, or −1 where it is answered or there is none.
    """
    found = np.full(len(places), -1, np.int64)
    asked, place, bound = np.arange(len(places)), places, bounds
    while len(asked):
        later = values[place] > bound
        found[asked[later]] = place[later]
        rest = np.flatnonzero(~later & (place % _WIDTH != 0))
        asked, place, bound = asked[rest], place[rest] - 1, bound[rest]
    answered = np.flatnonzero(found >= 0)
    above = places // _WIDTH - 1
    above[answered] = -1
    return answered, found[answered], above


_INTERNAL = re.compile(
    r"^(<|nn\.Module|torch/|threading\.py|importlib|contextlib|functools\.py|runpy\.py"
    r"|autograd::|torch\.)|site-packages/(torch|functorch)/|/torch/(nn|utils|autograd|optim|_|profiler)"
)
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_SMALLEST_SHARE = 0.01
"""A call that takes less of a stretch is not what the host was doing in it."""


def names_matching(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    """Which of `trace.names` a pattern is found in."""
    return trace.derived(
        f"names {pattern.pattern}",
        lambda t: np.array([bool(pattern.search(name)) for name in t.names], bool),
    )


def busiest_call(trace: Trace, thread: int, start_us: float, end_us: float) -> int:
    """Row of the call whose own time fills most of a stretch of a thread; ABSENT if there is none.

    A call's own time is what the calls inside it leave.
    """
    host, rows = trace.host, rows_around(trace, thread, start_us, end_us)
    first, last = host.start_us[rows], host.start_us[rows] + host.duration_us[rows]
    overlap = np.minimum(last, end_us) - np.maximum(first, start_us)
    rows = rows[overlap > _SMALLEST_SHARE * (end_us - start_us)]
    if not len(rows):
        return ABSENT
    own: dict[int, float] = {}
    open_rows: list[tuple[float, int]] = []
    for row in rows.tolist():
        begin = max(float(host.start_us[row]), start_us)
        finish = float(host.start_us[row] + host.duration_us[row])
        while open_rows and open_rows[-1][0] <= begin:
            open_rows.pop()
        length = min(finish, end_us) - begin
        if open_rows:
            own[open_rows[-1][1]] -= length
        own[row] = length
        open_rows.append((finish, row))
    return max(own, key=lambda row: own[row])


def python_line(trace: Trace, thread: int, time_us: float) -> str | None:
    """`file.py:line function` of the innermost frame of the user's own code at a moment.

    None where the trace has no Python stacks. Where only frames of torch are open, the innermost.
    """
    host = trace.host
    rows = rows_around(trace, thread, time_us, time_us)
    frames = [trace.names[host.name[row]] for row in rows if host.category[row] == Category.PYTHON]
    stacks = [trace.stacks[host.stack[row]] for row in rows if host.stack[row] != ABSENT]
    if not frames and stacks:
        frames = stacks[-1].split(";")[::-1]  # written innermost first
    return best_frame(frames)


def best_frame(frames: list[str]) -> str | None:
    """The innermost frame that is no part of torch, as `file.py:line function`.

    >>> best_frame(["train.py(12): main", "torch/nn/modules/module.py(9): _call_impl"])
    'train.py:12 main'
    """
    named = [frame for frame in frames if _FRAME.match(frame)]
    own = [frame for frame in named if not _INTERNAL.search(frame)]
    chosen = (own or named)[-1:]
    if not chosen:
        return None
    found = _FRAME.match(chosen[0])
    assert found is not None
    return f"{found['file']}:{found['line']} {found['function']}"


def user_frames(trace: Trace) -> Mask:
    """Which host events are Python frames that are no part of torch."""
    return trace.derived("user_frames", _user_frames)


def _user_frames(trace: Trace) -> Mask:
    own = [bool(_FRAME.match(name)) and not _INTERNAL.search(name) for name in trace.names]
    frames: Mask = trace.host.category == Category.PYTHON
    frames &= np.array(own, bool)[trace.host.name]
    return frames


def launch_rows(trace: Trace) -> Ints:
    """Row in `trace.host` of the call that started each GPU event, ABSENT where there is none."""
    return trace.derived("launch_rows", _launch_rows)


def _launch_rows(trace: Trace) -> Ints:
    gpu, host = trace.gpu, trace.host
    calls = np.flatnonzero(host.is_call & (host.correlation > 0))
    found = np.full(len(gpu), ABSENT, np.int64)
    if not len(calls) or not len(gpu):
        return found
    asked = distinct(gpu.correlation)
    near = np.minimum(np.searchsorted(asked, host.correlation[calls]), len(asked) - 1)
    calls = calls[asked[near] == host.correlation[calls]]
    calls = calls[np.lexsort((host.start_us[calls], host.correlation[calls]))]
    numbers = host.correlation[calls]
    if not len(calls):
        return found
    places = np.minimum(np.searchsorted(numbers, gpu.correlation, "left"), len(calls) - 1)
    matched = numbers[places] == gpu.correlation
    found[matched] = calls[places[matched]]
    return found


def operators_at_launch(trace: Trace) -> Ints:
    """Row in `trace.host` of the innermost operator around each GPU event's launch, or ABSENT."""
    return trace.derived("operators_at_launch", _operators_at_launch)


def _operators_at_launch(trace: Trace) -> Ints:
    host, calls = trace.host, launch_rows(trace)
    launched = np.flatnonzero(calls != ABSENT)
    calls = calls[launched]
    found = np.full(len(trace.gpu), ABSENT, np.int64)
    found[launched] = innermost_at(
        trace,
        host.thread[calls].astype(np.int64),
        host.start_us[calls],
        host.category == Category.OPERATOR,
    )
    return found


def look_up_calls(trace: Trace) -> None:
    """Compute what nearly every question needs: launches, and each thread's events by start."""
    operators_at_launch(trace)
    for thread in distinct(trace.host.thread).tolist():
        rows_by_start(trace, thread)


def launch_start_us(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each GPU event was launched; NaN where the trace does not say."""
    return trace.derived("launch_start_us", _launch_start_us)


def _launch_start_us(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = launch_rows(trace)
    starts = np.full(len(rows), np.nan)
    known = rows != ABSENT
    starts[known] = trace.host.start_us[rows[known]]
    return starts


def linked_operators(trace: Trace, rows: Ints) -> Ints:
    """The operator that the profiler itself names for each GPU event of `rows`, or ABSENT.

    It serves where a launch lies outside of the trace: the external id is the operator's.
    """
    host = trace.host
    operators = np.flatnonzero((host.category == Category.OPERATOR) & (host.external_id > 0))
    found = np.full(len(rows), ABSENT, np.int64)
    if not len(operators) or not len(rows):
        return found
    operators = operators[np.argsort(host.external_id[operators], kind="stable")]
    numbers, wanted = host.external_id[operators], trace.gpu.external_id[rows]
    places = np.minimum(np.searchsorted(numbers, wanted), len(operators) - 1)
    same = (numbers[places] == wanted) & (wanted > 0)
    found[same] = operators[places[same]]
    return found
