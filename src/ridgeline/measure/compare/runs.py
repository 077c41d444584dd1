"""Records of Ridgeline as `compare` reads them, told apart by the kind they state.

What other tools wrote is read in `foreign.py`.

A document that a command hands out says its kind under `record` (the tag of its struct). Of each
kind that holds timed repetitions, measured or simulated, there is a reader in `readers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.compare.foreign import (
    KEEPING_TIMES,
    TOOLS,
    taken_from_document,
    taken_from_lines,
)
from ridgeline.measure.compare.readers import READERS, UNTIMED, Origin
from ridgeline.records.input_file import read_json

Unit = Literal[
    "step", "decode step", "forward pass", "request", "frame", "call", "job", "run", "round"
]
"""What is timed again and again."""
PART_WORDS: dict[str, str] = {
    "frame": "sink",
    "call": "format",
    "job": "policy",
    "run": "command",
    "round": "benchmark",
}
"""Unit → what the parts of a run are called that times it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read from disk."""

    source: str
    record: str
    """The record's kind, a key of `READERS`; or whose file it is, where another tool wrote it."""
    kind: str
    """`training`, `inference`, `decode`, `requests`, …: only the like makes one history."""
    unit: Unit = "step"
    samples: list[float]
    """Seconds of each repetition."""
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Sink, format or policy → its own times, where one run has several; else empty."""
    phases: dict[str, float]
    peak_memory_bytes: int
    origin: Origin
    world_size: int
    steady: bool


_WRITTEN_BEFORE = {"profile": "doctor", "baseline": "tuning", "step_samples": "profile"}
"""A key that only this kind has: for files from before records stated their kind."""
_COMMANDS = list(dict.fromkeys(command for command, _ in READERS.values()))
CURE = (
    f"compare reads what {', '.join(_COMMANDS[:-1])} and {_COMMANDS[-1]} wrote, "
    f"and single times of {TOOLS}"
)


def read_run(path: Path) -> Run:
    """Read the timed repetitions of any record that holds some, or of another tool's file.

    Raises:
        InputError: It is no such file; the message names the kinds that are.
    """
    taken = taken_from_lines(path)
    if taken is None:
        taken = _taken_from_document(read_json(path, dict[str, Any], cure=CURE), path)
    usual: dict[str, Any] = {"phases": {}, "peak_memory_bytes": 0, "world_size": 1, "steady": True}
    origin = Origin(command=taken.pop("command", []))
    run = Run(source=str(path), **(usual | {"origin": origin} | taken))
    if not run.samples:
        cure = KEEPING_TIMES.get(run.record, "compare needs some")
        raise InputError(f"{path}: holds no timed {run.unit}s; {cure}")
    for index, seconds in enumerate(chain(run.samples, *run.parts.values())):
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"{path}: {run.unit} {index} took {seconds}, not a time above 0")
    return run


def _taken_from_document(content: dict[str, Any], path: Path) -> dict[str, Any]:
    if "record" not in content:
        foreign = taken_from_document(content, path)
        if foreign is not None:
            return foreign
    record = _kind_of(content, path)
    try:
        return {"record": record, **READERS[record][1](content)}
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; {CURE}") from None


def _kind_of(content: dict[str, Any], path: Path) -> str:
    stated = content.get("record")
    if stated is None:
        stated = next((kind for key, kind in _WRITTEN_BEFORE.items() if key in content), None)
    if stated in UNTIMED:
        raise InputError(f"{path}: is of the kind {stated}, which {UNTIMED[stated]}")
    if stated not in READERS:
        what = "holds no record of Ridgeline's" if stated is None else f"holds a {stated!r}"
        raise InputError(f"{path}: {what}, with nothing that compare can time; {CURE}")
    return str(stated)
