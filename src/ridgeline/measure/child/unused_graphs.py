"""Calls of a model that record a graph for nobody, over a few steps.

Either no backward goes through their outputs (an agent acts, a generator makes samples that are
detached, an evaluation forgot `no_grad`), or all that a backward finds there are gradients of
weights that no optimizer steps (a target network, a teacher). What is told is of whole lines: one
on which any call is of use to somebody stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.sites import user_site
from ridgeline.records import Site, UnusedGraph

if TYPE_CHECKING:
    from ridgeline.measure.child.agent import Agent

_MOST_OUTPUTS = 16
"""Tensors of one output that are followed; a model that returns more is taken to be of use."""


@dataclass(slots=True)
class _Call:
    """One outermost call with gradients on."""

    seconds: float
    for_nobody: bool
    """Does no optimizer step its model, and do its inputs need no gradient?"""
    reached: bool = False
    """A backward went through its output, or may: nothing is known of it."""


class UnusedGraphs:
    """Follows the outputs of outermost calls until the window closes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._calls: dict[Site, list[_Call]] = {}
        self._latest = 0.0
        """CPU seconds of this thread in a call: it waits for its core in none of them."""
        self._handles: list[Any] = []
        self._stepped = {
            id(weight)
            for watch in agent.watched.optimizers.values()
            if (optimizer := watch.optimizer()) is not None
            for group in optimizer.param_groups
            for weight in group["params"]
        }

    def around_call(self, module: nn.Module) -> AbstractContextManager[None]:
        """What to hold during an outermost call, to time it."""
        return self._timed()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = thread_time()
        try:
            yield
        finally:
            self._latest = thread_time() - started

    def ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """An outermost call has returned, or raised."""
        site = user_site()
        if site is None or not torch.is_grad_enabled():
            return
        outputs = [leaf for leaf in tree_leaves(result) if _needs_gradient(leaf)]
        call = _Call(seconds=self._latest, for_nobody=self._is_for_nobody(module, args, kwargs))
        self._calls.setdefault(site, []).append(call)
        if not outputs or len(outputs) > _MOST_OUTPUTS:
            call.reached, call.for_nobody = True, False  # nothing to save, or hidden from us
            return
        for output in outputs:
            self._handles.append(output.register_hook(functools.partial(_reached, call)))

    def _is_for_nobody(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        if not self._stepped or any(map(_needs_gradient, tree_leaves((args, kwargs)))):
            return False
        return not any(id(weight) in self._stepped for weight in parameters(module))

    def close(self) -> None:
        """Follow the outputs no longer."""
        for handle in self._handles:
            handle.remove()

    def found(self, steps: int) -> list[UnusedGraph]:
        """Lines whose every call records a graph for nobody, the longest first.

        Where the script asks for gradients by `torch.autograd.grad`, those of weights that no
        optimizer steps may be what it is after.
        """
        asks = "gradient" in self._agent.watched.habits
        total = sum(map(_typical_seconds, self._calls.values()))
        if total <= 0:
            return []
        lines = []
        for site, calls in self._calls.items():
            if all((call.for_nobody and not asks) or not call.reached for call in calls):
                lines.append(
                    UnusedGraph(
                        site=site,
                        calls=len(calls) / steps,
                        forward_share=_typical_seconds(calls) / total,
                        in_backward=any(call.reached for call in calls),
                    )
                )
        return sorted(lines, key=lambda line: -line.forward_share)


def _typical_seconds(calls: list[_Call]) -> float:
    """What the calls on one line take, were all as short as the shortest; the first is longer."""
    return len(calls) * min(call.seconds for call in calls)


def _needs_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _reached(call: _Call, gradient: torch.Tensor) -> None:
    call.reached = True
