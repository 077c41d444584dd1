"""The one place where an error of our own ends when it happens inside the user's process.

Every hook, counter, reader of facts, instrument and callback of a technique runs through `guarded`
or `attempt`. What fails becomes one line that names the place in *our* code; the script goes on,
and so does the measurement, without what that place would have told. Only `Exception` ends here:
an interrupt or an exit is the script's. The script's own exceptions never pass through, for what
is guarded is our part of a call and not the call of the script's that stands in its middle.

Entering a `try` costs nothing, so neither does a guard.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
Otherwise = TypeVar("Otherwise")

MISHAPS_NAME = "mishaps.txt"
"""In the session's folder: for a conductor that no report reaches."""
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_MOST = 20
_LONGEST = 200

_said: dict[tuple[str, str], str] = {}
"""Place and kind of error → what was said of it."""
_file: list[Path] = []


def guarded(otherwise: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of ours that returns `otherwise` where it would raise."""

    def guarding(ours: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ours)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return ours(*args, **kwargs)
            except Exception as error:
                note(error)
                return otherwise

        return call

    return guarding


def attempt(ours: Callable[..., T], *args: Any, otherwise: Otherwise) -> T | Otherwise:
    """What `ours(*args)` returns; `otherwise` where it raises."""
    try:
        return ours(*args)
    except Exception as error:
        note(error)
        return otherwise


def note(error: Exception) -> str:
    """Say, once for each place, where our own code failed; returns the line."""
    place = place_of(error.__traceback__)
    key = (place, type(error).__name__)
    if key not in _said:
        line = f"{place} failed ({_words(error)}); the measurement goes on without what it tells"
        _said[key] = line
        if len(_said) <= _MOST:
            _say(line)
    return _said[key]


def tell(line: str) -> None:
    """Say, once, what could not be seen although nothing failed."""
    if ("", line) not in _said:
        _said["", line] = line
        _say(line)


def mishaps() -> list[str]:
    """What was said so far."""
    return list(_said.values())[:_MOST]


def write_to(folder: Path) -> None:
    """From now on the conductor that reads this folder is told, not the terminal."""
    _file[:] = [folder / MISHAPS_NAME]


def start_anew() -> None:
    """Forget what was said: a process that was forked says its own."""
    _said.clear()


def place_of(trace: TracebackType | None) -> str:
    """File and line of the innermost frame of ours, e.g. `ridgeline/measure/child/facts.py:97`."""
    outer = trace.tb_frame.f_back if trace is not None else None
    place = "ridgeline" if outer is None else _place(outer.f_code.co_filename, outer.f_lineno)
    while trace is not None:
        place = _place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or place
        trace = trace.tb_next
    return place


def _place(file: str, line: int) -> str:
    if not file.startswith(_OURS) or file == __file__:
        return ""
    return f"ridgeline/{os.path.relpath(file, _OURS)}:{line}".replace(os.sep, "/")


def _words(error: Exception) -> str:
    try:
        said = " ".join(str(error).split())
    except Exception:  # the script's own kind of error, and it cannot be printed
        said = ""
    return f"{type(error).__name__}: {said[:_LONGEST]}" if said else type(error).__name__


def _say(line: str) -> None:
    try:
        if _file:
            with _file[0].open("a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")
        elif sys.stderr is not None:
            sys.stderr.write(f"ridgeline: {line}\n")
    except Exception:  # the folder has gone, or the script closed its stderr: nobody listens
        return
