"""Mamba's scan from a state that is kept, in place of the library's, which begins at zero.

A selective state space (Gu and Dao, "Mamba", 2312.00752, algorithm 2) goes token by token,

    h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t        y_t = C_t h_t + D x_t

and transformers 5.23 takes h_0 = 0 whenever it gets several tokens, so that a prompt could only go
on one token at a time, each through all products of the module. Here the products stay the module's
and the scan goes on. What it needs for each token and channel is made for `PIECE` tokens at once.

Shapes: B sequences, E channels, T tokens, N numbers a channel's state has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PIECE = 64
"""Tokens whose states stand in memory together."""
_SCAN = "mamba_selective_scan"
"""The library's name for it, in the modules that call it."""


def selective_scan(
    x: Tensor,
    steps: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The outputs C h, [B, E, T] in the dtype of `x`, and the last states, [B, E, N] in float32.

    Args:
        x: [B, E, T]
        steps: Δ, [B, E, T].
        a: A, [E, N].
        b: B, [B, N, T].
        c: C, [B, N, T].
        first: The states that are gone on from, [B, E, N]; None: zero.
    """
    shape = (len(x), *a.shape)
    state = x.new_zeros(shape, dtype=torch.float32) if first is None else first.float()
    outs = []
    for start in range(0, x.shape[-1], PIECE):
        now = slice(start, start + PIECE)
        step = steps[..., now].float().permute(2, 0, 1)[..., None]  # [T, B, E, 1]
        keep = torch.exp(step * a)
        states = step * b[..., now].float().permute(2, 0, 1)[:, :, None]
        states = states * x[..., now].float().permute(2, 0, 1)[..., None]
        for each, kept in zip(states, keep, strict=True):
            state = each.addcmul_(kept, state)
        weights = c[..., now].permute(2, 0, 1)[..., None].to(x.dtype)
        outs.append((states.to(x.dtype) @ weights)[..., 0].permute(1, 2, 0))
    return torch.cat(outs, -1), state.clone()


class ContinuedScan:
    """The scan of one module, as the library calls it."""

    def __init__(self) -> None:
        self.first: Tensor | None = None
        """The states that the next call goes on from; None: zero."""

    def __call__(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803  the library's names
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        D: Tensor | None = None,  # noqa: N803
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        """The output with its skip and gate, [B, E, T]; and the last states, where asked for."""
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        if delta_softplus:
            dt = functional.softplus(dt)
        out, last = selective_scan(hidden_states, dt, A, B, C, self.first)
        if D is not None:
            out = out + hidden_states * D[None, :, None]
        if z is not None:
            out = out * functional.silu(z)
        return (out, last) if return_last_state else out


def continued(module: nn.Module, scan: ContinuedScan) -> Callable[..., Any] | None:
    """The module's forward with `scan` for the library's; None: it calls no such scan.

    The library's own function and its module stay as they are.
    """
    plain = inspect.unwrap(type(module).forward)
    if not isinstance(plain, FunctionType) or _SCAN not in plain.__code__.co_names:
        return None
    names = {**plain.__globals__, _SCAN: scan}
    ours = FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    ours.__kwdefaults__ = plain.__kwdefaults__
    return MethodType(ours, module)
