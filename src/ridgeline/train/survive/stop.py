"""How a rank is asked to stop: by SIGTERM (preemption), or by the file `stop` in its folder.

`ridgeline train` writes the file, for Ctrl-C and for a SIGTERM of its own: torchrun is then not
told, and the ranks end by themselves at a step that they agree on. A SIGTERM that reaches a rank
came through torchrun, which gives it `survive.grace_seconds`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from ridgeline.train.folder import STOP

_LOOK_SECONDS = 0.2
"""A look at the file costs microseconds on a local disk, milliseconds on a shared one."""
TERMINATED = "SIGTERM"
INTERRUPTED = "Ctrl-C"
"""What the file says: why."""


class StopRequest:
    """A listener from construction to `close`; only the main thread can make one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STOP
        self.signalled = False
        """This process was sent SIGTERM: it must not end as if the run had."""
        self.reason = ""
        """Why this rank is to stop; empty: it is not."""
        self._closed = threading.Event()
        # The handler itself waits for the main thread to return from what it calls; the byte in
        # this pipe does not.
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.signal(signal.SIGTERM, self._heard)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="stop-signals")
        self._looker = threading.Thread(target=self._look, daemon=True, name="stop-file")
        self._listener.start()
        self._looker.start()

    def close(self) -> None:
        """Stop listening; the handlers from before are in force again."""
        self._closed.set()
        signal.set_wakeup_fd(self._wakeup_before)
        signal.signal(signal.SIGTERM, self._before)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")
        self._listener.join()
        self._looker.join()
        os.close(self._read)
        os.close(self._write)

    def _heard(self, _number: int, _frame: object) -> None:
        self.signalled = True
        self.reason = TERMINATED

    def _listen(self) -> None:
        while not self._closed.is_set():
            if signal.SIGTERM in os.read(self._read, 64):
                self.signalled = True
                self.reason = TERMINATED

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            if not self.reason and self.path.exists():
                self.reason = self.path.read_text().strip() or TERMINATED
