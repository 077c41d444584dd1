"""The state machine inside the measured process: what is a step, and where does its time go.

A step ends when the anchor optimizer has stepped; with alternating optimizers (a GAN) the
anchor is the one that steps least often, so a step is a whole cycle. A script that constructs
no optimizer steps at the end of each backward; one that never runs backward steps at the end
of each outermost call, and is called inference.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ridgeline.measure.child.clock import PhaseClock
from ridgeline.measure.child.inputs import (
    batch_size,
    float_outputs,
    padding_share,
    projection,
    tensor_bytes,
    tensors_in,
)
from ridgeline.measure.child.points import Points
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.child.watched import ModelWatch, OptimizerWatch, Watched

INFERENCE_CALLS = 8
"""Outermost calls without optimizer or backward after which a script counts as inference."""
OUTPUTS_KEPT = 24


class Agent:
    """Receives what the hooks see; calls `on_boundary` at the end of every step."""

    def __init__(
        self, points: Points, *, assume_inference: bool = False, recording: bool = True
    ) -> None:
        self.points = points
        self.recording = recording
        """False: the stack is applied, nothing is measured or remembered."""
        self.clock = PhaseClock(recording=recording)
        self.watched = Watched()
        self.kind: str | None = None
        """`training` or `inference`, once known."""
        self.losses: list[torch.Tensor] = []
        self.step_losses: list[torch.Tensor] = []
        self.samples = 0
        self.tokens = 0
        self.step_inputs: list[tuple[int, int]] = []
        self.active = True
        self.on_boundary: Any = None
        self.on_gradients: Any = None
        """Called before the anchor's step while gradients are whole (instruments use it)."""
        self._thread: int | None = None
        self._anchor: torch.optim.Optimizer | None = None
        self._optimizer_depth = 0
        self._forward_context: ExitStack | None = None
        self._forward_depth = 0
        self.latest_model: ModelWatch | None = None
        """The outermost module that runs, or ran last."""
        self.forwards_seen = 0
        self._assume_inference = assume_inference
        self._scales: dict[int, float] = {}

    # -- who is watched --------------------------------------------------------------------

    def is_mine(self) -> bool:
        """Is this the process and the thread that steps?"""
        if not self.active:
            return False
        if self._thread is None:
            return True
        return threading.get_ident() == self._thread

    def abandon(self) -> None:
        """Stop observing (a forked child: a loader's worker)."""
        self.active = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the block's exclusive time to `name`."""
        if not self.is_mine():
            yield
            return
        self.clock.enter(name)
        try:
            yield
        finally:
            self.clock.leave()

    # -- forward ---------------------------------------------------------------------------

    def before_forward(self, module: nn.Module) -> bool:
        """An outermost module is about to run. False: leave it alone."""
        if self.clock.is_inside("backward"):  # checkpointing runs forwards again
            return False
        watch = self.watched.model(module)
        if watch is None:  # a loss or a metric: no parameters, not worth a phase of its own
            return False
        self._own_thread()
        training = torch.is_grad_enabled() and module.training
        if not watch.prepared and (training or self._is_inference_call()):
            watch.prepared = True
            for prepare in self.points.on_model:
                prepare(module)
        watch.calls += 1
        self.latest_model = watch
        if watch.site is None or (training and not watch.site_in_training):
            watch.site = user_site()
            watch.site_in_training = training
        evaluating = self._trains and not torch.is_grad_enabled()
        if evaluating:
            self.watched.switches.evaluations += 1
            self.watched.switches.evaluation_site = user_site()
        else:
            self.watched.switches.gradients_enabled = torch.is_grad_enabled()
            if self.watched.switches.autocast_dtype is None:
                self.watched.switches.autocast_dtype = _autocast_dtype()
        self._forward_depth = self.clock.depth
        self.clock.enter("evaluation" if evaluating else "forward")
        if self.points.around_forward:
            self._forward_context = ExitStack()
            for around in self.points.around_forward:
                self._forward_context.enter_context(around(module))
        return True

    def after_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """An outermost module has run, or raised. Returns the output for the script."""
        if self._forward_context is not None:
            self._forward_context.close()
            self._forward_context = None
        for after in self.points.after_forward:
            result = after(module, result)
        evaluating = self.clock.phase == "evaluation"
        self.clock.leave_to(self._forward_depth)
        if evaluating:
            self.forwards_seen += 1
        else:
            self._count_inputs(module, args, kwargs)
            if self.latest_model is not None and self.latest_model.float_outputs is None:
                self.latest_model.float_outputs = float_outputs(result)
            self._remember_output(result)
            self._maybe_inference_boundary(module)
        return result

    def _count_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self.watched.is_main_model(module):
            return
        self.watched.switches.forwards += 1
        samples, tokens, integers = batch_size(args, kwargs)
        self.samples += samples
        self.tokens += tokens
        if integers is not None and self.watched.look_closer:
            with _disable_current_modes():  # our own operators are not the script's
                self.watched.padding.append(padding_share(integers))

    def _remember_output(self, result: Any) -> None:
        """Keep a projection of the first outputs of what may be an inference script.

        It stands in for the loss, so that techniques can be verified on it.
        """
        if self._trains or self.kind == "training" or len(self.losses) >= OUTPUTS_KEPT:
            return
        if self.recording:
            output = next(tensors_in(result), None)
            if output is not None and output.is_floating_point():
                self.losses.append(projection(output.detach()))

    @property
    def _trains(self) -> bool:
        return self.watched.optimizers_made and not self._assume_inference

    def _is_inference_call(self) -> bool:
        return not self._trains and self.forwards_seen >= INFERENCE_CALLS // 2

    def _maybe_inference_boundary(self, module: nn.Module) -> None:
        if self.kind == "training" or not self.watched.is_main_model(module):
            return
        self.forwards_seen += 1
        if self._trains:
            return
        if self.kind is None and self.forwards_seen >= INFERENCE_CALLS:
            self.kind = "inference"
            self.step_inputs.clear()
            self.clock.restart()
        elif self.kind == "inference":
            self._boundary()

    # -- backward --------------------------------------------------------------------------

    def before_backward(self, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """An outermost backward is about to run. False: it is nested, or not ours."""
        if not self.is_mine() or self.clock.is_inside("backward"):
            return False
        self._own_thread()
        if self.kind != "training":
            self._becomes_training()
        switches = self.watched.switches
        switches.backwards += 1
        if kwargs.get("retain_graph") or (len(args) > 1 and args[1]):
            switches.retain_graph += 1
            switches.retain_graph_site = user_site()
        if switches.backward_site is None:
            switches.backward_site = user_site()
        self._remember_loss(tensors)
        self.clock.enter("backward")
        return True

    def backward_context(self) -> AbstractContextManager[Any]:
        """What techniques hold during a backward."""
        if not self.points.around_backward:
            return contextlib.nullcontext()
        stack = ExitStack()
        for around in self.points.around_backward:
            stack.enter_context(around())
        return stack

    def after_backward(self) -> None:
        """An outermost backward has run."""
        self.clock.leave()
        if not self.watched.optimizers_made:
            self._boundary()

    def _becomes_training(self) -> None:
        self.kind = "training"
        self.losses.clear()
        self.step_losses.clear()
        self.samples = self.tokens = 0
        self.step_inputs.clear()
        self.clock.restart()

    def scaled(self, scaled: torch.Tensor, factor: float) -> None:
        """A gradient scaler multiplied the loss: remember by how much."""
        self.watched.switches.gradient_scaler = True
        self._scales = {id(scaled): factor}

    def _remember_loss(self, tensors: Any) -> None:
        if not self.recording:
            return
        roots = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
        for root in roots:
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                value = root.detach().float().reshape(())
                factor = self._scales.pop(id(root), None)
                self.step_losses.append(value.clone() if factor is None else value / factor)

    # -- optimizer -------------------------------------------------------------------------

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is being constructed."""
        if self.active:
            self.watched.optimizer_made(optimizer, user_site())

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step (frameworks nest them: the outermost counts)."""
        if not self.is_mine():
            return
        self._own_thread()
        self._optimizer_depth += 1
        watch = self.watched.optimizer(optimizer)
        if not watch.prepared:
            watch.prepared = True
            for prepare in self.points.on_optimizer:
                prepare(optimizer)
        if watch.step_site is None:
            watch.step_site = user_site()
        if self._optimizer_depth == 1:
            if self.on_gradients is not None:
                self.on_gradients(optimizer)
            self.clock.enter("optimizer")

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        if not self.is_mine() or self._optimizer_depth == 0:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth:
            return
        self.clock.leave()
        if self.kind != "training":
            self._becomes_training()
        watch = self.watched.optimizer(optimizer)
        watch.steps += 1
        other = optimizer is not self._anchor
        if self._anchor is None or (other and self._is_better_anchor(watch)):
            self._anchor = optimizer
        if optimizer is self._anchor:
            self._boundary()

    def _is_better_anchor(self, watch: OptimizerWatch) -> bool:
        """Should another optimizer that steps be the anchor?

        When it steps clearly less often, or when the anchor has stopped stepping.
        """
        assert self._anchor is not None
        anchor = self.watched.optimizer(self._anchor)
        watch.since_anchor += 1
        if watch.since_anchor > 64:
            return True
        rarer = watch.steps >= 2 and anchor.steps >= 1.5 * watch.steps
        return rarer and not self.watched.anchored

    # -- input -----------------------------------------------------------------------------

    def loader_made(self, loader: Any) -> None:
        """A DataLoader was constructed."""
        if self.active:
            self.watched.loader_made(loader, user_site())

    def loader_started(self, loader: Any, iterator: Any, seconds: float) -> None:
        """A DataLoader was asked for a new iterator."""
        if self.is_mine():
            self.watched.loader_started(loader, iterator, seconds)

    @contextlib.contextmanager
    def fetching(self, iterator: Any) -> Iterator[None]:
        """The loop waits for a batch."""
        if not self.is_mine():
            yield
            return
        started = perf_counter()
        with self.phase("data"):
            yield
        watch = self.watched.loader_of(iterator)
        if watch is not None:
            watch.waited(perf_counter() - started)

    def fetched(self, iterator: Any, batch: Any) -> None:
        """The loop got a batch."""
        watch = self.watched.loader_of(iterator)
        if watch is not None and self.is_mine() and watch.batch_bytes == 0:
            watch.batch_bytes = tensor_bytes(batch)

    # -- steps -----------------------------------------------------------------------------

    def _own_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()

    def _boundary(self) -> None:
        for watch in self.watched.optimizers.values():
            watch.since_anchor = 0
        if self.recording:
            self.clock.boundary()
            self.step_inputs.append((self.samples, self.tokens))
            if self.step_losses:
                self.losses.append(torch.stack(self.step_losses).mean())
        self.samples = self.tokens = 0
        self.step_losses.clear()
        for after in self.points.after_step:
            after()
        if self.on_boundary is not None:
            self.on_boundary()


def _autocast_dtype() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
