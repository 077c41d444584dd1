"""The size of the user's terminal, for a script whose output goes to us."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ridgeline.patches import patch


def lend_size(size: tuple[int, int]) -> None:
    """Let `os.get_terminal_size` answer as it would without us."""

    def lending(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_terminal_size(*descriptor: int) -> Any:
            try:
                return original(*descriptor)
            except OSError:
                return os.terminal_size(size)

        return get_terminal_size

    patch("os:get_terminal_size", lending)
