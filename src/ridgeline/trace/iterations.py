"""Which ranges of a user's own are the iterations of a loop: `iter 12`, `step_5`, `sample_0`.

Where no ProfilerStep marks the steps (Nsight Systems has none), ranges that people number do. They
count as iterations when a range's name ends in a number after a word for a turn of a loop, at least
three of them follow each other on one thread with rising numbers, and they fill at least half of
the time from the first to the last. Numbered parts of a model (`layer_3`) are no turns, and numbers
that begin anew (decoding steps of each sample) are no count of the trace's turns. Of several such
families the one with the most members counts: steps, not epochs.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from ridgeline.trace.columns import Category, Ints, Trace

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
    start, end = trace.host.start_us[rows], trace.host.end_us[rows]
    apart = bool((start[1:] >= end[:-1] - 1e-3).all())
    whole = float(end[-1] - start[0])
    return apart and whole > 0 and float((end - start).sum()) >= _LEAST_SHARE * whole
