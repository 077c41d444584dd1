"""Calls that cost time or memory when they sit inside the loop: counted, timed and located.

`gc.collect`, `torch.cuda.empty_cache`, `torch.save`, in-place `zero_grad`, gradient scaling,
activation checkpointing, tensors turned into text. Each patch calls the original and counts.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.child.watched import ModelWatch
from ridgeline.patches import patch


def watch_habits(agent: Agent) -> None:
    """Install the counters."""
    counters: dict[str, Callable[[Agent, Any], Any]] = {
        "gc:collect": _count_collections,
        "torch.cuda:empty_cache": _count_empty_cache,
        "torch.optim:Optimizer.zero_grad": _notice_zero_grad,
        "torch.amp:GradScaler.scale": _notice_scaler,
        "torch.utils.checkpoint:checkpoint": _time_recompute,
        "torch._tensor_str:_str": _time_printing,
    }
    for name, counter in counters.items():
        attempt(patch, name, functools.partial(counter, agent), otherwise=None)


def _time_printing(agent: Agent, original: Callable[..., str]) -> Callable[..., str]:
    """A tensor that is printed is first waited for, copied to the host and formatted."""

    @functools.wraps(original)
    def text(tensor: torch.Tensor, **options: Any) -> str:
        started = perf_counter()
        result = original(tensor, **options)
        if agent.is_mine():
            agent.watched.printed(attempt(user_site, otherwise=None), perf_counter() - started)
        return result

    return text


def _count_collections(agent: Agent, original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def collect(*args: Any, **kwargs: Any) -> int:
        if not agent.is_mine():
            return original(*args, **kwargs)
        if str(sys._getframe(1).f_globals.get("__name__", "")).startswith("torch."):
            with agent.watched.uncounted_collections():  # torch.compile tidies up after itself
                return original(*args, **kwargs)
        agent.watched.switches.gc_forced += 1
        agent.watched.switches.gc_site = attempt(user_site, otherwise=None)
        return original(*args, **kwargs)

    return collect


def _count_empty_cache(agent: Agent, original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def empty_cache() -> None:
        started = perf_counter()
        original()
        if agent.is_mine():
            switches = agent.watched.switches
            switches.empty_cache += 1
            switches.empty_cache_seconds += perf_counter() - started
            switches.empty_cache_site = attempt(user_site, otherwise=None)

    return empty_cache


def _notice_zero_grad(agent: Agent, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        if (args or kwargs) and not torch.compiler.is_compiling() and agent.is_mine():
            attempt(notice, optimizer, *args, *kwargs.values(), otherwise=None)
        original(optimizer, *args, **kwargs)

    def notice(optimizer: torch.optim.Optimizer, set_to_none: bool) -> None:
        if not set_to_none:
            agent.watched.optimizer(optimizer).zeroed_in_place += 1

    return zero_grad


def _notice_scaler(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if torch.compiler.is_compiling():
            return scaled
        if isinstance(outputs, torch.Tensor) and agent.is_mine():
            attempt(notice, scaler, scaled, otherwise=None)
        return scaled

    def notice(scaler: Any, scaled: torch.Tensor) -> None:
        if scaler.is_enabled():
            agent.scaled(scaled, scaler.get_scale())

    return scale


def _time_recompute(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    """Time the forwards that checkpointing runs a second time, inside backward."""

    @functools.wraps(original)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not agent.is_mine():
            return original(function, *args, **kwargs)
        if agent.watched.switches.checkpoint_site is None:
            agent.watched.switches.checkpoint_site = attempt(user_site, otherwise=None)

        model: ModelWatch | None = None

        def timed(*inner: Any, **options: Any) -> Any:
            nonlocal model
            if not agent.clock.is_inside("backward"):
                result = function(*inner, **options)
                model = agent.latest_model
                return result
            if model is not None:
                model.recomputed = True
            started = perf_counter()
            try:
                return function(*inner, **options)
            finally:
                agent.watched.switches.recompute_seconds += perf_counter() - started

        return original(timed, *args, **kwargs)

    return checkpoint
