"""Edits the arguments with which a running script constructs objects of one class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Undo


def edit_arguments(constructed: Any, edit: Callable[[dict[str, Any]], None]) -> Undo:
    """From now on `edit` sees, and may change, the arguments of each construction, by name.

    Args:
        constructed: A class whose `__init__` can be replaced, and takes no `*args` of its own.
        edit: Called before the object is made.
    """
    original = constructed.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(made: Any, *args: Any, **kwargs: Any) -> None:
        _, *bound = signature.bind(made, *args, **kwargs).arguments.items()
        arguments = dict(bound)
        edit(arguments)
        original(made, **arguments)

    constructed.__init__ = init

    def undo() -> None:
        constructed.__init__ = original

    return undo
