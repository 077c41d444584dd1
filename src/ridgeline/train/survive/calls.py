"""What this rank is doing at this moment: its collective under way, and where its code stands.

Collectives are those that torch's flight recorder has as begun and not ended (gloo and NCCL; it
records where `TORCH_FR_BUFFER_SIZE` is set before torch is imported). Where the code stands is the
innermost line of ours on the main thread's stack, and the call it made.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parents[2])
_SHORT_OF = len(str(Path(__file__).parents[3])) + 1
_WRAPPERS = {"wrapper", "inner", "_fn", "__exit__", "__enter__", "decorate_context"}
_DEPTH = 60
RECORDER = {"TORCH_FR_BUFFER_SIZE": "64"}
"""Environment under which torch records collectives."""


def stack() -> tuple[tuple[str, int, str], ...]:
    """The main thread's: file, line and function, innermost first."""
    thread = threading.main_thread().ident
    frame = sys._current_frames().get(thread) if thread is not None else None
    return tuple(_frames(frame))


def _frames(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def described(frames: tuple[tuple[str, int, str], ...]) -> str:
    """The call that our code made, and where: `all_reduce, called at ridgeline/train/x.py:12`."""
    called = ""
    for file, line, name in frames:
        if file.startswith(_OURS):
            place = f"{file[_SHORT_OF:]}:{line}"
            return f"{called}, called at {place}" if called else f"{name} at {place}"
        if name not in _WRAPPERS:
            called = name
    return f"{frames[0][2]} at {frames[0][0]}:{frames[0][1]}" if frames else "nothing"


def collective() -> str:
    """The oldest collective that has begun and not ended; empty: there is none, or no recorder."""
    from torch._C import _distributed_c10d

    # Its stub has the NCCL name alone.
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    told = json.loads(dump(True, False) or "{}")
    waiting = [entry for entry in told.get("entries", []) if not entry["retired"]]
    if not waiting:
        return ""
    entry = min(waiting, key=lambda one: one["record_id"])
    _, _, name = entry["profiling_name"].rpartition(":")
    group = entry["process_group"][1]
    inside = "" if group == "undefined" else f" in group {group}"
    return f"{name} of {_shape(entry)}{inside}"


def _shape(entry: dict[str, list[list[int]]]) -> str:
    return " x ".join(str(size) for size in (entry["input_sizes"] or [[]])[0]) or "one number"
