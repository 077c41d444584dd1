"""Scripts that start warm: forks of a process that has imported torch.

A script of a few steps spends nearly four seconds of a core on importing torch and dynamo. Here
the conductor's interception is attached right after the fork, where the bootstrap would attach it
right after the import; all that follows is the same. Tests of how a script starts must start it
cold.
"""

from __future__ import annotations

import atexit
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from tests.cradle import Child, cradle

from ridgeline.measure.guard.guardian import Task
from ridgeline.measure.live import conductor
from ridgeline.tune import stack

start_cold = conductor.start
start_with_stack_cold = stack.start


def start_warm(
    words: list[str], log: BinaryIO, environment: dict[str, str], task: Task
) -> subprocess.Popen[bytes] | Child:
    if words[0] != sys.executable or not words[1].endswith(".py"):
        return start_cold(words, log, environment, task)
    pid = cradle().bear(
        "tests.warm_scripts:run_watched_script",
        [words[1:]],
        log=Path(log.name),
        environment=environment,
        folder=Path(task.cwd),
    )
    return Child(pid)


def start_with_stack_warm(
    words: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes] | Child:
    if words[0] != sys.executable or not words[1].endswith(".py"):
        return start_with_stack_cold(words, environment)
    pid = cradle().bear_on(
        (0, 1, 2),
        "tests.warm_scripts:run_watched_script",
        [words[1:]],
        environment=environment,
        folder=Path.cwd(),
    )
    return Child(pid)


def start_plainly(words: list[str], log: Path, folder: Path) -> Child:
    """A script that nobody watches; `log` takes what it prints."""
    return Child(
        cradle().bear(
            "tests.warm_scripts:run_script",
            [words],
            log=log,
            environment=dict(os.environ),
            folder=folder,
        )
    )


def run_watched_script(words: list[str]) -> None:
    """In the script's process: attach what the bootstrap would, then run it."""
    module, _, entry = os.environ["RIDGELINE_ENTRY"].partition(":")
    getattr(importlib.import_module(module), entry)(os.environ["RIDGELINE_SESSION"])
    run_script(words)


def run_script(words: list[str]) -> None:
    """As `python script.py …` does."""
    script = Path(words[0])
    sys.argv = words
    sys.path[0] = str(script.resolve().parent)
    main = ModuleType("__main__")
    main.__file__ = words[0]
    sys.modules["__main__"] = main
    try:
        exec(compile(script.read_bytes(), words[0], "exec"), main.__dict__)  # noqa: S102 - the script
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
