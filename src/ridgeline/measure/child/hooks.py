"""Where torch is intercepted: the only module that patches it, and each patch says why.

Rules that keep a script's behaviour its own:

- Nothing stays on the user's objects between calls: the module hook is put on at the start of
  an outermost call and taken off at its end, so that a pickled, copied or scripted model is
  clean.
- While an outermost module runs, no global hook is set: inner modules pay nothing and
  `torch.compile` sees nothing.
- Only the thread that steps is observed; a forked child is not.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader as torch_loader

from ridgeline.measure.child.fetch_times import time_fetches

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
        """Patch torch. Called once per process."""
        self._arm()
        self._hide_from_dynamo()
        self._optimizers()
        self._backward()
        self._loader()
        self._compile()
        self._collectives()
        os.register_at_fork(after_in_child=self._disarm_in_fork)

    # -- modules ---------------------------------------------------------------------------

    def _arm(self) -> None:
        torch_module._global_forward_pre_hooks[_HOOK] = self._before_module

    def _disarm(self) -> None:
        torch_module._global_forward_pre_hooks.pop(_HOOK, None)

    def _disarm_in_fork(self) -> None:
        self._disarm()
        self.agent.abandon()

    def _before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or not self.agent.is_mine():
            return
        if not self._begin(module):
            return
        # Put straight into the dictionaries: registering through the public method would
        # allocate handles on every call. `_end_module` takes them out again.
        module._forward_hooks[_HOOK] = self._end_module
        module._forward_hooks_with_kwargs[_HOOK] = True
        module._forward_hooks_always_called[_HOOK] = True

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

        torch_module._has_any_global_hook = has_any_global_hook

    def _begin(self, module: nn.Module) -> bool:
        if not self.agent.before_forward(module):
            return False
        self._disarm()
        self._inside = module
        return True

    def _end_module(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        module._forward_hooks.pop(_HOOK, None)
        module._forward_hooks_with_kwargs.pop(_HOOK, None)
        module._forward_hooks_always_called.pop(_HOOK, None)
        return self._finish(module, args, kwargs, result)

    def _finish(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        self._inside = None
        self._arm()
        return self.agent.after_forward(module, args, kwargs, result)

    def _compile(self) -> None:
        """`module.compile()` replaces the call itself: time the compiled call instead."""
        original = nn.Module.compile
        hooks = self

        @functools.wraps(original)
        def compile_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            hooks.time_compiled_call(module)

        nn.Module.compile = compile_module  # type: ignore[method-assign]

    def time_compiled_call(self, module: nn.Module) -> None:
        """Wrap `module._compiled_call_impl` so that an outermost call of it is seen."""
        compiled = module._compiled_call_impl
        if compiled is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                torch.compiler.is_compiling()
                or self._inside is not None
                or not self.agent.is_mine()
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

    # -- optimizers ------------------------------------------------------------------------

    def _optimizers(self) -> None:
        agent = self.agent
        register_optimizer_step_pre_hook(agent.before_step)
        register_optimizer_step_post_hook(agent.after_step)

        original_init = torch.optim.Optimizer.__init__

        @functools.wraps(original_init)
        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            agent.optimizer_made(optimizer)
            original_init(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]

    # -- autograd --------------------------------------------------------------------------

    def _backward(self) -> None:
        """Tensor.backward, scalers and frameworks all call `torch.autograd.backward`."""
        agent = self.agent
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not agent.before_backward(tensors, args, kwargs):
                original(tensors, *args, **kwargs)
                return
            try:
                with agent.backward_context():
                    original(tensors, *args, **kwargs)
            finally:
                agent.after_backward()

        torch.autograd.backward = backward

        original_grad = torch.autograd.grad

        @functools.wraps(original_grad)
        def grad(*args: Any, **kwargs: Any) -> Any:
            with agent.phase("backward"):
                return original_grad(*args, **kwargs)

        torch.autograd.grad = grad

    # -- input -----------------------------------------------------------------------------

    def _loader(self) -> None:
        agent = self.agent
        loader_class = torch_loader.DataLoader
        signature = inspect.signature(loader_class.__init__)
        original_init = loader_class.__init__

        @functools.wraps(original_init)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            if agent.points.on_loader:
                bound = signature.bind(loader, *args, **kwargs)
                kwargs = {k: v for k, v in bound.arguments.items() if k != "self"}
                args = ()
                for callback in agent.points.on_loader:
                    callback(kwargs)
            original_init(loader, *args, **kwargs)
            agent.loader_made(loader)

        loader_class.__init__ = init

        original_iter = loader_class.__iter__

        @functools.wraps(original_iter)
        def iterate(loader: Any) -> Any:
            started = perf_counter()
            with agent.phase("data"):
                iterator = original_iter(loader)
            agent.loader_started(loader, iterator, perf_counter() - started)
            for callback in agent.points.wrap_loader:
                iterator = callback(loader, iterator)
            return iterator

        loader_class.__iter__ = iterate

        original_next = torch_loader._BaseDataLoaderIter.__next__

        @functools.wraps(original_next)
        def fetch(iterator: Any) -> Any:
            with agent.fetching(iterator):
                batch = original_next(iterator)
            for callback in agent.points.on_batch:
                batch = callback(batch)
            agent.fetched(iterator, batch)
            return batch

        torch_loader._BaseDataLoaderIter.__next__ = fetch
        time_fetches(agent.watched.fetch_times)

    # -- communication ---------------------------------------------------------------------

    def _collectives(self) -> None:
        """Time the blocking collectives that the script calls itself.

        DDP's own run inside backward and are taken from the profiled window.
        """
        if not torch.distributed.is_available():
            return
        from torch.distributed import distributed_c10d as c10d

        names = (
            "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor",
            "broadcast", "reduce", "all_to_all_single", "barrier", "send", "recv",
            "all_gather_object", "broadcast_object_list",
        )  # fmt: skip
        for name in names:
            wrapped = self._timed(getattr(c10d, name), "communication")
            setattr(c10d, name, wrapped)
            setattr(torch.distributed, name, wrapped)

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
