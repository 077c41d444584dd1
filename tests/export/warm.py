"""Workers of an export that start warm: forks of a process that has imported torch.

A worker spends two seconds of a core on its imports; what it does after them is the same.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from tests.cradle import Child, cradle

_NUMBERS = itertools.count()


class WarmWorker(Child):
    """A process from the cradle with pipes to it, as `subprocess.Popen` has them."""

    def __init__(self, log: BinaryIO, environment: dict[str, str]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="ridgeline-warm-"))
        given, answers = folder / "given", folder / "answers"
        os.mkfifo(given)
        os.mkfifo(answers)
        pid = cradle().bear(
            "tests.export.warm:work",
            [[str(given), str(answers)]],
            log=Path(log.name),
            environment=environment,
            folder=Path.cwd(),
        )
        super().__init__(pid)
        self.stdin = given.open("wb")
        self.stdout = answers.open("rb")
        given.unlink()
        answers.unlink()
        folder.rmdir()


def work(pipes: list[str]) -> None:
    """In the process: answer orders until there are no more."""
    from ridgeline.export.worker import serve

    with Path(pipes[0]).open("rb") as given, Path(pipes[1]).open("wb") as answers:
        serve(given, answers)
