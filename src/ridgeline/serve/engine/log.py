"""What an engine writes down of its work: one JSON line per answer, and a file with every step.

An answer's line goes to the logger `ridgeline.serve`: what it cost and how it ended. Preemptions
and the tokens that they threw away stand in it, because that is the first question about a slow
answer, and a server that hides it cannot be debugged. The file (`records/step_log.py`) is what a
simulation is calibrated on.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.step_log import COLUMNS, StepRow, line
from ridgeline.serve.messages import Delta

logger = logging.getLogger("ridgeline.serve")


def log_answer(last: Delta) -> None:
    """Log an answer by its last Delta; nothing is put together where nobody listens."""
    if not logger.isEnabledFor(logging.INFO):
        return
    times = last.times
    assert times is not None
    line: dict[str, object] = {
        "event": "answer",
        "id": last.id,
        "index": last.index,
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "cached_tokens": last.cached_tokens,
        "output_tokens": last.output_tokens,
        "num_preemptions": last.num_preemptions,
        "wasted_tokens": last.wasted_tokens,
    }
    if times.scheduled is not None:
        line["queue_seconds"] = round(times.scheduled - times.arrived, 6)
    if times.first_token is not None:
        line["first_token_seconds"] = round(times.first_token - times.arrived, 6)
    if times.finished is not None:
        line["total_seconds"] = round(times.finished - times.arrived, 6)
    logger.info(msgspec.json.encode(line).decode())


def log_failure(request_id: str, error: BaseException) -> None:
    """Log that the engine failed at a request, with where."""
    logger.error("request %s failed in the engine", request_id, exc_info=error)


class StepLog:
    """A file with one line per step, each written at once: an engine may end at any time.

    Raises:
        InputError: The file cannot be written.
    """

    def __init__(self, path: str) -> None:
        try:
            # Open as long as the engine lives.
            self._file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115
            self._file.write(",".join(COLUMNS) + "\n")
        except OSError as error:
            raise InputError(f"--step-log {path}: {error.strerror or error}") from None

    def add(self, row: StepRow) -> None:
        """Write a step."""
        self._file.write(line(row))

    def close(self) -> None:
        """No step follows."""
        self._file.close()
