"""A file of lines that several processes append to, and that a full disk does not lose lines of.

Each line is one write. Where the disk has no room they wait in memory, in their order, and go out
with the next line that fits: a run must not end because its log cannot grow for a while.
"""

from __future__ import annotations

import os
from pathlib import Path

from ridgeline.errors import NO_ROOM


class AppendedFile:
    """Open for appending until closed."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._waiting = b""

    def append(self, line: bytes, *, sync: bool = False) -> bool:
        """One line, without its end; false where it has to wait.

        Args:
            line: What to append.
            sync: On the disk when this returns.
        """
        self._waiting += line + b"\n"
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._handle, self._waiting) :]
            if sync:
                os.fsync(self._handle)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def close(self) -> None:
        """Nothing more will come."""
        os.close(self._handle)
