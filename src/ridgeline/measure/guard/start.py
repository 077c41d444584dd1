"""The conductor's end of a guardian: start one, ask it to end, read what it found."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from ridgeline.measure.guard import guardian
from ridgeline.measure.guard.guardian import OUTCOME_NAME, PLAN_NAME, QUIT, Outcome, Task
from ridgeline.measure.guard.terminal import own_terminal, size_of

_MOST_INPUT_BYTES = 2**20


@functools.cache
def _piped() -> bytes:
    """What stands in the pipe that is our standard input: read once, given to every run."""
    read = b""
    while len(read) < _MOST_INPUT_BYTES and select.select([0], [], [], 0)[0]:
        more = os.read(0, _MOST_INPUT_BYTES - len(read))
        if not more:
            break
        read += more
    return read


def same_input() -> int:
    """A descriptor with what this process was given on its standard input, from its beginning.

    A file is opened anew, a pipe is read without waiting for more; in the place of a terminal
    stands another, of the script's own.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return os.open(os.devnull, os.O_RDONLY)
    if stat.S_ISREG(mode):
        again = os.dup(0) if not os.path.exists("/dev/fd/0") else os.open("/dev/fd/0", os.O_RDONLY)
        os.lseek(again, os.lseek(0, 0, os.SEEK_CUR), os.SEEK_SET)
        return again
    terminal = size_of(0)
    if terminal is not None:
        return own_terminal(terminal)
    if not stat.S_ISFIFO(mode) or not _piped():
        return os.open(os.devnull, os.O_RDONLY)
    with tempfile.TemporaryFile() as file:
        file.write(_piped())
        file.seek(0)
        return os.dup(file.fileno())


class Guarded(subprocess.Popen[bytes]):
    """A guardian and, below it, the script; it ends as the script ends."""

    def __init__(
        self,
        words: list[str],
        log: BinaryIO,
        environment: dict[str, str],
        task: Task,
    ) -> None:
        self._session = Path(task.session)
        plan = self._session / PLAN_NAME
        lifeline, self._life = os.pipe()
        stdin = same_input()
        try:
            plan.write_text(json.dumps(asdict(task) | {"words": words, "lifeline": lifeline}))
            super().__init__(
                [sys.executable, "-I", "-S", guardian.__file__, str(plan)],
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=[lifeline],
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(lifeline)
            os.close(stdin)

    def end(self) -> None:
        """Kill what is left of the script, undo what it wrote, and wait until that is done."""
        if self._life >= 0:
            with contextlib.suppress(BrokenPipeError):  # it ended by itself
                os.write(self._life, QUIT)
            os.close(self._life)
            self._life = -1
        self.wait()

    def outcome(self) -> Outcome | None:
        """What the script would have left; None before the end."""
        path = self._session / OUTCOME_NAME
        return Outcome(**json.loads(path.read_text())) if path.exists() else None
