"""Where processes of tests are born: one that has imported torch forks one per request.

Importing torch, DTensor and transformers costs a process several seconds of a core; a fork of a
process that has them costs milliseconds. The cradle computes nothing itself, so there is no thread
and no OpenMP team that a fork could break. All workers of a run share one: the first that needs it
starts it, and it ends when the last has closed its connection. Triton is another under its
interpreter, from the import on, so there is a second cradle for what is run so.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_ROOT = Path(__file__).resolve().parents[1]
_USUAL = (
    "pytest",
    "ridgeline.measure.child.attach",
    "ridgeline.serve.engine.engine",
    "ridgeline.serve.http.app",
    "ridgeline.serve.http.front",
    "ridgeline.serve.http.server",
    "ridgeline.train.session",
    "ridgeline.tune.install",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torchdata.stateful_dataloader",
    "transformers.conversion_mapping",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "tests.train.processes",
)
_INTERPRETED = ("hypothesis", "pytest", "torch", "triton.runtime.interpreter")
_LOOK_SECONDS = 0.02


class Cradle:
    """This process's end of it."""

    def __init__(self, *, interpreted: bool = False) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        folder = Path(tempfile.gettempdir()) / f"cradle{'-interpreted' * interpreted}-{run}"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._connection = _reach(folder) or _start(folder, interpreted=interpreted)
        self._answers = self._connection.makefile("r")
        self._asking = threading.Lock()

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
        with log.open("ab") as into, Path(os.devnull).open("rb") as nothing:
            pipes = (nothing.fileno(), into.fileno(), into.fileno())
            return self.bear_on(pipes, function, arguments, environment=environment, folder=folder)

    def bear_on(
        self,
        pipes: tuple[int, int, int],
        function: str,
        arguments: list[Any],
        *,
        environment: dict[str, str],
        folder: Path,
    ) -> int:
        """The same on descriptors for what it reads, prints and complains of."""
        order = {"function": function, "arguments": arguments, "environment": environment}
        return int(self._ask(order | {"folder": str(folder)}, pipes))

    def code(self, process: int) -> int | None:
        """Its exit code (below 0: the signal that ended it); None: it runs."""
        answer = self._ask({"code": process})
        return None if answer == "runs" else int(answer)

    def leave(self) -> None:
        """Close this process's end, of which another process has a copy."""
        self._answers.close()
        self._connection.close()

    def _ask(self, order: dict[str, Any], pipes: tuple[int, ...] = ()) -> str:
        line = json.dumps(order).encode() + b"\n"
        with self._asking:
            sent = socket.send_fds(self._connection, [line], pipes) if pipes else 0
            self._connection.sendall(line[sent:])
            answer = self._answers.readline().strip()
        assert answer, "the cradle has died"
        return answer


def _reach(folder: Path) -> socket.socket | None:
    """A connection to the cradle of this run, if it has begun."""
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(str(folder / "door"))
    except (FileNotFoundError, ConnectionRefusedError):
        found.close()
        return None
    return found


def _start(folder: Path, *, interpreted: bool) -> socket.socket:
    (folder / "door").unlink(missing_ok=True)
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "door"))
        door.listen()
        door.set_inheritable(True)
        command = [sys.executable, "-m", "tests.cradle"]
        # No Popen: whoever starts it may end before it does. In a session of its own, since a
        # Ctrl-C is for pytest.
        os.posix_spawn(
            sys.executable,
            [*command, str(door.fileno()), str(folder), *(_INTERPRETED if interpreted else _USUAL)],
            os.environ
            | {
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": "1",
                "TRITON_INTERPRET": str(int(interpreted)),
            },
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
        found = _reach(folder)
    assert found is not None
    return found


@functools.cache
def cradle(*, interpreted: bool = False) -> Cradle:
    """The one of this process, which it leaves when it ends."""
    found = Cradle(interpreted=interpreted)
    atexit.register(found.leave)
    return found


class Child:
    """A process from the cradle, asked as one from `subprocess` is."""

    def __init__(self, pid: int, stdout: BinaryIO | None = None, of: Cradle | None = None) -> None:
        self.pid = pid
        self.stdout = stdout
        self._cradle = of or cradle()

    def poll(self) -> int | None:
        return self._cradle.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(door: socket.socket, folder: Path, preloaded: list[str]) -> None:
    os.chdir(_ROOT)
    with quiet(folder / "imports"):  # what torchao says of its missing kernels is no test's
        for name in preloaded:
            __import__(name)
    _spare_the_children()
    gc.freeze()  # no child of ours walks over all of that when it collects garbage
    codes: dict[int, int] = {}
    callers = [door.accept()[0]]
    while callers:
        ready, _, _ = select.select([door, *callers], [], [], _LOOK_SECONDS)
        _bury(codes)
        for one in ready:
            if one is door:
                callers.append(door.accept()[0])
            elif not _answer(one, codes, [door, *callers]):
                callers.remove(one)
                one.close()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # what is imported stays alive, and nanobind would list all of it as leaks


def _spare_the_children() -> None:
    """At its end, a child need not take apart what was imported here: torch's 200 libraries."""
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        one.atexit = False
    if "torch._dynamo.utils" in sys.modules:
        atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)


@contextlib.contextmanager
def quiet(file: Path) -> Iterator[None]:
    """Standard error goes to a file; what is raised is shown where it went before."""
    shown = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        os.close(shown)


def _answer(caller: socket.socket, codes: dict[int, int], ours: list[socket.socket]) -> bool:
    """Do the caller's next order; False: it has left."""
    with contextlib.suppress(ConnectionError):
        line, pipes, _, _ = socket.recv_fds(caller, 1 << 20, 3)
        try:
            while line and not line.endswith(b"\n"):
                line += caller.recv(1 << 20)
            if line:
                caller.sendall(f"{_obey(json.loads(line), pipes, codes, ours)}\n".encode())
                return True
        finally:
            for pipe in pipes:
                os.close(pipe)
    return False


def _obey(
    order: dict[str, Any], pipes: list[int], codes: dict[int, int], ours: list[socket.socket]
) -> int | str:
    if "code" in order:
        return codes.get(order["code"], "runs")
    return _bear(order, pipes, ours)


def _bury(codes: dict[int, int]) -> None:
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        codes[process] = os.waitstatus_to_exitcode(status)


def _bear(order: dict[str, Any], pipes: list[int], ours: list[socket.socket]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        for one in ours:
            os.close(one.detach())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, pipe in enumerate(pipes):
            os.dup2(pipe, target)
            os.close(pipe)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        if "ridgeline.measure.child.sites" in sys.modules:
            sites = sys.modules["ridgeline.measure.child.sites"]
            sites.START_FOLDER = os.path.realpath(order["folder"])
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
    _main(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:])
