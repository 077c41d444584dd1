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
import gc
import inspect
import math
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ridgeline.measure.child import facts
from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.guard import attempt, guarded, mishaps, note, start_anew, tell
from ridgeline.measure.child.heap import heap_bytes
from ridgeline.measure.child.inputs import mean_of
from ridgeline.measure.child.operators import LiveMemory, OperatorMode
from ridgeline.measure.child.profiler import ProfilerWindow
from ridgeline.measure.child.sampler import Sampler
from ridgeline.measure.child.standing import Standing
from ridgeline.measure.wire import SOCKET_NAME, Facts, Hello, Order, Report, StepTimes
from ridgeline.measure.wire import Instrument as Instruments
from ridgeline.patches import patch
from ridgeline.records import SyncPoint
from ridgeline.records.profile import Habit

_LEAST_DESCRIPTOR = 3


class Conversation:
    """Drives the agent by the conductor's orders."""

    def __init__(self, agent: Agent, session: Path) -> None:
        self._agent = agent
        self._session = session
        self._connection: Connection | None = None
        self._order = Order(action="run", steps=1)
        self._left = 1
        self._until = math.inf
        self._instrument: Instrument = Instrument()
        self._reported_losses = 0
        self._pid = os.getpid()
        self._usage = facts.usage_now()
        self._standing = Standing(session, lambda: agent.calls_before_training)
        self._standing.start()
        agent.on_boundary = self.boundary
        agent.on_fork = self._forked
        atexit.register(self._ended)
        patch("os:_exit", self._reporting_exit)

    @guarded()
    def boundary(self) -> None:
        """A step ended; called by the agent on the stepping thread."""
        if self._connection is None:
            self._connect()
        attempt(self._instrument.boundary, otherwise=None)
        self._left -= 1
        if self._left <= 0 or monotonic() > self._until:
            self._exchange()

    def _forked(self) -> bool:
        """In a forked child: may it be the process that trains? Not once its parent does."""
        start_anew()
        if self._connection is not None:
            return False
        self._pid = os.getpid()
        return True

    def _connect(self) -> None:
        self._standing.stop()
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
        self._instrument = _started(order.instrument, self._agent)
        self._agent.clock.cuda = self._uses_cuda()
        self._usage = facts.usage_now()
        self._agent.clock.restart()

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
        inputs, agent.step_inputs = agent.step_inputs, []
        inputs += [(0, 0)] * (len(times) - len(inputs))
        steps = [
            StepTimes(seconds=sum(phases.values()), phases=phases, samples=samples, tokens=tokens)
            for phases, (samples, tokens) in zip(times, inputs, strict=False)
        ]
        seen: dict[str, Any] = {
            "losses": attempt(self._losses, otherwise=[]),
            "sync_points": attempt(self._prints, steps, otherwise=[]),
        }
        # Before the facts, which count what this found:
        seen |= attempt(self._instrument.results, max(len(steps), 1), otherwise={})
        if self._order.facts or ended:
            seen["facts"] = attempt(self._facts, steps, otherwise=None)
        return Report(
            steps=steps,
            instrument=self._instrument.name,
            applied=dict(agent.points.effects),
            resident_bytes=_resident_bytes(),
            forwards_seen=agent.forwards_seen,
            ended=ended,
            warnings=mishaps(),
            **seen,
        )

    def _losses(self) -> list[float]:
        new = self._agent.losses[self._reported_losses :]
        self._reported_losses = len(self._agent.losses)
        with torch.no_grad():
            return [mean_of(losses) for losses in new]

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
            graph_breaks=attempt(facts.graph_breaks, otherwise=[]),
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


class Instrument:
    """No instrument: only the clock runs. The base of those that look closer."""

    name: Instruments = "none"

    def start(self) -> None:
        """Called at the boundary before the first step."""

    def boundary(self) -> None:
        """Called at the end of every step."""

    def stop(self) -> None:
        """Called at the last boundary; may be called twice."""

    def results(self, steps: int) -> dict[str, Any]:
        """Fields of `Report`."""
        return {}


class OperatorsInstrument(Instrument):
    """Operators, live memory, sync points, gradient norms."""

    name = "operators"

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._mode: OperatorMode | None = None
        self._norms: list[list[torch.Tensor]] = []
        """By step, one of each device."""
        self._totals: list[int] = []
        self._handles: list[Any] = []

    def start(self) -> None:
        """Enter the dispatch mode."""
        modes = _get_current_dispatch_mode_stack()
        if modes:
            tell(
                f"operators were not looked at: the script's steps end inside of a dispatch mode "
                f"of its own ({type(modes[-1]).__name__})"
            )
            raise NotLooking
        self._agent.watched.look_closer = True
        self._agent.on_gradients = self._gradients
        self._mode = OperatorMode(self._agent)
        for watch in self._agent.watched.models.values():
            module = watch.module()
            if module is not None:
                attempt(self._follow_gradients, module, self._mode, otherwise=None)
        _force_eager(on=True)
        self._mode.__enter__()

    def _follow_gradients(self, module: torch.nn.Module, mode: OperatorMode) -> None:
        for parameter in parameters(module):
            if parameter.requires_grad and parameter.is_leaf:
                retag = mode.memory.retag_gradient
                self._handles.append(parameter.register_post_accumulate_grad_hook(retag))

    def boundary(self) -> None:
        """Note what is alive between steps."""
        if self._mode is not None:
            self._totals.append(sum(self._mode.memory.live.values()))

    def stop(self) -> None:
        """Leave the dispatch mode."""
        if self._mode is None or not self._agent.watched.look_closer:
            return
        self._agent.watched.look_closer = False
        self._agent.on_gradients = None
        self._mode.leave()
        _force_eager(on=False)
        for handle in self._handles:
            handle.remove()
        self._mode.memory.close()

    def results(self, steps: int) -> dict[str, Any]:
        """Fields of `Report`."""
        mode = self._mode
        if mode is None:
            return {}
        rows = sorted(mode.math_attention.values(), key=lambda row: -row[1])
        self._agent.watched.looked |= {
            "channels_first_convolution": Habit(calls=mode.channels_first / steps),
            "pageable_copy": Habit(calls=mode.pageable_copies / steps),
            "math_attention": Habit(
                calls=sum(row[1] for row in rows) / steps, site=rows[0][0] if rows else None
            ),
        }
        norms = attempt(self._whole_norms, otherwise=[])
        growth = (
            (self._totals[-1] - self._totals[0]) / (len(self._totals) - 1)
            if len(self._totals) > 1
            else 0.0
        )
        return {
            "operators": mode.operators(),
            "sync_points": mode.sync_points(steps),
            "memory": mode.memory.timeline(),
            "memory_peak_bytes": mode.memory.peak_total,
            "memory_growth_bytes_per_step": growth,
            "gradient_norms": [norm for norm in norms if math.isfinite(norm)],
            "non_finite": sum(not math.isfinite(norm) for norm in norms),
        }

    def _whole_norms(self) -> list[float]:
        return [math.hypot(*(float(norm) for norm in norms)) for norms in self._norms]

    def _gradients(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._mode is not None, "set together with the hook"
        with self._mode.paused(), torch.no_grad():
            grads = [
                p.grad.detach()
                for group in optimizer.param_groups
                for p in group["params"]
                if p.grad is not None and not p.grad.is_sparse and not p.grad.is_meta
            ]
            norms: dict[torch.device, list[torch.Tensor]] = {}
            for grad in grads:
                real = torch.view_as_real(grad) if grad.is_complex() else grad
                norms.setdefault(grad.device, []).append(real.float().norm())
            if norms:
                self._norms.append([torch.stack(parts).norm() for parts in norms.values()])


class ProfilerInstrument(Instrument):
    """Time per operator, exposed communication, allocator peak."""

    name = "profiler"

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._window: ProfilerWindow | None = None
        self._boundaries: list[int] = []
        self._stock = 0
        self._stopped = False

    def start(self) -> None:
        """Begin, unless the script has a profiler of its own running."""
        self._stock = LiveMemory(self._agent).peak_total
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if torch.autograd._profiler_enabled():  # type: ignore[no-untyped-call]
            self._agent.watched.switches.profiler_on = True
            return
        self._window = ProfilerWindow()
        self._window.start()

    def boundary(self) -> None:
        """Remember when the step ended, on the profiler's clock."""
        self._boundaries.append(time_ns())

    def stop(self) -> None:
        """End the window."""
        if self._window is not None and not self._stopped:
            self._window.stop()
            self._stopped = True

    def results(self, steps: int) -> dict[str, Any]:
        """Fields of `Report`."""
        if self._window is None:
            return {"memory_peak_bytes": self._stock}
        communication = self._window.communication(steps)
        self._agent.watched.looked["collective"] = Habit(
            calls=communication.get("calls", 0.0), bytes=communication.get("bytes", 0.0)
        )
        growth = self._window.peak_growth_bytes(self._boundaries)
        peak = self._stock + growth
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() or peak
        return {
            "profiler": self._window.operators(self._agent.watched.operator_names),
            "communication": communication,
            "memory_peak_bytes": peak,
        }


class SamplerInstrument(Instrument):
    """Which lines the host is on; what every step leaves in memory."""

    name = "sampler"

    def __init__(self, agent: Agent) -> None:
        self._sampler = Sampler(agent)
        self._held: list[int] = []
        self._collected = 0
        self._stopped = False

    def start(self) -> None:
        """Begin sampling."""
        self._sampler.start()

    def boundary(self) -> None:
        """Note what memory the step left behind."""
        held = _held_bytes()
        if held is not None:
            self._held.append(held)

    def stop(self) -> None:
        """End sampling; of what was left behind, see how much only waits for the collector."""
        if self._stopped:
            return
        self._sampler.stop()
        self._stopped = True
        if self._held and self._held[-1] > self._held[0] and gc.isenabled():
            inspect.unwrap(gc.collect)()  # uncounted: it is not the script's own
            self._collected = max(0, self._held[-1] - (_held_bytes() or 0))

    def results(self, steps: int) -> dict[str, Any]:
        """Fields of `Report`."""
        return {
            "hot_lines": self._sampler.hot_lines(),
            "held_bytes": self._held,
            "collected_bytes": self._collected,
        }


def _held_bytes() -> int | None:
    held = heap_bytes()
    if held is None:
        return None
    return held + (torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)


class NotLooking(Exception):
    """An instrument that cannot be used on this script; why has been said."""


def _started(name: str, agent: Agent) -> Instrument:
    """The instrument of that name, at work; none where it cannot be."""
    kinds: dict[str, Any] = {
        "operators": OperatorsInstrument,
        "profiler": ProfilerInstrument,
        "sampler": SamplerInstrument,
    }
    if name not in kinds:
        return Instrument()
    made = attempt(kinds[name], agent, otherwise=Instrument())
    try:
        made.start()
    except NotLooking:
        return Instrument()
    except Exception as error:
        note(error)
        attempt(made.stop, otherwise=None)
        return Instrument()
    return made


def _force_eager(*, on: bool) -> None:
    """A dispatch mode and compiled code exclude each other: run compiled functions eagerly."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager" if on else "default")


def _resident_bytes() -> int:
    """Resident memory of this process, from /proc; 0 where there is none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
