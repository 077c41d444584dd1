"""A process that holds one variant of the pipeline, from outside."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import TypeVar

import msgspec

from ridgeline.errors import ChildDied, InputError
from ridgeline.realtime.tuning import wire

T = TypeVar("T")
_PATIENCE_SECONDS = 600.0
"""Compiling a stage takes a minute; more than ten are a hang."""


class TimeRanOut(ChildDied):
    """An order was not carried out in time."""


_CODE = "from ridgeline.realtime.tuning.side import main; main()"


class SideProcess:
    """One side of a comparison.

    Args:
        log: A file for what the pipeline prints.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        orders_read, orders_write = os.pipe()
        answers_read, answers_write = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(orders_read), str(answers_write)],
                pass_fds=(orders_read, answers_write),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(orders_read)
        os.close(answers_write)
        self._orders = os.fdopen(orders_write, "wb")
        self._answers = answers_read
        self._rest = b""
        self._overdue = False

    def ask(self, order: wire.Order, kind: type[T], *, until: float | None = None) -> T:
        """Have an order carried out.

        Args:
            order: What to do.
            kind: What is answered.
            until: When to give the process up, on `monotonic`'s clock; None: when it hangs.

        Raises:
            InputError: It could not be; the reason in one line.
            ChildDied: The process ended, or did not answer.
            TimeRanOut: It did not answer in time; the process can then only be closed.
        """
        try:
            self._orders.write(msgspec.json.encode(order) + b"\n")
            self._orders.flush()
        except BrokenPipeError:
            raise ChildDied(self._death()) from None
        answer = msgspec.json.decode(self._line(until), type=wire.Answer)
        if isinstance(answer, wire.SideFailed):
            raise InputError(answer.reason)
        assert isinstance(answer, kind)
        return answer

    def _line(self, until: float | None) -> bytes:
        patience = monotonic() + _PATIENCE_SECONDS
        end = patience if until is None else min(until, patience)
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - monotonic()))
            if not ready:
                self._overdue = True
                if end < patience:
                    raise TimeRanOut("the time ran out")
                raise ChildDied(f"no answer for {_PATIENCE_SECONDS:.0f} s; see {self._log}")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise ChildDied(self._death())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _death(self) -> str:
        code = self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"the process ended {how}" + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """End the process, and what it started."""
        with contextlib.suppress(OSError):
            self._orders.close()
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=0.0 if self._overdue else 2.0)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._answers)
