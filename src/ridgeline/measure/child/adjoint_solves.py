"""What differential equations take that are solved a second time, in backward, for their gradients.

torchdiffeq and torchsde do that in a function of autograd: its forward tells the line that asked,
its backward is the second solve. Neither library is imported for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import patch
from ridgeline.records.script_facts import HabitName


class _Library(NamedTuple):
    """What is watched of a library of solvers."""

    habit: HabitName
    asks: str
    """The function of autograd that runs as the script asks for a solution."""
    solves_again: str
    """The function that runs in backward."""


_LIBRARIES = {
    "torchdiffeq": _Library(
        "ode_adjoint",
        "torchdiffeq._impl.adjoint:OdeintAdjointMethod.forward",
        "torchdiffeq._impl.adjoint:OdeintAdjointMethod.backward",
    ),
    "torchsde": _Library(
        "sde_adjoint",
        "torchsde._core.adjoint:_SdeintAdjointMethod.forward",
        "torchsde._core.adjoint:_SdeintAdjointMethod.backward",
    ),
}


def watch_adjoint_solves(agent: Agent) -> None:
    """Time the second solves of each library, once the script has imported it."""
    for name, library in _LIBRARIES.items():
        after_import(name, functools.partial(_watch, agent, library))


def _watch(agent: Agent, library: _Library) -> None:
    for function, watching in ((library.asks, _note_line), (library.solves_again, _time_solve)):
        make = functools.partial(watching, agent, library.habit)
        attempt(patch, function, make, otherwise=None)


def _note_line(agent: Agent, habit: HabitName, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(context: Any, *args: Any) -> Any:
        if not torch.compiler.is_compiling() and agent.is_mine():
            attempt(note, context, otherwise=None)
        return original(context, *args)

    def note(context: Any) -> None:
        if habit not in agent.watched.habits and any(context.needs_input_grad):
            agent.watched.count(habit, calls=0)

    return forward


def _time_solve(agent: Agent, habit: HabitName, original: Callable[..., Any]) -> Callable[..., Any]:
    """On a GPU this runs in a thread of autograd's, while the one that steps waits for it."""

    @functools.wraps(original)
    def backward(context: Any, *gradients: Any) -> Any:
        if not agent.clock.is_inside("backward"):
            return original(context, *gradients)
        started = perf_counter()
        found = original(context, *gradients)
        agent.watched.count(habit, perf_counter() - started, located=False)
        return found

    return backward
