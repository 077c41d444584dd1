"""The hook points that a technique uses to change a running script without editing it.

A technique's `apply(points, options)` adds callbacks here; the agent calls them at the right
moments. Every callback list is empty unless a technique filled it, so an untouched run pays
nothing. A technique says what it changed with `changed`; one that never did had no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(slots=True)
class Points:
    """Callbacks by moment. Add to the lists; remove what you added in your undo."""

    on_optimizer: list[Callable[[torch.optim.Optimizer], None]] = field(default_factory=list)
    """Before an optimizer's first step."""
    on_model: list[Callable[[nn.Module], None]] = field(default_factory=list)
    """Before the first outermost call of a module that has parameters (in training: the first
    call with gradients enabled)."""
    on_loader: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    """When a DataLoader is constructed: edit its keyword arguments in place (`dataset` is
    one of them)."""
    around_forward: list[Callable[[nn.Module], AbstractContextManager[Any]]] = field(
        default_factory=list,
    )
    """A context to hold during each outermost forward."""
    after_forward: list[Callable[[nn.Module, Any], Any]] = field(default_factory=list)
    """Sees an outermost forward's output and returns the one the script shall get."""
    on_batch: list[Callable[[Any], Any]] = field(default_factory=list)
    """Sees each batch that a DataLoader yields and returns the one the script shall get."""
    around_backward: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)
    """A context to hold during each outermost backward."""
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """After the measured step's last optimizer has stepped."""
    wrap_loader: list[Callable[[Any, Any], Any]] = field(default_factory=list)
    """Sees (loader, iterator) when a DataLoader is iterated and returns the iterator to use."""
    time_compiled_call: Callable[[nn.Module], None] | None = None
    """Set by the agent: after `module._compiled_call_impl` was set by hand, call this."""
    effects: dict[str, str] = field(default_factory=dict)
    """Technique → what it changed, in words."""

    def changed(self, technique: str, what: str) -> None:
        """Say that `technique` took effect, e.g. `2 optimizers fused`."""
        self.effects[technique] = what
