"""Where a step is intercepted: models, optimizers, backwards and collectives.

`loader_hooks.py` does the same for loaders.

What is replaced for it stands with its reason in `ridgeline/patches.toml`, as do the private names.

Rules that keep a script's behaviour its own:

- Nothing stays on the user's objects between calls: the module hook is put on at the start of
  an outermost call and taken off at its end, so that a pickled, copied or scripted model is
  clean.
- While an outermost module runs, no global hook is set: inner modules pay nothing and
  `torch.compile` sees nothing.
- Only the thread that steps is observed, of a server the one that answers; a forked child is not.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.child.loader_hooks import LoaderHooks
from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import COLLECTIVES, LATER_COLLECTIVES, patch

if TYPE_CHECKING:
    from ridgeline.measure.child.agent import Agent

_HOOK = -0x52494447
"""Our key in torch's hook dictionaries; handles count up from 0, so it never collides."""


class Hooks:
    """Installs the interception for one agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._inside: nn.Module | None = None

    def install(self) -> None:
        """Patch torch, once per process."""
        for installer in (
            self._arm,
            self._hide_from_dynamo,
            self._optimizers,
            self._backward,
            LoaderHooks(self.agent).install,
            self._compile,
            self._collectives,
            self._tracing,
        ):
            attempt(installer, otherwise=None)
        os.register_at_fork(after_in_child=self._in_fork)

    # -- modules ---------------------------------------------------------------------------

    def _arm(self) -> None:
        torch_module._global_forward_pre_hooks[_HOOK] = self._before_module

    def _disarm(self) -> None:
        torch_module._global_forward_pre_hooks.pop(_HOOK, None)

    @guarded()
    def _in_fork(self) -> None:
        self.agent.forked()
        if self.agent.active:
            self._inside = None
            self._arm()
        else:
            self._disarm()

    def _before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or not self.agent.calls_here(module):
            return
        if torch.jit.is_tracing():  # what is looked at would become part of the program
            return
        if self._begin(module) and not attempt(self._await_end, module, otherwise=False):
            self._finish(module, (), {}, None)

    def _await_end(self, module: nn.Module) -> bool:
        # Put straight into the dictionaries: registering through the public method would
        # allocate handles on every call. `_end_module` takes them out again.
        module._forward_hooks[_HOOK] = self._end_module
        module._forward_hooks_with_kwargs[_HOOK] = True
        module._forward_hooks_always_called[_HOOK] = True
        return True

    def _hide_from_dynamo(self) -> None:
        """Keep torch.compile from warning of our global hook.

        It warns when a hook is set that it would see; it never sees ours, so the warning would
        only change what the script prints.
        """
        kinds = (
            torch_module._global_backward_pre_hooks,
            torch_module._global_backward_hooks,
            torch_module._global_forward_hooks,
        )

        def has_any_global_hook() -> bool:
            pre = torch_module._global_forward_pre_hooks
            return any(kinds) or len(pre) > (_HOOK in pre)

        patch("torch.nn.modules.module:_has_any_global_hook", lambda _: has_any_global_hook)

    def _begin(self, module: nn.Module) -> bool:
        if not self.agent.before_forward(module):
            return False
        self._disarm()
        self._inside = module
        return True

    def _end_module(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        attempt(self._clear, module, otherwise=None)
        return self._finish(module, args, kwargs, result)

    def _clear(self, module: nn.Module) -> None:
        module._forward_hooks.pop(_HOOK, None)
        module._forward_hooks_with_kwargs.pop(_HOOK, None)
        module._forward_hooks_always_called.pop(_HOOK, None)

    def _finish(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        self._inside = None
        self._arm()
        result = self.agent.after_forward(module, args, kwargs, result)
        if self.agent.repeats is not None:
            self.agent.repeats.follow(self.agent, module, args, kwargs, result)
        return result

    def _compile(self) -> None:
        """`module.compile()` replaces the call itself: time the compiled call instead."""
        hooks = self

        def timing(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def compile_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
                original(module, *args, **kwargs)
                attempt(hooks.time_compiled_call, module, otherwise=None)

            return compile_module

        patch("torch.nn:Module.compile", timing)

    def time_compiled_call(self, module: nn.Module) -> None:
        """Wrap `module._compiled_call_impl` so that an outermost call of it is seen."""
        compiled = module._compiled_call_impl
        if compiled is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                torch.compiler.is_compiling()
                or self._inside is not None
                or not self.agent.calls_here(module)
                or not self._begin(module)
            ):
                return compiled(*args, **kwargs)
            result = None
            try:
                result = compiled(*args, **kwargs)
            finally:
                result = self._finish(module, args, kwargs, result)
            return result

        module._compiled_call_impl = call  # type: ignore[assignment]

    def _tracing(self) -> None:
        """TorchScript calls a model to trace it, and again to compare: none of that is a step."""

        def unseen(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def trace_module(*args: Any, **kwargs: Any) -> Any:
                armed = _HOOK in torch_module._global_forward_pre_hooks
                self._disarm()
                try:
                    return original(*args, **kwargs)
                finally:
                    if armed:
                        self._arm()

            return trace_module

        patch("torch.jit._trace:trace_module", unseen)

    # -- optimizers ------------------------------------------------------------------------

    def _optimizers(self) -> None:
        agent = self.agent

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():  # a compiled step is left whole, and unseen
                agent.before_step(optimizer, args, kwargs)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                agent.after_step(optimizer, args, kwargs)

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

        def noticing(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
                agent.optimizer_made(optimizer)
                original(optimizer, *args, **kwargs)

            return init

        patch("torch.optim:Optimizer.__init__", noticing)

    # -- autograd --------------------------------------------------------------------------

    def _backward(self) -> None:
        """Tensor.backward, scalers and frameworks all call `torch.autograd.backward`."""
        patch("torch.autograd:backward", self._around_backward)
        patch("torch.autograd:grad", self._around_gradient)

    def _around_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        agent = self.agent

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_compiling() or not agent.before_backward(tensors, args, kwargs):
                original(tensors, *args, **kwargs)
                return
            try:
                with agent.backward_context():
                    original(tensors, *args, **kwargs)
            finally:
                agent.after_backward()

        return backward

    def _around_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients that are asked for and not accumulated: penalties, and steps of samplers."""
        agent = self.agent

        @functools.wraps(original)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(outputs, inputs, *args, **kwargs)
            with agent.phase("backward"):
                found = original(outputs, inputs, *args, **kwargs)
            agent.after_gradient(outputs, inputs)
            return found

        return grad

    # -- communication ---------------------------------------------------------------------

    def _collectives(self) -> None:
        """Time the collectives that Python calls or waits for, the script's and a library's.

        What starts and waits below Python (DDP) is taken from the profiled window.
        """
        if not torch.distributed.is_available():
            return
        from torch.distributed import distributed_c10d as c10d

        def timed(original: Callable[..., Any]) -> Callable[..., Any]:
            return self._timed(original, "communication")

        def the_timed(original: Callable[..., Any]) -> Any:
            return getattr(c10d, original.__name__)

        later = [name for name in LATER_COLLECTIVES if hasattr(torch.distributed, name)]
        for name in (*COLLECTIVES, *later):
            # One object under both names: Dynamo knows them by identity.
            patch(f"torch.distributed.distributed_c10d:{name}", timed)
            patch(f"torch.distributed:{name}", the_timed)
        patch("torch.distributed.distributed_c10d:Work.wait", timed)
        functional = "torch.distributed._functional_collectives:wait_tensor"
        after_import(functional.partition(":")[0], functools.partial(patch, functional, timed))

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        agent = self.agent

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            with agent.phase(phase):
                return function(*args, **kwargs)

        return timed


def current_thread() -> int:
    """Identity of the running thread."""
    return threading.get_ident()
