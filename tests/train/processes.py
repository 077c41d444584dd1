"""Several real processes for one test: ranks on gloo, with a hard time limit.

    results = run_ranks(4, "tests.train.layout_worker:compare_layouts", {"steps": 50})

starts four Python processes with torchrun's variables, calls `compare_layouts(argument)` in each
and returns what each returned, by rank. The first rank that fails ends the others at once, and
its traceback is the test's failure: after one failed collective the next would wait for ever.
Ranks are forked by a process that has imported torch (`tests/cradle.py`): an import costs seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cradle import cradle
from tests.ports import reserved_port

_ROOT = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.05


class RankFailed(AssertionError):
    """One rank ended with an error, or the time was up."""


def run_ranks(
    num_ranks: int,
    function: str,
    argument: Any = None,
    *,
    timeout_seconds: float = 240.0,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """What `module:function` returned on each of `num_ranks` processes.

    Args:
        num_ranks: Processes to start.
        function: `package.module:name` of a function of one argument.
        argument: Passed to it; pickled, as are the results.
        timeout_seconds: After it every rank is killed and the test fails.
        environment: Further variables.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name, reserved_port() as port:
        folder = Path(name)
        (folder / "argument").write_bytes(pickle.dumps(argument))
        shared = _environment(num_ranks, port) | (environment or {})
        processes = [_start(rank, function, folder, shared) for rank in range(num_ranks)]
        try:
            _wait(processes, folder, timeout_seconds)
        finally:
            for process in processes:
                _kill(process)
        return [
            pickle.loads((folder / f"{rank}.result").read_bytes())  # noqa: S301 - our own
            for rank in range(num_ranks)
        ]


def _environment(num_ranks: int, port: int) -> dict[str, str]:
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }


def _start(rank: int, function: str, folder: Path, environment: dict[str, str]) -> int:
    """The process id of a new rank."""
    return cradle().bear(
        "tests.train.processes:run_as_rank",
        [function, str(folder), rank],
        log=folder / f"{rank}.log",
        environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
    )


def _wait(processes: list[int], folder: Path, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        codes = [cradle().code(process) for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise RankFailed(f"rank {rank} ended with {code}:\n{_log(folder, rank)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            running = [rank for rank, code in enumerate(codes) if code is None]
            logs = "\n".join(f"--- rank {rank}\n{_log(folder, rank)}" for rank in running)
            raise RankFailed(f"ranks {running} still ran after {timeout_seconds:g} s\n{logs}")
        time.sleep(_POLL_SECONDS)


def _log(folder: Path, rank: int) -> str:
    return (folder / f"{rank}.log").read_text(errors="replace")[-6000:]


def _kill(process: int) -> None:
    while cradle().code(process) is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def run_as_rank(function: str, place: str, rank: int) -> None:
    """In the rank's own process: call, leave the result, end."""
    import faulthandler

    faulthandler.enable()
    folder = Path(place)
    module, _, name = function.partition(":")
    call: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    result = call(pickle.loads((folder / "argument").read_bytes()))  # noqa: S301 - our own
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))
    _end()


def _end() -> None:
    """Leave without Python's shutdown: with gloo's threads alive it aborts now and then."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
