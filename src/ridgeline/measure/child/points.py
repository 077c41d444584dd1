"""The hook points that a technique uses to change a running script without editing it.

A technique's `apply(points, options)` adds callbacks here; the agent calls them at the right
moments. Every callback list is empty unless a technique filled it, so an untouched run pays
nothing. A technique says what it changed with `changed`; one that never did had no effect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.guard import attempt, note
from ridgeline.patches import Undo, patch
from ridgeline.records import Site

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(slots=True)
class Points:
    """The callbacks of each moment. Add to the lists; remove what you added in your undo."""

    on_optimizer: list[Callable[[torch.optim.Optimizer], None]] = field(default_factory=list)
    """Before an optimizer's first step."""
    on_optimizer_made: list[Callable[[], None]] = field(default_factory=list)
    """When an optimizer is being constructed."""
    on_model: list[Callable[[nn.Module], None]] = field(default_factory=list)
    """Before the first outermost call of a module that has parameters (in training: the first
    call with gradients enabled)."""
    on_loader: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    """When a DataLoader is constructed: edit its keyword arguments in place (`dataset` is
    one of them)."""
    before_loader: list[Callable[[Any], None]] = field(default_factory=list)
    """Sees a DataLoader that is about to be iterated, before its workers start."""
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
    places: dict[str, list[Site]] = field(default_factory=dict)
    """Technique → the lines of the script that a person would change for it."""
    refused: dict[str, str] = field(default_factory=dict)
    """Technique → why it changed nothing, in words: the module cannot be converted."""
    preparing: dict[str, str] = field(default_factory=dict)
    """Technique that takes effect after some more steps → how far it is, in words."""
    failed: dict[str, str] = field(default_factory=dict)
    """Technique → the line that says where in its code it failed."""

    def changed(self, technique: str, what: str) -> None:
        """Say that `technique` took effect, e.g. `2 optimizers fused`."""
        if technique not in self.failed:
            self.effects[technique] = what

    def changed_at(self, technique: str, site: Site | None) -> None:
        """Say at which line `technique` took effect: its patch has to change that one."""
        known = self.places.setdefault(technique, [])
        if site is not None and site not in known:
            known.append(site)

    def refuse(self, technique: str, why: str) -> None:
        """Say that `technique` changes nothing in this script, and why."""
        self.refused[technique] = why
        self.preparing.pop(technique, None)
        self.effects.pop(technique, None)

    def call(self, callback: Callable[..., Any], *args: Any, otherwise: Any = None) -> Any:
        """What a technique's callback returns; `otherwise` when its technique fails, or has."""
        if self.has_failed(callback):
            return otherwise
        try:
            return callback(*args)
        except Exception as error:
            self.fails(_technique(callback), error)
            return otherwise

    def has_failed(self, callback: Callable[..., Any]) -> bool:
        """Has the technique that this callback belongs to failed?"""
        return bool(self.failed) and _technique(callback) in self.failed

    def enter(self, stack: ExitStack, around: Callable[..., Any], *args: Any) -> None:
        """Hold a technique's context until `stack` is closed; one that fails is not held."""
        context = self.call(around, *args)
        if context is None:
            return
        try:
            context.__enter__()
        except Exception as error:
            self.fails(_technique(around), error)
        else:
            stack.push(functools.partial(self._leave, around, context))

    def _leave(
        self, around: Callable[..., Any], context: AbstractContextManager[Any], *error: Any
    ) -> None:
        """What the script raises goes on through; what the context itself raises does not."""
        try:
            context.__exit__(*error)
        except Exception as failure:
            if failure is not error[1]:
                self.fails(_technique(around), failure)

    def fails(self, technique: str, error: Exception) -> None:
        """A technique whose code fails has changed nothing, and is not asked again."""
        self.failed[technique] = note(error)
        self.preparing.pop(technique, None)
        self.effects.pop(technique, None)


def _technique(callback: Callable[..., Any]) -> str:
    """The technique's name, which is that of the module that its callback stands in."""
    return str(getattr(callback, "__module__", "")).rpartition(".")[2].replace("_", "-")


def edit_arguments(constructor: str, edit: Callable[[dict[str, Any]], None]) -> Undo:
    """From now on `edit` sees, and may change, the arguments of each construction, by name.

    Args:
        constructor: The `__init__` of a class, as `patches.toml` names it, without `*args`.
        edit: Called before the object is made.
    """

    def editing(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = attempt(edited, made, args, kwargs, otherwise=(args, kwargs))
            original(made, *args, **kwargs)

        def edited(made: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            _, *bound = signature.bind(made, *args, **kwargs).arguments.items()
            arguments = dict(bound)
            edit(arguments)
            return (), arguments

        return init

    return patch(constructor, editing)
