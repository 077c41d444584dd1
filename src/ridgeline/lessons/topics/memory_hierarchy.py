"""Each level of memory is larger, farther and slower: what is used again should still be near."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.kernels.cpu.compiler import FLAGS, Unavailable, find_compiler, settings
from ridgeline.lessons.cache_counts import misses
from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, solution
from ridgeline.records.lesson import LessonMark, LessonTable

ORDER = 2
WHY = (
    "Memory is fetched by the line of 64 bytes and the line that was not used longest gives way: "
    "an order that comes back to a line while it is still there pays for it once."
)
ON_A_GPU = "the same chase would show L1, L2 and HBM; the table says what others found there"
TASK = (
    "solve(rows, columns) returns the order, a list of (row, column), in which to transpose a "
    "float32 matrix of 256 x 256 (b[column, row] = a[row, column]); miss a cache of 8 KiB at most "
    "9,000 times."
)
_ROWS, _COLUMNS = 256, 256
_CACHE_BYTES, _LINE_BYTES = 8192, 64
_TILE = 16
_FROM_MEMORY = 2**31
"""Where the transposed matrix begins: far from the other."""
_TRIALS = 3
"""The best of so many: whatever else runs here only makes a walk slower."""
SIZES = (2**14, 2**17, 2**20, 2**23, 2**26)


def by_rows() -> list[tuple[int, int]]:
    """Row after row of what is read, which is column after column of what is written."""
    return [(row, column) for row in range(_ROWS) for column in range(_COLUMNS)]


def by_tiles() -> list[tuple[int, int]]:
    """Square after square of 16 x 16, whose lines all fit."""
    return [
        (top + row, left + column)
        for top in range(0, _ROWS, _TILE)
        for left in range(0, _COLUMNS, _TILE)
        for row in range(_TILE)
        for column in range(_TILE)
    ]


def transpose_misses(order: list[tuple[int, int]]) -> int:
    """Misses of reading a[row, column] and writing b[column, row], in this order."""

    def addresses() -> Iterator[int]:
        for row, column in order:
            yield (row * _COLUMNS + column) * 4
            yield _FROM_MEMORY + (column * _ROWS + row) * 4

    return misses(addresses(), size_bytes=_CACHE_BYTES, line_bytes=_LINE_BYTES)


ORDERS = {"bad: row by row": by_rows, "good: squares of 16 x 16": by_tiles}


def predict() -> Figures:
    """A line holds 16 numbers; a column of 256 lines does not fit among 128, a square's 32 do."""
    numbers, of_a_line = _ROWS * _COLUMNS, _LINE_BYTES // 4
    once = numbers / of_a_line
    return {
        "bad: row by row": {"misses": once + numbers},
        "good: squares of 16 x 16": {"misses": once + once},
    }


def observe() -> CountedLesson:
    """Send both orders through a cache, and walk through this machine's memory."""
    x = torch.randn(_ROWS, _COLUMNS)
    figures: Figures = {}
    results = []
    for name, order in ORDERS.items():
        places = order()
        figures[name] = {"misses": float(transpose_misses(places))}
        rows, columns = (torch.tensor(one) for one in zip(*places, strict=True))
        out = torch.zeros(_COLUMNS, _ROWS)
        out[columns, rows] = x[rows, columns]
        results.append((out, x.double().T))
    return CountedLesson(figures=figures, results=results, tables=[*_ladder(), _of_a_gpu()])


def _ladder() -> list[LessonTable]:
    """What this machine's own levels are like, by a chase and by reading in order."""
    try:
        walk = _built()
    except Unavailable:
        return []  # without a compiler the counts above remain
    rows = []
    for size in SIZES:
        latency = min(walk.chase_seconds(size, 100_000) for _ in range(_TRIALS))
        rate = max(walk.read_bytes_per_second(size, 2**26) for _ in range(_TRIALS))
        rows.append(
            [quantity.binary_memory(size), f"{latency * 1e9:.1f} ns", f"{rate / 1e9:.1f} GB/s"]
        )
    heads = ["working set", "a load that waits", "reading in order, one core"]
    return [LessonTable(title="This machine, the best of three walks", heads=heads, rows=rows)]


def _built() -> ctypes.CDLL:
    compiler = find_compiler(settings())
    source = Path(__file__).parent.parent / "memory_ladder.cpp"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "memory_ladder.so"
        subprocess.run(
            [*compiler.command, *FLAGS, "-ffast-math", "-shared", str(source), "-o", str(library)],
            check=True,
            capture_output=True,
        )
        walk = ctypes.CDLL(str(library))
    for name in ("chase_seconds", "read_bytes_per_second"):
        function = getattr(walk, name)
        function.argtypes, function.restype = [ctypes.c_size_t] * 2, ctypes.c_double
    return walk


def _of_a_gpu() -> LessonTable:
    levels = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["level"]
    rows = [[one["name"], one["size"], one["clocks"], one["rate"]] for one in levels]
    return LessonTable(
        title="An H100 beside it (its white paper; arXiv 2402.13499)",
        heads=["level", "size", "clocks to load", "rate"],
        rows=rows,
    )


def calls(device: str) -> Calls:
    """A transposed copy of 2,048 x 2,048 numbers, row by row and by squares of 64."""
    if device == "cuda":
        return {}
    x, out = np.ones((2048, 2048), np.float32), np.empty((2048, 2048), np.float32)

    def rows() -> None:
        for row in range(2048):
            out[:, row] = x[row]

    def squares() -> None:
        for top in range(0, 2048, 64):
            for left in range(0, 2048, 64):
                out[left : left + 64, top : top + 64] = x[top : top + 64, left : left + 64].T

    return {"bad: row by row": rows, "good: squares of 64 x 64": squares}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """Every number once, and misses."""
    order = [tuple(one) for one in solution(learner)(_ROWS, _COLUMNS)]
    if any(len(one) != 2 for one in order):
        raise InputError("solve() returns pairs (row, column)")
    wanted = set(by_rows())
    yield marked("numbers moved", len(set(order) & wanted), "equal", len(wanted))
    yield marked("moves", len(order), "equal", len(wanted))
    yield marked("misses", transpose_misses(order), "at most", 9000)  # type: ignore[arg-type]
