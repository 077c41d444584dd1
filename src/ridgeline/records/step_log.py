"""What each step of an engine computed and how long it took, one line a step.

`ridgeline serve --step-log FILE` writes it, `ridgeline simulate serving --steps FILE` reads it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, read_text


class StepWork(NamedTuple):
    """What one step computes. A tuple because one is made for every step."""

    prompt_tokens: int = 0
    """Tokens of all chunks of prompts."""
    prompt_pairs: int = 0
    """Query and key pairs of these: of n tokens behind m, n m + n (n + 1) / 2."""
    prompts_done: int = 0
    """Prompts that end in this step and so answer."""
    decodes: int = 0
    """Tokens of sequences that decode, drafts to be checked among them."""
    decode_context: int = 0
    """Tokens in the caches of these sequences together."""


class StepRow(NamedTuple):
    """One line of a step log."""

    at_seconds: float
    """When the step began, on the engine's clock."""
    seconds: float
    """From asking the scheduler to having sent what came of it."""
    left: int
    """Sequences that run or wait after it; above 0, the next step follows at once."""
    work: StepWork


_CURE = "write one with `ridgeline serve --step-log FILE`"
COLUMNS = ("at_seconds", "seconds", "left", *StepWork._fields)


def line(row: StepRow) -> str:
    r"""A row as it is written.

    >>> line(StepRow(1.5, 0.01, 0, StepWork(decodes=2, decode_context=300)))
    '1.500000,0.010000,0,0,0,0,2,300\n'
    """
    counts = ",".join(map(str, row.work))
    return f"{row.at_seconds:.6f},{row.seconds:.6f},{row.left},{counts}\n"


def read_step_log(path: Path) -> list[StepRow]:
    """All steps in order.

    Raises:
        InputError: Not readable, or a line that is no step; names it.
    """
    text = read_text(path, option="--steps", cure=_CURE)
    whole, _, _ = text.rpartition("\n")  # the engine may have been ended while it wrote a line
    lines = csv_rows(whole, where=f"--steps {path}", cure=_CURE)
    if tuple(next(lines, (1, []))[1]) != COLUMNS:
        raise InputError(
            f"--steps {path}: no step log, its first line is not {','.join(COLUMNS)}; {_CURE}"
        )
    rows = []
    for number, cells in lines:
        try:
            at, seconds, *counts = cells
            left, *work = map(int, counts)
            row = StepRow(float(at), float(seconds), left, StepWork(*work))
        except (TypeError, ValueError) as error:
            raise InputError(f"--steps {path}, line {number}: {error}") from None
        if not (math.isfinite(row.at_seconds) and 0.0 < row.seconds < math.inf):
            raise InputError(f"--steps {path}, line {number}: a step of {row.seconds} s")
        if min(row.left, *row.work) < 0:
            raise InputError(f"--steps {path}, line {number}: a count below 0")
        rows.append(row)
    return rows
