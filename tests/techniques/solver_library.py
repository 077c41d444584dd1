"""A library of solvers as torchdiffeq is one, of Euler's method alone: to stand in for it.

torchdiffeq is no dependency. A test puts this among installed packages, in files of the same names;
the second solve is as there a function of autograd.
"""

PACKAGE = {
    "torchdiffeq/__init__.py": """
from ._impl.adjoint import odeint_adjoint
from ._impl.odeint import odeint
""",
    "torchdiffeq/_impl/__init__.py": "",
    "torchdiffeq/_impl/odeint.py": """
import torch


def odeint(func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None):
    states = [y0]
    for start, end in zip(t[:-1], t[1:]):
        states.append(states[-1] + (end - start) * func(start, states[-1]))
    return torch.stack(states)
""",
    "torchdiffeq/_impl/adjoint.py": """
import torch

from .odeint import odeint


class OdeintAdjointMethod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, y0, t, *params):
        ctx.func = func
        with torch.no_grad():
            states = odeint(func, y0, t)
        ctx.save_for_backward(t, states, *params)
        return states

    @staticmethod
    def backward(ctx, grad):
        t, states, *params = ctx.saved_tensors
        adjoint, sums = grad[-1], [torch.zeros_like(one) for one in params]
        for i in range(len(t) - 1, 0, -1):
            width = (t[i] - t[i - 1]) / FINER
            for _ in range(FINER):
                with torch.enable_grad():
                    state = states[i - 1].detach().requires_grad_(True)
                    value = ctx.func(t[i - 1], state)
                    found = torch.autograd.grad(value, (state, *params), adjoint)
                adjoint = adjoint + width * found[0]
                sums = [one + width * more for one, more in zip(sums, found[1:])]
            adjoint = adjoint + grad[i - 1]
        return (None, adjoint, None, *sums)


FINER = 4


def odeint_adjoint(func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None,
                   adjoint_rtol=None, adjoint_atol=None, adjoint_method=None, adjoint_options=None,
                   adjoint_params=None):
    params = tuple(func.parameters()) if adjoint_params is None else tuple(adjoint_params)
    return OdeintAdjointMethod.apply(func, y0, t, *params)
""",
}
"""File among installed packages → its text."""
