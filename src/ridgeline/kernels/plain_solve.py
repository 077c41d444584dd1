"""A differential equation solved once, with gradients through the steps of its solver.

`odeint_adjoint` of torchdiffeq and `sdeint_adjoint` of torchsde solve a second equation in
backward. Both libraries have the plain solver beside it, which takes the same arguments, less those
that only the second solve has a use for.

It is plain Python, so that it can stand in a user's script as it stands here.
"""

import functools
import inspect
from typing import Any

EXPLICIT = {
    None, "adaptive_heun", "bosh3", "dopri5", "dopri8", "euler", "euler_heun", "explicit_adams",
    "fehlberg2", "heun", "heun2", "heun3", "log_ode", "midpoint", "milstein", "reversible_heun",
    "rk4", "srk", "tsit5",
}  # fmt: skip
"""Methods whose steps are sums of the function's values: others iterate, or leave torch."""
CALLBACKS = ("callback_step_adjoint", "callback_accept_step_adjoint",
             "callback_reject_step_adjoint")  # fmt: skip
"""Methods of a function that only a second solve calls."""


def solve_plainly(adjoint: Any, plain: Any, solved: Any = None) -> Any:
    """Let calls of `adjoint` be answered by `plain`, where that gives what they ask for.

    Args:
        adjoint: The solver that solves again in backward.
        plain: The one beside it, through which autograd goes step by step.
        solved: Is shown each solution, and what the call gave by name; unless it agrees, the call
            goes to `adjoint` after all.
    """
    signature = inspect.signature(adjoint)
    taken = inspect.signature(plain).parameters

    @functools.wraps(adjoint)
    def solve(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if not has_plain_form(given):
            return adjoint(*args, **kwargs)
        passed = {name: value for name, value in given.items() if name in taken}
        rest = passed.pop("unused_kwargs", {})
        solution = plain(**passed, **rest)
        if solved is not None and not solved(solution, given):
            return adjoint(*args, **kwargs)
        return solution

    return solve


def has_plain_form(given: Any) -> bool:
    """Does a call, by its arguments, want neither events, callbacks nor an implicit method?"""
    function = next(iter(given.values()))
    wanted = any(hasattr(function, name) for name in CALLBACKS)
    return given.get("method") in EXPLICIT and given.get("event_fn") is None and not wanted
