"""What distributions take to check their arguments, in scripts that never asked them to.

`torch.distributions` checks the parameters of every distribution that is made, and every value
whose likelihood is asked for, and wants the answer at once. Checks that a script switches on itself
are its own affair: only those that are on by default are counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.distributions import Distribution

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import attempt
from ridgeline.patches import patch


def watch_argument_checks(agent: Agent) -> None:
    """Count and time both kinds of checks."""
    for name, timing in (
        ("torch.distributions:Distribution.__init__", _time_parameters),
        ("torch.distributions:Distribution._validate_sample", _time_values),
    ):
        attempt(patch, name, functools.partial(timing, agent), otherwise=None)


def _time_parameters(agent: Agent, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(made: Distribution, *args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("validate_args", args[2] if len(args) > 2 else None)
        if asked is not None or not _is_counted(agent, made):
            original(made, *args, **kwargs)
            return
        started = perf_counter()
        original(made, *args, **kwargs)
        _count(agent, perf_counter() - started)

    return init


def _time_values(agent: Agent, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def validate_sample(made: Distribution, value: Any) -> None:
        if not _is_counted(agent, made):
            original(made, value)
            return
        started = perf_counter()
        original(made, value)
        _count(agent, perf_counter() - started)

    return validate_sample


def _is_counted(agent: Agent, made: Distribution) -> bool:
    """Does it check because that is the default, in a step that is watched?"""
    if torch.compiler.is_compiling() or "_validate_args" in vars(made):
        return False
    return made._validate_args and agent.is_mine()


def _count(agent: Agent, seconds: float) -> None:
    """The first line that checks stands for all of them: a walk up the stack takes as long."""
    first = "argument_check" not in agent.watched.habits
    agent.watched.count("argument_check", seconds, located=first)
