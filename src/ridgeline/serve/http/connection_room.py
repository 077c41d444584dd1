"""How many connections fit beside everything else that is opened while we serve."""

from __future__ import annotations

import logging
import os
import resource
import time

from ridgeline.errors import InputError

MOST_CONNECTIONS = 8192
SPARE_FILES = 16
"""Files for what is opened while we serve; each engine needs `FILES_PER_ENGINE` more."""
FILES_PER_ENGINE = 4
BURST = 128
"""Connections that are taken in one turn of the event loop."""
TURNS = 6
"""Turns of the event loop from taking a connection to freeing it because it was refused."""
FULL_EVERY_SECONDS = 10.0
"""A log line, however many are refused."""

log = logging.getLogger("ridgeline.serve")


class ConnectionRoom:
    """How many connections fit, by the limit on open files, which is raised as far as it goes.

    Raises:
        InputError: The limit leaves none.
    """

    def __init__(self, num_engines: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * MOST_CONNECTIONS
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        files = wanted if soft == resource.RLIM_INFINITY else soft
        self.burst = max(1, min(BURST, files // 32))
        taken = len(os.listdir("/dev/fd")) + SPARE_FILES + FILES_PER_ENGINE * num_engines
        taken += TURNS * self.burst
        self.connections = min(MOST_CONNECTIONS, files - taken)
        self._said_at: float | None = None
        if self.connections < 1:
            raise InputError(
                f"only {files} files may be open at once (ulimit -n), which leaves no connection;"
                f" allow {taken + 1} at least"
            )

    def log_full(self) -> None:
        """Note in the log that a connection was refused."""
        now = time.monotonic()
        if self._said_at is None or now - self._said_at > FULL_EVERY_SECONDS:
            self._said_at = now
            log.warning("connections refused", extra={"fields": {"open": self.connections}})
