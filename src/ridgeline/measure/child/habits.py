"""Calls that cost time or memory when they sit inside the loop: counted, timed and located.

`gc.collect`, `torch.cuda.empty_cache`, `torch.save`, in-place `zero_grad`, gradient scaling,
activation checkpointing, tensors turned into text; programs of TorchScript. Each patch calls the
original and counts.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from ridgeline.measure.child.adjoint_solves import watch_adjoint_solves
from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.argument_checks import watch_argument_checks
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.sites import is_user_file, user_site
from ridgeline.measure.child.watched import ModelWatch
from ridgeline.patches import patch
from ridgeline.records.script_facts import HabitName

COUNTED: dict[HabitName, str] = {"empty_cache": "torch.cuda:empty_cache"}
"""Habit → the function whose calls are it: counted, timed and located.

A new one is a line here, its name in `HabitName`, its reason in `patches.toml`, and a rule.
"""


def watch_habits(agent: Agent) -> None:
    """Install the counters of habits."""
    for habit, function in COUNTED.items():
        attempt(patch, function, functools.partial(_count_calls, agent, habit), otherwise=None)
    counters: dict[str, Callable[[Agent, Any], Any]] = {
        "gc:collect": _count_collections,
        "torch.optim:Optimizer.zero_grad": _notice_zero_grad,
        "torch.amp:GradScaler.scale": _notice_scaler,
        "torch.utils.checkpoint:checkpoint": _time_recompute,
        "torch._tensor_str:_str": _time_printing,
        "torch.jit:load": _notice_torchscript,
        "torch.jit:trace": _notice_torchscript,
        "torch.jit:script": _notice_scripting,
    }
    for name, counter in counters.items():
        attempt(patch, name, functools.partial(counter, agent), otherwise=None)
    attempt(watch_adjoint_solves, agent, otherwise=None)
    attempt(watch_argument_checks, agent, otherwise=None)


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
        agent.watched.count("gc_collect")
        return original(*args, **kwargs)

    return collect


def _count_calls(agent: Agent, habit: HabitName, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        result = original(*args, **kwargs)
        if agent.is_mine():
            agent.watched.count(habit, perf_counter() - started)
        return result

    return call


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


def _notice_torchscript(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        _note_torchscript(agent)
        return original(*args, **kwargs)

    return make


def _notice_scripting(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of script, which looks up names so many frames above; this is one more."""

    @functools.wraps(original)
    def script(obj: Any, optimize: Any = None, _frames_up: int = 0, *rest: Any, **more: Any) -> Any:
        _note_torchscript(agent)
        return original(obj, optimize, _frames_up + 1, *rest, **more)

    return script


def _note_torchscript(agent: Agent) -> None:
    """Libraries script functions of their own as they are imported: the caller is asked for."""
    caller = sys._getframe(2)
    if agent.is_mine() and is_user_file(caller.f_code.co_filename):
        agent.watched.switches.torchscript_site = attempt(user_site, caller, otherwise=None)


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
        if "recompute" not in agent.watched.habits:
            agent.watched.count("recompute", calls=0)  # here it stands; below it runs again

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
                seconds = perf_counter() - started
                agent.watched.count("recompute", seconds, located=False)

        return original(timed, *args, **kwargs)

    return checkpoint
