"""Answers that are computed when somebody looks at them, found inside of any value and computed."""

from __future__ import annotations

import dataclasses
from typing import Any


class PendingValue:
    """Something that stands for a value that is not there yet."""

    def value(self) -> Any:
        """The value; computed now where it was not yet."""
        raise NotImplementedError


def settled(value: Any) -> Any:
    """A value with everything pending in it computed; containers without any stay as they are."""
    if isinstance(value, PendingValue):
        return value.value()
    if type(value) in (list, tuple):
        parts = [settled(part) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if type(value) is dict:
        new = {key: settled(part) for key, part in value.items()}
        return value if all(new[key] is part for key, part in value.items()) else new
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(settled(part) for part in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            found = settled(held)
            if found is not held:
                object.__setattr__(value, field.name, found)
    return value
