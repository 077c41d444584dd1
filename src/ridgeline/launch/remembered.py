"""Submitted runs on disk, one file each, so that `status`, `logs` and `cancel` find them.

A run is written down before anything is started: a launcher that dies in between leaves a record
in phase `submitting`, which the next command finishes or undoes. Files are whole or not there.
"""

from __future__ import annotations

import difflib
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.launched_run import LaunchedRun
from ridgeline.records.state_folder import VARIABLE
from ridgeline.records.store import read_record, write_record


@dataclass(frozen=True, slots=True)
class Remembered:
    """The runs of one state folder."""

    folder: Path

    def write(self, run: LaunchedRun) -> LaunchedRun:
        """Remember a run, in place of what was known of it."""
        try:
            write_record(self._path(run.name), run)
        except OSError as error:
            raise InputError(
                f"{self._path(run.name)}: {error.strerror or error}; set {VARIABLE} to a folder"
                " that can be written"
            ) from None
        return run

    def change(self, run: LaunchedRun, **changes: object) -> LaunchedRun:
        """Remember it with some fields replaced."""
        return self.write(msgspec.structs.replace(run, **changes))

    def read(self, name: str) -> LaunchedRun:
        """The run of that name.

        Raises:
            InputError: There is none; the message has the nearest names.
        """
        if not self._path(name).exists():
            known = [run.name for run in self.all()]
            near = difflib.get_close_matches(name, known, n=3) or known[:5]
            hint = f"known are: {', '.join(near)}" if near else "none was launched from here"
            raise InputError(f"no run {name!r} in {self.folder}; {hint}")
        return read_record(self._path(name), LaunchedRun, ours=True)

    def all(self) -> list[LaunchedRun]:
        """Every run, the newest first."""
        paths = self.folder.glob("[!.]*.json")
        runs = [read_record(path, LaunchedRun, ours=True) for path in paths]
        return sorted(runs, key=lambda run: run.created_seconds, reverse=True)

    def forget(self, run: LaunchedRun) -> None:
        """Delete what is remembered of a run."""
        self._path(run.name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def launcher_lives(run: LaunchedRun) -> bool:
    """The process that launched it is there still, as far as can be seen from this machine."""
    if run.launcher_host != socket.gethostname():
        return True  # another machine's processes cannot be seen: nothing is undone for them
    try:
        command = Path(f"/proc/{run.launcher_pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"ridgeline" in command or b"python" in command or b"pytest" in command
