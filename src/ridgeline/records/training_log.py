"""A run's log as it lies on disk: one `LoggedStep` per line, read while it is being written."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from ridgeline.records import appended
from ridgeline.records.training_run import LoggedStep

FILE = "log.jsonl"


def read_log(folder: Path) -> list[LoggedStep]:
    """Every whole line; one that a crash cut short is left out, as are steps done over.

    A run that was restarted from a checkpoint writes some steps again: the later line counts.
    """
    return LogTail(folder).read()


class LogTail:
    """Reads what has come since the last call."""

    def __init__(self, folder: Path) -> None:
        self._lines = appended.Tail(folder / FILE, _decoded)

    def read(self) -> list[LoggedStep]:
        """New lines, in order of their steps.

        Raises:
            InputError: A line is no `LoggedStep`.
        """
        by_step: dict[int, LoggedStep] = {}
        for found in self._lines.read():
            while by_step and next(reversed(by_step)) >= found.step:
                by_step.popitem()
            by_step[found.step] = found
        return list(by_step.values())


def _decoded(line: bytes) -> LoggedStep:
    content = msgspec.json.decode(line)
    # JSON has no NaN: a loss that was not finite is written as null.
    if isinstance(content, dict) and content.get("loss", 0.0) is None:
        content["loss"] = math.nan
    return msgspec.convert(content, type=LoggedStep)
