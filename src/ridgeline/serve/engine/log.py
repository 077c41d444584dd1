"""What server and engine write down of their work: lines of JSON, and a file with every step.

A completion's line goes to the logger `ridgeline.serve`: what it cost and how it ended. Preemptions
and the tokens that they threw away stand in it, because that is the first question about a slow
completion, and a server that hides it cannot be debugged. The file (`records/step_log.py`) is what
a simulation is calibrated on.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import sys
from io import FileIO
from pathlib import Path

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.step_log import COLUMNS, StepRow, line
from ridgeline.serve.messages import Delta

logger = logging.getLogger("ridgeline.serve")


def log_completion(last: Delta) -> None:
    """Log a completion by its last Delta; nothing is put together where nobody listens."""
    if not logger.isEnabledFor(logging.INFO):
        return
    times = last.times
    assert times is not None
    line: dict[str, object] = {
        "event": "completion",
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


def begin_step_log(path: str) -> None:
    """Leave nothing of an earlier server's log; engines that are started again go on with ours.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        Path(path).write_bytes(b"")
    except OSError as error:
        raise InputError(f"--step-log {path}: {in_words(error)}") from None


def log_failure(request_id: str, error: BaseException) -> None:
    """Log that the engine failed at a request, with where."""
    logger.error("request %s failed in the engine", request_id, exc_info=error)


class StepLog:
    """A file with one line per step, each written at once: an engine may end at any time.

    A full disk ends the log behind its last whole line, not the engine.

    Raises:
        InputError: The file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # Open as long as the engine lives; unbuffered, so that a short write is seen.
            self._file: FileIO | None = FileIO(path, "a+")
            self._size = _whole_lines(self._file)
            self._file.truncate(self._size)
        except OSError as error:
            raise InputError(f"--step-log {path}: {in_words(error)}") from None
        if not self._size:
            self._write(",".join(COLUMNS) + "\n")

    def add(self, row: StepRow) -> None:
        """Write the line of a step."""
        self._write(line(row))

    def close(self) -> None:
        """Close the file, for no step follows."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        content = text.encode()
        try:
            whole, why = self._file.write(content) == len(content), "no space left"
        except OSError as error:
            whole, why = False, in_words(error)
        if whole:
            self._size += len(content)
            return
        with contextlib.suppress(OSError):
            self._file.truncate(self._size)
        self.close()
        logger.warning("--step-log %s: %s; no step follows there, serving goes on", self._path, why)


def _whole_lines(file: FileIO) -> int:
    """Bytes up to the last end of a line: an engine may have ended while it wrote."""
    file.seek(0)
    return file.readall().rfind(b"\n") + 1


class JsonLines(logging.Formatter):
    """A formatter of log lines as JSON; `extra={"fields": {…}}` of a call becomes keys."""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as one line of JSON."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Ours from level info, everyone else's from warning; all on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ridgeline").setLevel(logging.INFO)
