"""The conductor's end of a guardian: start one, ask it to end, read what it found."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from ridgeline.measure.guard import guardian
from ridgeline.measure.guard.guardian import OUTCOME_NAME, PLAN_NAME, QUIT, Outcome, Task


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
        try:
            plan.write_text(json.dumps(asdict(task) | {"words": words, "lifeline": lifeline}))
            super().__init__(
                [sys.executable, "-I", "-S", guardian.__file__, str(plan)],
                stdin=subprocess.DEVNULL,
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
