"""The state machine inside the measured process: what is a step, and where does its time go.

Training steps end as `step_ends.py` says. A script that never runs backward steps at the end of
each outermost call, and is called inference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ridgeline.measure.child.anatomy import is_in_training
from ridgeline.measure.child.call_ends import CallEnds
from ridgeline.measure.child.clock import PhaseClock
from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.child.inputs import (
    FedSamples,
    bytes_within,
    float_outputs,
    padding_share,
)
from ridgeline.measure.child.nested_steps import NestedSteps
from ridgeline.measure.child.points import Points
from ridgeline.measure.child.repeated_calls import RepeatedCalls
from ridgeline.measure.child.seen_losses import SeenLosses
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.child.stated import Stated
from ridgeline.measure.child.step_ends import StepEnds
from ridgeline.measure.child.step_thread import StepThread
from ridgeline.measure.child.updates import UpdateWatch
from ridgeline.measure.child.watched import ModelWatch, Watched


class Agent:
    """Receives what the hooks see; calls `on_boundary` at the end of every step."""

    def __init__(self, points: Points, *, calls: CallEnds, recording: bool = True) -> None:
        self.points = points
        self.recording = recording
        """False: the stack is applied, nothing is measured or remembered."""
        self.clock = PhaseClock(recording=recording)
        self.watched = Watched()
        self.stated = Stated()
        self.kind: str | None = None
        """`training` or `inference`, once known."""
        self.losses = SeenLosses(recording=recording)
        self.updates = UpdateWatch(0)
        self.inputs = FedSamples()
        self.active = True
        self.on_boundary: Any = None
        self.on_fork: Any = None
        """Asked in a forked child whether it may be the process that trains."""
        self.on_gradients: Any = None
        """Called before the anchor's step while gradients are whole (instruments use it)."""
        self.on_call: Any = None
        """Called with module, arguments and result as an outermost call ends (instruments)."""
        self.on_moved: Any = None
        """Called in the thread in which the steps go on, when it is another than before."""
        self.repeats: RepeatedCalls | None = None
        """Makes each call that is a step again."""
        self.thread = StepThread()
        self._steps = NestedSteps(self.clock)
        self._forward_context: ExitStack | None = None
        self._forward_depth = 0
        self.latest_model: ModelWatch | None = None
        """The outermost module that runs, or ran last."""
        self._calls = calls
        self._ends = StepEnds(self.watched, self.clock)
        self.must_train = False
        """Calls of a model are no steps, however many (a loader's worker may make some)."""
        self._only_calls = False
        """Calls of a model stay what steps are, even when something trains after all."""
        self._has_begun = False
        """A model that trains was called: the very first step is under way."""
        self.keeps_gradients = False
        """The latest call was of a model that trains: a backward is to come."""

    # -- who is watched --------------------------------------------------------------------

    def is_mine(self) -> bool:
        """Is this the process and the thread that steps?"""
        return self.active and self.thread.is_current()

    def calls_here(self, module: nn.Module) -> bool:
        """Is this the process and the thread that steps, seen from where a model is called?

        A server may answer each request in a thread of its own. Where that of the latest call has
        ended, or others are called in its place, the next to call a model goes on with the steps;
        of threads that answer side by side, one is watched.
        """
        if self.thread.is_exactly_current() or not self.active:
            self.thread.called()
            return self.is_mine()
        if self.kind == "training" or self._trains:
            return self.is_mine()
        is_step = not self.clock.depth and self.watched.main.is_it(module)
        if not self.thread.inherit(is_step=is_step):
            return False
        if self.on_moved is not None:
            attempt(self.on_moved, otherwise=None)
        return True

    def trains_here(self) -> bool:
        """Is this the process and the thread that steps, seen from where something trains?

        A thread that trains is of more interest than one that only called a model, or has ended.
        """
        if self.is_mine():
            return True
        if self.active and (self.kind != "training" or self.thread.has_ended()):
            self.thread.take_over()
            return True
        return False

    def _born_again(self) -> None:
        """This is a forked child of a process that has not stepped yet: it may be what trains."""
        self.thread = StepThread()
        self._has_begun = False
        self.must_train = True
        self.kind = None
        self._calls.forget()

    def forked(self) -> None:
        """This process is a forked child, most often a loader's worker."""
        if self.active and self.on_fork is not None and self.on_fork():
            self._born_again()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Stop observing (a forked child: a loader's worker)."""
        self.active = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the block's exclusive time to `name`."""
        if not self.is_mine():
            yield
            return
        attempt(self.clock.enter, name, otherwise=None)
        try:
            yield
        finally:
            attempt(self.clock.leave, otherwise=None)

    # -- forward ---------------------------------------------------------------------------

    @guarded(otherwise=False)
    def before_forward(self, module: nn.Module) -> bool:
        """An outermost module is about to run. False: leave it alone."""
        if self.clock.is_inside("backward"):  # checkpointing runs forwards again
            return False
        watch = self.watched.model(module)
        if watch is None or watch.is_meta:
            # A loss or a metric without parameters is not worth a phase of its own; a model of
            # which only the shapes are there computes nothing.
            return False
        self.thread.claim()
        self._calls.begins()
        self._begin_first_step(module)
        training = self.keeps_gradients = torch.is_grad_enabled() and is_in_training(module)
        if not watch.prepared and (training or self._is_inference_call()):
            watch.prepared = True
            for prepare in self.points.on_model:
                self.points.call(prepare, module)
        watch.calls += 1
        if not self._trains and (self.kind is None or self._calls.few):
            self.watched.main.called(module, watch.num_parameters, few=self._calls.few)
        self.latest_model = watch
        evaluating = self._trains and not torch.is_grad_enabled()
        watch.called_from(user_site, training=training)
        self.watched.forward_begins(module, evaluating=evaluating)
        self._forward_depth = self.clock.depth
        self.clock.enter("evaluation" if evaluating else "forward")
        if self.points.around_forward:
            self._forward_context = ExitStack()
            for around in self.points.around_forward:
                self.points.enter(self._forward_context, around, module)
        return True

    def _begin_first_step(self, module: nn.Module) -> None:
        """Time it from here on: of a script of slow steps it may be all that is seen.

        Of one that only infers it may be this call or the next.
        """
        trains = torch.is_grad_enabled() and is_in_training(module)
        if self.kind is None and not self._has_begun and (trains or not self._trains):
            self._has_begun = trains
            self.inputs.begin_step()
            self.clock.restart()
        elif self.repeats is not None and self.watched.main.is_it(module):
            self.inputs.begin_step()
            self.clock.begin_late()  # what lies between two calls is not repeated

    def after_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """An outermost module has run, or raised. Returns the output for the script."""
        if self._forward_context is not None:
            context, self._forward_context = self._forward_context, None
            attempt(context.close, otherwise=None)
        for after in self.points.after_forward:
            result = self.points.call(after, module, result, otherwise=result)
        self._forward_ended(module, args, kwargs, result)
        return result

    @guarded()
    def _forward_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        evaluating = self.clock.phase == "evaluation"
        self.clock.leave_to(self._forward_depth)
        if evaluating:
            self._calls.ends(builds_a_graph=False)
        else:
            if self.on_call is not None:
                self.on_call(module, args, kwargs, result)
            self._count_inputs(module, args, kwargs)
            if self.latest_model is not None and self.latest_model.float_outputs is None:
                self.latest_model.float_outputs = attempt(float_outputs, result, otherwise=[])
            if not (self._trains or self.kind == "training"):
                with _disable_current_modes():
                    self.losses.remember_output(result)
            self._maybe_inference_boundary(module)

    @guarded()
    def _count_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self.watched.main.is_it(module):
            return
        self.watched.switches.forwards += 1
        if self.watched.weigh_inputs:
            self.watched.input_bytes = bytes_within((args, kwargs))
        integers = self.inputs.count(args, kwargs)
        if integers is not None and self.watched.look_closer:
            with _disable_current_modes():  # our own operators are not the script's
                self.watched.padding.append(padding_share(integers))

    @property
    def calls_before_training(self) -> int:
        """Outermost calls of a model in a script that has trained nothing yet."""
        return self._calls.seen if self.kind is None else 0

    @property
    def forwards_seen(self) -> int:
        """Calls of the main model, and evaluations, until it trained."""
        return self._calls.seen

    def let_calls_be_steps(self) -> None:
        """Wait no longer for a step of a training that has not begun; its calls are the steps."""
        self._calls.assumed = self._only_calls = True

    @property
    def backwards_before_a_step(self) -> int:
        """Backwards (micro-batches, most likely) of a script whose first step has not ended."""
        return self._ends.backwards_before_a_step

    def let_backwards_be_steps(self) -> None:
        """Wait no longer for a step that accumulates for long: each backward ends one."""
        self._ends.let_backwards_end()

    @property
    def backwards_are_steps(self) -> bool:
        """Does each backward end a step that no optimizer ended in time?"""
        return self._ends.backwards_end

    @property
    def _trains(self) -> bool:
        return self.watched.optimizers_made and not self._calls.assumed

    def _is_inference_call(self) -> bool:
        return not self._trains and self._calls.are_near()

    def _maybe_inference_boundary(self, module: nn.Module) -> None:
        if self.kind == "training" or self.must_train or not self.watched.main.is_it(module):
            return
        self._calls.ends(builds_a_graph=self._has_begun)
        if self._trains:
            return
        if self.kind is None and self._calls.show_inference():
            self.kind = "inference"
            if not self._calls.are_few() or self._has_begun:
                self.inputs.steps.clear()
                self.clock.restart()
                return
        if self.kind == "inference":
            self._boundary()

    # -- backward --------------------------------------------------------------------------

    @guarded(otherwise=False)
    def before_backward(self, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """An outermost backward is about to run. False: it is nested, or not ours."""
        if not self.trains_here() or self.clock.is_inside("backward"):
            return False
        roots = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        if roots and all(isinstance(root, torch.Tensor) and root.is_meta for root in roots):
            return False  # shapes only: somebody counts FLOPs
        self.thread.claim()
        if self.kind != "training" and not self._only_calls:
            self._becomes_training()
        switches = self.watched.switches
        switches.backwards += 1
        if kwargs.get("retain_graph") or (len(args) > 1 and args[1]):
            self.watched.count("retain_graph")
        if switches.backward_site is None:
            switches.backward_site = user_site()
        self.losses.remember(roots)
        self.clock.enter("backward")
        return True

    def backward_context(self) -> AbstractContextManager[Any]:
        """What techniques hold during a backward."""
        if not self.points.around_backward:
            return contextlib.nullcontext()
        stack = ExitStack()
        for around in self.points.around_backward:
            self.points.enter(stack, around)
        return stack

    @guarded()
    def after_backward(self) -> None:
        """An outermost backward has run."""
        self.clock.leave()
        if self.kind == "training" and self._ends.by_backward():
            self._boundary()

    @guarded()
    def after_gradient(self, outputs: Any, inputs: Any) -> None:
        """`torch.autograd.grad` has run; where nothing else can, a step ends with it.

        Where a model is called, only gradients of its weights can: those of its inputs are asked
        for by attacks, explanations and guided sampling, which train nothing.
        """
        if not self.is_mine():
            return
        self.watched.count("gradient", located=False)
        if self.clock.depth or self._only_calls:
            return
        asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        tensors = [one for one in asked if isinstance(one, torch.Tensor)]
        if self.forwards_seen and not self.watched.main.has_weights(tensors):
            return
        if not self._ends.by_gradient():
            return
        if self.kind != "training":
            self.thread.claim()
            self._becomes_training()
        self.losses.remember([outputs] if isinstance(outputs, torch.Tensor) else list(outputs))
        self._boundary()

    def _becomes_training(self) -> None:
        self.kind = "training"
        self.losses.clear()
        self.inputs.steps.clear()
        if not self._has_begun:
            self.inputs.begin_step()
            self.clock.restart()

    @guarded()
    def scaled(self, scaled: torch.Tensor, factor: float) -> None:
        """A gradient scaler multiplied the loss."""
        self.watched.switches.gradient_scaler = True
        self.losses.scaled(scaled, factor)

    # -- optimizer -------------------------------------------------------------------------

    @guarded()
    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is being constructed."""
        if self.active:
            self.watched.optimizer_made(optimizer, user_site())
            for made in self.points.on_optimizer_made:
                self.points.call(made)

    @guarded()
    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step (frameworks nest them: the outermost counts)."""
        if not self.trains_here():
            return
        self.thread.claim()
        is_outermost = self._steps.enter(optimizer)
        watch = self.watched.optimizer(optimizer)
        if not watch.prepared:
            watch.prepared = True
            for prepare in self.points.on_optimizer:
                self.points.call(prepare, optimizer)
        if watch.step_site is None:
            watch.step_site = user_site()
        if is_outermost:
            if self.on_gradients is not None:
                attempt(self.on_gradients, optimizer, otherwise=None)
            attempt(self.updates.before_step, optimizer, otherwise=None)
            self.clock.enter("optimizer")

    @guarded()
    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        if not self.is_mine() or not self._steps.leave():
            return
        if self.kind != "training" and not self._only_calls:
            self._becomes_training()
        if self.kind == "training" and self._ends.by_optimizer(optimizer):
            self._boundary()

    # -- steps -----------------------------------------------------------------------------

    @guarded()
    def _boundary(self) -> None:
        for watch in self.watched.optimizers.values():
            watch.since_anchor = 0
        self.clock.boundary()
        if self.recording:
            self.inputs.end_step()
            attempt(self.updates.boundary, otherwise=None)
        self.inputs.begin_step()
        self.losses.end_step()
        for after in self.points.after_step:
            self.points.call(after)
        if self.on_boundary is not None:
            self.on_boundary()
