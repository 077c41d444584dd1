"""Same seeds for a fair comparison; shifted seeds to learn how far chance alone moves a loss."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.patches import patch

_BASE_SEED = 20240229


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
    def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, int):
            value += offset
        return function(value, *args, **kwargs)

    return seed


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError:
        return None
    return np
