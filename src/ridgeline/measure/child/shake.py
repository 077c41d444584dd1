"""The script, disturbed by as much as rounding would: what is a difference worth here?

Parameters are moved once, before the first forward of each model; the results of matmuls
and convolutions whenever they are computed, forward and backward; gradients before every step of
an optimizer. The noise has generators of its own, so that the script draws what it would have
drawn, and the same on every rank.

A matmul of rounded numbers is off by a share of the tensor's size, not of each element: so is
the noise, which is relative to the root mean square. (Higham, "Accuracy and Stability of
Numerical Algorithms", 2002, section 3.5: matmuls are bounded norm-wise.)
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.operators import renew
from ridgeline.measure.child.own_tensors import OwnTensors
from ridgeline.measure.child.points import Points
from ridgeline.measure.higher_order import is_higher_order, run_inside
from ridgeline.patches import Undo, patch
from ridgeline.records.matmuls import MATMULS

_SEED = 20260229
_DRAWN = 1 << 20
"""Numbers of noise that are kept for a device and a dtype."""


class Shaker:
    """Disturbs what a process computes by a relative `size`."""

    def __init__(self, size: float) -> None:
        self._size = size
        self._drawn: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._places = random.Random(_SEED)
        self._products = _Products(self)
        self._own_tensors = OwnTensors(self._products)
        self._begun = False
        self._undo: list[Undo] = []
        self._moved: WeakSet[nn.Module] = WeakSet()

    def install(self, points: Points) -> None:
        """Disturb every model that is called from now on, and every step."""
        points.around_forward.append(self._seen)
        hook = register_optimizer_step_pre_hook(
            lambda optimizer, *_: attempt(self.before_step, optimizer, otherwise=None)
        )
        tracing = patch("torch.jit._trace:trace_module", self._still_meanwhile)
        self._undo = [hook.remove, tracing]

    def _still_meanwhile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """TorchScript compares what it has traced with the model, and raises where they differ."""

        @functools.wraps(original)
        def trace_module(*args: Any, **kwargs: Any) -> Any:
            self._products.still = True
            try:
                return original(*args, **kwargs)
            finally:
                self._products.still = False

        return trace_module

    def _seen(self, model: nn.Module) -> AbstractContextManager[None]:
        """Before a forward, training or not: an inference script has no other moment."""
        if model not in self._moved:
            self._moved.add(model)
            attempt(self.begin, model, otherwise=None)
        if self._begun:
            attempt(renew, self._products, otherwise=None)
        return nullcontext()

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        """Move a model's parameters once; from now on its matmuls, too."""
        for parameter in model.parameters():
            if _can_be_moved(parameter):
                parameter.mul_(1 + self._size * self._noise(parameter))
        if not self._begun:
            self._begun = True
            torch.compiler.set_stance("force_eager")  # compiled matmuls could not be seen
            self._own_tensors.let_through()
            self._products.__enter__()

    def end(self) -> None:
        """Leave matmuls and steps alone again."""
        while self._undo:
            self._undo.pop()()
        if self._begun:
            self._begun = False
            self._products.__exit__(None, None, None)
            self._own_tensors.restore()
            torch.compiler.set_stance("default")

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the gradients that an optimizer is about to use."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter.grad)

    def move(self, tensor: torch.Tensor) -> None:
        """Add noise in place, relative to the tensor's root mean square."""
        values = tensor._values() if tensor.is_sparse else tensor
        if not (_can_be_moved(values) and values.numel()):
            return
        wide = torch.float32 if values.element_size() < 4 else None
        norm = torch.linalg.vector_norm(values, dtype=wide)
        root_mean_square = norm / values.numel() ** 0.5
        if values.device.type == "cpu" and values.is_contiguous():
            # One pass over memory and no tensor in between: the script waits for this.
            scale = self._size * float(root_mean_square)
            for piece in values.view(-1).split(_DRAWN // 2):
                piece.add_(self._piece(self._drawn_for(piece), piece.numel()), alpha=scale)
            return
        values.add_(self._noise(values).mul(self._size * root_mean_square.to(values.dtype)))

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        """Uniform with a variance of one: a piece of numbers drawn once, from a place drawn anew.

        To draw as many for every matmul would take longer than the matmul.
        """
        drawn, count = self._drawn_for(like), like.numel()
        if count > _DRAWN:
            drawn = drawn.repeat(math.ceil(count / _DRAWN) + 1)
        return self._piece(drawn, count).view(like.shape)

    def _piece(self, drawn: torch.Tensor, count: int) -> torch.Tensor:
        begin = self._places.randrange(len(drawn) - count + 1)
        return drawn[begin : begin + count]

    def _drawn_for(self, like: torch.Tensor) -> torch.Tensor:
        drawn = self._drawn.get((like.device, like.dtype))
        if drawn is None:
            generator = torch.Generator(like.device).manual_seed(_SEED)
            drawn = torch.empty(_DRAWN, dtype=like.dtype, device=like.device)
            drawn.uniform_(-(3**0.5), 3**0.5, generator=generator)
            self._drawn[like.device, like.dtype] = drawn
        return drawn


class _Products(TorchDispatchMode):
    """Sees every operator below autograd, and moves what matmuls compute."""

    supports_higher_order_operators = True

    def __init__(self, shaker: Shaker) -> None:
        super().__init__()
        self._shaker = shaker
        self.still = False
        """Let matmuls be what they are."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_higher_order(func):
            return run_inside(self, func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        if func._schema.name in MATMULS and not self.still:
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    attempt(self._shaker.move, tensor, otherwise=None)
        return out


def _can_be_moved(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return plain and tensor.is_floating_point() and tensor.device.type != "meta"
