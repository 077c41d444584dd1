"""What a run without us has of ours: the user's files are kept, and it has the user's terminal.

It has nothing else: neither the agent nor a library that the script itself does not import.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.saved_files import SavedFiles
from ridgeline.measure.guard.inside import keeper_of
from ridgeline.measure.guard.view import SESSION_NAME
from ridgeline.patches import patch


def protect(session_folder: str) -> None:
    """Keep what the script overwrites, and let it see how wide the terminal is: an entry point."""
    attempt(SavedFiles(keeper_of(session_folder), _untimed).install, otherwise=None)
    size = json.loads(Path(session_folder, SESSION_NAME).read_bytes()).get("terminal")
    if size is not None:
        attempt(lend_size, tuple(size), otherwise=None)


def _untimed(seconds: float) -> None:
    """Nobody measures this run."""


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
