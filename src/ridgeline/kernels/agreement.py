"""Whether a module computes what another function does: tried on numbers that tell formulas apart.

Weights of one value (a norm's ones, a last projection's zeros) and rows of one size hide a formula,
so a norm is given other weights for the trial, and its rows are small and large, centred and not:
each eps shows in one of them. Modules are tried as in training and as in evaluation, since dropout
shows in one of them alone, and in each number of dimensions that they might be called with.
Weights, modes and the script's random numbers are put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Call = Callable[[Tensor], Tensor]
_ROUNDINGS, _ROUNDINGS_OF_FLOAT32 = 4, 16
"""How far two ways to compute the same may lie apart, in roundings of a row's largest number."""
_SCALES = (1.0, 1e-3, 1.0, 30.0, 1e-5)
_SHIFTS = (0.0, 0.0, 2.0, -1.0, 0.0)
"""What a row of random numbers is multiplied by, and then moved by in its own size."""
_SEED = 0


def agreeing_dims(
    module: nn.Module, fused: Call, size: int, like: Tensor, *, scales: bool
) -> frozenset[int]:
    """Numbers of dimensions, of 2, 3 and 4, in which both give the same for rows of a size.

    Args:
        module: Called by its forward alone.
        fused: What might compute the same.
        size: Elements of a row.
        like: Gives dtype and device.
        scales: Whether rows differ in size; they are 1 in root mean square otherwise.
    """
    apart = 5 if size != 5 else 7  # the number of channels of no module with rows of `size`
    rows = torch.randn(2 * apart, size, generator=torch.Generator().manual_seed(_SEED))
    if scales:
        kinds = torch.arange(len(rows)) % len(_SCALES)
        rows = (rows + torch.tensor(_SHIFTS)[kinds, None]) * torch.tensor(_SCALES)[kinds, None]
    x = rows.to(like.device, like.dtype)
    shapes = ((2 * apart, size), (2, apart, size), (1, 2, apart, size))
    return frozenset(len(shape) for shape in shapes if _agree(module, fused, x.view(shape)))


def _agree(module: nn.Module, fused: Call, x: Tensor) -> bool:
    for training in (True, False):
        with _mode(module, training=training), _apart(x):
            try:
                wanted, found = module.forward(x), fused(x)
            except Exception:  # whatever such a module does, it is not this
                return False
        if not is_close(found, wanted):
            return False
    return True


@contextlib.contextmanager
def _apart(x: Tensor) -> Iterator[None]:
    """No gradients, no autocast, and random numbers that the script does not miss."""
    devices = [x.device] if x.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.no_grad(),
        torch.autocast(x.device.type, enabled=False),
    ):
        yield


@contextlib.contextmanager
def _mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    before = [(one, one.training) for one in module.modules()]
    for one, _ in before:
        one.training = training
    try:
        yield
    finally:
        for one, was in before:
            one.training = was


@contextlib.contextmanager
def other_weights(weights: dict[nn.Parameter, Tensor]) -> Iterator[None]:
    """Let parameters have other values, of whatever shape, as long as the block lasts."""
    before = [(one, one.data) for one in weights]
    try:
        for one, value in weights.items():
            one.data = value
        yield
    finally:
        for one, value in before:
            one.data = value


def drawn_like(parameter: Tensor, number: int) -> Tensor:
    """Values about 1 for a norm's weight or bias, each number its own."""
    generator = torch.Generator().manual_seed(_SEED + 1 + number)
    values = torch.randn(parameter.shape, generator=generator) * 0.3 + 1.0
    return values.to(parameter.device, parameter.dtype)


def is_close(found: object, wanted: object) -> bool:
    """Whether two tensors are alike in dtype and shape, and row by row to a few roundings."""
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return False
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    share = max(
        _ROUNDINGS * torch.finfo(wanted.dtype).eps,
        _ROUNDINGS_OF_FLOAT32 * torch.finfo(torch.float32).eps,
    )
    away = (found.float() - wanted.float()).abs().amax(-1)
    return bool((away <= share * wanted.float().abs().amax(-1)).all())
