"""Worker processes around one parameter server: `train_asynchronously`.

A worker pulls weights, computes the gradient of its next batch and pushes it; what happens to it is
for `rules.py` to say. Workers are processes of their own (started afresh, not forked) and talk to
the server through a pipe, as arrays. The server runs in the caller's process.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, ScriptError, in_words
from ridgeline.train.asynchronous.rules import AsynchronousSettings, ParameterServer


class Problem(Protocol):
    """Whatever is trained, of a class at the top of a module so that workers can load it."""

    def model(self) -> nn.Module:
        """The model with its first weights, the same at every call."""
        ...

    def loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        """The loss of a worker's batch, the mean over its examples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousRun:
    """What a run did."""

    model: nn.Module
    """The model with the server's last weights."""
    gradients: int
    """Gradients that came, dropped ones too."""
    updates: int
    dropped: int
    mean_staleness: float
    """Updates between pull and push, over the gradients that were applied."""
    worst_staleness: int
    steps_by_worker: tuple[int, ...]
    seconds: float
    """From the first pull on."""
    losses: tuple[float, ...]
    """The loss of each gradient, in the order in which they came."""


def train_asynchronously(
    problem: Problem,
    settings: AsynchronousSettings,
    *,
    gradients: int,
    most_seconds: float | None = None,
) -> AsynchronousRun:
    """Train with workers that do not wait for one another, or wait as `settings.rule` says.

    Args:
        problem: The model and the loss of each worker's batches.
        settings: Workers, rule, learning rate.
        gradients: The run ends when so many have come.
        most_seconds: Or after so long.

    Raises:
        InputError: The problem cannot be sent to a process.
        ScriptError: The problem's own code failed in a worker, its loss or gradient is no number,
            or the worker was killed.
    """
    if gradients < 1:
        raise InputError(f"gradients is {gradients}; a run has 1 or more")
    model = problem.model()
    server = ParameterServer([one.detach() for one in model.parameters()], settings)
    with _workers(problem, settings.workers) as workers:
        course = _Course(server, workers, gradients, most_seconds)
        course.run()
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), server.weights, strict=True):
            parameter.copy_(weight)
    applied = sum(server.staleness.values())
    late = sum(updates * count for updates, count in server.staleness.items())
    return AsynchronousRun(
        model=model,
        gradients=len(course.losses),
        updates=server.version,
        dropped=server.dropped,
        mean_staleness=late / applied if applied else 0.0,
        worst_staleness=max(server.staleness, default=0),
        steps_by_worker=tuple(course.steps),
        seconds=course.seconds,
        losses=tuple(course.losses),
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker's process, and the pipe to it."""

    number: int
    pipe: Connection
    process: BaseProcess

    def receive(self) -> tuple[int, float, list[object]]:
        """What it sent; its failure raises here."""
        try:
            kind, content = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._gone() from None
        if kind == "failed":
            raise ScriptError(f"a worker of the asynchronous run failed: {content}")
        found: tuple[int, float, list[object]] = content
        return found

    def send(self, version: int, arrays: list[object]) -> None:
        """Answer it with weights."""
        try:
            self.pipe.send((version, arrays))
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None

    def _gone(self) -> ScriptError:
        self.process.join(_ENDING_SECONDS)
        code = self.process.exitcode or 0
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += ", as Linux does where memory ends" if -code == signal.SIGKILL else ""
        else:
            how = f"ended with exit code {code} and without a word"
        return ScriptError(f"worker {self.number} of the asynchronous run {how}")


_ENDING_SECONDS = 5.0
"""A process whose pipe is closed is given so long to end."""


class _Course:
    """The server's side of one run."""

    def __init__(
        self,
        server: ParameterServer,
        workers: list[_Worker],
        gradients: int,
        most_seconds: float | None,
    ) -> None:
        self._server = server
        self._workers = workers
        self._wanted = gradients
        self._most_seconds = most_seconds
        self.losses: list[float] = []
        self.steps = [0] * len(workers)
        self.seconds = 0.0

    def run(self) -> None:
        """Answer workers until enough gradients have come."""
        for worker in self._workers:
            worker.receive()  # ready: loading takes each of them its own time
        began = time.monotonic()
        self._answer(range(len(self._workers)))
        while len(self.losses) < self._wanted and not self._late(began):
            ready = wait([worker.pipe for worker in self._workers], timeout=1.0)
            for worker in self._workers:
                if worker.pipe not in ready:
                    continue
                seen, loss, arrays = worker.receive()
                self.losses.append(loss)
                self.steps[worker.number] += 1
                parts = [torch.from_numpy(one) for one in arrays]
                free = self._server.receive(worker.number, seen, parts)
                if len(self.losses) >= self._wanted:
                    break
                self._answer(free)
        self.seconds = time.monotonic() - began

    def _late(self, began: float) -> bool:
        return self._most_seconds is not None and time.monotonic() - began > self._most_seconds

    def _answer(self, workers: list[int] | range) -> None:
        arrays: list[object] = [weight.numpy() for weight in self._server.weights]
        for worker in workers:
            self._workers[worker].send(self._server.version, arrays)


@contextmanager
def _workers(problem: Problem, count: int) -> Iterator[list[_Worker]]:
    """Start worker processes; none is left when the block ends, however it ends."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(problem, number, theirs), daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, OSError, pickle.PicklingError) as error:
                raise InputError(
                    f"the problem cannot be sent to a process: {in_words(error)}; define its class"
                    " at the top of a module"
                ) from None
            theirs.close()
            workers.append(_Worker(number, ours, process))
        yield workers
    finally:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def _work(problem: Problem, worker: int, pipe: Connection) -> None:
    """Pull weights, compute a gradient and push it, until the server hangs up."""
    torch.set_num_threads(1)
    try:
        model = problem.model()
        parameters = list(model.parameters())
        pipe.send(("ready", (0, 0.0, [])))
        step = 0
        while True:
            version, arrays = pipe.recv()
            with torch.no_grad():
                for parameter, array in zip(parameters, arrays, strict=True):
                    parameter.copy_(torch.from_numpy(array))
            model.zero_grad()
            loss = problem.loss(model, worker, step)
            loss.backward()  # type: ignore[no-untyped-call]  # torch types it so
            if not all(map(_is_finite, [loss, *(one.grad for one in parameters)])):
                told = f"its loss or gradient is no number at its step {step} (loss {loss.item()})"
                raise FloatingPointError(told)  # noqa: TRY301  # told as what the problem raises
            step += 1
            grads = [
                torch.zeros_like(one).numpy() if one.grad is None else one.grad.numpy()
                for one in parameters
            ]
            pipe.send(("gradient", (version, float(loss.detach()), grads)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the server has what it wanted
    except (
        Exception
    ) as error:  # the problem's own code runs here; the caller is told what it raised
        pipe.send(("failed", f"worker {worker}: {type(error).__name__}: {in_words(error)}"))


def _is_finite(values: Tensor | None) -> bool:
    return values is None or bool(values.detach().isfinite().all())
