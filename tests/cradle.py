"""Where processes of tests are born: one that has imported torch forks one per request.

Importing torch, DTensor and transformers costs a process several seconds of a core; a fork of a
process that has them costs milliseconds. The cradle computes nothing itself, so there is no thread
and no OpenMP team that a fork could break. One per pytest process; it ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PRELOADED = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "tests.train.processes",
)
_LOOK_SECONDS = 0.02


class Cradle:
    """This process's end of it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cradle"],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        atexit.register(self._end)

    def bear(
        self,
        function: str,
        arguments: list[Any],
        *,
        log: Path,
        environment: dict[str, str],
        folder: Path = _ROOT,
    ) -> int:
        """The process id of a new process, a session of its own.

        Args:
            function: `package.module:name` of what it calls; its return ends the process.
            arguments: For it; what JSON can carry.
            log: Takes what the process prints.
            environment: All of its variables.
            folder: Where it runs.
        """
        order = {"function": function, "arguments": arguments, "log": str(log)}
        return int(self._ask(order | {"environment": environment, "folder": str(folder)}))

    def code(self, process: int) -> int | None:
        """Its exit code (below 0: the signal that ended it); None: it runs."""
        answer = self._ask({"code": process})
        return None if answer == "runs" else int(answer)

    def _end(self) -> None:
        with self._process:
            self._process.kill()

    def _ask(self, order: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        return self._process.stdout.readline().strip()


@functools.cache
def cradle() -> Cradle:
    """The one of this process."""
    return Cradle()


class Child:
    """A process from the cradle, asked as one from `subprocess` is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return cradle().code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_LOOK_SECONDS)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _main() -> None:
    # What imports print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in _PRELOADED:
        __import__(name)
    gc.freeze()  # no child of ours walks over all of that when it collects garbage
    codes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
        _bury(codes)
        if not ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        order = json.loads(line)
        if "code" in order:
            print(codes.get(order["code"], "runs"), file=answers)
        else:
            print(_bear(order), file=answers)


def _bury(codes: dict[int, int]) -> None:
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        codes[process] = os.waitstatus_to_exitcode(status)


def _bear(order: dict[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target in (1, 2):
            os.dup2(log, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        atexit.register(gc.unfreeze)  # libraries complain of what is left at the end
        module, _, name = order["function"].partition(":")
        getattr(importlib.import_module(module), name)(*order["arguments"])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    # Without Python's shutdown: with gloo's threads alive it may hang or abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
