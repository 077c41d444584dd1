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
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from tests.cradle import Child, cradle

from ridgeline.measure.guard.guardian import Task
from ridgeline.measure.live import conductor
from ridgeline.train.agent import AGENT
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


def start_worker_warm(
    folder: Path, environment: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> Child:
    """The only rank of a run; it does not end with the command, whose child it is not."""
    with Path(os.devnull).open("rb") as nothing:
        pid = cradle().bear_on(
            (nothing.fileno(), out.fileno(), err.fileno()),
            "tests.warm_scripts:run_worker",
            [str(folder)],
            environment={name: value for name, value in environment.items() if name != AGENT},
            folder=Path.cwd(),
        )
    return Child(pid)


def run_worker(folder: str) -> None:
    """In its process: what `python -m ridgeline.train.worker FOLDER` does."""
    from ridgeline.train import worker

    sys.argv = [worker.__name__, folder]
    worker.main()


def start_rank_warm(connection: Connection, run: str = "tests.warm_scripts:run_rank") -> Child:
    """A further rank of an engine, by what runs in it; its connection is its standard input."""
    with Path(os.devnull).open("wb") as nothing:
        pid = cradle().bear_on(
            (connection.fileno(), nothing.fileno(), nothing.fileno()),
            run,
            [],
            environment=dict(os.environ),
            folder=Path.cwd(),
        )
    return Child(pid)


def run_rank() -> None:
    """In its process: what `python -m ridgeline.serve.engine.rank_process` does."""
    from ridgeline.serve.engine import rank_process

    sys.argv = [rank_process.__name__, "0"]
    sys.exit(rank_process.main())


def run_module_warm(
    words: list[str], *, env: Mapping[str, str], **_given: Any
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives of `python -m MODULE …`, its words kept as text."""
    assert words[:2] == [sys.executable, "-m"]
    of = cradle(interpreted=env.get("TRITON_INTERPRET") == "1")
    with (
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        pid = of.bear_on(
            (nothing.fileno(), out.fileno(), err.fileno()),
            "tests.warm_scripts:run_module",
            [words[2:]],
            environment=dict(env),
            folder=Path.cwd(),
        )
        code = Child(pid, of=of).wait()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(words, code, *said)


def run_module(words: list[str]) -> None:
    """In its process: what `python -m MODULE …` does."""
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


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
