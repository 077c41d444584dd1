"""Edits the arguments with which a running script constructs objects of one class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.guard import attempt
from ridgeline.patches import Undo, patch


def edit_arguments(constructor: str, edit: Callable[[dict[str, Any]], None]) -> Undo:
    """From now on `edit` sees, and may change, the arguments of each construction, by name.

    Args:
        constructor: The `__init__` of a class, as `patches.PATCHED` names it, without `*args`.
        edit: Called before the object is made.
    """

    def editing(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = attempt(edited, made, args, kwargs, otherwise=(args, kwargs))
            original(made, *args, **kwargs)

        def edited(made: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            _, *bound = signature.bind(made, *args, **kwargs).arguments.items()
            arguments = dict(bound)
            edit(arguments)
            return (), arguments

        return init

    return patch(constructor, editing)
