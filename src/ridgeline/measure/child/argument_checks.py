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
    checks = ArgumentChecks(agent)
    for name, watching in (
        ("torch.distributions:Distribution.__init__", checks.time_parameters),
        ("torch.distributions:Distribution._validate_sample", checks.time_values),
        ("torch.distributions:Distribution.set_default_validate_args", checks.notice_asking),
    ):
        attempt(patch, name, watching, otherwise=None)


class ArgumentChecks:
    """The checks of one process, and whether its script has asked for them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked_for = False

    def notice_asking(self, original: Callable[[bool], None]) -> Callable[[bool], None]:
        """Notice a script that has every distribution check."""

        @functools.wraps(original)
        def set_default_validate_args(value: bool) -> None:
            original(value)
            self._asked_for = bool(value)

        return set_default_validate_args

    def time_parameters(self, original: Callable[..., None]) -> Callable[..., None]:
        """Time a distribution that is made."""

        @functools.wraps(original)
        def init(made: Distribution, *args: Any, **kwargs: Any) -> None:
            asked = kwargs.get("validate_args", args[2] if len(args) > 2 else None)
            if asked is not None or not self._is_counted(made):
                original(made, *args, **kwargs)
                return
            started = perf_counter()
            original(made, *args, **kwargs)
            self._count(perf_counter() - started)

        return init

    def time_values(self, original: Callable[..., None]) -> Callable[..., None]:
        """Time the check of values whose likelihood is asked for."""

        @functools.wraps(original)
        def validate_sample(made: Distribution, value: Any) -> None:
            if not self._is_counted(made):
                original(made, value)
                return
            started = perf_counter()
            original(made, value)
            self._count(perf_counter() - started)

        return validate_sample

    def _is_counted(self, made: Distribution) -> bool:
        """Does it check because that is the default, in a step that is watched?"""
        if self._asked_for or torch.compiler.is_compiling() or "_validate_args" in vars(made):
            return False
        return made._validate_args and self._agent.is_mine()

    def _count(self, seconds: float) -> None:
        """The first line that checks stands for all of them: a walk up the stack takes as long."""
        first = "argument_check" not in self._agent.watched.habits
        self._agent.watched.count("argument_check", seconds, located=first)
