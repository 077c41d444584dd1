"""What the host was doing at a moment, and which line of Python was behind it."""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Ints, Mask, Trace
from ridgeline.trace.sorting import by_start

_INTERNAL = re.compile(
    r"^(<|nn\.Module|torch/|threading\.py|importlib|contextlib|functools\.py|runpy\.py"
    r"|autograd::|torch\.)|site-packages/(torch|functorch)/|/torch/(nn|utils|autograd|optim|_|profiler)"
)
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_SMALLEST_SHARE = 0.01
"""Of a stretch: what is shorter is not what the host was doing in it."""


def thread_rows(trace: Trace, thread: int) -> Ints:
    """Rows of `trace.host` on one thread."""
    return trace.derived(f"thread_rows {thread}", lambda t: np.flatnonzero(t.host.thread == thread))


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
    host, rows = trace.host, thread_rows(trace, thread)
    first, last = host.start_us[rows], host.start_us[rows] + host.duration_us[rows]
    overlap = np.minimum(last, end_us) - np.maximum(first, start_us)
    rows = rows[overlap > _SMALLEST_SHARE * (end_us - start_us)]
    if not len(rows):
        return ABSENT
    rows = rows[by_start(host.start_us[rows], host.duration_us[rows])]
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


def enclosing(trace: Trace, thread: int, time_us: float) -> Ints:
    """Rows of the calls that are open at a moment, outermost first."""
    host, rows = trace.host, thread_rows(trace, thread)
    start = host.start_us[rows]
    rows = rows[(start <= time_us) & (start + host.duration_us[rows] >= time_us)]
    return rows[by_start(host.start_us[rows], host.duration_us[rows])]


def python_line(trace: Trace, thread: int, time_us: float) -> str | None:
    """`file.py:line function` of the innermost frame of the user's own code at a moment.

    None where the trace has no Python stacks. Where only frames of torch are open, the innermost.
    """
    host = trace.host
    rows = enclosing(trace, thread, time_us)
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
