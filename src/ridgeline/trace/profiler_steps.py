"""The steps that the host saw: ProfilerSteps, or the ranges by which users number their turns.

Where no ProfilerStep marks the steps (Nsight Systems has none), ranges that people number do: `iter
12`, `step_5`, `sample_0`. They
count as iterations when a range's name ends in a number after a word for a turn of a loop, at least
three of them follow each other on one thread with rising numbers, and they fill at least half of
the time from the first to the last. Numbered parts of a model (`layer_3`) are no turns, and numbers
that begin anew (decoding steps of each sample) are no count of the trace's turns. Of several such
families the one with the most members counts: steps, not epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ridgeline.trace.columns import Category, Ints, Trace

PROFILER_STEP = re.compile(r"ProfilerStep\s*#(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerStep:
    """One ProfilerStep on the host, or one numbered iteration of the user's."""

    name: str
    """What it is called, with its number."""
    number: int
    start_us: float
    end_us: float
    thread: int


def profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    """The steps that the host saw, by start: ProfilerSteps, else the user's numbered iterations.

    The GPU's copies of them do not count.
    """
    return trace.derived("profiler_steps", _profiler_steps)


def _profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    host = trace.host
    numbers = {
        index: int(found[1])
        for index, name in enumerate(trace.names)
        if (found := PROFILER_STEP.match(name)) is not None
    }
    if not numbers:
        rows, turns = iterations(trace)
        return _as_steps(trace, rows, turns.tolist())
    named = np.zeros(len(trace.names), bool)
    named[list(numbers)] = True
    rows = np.flatnonzero(named[host.name])
    category = host.category[rows]
    rows = rows[(category == Category.ANNOTATION) | (category == Category.OPERATOR)]
    return _as_steps(trace, rows, [numbers[name] for name in host.name[rows].tolist()])


def _as_steps(trace: Trace, rows: Ints, numbers: list[int]) -> tuple[ProfilerStep, ...]:
    host = trace.host
    steps = [
        ProfilerStep(
            name=trace.names[host.name[row]],
            number=number,
            start_us=float(host.start_us[row]),
            end_us=float(host.start_us[row] + host.duration_us[row]),
            thread=int(host.thread[row]),
        )
        for row, number in zip(rows.tolist(), numbers, strict=True)
    ]
    return tuple(sorted(steps, key=lambda step: step.start_us))


def step_window(steps: tuple[ProfilerStep, ...]) -> tuple[float, float]:
    """From the start of the first step to the start of the last: the steps known to be whole."""
    if len(steps) == 1:
        return steps[0].start_us, steps[0].end_us
    return steps[0].start_us, steps[-1].start_us


_NUMBERED = re.compile(r"^(?P<head>.*\D)(?P<number>\d{1,15})[^\w]*$", re.DOTALL)
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_TURNS = frozenset(
    (
        "iter", "iters", "iteration", "it", "step", "steps", "batch", "sample", "epoch", "frame",
        "cycle", "turn", "round", "loop", "run", "trial", "request", "token",
        "update", "episode",
    )
)  # fmt: skip
"""Words for one turn of a loop, before its number."""
_PARTS = frozenset(("micro", "mini", "sub"))
"""Before such a word, they make it a part of a turn: a pipeline's micro-batches."""
_FEWEST = 3
_LEAST_SHARE = 0.5


@lru_cache(maxsize=65536)
def numbered_turn(name: str) -> tuple[str, int] | None:
    """What a range is called without its number, and the number; None for what is no turn.

    >>> numbered_turn("iter 12"), numbered_turn("train_step[5]"), numbered_turn("micro_batch 3")
    (('iter ', 12), ('train_step[', 5), None)
    """
    found = _NUMBERED.match(name)
    if found is None:
        return None
    words = [word.lower() for word in _TOKEN.findall(found["head"])]
    if not words or words[-1] not in _TURNS or (len(words) > 1 and words[-2] in _PARTS):
        return None
    return found["head"], int(found["number"])


def iterations(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of `trace.host` of the iterations, by start, and their numbers."""
    host = trace.host
    nothing = np.zeros(0, np.int64)
    turns = {
        index: turn
        for index, name in enumerate(trace.names)
        if (turn := numbered_turn(name)) is not None
    }
    rows = np.flatnonzero(np.isin(host.name, list(turns)) & (host.category == Category.ANNOTATION))
    families: dict[tuple[str, int], list[int]] = {}
    for row in rows[np.argsort(host.start_us[rows], kind="stable")].tolist():
        head, _ = turns[int(host.name[row])]
        families.setdefault((head, int(host.thread[row])), []).append(row)
    best, score = (nothing, nothing), (0, 0.0)
    for members in families.values():
        own = np.array(members, np.int64)
        numbers = np.array([turns[int(host.name[row])][1] for row in members], np.int64)
        filled = float(host.duration_us[own].sum())
        if (len(own), filled) > score and _is_a_loop(trace, own, numbers):
            best, score = (own, numbers), (len(own), filled)
    return best


def _is_a_loop(trace: Trace, rows: Ints, numbers: Ints) -> bool:
    """Do these ranges follow each other, with rising numbers, and fill most of their time?"""
    if len(rows) < _FEWEST or not (np.diff(numbers) > 0).all():
        return False
    start, end = trace.host.start_us[rows], trace.host.ends_of(rows)
    apart = bool((start[1:] >= end[:-1] - 1e-3).all())
    whole = float(end[-1] - start[0])
    return apart and whole > 0 and float((end - start).sum()) >= _LEAST_SHARE * whole
