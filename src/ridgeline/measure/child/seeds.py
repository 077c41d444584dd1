"""Same seeds for a fair comparison; shifted seeds to learn how far chance alone moves a loss."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.measure.child.guard import attempt
from ridgeline.patches import patch

_BASE_SEED = 20240229
_SEED_NAMES = ("seed", "a")
"""What the generators call their seed: torch and numpy the one, `random` the other."""
_LIMITS = (2**31, 2**32, 2**63, 2**64)
"""Where the generators' seeds end."""


def fix_seeds(offset: int) -> None:
    """Seed every generator before the script's first line, for scripts that do not seed."""
    seed = _BASE_SEED + offset
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed)


def offset_seeds(offset: int) -> None:
    """Add `offset` to every seed that the script sets itself."""
    names = ["torch:manual_seed", "torch.random:manual_seed", "torch.cuda:manual_seed_all"]
    names.append("random:seed")
    # A seeded `torch.Generator` often fixes a data split, so those keep their seed.
    if _numpy() is not None:
        names += ["numpy.random:seed", "numpy.random:default_rng"]
    for name in names:
        patch(name, lambda original: _shifted(original, offset))


def _shifted(function: Callable[..., Any], offset: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def seed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = attempt(_shift, args, kwargs, offset, otherwise=(args, kwargs))
        return function(*args, **kwargs)

    return seed


def _shift(
    args: tuple[Any, ...], kwargs: dict[str, Any], offset: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the seed shifted, whether it was given by place or by name."""
    if args:
        return (shifted_seed(args[0], offset), *args[1:]), kwargs
    shifted = {
        name: shifted_seed(value, offset) if name in _SEED_NAMES else value
        for name, value in kwargs.items()
    }
    return args, shifted


def shifted_seed(seed: Any, offset: int) -> Any:
    """Another seed that the same generator takes; what is no whole number stays as it is.

    >>> shifted_seed(7, 1009), shifted_seed(2**32 - 1, 1009), shifted_seed("text", 1009)
    (1016, 4294966286, 'text')
    """
    try:
        number = operator.index(seed)
    except TypeError:  # a text, an array, a sequence of seeds, none at all
        return seed
    beyond = any(number < limit <= number + offset for limit in _LIMITS)
    return number - offset if beyond else number + offset


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError:
        return None
    return np
