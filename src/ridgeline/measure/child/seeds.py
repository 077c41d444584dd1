"""Same seeds for a fair comparison; shifted seeds to learn how far chance alone moves a loss."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import torch

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
    torch.manual_seed = _shifted(torch.manual_seed, offset)
    torch.random.manual_seed = _shifted(torch.random.manual_seed, offset)
    torch.cuda.manual_seed_all = _shifted(torch.cuda.manual_seed_all, offset)
    random.seed = _shifted(random.seed, offset)
    # A seeded `torch.Generator` often fixes a data split, so those keep their seed.
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed = _shifted(numpy.random.seed, offset)
        numpy.random.default_rng = _shifted(numpy.random.default_rng, offset)


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
