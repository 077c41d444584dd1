"""A worker as the parent sees it: one order, one answer; it and its children die with the parent.

A worker leads a process group of its own, so that an interrupted terminal ends it through the
parent alone, and compilers that it started end with it. It is killed when the parent dies,
however that happens (`measure/parent_death.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

import msgspec

from ridgeline.errors import ChildDied, InputError, RidgelineError
from ridgeline.export.orders import Answer, FailureAnswer, Order

_READ = msgspec.json.Decoder(Answer)
A = TypeVar("A")


class WorkerFailed(InputError):
    """What a worker could not do, in its own words."""

    def __init__(self, failure: FailureAnswer) -> None:
        super().__init__(failure.message)
        self.kind = failure.kind
        self.code = failure.code


def start_worker(log: BinaryIO, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process of its own that reads orders and writes answers."""
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline.export.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        env=environment,
    )


class Worker:
    """A process that answers orders until it is closed."""

    def __init__(self, log: Path, threads: int) -> None:
        self._log = log.open("ab")
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, **variables, "PYTHONPATH": path}
        self._process = start_worker(self._log, environment)

    def ask(self, order: Order, kind: type[A]) -> A:
        """Give an order and wait for its answer.

        Raises:
            WorkerFailed: It could not do so, and says why.
            ChildDied: It is no longer there.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ChildDied(self._ended())
        answer = _READ.decode(line)
        if isinstance(answer, FailureAnswer):
            if answer.code == RidgelineError.exit_code:
                raise RidgelineError(answer.message)
            raise WorkerFailed(answer)
        assert isinstance(answer, kind)
        return answer

    def _ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        self._log.flush()
        last = Path(self._log.name).read_text(errors="replace").strip().splitlines()[-1:]
        return f"its process ended with exit code {code}: {' '.join(last) or 'without a word'}"

    def close(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        """Closed, however the block ends."""
        self.close()
