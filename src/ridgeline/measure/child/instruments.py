"""What looks closer for a few steps: operators and memory, torch's profiler, the host's lines.

Each instrument starts at a step boundary, is told of every further one, and gives fields of
`Report`. One that cannot be used on this script says why, and the clock alone runs.
"""

from __future__ import annotations

import gc
import inspect
import math
import sys
from time import time_ns
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.guard import attempt, note, tell
from ridgeline.measure.child.live_memory import LiveMemory
from ridgeline.measure.child.operators import OperatorMode, leave_finished
from ridgeline.measure.child.own_tensors import OwnTensors
from ridgeline.measure.child.profiler import ProfilerWindow
from ridgeline.measure.child.sampler import Sampler
from ridgeline.measure.child.unused_graphs import UnusedGraphs
from ridgeline.measure.child.usage import heap_bytes
from ridgeline.measure.wire import Instrument as InstrumentName
from ridgeline.records.script_facts import Habit


class Instrument:
    """The instrument that sees nothing: only the clock runs. The base of those that look closer."""

    name: InstrumentName = "none"

    def start(self) -> None:
        """Called at the boundary before the first step."""

    def boundary(self) -> None:
        """Called at the end of every step."""

    def follow(self) -> None:
        """Called in the thread in which the steps go on from now on."""

    def stop(self) -> None:
        """Called at the last boundary; may be called twice."""

    def results(self, steps: int) -> dict[str, Any]:
        """What it saw, as fields of `Report`."""
        return {}


class OperatorsInstrument(Instrument):
    """Operators, live memory, sync points, gradient norms."""

    name = "operators"

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._mode: OperatorMode | None = None
        self._graphs: UnusedGraphs | None = None
        self._own_tensors: OwnTensors | None = None
        self._norms: list[list[torch.Tensor]] = []
        """By step, one of each device."""
        self._totals: list[int] = []
        self._handles: list[Any] = []

    def start(self) -> None:
        """Enter the dispatch mode."""
        leave_finished()
        modes = _get_current_dispatch_mode_stack()
        if modes:
            tell(
                f"operators were not looked at: the script's steps end inside of a dispatch mode "
                f"of its own ({type(modes[-1]).__name__})"
            )
            raise _NotLooking
        self._agent.watched.look_closer = True
        self._agent.on_gradients = self._gradients
        self._mode = OperatorMode(self._agent)
        for watch in self._agent.watched.models.values():
            module = watch.module()
            if module is not None:
                attempt(self._follow_gradients, module, self._mode, otherwise=None)
        _force_eager(on=True)
        self._own_tensors = OwnTensors(self._mode)
        self._own_tensors.let_through()
        self._mode.__enter__()
        self._agent.points.around_forward.append(self._mode.around_call)
        if self._agent.kind == "training":
            self._graphs = UnusedGraphs(self._agent)
            self._agent.points.around_forward.append(self._graphs.around_call)
            self._agent.on_call = self._graphs.ended

    def _follow_gradients(self, module: torch.nn.Module, mode: OperatorMode) -> None:
        for parameter in parameters(module):
            if parameter.requires_grad and parameter.is_leaf:
                retag = mode.memory.retag_gradient
                self._handles.append(parameter.register_post_accumulate_grad_hook(retag))

    def boundary(self) -> None:
        """Note what is alive between steps."""
        if self._mode is not None:
            self._totals.append(sum(self._mode.memory.live.values()))

    def follow(self) -> None:
        """A dispatch mode is on in one thread only: enter it here."""
        leave_finished()
        if self._mode is not None and not self._mode.finished:
            self._mode.enter_here()

    def stop(self) -> None:
        """Leave the dispatch mode."""
        if self._mode is None or not self._agent.watched.look_closer:
            return
        self._agent.watched.look_closer = False
        self._agent.on_gradients = None
        self._agent.points.around_forward.remove(self._mode.around_call)
        if self._graphs is not None:
            self._agent.points.around_forward.remove(self._graphs.around_call)
            self._agent.on_call = None
            self._graphs.close()
        self._mode.leave()
        if self._own_tensors is not None:
            self._own_tensors.restore()
        _force_eager(on=False)
        for handle in self._handles:
            handle.remove()
        self._mode.memory.close()

    def results(self, steps: int) -> dict[str, Any]:
        """What it saw, as fields of `Report`."""
        mode = self._mode
        if mode is None:
            return {}
        rows = sorted(mode.math_attention.values(), key=lambda row: -row[1])
        sparse = mode.coordinate_products
        forward = sorted(
            (row for (phase, *_), row in sparse.items() if phase != "backward"),
            key=lambda row: -row[2],
        )
        self._agent.watched.looked |= {
            "channels_first_convolution": Habit(calls=mode.channels_first / steps),
            "pageable_copy": Habit(calls=mode.pageable_copies / steps),
            "math_attention": Habit(
                calls=sum(row[1] for row in rows) / steps, site=rows[0][0] if rows else None
            ),
            "towards_loss": Habit(
                calls=mode.towards_loss[0] / steps, seconds=mode.towards_loss[1] / steps
            ),
            "coordinate_product": Habit(
                calls=sum(row[1] for row in sparse.values()) / steps,
                seconds=sum(row[2] for row in sparse.values()) / steps,
                site=forward[0][0] if forward else None,
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
            "unused_graphs": self._graphs.found(steps) if self._graphs is not None else [],
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
        self._stock: LiveMemory | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin, unless the script has a profiler of its own running."""
        self._stock = LiveMemory(self._agent)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if torch.autograd._profiler_enabled():  # type: ignore[no-untyped-call]
            self._agent.watched.switches.profiler_on = True
            return
        self._window = ProfilerWindow(all_threads=self._agent.thread.has_moved)
        self._window.start()

    def boundary(self) -> None:
        """Remember when the step ended, on the profiler's clock."""
        self._boundaries.append(time_ns())

    def stop(self) -> None:
        """End the profiled window."""
        if self._stock is not None:
            self._stock.close()
        if self._window is not None and not self._stopped:
            self._window.stop()
            self._stopped = True

    def results(self, steps: int) -> dict[str, Any]:
        """What it saw, as fields of `Report`."""
        assert self._stock is not None, "it was started"
        if self._window is None:
            return {"memory_peak_bytes": self._stock.peak_total}
        communication = self._window.communication(steps)
        self._agent.watched.looked["collective"] = Habit(
            calls=communication.get("calls", 0.0), bytes=communication.get("bytes", 0.0)
        )
        growth = self._window.peak_growth_bytes(self._boundaries, self._stock.freed)
        peak = self._stock.peak_total + growth
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
        self._watched = agent.watched
        self._losses = agent.losses
        self._held: list[int] = []
        self._inputs: list[int] = []
        self._collected = 0
        self._stopped = False

    def start(self) -> None:
        """Begin to sample lines, and to weigh what the model is given."""
        self._watched.weigh_inputs = True
        self._sampler.start()

    def boundary(self) -> None:
        """Note what memory the step left behind, but for what we keep of it."""
        held = _held_bytes()
        if held is not None:
            self._held.append(held - self._losses.kept_bytes)
            self._inputs.append(self._watched.input_bytes)

    def follow(self) -> None:
        """Sample the thread that goes on."""
        self._sampler.follow()

    def stop(self) -> None:
        """End sampling; of what was left behind, see how much only waits for the collector."""
        if self._stopped:
            return
        self._sampler.stop()
        self._watched.weigh_inputs = False
        self._stopped = True
        if self._held and self._held[-1] > self._held[0] and gc.isenabled():
            inspect.unwrap(gc.collect)()  # uncounted: it is not the script's own
            left = (_held_bytes() or 0) - self._losses.kept_bytes
            self._collected = max(0, self._held[-1] - left)

    def results(self, steps: int) -> dict[str, Any]:
        """What it saw, as fields of `Report`."""
        return {
            "hot_lines": self._sampler.hot_lines(),
            "held_bytes": self._held,
            "input_bytes": self._inputs,
            "collected_bytes": self._collected,
        }


def _held_bytes() -> int | None:
    held = heap_bytes()
    if held is None:
        return None
    return held + (torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)


class _NotLooking(Exception):
    """An instrument that cannot be used on this script; why has been said."""


def start_instrument(name: str, agent: Agent) -> Instrument:
    """Put the instrument of that name to work; none where it cannot be."""
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
    except _NotLooking:
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
