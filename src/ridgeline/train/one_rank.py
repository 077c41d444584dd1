"""The only rank of a run, started by the command itself.

torchrun finds other ranks and ends all of them together. A run of one process has no others, so it
need not wait for a process that imports torch only to start the one that trains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ridgeline.train.agent import AGENT
from ridgeline.train.folder import ERRORS, LOGS

_PLACE = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}
"""What torchrun tells its ranks of their place."""


class OneRank:
    """A process that is started again when it dies; to be asked as one from `subprocess` is."""

    def __init__(self, folder: Path, environment: Mapping[str, str], max_restarts: int) -> None:
        self._folder = folder
        self._environment = {**environment, **_PLACE, AGENT: str(os.getpid())}
        self._max_restarts = max_restarts
        self._attempt = 0
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The process id, another one after each start."""
        return self._process.pid

    def poll(self) -> int | None:
        """How it ended for good; None: it runs, again where it died."""
        code = self._process.poll()
        if not code or self._attempt >= self._max_restarts or self._told():
            return code
        self._attempt += 1
        self._process = self._start()
        return None

    def wait(self) -> int:
        """Wait for the end of this start."""
        return self._process.wait()

    def _told(self) -> bool:
        """Whether it said what a user has to mend, so that the next start would do no better."""
        return any((self._folder / ERRORS).glob("rank*.txt"))

    def _start(self) -> subprocess.Popen[bytes]:
        logs = self._folder / LOGS / f"attempt_{self._attempt}" / "0"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "stdout.log").open("wb") as out, (logs / "stderr.log").open("wb") as err:
            return start_worker(self._folder, self._environment, out, err)


def start_worker(
    folder: Path, environment: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> subprocess.Popen[bytes]:
    """A process that trains what the folder says, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline.train.worker", str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )
