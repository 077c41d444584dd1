"""The child's half of the conversation: count steps, run instruments, report, wait, leave.

Leaving happens at a step boundary on the stepping thread: the interpreter's exit handlers run
(loader workers end, temporary folders go, logs are flushed), the script's own `except` and
`finally` blocks do not: they would act on a run that is only cut short.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import math
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import msgspec
import torch

from ridgeline.measure.child import facts
from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import attempt, guarded, mishaps, start_anew
from ridgeline.measure.child.inputs import FedStep
from ridgeline.measure.child.instruments import Instrument, start_instrument
from ridgeline.measure.child.paced import PacedSteps
from ridgeline.measure.child.seen_losses import sum_of
from ridgeline.measure.child.standing import Standing
from ridgeline.measure.child.usage import graph_breaks, resident_bytes, usage_now
from ridgeline.measure.wire import (
    SOCKET_NAME,
    Facts,
    Hello,
    Order,
    Report,
    StepTimes,
    Updates,
    Waits,
)
from ridgeline.patches import patch
from ridgeline.records import SyncPoint

_LEAST_DESCRIPTOR = 3


class Conversation:
    """Drives the agent by the conductor's orders."""

    def __init__(self, agent: Agent, session: Path, waits: Waits | None = None) -> None:
        self._agent = agent
        self._session = session
        self._connection: Connection | None = None
        self._order = Order(action="run", steps=1)
        self._left = 1
        self._until = math.inf
        self._instrument: Instrument = Instrument()
        self._paced: PacedSteps | None = None
        self._has_reported = False
        self._pid = os.getpid()
        self._usage = usage_now()
        self._standing = Standing(session, agent, waits)
        self._standing.start()
        agent.on_boundary = self.boundary
        agent.on_fork = self._forked
        agent.on_moved = self._moved
        atexit.register(self._ended)
        patch("os:_exit", self._reporting_exit)

    @guarded()
    def boundary(self) -> None:
        """A step ended; called by the agent on the stepping thread."""
        if self._connection is None:
            self._connect()
        self._standing.rest()
        attempt(self._instrument.boundary, otherwise=None)
        self._left -= 1
        if self._paced is not None:
            attempt(self._paced.ended, otherwise=None)
        if self._left <= 0 or monotonic() > self._until:
            self._exchange()
        elif self._paced is not None:
            attempt(self._paced.next, otherwise=None)
        self._standing.step()

    def _moved(self) -> None:
        """The steps go on in the calling thread."""
        self._instrument.follow()

    def _forked(self) -> bool:
        """In a forked child: may it be the process that trains? Not once its parent does."""
        start_anew()
        if self._connection is not None:
            return False
        self._pid = os.getpid()
        return True

    def _connect(self) -> None:
        connection = Client(str(self._session / SOCKET_NAME), family="AF_UNIX")
        if connection.fileno() < _LEAST_DESCRIPTOR:
            # The script closed its stdin, stdout or stderr: what it prints must not come here.
            high = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
            connection.close()
            connection = Connection(high)
        self._connection = connection
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._send(
            Hello(
                pid=os.getpid(),
                rank=torch.distributed.get_rank() if distributed else 0,
                world_size=torch.distributed.get_world_size() if distributed else 1,
                device=facts.device_name(self._agent),
            )
        )

    def _exchange(self) -> None:
        """Report, then obey; returns when there are steps to run."""
        self._report_now(ended=False)
        assert self._connection is not None
        try:
            order = msgspec.msgpack.decode(self._connection.recv_bytes(), type=Order)
        except (EOFError, OSError):
            self._leave()  # the conductor is gone: nobody is left to report to
        if order.action == "stop":
            self._leave()
        if order.action == "free":
            self._standing.stop()
            self._agent.on_boundary = None
            self._agent.abandon()
            atexit.unregister(self._ended)
            return
        self._order = order
        self._left = order.steps
        self._until = monotonic() + (order.within_seconds or math.inf)
        # One step alone does not show which optimizer steps least often.
        self._agent.watched.anchored |= order.facts and order.steps > 1
        self._agent.watched.restart()
        self._instrument = start_instrument(order.instrument, self._agent)
        self._agent.clock.cuda = self._uses_cuda()
        self._usage = usage_now()
        self._agent.clock.restart()
        if order.calls:
            on_gpu = self._agent.clock.cuda
            self._paced = attempt(
                functools.partial(PacedSteps, order.period_seconds, on_gpu=on_gpu), otherwise=None
            )

    def _uses_cuda(self) -> bool:
        return torch.cuda.is_available() and facts.device_name(self._agent).startswith("cuda")

    def _report_now(self, *, ended: bool) -> None:
        """Send what was seen; at the least, that the steps ran."""
        attempt(self._instrument.stop, otherwise=None)
        report = attempt(self._report, ended, otherwise=Report(steps=[], losses=[], ended=ended))
        if not attempt(self._sent, report, otherwise=False):
            seconds = [msgspec.structs.replace(step, phases={}) for step in report.steps]
            bare = Report(steps=seconds, losses=[], ended=ended, warnings=mishaps())
            self._sent(bare)

    def _report(self, ended: bool) -> Report:
        agent = self._agent
        times = agent.clock.resolve()
        inputs = agent.inputs.take()
        inputs += [FedStep()] * (len(times) - len(inputs))
        steps = [
            StepTimes(seconds=sum(phases.values()), phases=phases, **fed._asdict())
            for phases, fed in zip(times, inputs, strict=False)
        ]
        paced, self._paced = self._paced, None
        if paced is not None:
            attempt(paced.close, otherwise=None)
        seen: dict[str, Any] = {
            "calls": [] if paced is None else paced.samples,
            "losses": attempt(self._losses, otherwise=[]),
            "updates": attempt(agent.updates.report, otherwise=Updates()),
            "sync_points": attempt(self._prints, steps, otherwise=[]),
        }
        # Before the facts, which count what this found:
        seen |= attempt(self._instrument.results, max(len(steps), 1), otherwise={})
        # No other step may end in time.
        is_first, self._has_reported = not self._has_reported, True
        if self._order.facts or ended or is_first:
            seen["facts"] = attempt(self._facts, steps, otherwise=None)
        return Report(
            steps=steps,
            instrument=self._instrument.name,
            applied=dict(agent.points.effects),
            places=dict(agent.points.places),
            refused=dict(agent.points.refused),
            preparing=dict(agent.points.preparing),
            resident_bytes=resident_bytes(),
            cpu_seconds=process_time() - self._usage["cpu_seconds"],
            main_model=agent.watched.place_of_main(is_known=agent.kind is not None),
            anchor=agent.watched.place_of_anchor,
            forwards_seen=agent.forwards_seen,
            comes_in_parts=agent.backwards_are_steps,
            ended=ended,
            warnings=mishaps(),
            **seen,
        )

    def _losses(self) -> list[float]:
        new = self._agent.losses.untold()
        with torch.no_grad():
            return [sum_of(losses) for losses in new]

    def _prints(self, steps: list[StepTimes]) -> list[SyncPoint]:
        count = max(len(steps), 1)
        points = [
            SyncPoint(kind="print", site=site, calls=calls / count, seconds=seconds / count)
            for site, (calls, seconds) in self._agent.watched.prints.items()
        ]
        return sorted(points, key=lambda p: -p.seconds)

    def _facts(self, steps: list[StepTimes]) -> Facts:
        agent = self._agent
        count = len(steps)
        evaluation = sum(step.phases.get("evaluation", 0.0) for step in steps)
        return Facts(
            kind="inference" if agent.kind == "inference" else "training",
            models=attempt(facts.model_facts, agent, count, otherwise=[]),
            optimizers=attempt(facts.optimizer_facts, agent, count, otherwise=[]),
            loaders=attempt(facts.loader_facts, agent, otherwise=[]),
            settings=facts.settings(agent, count, self._usage),
            habits=attempt(facts.habits, agent, count, evaluation, otherwise={}),
            looked=dict(agent.watched.looked),
            graph_breaks=attempt(graph_breaks, otherwise=[]),
            python=sys.version.split()[0],
            torch=str(torch.__version__),
            device_name=facts.device_name(agent),
            device_memory_bytes=attempt(facts.device_memory_bytes, agent, otherwise=0),
        )

    def _sent(self, message: msgspec.Struct) -> bool:
        self._send(message)
        return True

    def _send(self, message: msgspec.Struct) -> None:
        assert self._connection is not None
        content = msgspec.msgpack.encode(message)
        with contextlib.suppress(OSError):  # a conductor that died reads nothing
            self._connection.send_bytes(content)

    @guarded()
    def _ended(self) -> None:
        """The script ran to its own end: say so with what was seen."""
        if os.getpid() != self._pid or not self._agent.active:
            return
        if self._connection is None:
            if not self._agent.forwards_seen and self._agent.kind is None:
                return
            self._connect()
        self._agent.abandon()
        self._report_now(ended=True)

    def _reporting_exit(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        """A script that leaves by `os._exit` leaves past `atexit`, as forked children do."""

        @functools.wraps(original)
        def leave(status: int) -> Any:
            self._ended()
            return original(status)

        return leave

    def _leave(self) -> None:
        atexit.unregister(self._ended)
        self._agent.abandon()
        for thread in threading.enumerate():
            own = thread is threading.current_thread() or thread.daemon
            if not own:
                thread.join(timeout=2.0)  # an asynchronous save may be under way
        attempt(atexit._run_exitfuncs, otherwise=None)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                attempt(stream.flush, otherwise=None)
        os._exit(0)
